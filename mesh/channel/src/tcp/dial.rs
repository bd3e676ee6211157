//! Connecting a sending end: which way first, and the handshake.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mesh_core::ids::NodeId;
use mesh_core::links::{Interface, InterfaceKind, is_link_local};
use mesh_core::wire::LaneOffer;
use socket2::{Domain, Protocol, Socket, Type};

use crate::book::Book;
use crate::config::Deadlines;
use crate::endpoint::Target;
use crate::frame::{Header, Kind, PREFIX_BYTES, Preamble};
use crate::listeners::{bind_to, scoped};
use crate::poll::{Bell, Watch, wait};
use crate::seal::{Keys, Opener, Sealer, draw};

/// Pairs of a local and a remote address that are tried at most.
const WAYS_MAX: usize = 64;
/// Rounds in which every way was refused outright before a lane is given up: the other node runs but knows no such lane,
/// or has stopped. One round may be bad luck at a crowded door.
const REFUSED_ROUNDS_MAX: u32 = 3;
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// From where and how patiently to connect.
pub(crate) struct Dialler {
    /// Whom.
    pub(crate) to: NodeId,
    pub(crate) targets: Vec<Target>,
    pub(crate) book: Arc<Book>,
    pub(crate) deadlines: Deadlines,
    /// Only agreed links, each once: that is what is asked about.
    pub(crate) measuring: bool,
}

/// A connection whose both ends proved the key.
pub(super) struct Connected {
    pub(super) socket: TcpStream,
    pub(super) peer: SocketAddr,
    pub(super) sealer: Sealer,
    pub(super) opener: Opener,
    pub(super) granted: u64,
}

/// One way to try.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Way {
    from: Option<SocketAddr>,
    to: SocketAddr,
    /// The interface to leave by: on networks of which this machine has two, addresses alone do not decide that.
    by: Option<Interface>,
}

