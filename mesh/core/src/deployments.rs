//! Deployments without a master: who plans, what every node does for a plan, and how records get around.
//!
//! One core a node, and no leader for the mesh. Each deployment's record names its **coordinator**, which plans, has the
//! layers loaded, publishes the plan (that publication is the fence), sees a first token come out, and plans anew when a
//! stage is gone. It sits until it is dead or leaves (R10); then the live node of the highest rank takes over with a
//! greater term. Everything is level-triggered: after each input the core compares what the newest record says with what
//! is known to be so, and does the next thing. A lost or repeated message is therefore only a matter of time.
//!
//! A record of ours is on disk before anyone hears of it (R1): [`Effect::Publish`] is answered with [`Input::Saved`], and
//! only then is it in the [`Directory`].

mod coordinate;
mod copies;
mod exchange;
mod local;
mod standing;
#[cfg(test)]
mod tests;
mod twins;

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::directory::{Directory, Merged, name_only};
use crate::ids::{BootId, DeploymentId, NodeId, PlanHash, Time};
use crate::lifetimes::Wall;
use crate::links::{Interface, Path};
use crate::model::{Contents, HeldModel, ModelSheet};
use crate::plan::Plan;
use crate::planner;
use crate::records::{DeploymentRecord, DeploymentStatus, HeldShard, NodeRecord, NodeState, PlanId, Record, RecordKey, Wish};
use crate::wire::{Message, ShardReport};

/// After our start, nodes that a plan names have so long to greet us before they count as gone.
pub const SETTLE_MS: u64 = 5_000;
/// Records are compared with one node after the other, this far apart.
pub const EXCHANGE_MS: u64 = 2_000;
/// The same with nodes that greeted us: time for the records of one to come, so that the next ones bring nothing twice.
const NEWCOMER_MS: u64 = 50;
/// The core is woken at least this often, which is how it notices that its clock jumped (R8).
pub const TICK_MS: u64 = 1_000;
/// A step that comes so late was not late by itself: the process was frozen or the machine slept.
const JUMP_MS: u64 = 3 * TICK_MS;
/// After a jump of our own, the carrier gets so long to say [`Input::Waking`]: its thread stood still as we did, and notices
/// within a probe period. If it says nothing, only this thread was late, and nothing is wrong.
const WAKE_GRACE_MS: u64 = 500;
/// Published again at the latest so long after [`Input::Waking`]; the carrier's own limit is shorter.
const WAKING_MS_MAX: u64 = 15_000;

const _: () = assert!(JUMP_MS > TICK_MS && WAKING_MS_MAX > WAKE_GRACE_MS);

/// What happens to the core.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A control message that concerns records or shards; others are ignored.
    Heard {
        /// From whom, authenticated.
        from: NodeId,
        /// What.
        message: Message,
    },
    /// Gossip brought a record.
    Gossip(Record),
    /// A node greeted us.
    Up(NodeRecord),
    /// Its echoes are overdue. Said again when the reason changes.
    Suspect {
        /// Who.
        node: NodeId,
        /// In words.
        why: String,
    },
    /// It echoed again.
    Trusted(NodeId),
    /// It is held dead.
    Down(NodeId),
    /// The carrier noticed that this process stood still (R8).
    Waking,
    /// Every peer has echoed since, or missed its probes.
    Awake,
    /// What this node holds or does has changed.
    Mine {
        /// Models whose files it can read.
        models: Vec<HeldModel>,
        /// Shards in its memory.
        shards: Vec<HeldShard>,
        /// What it is doing.
        state: NodeState,
    },
    /// Where this node is in the network has changed.
    MyNetwork {
        /// Where it can be dialled.
        addresses: Vec<String>,
        /// Its interfaces.
        interfaces: Vec<Interface>,
        /// What it measured.
        paths: Vec<Path>,
    },
    /// A shard of this node reports.
    MyShard(ShardReport),
    /// A shard of this node ended on its own (a panic): it has to be started afresh.
    ShardLost(DeploymentId),
    /// The probe stream ended.
    Probed {
        /// Of which deployment.
        deployment: DeploymentId,
        /// Through which plan.
        plan: PlanHash,
        /// A token came out, or why not.
        outcome: Result<(), String>,
    },
    /// A record of ours is on disk.
    Saved(Record),
    /// It could not be written.
    NotSaved {
        /// Which.
        deployment: DeploymentId,
        /// What the operating system said.
        why: String,
    },
    /// The wall clock reads this. Wanted at least as often as [`Input::Elapsed`], and stands for it.
    Wall(Wall),
    /// Time passed.
    Elapsed,
}

