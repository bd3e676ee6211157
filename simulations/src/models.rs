//! The models that a machine can read, and what its engines do: counted, so that a weight that is read twice, or more memory
//! than there is, shows.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mesh_core::ids::{Digest, StreamId};
use mesh_core::model::{Contents, HeldModel, Layers, ModelSheet};
use mesh_core::ports::{CacheFull, Engine, EngineOptions, ModelError, Models, Progress, Sampled, Step, StepError};

use crate::ground::Ground;
use crate::happening::Happening;

/// One life's models.
pub struct WatchedModels {
    inner: Arc<dyn Models>,
    /// The model that the scenario is about.
    sheet: ModelSheet,
    memory: Arc<Memory>,
    failing_loads: Arc<AtomicU32>,
}

/// What one life has in memory.
pub struct Memory {
    ground: Arc<Ground>,
    place: usize,
    bytes_max: u64,
    engines: Mutex<Engines>,
}

#[derive(Default)]
struct Engines {
    held: BTreeMap<u64, (Layers, u64)>,
    drawn: u64,
    /// Layers that were dropped last, and when: to see whether the same are read again at once.
    dropped: Option<(Digest, Layers, u64)>,
}

impl WatchedModels {
    /// Reads through `inner`; memory is `bytes_max`. The first `failing_loads` loads of the machine fail.
    #[must_use]
    pub fn new(
        inner: Arc<dyn Models>,
        sheet: ModelSheet,
        ground: Arc<Ground>,
        place: usize,
        bytes_max: u64,
        failing_loads: Arc<AtomicU32>,
    ) -> Self {
        let memory = Arc::new(Memory { ground, place, bytes_max, engines: Mutex::default() });
        Self { inner, sheet, memory, failing_loads }
    }
}

impl Memory {
    fn engines(&self) -> MutexGuard<'_, Engines> {
        self.engines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, what: Happening) {
        self.ground.with(|inner| inner.net.note(what));
    }

    /// An engine holds this now.
    fn set(&self, id: u64, layers: Layers, bytes: u64) {
        let all: u64 = {
            let mut engines = self.engines();
            engines.held.insert(id, (layers, bytes));
            engines.held.values().map(|held| held.1).sum()
        };
        if all > self.bytes_max {
            let text = format!("weights and caches take {all} bytes, the node lends {}", self.bytes_max);
            self.note(Happening::Violated { check: "memory", text });
        }
    }
}

/// Counts what an engine says that it read.
struct Counted<'a> {
    progress: &'a dyn Progress,
    done: AtomicU64,
}

impl Progress for Counted<'_> {
    fn loaded(&self, done_bytes: u64, all_bytes: u64) {
        self.done.fetch_max(done_bytes, Ordering::Relaxed);
        self.progress.loaded(done_bytes, all_bytes);
    }
    fn give_up(&self) -> bool {
        self.progress.give_up()
    }
}

impl Models for WatchedModels {
    fn list(&self) -> Vec<HeldModel> {
        self.inner.list()
    }

    fn sheet(&self, name: &str) -> Result<ModelSheet, ModelError> {
        self.inner.sheet(name)
    }

    fn load(&self, digest: Digest, layers: Layers, options: EngineOptions, progress: &dyn Progress) -> Result<Box<dyn Engine>, ModelError> {
        let counted = Counted { progress, done: AtomicU64::new(0) };
        let fails = self.failing_loads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        let loaded = if fails {
            Err(ModelError::System("the disk reports an input/output error".to_owned()))
        } else {
            self.inner.load(digest, layers, options, &counted)
        };
        let bytes = counted.done.load(Ordering::Relaxed);
        let memory = &self.memory;
        let (id, again_bytes) = {
            let now = memory.ground.now_ns();
            let mut engines = memory.engines();
            engines.drawn += 1;
            // Dropped a moment ago to be read again at once.
            let again = engines.dropped.filter(|(of, _, at)| *of == digest && *at == now).map_or(0, |(_, dropped, _)| {
                let both = (layers.first..layers.end).filter(|layer| dropped.contains(*layer));
                both.map(|layer| self.sheet.layers.get(usize::from(layer)).map_or(0, |cost| cost.weight_bytes)).sum()
            });
            (engines.drawn, again)
        };
        let error = loaded.as_ref().err().map(ToString::to_string).unwrap_or_default();
        memory.note(Happening::Loaded { node: memory.place, first: layers.first, end: layers.end, bytes, again_bytes, error });
        let engine = loaded?;
        let watched = WatchedEngine { engine, digest, sheet: self.sheet.clone(), memory: memory.clone(), id, spoke: false };
        watched.weigh();
        Ok(Box::new(watched))
    }

