//! What this node does for a deployment as one of its nodes: have its layers in memory, put the published plan in force,
//! and free what was superseded, a minute later (R9).

use crate::ids::{DeploymentId, NodeId, PlanHash, Time};
use crate::mutation::{Mutation, made};
use crate::records::{DeploymentRecord, DeploymentStatus};
use crate::wire::{LoadOrder, Message, ShardReport, ShardState};

use super::{Deployments, Effect, Health};

/// Superseded weights stay so long: a healed partition costs a replay, never a load (R9).
pub const KEEP_MS: u64 = 60_000;

/// A shard that ended on its own is not started again before this: a load that always fails must not spin (F28).
const AGAIN_MS: u64 = 1_000;

/// This node's own shard, as far as it was told.
#[derive(Clone, Debug, Default)]
pub(super) struct Local {
    told: Option<Told>,
    /// When a shard that no plan names any more is freed.
    retire_at: Option<Time>,
    /// It ended on its own: no new one before this.
    again_at: Option<Time>,
    /// What it said last.
    report: Option<ShardReport>,
}

/// The last order that the shard got. The epoch is part of it: the same plan after a failure is a new order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Told {
    adopt: bool,
    plan: PlanHash,
    epoch: u64,
}

impl Local {
    pub fn deadlines(&self) -> [Option<Time>; 2] {
        [self.retire_at, self.again_at]
    }
    pub fn said_last(&self) -> Option<&ShardReport> {
        self.report.as_ref()
    }
    pub fn shift(&mut self, ms: u64) {
        self.retire_at = self.retire_at.map(|at| at.plus_ms(ms));
        self.again_at = self.again_at.map(|at| at.plus_ms(ms));
    }
}

impl Deployments {
    /// Compares what the newest record asks of this node with what its shard was told.
    pub(super) fn serve(&mut self, now: Time, id: DeploymentId, effects: &mut Vec<Effect>) {
        let Some(record) = self.directory.deployment(id) else { return };
        if record.is_deleted() {
            return self.retire_now(id, effects);
        }
        if self.desks.get(&id).and_then(|desk| desk.local.again_at).is_some_and(|at| now < at) {
            return;
        }
        // R9: the plans of an author that is held dead are stored, not obeyed.
        if self.health(record.version.coordinator) == Health::Down && !made(Mutation::ObeyTheDead) {
            return;
        }
        match self.order_for_me(record) {
            Some(order) => self.tell_shard(id, order, effects),
            None if in_between(record) => {}
            None => self.retire_later(now, id, effects),
        }
    }

    /// What this node's shard should be told by this version of the record.
    fn order_for_me(&self, record: &DeploymentRecord) -> Option<Told> {
        let epoch = record.version.epoch;
        let (plan, adopt) = match &record.status {
            DeploymentStatus::Loading { plan } => (plan, false),
            DeploymentStatus::Starting | DeploymentStatus::Ready => (record.plan.as_ref()?, true),
            _ => return None,
        };
        plan.stage_of(self.me.node).map(|_| Told { adopt, plan: plan.hash(), epoch })
    }

    fn tell_shard(&mut self, id: DeploymentId, order: Told, effects: &mut Vec<Effect>) {
        let local = &mut self.desk(id).local;
        (local.retire_at, local.again_at) = (None, None);
        if local.told == Some(order) {
            return;
        }
        if local.told.is_none() {
            self.free_superseded(id, effects);
        }
        self.desk(id).local.told = Some(order);
        let record = self.directory.deployment(id).expect("looked at just before");
        let plan = match &record.status {
            DeploymentStatus::Loading { plan } => plan.clone(),
            _ => record.plan.clone().expect("an order to adopt comes from a published plan"),
        };
        effects.push(if order.adopt { Effect::Adopt { deployment: id, plan } } else { Effect::Load { deployment: id, plan } });
    }

    /// Memory is needed for a new shard: what is kept just in case goes now.
    fn free_superseded(&mut self, but: DeploymentId, effects: &mut Vec<Effect>) {
        let superseded = |(id, desk): (&DeploymentId, &super::Desk)| (*id != but && desk.local.retire_at.is_some()).then_some(*id);
        for id in self.desks.iter().filter_map(superseded).collect::<Vec<_>>() {
            self.retire_now(id, effects);
        }
    }

    fn retire_later(&mut self, now: Time, id: DeploymentId, effects: &mut Vec<Effect>) {
        let local = &mut self.desk(id).local;
        match local.retire_at {
            _ if local.told.is_none() => {}
            Some(at) if now >= at => self.retire_now(id, effects),
            Some(_) => {}
            None => local.retire_at = Some(now.plus_ms(KEEP_MS)),
        }
    }

    pub(super) fn retire_now(&mut self, id: DeploymentId, effects: &mut Vec<Effect>) {
        let local = &mut self.desk(id).local;
        if local.told.is_some() {
            *local = Local::default();
            effects.push(Effect::Retire(id));
        }
    }

    /// The coordinator asks. The order itself follows from the record, which it sent just before; this answers.
    pub(super) fn on_load_order(&mut self, from: NodeId, order: &LoadOrder, effects: &mut Vec<Effect>) {
        let report = self.desks.get(&order.deployment).and_then(|desk| desk.local.report.clone());
        if let Some(report) = report.filter(|report| report.plan == order.plan.hash()) {
            effects.push(Effect::Send { to: from, message: Message::Shard(report) });
        }
        if self.directory.deployment(order.deployment).is_none() {
            let key = crate::records::RecordKey::Deployment(order.deployment);
            effects.push(Effect::Send { to: from, message: Message::Want(vec![key]) });
        }
    }

    /// Our shard says how far it is: the coordinator hears.
    pub(super) fn on_my_shard(&mut self, now: Time, report: ShardReport, effects: &mut Vec<Effect>) {
        let Some(record) = self.directory.deployment(report.deployment) else { return };
        let coordinator = record.version.coordinator;
        self.desk(report.deployment).local.report = Some(report.clone());
        if coordinator == self.me.node {
            self.on_report(now, report);
        } else {
            effects.push(Effect::Send { to: coordinator, message: Message::Shard(report) });
        }
    }

    /// A shard ended on its own: say so, and let the next order start a fresh one (F27).
    pub(super) fn on_shard_lost(&mut self, now: Time, id: DeploymentId, effects: &mut Vec<Effect>) {
        let local = &mut self.desk(id).local;
        let report = local.report.take();
        (local.told, local.again_at) = (None, Some(now.plus_ms(AGAIN_MS)));
        if let Some(report) = report {
            let state = ShardState::Failed { why: "the shard ended unexpectedly".into(), retry: true };
            self.on_my_shard(now, ShardReport { state, ..report }, effects);
            self.desk(id).local.report = None;
        }
    }
}

/// A record that says nothing about the nodes: being planned, waiting, given up. What is loaded stays meanwhile, unless
/// it was given up for good.
fn in_between(record: &DeploymentRecord) -> bool {
    matches!(record.status, DeploymentStatus::Planning | DeploymentStatus::Waiting { .. })
}