/// What the core wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Write this record of ours to disk, then answer [`Input::Saved`] or [`Input::NotSaved`].
    Publish(Record),
    /// Write this record of another node to disk. If that fails, it costs an exchange after a restart.
    Keep(Record),
    /// Remove a record from the disk. If that fails, it is dropped again after a restart.
    Erase(RecordKey),
    /// Give this record to gossip.
    Gossip(Record),
    /// Say this about ourselves in hellos, and to gossip.
    Introduce(NodeRecord),
    /// Send a control message. It may be lost.
    Send {
        /// To whom; never to ourselves.
        to: NodeId,
        /// What.
        message: Message,
    },
    /// Have this node's layers of a plan in memory, and report.
    Load {
        /// Of which deployment.
        deployment: DeploymentId,
        /// The plan.
        plan: Plan,
    },
    /// Put a published plan in force, loading what is not loaded, and report.
    Adopt {
        /// Of which deployment.
        deployment: DeploymentId,
        /// The plan.
        plan: Plan,
    },
    /// Free this node's shard of a deployment.
    Retire(DeploymentId),
    /// Run a stream of one token through a plan and say how it went.
    Probe {
        /// Of which deployment.
        deployment: DeploymentId,
        /// The plan, published.
        plan: Plan,
    },
    /// A deployment has another plan in force, or none: streams through other plans are over.
    Fenced {
        /// Which deployment.
        deployment: DeploymentId,
        /// The plan that streams may go on with.
        plan: Option<PlanHash>,
        /// Whether the deployment is gone for good.
        deleted: bool,
    },
    /// A node is down, has left or restarted: streams that need it, or that it owned, are over.
    NodeGone(NodeId),
    /// A node is gone for good: dial it no more.
    Forgotten(NodeId),
    /// Something an operator should know.
    Notice(String),
}

/// How a node looks from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// Echoes.
    Up,
    /// Echoes are overdue.
    Suspect,
    /// Held dead.
    Down,
    /// Said goodbye.
    Left,
    /// Known from others only; never greeted us.
    Unmet,
}

/// What is known about a peer beyond its record.
#[derive(Clone, Debug)]
struct Peer {
    health: Health,
    boot: BootId,
    /// Why it is suspected, in words.
    why: String,
}

/// What is known of a deployment beyond its record. Volatile: a restart begins with an empty desk.
#[derive(Clone, Debug, Default)]
struct Desk {
    /// As its coordinator.
    driving: coordinate::Driving,
    /// As one of its nodes.
    local: local::Local,
}

/// The core. See the module's head.
#[derive(Clone, Debug)]
pub struct Deployments {
    me: NodeRecord,
    directory: Directory,
    peers: BTreeMap<NodeId, Peer>,
    desks: BTreeMap<DeploymentId, Desk>,
    last: Time,
    settle_until: Time,
    hush_until: Time,
    exchange_at: Time,
    exchange_turn: usize,
    /// Nodes that greeted us and were not compared with yet.
    newcomers: VecDeque<NodeId>,
    compared: Option<Time>,
    /// When the wall clock was read last, and what it said.
    wall_read: (Time, Wall),
    /// When a node greeted us last; our record says it at the next renewal.
    met_at: Option<Wall>,
    renew_at: Time,
    expire_at: Time,
    /// Records on disk that are over.
    over: Vec<RecordKey>,
}

