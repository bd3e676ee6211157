//! What a coordinator does for its deployments, and what the others do when it is gone (R10).
//!
//! ```text
//! Planning ──plan──▶ Loading ──all loaded──▶ Starting ──all wired, a token came──▶ Ready
//!    ▲ ▲               │ failed                 │ failed                             │ a stage is gone
//!    │ └─── pause ─────┴────────────────────────┴── (5 in a row: Failed)             │
//!    └── nodes changed ── Waiting ◀── nothing fits ──────────────────────────────────┘ or Loading, at once
//! ```

use std::collections::BTreeMap;

use crate::ids::{BootId, DeploymentId, NodeId, PlanHash, Time};
use crate::model::{Contents, ModelSheet};
use crate::plan::{Numerics, Plan};
use crate::planner::{self, NoPlan, PlanInput, PlanLink, PlanNode, Planned, stage_bytes};
use crate::records::{DeploymentRecord, DeploymentStatus, NodeRecord, NodeState, PlanId, Record, Wish};
use crate::wire::{LoadOrder, Message, ShardReport, ShardState};

use super::{Deployments, Effect, Health, copies};

/// A stage that has not done its part is asked again.
const ASK_MS: u64 = 2_000;
/// Nothing was heard from any stage that still has to do its part: the try has failed. A load tells its progress a few
/// times a second; a stage's own deadline for lanes is shorter.
const QUIET_MS: u64 = 20_000;
/// First pause after a failure; doubled each time.
const PAUSE_MS: u64 = 500;
const PAUSE_MS_MAX: u64 = 8_000;
/// So many failures in a row, and the deployment is given up (F28).
const FAILURES_MAX: u32 = 5;
/// A deployment that was ready for so long starts counting failures afresh.
const GOOD_MS: u64 = 60_000;
/// A plan that had to give way from what was wished for (a node died, and 2 stages instead of 3 go on answering) is looked
/// at so often, and replaced when the wish could be met at two looks in a row. Doubled with each time it was replaced: it
/// costs the answers that run. (Guess: longer than a reboot flaps, shorter than a person waits before asking why.)
pub const RESTORE_MS: u64 = 15_000;
/// The wish could be met at two looks, but the last replacement did not last: no more doublings than these (16 minutes).
const RESTORE_DOUBLINGS_MAX: u32 = 6;
/// A record that could not be written is tried again.
pub(super) const SAVE_AGAIN_MS: u64 = 1_000;
/// A successor lets digests come in before it takes over; doubled while takeovers follow each other.
const TAKEOVER_MS: u64 = 300;
/// Several nodes that come or go together cause one new plan.
const LOOK_MS: u64 = 200;
/// Nodes between which links are looked up for a plan; in a larger mesh any pair may be neighbours, at the defaults.
const PLAN_LINK_NODES_MAX: usize = 65;
/// Longest explanation in a record.
const WHY_BYTES_MAX: usize = 2_000;

/// What a coordinator knows beyond the record.
#[derive(Clone, Debug, Default)]
pub(super) struct Driving {
    /// A version of ours is being written.
    pub pending: bool,
    /// The last one could not be written: not before this.
    pub save_again_at: Option<Time>,
    /// The (term, epoch) that what follows is about; `None` = the record is from an earlier life of ours.
    driven: Option<(u64, u64)>,
    /// Which life of each stage's node the plan is for.
    boots: BTreeMap<NodeId, BootId>,
    /// What the stages said last about this plan.
    reports: BTreeMap<NodeId, ShardReport>,
    ask_at: Option<Time>,
    progress_at: Time,
    probe: Option<PlanHash>,
    ready_since: Option<Time>,
    failures: u32,
    retry_at: Option<Time>,
    /// Nodes that cannot do it, in this life of theirs, and why.
    barred: BTreeMap<NodeId, (BootId, String)>,
    /// The wish is new: plan from scratch.
    fresh: bool,
    /// Nodes changed.
    look_at: Option<Time>,
    /// The plan in force is not what was wished for: looked at again then.
    restore_at: Option<Time>,
    /// It could be met at the last look.
    restorable: bool,
    /// The next plan is made from scratch, to meet the wish; if that fails, what was in force is kept to as before.
    restoring: bool,
    restores: u32,
    takeover_at: Option<Time>,
    takeovers: u32,
    took_over: Time,
}

