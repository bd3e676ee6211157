//! Where lanes arrive: one listening socket for each address of each interface, following the interfaces as they come and go.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, TcpListener};
use std::sync::{Arc, Mutex};

use mesh_core::links::{Interface, InterfaceKind, is_link_local};
use socket2::{Domain, Protocol, Socket, Type};

use crate::lock;

/// Listening sockets at most; further addresses are left out (F22: machines with hundreds of interfaces). Guess.
pub const LISTENERS_MAX: usize = 32;
/// Connections that the system queues for each.
const BACKLOG: libc::c_int = 128;

const _: () = assert!(LISTENERS_MAX <= crate::endpoint::ENDPOINTS_MAX);

/// One listening socket.
pub(crate) struct Listener {
    pub(crate) socket: TcpListener,
    pub(crate) address: SocketAddr,
    pub(crate) kind: InterfaceKind,
    /// Which interface, by the system's number.
    index: u32,
}

/// All of them, the best guess first.
#[derive(Default)]
pub(crate) struct Listeners(Mutex<State>);

#[derive(Default)]
struct State {
    open: Vec<Arc<Listener>>,
    /// Addresses that could not be bound the last time: said once.
    refused: BTreeSet<IpAddr>,
}

impl Listeners {
    pub(crate) fn now(&self) -> Vec<Arc<Listener>> {
        lock(&self.0).open.clone()
    }

    /// Binds what is new and closes what is gone; says whether anything changed. What cannot be bound is left out, and tried
    /// again the next time: a fresh IPv6 address is not usable for a second or two.
    ///
    /// # Errors
    /// Nothing at all could be bound; what the system said last.
    pub(crate) fn renew(&self, interfaces: &[Interface]) -> io::Result<bool> {
        let mut wanted: Vec<(&Interface, IpAddr)> =
            interfaces.iter().flat_map(|interface| interface.addresses.iter().map(move |address| (interface, address.ip))).collect();
        wanted.sort_by_key(|(interface, ip)| (interface.kind == InterfaceKind::Virtual, rank(*ip)));
        wanted.truncate(LISTENERS_MAX);
        let mut state = lock(&self.0);
        let mut former = std::mem::take(&mut state.open);
        let (mut changed, mut last) = (false, None);
        for (interface, ip) in wanted {
            let same = |one: &Arc<Listener>| one.address.ip() == ip && one.index == interface.index && one.kind == interface.kind;
            if let Some(at) = former.iter().position(same) {
                let kept = former.swap_remove(at);
                state.open.push(kept);
                continue;
            }
            match bind(interface, ip, interfaces) {
                Ok(listener) => {
                    changed = true;
                    state.refused.remove(&ip);
                    state.open.push(Arc::new(listener));
                }
                Err(error) => {
                    if state.refused.insert(ip) {
                        tracing::info!(interface = interface.name, address = %ip, %error, "no tensor lanes on this address for now");
                    }
                    last = Some(error);
                }
            }
        }
        while state.refused.len() > 4 * LISTENERS_MAX {
            state.refused.pop_first();
        }
        changed |= !former.is_empty();
        match last {
            Some(error) if state.open.is_empty() => Err(error),
            _ => Ok(changed),
        }
    }
}

fn bind(interface: &Interface, ip: IpAddr, all: &[Interface]) -> io::Result<Listener> {
    let at = scoped(ip, 0, interface.index);
    let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    if is_ambiguous(ip, all) {
        // Answers must leave by the interface at which the question came, and the routing table cannot know which.
        bind_to(&socket, interface);
    }
    socket.bind(&at.into())?;
    socket.listen(BACKLOG)?;
    let socket: TcpListener = socket.into();
    let address = socket.local_addr()?;
    Ok(Listener { socket, address, kind: interface.kind, index: interface.index })
}

/// Whether an address is on a network that two of our interfaces may be on: the routing table would take either.
fn is_ambiguous(ip: IpAddr, all: &[Interface]) -> bool {
    let near = all.iter().filter(|interface| interface.kind != InterfaceKind::Loopback && interface.near(ip).is_some()).count();
    near > 1 || (is_link_local(ip) && !ip.is_loopback())
}

/// Ties a socket to one interface, as far as the system allows that without privileges (Linux does since 5.7). Where it does
/// not, the address alone has to do.
pub(crate) fn bind_to(socket: &Socket, interface: &Interface) {
    if let Err(error) = bind_device(socket, interface) {
        tracing::debug!(interface = interface.name, %error, "a socket cannot be tied to its interface");
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn bind_device(socket: &Socket, interface: &Interface) -> io::Result<()> {
    socket.bind_device(Some(interface.name.as_bytes()))
}

#[cfg(target_vendor = "apple")]
fn bind_device(socket: &Socket, interface: &Interface) -> io::Result<()> {
    let index = std::num::NonZeroU32::new(interface.index);
    if socket.domain()? == Domain::IPV6 { socket.bind_device_by_index_v6(index) } else { socket.bind_device_by_index_v4(index) }
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
fn bind_device(_: &Socket, _: &Interface) -> io::Result<()> {
    Ok(())
}

/// An address with a port, and for link-local IPv6 with the link.
pub(crate) fn scoped(address: IpAddr, port: u16, index: u32) -> SocketAddr {
    match address {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => SocketAddr::V6(SocketAddrV6::new(v6, port, 0, index)),
        _ => SocketAddr::new(address, port),
    }
}

/// Routable addresses first, then those of a cable, then our own machine's.
fn rank(ip: IpAddr) -> u8 {
    match ip {
        ip if ip.is_loopback() => 2,
        ip if is_link_local(ip) => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use mesh_core::links::NetAddress;

    use super::*;

    #[test]
    fn only_link_local_addresses_carry_their_link() {
        let text = |ip: &str| scoped(ip.parse().expect("an address"), 5, 3).to_string();
        assert_eq!(
            (text("fe80::1").as_str(), text("2001::1").as_str(), text("10.0.0.1").as_str()),
            ("[fe80::1%3]:5", "[2001::1]:5", "10.0.0.1:5")
        );
    }

    #[test]
    fn sockets_follow_the_interfaces() {
        let listeners = Listeners::default();
        let with = |ips: &[&str]| {
            let addresses = ips.iter().map(|ip| NetAddress { ip: ip.parse().expect("an address"), prefix: 8 }).collect();
            [Interface { addresses, ..Interface::loopback() }]
        };
        assert_eq!(listeners.renew(&with(&["127.0.0.1"])).ok(), Some(true));
        let first = listeners.now()[0].address;
        assert_eq!(listeners.renew(&with(&["127.0.0.1"])).ok(), Some(false), "nothing changed");
        assert_eq!(listeners.renew(&with(&["127.0.0.1", "127.0.0.2"])).ok(), Some(true));
        assert_eq!(
            listeners.now().iter().map(|one| one.address).filter(|address| *address == first).count(),
            1,
            "what stays keeps its port"
        );
        assert_eq!(listeners.renew(&with(&["127.0.0.2", "192.0.2.77"])).ok(), Some(true), "an address that is not ours is left out");
        assert_eq!(listeners.now().len(), 1);
        assert!(std::net::TcpStream::connect(first).is_err(), "closed");
        assert!(listeners.renew(&with(&["192.0.2.77"])).is_err());
        let many: Vec<String> = (1..200).map(|last| format!("127.0.1.{last}")).collect();
        listeners.renew(&with(&many.iter().map(String::as_str).collect::<Vec<_>>())).expect("some");
        assert_eq!(listeners.now().len(), LISTENERS_MAX);
    }
}