impl Deployments {
    /// A node that starts with an empty directory, whose wall clock is right, and the records that were on its disk.
    #[must_use]
    pub fn new(now: Time, me: NodeRecord, mut directory: Directory, records: Vec<Record>) -> Self {
        let mine = |record: &Record| match record {
            Record::Node(record) if record.node == me.node => Some(record.alive),
            _ => None,
        };
        if let Some(alive) = records.iter().find_map(mine) {
            directory.was_off_since(alive);
        }
        directory.arrived(me.node);
        let mut over = Vec::new();
        for record in records {
            let key = record.key();
            if directory.merge(record) == Merged::Known {
                over.push(key); // it ended while we were away
            }
        }
        let mut core = Self {
            me,
            wall_read: (now, directory.wall()),
            met_at: None,
            directory,
            peers: BTreeMap::new(),
            desks: BTreeMap::new(),
            last: now,
            settle_until: now.plus_ms(SETTLE_MS),
            hush_until: now,
            exchange_at: now,
            exchange_turn: 0,
            newcomers: VecDeque::new(),
            compared: None,
            // Until then our record tells what our life before said last: whoever meets us compares it (see `standing`).
            renew_at: now.plus_ms(SETTLE_MS),
            expire_at: now,
            over,
        };
        // R15: a later life than any that is remembered.
        if let Some(former) = core.directory.node(core.me.node).filter(|former| former.boot != core.me.boot) {
            core.me.incarnation = core.me.incarnation.max(former.incarnation.saturating_add(1));
            (core.me.alive, core.me.in_touch) = (former.alive, former.in_touch);
        } else {
            core.me.alive = core.directory.wall();
        }
        core.me.version += 1; // the carrier greets with the record that was handed in
        core.directory.merge(Record::Node(core.me.clone()));
        core.desks = core.directory.deployments().map(|record| (record.id, Desk::default())).collect();
        core
    }

    /// Same history, same effects.
    pub fn step(&mut self, now: Time, input: Input, effects: &mut Vec<Effect>) {
        self.notice_jump(now);
        if let Input::Wall(wall) = input {
            self.on_wall(now, wall);
        }
        self.keep_time(now, effects);
        match input {
            Input::Heard { from, message } => self.on_heard(now, from, message, effects),
            Input::Gossip(record) => self.on_record(now, record, effects),
            Input::Up(record) => self.on_up(now, record, effects),
            Input::Suspect { node, why } => self.on_suspect(node, why),
            Input::Trusted(node) => self.on_trusted(now, node),
            Input::Down(node) => self.on_down(now, node, effects),
            Input::Waking => self.on_waking(now, effects),
            Input::Awake => self.hush_until = now,
            Input::Mine { models, shards, state } => self.on_mine(now, models, shards, state, effects),
            Input::MyNetwork { addresses, interfaces, paths } => self.on_my_network(now, addresses, interfaces, paths, effects),
            Input::MyShard(report) => self.on_my_shard(now, report, effects),
            Input::ShardLost(deployment) => self.on_shard_lost(now, deployment, effects),
            Input::Probed { deployment, plan, outcome } => self.on_probed(now, deployment, plan, outcome, effects),
            Input::Saved(record) => self.on_saved(now, record, effects),
            Input::NotSaved { deployment, why } => self.on_not_saved(now, deployment, &why, effects),
            Input::Wall(_) | Input::Elapsed => {}
        }
        self.settle(now, effects);
    }

    /// When `step` next wants [`Input::Elapsed`]. Being woken early, or twice, changes nothing.
    #[must_use]
    pub fn wake_at(&self) -> Time {
        let desks = self.desks.values().flat_map(|desk| desk.driving.deadlines().into_iter().chain(desk.local.deadlines())).flatten();
        // What was due by the last step is settled, or waits for something else than time.
        let own = [self.exchange_at, self.hush_until, self.settle_until, self.renew_at];
        let due = desks.chain(own).filter(|&at| at > self.last);
        due.chain([self.last.plus_ms(TICK_MS)]).min().unwrap_or(self.last)
    }

    /// The newest version of every record.
    #[must_use]
    pub fn directory(&self) -> &Directory {
        &self.directory
    }
    /// What this node says about itself.
    #[must_use]
    pub fn me(&self) -> &NodeRecord {
        &self.me
    }

    /// How a node looks from here.
    #[must_use]
    pub fn health(&self, node: NodeId) -> Health {
        match self.peers.get(&node) {
            _ if node == self.me.node => Health::Up,
            _ if self.directory.node(node).is_some_and(NodeRecord::is_over) => Health::Left,
            Some(peer) => peer.health,
            None => Health::Unmet,
        }
    }

    /// Why a node is suspected, in words.
    #[must_use]
    pub fn suspicion(&self, node: NodeId) -> Option<&str> {
        (self.health(node) == Health::Suspect).then(|| self.peers.get(&node).map(|peer| peer.why.as_str())).flatten()
    }

    /// While a deployment loads, as its coordinator hears it: (node, bytes in memory, bytes to load).
    #[must_use]
    pub fn loading(&self, deployment: DeploymentId) -> Vec<(NodeId, u64, u64)> {
        self.desks.get(&deployment).map(|desk| desk.driving.loading()).unwrap_or_default()
    }

