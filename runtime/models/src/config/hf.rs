//! `config.json` and `generation_config.json` of a Hugging Face directory.

use serde_json::Value;

use super::fields::Fields;
use super::{Architecture, Biases, Config, LAYERS_MAX};
use crate::files::Fault;
use crate::rope::{Pairing, RopeShape, Scaling};

impl Config {
    /// The configuration of a Hugging Face directory, in either spelling. `generation` is `Null` if there is no such file.
    ///
    /// # Errors
    /// Fields that are missing or contradict each other, or ask for something that this version does not know: by name.
    pub fn from_hf(config: &Value, generation: &Value) -> Result<Self, Fault> {
        let fields = Fields::new(config, "config.json");
        let architecture = Architecture::from_name(fields.text("model_type")?.ok_or_else(|| fields.missing("model_type"))?)?;
        refuse_unknown(fields)?;
        let hidden = fields.need_size("hidden_size")?;
        let heads = fields.need_size("num_attention_heads")?;
        let head_dim = match fields.size("head_dim")? {
            Some(dim) => dim,
            // What Qwen3Config says; llama has always divided.
            None if architecture == Architecture::Qwen3 => 128,
            None if hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                return Err(Fault::Damaged(format!(
                    "a width of {hidden} cannot be split over {heads} heads, and config.json has no \"head_dim\""
                )));
            }
        };
        let layers = u16::try_from(fields.need_size("num_hidden_layers")?);
        let layers = layers.map_err(|_| Fault::Unsupported(format!("it has more than {LAYERS_MAX} layers")))?;
        let context = fields.size("max_position_embeddings")?.unwrap_or(2048) as u32;
        Self {
            architecture,
            layers,
            hidden,
            intermediate: fields.need_size("intermediate_size")?,
            heads,
            kv_heads: fields.size("num_key_value_heads")?.unwrap_or(heads),
            head_dim,
            vocabulary: fields.need_size("vocab_size")?,
            context,
            eps: fields.number("rms_norm_eps")?.unwrap_or(1e-6) as f32,
            rope: rope(fields, head_dim, context)?,
            tied: fields.flag("tie_word_embeddings")?.unwrap_or(false),
            biases: biases(fields, architecture)?,
            windows: windows(fields, architecture, layers)?,
            end_ids: end_ids(fields, Fields::new(generation, "generation_config.json")),
        }
        .checked()
    }
}

/// Settings that change the numbers in ways that nothing here computes.
fn refuse_unknown(fields: Fields<'_>) -> Result<(), Fault> {
    for key in ["quantization_config", "quantization"] {
        if let Some(how) = fields.inner(key)? {
            let method = how.text("quant_method").ok().flatten().or(how.text("mode").ok().flatten()).unwrap_or("unnamed");
            return Err(Fault::Unsupported(format!(
                "its weights are quantised by the method {method:?} ({key} in config.json), which this version cannot read. Use the model in bf16, f16 or f32, or as a GGUF file"
            )));
        }
    }
    match fields.text("hidden_act")? {
        None | Some("silu" | "swish") => {}
        Some(other) => return Err(Fault::Unsupported(format!("\"hidden_act\" in config.json is {other:?}; only \"silu\" is known"))),
    }
    match fields.number("partial_rotary_factor")? {
        None => Ok(()),
        Some(1.0) => Ok(()),
        Some(other) => Err(Fault::Unsupported(format!("\"partial_rotary_factor\" in config.json is {other}; only 1 is known"))),
    }
}

fn biases(fields: Fields<'_>, architecture: Architecture) -> Result<Biases, Fault> {
    let attention = fields.flag("attention_bias")?.unwrap_or(false);
    let mlp = fields.flag("mlp_bias")?.unwrap_or(false) && architecture == Architecture::Llama;
    Ok(Biases { qkv: attention, out: attention, mlp })
}

