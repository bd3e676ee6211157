//! Which of this machine's addresses are worth telling others.
//!
//! F1: container bridges exist on every machine, often with the same address, and lead nowhere. They are known by name.
//! A Thunderbolt bridge (`bridge0` on macOS) and a host's own `br0` are real networks and stay.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;

use crate::ifaddrs;

/// One address of one interface that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name, such as `en0`.
    pub name: String,
    /// The address.
    pub address: IpAddr,
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
    "awdl",
    "llw",
    "anpi",
    "vmnet",
];

/// Addresses that a node tells of itself at most: they travel in every hello and record.
const CANDIDATES_MAX: usize = 16;

/// Addresses that others may reach: interfaces that are up and lead out of this machine, best first.
///
/// Private and public addresses first, link-local IPv4 (a cable between two machines) after them. Link-local IPv6 is left
/// out: a multiaddress cannot name the interface that it needs. Loopback is left out.
#[must_use]
pub fn interfaces() -> Vec<Interface> {
    let up = ifaddrs::list().into_iter().filter(|raw| raw.flags & libc::IFF_UP as u32 != 0);
    let mut found: Vec<Interface> = up.map(|raw| Interface { name: raw.name, address: raw.address }).filter(leads_out).collect();
    found.sort_by_key(|interface| (rank(interface.address), interface.name.clone(), interface.address));
    found.dedup();
    found
}

/// How many addresses libp2p's multicast DNS would use: it takes every IPv4 address but loopback.
#[must_use]
pub fn multicast_addresses() -> usize {
    ifaddrs::list().iter().filter(|raw| raw.address.is_ipv4() && !raw.address.is_loopback()).count()
}

/// Whether an address belongs to this machine: a dial to it, at one of our ports, ends at ourselves.
#[must_use]
pub fn is_local(address: IpAddr) -> bool {
    address.is_loopback() || ifaddrs::list().iter().any(|raw| raw.address == address)
}

fn leads_out(interface: &Interface) -> bool {
    let name = interface.name.as_str();
    let numbered = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let inside = INSIDE.contains(&numbered)
        || ["veth", "cali", "vnet"].iter().any(|prefix| name.starts_with(prefix))
        // docker's own networks: `br-` and twelve hex digits
        || name.strip_prefix("br-").is_some_and(|rest| rest.len() == 12 && rest.bytes().all(|byte| byte.is_ascii_hexdigit()));
    !inside && !interface.address.is_loopback() && !interface.address.is_unspecified() && !is_link_local_v6(interface.address)
}

fn is_link_local_v6(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

fn rank(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(v4) if v4.is_link_local() => 2,
        IpAddr::V4(_) => 0,
        IpAddr::V6(_) => 1,
    }
}

/// IP address and TCP port at the front of a multiaddress.
pub(crate) fn place_of(address: &Multiaddr) -> Option<(IpAddr, u16)> {
    let mut parts = address.iter();
    let ip = match parts.next()? {
        Protocol::Ip4(v4) => IpAddr::V4(v4),
        Protocol::Ip6(v6) => IpAddr::V6(v6),
        _ => return None,
    };
    match parts.next()? {
        Protocol::Tcp(port) => Some((ip, port)),
        _ => None,
    }
}

/// `/ip4/../tcp/..` for a place.
pub(crate) fn address_at(ip: IpAddr, port: u16) -> Multiaddr {
    Multiaddr::empty().with(ip.into()).with(Protocol::Tcp(port))
}

/// The addresses to tell others, out of the sockets that are bound and the interfaces there are: best first, and loopback
/// only if there is nothing else (two nodes on one machine, and tests).
pub(crate) fn candidates(bound: &[SocketAddr], interfaces: &[Interface]) -> Vec<Multiaddr> {
    let listens = |socket: &SocketAddr, ip: IpAddr| {
        let any = socket.ip().is_unspecified() && socket.is_ipv4() == ip.is_ipv4(); // the IPv6 wildcard takes IPv6 only
        any || socket.ip() == ip
    };
    let mut found: Vec<(IpAddr, u16)> = Vec::new();
    for interface in interfaces {
        let ports = bound.iter().filter(|socket| listens(socket, interface.address)).map(SocketAddr::port);
        found.extend(ports.map(|port| (interface.address, port)));
    }
    if found.is_empty() {
        let loopback = |socket: &SocketAddr| match socket.ip() {
            ip if ip.is_loopback() => Some((ip, socket.port())),
            IpAddr::V4(ip) if ip.is_unspecified() => Some((Ipv4Addr::LOCALHOST.into(), socket.port())),
            IpAddr::V6(ip) if ip.is_unspecified() => Some((Ipv6Addr::LOCALHOST.into(), socket.port())),
            _ => None,
        };
        found.extend(bound.iter().filter_map(loopback));
    }
    let mut seen = BTreeSet::new();
    found.retain(|place| seen.insert(*place));
    found.into_iter().take(CANDIDATES_MAX).map(|(ip, port)| address_at(ip, port)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, address: &str) -> Interface {
        Interface { name: name.to_owned(), address: address.parse().expect("an address") }
    }

    #[test]
    fn container_bridges_are_left_out_and_cables_stay() {
        for name in ["docker0", "veth12ab", "br-0123456789ab", "virbr0", "lxdbr0", "awdl0", "cni0"] {
            assert!(!leads_out(&interface(name, "172.17.0.1")), "{name}");
        }
        for name in ["eth0", "en0", "bridge0", "br0", "enp3s0f0", "tailscale0", "wlan0", "br-lan"] {
            assert!(leads_out(&interface(name, "10.0.0.1")), "{name}");
        }
        assert!(!leads_out(&interface("en5", "fe80::1")));
    }

    #[test]
    fn candidates_are_in_order_and_loopback_is_the_last_resort() {
        let there = [interface("en0", "10.0.0.1"), interface("en0", "fd00::1"), interface("en5", "169.254.1.1")];
        let texts = |bound: &str, there: &[Interface]| {
            let bound: Vec<SocketAddr> = bound.split(' ').map(|socket| socket.parse().expect("a socket address")).collect();
            candidates(&bound, there).iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(texts("0.0.0.0:7", &there), "/ip4/10.0.0.1/tcp/7 /ip4/169.254.1.1/tcp/7");
        assert_eq!(texts("[::]:8 0.0.0.0:7", &there), "/ip4/10.0.0.1/tcp/7 /ip6/fd00::1/tcp/8 /ip4/169.254.1.1/tcp/7");
        assert_eq!(texts("10.0.0.1:7 10.0.0.1:9 10.9.9.9:7", &there), "/ip4/10.0.0.1/tcp/7 /ip4/10.0.0.1/tcp/9");
        assert_eq!(texts("127.0.0.1:7", &there), "/ip4/127.0.0.1/tcp/7");
        assert_eq!(texts("0.0.0.0:7", &[]), "/ip4/127.0.0.1/tcp/7");
    }

    #[test]
    fn this_machine_knows_itself() {
        assert!(is_local("127.0.0.1".parse().expect("an address")));
        assert!(!is_local("192.0.2.77".parse().expect("an address")));
    }
}