    /// Asks for a model to be kept answering. The answer holds once the effects are performed and nothing was
    /// [`Input::NotSaved`]. A model of the same name and contents that is deployed already gets the new wish.
    ///
    /// # Errors
    /// The wish contradicts the model, or there is no room for another record: in words.
    pub fn deploy(&mut self, drawn: u128, sheet: ModelSheet, wish: Wish, effects: &mut Vec<Effect>) -> Result<DeploymentId, String> {
        planner::check_wish(&sheet, &wish).map_err(|no| no.why)?;
        let same =
            |record: &&DeploymentRecord| !record.is_deleted() && record.sheet.name == sheet.name && record.sheet.digest == sheet.digest;
        let known = self.directory.deployments().find(same).cloned();
        if let Some(known) = known {
            // Whoever deploys means its own copy.
            let contents = self.own_contents(&sheet).or(known.contents.as_ref()).cloned();
            let digest = |contents: &Option<Contents>| contents.as_ref().map(|contents| contents.digest);
            let other_copy = known.contents.is_some() && digest(&known.contents) != digest(&contents);
            if known.wish == wish && !other_copy && !matches!(known.status, DeploymentStatus::Failed { .. }) {
                return Ok(known.id);
            }
            let id = known.id;
            if known.status == DeploymentStatus::Ready {
                // What answers now is not given up for a wish that cannot be met.
                self.plan_for(Some(id), &sheet, contents.as_ref(), &wish, None).map_err(|no| no.why)?;
            }
            self.desk(id).driving.start_afresh();
            let version = self.next_version(&known);
            let status = DeploymentStatus::Planning;
            self.author(DeploymentRecord { wish, sheet, contents, version, status, ..known }, effects);
            return Ok(id);
        }
        let id = DeploymentId(drawn);
        if self.directory.deployments().count() >= crate::directory::DEPLOYMENTS_MAX {
            return Err("this mesh remembers as many deployments, deleted ones included, as it can".into());
        }
        let version = PlanId { term: 1, epoch: 0, revision: 0, coordinator: self.me.node };
        let (contents, status) = (self.own_contents(&sheet).cloned(), DeploymentStatus::Planning);
        let record = DeploymentRecord { id, sheet, contents, wish, version, plan: None, status, deleted: None };
        self.author(record, effects);
        Ok(id)
    }

    /// Deletes a deployment for ever (R16). As [`Deployments::deploy`], it holds once it is saved.
    ///
    /// # Errors
    /// There is none by this id.
    pub fn undeploy(&mut self, id: DeploymentId, effects: &mut Vec<Effect>) -> Result<(), String> {
        let known = self.directory.deployment(id).filter(|record| !record.is_deleted()).cloned();
        let known = known.ok_or_else(|| format!("there is no deployment {id} (any more)"))?;
        self.bury(&known, effects);
        Ok(())
    }

    /// Writes a deployment's tombstone.
    fn bury(&mut self, record: &DeploymentRecord, effects: &mut Vec<Effect>) {
        let (version, sheet, deleted) = (self.next_version(record), name_only(&record.sheet), Some(self.deletion_time()));
        let (wish, contents, status) = (record.wish.clone(), None, DeploymentStatus::Planning);
        self.author(DeploymentRecord { id: record.id, version, sheet, contents, wish, plan: None, status, deleted }, effects);
    }

    /// The version with which this node follows `record`: a revision of its own, a new term over another's.
    fn next_version(&self, record: &DeploymentRecord) -> PlanId {
        let was = record.version;
        if was.coordinator == self.me.node {
            PlanId { revision: was.revision + 1, ..was }
        } else {
            PlanId { term: was.term + 1, revision: 0, coordinator: self.me.node, ..was }
        }
    }

    /// Has a version of ours written; until then nothing else is done for this deployment.
    fn author(&mut self, record: DeploymentRecord, effects: &mut Vec<Effect>) {
        self.desk(record.id).driving.pending = true;
        effects.push(Effect::Publish(Record::Deployment(record)));
    }

    fn on_saved(&mut self, now: Time, record: Record, effects: &mut Vec<Effect>) {
        if let Record::Deployment(record) = &record {
            // While it was written, the record may have been dropped (see `standing`): then it is nobody's any more.
            let Some(desk) = self.desks.get_mut(&record.id) else {
                return effects.push(Effect::Erase(RecordKey::Deployment(record.id)));
            };
            (desk.driving.pending, desk.driving.save_again_at) = (false, None);
        }
        // Whoever comes later is told everything; what is on its way before that would miss the meeting.
        if self.take(now, record.clone(), effects) && !self.live_peers().is_empty() {
            effects.push(Effect::Gossip(record));
        }
    }

