//! The interfaces of this machine: the one place that lists them, says what each is, and which addresses are worth telling.
//!
//! F1: container bridges exist on every machine, often with the same address, and lead nowhere: they are never told as a
//! place to dial. A Thunderbolt bridge (`bridge0` on macOS) and a host's own `br0` are real networks. What an interface is
//! comes from the system where it tells (one file for each system), else from its name.

mod names;
#[cfg_attr(any(target_os = "linux", target_os = "android"), path = "interfaces/linux.rs")]
#[cfg_attr(target_os = "macos", path = "interfaces/macos.rs")]
#[cfg_attr(not(any(target_os = "linux", target_os = "android", target_os = "macos")), path = "interfaces/other.rs")]
mod system;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, PoisonError};

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use mesh_core::links::{Interface, InterfaceKind, NetAddress, bounded, is_link_local};

use crate::ifaddrs;
use names::Class;

/// Addresses that a node tells of itself at most: they travel in every hello and record.
const CANDIDATES_MAX: usize = 16;

/// Lists interfaces again and again: what each one is, is asked of the system once. Machines with hundreds of them exist
/// (F22).
#[derive(Default)]
pub(crate) struct Lister {
    classes: Mutex<BTreeMap<(String, u32), Class>>,
}

impl Lister {
    /// The interfaces that are up, have a carrier and an address: those that a node would use first in front, at most
    /// [`mesh_core::links::INTERFACES_MAX`].
    pub fn list(&self) -> Vec<Interface> {
        bounded(self.all().into_iter().map(|(interface, _)| interface).collect())
    }

    /// All of them, each with whether it ends inside this machine.
    fn all(&self) -> Vec<(Interface, bool)> {
        let usable = (libc::IFF_UP | libc::IFF_RUNNING) as u32;
        let mut found: BTreeMap<String, (Interface, bool)> = BTreeMap::new();
        let mut classes = self.classes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut asked = BTreeMap::new();
        for raw in ifaddrs::list().into_iter().filter(|raw| raw.flags & usable == usable) {
            let key = (raw.name.clone(), raw.index);
            let class = *asked
                .entry(key.clone())
                .or_insert_with(|| classes.get(&key).copied().unwrap_or_else(|| system::classify(&raw.name, raw.index)));
            let (interface, _) = found.entry(raw.name.clone()).or_insert_with(|| {
                let Class { kind, speed_mbps, inside } = class;
                (Interface { name: raw.name, kind, speed_mbps, addresses: Vec::new(), index: raw.index }, inside)
            });
            interface.addresses.push(NetAddress { ip: raw.address, prefix: raw.prefix });
        }
        *classes = asked; // those that went are forgotten
        drop(classes);
        let leads_out = system::default_routes();
        let mut all: Vec<(Interface, bool)> = found.into_values().collect();
        all.iter_mut().for_each(|(interface, _)| interface.addresses.sort_by_key(|address| (rank(address.ip), address.ip)));
        all.sort_by_key(|(interface, _)| {
            (interface.kind, !leads_out.contains(&interface.name), interface.name.len(), interface.name.clone())
        });
        all
    }

    /// The addresses that others may dial: interfaces that lead out of this machine. Link-local IPv6 is left out: a
    /// multiaddress cannot name the interface that it needs. Loopback is left out.
    pub fn dialable(&self) -> Vec<IpAddr> {
        let out = self.all().into_iter().filter(|(interface, inside)| !inside && interface.kind != InterfaceKind::Loopback);
        let mut found: Vec<(bool, u8, IpAddr)> = out
            .flat_map(|(interface, _)| {
                interface.addresses.into_iter().map(move |address| (interface.kind == InterfaceKind::Virtual, address.ip))
            })
            .filter(|(_, ip)| !(ip.is_loopback() || ip.is_unspecified() || ip.is_ipv6() && is_link_local(*ip)))
            .map(|(tunnel, ip)| (tunnel, rank(ip), ip))
            .collect();
        found.sort_by_key(|&(tunnel, rank, _)| (tunnel, rank)); // stable: best interface first; a way through a tunnel last
        found.into_iter().map(|(_, _, ip)| ip).collect()
    }
}

/// The interfaces of this machine that are up and have an address, those that a node would use first in front.
#[must_use]
pub fn interfaces() -> Vec<Interface> {
    Lister::default().list()
}

/// Those of `interfaces` on which a node that listens on `bound` can be reached: all, if it listens on a wildcard.
pub(crate) fn reachable(bound: &[SocketAddr], interfaces: Vec<Interface>) -> Vec<Interface> {
    if bound.iter().any(|socket| socket.ip().is_unspecified()) {
        return interfaces;
    }
    let keep = |mut interface: Interface| {
        interface.addresses.retain(|address| bound.iter().any(|socket| socket.ip() == address.ip));
        (!interface.addresses.is_empty()).then_some(interface)
    };
    interfaces.into_iter().filter_map(keep).collect()
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

fn rank(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(v4) if v4.is_link_local() => 2,
        IpAddr::V6(v6) if v6.is_unicast_link_local() => 3,
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

/// The addresses to tell others, out of the sockets that are bound and the addresses that can be dialled: best first, and
/// loopback only if there is nothing else (two nodes on one machine, and tests).
pub(crate) fn candidates(bound: &[SocketAddr], dialable: &[IpAddr]) -> Vec<Multiaddr> {
    let listens = |socket: &SocketAddr, ip: IpAddr| {
        let any = socket.ip().is_unspecified() && socket.is_ipv4() == ip.is_ipv4(); // the IPv6 wildcard takes IPv6 only
        any || socket.ip() == ip
    };
    let mut found: Vec<(IpAddr, u16)> = Vec::new();
    for &ip in dialable {
        let ports = bound.iter().filter(|socket| listens(socket, ip)).map(SocketAddr::port);
        found.extend(ports.map(|port| (ip, port)));
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

    #[test]
    fn candidates_are_in_order_and_loopback_is_the_last_resort() {
        let there = ["10.0.0.1", "fd00::1", "169.254.1.1"].map(|ip| ip.parse().expect("an address"));
        let texts = |bound: &str, there: &[IpAddr]| {
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
    fn a_node_is_reached_where_it_listens() {
        let names = |bound: &str| {
            let all = vec![
                Interface {
                    name: "eth0".into(),
                    kind: InterfaceKind::Ethernet,
                    addresses: vec![NetAddress { ip: Ipv4Addr::new(10, 0, 0, 1).into(), prefix: 8 }],
                    ..Interface::loopback()
                },
                Interface::loopback(),
            ];
            reachable(&[bound.parse().expect("a socket")], all).into_iter().map(|one| one.name).collect::<Vec<_>>().join(" ")
        };
        assert_eq!((names("0.0.0.0:1").as_str(), names("127.0.0.1:1").as_str(), names("10.0.0.1:1").as_str()), ("eth0 lo", "lo", "eth0"));
    }

    #[test]
    fn this_machine_has_a_loopback_interface_and_it_is_last_of_the_real_ones() {
        let all = interfaces();
        let loopback = all.iter().find(|one| one.kind == InterfaceKind::Loopback).expect("lo is up");
        assert!(loopback.addresses.contains(&NetAddress { ip: Ipv4Addr::LOCALHOST.into(), prefix: 8 }) && loopback.index > 0);
        assert!(all.windows(2).all(|pair| pair[0].kind <= pair[1].kind), "{all:?}");
    }

    #[test]
    fn this_machine_knows_itself() {
        assert!(is_local("127.0.0.1".parse().expect("an address")));
        assert!(!is_local("192.0.2.77".parse().expect("an address")));
    }
}
