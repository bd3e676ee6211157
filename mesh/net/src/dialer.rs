//! Whom to dial, where, and when: pauses grow from 0.25 s to 5 s (4 s for whom the operator named, so that a seed that comes
//! up late is found within 5 s, jitter included) and never end while somebody is missed (F9).
//!
//! Pure but for the peer and address types: time and jitter are handed in.

use std::collections::BTreeMap;

use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use mesh_core::ids::Time;

use crate::interfaces::place_of;

const PAUSE_FIRST_MS: u64 = 250;
const PAUSE_MAX_MS: u64 = 5_000;
/// The same for places that the operator named.
const PAUSE_NAMED_MAX_MS: u64 = 4_000;
/// After a refusal in words or by secret: a person has to act first. Doubles for those whom nobody named: they are probably
/// neighbours of another mesh, and will stay that.
const PAUSE_REFUSED_MS: u64 = 30_000;
const PAUSE_REFUSED_DOUBLINGS_MAX: u32 = 5;
/// After a connection came about: time to greet. If the node is not up by then, it is dialled again.
const GREET_MS: u64 = 6_000;
/// Addresses of one node: told by itself, by others, by multicast DNS.
const ADDRESSES_MAX: usize = 16;
const TARGETS_MAX: usize = 1_024;
/// A lost member is dialled for a day; if it comes back later, it dials us.
const MISSED_MS: u64 = 24 * 3_600_000;
/// The same for an address that never led to a member.
const TRIES_MAX: u32 = 40;

/// A node, or a place that somebody named.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// A node whose id is known.
    Node(PeerId),
    /// An address or `HOST:PORT` as it was written.
    Place(String),
}

/// Why this target is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// The operator named it: never given up.
    Configured,
    /// It was heard of.
    Heard,
}

#[derive(Clone, Debug)]
struct Target {
    origin: Origin,
    addresses: Vec<Multiaddr>,
    /// Who is there, once known.
    peer: Option<PeerId>,
    /// `None`: connected, or being dialled.
    next: Option<Time>,
    pause_ms: u64,
    tries: u32,
    missed_since: Time,
}

/// A dial that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// For whom.
    pub key: Key,
    /// Where. Empty for a place whose name has to be resolved first.
    pub addresses: Vec<Multiaddr>,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A connection; the hello is still to come.
    Connected(PeerId),
    /// Nothing.
    Failed,
    /// Somebody is there who does not want us, or whom we do not want.
    Unwelcome,
    /// It is this node itself.
    Myself,
}

/// All targets.
#[derive(Debug)]
pub struct Dialer {
    me: PeerId,
    targets: BTreeMap<Key, Target>,
}

impl Dialer {
    /// Nobody to dial yet.
    pub fn new(me: PeerId) -> Self {
        Self { me, targets: BTreeMap::new() }
    }

    /// Adds what an operator (`forever`) or a record named: a multiaddress or `HOST:PORT`.
    ///
    /// # Errors
    /// Neither of the two.
    pub fn add(&mut self, now: Time, text: &str, forever: bool) -> Result<(), String> {
        match text.parse::<Multiaddr>() {
            Ok(address) if place_of(&address).is_some() || host_of(&address).is_some() => match split_peer(&address) {
                (place, Some(peer)) if !forever && place_of(&place).is_some() => self.learn(now, peer, [place], 0),
                (_, Some(peer)) if peer == self.me => {}
                _ => self.add_place(now, text, forever),
            },
            Err(_) if host_port(text).is_some() => self.add_place(now, text, forever),
            _ => return Err(format!("\"{text}\" is neither HOST:PORT nor a multiaddress such as /ip4/192.168.1.20/tcp/7000")),
        }
        Ok(())
    }

    fn add_place(&mut self, now: Time, text: &str, forever: bool) {
        let key = Key::Place(text.to_owned());
        if self.targets.contains_key(&key) || (!forever && self.targets.len() >= TARGETS_MAX) {
            return;
        }
        let origin = if forever { Origin::Configured } else { Origin::Heard };
        let target =
            Target { origin, addresses: Vec::new(), peer: None, next: Some(now), pause_ms: PAUSE_FIRST_MS, tries: 0, missed_since: now };
        self.targets.insert(key, target);
    }

