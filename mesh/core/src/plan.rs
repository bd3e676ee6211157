//! Which node holds which layers.

use serde::{Deserialize, Serialize};

use crate::ids::{Digest, NodeId, PlanHash};
use crate::model::{Layers, ModelSheet};

/// A shard's place in the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Stage {
    /// The node that holds the layers.
    pub node: NodeId,
    /// The layers.
    pub layers: Layers,
}

/// How values are stored and rounded: fields of a plan, because they change the numbers (N2, N3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Numerics {
    /// Element type of keys and values in the cache.
    pub kv: KvType,
}

/// Element type of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvType {
    /// 32-bit floats: exact against the reference.
    F32,
    /// 16-bit floats: half the memory and traffic.
    F16,
}

impl Default for Numerics {
    fn default() -> Self {
        Self { kv: KvType::F32 }
    }
}

/// One chain of stages that together hold every layer of a model exactly once.
///
/// Invariant: stages cover `0..layer_count` in order without gap or overlap, and no node appears twice.
/// [`Plan::new`] is the only place that could break it, and the place that checks it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    model: Digest,
    stages: Vec<Stage>,
    context: u32,
    streams: u16,
    numerics: Numerics,
    hash: PlanHash,
}

/// Why a list of stages is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// No stage, an empty one, or a gap or overlap before this layer.
    #[error("the stages do not cover each layer once: wrong at layer {layer} of {layers}")]
    Layers {
        /// First layer that is covered twice or not at all.
        layer: u16,
        /// Layers of the model.
        layers: u16,
    },
    /// A node holds two stages.
    #[error("{0:?} appears in two stages of one plan")]
    NodeTwice(NodeId),
}

impl Plan {
    /// A plan for `sheet`, checked.
    ///
    /// # Errors
    /// Stages that do not cover each layer exactly once, or name a node twice.
    pub fn new(sheet: &ModelSheet, stages: Vec<Stage>, context: u32, streams: u16, numerics: Numerics) -> Result<Self, PlanError> {
        let layers = sheet.layer_count();
        let mut next = 0;
        for (index, stage) in stages.iter().enumerate() {
            if stage.layers.first != next || stage.layers.end <= next || stage.layers.end > layers {
                return Err(PlanError::Layers { layer: next, layers });
            }
            if stages[..index].iter().any(|earlier| earlier.node == stage.node) {
                return Err(PlanError::NodeTwice(stage.node));
            }
            next = stage.layers.end;
        }
        if next != layers || stages.is_empty() {
            return Err(PlanError::Layers { layer: next, layers });
        }
        let hash = hash_of(&sheet.digest, &stages, context, streams, numerics);
        Ok(Self { model: sheet.digest, stages, context, streams, numerics, hash })
    }

    /// Hash of the contents: the plan's identity on every wire (R1).
    #[must_use]
    pub fn hash(&self) -> PlanHash {
        self.hash
    }
    /// The stages, first to last.
    #[must_use]
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }
    /// Digest of the model that is planned for.
    #[must_use]
    pub fn model(&self) -> Digest {
        self.model
    }
    /// Tokens that one stream may have, prompt included.
    #[must_use]
    pub fn context(&self) -> u32 {
        self.context
    }
    /// Streams of full context that memory was planned for.
    #[must_use]
    pub fn streams(&self) -> u16 {
        self.streams
    }
    /// How values are stored and rounded.
    #[must_use]
    pub fn numerics(&self) -> Numerics {
        self.numerics
    }
    /// The stage that `node` holds, and its index.
    #[must_use]
    pub fn stage_of(&self, node: NodeId) -> Option<(usize, Stage)> {
        self.stages.iter().position(|stage| stage.node == node).map(|index| (index, self.stages[index]))
    }
    /// The node of the first stage.
    #[must_use]
    pub fn first_node(&self) -> NodeId {
        self.stages[0].node
    }
    /// The node of the last stage, which samples.
    #[must_use]
    pub fn last_node(&self) -> NodeId {
        self.stages[self.stages.len() - 1].node
    }
    /// Whether the received hash is that of the received contents, and the stages form a chain over `sheet`.
    /// A plan from the wire is used only after this.
    #[must_use]
    pub fn is_sound(&self, sheet: &ModelSheet) -> bool {
        Self::new(sheet, self.stages.clone(), self.context, self.streams, self.numerics).is_ok_and(|again| again == *self)
    }
}

/// xxh3 over a fixed little-endian layout, so that it is the same on every machine and release.
fn hash_of(model: &Digest, stages: &[Stage], context: u32, streams: u16, numerics: Numerics) -> PlanHash {
    let mut bytes = Vec::with_capacity(64 + stages.len() * 36);
    bytes.extend_from_slice(&model.0);
    bytes.extend_from_slice(&context.to_le_bytes());
    bytes.extend_from_slice(&streams.to_le_bytes());
    bytes.push(match numerics.kv {
        KvType::F32 => 0,
        KvType::F16 => 1,
    });
    for stage in stages {
        bytes.extend_from_slice(&stage.node.0);
        bytes.extend_from_slice(&stage.layers.first.to_le_bytes());
        bytes.extend_from_slice(&stage.layers.end.to_le_bytes());
    }
    PlanHash(xxhash_rust::xxh3::xxh3_64(&bytes))
}
