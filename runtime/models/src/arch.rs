//! Architectures as stacks of pieces: embedding, blocks, final norm with head. A stage holds any run of blocks, the
//! embedding if it has the first, the head if it has the last.
//!
//! Each architecture is one file that reads beside its paper. It says which tensors a block has ([`Part`]), builds a block
//! from them, and computes it. Fields keep the checkpoint's names. The cache is an argument.

mod ends;
mod llama;
mod load;
mod names;
mod qwen3;

use candle_core::{Result, Tensor};
use mesh_core::ports::ModelError;

use crate::attend::Span;
use crate::compute::Compute;
use crate::config::{Architecture, Config};
use crate::kv::KvCache;
use crate::rope::Rope;

pub(crate) use ends::{Head, divisors, embedding};
pub(crate) use load::{Loader, find, usable};
pub(crate) use names::{Place, tensor_name};

/// One layer of a model in memory.
pub(crate) trait Block: Send + Sync {
    /// Hidden states after this block from those before it; both (rows, hidden width).
    fn forward(&self, cx: &Compute, x: &Tensor, pass: &mut Pass<'_, '_>) -> Result<Tensor>;
}

/// What a forward pass carries from block to block.
pub(crate) struct Pass<'a, 'c> {
    /// The layer that is computed now: which part of the caches it appends to.
    pub(crate) layer: u16,
    /// Absolute position of each row.
    pub(crate) positions: &'a [u32],
    /// The rows of each stream.
    pub(crate) spans: &'a [Span],
    /// One for each span.
    pub(crate) caches: &'a mut [&'c mut KvCache],
    /// Turns queries and keys.
    pub(crate) rope: &'a Rope,
}

/// Tensors that belong together, by the name they have in checkpoints on the Hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// `name.weight` (rows, cols), and `name.bias` (rows) if there is one.
    Matrix { name: &'static str, rows: usize, cols: usize, bias: bool },
    /// `name.weight` (len).
    Vector { name: &'static str, len: usize },
}

impl Part {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Matrix { name, .. } | Self::Vector { name, .. } => name,
        }
    }

    /// The tensors: what follows the name, and shape.
    pub(crate) fn tensors(&self) -> Vec<(&'static str, Vec<u64>)> {
        match *self {
            Self::Vector { len, .. } => vec![("weight", vec![len as u64])],
            Self::Matrix { rows, cols, bias, .. } => {
                let mut tensors = vec![("weight", vec![rows as u64, cols as u64])];
                if bias {
                    tensors.push(("bias", vec![rows as u64]));
                }
                tensors
            }
        }
    }

    /// Floating-point operations for one token.
    pub(crate) fn flops(&self) -> u64 {
        match *self {
            Self::Vector { .. } => 0,
            Self::Matrix { rows, cols, .. } => 2 * rows as u64 * cols as u64,
        }
    }
}

/// The tensors of a block of this model.
pub(crate) fn block_parts(config: &Config) -> Vec<Part> {
    match config.architecture {
        Architecture::Llama => llama::parts(config),
        Architecture::Qwen3 => qwen3::parts(config),
    }
}

/// The embedding: held by the first stage, and by the last if the head is tied to it.
pub(crate) fn embedding_part(config: &Config) -> Part {
    Part::Matrix { name: "embed_tokens", rows: config.vocabulary, cols: config.hidden, bias: false }
}

/// What the last stage holds: the final norm and the head.
pub(crate) fn head_parts(config: &Config) -> [Part; 2] {
    let head = match config.tied {
        true => embedding_part(config),
        false => Part::Matrix { name: "lm_head", rows: config.vocabulary, cols: config.hidden, bias: false },
    };
    [Part::Vector { name: "norm", len: config.hidden }, head]
}

/// Loads one block.
pub(crate) fn load_block(loader: &mut Loader<'_>, config: &Config, layer: u16) -> std::result::Result<Box<dyn Block>, ModelError> {
    let mut from = loader.block(layer, block_parts(config));
    Ok(match config.architecture {
        Architecture::Llama => Box::new(llama::LlamaBlock::load(&mut from, config)?),
        Architecture::Qwen3 => Box::new(qwen3::Qwen3Block::load(&mut from, config, layer)?),
    })
}