    /// Adds addresses of a node. The node is dialled after `delay_ms` unless it is connected or a dial is planned already.
    pub fn learn(&mut self, now: Time, peer: PeerId, addresses: impl IntoIterator<Item = Multiaddr>, delay_ms: u64) {
        let room = self.targets.len() < TARGETS_MAX;
        if peer == self.me || !(room || self.targets.contains_key(&Key::Node(peer))) {
            return;
        }
        let target = self.targets.entry(Key::Node(peer)).or_insert(Target {
            origin: Origin::Heard,
            addresses: Vec::new(),
            peer: Some(peer),
            next: Some(now.plus_ms(delay_ms)),
            pause_ms: PAUSE_FIRST_MS,
            tries: 0,
            missed_since: now,
        });
        for address in addresses.into_iter().take(ADDRESSES_MAX) {
            let (place, _) = split_peer(&address);
            if !place.is_empty() && !target.addresses.contains(&place) {
                if target.addresses.len() == ADDRESSES_MAX {
                    target.addresses.remove(0);
                }
                target.addresses.push(place);
            }
        }
    }

    /// The node itself says, in a hello, where it is: what was heard before is out of date.
    pub fn learn_anew(&mut self, now: Time, peer: PeerId, addresses: impl IntoIterator<Item = Multiaddr>) {
        if let Some(target) = self.targets.get_mut(&Key::Node(peer)) {
            target.addresses.clear();
        }
        self.learn(now, peer, addresses, 0);
    }

    /// Every known address of a node.
    pub fn addresses_of(&self, peer: PeerId) -> Vec<Multiaddr> {
        self.targets.get(&Key::Node(peer)).map(|target| target.addresses.clone()).unwrap_or_default()
    }

    /// It is up: nothing to do until it is lost.
    pub fn connected(&mut self, peer: PeerId) {
        for target in self.targets.values_mut().filter(|target| target.peer == Some(peer)) {
            target.next = None;
            target.pause_ms = PAUSE_FIRST_MS;
            target.tries = 0;
        }
    }

    /// It is down: dialled again, after a pause.
    pub fn lost(&mut self, now: Time, peer: PeerId, jitter: u64) {
        for target in self.targets.values_mut().filter(|target| target.peer == Some(peer)) {
            target.missed_since = now;
            target.pause_ms = PAUSE_FIRST_MS;
            target.next = Some(now.plus_ms(jittered(target.pause_ms, jitter)));
        }
    }

    /// It left for good, on its own word.
    pub fn forget(&mut self, peer: PeerId) {
        self.targets.retain(|_, target| target.origin == Origin::Configured || target.peer != Some(peer));
    }

    /// What is due. Each attempt given out must be answered by [`Dialer::ended`].
    pub fn due(&mut self, now: Time) -> Vec<Attempt> {
        self.targets.retain(|key, target| {
            let missed = match key {
                Key::Node(_) => now.ms_since(target.missed_since) > MISSED_MS,
                Key::Place(_) => target.tries > TRIES_MAX,
            };
            target.origin == Origin::Configured || target.next.is_none() || !missed
        });
        let mut attempts = Vec::new();
        for (key, target) in &mut self.targets {
            if target.next.is_some_and(|next| next <= now) {
                target.next = None;
                target.tries += 1;
                attempts.push(Attempt { key: key.clone(), addresses: target.addresses.clone() });
            }
        }
        attempts
    }

