//! The model inside the binary: small stories, always there (`assets/story/README.md`).

use mesh_core::ports::ModelError;
use serde_json::Value;

use crate::files::{Source, Weights};
use crate::text::TextModel;

/// The name that users write.
pub const STORY: &str = "builtin:story";

const CONFIG: &[u8] = include_bytes!("../assets/story/config.json");
const GENERATION_CONFIG: &[u8] = include_bytes!("../assets/story/generation_config.json");
const TOKENIZER: &[u8] = include_bytes!("../assets/story/tokenizer.json");
const TOKENIZER_CONFIG: &[u8] = include_bytes!("../assets/story/tokenizer_config.json");
static WEIGHTS: &[u8] = include_bytes!("../assets/story/model.safetensors");

/// `config.json`.
pub(crate) fn config() -> Result<Value, ModelError> {
    json("config.json", CONFIG)
}

/// `generation_config.json`.
pub(crate) fn generation_config() -> Result<Value, ModelError> {
    json("generation_config.json", GENERATION_CONFIG)
}

/// The tensors.
pub(crate) fn weights() -> Result<Weights, ModelError> {
    Weights::from_safetensors(vec![Source::memory(STORY, WEIGHTS)])
}

/// Tokenizer and chat template.
pub(crate) fn text() -> Result<TextModel, ModelError> {
    TextModel::from_bytes(TOKENIZER, TOKENIZER_CONFIG, GENERATION_CONFIG, CONFIG)
        .map_err(|error| ModelError::Damaged(format!("{STORY}: {error}")))
}

/// Everything that its contents depend on, for the digest of contents.
pub(crate) fn contents() -> [(&'static str, &'static [u8]); 5] {
    [
        ("config.json", CONFIG),
        ("generation_config.json", GENERATION_CONFIG),
        ("model.safetensors", WEIGHTS),
        ("tokenizer.json", TOKENIZER),
        ("tokenizer_config.json", TOKENIZER_CONFIG),
    ]
}

fn json(name: &str, bytes: &[u8]) -> Result<Value, ModelError> {
    serde_json::from_slice(bytes).map_err(|error| ModelError::Damaged(format!("{STORY}, {name}: {error}")))
}
