//! The shards that run on this node: started on orders, watched, ended.

use std::collections::BTreeMap;

use actix::prelude::*;
use mesh_core::deployments::Input;
use mesh_core::ids::{DeploymentId, NodeId};
use mesh_core::model::ModelSheet;
use mesh_core::plan::Plan;
use mesh_core::ports::EngineOptions;
use mesh_core::records::{HeldShard, NodeState};
use mesh_core::wire::{Message, ShardReport, ShardState};

use super::NodeActor;
use crate::handle::SeenShard;
use crate::shard::{Retire, ShardActor, ShardNews, ShardPorts, ShardSetup};
use crate::shard_inlet::ShardHandle;

/// Shards by deployment.
#[derive(Default)]
pub(super) struct Shards {
    running: BTreeMap<DeploymentId, (Addr<ShardActor>, ShardHandle)>,
}

impl Shards {
    /// Frees a shard. Its thread ends on its own time.
    pub fn retire(&mut self, deployment: DeploymentId) {
        if let Some((actor, handle)) = self.running.remove(&deployment) {
            handle.retire();
            let _ = actor.try_send(Retire); // a mailbox that is full or closed: the handle has said it already
        }
    }

    /// Frees all, and gives their handles, to wait for the end.
    pub fn retire_all(&mut self) -> Vec<ShardHandle> {
        let handles = self.running.values().map(|(_, handle)| handle.clone()).collect();
        let ids: Vec<DeploymentId> = self.running.keys().copied().collect();
        ids.into_iter().for_each(|id| self.retire(id));
        handles
    }

    /// Shards that ended without being told: taken out, to be started afresh (F27).
    pub fn lost(&mut self) -> Vec<DeploymentId> {
        let ended = |(actor, handle): &(Addr<ShardActor>, ShardHandle)| !actor.connected() || handle.watch().borrow().ended;
        let lost: Vec<DeploymentId> = self.running.iter().filter(|entry| ended(entry.1)).map(|entry| *entry.0).collect();
        lost.iter().for_each(|id| self.retire(*id));
        lost
    }

    pub fn node_gone(&self, node: NodeId) {
        for (_, handle) in self.running.values() {
            if let Err(error) = handle.node_down(node) {
                tracing::warn!(%error, "a shard was not told that a node is gone");
            }
        }
    }

    pub fn lane(&self, from: NodeId, message: Message) {
        let Message::Lane(offer) = &message else { return };
        if let Some((_, handle)) = self.running.get(&offer.lane.deployment) {
            let _ = handle.heard(from, message); // repeated if lost
        }
    }

    /// What is in memory.
    pub fn held(&self) -> Vec<HeldShard> {
        let held = |(id, (_, handle)): (&DeploymentId, &(Addr<ShardActor>, ShardHandle))| {
            let layers = handle.seen().layers;
            (layers.count() > 0).then_some(HeldShard { deployment: *id, layers })
        };
        self.running.iter().filter_map(held).collect()
    }

    /// Whether streams run through any of them.
    pub fn are_busy(&self) -> bool {
        self.running.values().any(|(_, handle)| handle.seen().streams > 0)
    }

    pub fn seen(&self, deployment: DeploymentId) -> Option<SeenShard> {
        self.running.get(&deployment).map(|(_, handle)| handle.seen())
    }
}

impl NodeActor {
    /// Orders the layers of a plan into memory, and puts the plan in force if it is published; says how far it is.
    pub(super) fn load_shard(&mut self, deployment: DeploymentId, plan: &Plan, adopt: bool, ctx: &mut Context<Self>) -> Option<Input> {
        if self.state != NodeState::Up {
            return None; // leaving: nothing new
        }
        let sheet = self.core.directory().deployment(deployment)?.sheet.clone();
        let (_, stage) = plan.stage_of(self.parts.me.node)?;
        let failed = |why: String| {
            let (node, boot) = (self.parts.me.node, self.core.me().boot);
            let state = ShardState::Failed { why, retry: true };
            Some(Input::MyShard(ShardReport { deployment, plan: plan.hash(), node, boot, layers: stage.layers, state }))
        };
        let options = self.options(&sheet, plan);
        let handle = match self.shards.running.get(&deployment) {
            Some((_, handle)) => handle.clone(),
            None => match self.launch_shard(deployment, sheet, ctx) {
                Ok((actor, handle)) => {
                    self.shards.running.insert(deployment, (actor, handle.clone()));
                    handle
                }
                Err(error) => return failed(format!("no thread for the shard: {error}")),
            },
        };
        let told = handle.load(plan, options).and_then(|()| if adopt { handle.adopt(plan) } else { Ok(()) });
        match told {
            Ok(()) => handle.report().map(Input::MyShard),
            Err(error) => failed(error.to_string()),
        }
    }

    fn launch_shard(
        &self,
        deployment: DeploymentId,
        sheet: ModelSheet,
        ctx: &mut Context<Self>,
    ) -> std::io::Result<(Addr<ShardActor>, ShardHandle)> {
        ShardActor::launch(ShardSetup {
            deployment,
            me: self.parts.me.node,
            boot: self.core.me().boot,
            sheet,
            ports: ShardPorts {
                clock: self.parts.clock.clone(),
                carrier: self.parts.carrier.clone(),
                channels: self.parts.channels.clone(),
                models: self.parts.models.clone(),
                workers: self.parts.workers.clone(),
            },
            router: self.parts.router.clone(),
            limits: self.parts.stage_limits,
            news: ctx.address().recipient(),
        })
    }

    /// Caches get what was planned for them, with the planner's headroom.
    fn options(&self, sheet: &ModelSheet, plan: &Plan) -> EngineOptions {
        let layers = plan.stage_of(self.parts.me.node).map(|(_, stage)| stage.layers).expect("the caller looked");
        let positions = u64::from(plan.context()) * u64::from(plan.streams());
        let planned = sheet.kv_bytes(layers, positions);
        let kv_bytes_max = planned.saturating_add(planned / 100 * mesh_core::planner::HEADROOM_PERCENT);
        EngineOptions { threads: self.parts.threads, numerics: plan.numerics(), context: plan.context(), kv_bytes_max }
    }
}

impl Handler<ShardNews> for NodeActor {
    type Result = ();
    fn handle(&mut self, ShardNews(report): ShardNews, ctx: &mut Self::Context) {
        if self.shards.running.contains_key(&report.deployment) {
            self.step(Input::MyShard(report), ctx);
        }
    }
}