impl Driving {
    pub fn deadlines(&self) -> [Option<Time>; 6] {
        [self.save_again_at, self.ask_at, self.retry_at, self.look_at, self.restore_at, self.takeover_at]
    }

    pub fn shift(&mut self, ms: u64) {
        let first = [&mut self.save_again_at, &mut self.ask_at, &mut self.retry_at];
        for at in first.into_iter().chain([&mut self.look_at, &mut self.restore_at, &mut self.takeover_at]) {
            *at = at.map(|at| at.plus_ms(ms));
        }
        self.progress_at = self.progress_at.plus_ms(ms);
    }

    pub fn look_again(&mut self, now: Time) {
        self.look_at.get_or_insert(now.plus_ms(LOOK_MS));
    }

    pub fn forget_reports_of(&mut self, node: NodeId) {
        self.reports.remove(&node);
    }

    /// The user asked anew.
    pub fn start_afresh(&mut self) {
        (self.failures, self.retry_at, self.fresh) = (0, None, true);
        (self.restore_at, self.restorable, self.restores) = (None, false, 0);
        self.barred.clear();
    }

    pub fn loading(&self) -> Vec<(NodeId, u64, u64)> {
        let progress = |report: &ShardReport| match report.state {
            ShardState::Loading { done_bytes, all_bytes } => Some((report.node, done_bytes, all_bytes)),
            _ => None,
        };
        self.reports.values().filter_map(progress).collect()
    }

    /// A newer version of the record is known.
    pub fn record_changed(&mut self, now: Time, record: &DeploymentRecord, me: NodeId) {
        let driven = (record.version.term, record.version.epoch);
        if record.version.coordinator != me {
            *self = Self { takeovers: self.takeovers, took_over: self.took_over, ..Self::default() };
        } else if self.driven != Some(driven) {
            (self.driven, self.ask_at, self.progress_at, self.probe) = (Some(driven), Some(now), now, None);
            self.boots.clear();
            self.reports.clear();
        }
        self.takeover_at = None;
        match record.status {
            DeploymentStatus::Ready => {
                self.ready_since.get_or_insert(now);
                self.fresh = false;
            }
            DeploymentStatus::Starting => self.progress_at = now,
            _ => {}
        }
    }

    /// Whether the node has said, in the life that the plan is for, that it has come so far.
    fn has(&self, node: NodeId, far_enough: fn(&ShardState) -> bool) -> bool {
        self.reports.get(&node).is_some_and(|report| far_enough(&report.state))
    }
}

fn is_loaded(state: &ShardState) -> bool {
    matches!(state, ShardState::Loaded | ShardState::Wired)
}
fn is_wired(state: &ShardState) -> bool {
    matches!(state, ShardState::Wired)
}

/// The plan that its stages are working on.
fn plan_at_work(record: &DeploymentRecord) -> Option<&Plan> {
    match &record.status {
        DeploymentStatus::Loading { plan } => Some(plan),
        DeploymentStatus::Starting | DeploymentStatus::Ready => record.plan.as_ref(),
        _ => None,
    }
}

impl Deployments {
    /// Does the next thing for a deployment, if it is for us to do.
    pub(super) fn drive(&mut self, now: Time, id: DeploymentId, effects: &mut Vec<Effect>) {
        let Some(record) = self.directory.deployment(id).filter(|record| !record.is_deleted()).cloned() else { return };
        let driving = &mut self.desk(id).driving;
        if driving.pending || driving.save_again_at.is_some_and(|at| now < at) {
            return;
        }
        driving.save_again_at = None;
        if self.me.state != NodeState::Up {
            return; // leaving: others take over
        }
        if self.settle_twins(now, &record, effects) {
            return;
        }
        if record.version.coordinator != self.me.node {
            return self.succeed(now, &record, effects);
        }
        if self.desk(id).driving.driven.is_none() {
            return self.resume(now, record, effects);
        }
        if self.know_the_copy(&record, effects) {
            return;
        }
        self.hear_myself(now, &record);
        match &record.status {
            DeploymentStatus::Planning => self.drive_planning(now, &record, effects),
            DeploymentStatus::Waiting { .. } => self.drive_waiting(now, &record, effects),
            DeploymentStatus::Failed { .. } => self.desk(id).driving.look_at = None,
            DeploymentStatus::Loading { plan } => self.drive_stages(now, &record, plan, is_loaded, effects),
            DeploymentStatus::Starting => {
                let plan = record.plan.clone().expect("the directory refuses a record that starts without a plan");
                self.drive_stages(now, &record, &plan, is_wired, effects);
            }
            DeploymentStatus::Ready => {
                let plan = record.plan.clone().expect("the directory refuses a ready record without a plan");
                self.drive_ready(now, &record, &plan, effects);
            }
        }
    }

