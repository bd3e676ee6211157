//! A network interface, as its node describes it to others.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Interfaces that a node tells of at most (F22: machines with hundreds of them). They travel in every record. Guess.
pub const INTERFACES_MAX: usize = 16;
/// Addresses of one interface that are told at most.
pub const ADDRESSES_MAX: usize = 4;
/// Bytes of an interface's name at most (Linux: 15; macOS: 15).
pub const NAME_BYTES_MAX: usize = 32;

/// One interface that is up and has an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// The system's name for it, such as `en0`. Means something on its own node only.
    pub name: String,
    /// What it is.
    pub kind: InterfaceKind,
    /// Nominal megabits a second; 0 = the system does not tell.
    pub speed_mbps: u32,
    /// Its addresses, best first.
    pub addresses: Vec<NetAddress>,
    /// The system's number of it: which link a link-local IPv6 address is on. Means nothing on another machine and stays
    /// here; 0 = none.
    #[serde(skip)]
    pub index: u32,
}

/// What an interface is: an order of first guesses, before anything was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InterfaceKind {
    /// A network over a Thunderbolt cable.
    Thunderbolt,
    /// A wire, or what behaves like one (a container's own end of a virtual cable).
    Ethernet,
    /// Wi-Fi.
    Wifi,
    /// The machine itself.
    Loopback,
    /// A VPN, or a bridge of containers or virtual machines: leads nowhere, or a long way round. Never used while anything
    /// else connects two nodes (F1).
    Virtual,
}

/// An address with the length of its network's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NetAddress {
    /// The address.
    pub ip: IpAddr,
    /// Leading bits that all addresses on the network share. Never assumed (F5): networks of four addresses exist.
    pub prefix: u8,
}

impl Interface {
    /// 127.0.0.1.
    #[must_use]
    pub fn loopback() -> Self {
        let address = NetAddress { ip: IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), prefix: 8 };
        Self { name: "lo".into(), kind: InterfaceKind::Loopback, speed_mbps: 0, addresses: vec![address], index: 0 }
    }

    /// Its address to speak to `other` from: one on the same network.
    #[must_use]
    pub fn near(&self, other: IpAddr) -> Option<NetAddress> {
        self.addresses.iter().find(|address| address.holds(other)).copied()
    }
}

impl NetAddress {
    /// Whether `other` is on the same network.
    #[must_use]
    pub fn holds(&self, other: IpAddr) -> bool {
        let alike = |ours: u128, theirs: u128, width: u32| {
            let rest = width.saturating_sub(u32::from(self.prefix));
            rest >= 128 || ours >> rest == theirs >> rest
        };
        match (self.ip, other) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => alike(ours.to_bits().into(), theirs.to_bits().into(), 32),
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => alike(ours.to_bits(), theirs.to_bits(), 128),
            _ => false,
        }
    }

    /// Whether the address means something on its own link only.
    #[must_use]
    pub fn is_link_local(&self) -> bool {
        is_link_local(self.ip)
    }
}

/// Whether an address means something on one link only.
#[must_use]
pub fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// What may be told and believed of a node's interfaces: bounded, with sound addresses only. Names that are too long or odd
/// (they are written into offers) are left out.
#[must_use]
pub fn bounded(interfaces: Vec<Interface>) -> Vec<Interface> {
    let sound = |name: &str| !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.bytes().all(|byte| byte.is_ascii_graphic());
    let usable = |address: &NetAddress| !address.ip.is_unspecified() && !address.ip.is_multicast();
    let mut kept: Vec<Interface> = Vec::new();
    for mut interface in interfaces {
        interface.addresses.retain(usable);
        interface.addresses.truncate(ADDRESSES_MAX);
        let twice = kept.iter().any(|other| other.name == interface.name);
        if sound(&interface.name) && !interface.addresses.is_empty() && !twice && kept.len() < INTERFACES_MAX {
            kept.push(interface);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ip: &str, prefix: u8) -> NetAddress {
        NetAddress { ip: ip.parse().expect("an address"), prefix }
    }

    #[test]
    fn networks_are_told_apart() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        assert!(of("169.254.7.1", 16).holds(ip("169.254.200.9")));
        assert!(!of("10.0.1.1", 24).holds(ip("10.0.2.1")));
        assert!(!of("10.9.0.1", 30).holds(ip("10.9.0.5")), "three octets alike and yet another network (F5)");
        assert!(!of("10.0.1.1", 32).holds(ip("10.0.1.2")));
        assert!(of("10.0.1.1", 0).holds(ip("8.8.8.8")));
        assert!(of("10.0.1.1", 200).holds(ip("10.0.1.1")), "a prefix that cannot be is as long as can be");
        assert!(of("fe80::1", 64).holds(ip("fe80::2")));
        assert!(of("fe80::1", 0).holds(ip("2001::2")));
        assert!(!of("10.0.1.1", 0).holds(ip("fe80::2")));
    }

    #[test]
    fn what_others_say_is_bounded() {
        let one = |name: &str| Interface { name: name.into(), ..Interface::loopback() };
        let many: Vec<Interface> = (0..1000).map(|i| one(&format!("v{i}"))).collect();
        assert_eq!(bounded(many).len(), INTERFACES_MAX);
        assert_eq!(bounded(vec![one(""), one("a b"), one(&"x".repeat(99)), one("ok"), one("ok")]).len(), 1);
        let addresses = vec![of("0.0.0.0", 0), of("224.0.0.1", 4)];
        assert_eq!(bounded(vec![Interface { addresses, ..one("x") }]), []);
    }
}
