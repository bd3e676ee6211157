//! The caches of all streams under one budget. A stream's greatest length is reserved when it opens, so that it cannot
//! run out of memory later; memory itself is taken as it grows.

use std::collections::BTreeMap;

use candle_core::Device;
use mesh_core::ids::StreamId;
use mesh_core::model::Layers;
use mesh_core::plan::KvType;
use mesh_core::ports::{CacheFull, EngineOptions, StepRow};

use crate::config::Config;
use crate::kv::KvCache;

/// One stream's cache.
pub(super) struct Held {
    stream: StreamId,
    pub(super) cache: KvCache,
    /// What is reserved for it.
    positions_max: u32,
}

/// All streams' caches.
pub(super) struct Caches {
    held: BTreeMap<StreamId, Held>,
    layers: Layers,
    kv_heads: usize,
    head_dim: usize,
    kind: KvType,
    device: Device,
    context: u32,
    bytes_max: u64,
}

impl Caches {
    pub(super) fn new(config: &Config, options: EngineOptions, device: Device) -> Self {
        Self {
            held: BTreeMap::new(),
            layers: Layers::new(0, 0),
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            kind: options.numerics.kv,
            device,
            context: options.context,
            bytes_max: options.kv_bytes_max,
        }
    }

    /// Caches for `layers` from now on. Those that stay keep what they have.
    pub(super) fn reshape(&mut self, layers: Layers) {
        self.layers = layers;
        for held in self.held.values_mut() {
            held.cache.reshape(layers, &self.device);
        }
    }

    /// See [`mesh_core::ports::Engine::open`]. A stream that is there and cannot have more keeps what it has.
    pub(super) fn open(&mut self, stream: StreamId, keep: u32, positions_max: u32) -> Result<u32, CacheFull> {
        let positions_max = positions_max.min(self.context);
        let others = self.held.values().filter(|held| held.stream != stream);
        let reserved = others.fold(0_u64, |sum, held| sum.saturating_add(self.cost(held.positions_max)));
        let (need_bytes, free_bytes) = (self.cost(positions_max), self.bytes_max.saturating_sub(reserved));
        if need_bytes > free_bytes {
            return Err(CacheFull { need_bytes, free_bytes });
        }
        let fresh = || Held {
            stream,
            cache: KvCache::on_device(self.layers, self.kv_heads, self.head_dim, self.kind, &self.device),
            positions_max,
        };
        let held = self.held.entry(stream).or_insert_with(fresh);
        held.positions_max = positions_max;
        let kept = keep.min(held.cache.positions()).min(positions_max);
        held.cache.truncate(kept);
        Ok(kept)
    }

    pub(super) fn close(&mut self, stream: StreamId) {
        self.held.remove(&stream);
    }

    pub(super) fn bytes(&self) -> u64 {
        self.held.values().map(|held| held.cache.bytes()).sum()
    }

    pub(super) fn limit(&mut self, bytes_max: u64) {
        self.bytes_max = bytes_max;
    }

    /// Takes the caches of these rows out, each of which must hold exactly the positions before its row. All or none.
    pub(super) fn take(&mut self, rows: &[StepRow<'_>]) -> Result<Vec<Held>, String> {
        let mut taken = Vec::with_capacity(rows.len());
        for row in rows {
            let Some(held) = self.held.remove(&row.stream) else {
                self.put_back(taken);
                return Err(format!("stream {:?} is not open, or appears twice in one step", row.stream));
            };
            let positions = held.cache.positions();
            let fits = row.first.checked_add(row.count).is_some_and(|end| end <= held.positions_max);
            let problem = match (positions == row.first, fits) {
                (true, true) => None,
                (false, _) => Some(format!("position {} of {:?}, but its cache has {positions}", row.first, row.stream)),
                (_, false) => Some(format!(
                    "{:?} was opened for {} positions, not {}",
                    row.stream,
                    held.positions_max,
                    u64::from(row.first) + u64::from(row.count)
                )),
            };
            taken.push(held);
            if let Some(problem) = problem {
                self.put_back(taken);
                return Err(problem);
            }
        }
        Ok(taken)
    }

    pub(super) fn put_back(&mut self, held: Vec<Held>) {
        self.held.extend(held.into_iter().map(|held| (held.stream, held)));
    }

    /// Bytes reserved for so many positions. Memory comes by slabs, so a short stream costs a whole one. A stream of the
    /// full context is reckoned exactly, as the planner does, and may take up to a slab more in each layer.
    fn cost(&self, positions_max: u32) -> u64 {
        let layers = self.layers.count();
        let slabs = KvCache::bytes_at(layers, self.kv_heads, self.head_dim, self.kind, positions_max);
        let element = match self.kind {
            KvType::F32 => 4,
            KvType::F16 => 2,
        };
        let position = 2 * self.kv_heads as u64 * self.head_dim as u64 * element;
        slabs.min(position.saturating_mul(u64::from(layers)).saturating_mul(u64::from(self.context)))
    }
}