    /// A takeover with an intact plan asks nothing new of our own shard, so it says nothing; what it said before counts.
    /// A failure does not: with each new try the shard starts again.
    fn hear_myself(&mut self, now: Time, record: &DeploymentRecord) {
        let desk = &self.desks[&record.id];
        let heard = desk.driving.reports.contains_key(&self.me.node);
        let said = desk.local.said_last().filter(|said| !heard && !matches!(said.state, ShardState::Failed { .. }));
        if let Some(said) = said.cloned() {
            self.on_report(now, said);
        }
    }

    /// We were its coordinator in an earlier life: what we knew of its stages is gone, so it has to prove itself again (P6).
    fn resume(&mut self, now: Time, record: DeploymentRecord, effects: &mut Vec<Effect>) {
        let status = match &record.status {
            DeploymentStatus::Ready | DeploymentStatus::Starting => DeploymentStatus::Starting,
            DeploymentStatus::Failed { .. } => {
                let me = self.me.node;
                return self.desk(record.id).driving.record_changed(now, &record, me);
            }
            _ => DeploymentStatus::Planning,
        };
        let me = self.me.node;
        self.desk(record.id).driving.record_changed(now, &record, me);
        self.revise(&record, status, effects);
    }

    fn drive_planning(&mut self, now: Time, record: &DeploymentRecord, effects: &mut Vec<Effect>) {
        let driving = &mut self.desk(record.id).driving;
        if driving.retry_at.is_some_and(|at| now < at) {
            return;
        }
        driving.retry_at = None;
        // Right after our own start, the nodes of the last plan may be about to greet us.
        let unmet = |plan: &Plan| plan.stages().iter().any(|stage| self.health(stage.node) == Health::Unmet);
        if now < self.settle_until && record.plan.as_ref().is_some_and(unmet) {
            return;
        }
        self.replan(now, record, effects);
    }

    fn drive_waiting(&mut self, now: Time, record: &DeploymentRecord, effects: &mut Vec<Effect>) {
        if self.desk(record.id).driving.look_at.is_some_and(|at| now >= at) {
            self.replan(now, record, effects);
        }
    }

    /// Loading and starting: every stage has to come `far_enough`.
    fn drive_stages(
        &mut self,
        now: Time,
        record: &DeploymentRecord,
        plan: &Plan,
        far_enough: fn(&ShardState) -> bool,
        effects: &mut Vec<Effect>,
    ) {
        if self.broken(now, record.id, plan) {
            return self.replan(now, record, effects);
        }
        if let Some((node, why, retry)) = self.failed_stage(record.id, plan) {
            return self.fail(now, record, Some((node, retry)), &why, effects);
        }
        let driving = &self.desk(record.id).driving;
        let late: Vec<NodeId> = plan.stages().iter().map(|stage| stage.node).filter(|&node| !driving.has(node, far_enough)).collect();
        if late.is_empty() {
            return self.all_far_enough(record, plan, effects);
        }
        if now.ms_since(driving.progress_at) >= QUIET_MS {
            let names: Vec<String> = late.iter().map(|&node| self.name(node)).collect();
            let why = format!("nothing was heard from {} for {} s", names.join(", "), QUIET_MS / 1000);
            return self.fail(now, record, None, &why, effects);
        }
        self.ask(now, record, plan, &late, effects);
    }

    /// Loaded: publish. Wired: let a token come through.
    fn all_far_enough(&mut self, record: &DeploymentRecord, plan: &Plan, effects: &mut Vec<Effect>) {
        if matches!(record.status, DeploymentStatus::Loading { .. }) {
            let version = self.next_version(record);
            let published = DeploymentRecord { version, plan: Some(plan.clone()), status: DeploymentStatus::Starting, ..record.clone() };
            return self.author(published, effects);
        }
        let driving = &mut self.desk(record.id).driving;
        driving.ask_at = None;
        if driving.probe != Some(plan.hash()) {
            driving.probe = Some(plan.hash());
            effects.push(Effect::Probe { deployment: record.id, plan: plan.clone() });
        }
    }

