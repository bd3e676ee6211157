//! How this node and the others stand with the mesh in calendar time: what has ended, who may be forgotten, and whose
//! records are too old to be trusted after a long absence (R16, F35, F36).
//!
//! The wall clock is handed in ([`super::Input::Wall`]) and goes on by the other clock in between. Each node says in its own
//! record, renewed every hour, when it last ran (`alive`) and when it last had another node beside it (`in_touch`). A
//! tombstone is dropped after seven days, so a node that was away for longer may hold a deployment that was deleted since,
//! and nobody would know: at the first meeting it drops its deployment records, but for tombstones, and takes the mesh's. The mesh is whoever was
//! in touch later, or ran later. If all were switched off together, nobody was, and everything stays.
//!
//! What this cannot mend: two halves of a mesh that both run, apart, for longer than the tombstone time. Neither is the mesh;
//! what one of them deleted and forgot lives on in the other and comes back when they meet.

use crate::ids::{DeploymentId, NodeId, Time};
use crate::lifetimes::Wall;
use crate::records::{NodeRecord, NodeState, Record, RecordKey};

use super::{Deployments, Effect, Health};

/// What is over is looked for so often.
const EXPIRE_MS: u64 = 1_000;

impl Deployments {
    pub(super) fn on_wall(&mut self, now: Time, wall: Wall) {
        self.wall_read = (now, wall);
        self.directory.set_wall(wall);
    }

    /// The wall clock, a moment after it was last read.
    fn wall(&self, now: Time) -> Wall {
        self.wall_read.1.plus_ms(now.ms_since(self.wall_read.0))
    }

    /// The wall clock, unless most of the others are ahead of it: a machine without a battery starts in 1970, and what is
    /// deleted there must not look long over to everybody else.
    fn wall_of_all(&self) -> Wall {
        let mut stamps: Vec<Wall> = self.live_peers().iter().filter_map(|node| self.directory.node(*node)).map(|node| node.alive).collect();
        stamps.push(self.directory.wall());
        stamps.sort_unstable();
        stamps[(stamps.len() - 1) / 2].max(self.directory.wall())
    }

    /// When somebody deletes something now, it was deleted then.
    pub(super) fn deletion_time(&self) -> Wall {
        self.wall_of_all()
    }

    /// Renews what we say of ourselves, and lets go of what is over.
    pub(super) fn keep_time(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.directory.set_wall(self.wall(now));
        if now >= self.renew_at {
            self.renew(now, effects);
        }
        if now >= self.expire_at {
            self.expire_at = now.plus_ms(EXPIRE_MS);
            effects.extend(self.over.drain(..).map(Effect::Erase));
            for key in self.directory.expire() {
                self.dropped(key, effects);
            }
        }
    }

    /// Says, and writes down, that this node runs.
    fn renew(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.renew_at = now.plus_ms(self.directory.lifetimes().renew_ms());
        self.me.version += 1;
        self.stamp();
        self.introduce(now, effects);
        effects.push(Effect::Keep(Record::Node(self.me.clone())));
    }

    /// Puts the time into our record.
    pub(super) fn stamp(&mut self) {
        let wall = self.directory.wall();
        self.me.alive = wall;
        if !self.live_peers().is_empty() {
            self.me.in_touch = Some(wall);
        }
    }

    /// A record is gone from the directory: so is the rest.
    fn dropped(&mut self, key: RecordKey, effects: &mut Vec<Effect>) {
        effects.push(Effect::Erase(key));
        match key {
            RecordKey::Node(node) => {
                self.peers.remove(&node);
                effects.push(Effect::Forgotten(node));
            }
            RecordKey::Deployment(id) => self.clear_desk(id, effects),
            RecordKey::Other(..) => {}
        }
    }

    fn clear_desk(&mut self, id: DeploymentId, effects: &mut Vec<Effect>) {
        self.retire_now(id, effects);
        self.desks.remove(&id);
    }

    /// A node has greeted us: after a long absence, what it knows replaces what we know.
    pub(super) fn meet(&mut self, theirs: &NodeRecord, effects: &mut Vec<Effect>) {
        if self.yields_to(theirs) {
            // Our own word that something is deleted is worth as much as ever.
            let live = self.directory.deployments().filter(|record| !record.is_deleted());
            let ids: Vec<DeploymentId> = live.map(|record| record.id).collect();
            if !ids.is_empty() {
                effects.push(Effect::Notice(format!(
                    "this node was away for longer than deletions are remembered: its {} deployment records are dropped, and those of {} hold",
                    ids.len(),
                    theirs.name
                )));
            }
            for id in ids {
                self.directory.drop_record(RecordKey::Deployment(id));
                effects.push(Effect::Fenced { deployment: id, plan: None, deleted: false }); // until the mesh's word is here
                self.dropped(RecordKey::Deployment(id), effects);
            }
        }
        self.met_at = Some(self.directory.wall());
    }

    /// Never true of both ends of a meeting: each compares the same two pairs of stamps.
    fn yields_to(&self, theirs: &NodeRecord) -> bool {
        let (Some(my_touch), Some(their_touch)) = (self.me.in_touch.max(self.met_at), theirs.in_touch) else { return false };
        let lifetimes = self.directory.lifetimes();
        let later = |a: Wall, b: Wall| a > b.plus_ms(lifetimes.margin_ms());
        let outranked = later(their_touch, my_touch) || (!later(my_touch, their_touch) && later(theirs.alive, self.me.alive));
        // Sooner by the margin than a tombstone's end: the clock by which that ends is another's.
        outranked && self.directory.wall().ms_since(my_touch) > lifetimes.tombstone_ms.saturating_sub(lifetimes.margin_ms())
    }

    /// For how many milliseconds a node has not been seen to run; `None` if it runs, or is unknown.
    #[must_use]
    pub fn away_ms(&self, node: NodeId) -> Option<u64> {
        let last = self.directory.last_alive(self.directory.node(node)?)?;
        Some(self.directory.wall().ms_since(last))
    }

    /// Forgets a node that is gone for good, everywhere (F36). If it comes back after all, it is welcome: it answers with a
    /// later incarnation.
    ///
    /// # Errors
    /// It is this node, unknown, or here: in words.
    pub fn forget(&mut self, now: Time, node: NodeId, effects: &mut Vec<Effect>) -> Result<(), String> {
        let known = self.directory.node(node).filter(|record| record.state != NodeState::Forgotten);
        let known = known.ok_or_else(|| format!("no node {node} is known here"))?;
        if node == self.me.node {
            return Err(format!("{} is this node itself: stop it instead", known.name));
        }
        if matches!(self.health(node), Health::Up | Health::Suspect) {
            return Err(format!("{} is here: stop it first, or it would be back at once", known.name));
        }
        let (models, shards, addresses) = (Vec::new(), Vec::new(), Vec::new());
        let alive = self.wall_of_all().max(known.alive);
        let record = NodeRecord { state: NodeState::Forgotten, alive, models, shards, addresses, ..known.clone() };
        let record = Record::Node(record);
        self.take(now, record.clone(), effects);
        effects.push(Effect::Keep(record.clone()));
        effects.push(Effect::Gossip(record));
        effects.push(Effect::Forgotten(node));
        Ok(())
    }
}
