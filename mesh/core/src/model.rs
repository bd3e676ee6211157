//! What the planner must know of a model: names, sizes and costs by layer, and no weights.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::ids::Digest;

/// Layers `first..end`, half-open. Never empty in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Layers {
    /// The first layer.
    pub first: u16,
    /// One past the last layer.
    pub end: u16,
}

impl Layers {
    /// Layers `first..end`.
    #[must_use]
    pub const fn new(first: u16, end: u16) -> Self {
        Self { first, end }
    }
    /// How many layers.
    #[must_use]
    pub const fn count(self) -> u16 {
        self.end.saturating_sub(self.first)
    }
    /// As indices into a layer table.
    #[must_use]
    pub const fn indices(self) -> Range<usize> {
        self.first as usize..self.end as usize
    }
    /// Whether `layer` is one of these.
    #[must_use]
    pub const fn contains(self, layer: u16) -> bool {
        self.first <= layer && layer < self.end
    }
}

/// What one layer costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerCost {
    /// Bytes of its weights as stored on disk, which is what they take in memory.
    pub weight_bytes: u64,
    /// Floating-point operations for one token (2 per weight of every matrix that it meets).
    pub flops: u64,
    /// Bytes that its cache grows by for each position.
    pub kv_bytes: u32,
}

/// A model's table of contents: everything a node can say about it from headers and sizes alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelSheet {
    /// The name as users write it: `builtin:story`, or the directory's or file's name without `.gguf`.
    pub name: String,
    /// blake3 over headers, sizes and a few bytes of each tensor: two nodes with the same digest hold the same weights, and not
    /// a fine-tune of them. Tokenizer and template are not part of it.
    pub digest: Digest,
    /// `llama`, `qwen3`.
    pub architecture: String,
    /// How the weights are stored, for people: `bf16`, `Q4_K_M`.
    pub storage: String,
    /// Every layer's cost, first to last.
    pub layers: Vec<LayerCost>,
    /// Bytes of the embedding, held by the first stage.
    pub embed_bytes: u64,
    /// Bytes of final norm and head, held by the last stage. Equals the embedding's where the head is tied:
    /// a last stage that is not also the first holds its own copy.
    pub head_bytes: u64,
    /// FLOPs of the head for one token.
    pub head_flops: u64,
    /// Whether the head is the embedding (one copy where one stage is both first and last).
    pub tied: bool,
    /// Width of the hidden state, in values.
    pub hidden_width: u32,
    /// Number of token ids.
    pub vocabulary: u32,
    /// Longest sequence the model was made for, in tokens.
    pub context_max: u32,
}

impl ModelSheet {
    /// Number of layers.
    #[must_use]
    pub fn layer_count(&self) -> u16 {
        u16::try_from(self.layers.len()).expect("loaders refuse more than 65,535 layers")
    }

    /// Bytes of weights that a stage with `layers` holds, embedding and head included where they belong.
    #[must_use]
    pub fn weight_bytes(&self, layers: Layers) -> u64 {
        let first = layers.first == 0;
        let last = layers.end == self.layer_count();
        let blocks: u64 = self.layers[layers.indices()].iter().map(|layer| layer.weight_bytes).sum();
        let embed = if first { self.embed_bytes } else { 0 };
        let head = match (last, first && self.tied) {
            (false, _) | (true, true) => 0,
            (true, false) => self.head_bytes,
        };
        blocks + embed + head
    }

    /// Bytes of cache that `layers` need for `positions` positions.
    #[must_use]
    pub fn kv_bytes(&self, layers: Layers, positions: u64) -> u64 {
        self.layers[layers.indices()].iter().map(|layer| u64::from(layer.kv_bytes) * positions).sum()
    }
}

/// A model found on a node's disk (or inside its binary).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldModel {
    /// [`ModelSheet::name`].
    pub name: String,
    /// [`ModelSheet::digest`].
    pub digest: Digest,
    /// Which of the model's layers its files cover; embedding and head count with the first and last layer.
    pub layers: Layers,
}
