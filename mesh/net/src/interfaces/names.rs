//! What an interface's name says of it: all there is where the system tells nothing more.
//!
//! Sources: systemd.net-naming-scheme(7), the names that Docker, Podman, libvirt, LXD and Kubernetes plugins give, and
//! Apple's (`awdl`/`llw` peer-to-peer Wi-Fi, `anpi` the coprocessor, `bridge0` the Thunderbolt bridge, `bridge100` and up
//! shared networks of virtual machines).

use mesh_core::links::InterfaceKind;

/// What an interface is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    pub kind: InterfaceKind,
    /// It ends inside this machine: no other machine is behind it, though containers and virtual machines may be.
    pub inside: bool,
    /// Nominal megabits a second; 0 = unknown.
    pub speed_mbps: u32,
}

impl Class {
    pub fn of(kind: InterfaceKind) -> Self {
        Self { kind, inside: false, speed_mbps: 0 }
    }
    /// Leads to containers and virtual machines of this machine only, or is the system's own.
    pub fn inside() -> Self {
        Self { inside: true, ..Self::of(InterfaceKind::Virtual) }
    }
}

/// Names, up to their number, of interfaces that end inside this machine or that only the system itself uses.
const INSIDE: &[&str] = &[
    "docker",
    "veth",
    "virbr",
    "vnet",
    "cni",
    "flannel",
    "cali",
    "lxcbr",
    "lxdbr",
    "podman",
    "kube-ipvs",
    "weave",
    "dummy",
    "ifb",
    "awdl",
    "llw",
    "anpi",
    "vmnet",
    "ap",
];
/// Tunnels: another machine may be behind them, a long way round.
const TUNNELS: &[&str] = &["tun", "tap", "utun", "wg", "tailscale", "zt", "ppp", "ipsec", "gif", "stf", "sit", "gre", "nordlynx", "wt"];
/// Apple gives bridges of virtual machines numbers from here on.
const APPLE_SHARED_BRIDGES: u32 = 100;

/// The class that a name suggests.
pub fn by_name(name: &str) -> Class {
    let family = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let number: Option<u32> = name[family.len()..].parse().ok();
    let inside = INSIDE.contains(&family)
        || ["veth", "cali", "vnet"].iter().any(|prefix| name.starts_with(prefix))
        // docker's own networks: `br-` and twelve hex digits
        || name.strip_prefix("br-").is_some_and(|rest| rest.len() == 12 && rest.bytes().all(|byte| byte.is_ascii_hexdigit()));
    match family {
        _ if inside => Class::inside(),
        "lo" => Class::of(InterfaceKind::Loopback),
        "bridge" if number == Some(0) => Class::of(InterfaceKind::Thunderbolt),
        "bridge" if number.is_some_and(|number| number >= APPLE_SHARED_BRIDGES) => Class::inside(),
        "thunderbolt" => Class::of(InterfaceKind::Thunderbolt),
        _ if TUNNELS.contains(&family) || name.starts_with("zt") => Class::of(InterfaceKind::Virtual),
        _ if name.starts_with("wl") => Class::of(InterfaceKind::Wifi),
        _ => Class::of(InterfaceKind::Ethernet),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known() {
        for name in ["docker0", "veth12ab", "br-0123456789ab", "virbr0", "lxdbr0", "awdl0", "cni0", "bridge100", "ap1"] {
            assert!(by_name(name).inside, "{name}");
        }
        for (name, kind) in [
            ("eth0", InterfaceKind::Ethernet),
            ("en0", InterfaceKind::Ethernet),
            ("enp3s0f0", InterfaceKind::Ethernet),
            ("br0", InterfaceKind::Ethernet),
            ("br-lan", InterfaceKind::Ethernet),
            ("bridge0", InterfaceKind::Thunderbolt),
            ("thunderbolt0", InterfaceKind::Thunderbolt),
            ("wlp2s0", InterfaceKind::Wifi),
            ("lo0", InterfaceKind::Loopback),
            ("tailscale0", InterfaceKind::Virtual),
            ("utun3", InterfaceKind::Virtual),
            ("wg0", InterfaceKind::Virtual),
            ("ztabcdefgh", InterfaceKind::Virtual),
        ] {
            assert_eq!((by_name(name).kind, by_name(name).inside), (kind, false), "{name}");
        }
    }
}
