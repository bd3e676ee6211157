//! How many bytes a stage takes, and how many a node has for it.
//!
//! memory = (weights + KV of all streams + activations + journals) × 1.10 + 150 MB, the budget of DESIGN section 15.
//! "Net" below means before headroom and base; the search compares net bytes, people are shown the whole.

use crate::model::{Layers, ModelSheet};
use crate::plan::{KvType, Numerics};

use super::{LAYERS_MAX, PlanNode};

/// Headroom on everything a stage holds, in percent.
pub const HEADROOM_PERCENT: u64 = 10;
/// What a process needs besides: code, queues, tokenizer, allocator (150 MB, DESIGN section 15).
pub const BASE_BYTES: u64 = 150_000_000;

/// Positions of one step: the shard thread's token budget.
const STEP_POSITIONS: u64 = 256;
/// Buffers of one step, in multiples of (positions, hidden width): input, normed, q, k, v, scores, gate, up, down (guess).
const STEP_BUFFERS: u64 = 16;
/// Slots of a lane, and lanes of a stage.
const LANE_SLOTS: u64 = 2 * 8;
/// Rows of logits that the last stage may hold at once.
const LOGIT_ROWS: u64 = 16;
/// A byte count above this is no model (256 TiB): keeps every sum below within 64 bits.
const BYTES_MAX: u64 = 1 << 48;

/// Whether a sheet's numbers can be added up at all: sheets come from the wire.
pub(super) fn sound(sheet: &ModelSheet) -> Result<(), String> {
    let sane = |bytes: u64| bytes <= BYTES_MAX;
    if sheet.layers.is_empty() || sheet.layers.len() > LAYERS_MAX {
        return Err(format!("{} has {} layers: 1 to {LAYERS_MAX} can be planned for", sheet.name, sheet.layers.len()));
    }
    let layers_sane = sheet.layers.iter().all(|layer| sane(layer.weight_bytes) && sane(layer.flops));
    if !(layers_sane && sane(sheet.embed_bytes) && sane(sheet.head_bytes) && sane(sheet.head_flops) && sheet.context_max > 0) {
        return Err(format!("the sheet of {} makes no sense: look at its files", sheet.name));
    }
    Ok(())
}

/// Bytes that a stage with `layers` takes on its node: weights as on disk, caches of `streams` streams of `context`
/// tokens, activations, journals, headroom and base.
#[must_use]
pub fn stage_bytes(sheet: &ModelSheet, layers: Layers, context: u32, streams: u16, numerics: Numerics) -> u64 {
    if sound(sheet).is_err() || layers.count() == 0 || layers.end > sheet.layer_count() {
        return 0;
    }
    let net = Sizes::new(sheet, streams, numerics).net_bytes(layers.first.into(), layers.end.into(), context);
    lends_at_least(net)
}

/// Bytes that a node must lend so that `net` bytes of weights, caches, activations and journals have their headroom.
#[must_use]
pub fn lends_at_least(net: u64) -> u64 {
    let headroom = u128::from(net) * u128::from(HEADROOM_PERCENT) / 100;
    net.saturating_add(u64::try_from(headroom).unwrap_or(u64::MAX)).saturating_add(BASE_BYTES)
}

/// The net bytes that a node has for this model: [`lends_at_least`] of it is never more than what it lends.
pub(super) fn net_budget(node: &PlanNode) -> u64 {
    let free = node.capacity.memory_bytes.saturating_sub(node.taken_bytes).saturating_sub(BASE_BYTES);
    u64::try_from(u128::from(free) * 100 / u128::from(100 + HEADROOM_PERCENT)).unwrap_or(u64::MAX)
}

/// A model's sizes as running sums, so that any range of layers is one subtraction.
pub(super) struct Sizes {
    pub layers: usize,
    pub streams: u64,
    /// Weights of layers `0..i`.
    weights: Vec<u64>,
    /// Cache bytes of one position in layers `0..i`.
    kv: Vec<u64>,
    /// Floating-point operations of one token in layers `0..i`, and in the head.
    flops: Vec<u64>,
    head_flops: u64,
    embed: u64,
    head: u64,
    tied: bool,
    /// Activations of any stage, and of the last one besides.
    activations: u64,
    logits: u64,
}

