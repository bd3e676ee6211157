//! How records get around besides gossip: summaries to whoever greets us, and to one node after the other.
//!
//! A summary is one hash of all records. Equal summaries end the exchange; else the other side answers with its digest, and
//! both send each other what differs. So a quiet mesh pays a few bytes, and only for what changed a digest.

use crate::directory::in_pieces;
use crate::ids::{NodeId, Time};
use crate::records::{Record, RecordKey};
use crate::wire::Message;

use super::{Deployments, EXCHANGE_MS, Effect, Health, NEWCOMER_MS};

/// Keys of a `Want` that are answered at most: as many as a directory has.
const WANTED_MAX: usize = crate::directory::RECORDS_MAX;

impl Deployments {
    pub(super) fn on_heard(&mut self, now: Time, from: NodeId, message: Message, effects: &mut Vec<Effect>) {
        match message {
            // Not before it has greeted us: only then is it clear whether what we have may still be told (`standing`).
            Message::Summary(_) | Message::Digest(_) | Message::Want(_) if !self.peers.contains_key(&from) => {}
            Message::Summary(theirs) if theirs != self.summary() => {
                effects.push(Effect::Send { to: from, message: Message::Digest(self.directory.digest()) });
            }
            Message::Digest(digest) => self.on_digest(from, &digest, effects),
            Message::Want(keys) => {
                let records = keys.into_iter().take(WANTED_MAX).filter_map(|key| self.directory.record(key)).collect();
                send_records(from, records, effects);
            }
            Message::Records(records) => records.into_iter().for_each(|record| self.on_record_from(now, from, record, effects)),
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

    /// What a node says about itself beats what others say: of one that is up here, in the life that others speak of, their
    /// news is a hint to ask it.
    fn on_record_from(&mut self, now: Time, from: NodeId, record: Record, effects: &mut Vec<Effect>) {
        let Record::Node(about) = &record else { return self.on_record(now, record, effects) };
        let (to, known) = (about.node, self.directory.node(about.node));
        let answers = self.peers.get(&to).is_some_and(|peer| peer.health == Health::Up && peer.boot == about.boot);
        if to == from || !answers || known.is_none() {
            self.on_record(now, record, effects);
        } else if known.is_some_and(|known| known.order() < about.order()) {
            effects.push(Effect::Send { to, message: Message::Want(vec![RecordKey::Node(to)]) });
        }
    }

    /// A node greeted us: we compare at once, or in its turn. A joiner of a large mesh is greeted by all within
    /// milliseconds; it takes everything from the first, and finds that the others have nothing else.
    pub(super) fn compare_soon(&mut self, now: Time, newcomer: NodeId) {
        self.newcomers.retain(|node| *node != newcomer);
        self.newcomers.push_back(newcomer);
        let soonest = self.compared.map_or(now, |at| at.plus_ms(NEWCOMER_MS)).max(now);
        self.exchange_at = self.exchange_at.min(soonest);
    }

    /// Summaries go round: to each live node in turn, so that what gossip lost is found within (nodes × 2 s), and sooner
    /// through others. Each begins behind itself in the order of ids: so at any time every node hears from one other.
    pub(super) fn exchange(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if now < self.exchange_at {
            return;
        }
        let live: Vec<NodeId> = self.live_peers();
        let behind_me = live.iter().filter(|node| **node < self.me.node).count();
        self.newcomers.retain(|node| live.contains(node));
        let to = self.newcomers.pop_front().or_else(|| {
            self.exchange_turn = (self.exchange_turn + 1) % live.len().max(1);
            live.get((behind_me + self.exchange_turn) % live.len().max(1)).copied()
        });
        self.exchange_at = now.plus_ms(if self.newcomers.is_empty() { EXCHANGE_MS } else { NEWCOMER_MS });
        if let Some(to) = to {
            self.compared = Some(now);
            effects.push(Effect::Send { to, message: Message::Summary(self.summary()) });
        }
    }

    /// To all at once: when what we know may be old.
    pub(super) fn compare_with_all(&self, effects: &mut Vec<Effect>) {
        let summary = self.summary();
        effects.extend(self.live_peers().into_iter().map(|to| Effect::Send { to, message: Message::Summary(summary) }));
    }

    /// One hash of all records: of their hashes, in the order of their keys, which they cover.
    fn summary(&self) -> u64 {
        let hashes: Vec<u8> = self.directory.digest().iter().flat_map(|(_, hash)| hash.to_le_bytes()).collect();
        xxhash_rust::xxh3::xxh3_64(&hashes)
    }

    /// Peers that echo, in order of id.
    pub(super) fn live_peers(&self) -> Vec<NodeId> {
        self.peers.iter().filter(|(_, peer)| matches!(peer.health, Health::Up | Health::Suspect)).map(|(node, _)| *node).collect()
    }
}

fn send_records(to: NodeId, records: Vec<Record>, effects: &mut Vec<Effect>) {
    effects.extend(in_pieces(records).into_iter().map(|piece| Effect::Send { to, message: Message::Records(piece) }));
}