    /// How an attempt ended. `jitter` is any random number.
    pub fn ended(&mut self, now: Time, key: &Key, outcome: Outcome, jitter: u64) {
        let Some(target) = self.targets.get_mut(key) else { return };
        let pause_ms = match outcome {
            Outcome::Connected(peer) => {
                target.peer = Some(peer);
                GREET_MS
            }
            Outcome::Failed => {
                let pause_ms = target.pause_ms;
                let most = if target.origin == Origin::Configured { PAUSE_NAMED_MAX_MS } else { PAUSE_MAX_MS };
                target.pause_ms = (pause_ms * 2).min(most);
                pause_ms
            }
            Outcome::Unwelcome if target.origin == Origin::Heard => {
                PAUSE_REFUSED_MS << target.tries.saturating_sub(1).min(PAUSE_REFUSED_DOUBLINGS_MAX)
            }
            Outcome::Unwelcome => PAUSE_REFUSED_MS,
            Outcome::Myself if target.origin == Origin::Heard => {
                self.targets.remove(key);
                return;
            }
            Outcome::Myself => PAUSE_REFUSED_MS,
        };
        target.next = Some(now.plus_ms(jittered(pause_ms, jitter)));
    }

    /// A hello was refused, one way or the other.
    pub fn unwelcome(&mut self, now: Time, peer: PeerId, jitter: u64) {
        let keys: Vec<Key> = self.targets.iter().filter(|(_, target)| target.peer == Some(peer)).map(|(key, _)| key.clone()).collect();
        keys.iter().for_each(|key| self.ended(now, key, Outcome::Unwelcome, jitter));
    }

    /// An address turned out to be somebody else's, or ours.
    pub fn unlearn(&mut self, key: &Key, address: &Multiaddr) {
        let (place, _) = split_peer(address);
        if let Some(target) = self.targets.get_mut(key) {
            target.addresses.retain(|known| *known != place);
            if target.addresses.is_empty() && target.origin == Origin::Heard {
                self.targets.remove(key);
            }
        }
    }

    /// Who is there, if it is known.
    pub fn peer_at(&self, key: &Key) -> Option<PeerId> {
        self.targets.get(key)?.peer
    }

    /// Whether the operator named it.
    pub fn is_configured(&self, key: &Key) -> bool {
        self.targets.get(key).is_some_and(|target| target.origin == Origin::Configured)
    }

    /// When something is due next.
    pub fn wake_at(&self) -> Option<Time> {
        self.targets.values().filter_map(|target| target.next).min()
    }
}

/// Between 80 % and 120 %: nodes that lost each other at once do not dial in step.
fn jittered(pause_ms: u64, jitter: u64) -> u64 {
    pause_ms * (80 + jitter % 41) / 100
}

/// An address without its `/p2p/..` end, and the peer in that.
pub fn split_peer(address: &Multiaddr) -> (Multiaddr, Option<PeerId>) {
    let mut place = address.clone();
    match place.pop() {
        Some(Protocol::P2p(peer)) => (place, Some(peer)),
        _ => (address.clone(), None),
    }
}

/// Host name and port of `/dns4/HOST/tcp/PORT` and its relatives.
pub fn host_of(address: &Multiaddr) -> Option<(String, u16)> {
    let mut parts = address.iter();
    match (parts.next()?, parts.next()?) {
        (Protocol::Dns(host) | Protocol::Dns4(host) | Protocol::Dns6(host), Protocol::Tcp(port)) => Some((host.into_owned(), port)),
        _ => None,
    }
}

