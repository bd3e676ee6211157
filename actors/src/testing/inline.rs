//! Shards as tasks of the arbiter, for virtual time: what takes time on a machine takes as much of it here, though the
//! numbers are computed at once.
//!
//! A busy shard looks at no order, as a busy thread does not; that it shall give up reaches it in between all the same.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;

use futures::FutureExt;
use futures::future::{Either, select};
use mesh_core::model::{HeldModel, Layers, ModelSheet};
use mesh_core::ports::Models;
use mesh_core::wire::ShardState;
use tokio::sync::{Notify, oneshot};

use crate::shard_worker::{Flow, Loading, ShardWorker, Steps};
use crate::workers::{ShardStart, Workers};

/// A load tells its progress, and asks whether to go on, after so much time: as a real one does after each tensor.
const SLICE_NS: u64 = 200_000_000;
/// Longest sleep without anything to do.
const SLEEP_MAX_NS: u64 = 10_000_000_000;

/// A wait on the host's own time.
pub type Wait = Pin<Box<dyn Future<Output = ()> + Send>>;

/// How long things take on a node.
pub trait Pace: Send + Sync {
    /// Completes after so many nanoseconds.
    fn wait(&self, ns: u64) -> Wait;
    /// How long a step takes: so many rows with so many positions in all through these layers.
    fn step_ns(&self, sheet: &ModelSheet, layers: Layers, rows: usize, positions: u32) -> u64;
    /// How long it takes to read so many bytes of weights.
    fn read_ns(&self, bytes: u64) -> u64;
}

/// The host. One for each life of a node; lives inside a `LocalSet`.
pub struct Inline {
    pace: Arc<dyn Pace>,
}

impl Inline {
    /// A host with this pace.
    #[must_use]
    pub fn new(pace: Arc<dyn Pace>) -> Self {
        Self { pace }
    }
}

impl Workers for Inline {
    fn bell(&self) -> Option<Arc<Notify>> {
        Some(Arc::new(Notify::new()))
    }

    fn shard(&self, start: ShardStart) -> std::io::Result<()> {
        let (pace, view) = (self.pace.clone(), start.inlet.view.clone());
        let bell = start.handle.bell().expect("this host gives each shard a bell");
        tokio::task::spawn_local(async move {
            let host = Host { worker: ShardWorker::new(start, Steps::WhenTold), pace, bell };
            let ended = AssertUnwindSafe(host.run()).catch_unwind().await;
            view.send_modify(|view| {
                view.ended = true;
                if ended.is_err() {
                    view.state = ShardState::Failed { why: "the shard panicked: its layers must be loaded anew".to_owned(), retry: true };
                }
            });
        });
        Ok(())
    }

    fn scan(&self, models: Arc<dyn Models>, found: oneshot::Sender<Vec<HeldModel>>) -> std::io::Result<()> {
        let _ = found.send(models.list()); // whoever asked may be gone
        Ok(())
    }
}

struct Host {
    worker: ShardWorker,
    pace: Arc<dyn Pace>,
    bell: Arc<Notify>,
}

impl Host {
    async fn run(mut self) {
        loop {
            while let Some(order) = self.worker.next_order() {
                if self.worker.obey(order) == Flow::Ended {
                    return;
                }
                if let Some(loading) = self.worker.loading() {
                    self.load(loading).await;
                }
                while self.step().await {}
            }
            self.worker.turn();
            if self.step().await || self.worker.has_order() {
                continue;
            }
            let sleep = self.worker.wake_at().map_or(SLEEP_MAX_NS, |at| at.0.saturating_sub(self.worker.now().0).min(SLEEP_MAX_NS));
            let _ = select(pin!(self.bell.notified()), self.pace.wait(sleep)).await;
        }
    }

    /// Runs the step that the core asks for, if there is one.
    async fn step(&mut self) -> bool {
        let Some(batch) = self.worker.begin_step() else { return false };
        let (rows, positions) = (batch.rows.len(), batch.positions);
        let ns = self.pace.step_ns(self.worker.sheet(), self.worker.layers(), rows, positions);
        let mut done = self.pace.wait(ns);
        while !self.worker.shall_give_up() {
            if let Either::Right(_) = select(pin!(self.bell.notified()), &mut done).await {
                break;
            }
        }
        self.worker.finish_step();
        true
    }

    /// Reads as fast as the disk does, then has the layers.
    async fn load(&mut self, loading: Loading) {
        let all = loading.bytes(self.worker.sheet(), self.worker.layers());
        let total_ns = self.pace.read_ns(all).max(1);
        let mut spent_ns = 0;
        while spent_ns < total_ns && !loading.shall_give_up() {
            let slice = SLICE_NS.min(total_ns - spent_ns);
            let mut done = self.pace.wait(slice);
            while !loading.shall_give_up() {
                if let Either::Right(_) = select(pin!(self.bell.notified()), &mut done).await {
                    break;
                }
            }
            spent_ns += slice;
            let part = u128::from(all) * u128::from(spent_ns) / u128::from(total_ns);
            loading.progress(u64::try_from(part).unwrap_or(all), all);
        }
        self.worker.finish_load(&loading);
    }
}
