//! The metadata of a GGUF file, with what only its list of tensors tells: vocabulary, tied head, biases.

use std::collections::BTreeMap;

use super::{Architecture, Biases, Config, LAYERS_MAX, SIZE_MAX};
use crate::files::gguf::Value;
use crate::files::{Fault, TensorEntry};
use crate::rope::{Pairing, RopeShape, Scaling};

impl Config {
    /// The configuration of a GGUF file. Frequency divisors (`rope_freqs.weight`) are tensors and come with them.
    ///
    /// # Errors
    /// As [`Config::from_hf`].
    pub fn from_gguf(metadata: &BTreeMap<String, Value>, tensors: &BTreeMap<String, TensorEntry>) -> Result<Self, Fault> {
        let name = metadata.get("general.architecture").and_then(Value::as_str);
        let architecture = Architecture::from_name(name.ok_or_else(|| Fault::damaged("it does not say its general.architecture"))?)?;
        let keys = Keys { metadata, prefix: architecture.name() };
        refuse_unknown(keys)?;
        let hidden = keys.need_size("embedding_length")?;
        let heads = keys.need_size("attention.head_count")?;
        let layers = u16::try_from(keys.need_size("block_count")?);
        let layers = layers.map_err(|_| Fault::Unsupported(format!("it has more than {LAYERS_MAX} layers")))?;
        let head_dim = head_dim(keys, hidden, heads)?;
        let context = keys.size("context_length")?.unwrap_or(2048) as u32;
        let embedding = tensors.get("token_embd.weight").ok_or_else(|| Fault::damaged("it has no tensor \"token_embd.weight\""))?;
        let vocabulary = embedding.shape.first().copied().unwrap_or(0);
        if vocabulary > SIZE_MAX {
            return Err(Fault::Damaged(format!("\"token_embd.weight\" has {vocabulary} rows, which is no vocabulary")));
        }
        let has = |name: &str| tensors.contains_key(name);
        if let Some(name) = ["rope_factors_long.weight", "rope_factors_short.weight"].into_iter().find(|name| has(name)) {
            return Err(Fault::Unsupported(format!(
                "the tensor {name:?} stretches rope in a way that this version does not know (longrope)"
            )));
        }
        Self {
            architecture,
            layers,
            hidden,
            intermediate: keys.need_size("feed_forward_length")?,
            heads,
            kv_heads: keys.size("attention.head_count_kv")?.unwrap_or(heads),
            head_dim,
            vocabulary: vocabulary as usize,
            context,
            eps: keys.number("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-6) as f32,
            rope: rope(keys, architecture, head_dim, context)?,
            tied: !has("output.weight"),
            biases: Biases { qkv: has("blk.0.attn_q.bias"), out: has("blk.0.attn_output.bias"), mlp: has("blk.0.ffn_gate.bias") },
            windows: vec![None; layers.into()],
            end_ids: end_ids(metadata),
        }
        .checked()
    }
}

/// Metadata of the architecture.
#[derive(Clone, Copy)]
struct Keys<'a> {
    metadata: &'a BTreeMap<String, Value>,
    prefix: &'static str,
}

impl<'a> Keys<'a> {
    fn get(self, key: &str) -> Option<&'a Value> {
        self.metadata.get(&format!("{}.{key}", self.prefix))
    }

    /// A whole number from 1 on. A list (one for each layer) must have the same everywhere.
    fn size(self, key: &str) -> Result<Option<usize>, Fault> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let value = match value.as_array() {
            None => value,
            Some([first, rest @ ..]) if rest.iter().all(|other| other == first) => first,
            Some(_) => {
                return Err(Fault::Unsupported(format!(
                    "{}.{key} differs from layer to layer, which this version does not know",
                    self.prefix
                )));
            }
        };
        match value.as_u64().filter(|size| (1..=SIZE_MAX).contains(size)) {
            Some(size) => Ok(Some(size as usize)),
            None => Err(Fault::Damaged(format!("{}.{key} should be a whole number above 0 and is {value:?}", self.prefix))),
        }
    }

    fn need_size(self, key: &str) -> Result<usize, Fault> {
        self.size(key)?.ok_or_else(|| Fault::Damaged(format!("its metadata has no {}.{key}", self.prefix)))
    }

    /// A finite number.
    fn number(self, key: &str) -> Result<Option<f64>, Fault> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = value.as_f64().filter(|number| number.is_finite());
        number.map(Some).ok_or_else(|| Fault::Damaged(format!("{}.{key} should be a number and is {value:?}", self.prefix)))
    }
}

/// Settings that change the numbers in ways that nothing here computes.
fn refuse_unknown(keys: Keys<'_>) -> Result<(), Fault> {
    for key in ["expert_count", "attention.sliding_window", "attention.scale", "logit_scale", "residual_scale", "embedding_scale"] {
        let set = keys.number(key).ok().flatten().filter(|number| *number != 0.0);
        if let Some(number) = set {
            return Err(Fault::Unsupported(format!(
                "{}.{key} is {number}, which this version does not know for the architecture {:?}",
                keys.prefix, keys.prefix
            )));
        }
    }
    Ok(())
}

fn head_dim(keys: Keys<'_>, hidden: usize, heads: usize) -> Result<usize, Fault> {
    let key = keys.size("attention.key_length")?;
    let value = keys.size("attention.value_length")?;
    if let (Some(key), Some(value)) = (key, value)
        && key != value
    {
        return Err(Fault::Unsupported(format!("keys of {key} values and values of {value} are not known to this version")));
    }
    match key.or(value) {
        Some(dim) => Ok(dim),
        None if hidden.is_multiple_of(heads) => Ok(hidden / heads),
        None => Err(Fault::Damaged(format!("a width of {hidden} cannot be split over {heads} heads"))),
    }
}

fn rope(keys: Keys<'_>, architecture: Architecture, head_dim: usize, context: u32) -> Result<RopeShape, Fault> {
    let factor = keys.number("rope.scaling.factor")?.unwrap_or(0.0);
    let scaling = match keys.get("rope.scaling.type").and_then(Value::as_str) {
        Some("none") => Scaling::None,
        Some("linear") if factor > 0.0 => Scaling::Linear { factor },
        Some("linear") => return Err(Fault::Damaged(format!("{}.rope.scaling.factor is {factor}", keys.prefix))),
        Some(other) => {
            return Err(Fault::Unsupported(format!(
                "the rope scaling type {other:?} ({}.rope.scaling.type) is not known to this version. Known are: none, linear, and the tensor rope_freqs.weight",
                keys.prefix
            )));
        }
        None => match keys.number("rope.scale_linear")? {
            Some(factor) if factor > 0.0 && factor != 1.0 => Scaling::Linear { factor },
            _ => Scaling::None,
        },
    };
    let base = keys.number("rope.freq_base")?.unwrap_or(10_000.0);
    if base <= 0.0 {
        return Err(Fault::Damaged(format!("{}.rope.freq_base is {base}", keys.prefix)));
    }
    // Conversion to GGUF permutes the query and key rows of llama, and of no other architecture here.
    let pairing = match architecture {
        Architecture::Llama => Pairing::Interleaved,
        Architecture::Qwen3 => Pairing::Halves,
    };
    Ok(RopeShape { dims: keys.size("rope.dimension_count")?.unwrap_or(head_dim), base, scaling, divisors: None, pairing, context })
}

fn end_ids(metadata: &BTreeMap<String, Value>) -> Vec<u32> {
    let keys = ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];
    let mut ids: Vec<u32> = keys.iter().filter_map(|key| u32::try_from(metadata.get(*key)?.as_u64()?).ok()).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}
