//! How a model wants its tokens chosen when nobody says otherwise.

use mesh_core::ports::ModelError;
use serde_json::Value;

use crate::builtin;
use crate::files::read_json;
use crate::model_files::Origin;

/// Sampling parameters that a model's `generation_config.json` gives; OpenAI's defaults for the rest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GenerationDefaults {
    /// 0 = greedy.
    pub temperature: f32,
    /// 0 = all.
    pub top_k: u32,
    /// 1 = all.
    pub top_p: f32,
    /// 0 = all.
    pub min_p: f32,
    /// 1 = off.
    pub repetition_penalty: f32,
}

impl Default for GenerationDefaults {
    fn default() -> Self {
        Self { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, repetition_penalty: 1.0 }
    }
}

impl GenerationDefaults {
    /// From a `generation_config.json`. Values out of range count as not given.
    #[must_use]
    pub fn of(generation: &Value) -> Self {
        let number =
            |key: &str, range: std::ops::RangeInclusive<f64>| generation[key].as_f64().filter(|n| range.contains(n)).map(|n| n as f32);
        let plain = Self::default();
        let greedy = generation["do_sample"] == Value::Bool(false);
        let top_k = generation["top_k"].as_u64().and_then(|k| u32::try_from(k).ok());
        Self {
            temperature: if greedy { 0.0 } else { number("temperature", 0.0..=100.0).unwrap_or(plain.temperature) },
            top_k: top_k.unwrap_or(plain.top_k),
            top_p: number("top_p", f64::MIN_POSITIVE..=1.0).unwrap_or(plain.top_p),
            min_p: number("min_p", 0.0..=1.0).unwrap_or(plain.min_p),
            repetition_penalty: number("repetition_penalty", 0.01..=100.0).unwrap_or(plain.repetition_penalty),
        }
    }
}

/// `generation_config.json` of a model, or `Null`.
pub(super) fn generation_config(origin: &Origin) -> Result<Value, ModelError> {
    match origin {
        Origin::Builtin => builtin::generation_config(),
        Origin::Gguf(_) => Ok(Value::Null),
        Origin::Directory(dir) => read_json(&dir.join("generation_config.json")),
    }
}
