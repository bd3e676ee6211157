//! Layers into memory: the first load, and every change of them after it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mesh_core::ids::PlanHash;
use mesh_core::model::Layers;
use mesh_core::plan::Plan;
use mesh_core::ports::{Clock, EngineOptions, ModelError, Progress};
use mesh_core::wire::ShardState;
use tokio::sync::watch;

use super::{ShardWorker, guarded};
use crate::shard_inlet::{ShardView, Shared};

/// Progress is told so often at most.
const TELL_MS: u64 = 200;

/// A load between its begin and its end: streams have ended and lanes are down, nothing was read yet.
pub(crate) struct Loading {
    plan: Plan,
    layers: Layers,
    options: EngineOptions,
    /// Layers in memory can be kept.
    same_kind: bool,
    watch: Watch,
}

#[cfg(any(test, feature = "testing"))]
impl Loading {
    /// Bytes to be read.
    pub fn bytes(&self, sheet: &mesh_core::model::ModelSheet, held: Layers) -> u64 {
        let of = |layer: u16| sheet.weight_bytes(Layers::new(layer, layer + 1));
        let held = if self.same_kind { held } else { Layers::new(0, 0) };
        (self.layers.first..self.layers.end).filter(|layer| !held.contains(*layer)).map(of).sum()
    }
    /// Says how far it is.
    pub fn progress(&self, done_bytes: u64, all_bytes: u64) {
        self.watch.loaded(done_bytes, all_bytes);
    }
    /// Whether it is not wanted any more.
    pub fn shall_give_up(&self) -> bool {
        self.watch.give_up()
    }
}

impl ShardWorker {
    /// The load that an order has begun. [`ShardWorker::finish_load`] has to follow, and nothing else may be called before.
    pub fn loading(&mut self) -> Option<Loading> {
        self.loading.take()
    }

    /// Begins to have the plan's layers in memory. What is held already is not read again, unless how values are stored
    /// changes.
    pub(super) fn begin_load(&mut self, plan: Plan, options: EngineOptions) {
        let Some((_, stage)) = plan.stage_of(self.setup.me) else { return };
        if !self.shared.wants(plan.hash()) {
            return; // another plan was ordered since
        }
        let same_kind = self
            .options
            .is_some_and(|held| (held.numerics, held.context, held.threads) == (options.numerics, options.context, options.threads));
        if let Some(engine) = self.engine.as_mut().filter(|engine| same_kind && engine.layers() == stage.layers) {
            engine.limit_kv_bytes(options.kv_bytes_max);
            self.options = Some(options);
            self.say(&plan, ShardState::Loaded);
            return self.say_wired();
        }
        self.stop_serving("its layers are being changed for a new plan");
        let watch = Watch {
            shared: self.shared.clone(),
            view: self.view.clone(),
            clock: self.setup.ports.clock.clone(),
            plan: plan.hash(),
            told_ms: AtomicU64::new(0),
            done_bytes: AtomicU64::new(0),
        };
        self.loading = Some(Loading { plan, layers: stage.layers, options, same_kind, watch });
    }

    /// Reads the layers and says how it went.
    pub fn finish_load(&mut self, loading: &Loading) {
        let plan = &loading.plan;
        let outcome = self.bring(loading);
        self.shared.holds(self.engine.as_ref().map_or(Layers::new(0, 0), |engine| engine.layers()));
        match outcome {
            Ok(()) => self.say(plan, ShardState::Loaded),
            Err(ModelError::GivenUp) if !self.shared.wants(plan.hash()) => {}
            Err(error) => {
                let retry = matches!(error, ModelError::Memory(_) | ModelError::System(_) | ModelError::GivenUp);
                self.say(plan, ShardState::Failed { why: error.to_string(), retry });
            }
        }
    }

    fn bring(&mut self, loading: &Loading) -> Result<(), ModelError> {
        let Loading { plan, layers, options, same_kind, watch } = loading;
        let (layers, options) = (*layers, *options);
        let outcome = match self.engine.as_mut().filter(|_| *same_kind) {
            Some(engine) => {
                engine.limit_kv_bytes(options.kv_bytes_max);
                guarded("reshaping", || engine.reshape(layers, watch)).unwrap_or_else(|why| Err(ModelError::Damaged(why)))
            }
            None => {
                let old = self.engine.take(); // first, since both may not fit
                let _ = guarded("dropping", || drop(old));
                let models = self.setup.ports.models.clone();
                let loaded = guarded("loading", || models.load(plan.model(), layers, options, watch));
                loaded.unwrap_or_else(|why| Err(ModelError::Damaged(why))).map(|engine| self.engine = Some(engine))
            }
        };
        self.options = Some(options);
        let read = watch.done_bytes.load(Ordering::Relaxed);
        self.shared.loaded_bytes.fetch_add(read, Ordering::Relaxed);
        // An engine that says it is done and holds something else would answer nonsense.
        match &self.engine {
            Some(engine) if outcome.is_ok() && engine.layers() != layers => {
                Err(ModelError::Damaged(format!("asked for layers {layers:?}, the engine holds {:?}", engine.layers())))
            }
            _ => outcome,
        }
    }
}

/// Passes a load's progress on, and tells it when it is not wanted any more.
struct Watch {
    shared: Arc<Shared>,
    view: Arc<watch::Sender<ShardView>>,
    clock: Arc<dyn Clock>,
    plan: PlanHash,
    told_ms: AtomicU64,
    done_bytes: AtomicU64,
}

impl Progress for Watch {
    fn loaded(&self, done_bytes: u64, all_bytes: u64) {
        self.done_bytes.fetch_max(done_bytes, Ordering::Relaxed);
        let now_ms = self.clock.now().0 / 1_000_000;
        let told_ms = self.told_ms.load(Ordering::Relaxed);
        if now_ms.saturating_sub(told_ms) < TELL_MS && told_ms > 0 {
            return;
        }
        self.told_ms.store(now_ms.max(1), Ordering::Relaxed);
        self.view.send_if_modified(|view| {
            let ours = view.plan.is_some_and(|(hash, _)| hash == self.plan) && matches!(view.state, ShardState::Loading { .. });
            if ours {
                view.state = ShardState::Loading { done_bytes, all_bytes };
            }
            ours
        });
    }

    fn give_up(&self) -> bool {
        !self.shared.wants(self.plan)
    }
}