    fn on_not_saved(&mut self, now: Time, deployment: DeploymentId, why: &str, effects: &mut Vec<Effect>) {
        effects.push(Effect::Notice(format!("the record of deployment {deployment} could not be written: {why}")));
        let driving = &mut self.desk(deployment).driving;
        (driving.pending, driving.save_again_at) = (false, Some(now.plus_ms(coordinate::SAVE_AGAIN_MS)));
        driving.look_again(now); // what led to it is to be looked at anew
        if self.directory.deployment(deployment).is_none() {
            self.desks.remove(&deployment); // a new one that never was
        }
    }

    /// A record that someone else wrote.
    fn on_record(&mut self, now: Time, record: Record, effects: &mut Vec<Effect>) {
        let keep = match &record {
            Record::Deployment(_) | Record::Other(_) => true,
            Record::Node(record) if record.node == self.me.node => return self.on_rumour_of_me(now, record, effects),
            Record::Node(record) => self.directory.node(record.node).is_none_or(|known| {
                (known.incarnation, known.state, known.alive, &known.addresses)
                    != (record.incarnation, record.state, record.alive, &record.addresses)
            }),
        };
        if self.take(now, record.clone(), effects) && keep {
            effects.push(Effect::Keep(record));
        }
    }

    /// Someone holds a version of our own record that we did not write: an older life's, or a clone's. Ours must win.
    fn on_rumour_of_me(&mut self, now: Time, rumour: &NodeRecord, effects: &mut Vec<Effect>) {
        if rumour.order() < self.me.order() || *rumour == self.me {
            return;
        }
        if rumour.boot == self.me.boot && rumour.state != NodeState::Forgotten {
            self.me.version = rumour.version.saturating_add(1);
        } else {
            let what =
                if rumour.boot == self.me.boot { "somebody had this node forgotten" } else { "another life of this node's key is known" };
            effects.push(Effect::Notice(format!("{what} (incarnation {}): it goes on as a later one", rumour.incarnation)));
            (self.me.incarnation, self.me.version) = (rumour.incarnation.saturating_add(1), 0);
            effects.push(Effect::Keep(Record::Node(self.me.clone())));
        }
        self.introduce(now, effects);
    }

    fn on_mine(&mut self, now: Time, models: Vec<HeldModel>, shards: Vec<HeldShard>, state: NodeState, effects: &mut Vec<Effect>) {
        if (&self.me.models, &self.me.shards, self.me.state) == (&models, &shards, state) {
            return;
        }
        let version = self.me.version + 1;
        self.me = NodeRecord { models, shards, state, version, ..self.me.clone() };
        if state == NodeState::Left {
            self.stamp(); // its last words: others count from here
            effects.push(Effect::Keep(Record::Node(self.me.clone())));
        }
        self.introduce(now, effects);
    }

    fn on_my_network(
        &mut self,
        now: Time,
        addresses: Vec<String>,
        interfaces: Vec<Interface>,
        paths: Vec<Path>,
        effects: &mut Vec<Effect>,
    ) {
        if (&self.me.addresses, &self.me.interfaces, &self.me.paths) == (&addresses, &interfaces, &paths) {
            return;
        }
        let version = self.me.version + 1;
        self.me = NodeRecord { addresses, interfaces, paths, version, ..self.me.clone() };
        self.introduce(now, effects);
    }

    fn introduce(&mut self, now: Time, effects: &mut Vec<Effect>) {
        effects.push(Effect::Introduce(self.me.clone()));
        self.take(now, Record::Node(self.me.clone()), effects);
    }

    /// Merges a record and acts on it if it is news; says whether it is.
    fn take(&mut self, now: Time, record: Record, effects: &mut Vec<Effect>) -> bool {
        match (&record, self.directory.merge_reporting(record.clone())) {
            (_, (Merged::Known, _)) => false,
            (_, (Merged::Refused(why), _)) => {
                effects.push(Effect::Notice(format!("refused a record of {:?}: {why}", record.key())));
                false
            }
            (Record::Other(_), (Merged::Newer, _)) => true,
            (Record::Node(record), (Merged::Newer, _)) => {
                if record.is_over() && self.peers.contains_key(&record.node) {
                    effects.push(Effect::NodeGone(record.node));
                }
                self.nodes_changed(now);
                true
            }
            (Record::Deployment(record), (Merged::Newer, former)) => {
                let former = match former {
                    Some(Record::Deployment(former)) => Some(former),
                    _ => None,
                };
                self.on_newer(now, record, former.as_ref(), effects);
                true
            }
        }
    }

