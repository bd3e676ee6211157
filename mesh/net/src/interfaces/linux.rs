//! What Linux says of an interface: sysfs, read without trust in its shape (Documentation/ABI/testing/sysfs-class-net).
//!
//! A machine's own port has a device behind it; what is virtual has not. Of the virtual ones a container's own end of a
//! virtual cable is as good as a wire: it is no bridge's port, needs address resolution, and is neither tunnel nor bridge.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use mesh_core::links::InterfaceKind;

use super::names::{Class, by_name};

/// Where the kernel describes interfaces.
const SYSFS: &str = "/sys/class/net";
/// `ARPHRD_ETHER`, `ARPHRD_LOOPBACK` (include/uapi/linux/if_arp.h). Other kinds of hardware address are tunnels here, but
/// for InfiniBand, whose IP interfaces are wires.
const ETHER: u32 = 1;
const INFINIBAND: u32 = 32;
const LOOPBACK: u32 = 772;
/// `IFF_NOARP`: dummy interfaces, tunnels.
const NO_ARP: u32 = 0x80;
/// Bytes of a sysfs file that are looked at.
const FILE_BYTES_MAX: usize = 4096;

/// The class of an interface; by its name alone if sysfs is not there, or is another network namespace's.
pub fn classify(name: &str, index: u32) -> Class {
    classify_at(Path::new(SYSFS), name, index).unwrap_or_else(|| by_name(name))
}

fn classify_at(sysfs: &Path, name: &str, index: u32) -> Option<Class> {
    if name.contains('/') || name.starts_with('.') {
        return None;
    }
    let dir = sysfs.join(name);
    let text = |file: &str| {
        fs::read(dir.join(file)).ok().map(|bytes| String::from_utf8_lossy(&bytes[..bytes.len().min(FILE_BYTES_MAX)]).trim().to_owned())
    };
    let number = |file: &str| text(file)?.parse::<u32>().ok();
    let there = |file: &str| dir.join(file).exists();
    if number("ifindex")? != index {
        return None; // a sysfs of another namespace
    }
    let devtype = text("uevent").and_then(|text| text.lines().find_map(|line| line.strip_prefix("DEVTYPE=").map(str::to_owned)));
    let flags = text("flags").and_then(|text| u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()).unwrap_or(0);
    let driver = fs::read_link(dir.join("device/driver")).ok().and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    let speed_mbps = number("speed").filter(|speed| *speed < u32::MAX).unwrap_or(0); // unknown is -1, which is no u32
    let class = match number("type")? {
        LOOPBACK => Class::of(InterfaceKind::Loopback),
        _ if there("tun_flags") || devtype.as_deref() == Some("wireguard") => Class::of(InterfaceKind::Virtual),
        ETHER | INFINIBAND => match devtype.as_deref() {
            _ if driver.as_deref() == Some("thunderbolt-net") || by_name(name).kind == InterfaceKind::Thunderbolt => {
                Class::of(InterfaceKind::Thunderbolt)
            }
            _ if there("wireless") || there("phy80211") || devtype.as_deref() == Some("wlan") => Class::of(InterfaceKind::Wifi),
            _ if there("bridge") => bridge(&dir, sysfs),
            _ if there("brport") && !there("device") => Class::inside(), // the host's end of a container's cable
            _ if there("device") => Class::of(InterfaceKind::Ethernet),
            Some("vxlan" | "geneve" | "gre" | "ipvlan") => Class::of(InterfaceKind::Virtual),
            _ if flags & NO_ARP != 0 => Class::inside(),
            _ => Class::of(InterfaceKind::Ethernet), // the container's end of it, bonds, VLANs
        },
        _ => Class::of(InterfaceKind::Virtual),
    };
    Some(Class { speed_mbps, ..class })
}

/// A bridge with a real port is the machine's own way out; one of virtual cables only is a container network.
fn bridge(dir: &Path, sysfs: &Path) -> Class {
    let ports = fs::read_dir(dir.join("brif")).into_iter().flatten().flatten();
    let real = ports.take(256).any(|port| sysfs.join(port.file_name()).join("device").exists());
    if real { Class::of(InterfaceKind::Ethernet) } else { Class::inside() }
}

