//! Where a node's heavy work runs: layers that compute, disks that are read.
//!
//! Live that is a thread for each shard and one for each look through the model directories ([`Threads`]). The simulator
//! runs the same shards as tasks on virtual time, where a step or a load lasts as long as it would on the machine that is
//! simulated. What a shard does is the same in both; who waits, and on what, is the host's business.

use std::sync::Arc;

use mesh_core::model::HeldModel;
use mesh_core::ports::Models;
use tokio::sync::{Notify, oneshot};

use crate::shard::ShardSetup;
use crate::shard_inlet::{ShardHandle, ShardInlet};
use crate::shard_thread;

/// A shard that is about to run.
pub struct ShardStart {
    pub(crate) setup: ShardSetup,
    pub(crate) handle: ShardHandle,
    pub(crate) inlet: ShardInlet,
}

/// Runs shards and scans.
pub trait Workers: Send + Sync {
    /// Rung at each order to a shard that starts next, if its host waits for that. A thread does not: it sleeps on the queue.
    fn bell(&self) -> Option<Arc<Notify>> {
        None
    }

    /// Runs a shard until it is retired; its view then says that it has ended.
    ///
    /// # Errors
    /// The operating system gives no thread.
    fn shard(&self, start: ShardStart) -> std::io::Result<()>;

    /// Lists the models that can be read and sends the list. Does not wait: a disk may be slow.
    ///
    /// # Errors
    /// The operating system gives no thread.
    fn scan(&self, models: Arc<dyn Models>, found: oneshot::Sender<Vec<HeldModel>>) -> std::io::Result<()>;
}

/// A thread for each.
pub struct Threads;

impl Workers for Threads {
    fn shard(&self, start: ShardStart) -> std::io::Result<()> {
        shard_thread::spawn(start)
    }

    fn scan(&self, models: Arc<dyn Models>, found: oneshot::Sender<Vec<HeldModel>>) -> std::io::Result<()> {
        std::thread::Builder::new().name("mesh-scan".into()).spawn(move || found.send(models.list())).map(drop)
    }
}
