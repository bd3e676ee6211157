//! [`TextModel`]: everything about a model that is text and not numbers.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::chat::ChatRequest;
use super::codec::Codec;
use super::error::TextError;
use super::hf::{self, HfFiles};
use super::pipeline::{Start, TextPipeline};
use super::template::Templates;
use super::tokens::{Sight, TokenTable};
use crate::files::gguf::Value;

/// A model's tokenizer, chat template and end tokens. Immutable; share it behind an `Arc`.
#[derive(Debug)]
pub struct TextModel {
    codec: Codec,
    tokens: Arc<TokenTable>,
    around: Around,
    end_ids: Arc<[u32]>,
    templates: Templates,
}

/// The tokens that go around a text that was asked to be encoded with special tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Around {
    /// Put before it, unless the tokenizer did so itself.
    pub(super) bos: Option<u32>,
    /// Put after it, unless the tokenizer did so itself.
    pub(super) eos: Option<u32>,
    /// The begin token, whoever puts it there. A text that begins with it already does not get a second one.
    pub(super) begin: Option<u32>,
}

impl TextModel {
    pub(super) fn new(codec: Codec, tokens: TokenTable, around: Around, end_ids: Vec<u32>, templates: Templates) -> Self {
        Self { codec, tokens: Arc::new(tokens), around, end_ids: end_ids.into(), templates }
    }

    /// The text side of a Hugging Face directory. Only `tokenizer.json` must be there.
    ///
    /// # Errors
    /// Missing or damaged files, or a kind of tokenizer that this version does not know: in words that name it.
    pub fn from_hf_dir(directory: &Path) -> Result<Self, TextError> {
        hf::from_dir(directory)
    }

    /// The text side from the contents of `tokenizer.json`, `tokenizer_config.json`, `generation_config.json` and
    /// `config.json`. Empty means absent; the first must be there.
    ///
    /// # Errors
    /// As [`TextModel::from_hf_dir`].
    pub fn from_bytes(tokenizer: &[u8], tokenizer_config: &[u8], generation_config: &[u8], config: &[u8]) -> Result<Self, TextError> {
        hf::from_files(HfFiles { tokenizer, tokenizer_config, generation_config, config, ..HfFiles::default() })
    }

    /// The text side of a GGUF file, from its metadata: vocabularies of the kinds `gpt2` and `llama`.
    ///
    /// # Errors
    /// Missing or contradictory entries, or a kind of tokenizer that this version does not know: in words that name it.
    pub fn from_gguf(metadata: &BTreeMap<String, Value>) -> Result<Self, TextError> {
        super::from_gguf::from_metadata(metadata)
    }

