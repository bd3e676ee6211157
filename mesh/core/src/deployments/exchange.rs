//! How records get around besides gossip: everything to a joiner, and digests to one node after the other.

use crate::directory::in_pieces;
use crate::ids::{NodeId, Time};
use crate::records::{Record, RecordKey};
use crate::wire::Message;

use super::{Deployments, EXCHANGE_MS, Effect, Health};

/// Keys of a `Want` that are answered at most: as many as a directory has.
const WANTED_MAX: usize = crate::directory::NODES_MAX + crate::directory::DEPLOYMENTS_MAX;

impl Deployments {
    pub(super) fn on_heard(&mut self, now: Time, from: NodeId, message: Message, effects: &mut Vec<Effect>) {
        match message {
            Message::Digest(digest) => self.on_digest(from, &digest, effects),
            Message::Want(keys) => {
                let records = keys.into_iter().take(WANTED_MAX).filter_map(|key| self.directory.record(key)).collect();
                send_records(from, records, effects);
            }
            Message::Records(records) => records.into_iter().for_each(|record| self.on_record(now, record, effects)),
            Message::Load(order) => self.on_load_order(from, &order, effects),
            Message::Shard(report) if report.node == from => self.on_report(now, report),
            _ => {} // not ours, or not theirs to say
        }
    }

    fn on_digest(&mut self, from: NodeId, digest: &[(RecordKey, u64)], effects: &mut Vec<Effect>) {
        let (wants, gives) = self.directory.compare(digest);
        if !wants.is_empty() {
            effects.push(Effect::Send { to: from, message: Message::Want(wants) });
        }
        send_records(from, gives, effects);
    }

    /// A node that greeted us gets all we know; it does the same.
    pub(super) fn tell_everything(&self, to: NodeId, effects: &mut Vec<Effect>) {
        send_records(to, self.directory.all(), effects);
    }

    /// Digests go round: to each live node in turn, so that what gossip lost is found within (nodes × 2 s).
    pub(super) fn exchange(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if now < self.exchange_at {
            return;
        }
        self.exchange_at = now.plus_ms(EXCHANGE_MS);
        let live: Vec<NodeId> = self.live_peers();
        if !live.is_empty() {
            self.exchange_turn = (self.exchange_turn + 1) % live.len();
            effects.push(Effect::Send { to: live[self.exchange_turn], message: Message::Digest(self.directory.digest()) });
        }
    }

    /// Peers that echo, in order of id.
    pub(super) fn live_peers(&self) -> Vec<NodeId> {
        self.peers.iter().filter(|(_, peer)| matches!(peer.health, Health::Up | Health::Suspect)).map(|(node, _)| *node).collect()
    }
}

fn send_records(to: NodeId, records: Vec<Record>, effects: &mut Vec<Effect>) {
    effects.extend(in_pieces(records).into_iter().map(|piece| Effect::Send { to, message: Message::Records(piece) }));
}