/// Why one way failed.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("the lane was closed meanwhile")]
    Over,
    #[error("{0}")]
    Refused(&'static str),
    #[error("no answer in time")]
    Late,
    #[error("{0}")]
    System(#[from] io::Error),
    #[error("{0}")]
    Other(String),
}

/// Tries all ways in turn until one is connected or the deadline has come.
///
/// # Errors
/// In words, with what the first few ways said.
pub(super) fn dial(offer: &LaneOffer, dialler: &Dialler, bell: &Bell) -> Result<Connected, String> {
    let interfaces = dialler.book.interfaces();
    let mut ways = agreed(&dialler.targets, &interfaces);
    if !dialler.measuring {
        ways.extend(others(&dialler.targets, &interfaces));
        ways.truncate(WAYS_MAX);
    }
    if ways.is_empty() {
        return Err("no interface of this node leads to any of the other one's addresses".into());
    }
    let deadline = Instant::now() + dialler.deadlines.connect;
    let (mut pause, mut refused_rounds) = (PAUSE_FIRST, 0);
    loop {
        let (mut said, mut all_refused) = (Vec::new(), true);
        for way in &ways {
            let until = deadline.min(Instant::now() + dialler.deadlines.attempt);
            match try_way(offer, way, dialler, bell, until) {
                Ok(connected) => return Ok(connected),
                Err(Trouble::Over) => return Err(Trouble::Over.to_string()),
                Err(trouble) => {
                    all_refused &= matches!(trouble, Trouble::Refused(_));
                    said.push(format!("{}: {trouble}", way.to));
                }
            }
        }
        refused_rounds = if all_refused { refused_rounds + 1 } else { 0 };
        if dialler.measuring || refused_rounds >= REFUSED_ROUNDS_MAX || Instant::now() + pause >= deadline {
            said.dedup();
            said.truncate(4);
            return Err(format!("cannot reach the other end ({})", said.join("; ")));
        }
        let resume = Instant::now() + pause;
        wait(&mut [bell.watch()], resume).map_err(|error| error.to_string())?;
        bell.hush();
        if bell.is_over() {
            return Err(Trouble::Over.to_string());
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// The ways on links that both nodes agreed on, in the order of the offer: from the interface that is named, and out of it.
fn agreed(targets: &[Target], interfaces: &[Interface]) -> Vec<Way> {
    let way = |target: &Target| {
        let (via, ip) = (target.via.as_ref()?, target.address.ip());
        let interface = interfaces.iter().find(|interface| interface.name == *via)?;
        let near = interface.near(ip);
        let from = near.or_else(|| interface.addresses.iter().find(|address| address.ip.is_ipv4() == ip.is_ipv4()).copied())?;
        let own = interfaces.iter().any(|interface| interface.addresses.iter().any(|address| address.ip == ip));
        let by = (near.is_some() && !own).then(|| interface.clone()); // what is routed leaves by where the router is
        let to = scoped(ip, target.address.port(), interface.index);
        Some(Way { from: Some(scoped(from.ip, 0, interface.index)), to, by })
    };
    targets.iter().filter_map(way).collect()
}

/// All other ways, best first: from an interface on the same network, then by whatever route the system has, loopback last
/// (for another machine it would be that machine itself, where nobody knows our key). Never out of a VPN on purpose (F1).
fn others(targets: &[Target], interfaces: &[Interface]) -> Vec<Way> {
    let (mut direct, mut routed, mut loopback) = (Vec::new(), Vec::new(), Vec::new());
    for Target { address: target, .. } in targets {
        let usable = interfaces.iter().filter(|interface| interface.kind != InterfaceKind::Virtual);
        let near = usable.flat_map(|interface| interface.near(target.ip()).map(|from| (interface, from)));
        let mut near: Vec<Way> = near
            .map(|(interface, from)| Way {
                from: Some(scoped(from.ip, 0, interface.index)),
                to: scoped(target.ip(), target.port(), interface.index),
                by: (is_link_local(target.ip()) && from.ip != target.ip()).then(|| interface.clone()),
            })
            .collect();
        if target.ip().is_loopback() {
            loopback.push(Way { from: None, to: *target, by: None });
        } else if !near.is_empty() {
            direct.append(&mut near);
        } else if !is_link_local(target.ip()) {
            routed.push(Way { from: None, to: *target, by: None });
        }
    }
    direct.append(&mut routed);
    direct.append(&mut loopback);
    direct
}

fn try_way(offer: &LaneOffer, way: &Way, dialler: &Dialler, bell: &Bell, until: Instant) -> Result<Connected, Trouble> {
    let socket = Socket::new(Domain::for_address(way.to), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    if let Some(by) = &way.by {
        bind_to(&socket, by);
    }
    if let Some(from) = way.from {
        socket.bind(&from.into())?;
    }
    match socket.connect(&way.to.into()) {
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {
            await_socket(Watch::read_and_write(socket.as_fd()), bell, until)?;
            if let Some(error) = socket.take_error()? {
                return Err(refused_or(error));
            }
        }
        Err(error) => return Err(refused_or(error)),
        Ok(()) => {}
    }
    super::tune(&socket, offer.slot_bytes, &dialler.deadlines)?;
    shake_hands(offer, socket.into(), way.to, bell, until)
}

fn shake_hands(offer: &LaneOffer, socket: TcpStream, peer: SocketAddr, bell: &Bell, until: Instant) -> Result<Connected, Trouble> {
    let preamble = Preamble { lane: offer.lane, generation: offer.generation, random: draw().map_err(Trouble::Other)? };
    let keys = Keys::derive(&offer.secret, &preamble);
    (&socket).write_all(&keys.prove(&preamble))?; // fits the buffer of a fresh socket
    let mut answer = [0; PREFIX_BYTES];
    let mut bytes = 0;
    while bytes < PREFIX_BYTES {
        match (&socket).read(&mut answer[bytes..]) {
            Ok(0) => return Err(Trouble::Refused("it does not accept this lane")),
            Ok(more) => bytes += more,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => await_socket(Watch::read(socket.as_fd()), bell, until)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                return Err(Trouble::Refused("it does not accept this lane"));
            }
            Err(error) => return Err(error.into()),
        }
    }
    let mut opener = Opener::new(keys.back, offer.generation, 0);
    let Header { kind, granted, .. } = opener.header(&answer).map_err(|error| Trouble::Other(format!("it sent {error}")))?;
    opener.open(&answer, &mut []).map_err(|error| Trouble::Other(format!("it sent {error}")))?;
    if kind != Kind::Grant || granted != u64::from(offer.slots) {
        return Err(Trouble::Other(format!("it answers with {granted} credits for {} slots", offer.slots)));
    }
    let mut sealer = Sealer::new(keys.forth, offer.generation, 1);
    (&socket).write_all(&sealer.seal(Kind::KeepAlive, 0, &mut []))?;
    Ok(Connected { socket, peer, sealer, opener, granted })
}

/// Waits until the socket stirs.
fn await_socket(socket: Watch<'_>, bell: &Bell, until: Instant) -> Result<(), Trouble> {
    let mut watches = [socket, bell.watch()];
    loop {
        wait(&mut watches, until)?;
        if watches[1].stirred {
            bell.hush();
        }
        if bell.is_over() {
            return Err(Trouble::Over);
        }
        if watches[0].stirred {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(Trouble::Late);
        }
    }
}

fn refused_or(error: io::Error) -> Trouble {
    if error.kind() == io::ErrorKind::ConnectionRefused {
        Trouble::Refused("nobody listens there any more: the other node has stopped or restarted")
    } else {
        Trouble::System(error)
    }
}

#[cfg(test)]
mod tests {
    use mesh_core::links::NetAddress;

    use super::*;

    fn interface(address: &str, prefix: u8, index: u32) -> Interface {
        let addresses = vec![NetAddress { ip: address.parse().expect("an address"), prefix }];
        Interface { name: format!("i{index}"), kind: InterfaceKind::Ethernet, addresses, index, speed_mbps: 0 }
    }

    fn targets(texts: &[&str]) -> Vec<Target> {
        let target = |text: &&str| {
            let (address, via) = text.split_once(" via ").map_or((*text, None), |(address, via)| (address, Some(via.to_owned())));
            Target { address: address.parse().expect("an address"), via }
        };
        texts.iter().map(target).collect()
    }

    fn written(ways: &[Way]) -> Vec<String> {
        let by = |way: &Way| way.by.as_ref().map(|by| format!(" by {}", by.name)).unwrap_or_default();
        ways.iter().map(|way| format!("{} {}{}", way.from.map_or("any".into(), |from| from.to_string()), way.to, by(way))).collect()
    }

    #[test]
    fn ways_go_from_the_interface_on_the_same_network_and_loopback_is_last() {
        let interfaces =
            [interface("127.0.0.1", 8, 1), interface("169.254.1.1", 16, 2), interface("10.0.0.1", 24, 3), interface("fe80::1", 64, 4)];
        let targets = targets(&["127.0.0.1:1", "192.168.9.9:2", "169.254.2.2:3", "10.0.0.9:4", "[fe80::9]:5"]);
        assert_eq!(
            written(&others(&targets, &interfaces)),
            [
                "169.254.1.1:0 169.254.2.2:3 by i2",
                "10.0.0.1:0 10.0.0.9:4",
                "[fe80::1%4]:0 [fe80::9%4]:5 by i4",
                "any 192.168.9.9:2",
                "any 127.0.0.1:1"
            ]
        );
    }

    #[test]
    fn two_cables_with_link_local_addresses_are_both_tried_and_none_without() {
        let target = targets(&["169.254.2.2:3"]);
        let cables = [interface("169.254.1.1", 16, 2), interface("169.254.1.2", 16, 3)];
        assert_eq!(others(&target, &cables).len(), 2);
        assert_eq!(others(&target, &[interface("10.0.0.1", 24, 3)]), []);
    }

    #[test]
    fn an_agreed_link_is_left_by_its_own_interface() {
        let cables = [interface("169.254.1.1", 16, 2), interface("169.254.1.2", 16, 3), interface("10.0.0.1", 24, 4)];
        let offered = targets(&[
            "169.254.2.2:3 via i3",
            "10.9.9.9:4 via i4",
            "10.0.0.9:5 via i4",
            "10.0.0.9:5 via gone",
            "10.0.0.1:6 via i4",
            "10.0.0.9:7",
        ]);
        assert_eq!(
            written(&agreed(&offered, &cables)),
            ["169.254.1.2:0 169.254.2.2:3 by i3", "10.0.0.1:0 10.9.9.9:4", "10.0.0.1:0 10.0.0.9:5 by i4", "10.0.0.1:0 10.0.0.1:6"]
        );
    }
}