    /// The ids of a text. `add_special` puts the model's begin token (and what else it wants) around it, as for a plain
    /// prompt; a rendered chat has them already. Special tokens that are written out in the text become their ids.
    ///
    /// # Errors
    /// [`TextError::Encode`]: longer than [`super::TEXT_BYTES_MAX`], or the tokenizer gave up on it.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TextError> {
        let mut ids = self.codec.encode(text, add_special)?;
        if !add_special {
            return Ok(ids);
        }
        if let Some(bos) = self.around.bos.filter(|bos| ids.first() != Some(bos)) {
            ids.insert(0, bos);
        }
        if let Some(eos) = self.around.eos.filter(|eos| ids.last() != Some(eos)) {
            ids.push(eos);
        }
        if let ([first, second, ..], Some(begin)) = (ids.as_slice(), self.around.begin)
            && *first == begin
            && *second == begin
        {
            ids.remove(0);
        }
        Ok(ids)
    }

    /// The text of these ids, special tokens left out. Joining the pieces of a pipeline over them gives the same.
    #[must_use]
    pub fn decode(&self, ids: &[u32], start: Start) -> String {
        let mut pipeline = self.pipeline_from(start, Vec::new());
        let mut text: String = ids.iter().map(|&id| pipeline.push(id).text).collect();
        text.push_str(&pipeline.finish());
        text
    }

    /// A pipeline for text that continues a prompt (completions).
    #[must_use]
    pub fn pipeline(&self, stops: Vec<String>) -> TextPipeline {
        self.pipeline_from(Start::Continuing, stops)
    }

    /// A pipeline for text that continues a prompt, or is one of its own (an assistant's turn: [`Start::Fresh`]).
    #[must_use]
    pub fn pipeline_from(&self, start: Start, stops: Vec<String>) -> TextPipeline {
        TextPipeline::new(Arc::clone(&self.tokens), Arc::clone(&self.end_ids), start, stops)
    }

    /// The prompt that the model's chat template makes of messages. Encode it with `add_special` = false: it has its begin token.
    ///
    /// # Errors
    /// No template, or it refuses the messages (F96: its own text), or messages that are none, or it fails.
    pub fn render_chat(&self, request: &ChatRequest) -> Result<String, TextError> {
        self.templates.render(request)
    }

    /// Whether the model can answer chat messages.
    #[must_use]
    pub const fn has_chat_template(&self) -> bool {
        self.templates.exist()
    }

    /// The ids of a chat: rendered and encoded.
    ///
    /// # Errors
    /// As [`TextModel::render_chat`] and [`TextModel::encode`].
    pub fn encode_chat(&self, request: &ChatRequest) -> Result<Vec<u32>, TextError> {
        self.encode(&self.render_chat(request)?, false)
    }

    /// Tokens that end an answer, sorted.
    #[must_use]
    pub fn end_ids(&self) -> &[u32] {
        &self.end_ids
    }

    /// The raw bytes of a token, also of a special one; empty for an id that is no token.
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.tokens.bytes(id).to_vec()
    }

    /// A token as people read it in log-probabilities (F110): whole characters as they are, other bytes as `\xf0`, so that two tokens
    /// with different bytes never read the same by accident.
    #[must_use]
    pub fn token_text(&self, id: u32) -> String {
        let escaped = |bytes: &[u8]| bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect::<String>();
        self.tokens.bytes(id).utf8_chunks().map(|chunk| format!("{}{}", chunk.valid(), escaped(chunk.invalid()))).collect()
    }

    /// Whether a token is special: it steers the model and is never shown.
    #[must_use]
    pub fn is_special(&self, id: u32) -> bool {
        self.tokens.sight(id) == Sight::Hidden
    }

    /// One more than the largest id the tokenizer knows. The model's own vocabulary may be larger (padding).
    #[must_use]
    pub fn vocabulary(&self) -> u32 {
        self.tokens.len()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Byte-level tokens: `a`, ` a`, and the first three bytes of an emoji.
    #[test]
    fn tokens_have_bytes_and_read_unlike_each_other() {
        let tokenizer = json!({"version": "1.0", "added_tokens": [{"id": 3, "content": "<|end|>", "special": true, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false}], "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "vocab": {"a": 0, "Ġa": 1, "ðŁĺ": 2, "<|end|>": 3}, "merges": []}});
        let model = TextModel::from_bytes(tokenizer.to_string().as_bytes(), b"", b"", b"").expect("reads");
        assert_eq!([0, 1, 2, 3, 9].map(|id| model.token_text(id)), ["a", " a", "\\xf0\\x9f\\x98", "<|end|>", ""]);
        assert_eq!([1, 2, 3, 9].map(|id| model.token_bytes(id)), [b" a".to_vec(), vec![0xF0, 0x9F, 0x98], b"<|end|>".to_vec(), vec![]]);
        assert_eq!([0, 3, 9].map(|id| model.is_special(id)), [false, true, true]);
    }

    #[test]
    fn damaged_files_are_named_and_never_panic() {
        let tokenizer = |model: serde_json::Value| {
            json!({"version": "1.0", "added_tokens": [], "decoder": {"type": "ByteLevel", "add_prefix_space": false,
            "trim_offsets": true, "use_regex": true}, "model": model})
            .to_string()
        };
        let damaged = [
            String::new(),
            "{".into(),
            "{}".into(),
            tokenizer(json!({"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]})),
            // A merge that is longer than any token: the library slices beyond its buffer.
            tokenizer(json!({"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a b"]})),
            tokenizer(json!({"type": "BPE", "vocab": {"a": 4_000_000_000_u32}, "merges": []})),
        ];
        for tokenizer in damaged {
            let error = TextModel::from_bytes(tokenizer.as_bytes(), b"", b"", b"").map(|_| ()).expect_err(&tokenizer);
            assert!(matches!(&error, TextError::Damaged(text) if text.contains("tokenizer")), "{error}");
        }
        let good = tokenizer(json!({"type": "BPE", "vocab": {"a": 0}, "merges": []}));
        let error = TextModel::from_bytes(good.as_bytes(), b"{", b"", b"").map(|_| ()).unwrap_err();
        assert!(error.to_string().starts_with("tokenizer_config.json"), "{error}");
    }

    #[test]
    fn padding_truncation_and_dropout_of_a_file_are_switched_off() {
        let tokenizer = json!({"version": "1.0", "added_tokens": [],
            "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
            "padding": {"strategy": {"Fixed": 100_000_000_000_u64}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "a"},
            "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "dropout": 0.9, "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}});
        let model = TextModel::from_bytes(tokenizer.to_string().as_bytes(), b"", b"", b"").expect("reads");
        assert_eq!(model.encode(&"ab".repeat(30), true).expect("encodes"), [2; 30]);
    }

    #[test]
    fn a_directory_without_a_tokenizer_says_what_it_has_instead() {
        let directory = tempfile::tempdir().expect("a directory");
        let error = TextModel::from_hf_dir(directory.path()).map(|_| ()).unwrap_err();
        assert!(matches!(&error, TextError::Damaged(text) if text.contains("no tokenizer.json")), "{error}");
        std::fs::write(directory.path().join("tiktoken.model"), "").expect("writes");
        let error = TextModel::from_hf_dir(directory.path()).map(|_| ()).unwrap_err();
        assert!(matches!(&error, TextError::Unsupported(text) if text.contains("tiktoken.model")), "{error}");
    }
}