    fn drive_ready(&mut self, now: Time, record: &DeploymentRecord, plan: &Plan, effects: &mut Vec<Effect>) {
        let reloading = |state: &ShardState| matches!(state, ShardState::Loading { .. });
        let lost = plan.stages().iter().any(|stage| self.desks[&record.id].driving.has(stage.node, reloading));
        if self.broken(now, record.id, plan) || lost {
            return self.replan(now, record, effects);
        }
        if let Some((node, why, retry)) = self.failed_stage(record.id, plan) {
            return self.fail(now, record, Some((node, retry)), &why, effects);
        }
        if self.can_be_as_wished(now, record, plan) {
            return self.replan(now, record, effects);
        }
        // After a takeover: whoever has not told us yet how it is.
        let driving = &self.desk(record.id).driving;
        let silent: Vec<NodeId> = plan.stages().iter().map(|stage| stage.node).filter(|node| !driving.reports.contains_key(node)).collect();
        if silent.is_empty() {
            self.desk(record.id).driving.ask_at = None;
        } else {
            self.ask(now, record, plan, &silent, effects);
        }
    }

    /// Whether a plan that gave way from the wish should now be replaced by one that meets it: level-triggered, with
    /// hysteresis (see [`RESTORE_MS`]).
    fn can_be_as_wished(&mut self, now: Time, record: &DeploymentRecord, plan: &Plan) -> bool {
        let driving = &mut self.desk(record.id).driving;
        if planner::fulfils(plan, &record.wish) {
            (driving.restore_at, driving.restorable) = (None, false);
            return false;
        }
        let pause_ms = RESTORE_MS << driving.restores.min(RESTORE_DOUBLINGS_MAX);
        match driving.restore_at {
            None => driving.restore_at = Some(now.plus_ms(pause_ms)),
            Some(at) if now >= at => {
                driving.restore_at = Some(now.plus_ms(pause_ms));
                let could_before = driving.restorable;
                let planned = self.plan_for(Some(record.id), &record.sheet, record.contents.as_ref(), &record.wish, None);
                let can = planned.is_ok_and(|planned| planner::fulfils(&planned.plan, &record.wish));
                let driving = &mut self.desk(record.id).driving;
                driving.restorable = can;
                if can && could_before {
                    (driving.restore_at, driving.restorable, driving.restoring) = (None, false, true);
                    driving.restores += 1;
                    return true;
                }
            }
            Some(_) => {}
        }
        false
    }

    /// Tells stages the record and asks them how far they are.
    fn ask(&mut self, now: Time, record: &DeploymentRecord, plan: &Plan, nodes: &[NodeId], effects: &mut Vec<Effect>) {
        let driving = &mut self.desk(record.id).driving;
        if driving.ask_at.is_some_and(|at| now < at) {
            return;
        }
        driving.ask_at = Some(now.plus_ms(ASK_MS));
        let me = self.me.node;
        for &to in nodes.iter().filter(|&&node| node != me) {
            let order = LoadOrder { deployment: record.id, plan: plan.clone(), coordinator: me };
            effects.push(Effect::Send { to, message: Message::Records(vec![Record::Deployment(record.clone())]) });
            effects.push(Effect::Send { to, message: Message::Load(Box::new(order)) });
        }
    }

    /// Whether a stage's node is gone, or not the one that the plan was made for.
    fn broken(&mut self, now: Time, id: DeploymentId, plan: &Plan) -> bool {
        let settling = now < self.settle_until;
        if self.holds_another_copy(id, plan) {
            return true;
        }
        plan.stages().iter().map(|stage| stage.node).filter(|&node| node != self.me.node).collect::<Vec<_>>().into_iter().any(|node| {
            let leaving = self.directory.node(node).is_some_and(|record| record.state != NodeState::Up);
            match (self.health(node), self.peers.get(&node)) {
                (Health::Up | Health::Suspect, Some(peer)) if !leaving => {
                    let boot = peer.boot;
                    *self.desk(id).driving.boots.entry(node).or_insert(boot) != boot
                }
                (Health::Unmet, _) => !settling,
                _ => true,
            }
        })
    }

