//! What a model is made of: sizes, rope, biases, as its `config.json` or its GGUF metadata say.
//!
//! Both spellings of `config.json` are read: that of files on the Hub (`rope_theta`, `rope_scaling`) and that of
//! transformers 5 (`rope_parameters`). What we do not know is refused by name: a setting that is passed over gives fluent
//! nonsense. `null` always means "not set".

mod fields;
mod gguf;
mod hf;

use crate::rope::{Pairing, RopeShape, Scaling};

use crate::files::Fault;

/// A family of models that share one forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Architecture {
    /// Llama 1 to 3 and the many that copied it.
    Llama,
    /// Qwen3, dense.
    Qwen3,
}

impl Architecture {
    /// All that this version knows.
    pub const ALL: [Self; 2] = [Self::Llama, Self::Qwen3];

    /// As `model_type` and `general.architecture` have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen3 => "qwen3",
        }
    }

    fn from_name(name: &str) -> Result<Self, Fault> {
        let known = Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|architecture| architecture.name() == name);
        found.ok_or_else(|| Fault::Unsupported(format!("the architecture {name:?} is not known to this version. Known are: {known}")))
    }
}

/// A model's sizes and settings, checked against each other. Tensors are checked against them later.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which forward pass.
    pub architecture: Architecture,
    /// Number of blocks; at least one.
    pub layers: u16,
    /// Width of the hidden state.
    pub hidden: usize,
    /// Width inside the feed-forward part.
    pub intermediate: usize,
    /// Query heads; a multiple of `kv_heads`.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Values of a head.
    pub head_dim: usize,
    /// Number of token ids; may be more than the tokenizer knows.
    pub vocabulary: usize,
    /// Longest sequence the model was made for.
    pub context: u32,
    /// Of the norms.
    pub eps: f32,
    /// The rotary embedding; `context` in it is the model's.
    pub rope: RopeShape,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// Which matrices have a bias.
    pub biases: Biases,
    /// For each layer how far back a position sees; everything if `None`.
    pub windows: Vec<Option<u32>>,
    /// Tokens that end a generation, by the model's own configuration: sorted, each once. The tokenizer may know more.
    pub end_ids: Vec<u32>,
}

/// Which matrices have a bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Biases {
    /// Those that make queries, keys and values.
    pub qkv: bool,
    /// The one behind attention.
    pub out: bool,
    /// The three of the feed-forward part.
    pub mlp: bool,
}

/// Sizes beyond these are no model of today or tomorrow, but keep every product far inside 64 bits.
const SIZE_MAX: u64 = 1 << 24;
/// Layers are numbered in 16 bits.
const LAYERS_MAX: u64 = u16::MAX as u64;

impl Config {
    /// Checks what the parts of a configuration say about each other.
    fn checked(self) -> Result<Self, Fault> {
        let damaged = |cause: String| Err(Fault::Damaged(cause));
        let (heads, kv_heads, dim) = (self.heads, self.kv_heads, self.head_dim);
        if !heads.is_multiple_of(kv_heads) {
            return damaged(format!("{heads} attention heads cannot share {kv_heads} heads of keys and values evenly"));
        }
        if self.rope.dims > dim || !dim.is_multiple_of(2) || !self.rope.dims.is_multiple_of(2) || self.rope.dims == 0 {
            return damaged(format!("heads of {dim} values cannot be turned in {} of them", self.rope.dims));
        }
        if !(self.eps.is_finite() && self.eps >= 0.0) {
            return damaged(format!("the norms' epsilon is {}", self.eps));
        }
        if self.windows.contains(&Some(0)) {
            return damaged("a sliding window of 0 positions sees nothing".into());
        }
        Ok(self)
    }

    /// Feeds everything that changes the numbers to a hash, in a fixed layout.
    pub(crate) fn digest(&self, hash: &mut blake3::Hasher) {
        let sizes = [self.layers as usize, self.hidden, self.intermediate, self.heads, self.kv_heads, self.head_dim, self.vocabulary];
        hash.update(self.architecture.name().as_bytes());
        for size in sizes.into_iter().chain([self.context as usize, self.rope.dims]) {
            hash.update(&(size as u64).to_le_bytes());
        }
        hash.update(&self.eps.to_le_bytes());
        let flags = [self.tied, self.biases.qkv, self.biases.out, self.biases.mlp, self.rope.pairing == Pairing::Interleaved];
        hash.update(&flags.map(u8::from));
        let (kind, numbers) = match self.rope.scaling {
            Scaling::None => (0, [0.0; 4]),
            Scaling::Linear { factor } => (1, [factor, 0.0, 0.0, 0.0]),
            Scaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                (2, [factor, low_freq_factor, high_freq_factor, original_context])
            }
        };
        hash.update(&[kind]);
        for number in [self.rope.base].into_iter().chain(numbers) {
            hash.update(&number.to_le_bytes());
        }
        for window in &self.windows {
            hash.update(&window.unwrap_or(0).to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests;