/// Interfaces with a default route: of two that look alike, the one that leads out.
pub fn default_routes() -> BTreeSet<String> {
    let Ok(table) = fs::read_to_string("/proc/self/net/route") else { return BTreeSet::new() };
    default_routes_in(&table)
}

/// Lines of "interface destination gateway flags references uses metric mask ..", in hex; a default route has neither
/// destination nor mask.
fn default_routes_in(table: &str) -> BTreeSet<String> {
    let fields = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    fields.filter(|f| f.get(1) == Some(&"00000000") && f.get(7) == Some(&"00000000")).map(|f| f[0].to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sysfs of the test's own: `files` are "path=contents".
    fn class(name: &str, files: &[&str]) -> Option<Class> {
        let root = tempfile::tempdir().expect("a directory");
        for file in files {
            let (path, contents) = file.split_once('=').unwrap_or((file, ""));
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("inside")).expect("made");
            fs::write(path, contents).expect("written");
        }
        classify_at(root.path(), name, 3)
    }

    fn kind(name: &str, more: &[&str]) -> (InterfaceKind, bool) {
        let base = ["ifindex=3\n", "type=1\n", "flags=0x1003\n", "uevent=INTERFACE=x\n"];
        let mut files: Vec<String> = base
            .iter()
            .filter(|file| !more.iter().any(|other| other.split('=').next() == file.split('=').next()))
            .map(|file| format!("{name}/{file}"))
            .collect();
        files.extend(more.iter().map(|file| if file.contains("::") { file.replace("::", "/") } else { format!("{name}/{file}") }));
        let class = class(name, &files.iter().map(String::as_str).collect::<Vec<_>>()).expect("described");
        (class.kind, class.inside)
    }

    #[test]
    fn interfaces_are_what_sysfs_says() {
        use InterfaceKind::{Ethernet, Loopback, Thunderbolt, Virtual, Wifi};
        assert_eq!(kind("lo", &["type=772"]), (Loopback, false));
        assert_eq!(kind("enp1s0", &["device/vendor"]), (Ethernet, false));
        assert_eq!(kind("odd-name", &["device/vendor", "phy80211/index"]), (Wifi, false));
        assert_eq!(kind("thunderbolt0", &["device/vendor"]), (Thunderbolt, false));
        assert_eq!(kind("tun0", &["type=65534"]), (Virtual, false));
        assert_eq!(kind("tap0", &["tun_flags=0x1002"]), (Virtual, false));
        assert_eq!(kind("wg0", &["type=65534", "uevent=DEVTYPE=wireguard\n"]), (Virtual, false));
        assert_eq!(kind("x0", &["uevent=DEVTYPE=vxlan\n"]), (Virtual, false));
        assert_eq!(kind("dummy0", &["flags=0x83"]), (Virtual, true));
        assert_eq!(kind("eth0", &[]), (Ethernet, false), "a container's own end of its cable");
        assert_eq!(kind("veth12", &["brport/state=3"]), (Virtual, true), "and the host's end");
        assert_eq!(kind("docker0", &["bridge/bridge_id", "brif/veth12/state"]), (Virtual, true));
        assert_eq!(kind("br0", &["bridge/bridge_id", "brif/enp1s0/state", "enp1s0::device/vendor"]), (Ethernet, false));
        assert_eq!(kind("ib0", &["type=32", "device/vendor"]), (Ethernet, false));
    }

    #[test]
    fn a_sysfs_of_another_namespace_is_not_believed() {
        assert_eq!(class("eth0", &["eth0/ifindex=9", "eth0/type=1"]), None);
        assert_eq!(class("eth0", &[]), None);
        assert_eq!(class("../x", &["x/ifindex=3", "x/type=1"]), None);
    }

    #[test]
    fn speeds_are_read_and_unknown_ones_are_none() {
        let speed =
            |text: &str| class("e", &["e/ifindex=3", "e/type=1", "e/device/x", &format!("e/speed={text}")]).map(|class| class.speed_mbps);
        assert_eq!((speed("10000\n"), speed("-1\n"), speed("")), (Some(10_000), Some(0), Some(0)));
    }

    #[test]
    fn default_routes_are_found() {
        let table = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\n\
            eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\neth1\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\nodd\n";
        assert_eq!(default_routes_in(table), BTreeSet::from(["eth0".to_owned()]));
    }
}