    /// A deployment has a newer version, whoever wrote it.
    fn on_newer(&mut self, now: Time, record: &DeploymentRecord, former: Option<&DeploymentRecord>, effects: &mut Vec<Effect>) {
        let in_force = |record: &DeploymentRecord| record.plan.as_ref().map(Plan::hash);
        if former.is_some_and(|former| in_force(former) != in_force(record) || former.is_deleted() != record.is_deleted()) {
            effects.push(Effect::Fenced { deployment: record.id, plan: in_force(record), deleted: record.is_deleted() });
            self.nodes_changed(now); // memory may be free now
        }
        let me = self.me.node;
        self.desk(record.id).driving.record_changed(now, record, me);
    }

    fn on_up(&mut self, now: Time, record: NodeRecord, effects: &mut Vec<Effect>) {
        let (node, boot) = (record.node, record.boot);
        if node == self.me.node {
            return;
        }
        self.meet(&record, effects);
        self.directory.arrived(node);
        let former = self.peers.insert(node, Peer { health: Health::Up, boot, why: String::new() });
        if former.as_ref().is_some_and(|former| former.boot != boot && former.health != Health::Down) {
            effects.push(Effect::NodeGone(node)); // it restarted so fast that nobody held it dead
        }
        if former.is_some_and(|former| former.boot != boot) {
            self.desks.values_mut().for_each(|desk| desk.driving.forget_reports_of(node));
        }
        self.on_record(now, Record::Node(record), effects);
        self.nodes_changed(now);
        self.compare_soon(now, node);
    }

    fn on_suspect(&mut self, node: NodeId, why: String) {
        if let Some(peer) = self.peers.get_mut(&node).filter(|peer| matches!(peer.health, Health::Up | Health::Suspect)) {
            (peer.health, peer.why) = (Health::Suspect, why);
        }
    }

    fn on_trusted(&mut self, now: Time, node: NodeId) {
        if let Some(peer) = self.peers.get_mut(&node).filter(|peer| peer.health == Health::Suspect) {
            peer.health = Health::Up;
            self.nodes_changed(now);
        }
    }

    fn on_down(&mut self, now: Time, node: NodeId, effects: &mut Vec<Effect>) {
        if let Some(peer) = self.peers.get_mut(&node).filter(|peer| peer.health != Health::Down) {
            peer.health = Health::Down;
            self.directory.departed(node);
            effects.push(Effect::NodeGone(node));
            self.nodes_changed(now);
        }
    }

    /// Deployments that wait look again.
    fn nodes_changed(&mut self, now: Time) {
        self.desks.values_mut().for_each(|desk| desk.driving.look_again(now));
    }

    fn desk(&mut self, id: DeploymentId) -> &mut Desk {
        self.desks.entry(id).or_default()
    }

    /// R8: we may have been away. Nothing is published until the carrier says that all have answered; meanwhile records
    /// are compared with all, so that we know what was decided without us.
    fn on_waking(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.hush_until = now.plus_ms(WAKING_MS_MAX);
        self.compare_with_all(effects);
    }

    /// R8: after a freeze, deadlines move by it, and the carrier gets a moment to say whether it stood still too.
    fn notice_jump(&mut self, now: Time) {
        let gap_ms = now.ms_since(self.last);
        if gap_ms > JUMP_MS {
            let jump_ms = gap_ms - TICK_MS;
            for desk in self.desks.values_mut() {
                desk.driving.shift(jump_ms);
                desk.local.shift(jump_ms);
            }
            if self.settle_until > self.last {
                self.settle_until = self.settle_until.plus_ms(jump_ms);
            }
            (self.hush_until, self.exchange_at) = (self.hush_until.max(now.plus_ms(WAKE_GRACE_MS)), now);
        }
        self.last = self.last.max(now);
    }

    /// After each input: whatever can be done now is done.
    fn settle(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.exchange(now, effects);
        let ids: Vec<DeploymentId> = self.desks.keys().copied().collect();
        // First what is ordered already: what is decided now may undo it.
        ids.iter().for_each(|&id| self.serve(now, id, effects));
        if now >= self.hush_until {
            ids.into_iter().for_each(|id| self.drive(now, id, effects));
        }
    }
}