    fn failed_stage(&self, id: DeploymentId, plan: &Plan) -> Option<(NodeId, String, bool)> {
        let reports = &self.desks[&id].driving.reports;
        plan.stages().iter().find_map(|stage| match reports.get(&stage.node).map(|report| &report.state) {
            Some(ShardState::Failed { why, retry }) => Some((stage.node, format!("{}: {why}", self.name(stage.node)), *retry)),
            _ => None,
        })
    }

    /// A try failed. Growing pauses, and an end to it (F28). A node that can never do it is left out from now on.
    fn fail(&mut self, now: Time, record: &DeploymentRecord, who: Option<(NodeId, bool)>, why: &str, effects: &mut Vec<Effect>) {
        effects.push(Effect::Notice(format!("{}: {why}", record.sheet.name)));
        let boot = who.map(|(node, _)| self.peers.get(&node).map_or(self.me.boot, |peer| peer.boot));
        let driving = &mut self.desk(record.id).driving;
        if driving.ready_since.take().is_some_and(|since| now.ms_since(since) >= GOOD_MS) {
            driving.failures = 0;
        }
        driving.failures += 1;
        if let (Some((node, false)), Some(boot)) = (who, boot) {
            driving.barred.insert(node, (boot, short(why)));
        }
        if driving.failures >= FAILURES_MAX {
            let why = short(&format!("gave up after {FAILURES_MAX} failures in a row; the last: {why}. Deploy again to start afresh."));
            return self.revise(record, DeploymentStatus::Failed { why }, effects);
        }
        let pause_ms = (PAUSE_MS << (driving.failures - 1)).min(PAUSE_MS_MAX);
        driving.retry_at = Some(now.plus_ms(pause_ms));
        self.revise(record, DeploymentStatus::Planning, effects);
    }

    /// Makes a plan for the nodes there are, or says what is missing.
    fn replan(&mut self, now: Time, record: &DeploymentRecord, effects: &mut Vec<Effect>) {
        let driving = &mut self.desk(record.id).driving;
        let from_scratch = driving.fresh || std::mem::take(&mut driving.restoring);
        let keep = record.plan.as_ref().filter(|_| !from_scratch);
        let answer = self.plan_for(Some(record.id), &record.sheet, record.contents.as_ref(), &record.wish, keep);
        let driving = &mut self.desk(record.id).driving;
        (driving.look_at, driving.ready_since) = (None, driving.ready_since.filter(|since| now.ms_since(*since) < GOOD_MS));
        let status = match answer {
            Ok(Planned { plan, .. }) => {
                let version = self.next_version(record);
                let version = PlanId { epoch: version.epoch + 1, revision: 0, ..version };
                return self.author(DeploymentRecord { version, status: DeploymentStatus::Loading { plan }, ..record.clone() }, effects);
            }
            Err(no) => match driving.barred.values().next() {
                Some((_, why)) => DeploymentStatus::Failed { why: short(&format!("{why}; and without that node: {}", no.why)) },
                None => DeploymentStatus::Waiting { missing_bytes: no.missing_bytes, why: short(&no.why) },
            },
        };
        if status != record.status {
            self.revise(record, status, effects);
        }
    }

    /// Publishes another status for the same plan.
    fn revise(&mut self, record: &DeploymentRecord, status: DeploymentStatus, effects: &mut Vec<Effect>) {
        let version = self.next_version(record);
        self.author(DeploymentRecord { version, status, ..record.clone() }, effects);
    }

    pub(super) fn on_report(&mut self, now: Time, report: ShardReport) {
        let Some(record) = self.directory.deployment(report.deployment) else { return };
        let at_work = plan_at_work(record).filter(|plan| plan.hash() == report.plan && plan.stage_of(report.node).is_some());
        let boot = if report.node == self.me.node { Some(self.me.boot) } else { self.peers.get(&report.node).map(|peer| peer.boot) };
        if record.version.coordinator != self.me.node || at_work.is_none() || boot != Some(report.boot) {
            return;
        }
        let driving = &mut self.desk(report.deployment).driving;
        if driving.reports.get(&report.node) != Some(&report) {
            driving.progress_at = now;
        }
        driving.reports.insert(report.node, report);
    }

