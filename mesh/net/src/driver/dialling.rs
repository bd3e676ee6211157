//! Dialling: what the dialer wants, the redials that settle suspicions, and what failures mean.

use std::time::Duration;

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use mesh_core::ids::{NodeId, Time};
use mesh_core::membership::Input;
use mesh_core::ports::Clock;

use super::Driver;
use crate::dialer::{Attempt, Key, Outcome, host_of, host_port, split_peer};
use crate::interfaces::{address_at, is_local, place_of};
use crate::key::{node_of, peer_of};
use crate::swarm::{self, Failure};

/// Redials of one node under way: one made by its silence, one by the end of its link.
const REDIALS_MAX: usize = 2;
/// How long a name may take to resolve.
const RESOLVE_MS: u64 = 3_000;

impl Driver {
    pub(super) fn attempt(&mut self, now: Time, attempt: Attempt) {
        match attempt.key {
            Key::Node(peer) if node_of(peer).is_some_and(|node| self.core.is_up(node)) => self.dialer.connected(peer),
            Key::Node(peer) if !attempt.addresses.is_empty() => {
                let options = DialOpts::peer_id(peer).condition(PeerCondition::Always).addresses(attempt.addresses).allocate_new_port();
                self.dial(now, options.build(), attempt.key);
            }
            Key::Node(_) => self.dialer.ended(now, &attempt.key, Outcome::Failed, rand::random()),
            Key::Place(ref text) => {
                let (text, answer, key) = (text.clone(), self.resolved.0.clone(), attempt.key);
                tokio::spawn(async move {
                    let addresses = resolve(&text).await;
                    let _ = answer.send((key, addresses)).await;
                });
            }
        }
    }

    pub(super) fn on_resolved(&mut self, key: &Key, addresses: Vec<Multiaddr>) {
        let now = self.clock.now();
        if addresses.is_empty() {
            self.dial_failed(now, key, &Failure::Other("the name cannot be resolved".to_owned()));
        }
        for address in addresses {
            let options = match split_peer(&address) {
                (place, Some(peer)) => {
                    DialOpts::peer_id(peer).condition(PeerCondition::Always).addresses(vec![place]).allocate_new_port().build()
                }
                (place, None) => DialOpts::unknown_peer_id().address(place).allocate_new_port().build(),
            };
            self.dial(now, options, key.clone());
        }
    }

    pub(super) fn dial(&mut self, now: Time, options: DialOpts, key: Key) {
        let id = options.connection_id();
        match self.swarm.dial(options) {
            Ok(()) => {
                self.dials.insert(id, key);
            }
            Err(error) => self.dial_failed(now, &key, &swarm::failure_of(&error)),
        }
    }

    pub(super) fn redial(&mut self, node: NodeId) {
        let Some(peer) = peer_of(node) else { return };
        if self.redials.values().filter(|other| **other == node).count() >= REDIALS_MAX {
            return; // one of them will answer
        }
        let addresses = self.dialer.addresses_of(peer);
        let options = DialOpts::peer_id(peer).condition(PeerCondition::Always).addresses(addresses).allocate_new_port().build();
        let id = options.connection_id();
        match self.swarm.dial(options) {
            Ok(()) => {
                self.redials.insert(id, node);
            }
            Err(error) => {
                tracing::debug!(%node, %error, "no redial");
                self.inputs.push_back(Input::Redialled { node, refused: false });
            }
        }
    }

    pub(super) fn dial_failed(&mut self, now: Time, key: &Key, failure: &Failure) {
        let named = self.dialer.is_configured(key);
        let place = match key {
            Key::Place(text) => text.clone(),
            Key::Node(peer) => self.dialer.addresses_of(*peer).first().map(ToString::to_string).unwrap_or_default(),
        };
        let (outcome, kind, why) = match failure {
            Failure::Stranger => (
                Outcome::Unwelcome,
                "secret",
                Some("it is of another mesh (another secret), or no mesh node at all: to join its mesh, use its token".to_owned()),
            ),
            Failure::OwnKey(address) => self.own_key(key, address),
            Failure::Refused => (Outcome::Failed, "silent", named.then(|| "connection refused: no node listens there yet".to_owned())),
            Failure::Other(why) => (Outcome::Failed, "silent", named.then(|| format!("no answer yet ({why})"))),
        };
        if self.dials.values().any(|other| other == key) {
            return; // another address of this place is still being tried
        }
        self.dialer.ended(now, key, outcome, rand::random());
        if let Some(peer) = self.dialer.peer_at(key).filter(|peer| node_of(*peer).is_some_and(|node| self.core.is_up(node))) {
            self.dialer.connected(peer);
            return;
        }
        if let Some(why) = why
            && self.notices.may_tell(now, &place, kind)
        {
            self.notify(place, format!("{why}; it is tried again"));
        }
    }

    /// A dial ended at our own key: at this process, or at a clone of it (F1, F11).
    pub(super) fn own_key(&mut self, key: &Key, address: &Multiaddr) -> (Outcome, &'static str, Option<String>) {
        let ours = |port| self.shared.bound.get().is_some_and(|bound| bound.iter().any(|socket| socket.port() == port));
        if place_of(address).is_none_or(|(ip, port)| is_local(ip) && ours(port)) {
            self.dialer.unlearn(key, address);
            return (Outcome::Myself, "self", None);
        }
        let why = format!(
            "another node, at {address}, has this node's key: one of the two is a copy. Remove node.key from the state directory of one to \
             make it a node of its own"
        );
        (Outcome::Unwelcome, "clone", Some(why))
    }
}

/// The addresses behind a place: itself, or what its name resolves to, IPv4 and IPv6. All are dialled at once, so a dead one
/// costs nothing (F9).
async fn resolve(text: &str) -> Vec<Multiaddr> {
    let (host, port, peer) = match text.parse::<Multiaddr>() {
        Ok(address) => match host_of(&address) {
            Some((host, port)) => (host, port, split_peer(&address).1),
            None => return vec![address],
        },
        Err(_) => match host_port(text) {
            Some((host, port)) => (host.to_owned(), port, None),
            None => return Vec::new(),
        },
    };
    let found = tokio::time::timeout(Duration::from_millis(RESOLVE_MS), tokio::net::lookup_host((host.as_str(), port))).await;
    let Ok(Ok(found)) = found else { return Vec::new() };
    let addresses = found.take(8).map(|socket| address_at(socket.ip(), socket.port()));
    addresses.map(|address| peer.map_or(address.clone(), |peer| address.with(Protocol::P2p(peer)))).collect()
}
