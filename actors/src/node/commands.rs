//! What the world outside asks of the node.

use std::time::Duration;

use actix::prelude::*;
use futures::future::{Either, join_all, select};
use mesh_core::ids::{DeploymentId, NodeId};
use mesh_core::model::ModelSheet;
use mesh_core::records::{NodeState, Record, Wish};
use mesh_core::wire::Message;
use tokio::sync::oneshot;

use super::NodeActor;
use crate::handle::{Command, PlanPreview};

/// Shards have so long to end at a leave; then the process goes without them.
const LEAVE_MS: u64 = 5_000;
/// The goodbye has at least so long to get out.
const GOODBYE_MS: u64 = 100;

impl NodeActor {
    pub(super) fn command(&mut self, command: Command, ctx: &mut Context<Self>) {
        match command {
            // A receiver that is gone has lost interest: nothing is owed to it.
            Command::Deploy { sheet, wish, reply } => drop(reply.send(self.deploy(sheet, wish, ctx))),
            Command::Undeploy { id, reply } => drop(reply.send(self.undeploy(id, ctx))),
            Command::Forget { node, reply } => drop(reply.send(self.forget(node, ctx))),
            Command::Status { reply } => drop(reply.send(self.status())),
            Command::Find { name, reply } => drop(reply.send(self.find(&name))),
            Command::Plan { sheet, wish, reply } => {
                let names = self.core.directory().nodes().map(|record| (record.node, record.name.clone())).collect();
                drop(reply.send(PlanPreview { outcome: self.core.preview(&sheet, &wish), names }));
            }
            Command::Generate { deployment, request, reply } => drop(reply.send(self.generate(deployment, request, ctx))),
            Command::Leave { reply } => self.leave(reply, ctx),
        }
    }

    /// The answer comes when the record is on disk and told, not when the model is loaded (F124).
    fn deploy(&mut self, sheet: ModelSheet, wish: Wish, ctx: &mut Context<Self>) -> Result<DeploymentId, String> {
        if self.state != NodeState::Up {
            return Err("this node is shutting down".into());
        }
        let mut effects = Vec::new();
        let id = self.core.deploy(self.parts.entropy.draw(), sheet, wish, &mut effects)?;
        self.unsaved.clear();
        self.perform_all(effects, ctx);
        self.saved(id).map(|()| id)
    }

    fn undeploy(&mut self, id: DeploymentId, ctx: &mut Context<Self>) -> Result<(), String> {
        let mut effects = Vec::new();
        self.core.undeploy(id, &mut effects)?;
        self.unsaved.clear();
        self.perform_all(effects, ctx);
        self.saved(id)
    }

    fn forget(&mut self, node: NodeId, ctx: &mut Context<Self>) -> Result<(), String> {
        let mut effects = Vec::new();
        self.core.forget(self.parts.clock.now(), node, &mut effects)?;
        self.perform_all(effects, ctx);
        Ok(())
    }

    fn saved(&mut self, id: DeploymentId) -> Result<(), String> {
        match self.unsaved.iter().find(|(unsaved, _)| *unsaved == id) {
            Some((_, why)) => Err(format!("the record could not be written, so nothing was changed: {why}")),
            None => Ok(()),
        }
    }

    /// Streams end, the others are told, shards are freed; then the actor stops.
    fn leave(&mut self, reply: oneshot::Sender<()>, ctx: &mut Context<Self>) {
        self.state = NodeState::Left;
        self.streams.shut_down();
        let handles = self.shards.retire_all();
        self.tell_of_shards(ctx);
        let goodbye = Message::Records(vec![Record::Node(self.core.me().clone())]);
        let others = self.core.directory().nodes().map(|record| record.node).filter(|&node| node != self.parts.me.node);
        for node in others {
            let _ = self.parts.carrier.send(node, goodbye.clone()); // gossip says it too
        }
        let ended = async move {
            let said = actix::clock::sleep(Duration::from_millis(GOODBYE_MS));
            let all = join_all(handles.iter().map(|handle| Box::pin(handle.ended())));
            let both = Box::pin(futures::future::join(said, all));
            let deadline = Box::pin(actix::clock::sleep(Duration::from_millis(LEAVE_MS)));
            if let Either::Right(_) = select(both, deadline).await {
                tracing::warn!("a shard did not end within {LEAVE_MS} ms: leaving without waiting for it");
            }
        };
        ctx.spawn(ended.into_actor(self).map(|(), _, ctx| {
            let _ = reply.send(());
            ctx.stop();
        }));
    }
}