    fn contents(&self, digest: Digest) -> Result<Option<Contents>, ModelError> {
        self.inner.contents(digest)
    }

    fn numerics_class(&self) -> u64 {
        self.inner.numerics_class()
    }
}

struct WatchedEngine {
    engine: Box<dyn Engine>,
    digest: Digest,
    sheet: ModelSheet,
    memory: Arc<Memory>,
    id: u64,
    spoke: bool,
}

impl WatchedEngine {
    fn weigh(&self) {
        let layers = self.engine.layers();
        self.memory.set(self.id, layers, self.sheet.weight_bytes(layers) + self.engine.kv_bytes());
    }
}

impl Engine for WatchedEngine {
    fn layers(&self) -> Layers {
        self.engine.layers()
    }

    fn reshape(&mut self, layers: Layers, progress: &dyn Progress) -> Result<(), ModelError> {
        let held = self.engine.layers();
        let counted = Counted { progress, done: AtomicU64::new(0) };
        let outcome = self.engine.reshape(layers, &counted);
        let bytes = counted.done.load(Ordering::Relaxed);
        let fresh = (layers.first..layers.end).filter(|layer| !held.contains(*layer));
        // Embedding and head come with the ends: what they weigh is allowed.
        let ends = if layers.first < held.first { self.sheet.embed_bytes } else { 0 }
            + if layers.end > held.end { self.sheet.head_bytes } else { 0 };
        let due: u64 = fresh.map(|layer| self.sheet.layers.get(usize::from(layer)).map_or(0, |cost| cost.weight_bytes)).sum::<u64>() + ends;
        let error = outcome.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let again_bytes = bytes.saturating_sub(due);
        self.memory.note(Happening::Loaded { node: self.memory.place, first: layers.first, end: layers.end, bytes, again_bytes, error });
        self.weigh();
        self.spoke = false;
        outcome
    }

    fn open(&mut self, stream: StreamId, keep: u32, positions_max: u32) -> Result<u32, CacheFull> {
        let opened = self.engine.open(stream, keep, positions_max);
        self.weigh();
        opened
    }

    fn close(&mut self, stream: StreamId) {
        self.engine.close(stream);
        self.weigh();
    }

    fn kv_bytes(&self) -> u64 {
        self.engine.kv_bytes()
    }

    fn limit_kv_bytes(&mut self, kv_bytes_max: u64) {
        self.engine.limit_kv_bytes(kv_bytes_max);
    }

    fn step(&mut self, step: Step<'_>) -> Result<Vec<Sampled>, StepError> {
        let outcome = self.engine.step(step);
        if !self.spoke && outcome.as_ref().is_ok_and(|sampled| !sampled.is_empty()) {
            self.spoke = true;
            self.memory.note(Happening::FirstToken { node: self.memory.place });
        }
        outcome
    }
}

impl Drop for WatchedEngine {
    fn drop(&mut self) {
        let layers = self.engine.layers();
        let now = self.memory.ground.now_ns();
        {
            let mut engines = self.memory.engines();
            engines.held.remove(&self.id);
            engines.dropped = Some((self.digest, layers, now));
        }
        self.memory.note(Happening::Dropped { node: self.memory.place, first: layers.first, end: layers.end });
    }
}