/// Host and port of `HOST:PORT` or `[IPV6]:PORT`.
pub fn host_port(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let plausible = !host.is_empty() && host.len() <= 253 && !host.contains(['/', ' ', '[', ']', '@']);
    port.parse().ok().filter(|port| plausible && *port != 0).map(|port| (host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::default().plus_ms(ms)
    }

    fn address(text: &str) -> Multiaddr {
        text.parse().expect("a multiaddress")
    }

    /// Jitter that changes nothing.
    const EVEN: u64 = 20;

    #[test]
    fn a_seed_that_is_not_there_yet_is_dialled_for_ever() {
        let mut dialer = Dialer::new(PeerId::random());
        dialer.add(at(0), "seed.example:7000", true).expect("a place");
        let (mut now, mut pauses) = (at(0), Vec::new());
        for _ in 0..60 {
            let [attempt] = &dialer.due(now)[..] else { panic!("nothing due") };
            assert_eq!(dialer.wake_at(), None, "one dial at a time");
            dialer.ended(now, &attempt.key.clone(), Outcome::Failed, EVEN);
            let next = dialer.wake_at().expect("tried again");
            pauses.push(next.ms_since(now));
            now = next;
        }
        assert_eq!(pauses[..6], [250, 500, 1000, 2000, 4000, 4000]);
        assert_eq!(pauses[59], 4000);
    }

    #[test]
    fn a_connected_node_is_left_alone_until_it_is_lost() {
        let (mut dialer, peer) = (Dialer::new(PeerId::random()), PeerId::random());
        dialer.add(at(0), "/ip4/10.0.0.1/tcp/7", true).expect("a place");
        dialer.learn(at(0), peer, [address("/ip4/10.0.0.1/tcp/7")], 0);
        let attempts = dialer.due(at(0));
        assert_eq!(attempts.len(), 2);
        attempts.iter().for_each(|attempt| dialer.ended(at(1), &attempt.key, Outcome::Connected(peer), EVEN));
        assert_eq!(dialer.wake_at(), Some(at(6_001)));
        dialer.connected(peer);
        dialer.learn(at(2), peer, [address("/ip4/10.0.0.2/tcp/7")], 0);
        assert_eq!(dialer.wake_at(), None);
        dialer.lost(at(10_000), peer, EVEN);
        assert_eq!(dialer.wake_at(), Some(at(10_250)));
        assert_eq!(dialer.due(at(10_250)).len(), 2);
        dialer.forget(peer);
        assert_eq!(dialer.targets.len(), 1, "what the operator named stays");
    }

    #[test]
    fn own_addresses_and_strangers_addresses_are_dropped() {
        let me = PeerId::random();
        let (mut dialer, peer) = (Dialer::new(me), PeerId::random());
        dialer.learn(at(0), me, [address("/ip4/10.0.0.1/tcp/7")], 0);
        dialer.add(at(0), &format!("/ip4/10.0.0.1/tcp/7/p2p/{me}"), true).expect("ignored");
        assert!(dialer.targets.is_empty());
        dialer.learn(at(0), peer, [address("/ip4/172.17.0.1/tcp/7"), address("/ip4/10.0.0.1/tcp/7")], 0);
        dialer.unlearn(&Key::Node(peer), &address("/ip4/172.17.0.1/tcp/7"));
        assert_eq!(dialer.addresses_of(peer), [address("/ip4/10.0.0.1/tcp/7")]);
        dialer.learn_anew(at(1), peer, [address("/ip4/10.0.0.9/tcp/9")]);
        assert_eq!(dialer.addresses_of(peer), [address("/ip4/10.0.0.9/tcp/9")]);
        dialer.unlearn(&Key::Node(peer), &address("/ip4/10.0.0.9/tcp/9"));
        assert!(dialer.targets.is_empty());
    }

    #[test]
    fn everything_is_bounded_and_given_up_in_the_end() {
        let (mut dialer, peer) = (Dialer::new(PeerId::random()), PeerId::random());
        dialer.learn(at(0), peer, (1..200).map(|port| address(&format!("/ip4/10.0.0.1/tcp/{port}"))), 0);
        assert_eq!(dialer.addresses_of(peer).len(), ADDRESSES_MAX);
        (0..2_000).for_each(|port| dialer.add(at(0), &format!("10.0.0.1:{}", port + 1), false).expect("a place"));
        assert_eq!(dialer.targets.len(), TARGETS_MAX);
        assert_eq!(dialer.due(at(MISSED_MS + 1)).iter().filter(|attempt| matches!(attempt.key, Key::Node(_))).count(), 0);
    }

    #[test]
    fn places_are_read() {
        assert_eq!(host_port("mac-1.local:7000"), Some(("mac-1.local", 7000)));
        assert_eq!(host_port("[fd00::1]:7000"), Some(("fd00::1", 7000)));
        for wrong in ["", "/tcp/7", "/ip4/10.0.0.1/udp/7/quic-v1", "host", "host:0", "host:70000", ":7", "a b:7", "http://x:7"] {
            assert_eq!(host_port(wrong), None, "{wrong}");
            assert!(Dialer::new(PeerId::random()).add(at(0), wrong, true).is_err(), "{wrong}");
        }
    }
}