    pub(super) fn on_probed(
        &mut self,
        now: Time,
        id: DeploymentId,
        plan: PlanHash,
        outcome: Result<(), String>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(record) = self.directory.deployment(id).cloned() else { return };
        let driving = &self.desk(id).driving;
        let asked = driving.probe == Some(plan) && !driving.pending;
        let current = record.version.coordinator == self.me.node && record.status == DeploymentStatus::Starting;
        if !(asked && current && record.plan.as_ref().is_some_and(|current| current.hash() == plan)) {
            return;
        }
        self.desk(id).driving.probe = None;
        match outcome {
            Ok(()) => self.revise(&record, DeploymentStatus::Ready, effects),
            Err(why) => self.fail(now, &record, None, &format!("no token came out: {why}"), effects),
        }
    }

    /// Another node's deployment: take over if its coordinator is gone and the turn is ours (R10).
    fn succeed(&mut self, now: Time, record: &DeploymentRecord, effects: &mut Vec<Effect>) {
        let given_up = matches!(record.status, DeploymentStatus::Failed { .. });
        if given_up || !self.is_gone(now, record.version.coordinator) || self.successor(record.id) != self.me.node {
            self.desk(record.id).driving.takeover_at = None;
            return;
        }
        let driving = &mut self.desk(record.id).driving;
        match driving.takeover_at {
            None => {
                if now.ms_since(driving.took_over) > GOOD_MS {
                    driving.takeovers = 0;
                }
                driving.takeover_at = Some(now.plus_ms(TAKEOVER_MS << driving.takeovers.min(7)));
                for to in self.live_peers() {
                    effects.push(Effect::Send { to, message: Message::Digest(self.directory.digest()) });
                }
            }
            Some(at) if now >= at => {
                (driving.takeover_at, driving.takeovers, driving.took_over) = (None, driving.takeovers + 1, now);
                let status = match &record.status {
                    DeploymentStatus::Loading { .. } => DeploymentStatus::Planning,
                    status => status.clone(), // an intact plan goes on: its hash is the same (R10)
                };
                effects.push(Effect::Notice(format!("taking over {} from {}", record.sheet.name, self.name(record.version.coordinator))));
                self.revise(record, status, effects);
            }
            Some(_) => {}
        }
    }

    /// Whether a coordinator is dead, has left or is about to.
    pub(super) fn is_gone(&self, now: Time, node: NodeId) -> bool {
        let leaving = self.directory.node(node).is_some_and(|record| record.state != NodeState::Up);
        match self.health(node) {
            Health::Up | Health::Suspect => leaving,
            Health::Unmet => now >= self.settle_until,
            Health::Down | Health::Left => true,
        }
    }

    /// The live node with the highest rank (rendezvous hashing, Thaler and Ravishankar 1998).
    pub(super) fn successor(&self, id: DeploymentId) -> NodeId {
        let stays = |node: &NodeId| self.directory.node(*node).is_none_or(|record| record.state == NodeState::Up);
        let rank = |node: &NodeId| {
            let mut bytes = [0; 48];
            bytes[..16].copy_from_slice(&id.0.to_le_bytes());
            bytes[16..].copy_from_slice(&node.0);
            (xxhash_rust::xxh3::xxh3_64(&bytes), *node)
        };
        self.live_peers().into_iter().filter(stays).chain([self.me.node]).max_by_key(rank).unwrap_or(self.me.node)
    }

    /// What the planner would do now, and why; changes nothing.
    ///
    /// # Errors
    /// Nothing fits.
    pub fn preview(&self, sheet: &ModelSheet, wish: &Wish) -> Result<Planned, NoPlan> {
        let deployed = self.directory.deployments().find(|record| !record.is_deleted() && record.sheet.digest == sheet.digest);
        let contents = self.own_contents(sheet).or(deployed.and_then(|record| record.contents.as_ref()));
        self.plan_for(deployed.map(|record| record.id), sheet, contents, wish, None)
    }