/// The base and the stretch of rope. Hub spelling: `rope_theta` and `rope_scaling`; transformers 5: all in `rope_parameters`.
fn rope(fields: Fields<'_>, head_dim: usize, context: u32) -> Result<RopeShape, Fault> {
    let parameters = fields.inner("rope_parameters")?;
    let scaling = match fields.inner("rope_scaling")? {
        Some(scaling) => Some(scaling),
        None => parameters,
    };
    let base = match parameters {
        Some(parameters) if parameters.get("rope_theta").is_some() => parameters.need_positive("rope_theta")?,
        _ if fields.get("rope_theta").is_some() => fields.need_positive("rope_theta")?,
        _ => 10_000.0,
    };
    let scaling = scaling.map_or(Ok(Scaling::None), scaling_of)?;
    Ok(RopeShape { dims: head_dim, base, scaling, divisors: None, pairing: Pairing::Halves, context })
}

fn scaling_of(fields: Fields<'_>) -> Result<Scaling, Fault> {
    let kind = match fields.text("rope_type")? {
        Some(kind) => Some(kind),
        None => fields.text("type")?,
    };
    match kind {
        None if fields.get("factor").is_some() => Err(fields.missing("rope_type")),
        None | Some("default") => Ok(Scaling::None),
        Some("linear") => Ok(Scaling::Linear { factor: fields.need_positive("factor")? }),
        Some("llama3") => Ok(Scaling::Llama3 {
            factor: fields.need_positive("factor")?,
            low_freq_factor: fields.need_positive("low_freq_factor")?,
            high_freq_factor: fields.need_positive("high_freq_factor")?,
            original_context: fields.need_positive("original_max_position_embeddings")?,
        }),
        Some(other) => Err(Fault::Unsupported(format!(
            "the rope scaling type {other:?} (rope_type in config.json) is not known to this version. Known are: default, linear, llama3"
        ))),
    }
}

/// Sliding windows, layer by layer.
fn windows(fields: Fields<'_>, architecture: Architecture, layers: u16) -> Result<Vec<Option<u32>>, Fault> {
    let window = fields.size("sliding_window")?.map(|window| window as u32);
    let all = vec![None; layers.into()];
    let window = match (architecture, window) {
        (_, None) => return Ok(all),
        (Architecture::Llama, Some(window)) => {
            return Err(Fault::Unsupported(format!(
                "\"sliding_window\" in config.json is {window}, which the architecture \"llama\" does not have"
            )));
        }
        (Architecture::Qwen3, Some(_)) if fields.flag("use_sliding_window")? != Some(true) => return Ok(all),
        (Architecture::Qwen3, Some(window)) => window,
    };
    if let Some(types) = fields.get("layer_types") {
        return by_type(types, layers, window);
    }
    let full = fields.get("max_window_layers").and_then(Value::as_u64).unwrap_or(28);
    Ok((0..u64::from(layers)).map(|layer| (layer >= full).then_some(window)).collect())
}

fn by_type(types: &Value, layers: u16, window: u32) -> Result<Vec<Option<u32>>, Fault> {
    let types = types.as_array().filter(|types| types.len() == usize::from(layers));
    let types = types.ok_or_else(|| Fault::Damaged(format!("\"layer_types\" in config.json is no list of {layers} types")))?;
    let window_of = |kind: &Value| match kind.as_str() {
        Some("full_attention") => Ok(None),
        Some("sliding_attention") => Ok(Some(window)),
        _ => Err(Fault::Unsupported(format!(
            "\"layer_types\" in config.json has {kind}; known are \"full_attention\" and \"sliding_attention\""
        ))),
    };
    types.iter().map(window_of).collect()
}

/// End tokens of both files together: models exist where either has one that the other lacks.
fn end_ids(config: Fields<'_>, generation: Fields<'_>) -> Vec<u32> {
    let mut ids = config.ids("eos_token_id");
    ids.extend(generation.ids("eos_token_id"));
    ids.sort_unstable();
    ids.dedup();
    ids
}
