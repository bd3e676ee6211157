//! What is heard of nodes that are not connected: gossip, multicast DNS, and what the handle asks.

use libp2p::{Multiaddr, PeerId};
use mesh_core::ids::NodeId;
#[cfg(feature = "mdns")]
use mesh_core::ids::Time;
use mesh_core::links::InterfaceKind;
use mesh_core::membership::{Input, LinkId};
use mesh_core::ports::{CarrierEvent, Clock};
use mesh_core::records::{NodeRecord, Record};
use mesh_core::wire;

use super::{Command, Driver, LONELY_MS, Phase};
use crate::dialer::split_peer;
use crate::interfaces::interfaces;
use crate::key::{node_of, peer_of};

/// The greater id lets the smaller one dial first where both heard of each other: one connection instead of two.
const COURTESY_MS: u64 = 200;

impl Driver {
    /// Gossip is signed by its source. What is said of a node by gossip, only that node may say.
    pub(super) fn on_gossip(&mut self, source: Option<PeerId>, bytes: &[u8]) {
        match wire::decode::<Record>(bytes) {
            Ok(Record::Node(record)) if source != peer_of(record.node) => self.shared.counters.foreign_gossip.add(),
            Ok(record) => {
                if let Record::Node(node) = &record {
                    self.learn(node);
                }
                self.shared.tell(CarrierEvent::Gossip(record));
            }
            Err(wire::DecodeError::UnknownKind) => self.shared.counters.unknown_kinds.add(),
            Err(_) => self.shared.counters.malformed_gossip.add(),
        }
    }

    /// Whoever speaks of itself is there to be connected to: a full mesh.
    pub(super) fn learn(&mut self, record: &NodeRecord) {
        let Some(peer) = peer_of(record.node) else { return };
        if record.is_over() {
            self.dialer.forget(peer);
            return;
        }
        let now = self.clock.now();
        self.dialer.learn(now, peer, record.addresses.iter().filter_map(|text| text.parse().ok()), self.courtesy_ms(record.node));
        if self.core.is_up(record.node) {
            self.dialer.connected(peer);
        }
    }

    pub(super) fn courtesy_ms(&self, node: NodeId) -> u64 {
        if self.shared.me < node { 0 } else { COURTESY_MS }
    }

    #[cfg(feature = "mdns")]
    pub(super) fn on_discovery(&mut self, now: Time, event: libp2p::mdns::Event) {
        let libp2p::mdns::Event::Discovered(found) = event else { return };
        for (peer, address) in found {
            let Some(node) = node_of(peer) else { continue };
            self.dialer.learn(now, peer, [address], self.courtesy_ms(node));
            if self.core.is_up(node) {
                self.dialer.connected(peer);
            }
        }
    }

    pub(super) fn wonder(&self) {
        let outward = interfaces().into_iter().filter(|one| !matches!(one.kind, InterfaceKind::Loopback | InterfaceKind::Virtual));
        let there: Vec<String> = outward
            .map(|one| {
                format!("{} ({})", one.name, one.addresses.iter().map(|address| address.ip.to_string()).collect::<Vec<_>>().join(", "))
            })
            .collect();
        let seconds = LONELY_MS / 1000;
        let why = if there.is_empty() {
            format!("no other node was heard in {seconds} s: no network interface is up")
        } else {
            format!(
                "no other node was heard in {seconds} s by multicast on {}; if there is one, multicast is blocked between the two: join with its \
                 invitation, or name it as a peer (--peer HOST:PORT)",
                there.join(", ")
            )
        };
        self.notify("multicast DNS".to_owned(), why);
    }

    pub(super) fn on_command(&mut self, command: Command) {
        match command {
            Command::Gossip(bytes) => {
                // Nobody subscribed yet is ordinary: digests bring it to whoever comes.
                if let Err(error) = self.swarm.behaviour_mut().gossip.publish(self.topic.clone(), bytes) {
                    tracing::debug!(%error, "a record was not gossiped");
                    self.shared.counters.gossip_dropped.add();
                }
            }
            Command::Dial(text) => self.on_dial(&text),
            Command::Disconnect(node) => {
                self.inputs.push_back(Input::Drop(node));
                if let Some(peer) = peer_of(node) {
                    self.dialer.forget(peer);
                }
                let known: Vec<LinkId> =
                    self.connections.iter().filter(|(_, c)| c.node == node && c.phase != Phase::Known).map(|(id, _)| *id).collect();
                known.into_iter().for_each(|id| self.close(id));
            }
        }
    }

    pub(super) fn on_dial(&mut self, text: &str) {
        let now = self.clock.now();
        let peer = text.parse::<Multiaddr>().ok().and_then(|address| split_peer(&address).1);
        if let Err(why) = self.dialer.add(now, text, false) {
            self.notify(text.to_owned(), why);
        }
        if let Some(peer) = peer.filter(|peer| node_of(*peer).is_some_and(|node| self.core.is_up(node))) {
            self.dialer.connected(peer);
        }
    }
}