impl Sizes {
    pub fn new(sheet: &ModelSheet, streams: u16, numerics: Numerics) -> Self {
        let (mut weights, mut kv, mut flops) = (vec![0_u64], vec![0_u64], vec![0_u64]);
        for layer in &sheet.layers {
            // Sheets state the cache in f32; half the width is half the bytes.
            let kv_bytes = match numerics.kv {
                KvType::F32 => layer.kv_bytes,
                KvType::F16 => layer.kv_bytes.div_ceil(2),
            };
            weights.push(weights[weights.len() - 1].saturating_add(layer.weight_bytes));
            flops.push(flops[flops.len() - 1].saturating_add(layer.flops));
            kv.push(kv[kv.len() - 1].saturating_add(u64::from(kv_bytes)));
        }
        let row = u64::from(sheet.hidden_width) * 4;
        let slot = (64 * row).clamp(128 << 10, 8 << 20);
        let activations = (STEP_POSITIONS * STEP_BUFFERS).saturating_mul(row).saturating_add(LANE_SLOTS * slot);
        Self {
            layers: sheet.layers.len(),
            streams: streams.into(),
            weights,
            kv,
            flops,
            head_flops: sheet.head_flops,
            embed: sheet.embed_bytes,
            head: sheet.head_bytes,
            tied: sheet.tied,
            activations,
            logits: LOGIT_ROWS * u64::from(sheet.vocabulary) * 4,
        }
    }

    /// Weights of layers `first..end`, embedding and head where they belong.
    pub fn weight_bytes(&self, first: usize, end: usize) -> u64 {
        let blocks = self.weights[end] - self.weights[first];
        let embed = if first == 0 { self.embed } else { 0 };
        let head = if end == self.layers && !(first == 0 && self.tied) { self.head } else { 0 };
        blocks.saturating_add(embed).saturating_add(head)
    }

    /// Floating-point operations of one token in layers `first..end`, the head's included where it belongs.
    pub fn flops(&self, first: usize, end: usize) -> u64 {
        self.flops[end] - self.flops[first] + if end == self.layers { self.head_flops } else { 0 }
    }

    /// Bytes that one more token of context costs in layers `first..end`, over all streams, its id included.
    fn bytes_a_token(&self, first: usize, end: usize) -> u64 {
        (self.kv[end] - self.kv[first]).saturating_add(4).saturating_mul(self.streams)
    }

    /// Weights, caches, activations and journals of layers `first..end`.
    pub fn net_bytes(&self, first: usize, end: usize, context: u32) -> u64 {
        self.fixed_bytes(first, end).saturating_add(self.bytes_a_token(first, end).saturating_mul(context.into()))
    }

    /// Weights and caches: what a stage has more of, the more layers it holds.
    pub fn share_bytes(&self, first: usize, end: usize, context: u32) -> u64 {
        self.weight_bytes(first, end).saturating_add(self.bytes_a_token(first, end).saturating_mul(context.into()))
    }

    fn fixed_bytes(&self, first: usize, end: usize) -> u64 {
        let logits = if end == self.layers { self.logits } else { 0 };
        self.weight_bytes(first, end).saturating_add(self.activations).saturating_add(logits)
    }

    /// The longest context up to `top` with which `layers` take at most `net` bytes; 0 if not even one token.
    pub fn context_within(&self, layers: Layers, net: u64, top: u32) -> u32 {
        let (first, end) = (layers.first.into(), layers.end.into());
        let room = net.saturating_sub(self.fixed_bytes(first, end)) / self.bytes_a_token(first, end).max(1);
        if net < self.fixed_bytes(first, end) { 0 } else { u32::try_from(room).unwrap_or(u32::MAX).min(top) }
    }
}
