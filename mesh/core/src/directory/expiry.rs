//! The end of records, by the wall clock: what is still told, what is only kept, and what goes (see [`crate::lifetimes`]).
//!
//! A deployment's record has no end until it is deleted; its tombstone then ends. A node's record ends when the node has not
//! said for long that it runs, unless it is here. Both ends follow from the record and the clock alone, so that every node
//! comes to the same end without a word.

use crate::ids::NodeId;
use crate::lifetimes::{Lifetimes, Wall, kept_ms};
use crate::records::{DeploymentRecord, NodeRecord, RecordKey};

use super::Directory;

/// Whether a node is here, as its own links say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// It is: its record does not end.
    Here,
    /// It was, until then.
    Gone(Wall),
}

/// A time for which this node was switched off, so long that it may have missed a tombstone's whole life.
#[derive(Clone, Copy, Debug)]
pub(super) struct Absence {
    since: Wall,
    ms: u64,
}

impl Directory {
    /// This node ran last at `since`. If that is very long ago, the time until now does not count for the tombstones that it
    /// had: perhaps the whole mesh was switched off, and somebody who comes back with us has not heard of them.
    pub fn was_off_since(&mut self, since: Wall) {
        let ms = self.wall.ms_since(since);
        self.absence = Some(Absence { since, ms }).filter(|_| ms > self.lifetimes.tombstone_ms - self.lifetimes.margin_ms());
    }

    /// The wall clock reads this now.
    pub fn set_wall(&mut self, wall: Wall) {
        self.wall = wall;
    }
    /// The wall clock, as it was last read.
    #[must_use]
    pub fn wall(&self) -> Wall {
        self.wall
    }
    /// How long what has ended is remembered.
    #[must_use]
    pub fn lifetimes(&self) -> Lifetimes {
        self.lifetimes
    }

    /// A node has come: its record does not end while it is here.
    pub fn arrived(&mut self, node: NodeId) {
        self.presence.insert(node, Presence::Here);
    }
    /// A node has gone: its record will end.
    pub fn departed(&mut self, node: NodeId) {
        self.presence.insert(node, Presence::Gone(self.wall));
    }

    /// When a node was last known to run: what we saw ourselves, or what its record says. `None` = it runs now.
    #[must_use]
    pub fn last_alive(&self, record: &NodeRecord) -> Option<Wall> {
        match self.presence.get(&record.node) {
            _ if record.is_over() => Some(record.alive),
            Some(Presence::Here) => None,
            Some(Presence::Gone(at)) => Some(record.alive.max(*at)),
            None => Some(record.alive),
        }
    }

    pub(super) fn keeps_node(&self, record: &NodeRecord) -> bool {
        self.last_alive(record).is_none_or(|at| self.wall.ms_since(at) < kept_ms(self.lifetimes.down_ms))
    }
    /// By the record alone, so that the last who saw it do not tell it back to those who are through with it.
    pub(super) fn tells_node(&self, record: &NodeRecord) -> bool {
        self.last_alive(record).is_none() || self.wall.ms_since(record.alive) < self.lifetimes.down_ms
    }
    pub(super) fn keeps_deployment(&self, record: &DeploymentRecord) -> bool {
        let absent_ms = |at| self.absence.filter(|absence| at <= absence.since.plus_ms(self.lifetimes.margin_ms())).map_or(0, |it| it.ms);
        record.deleted.is_none_or(|at| self.wall.ms_since(at) < kept_ms(self.lifetimes.tombstone_ms).saturating_add(absent_ms(at)))
    }
    pub(super) fn tells_deployment(&self, record: &DeploymentRecord) -> bool {
        record.deleted.is_none_or(|at| self.wall.ms_since(at) < self.lifetimes.tombstone_ms)
    }

    /// Drops what is over, and says what that was.
    pub fn expire(&mut self) -> Vec<RecordKey> {
        let nodes = self.nodes.values().filter(|entry| !self.keeps_node(&entry.0)).map(|entry| RecordKey::Node(entry.0.node));
        let deployments =
            self.deployments.values().filter(|entry| !self.keeps_deployment(&entry.0)).map(|entry| RecordKey::Deployment(entry.0.id));
        let over: Vec<RecordKey> = nodes.chain(deployments).collect();
        over.iter().for_each(|key| self.drop_record(*key));
        over
    }

    /// Drops a record of a kind that we know, without a trace: it may come again.
    pub fn drop_record(&mut self, key: RecordKey) {
        match key {
            RecordKey::Node(node) => {
                self.nodes.remove(&node);
                self.presence.remove(&node);
            }
            RecordKey::Deployment(id) => {
                self.deployments.remove(&id);
            }
            RecordKey::Other(..) => {}
        }
    }
}
