//! The shard actor: starts a shard's worker, registers it with the router, and tells the node actor what it says.
//!
//! Orders do not pass through here: the node actor pushes them through the [`ShardHandle`], which never waits. When the
//! actor stops, the shard is retired: its thread gives up what it does and drops weights, caches and lanes on its own time.

use std::sync::Arc;

use actix::prelude::*;
use mesh_core::ids::{BootId, DeploymentId, NodeId};
use mesh_core::model::ModelSheet;
use mesh_core::ports::{Carrier, Channels, Clock, Models};
use mesh_core::stage;
use mesh_core::wire::ShardReport;

use crate::router::Router;
use crate::shard_inlet::ShardHandle;
use crate::workers::{ShardStart, Workers};

/// What a shard needs of the world.
#[derive(Clone)]
pub struct ShardPorts {
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Control connections.
    pub carrier: Arc<dyn Carrier>,
    /// Tensor lanes.
    pub channels: Arc<dyn Channels>,
    /// Weight files.
    pub models: Arc<dyn Models>,
    /// Where it runs.
    pub workers: Arc<dyn Workers>,
}

/// Everything a shard is made of.
pub struct ShardSetup {
    /// Which deployment it serves.
    pub deployment: DeploymentId,
    /// This node.
    pub me: NodeId,
    /// This life of it.
    pub boot: BootId,
    /// The model's table of contents.
    pub sheet: ModelSheet,
    /// What it needs of the world.
    pub ports: ShardPorts,
    /// Where it registers.
    pub router: Arc<Router>,
    /// Bounds and deadlines.
    pub limits: stage::Limits,
    /// Who hears of each change.
    pub news: Recipient<ShardNews>,
}

/// To the node actor: a shard's state changed. Progress of a load comes a few times a second.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub struct ShardNews(pub ShardReport);

/// The actor. See the module's head.
pub struct ShardActor {
    handle: ShardHandle,
    router: Arc<Router>,
    news: Recipient<ShardNews>,
}

impl ShardActor {
    /// Starts a shard that holds nothing yet, where its workers run, and registers it with the router.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub fn launch(setup: ShardSetup) -> std::io::Result<(Addr<Self>, ShardHandle)> {
        let (handle, inlet) = ShardHandle::new(setup.deployment, setup.me, setup.boot, setup.ports.workers.bell());
        let (router, news, workers) = (setup.router.clone(), setup.news.clone(), setup.ports.workers.clone());
        workers.shard(ShardStart { setup, handle: handle.clone(), inlet })?;
        router.add_shard(handle.clone());
        let actor = Self { handle: handle.clone(), router, news };
        Ok((actor.start(), handle))
    }
}

impl Actor for ShardActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let (handle, news) = (self.handle.clone(), self.news.clone());
        ctx.spawn(tell_changes(handle, news).into_actor(self));
    }

    fn stopped(&mut self, _: &mut Self::Context) {
        self.router.remove_shard(&self.handle);
        self.handle.retire();
    }
}

/// Passes each change on. Only the newest state matters: where the node's mailbox is full, it is told a moment later.
async fn tell_changes(handle: ShardHandle, news: Recipient<ShardNews>) {
    let mut view = handle.watch();
    view.mark_changed(); // what was said before anyone watched
    while view.changed().await.is_ok() {
        view.mark_unchanged();
        let Some(report) = handle.report() else { continue };
        match news.try_send(ShardNews(report)) {
            Ok(()) => {}
            Err(SendError::Full(_)) => {
                view.mark_changed();
                actix::clock::sleep(std::time::Duration::from_millis(FULL_PAUSE_MS)).await;
            }
            Err(SendError::Closed(_)) => return,
        }
    }
}

/// How long to wait for room in the node's mailbox. (Guess: a few of its handlers' times.)
const FULL_PAUSE_MS: u64 = 20;

/// Ends a shard: as stopping its actor.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Retire;

impl Handler<Retire> for ShardActor {
    type Result = ();
    fn handle(&mut self, Retire: Retire, ctx: &mut Self::Context) {
        ctx.stop();
    }
}