    pub(super) fn plan_for(
        &self,
        id: Option<DeploymentId>,
        sheet: &ModelSheet,
        contents: Option<&Contents>,
        wish: &Wish,
        keep: Option<&Plan>,
    ) -> Result<Planned, NoPlan> {
        let present = |record: &&NodeRecord| self.health(record.node) != Health::Left;
        let nodes = self.directory.nodes().filter(present).map(|record| self.plan_node(id, sheet, contents, record)).collect();
        planner::plan(&PlanInput { sheet, wish, numerics: Numerics::default(), nodes, links: self.plan_links(), keep })
    }

    /// The links between the nodes that can take part, each as the node with the smaller id measured it and says in its
    /// record. A pair that nobody has measured yet may be neighbours, at the planner's defaults.
    fn plan_links(&self) -> Option<Vec<PlanLink>> {
        let usable = |record: &&NodeRecord| self.health(record.node) == Health::Up;
        let nodes: Vec<&NodeRecord> = self.directory.nodes().filter(usable).take(PLAN_LINK_NODES_MAX).collect();
        let measured = |low: &NodeRecord, high: &NodeRecord| low.paths.iter().find(|path| path.peer == high.node).map(|path| path.measured);
        let mut links = Vec::new();
        let mut any = false;
        for (index, a) in nodes.iter().enumerate() {
            for b in &nodes[index + 1..] {
                let (low, high) = if a.node < b.node { (a, b) } else { (b, a) };
                let known = measured(low, high);
                any |= known.is_some();
                links.push(PlanLink {
                    a: low.node,
                    b: high.node,
                    delay_us: known.map_or(PlanLink::DEFAULT_DELAY_US, |known| known.delay_us.max(1)),
                    bytes_per_s: known.map(|known| known.bytes_per_s).filter(|&rate| rate > 0).unwrap_or(PlanLink::DEFAULT_BYTES_PER_S),
                });
            }
        }
        // With more nodes than that the planner's guess for the others would look like no link at all.
        (any && nodes.len() < PLAN_LINK_NODES_MAX).then_some(links)
    }

    fn plan_node(&self, id: Option<DeploymentId>, sheet: &ModelSheet, contents: Option<&Contents>, record: &NodeRecord) -> PlanNode {
        let health = self.health(record.node);
        let barred = id.and_then(|id| self.desks.get(&id)).and_then(|desk| desk.driving.barred.get(&record.node));
        let unusable = match (health, record.state, barred) {
            (Health::Down, ..) => Some(format!("{} is down", record.name)),
            (Health::Suspect, ..) => Some(format!("{} does not answer", record.name)),
            (Health::Unmet, ..) => Some(format!("{} has not greeted this node", record.name)),
            (_, NodeState::Leaving | NodeState::Left | NodeState::Forgotten, _) => Some(format!("{} is leaving", record.name)),
            (.., Some((boot, why))) if *boot == record.boot => Some(format!("{} failed: {why}", record.name)),
            _ => contents.and_then(|contents| copies::another_copy(record, sheet, contents)),
        };
        PlanNode {
            node: record.node,
            name: record.name.clone(),
            capacity: record.capacity,
            taken_bytes: self.taken_bytes(record.node, id),
            numerics_class: record.numerics_class,
            files: record.models.iter().find(|held| held.digest == sheet.digest).map(|held| held.layers),
            shard: record.shards.iter().find(|held| Some(held.deployment) == id).map(|held| held.layers),
            unusable,
        }
    }

    /// What other deployments take of a node, as planned.
    fn taken_bytes(&self, node: NodeId, but: Option<DeploymentId>) -> u64 {
        let others = self.directory.deployments().filter(|record| !record.is_deleted() && Some(record.id) != but);
        let bytes = others.filter_map(|record| {
            let plan = plan_at_work(record)?;
            let (_, stage) = plan.stage_of(node)?;
            Some(stage_bytes(&record.sheet, stage.layers, plan.context(), plan.streams(), plan.numerics()))
        });
        bytes.fold(0, u64::saturating_add)
    }

    fn name(&self, node: NodeId) -> String {
        self.directory.node(node).map_or_else(|| node.short(), |record| record.name.clone())
    }
}

/// Cuts an explanation at a whole character.
fn short(why: &str) -> String {
    let mut end = why.len().min(WHY_BYTES_MAX);
    while !why.is_char_boundary(end) {
        end -= 1;
    }
    why[..end].to_owned()
}
