//! Log-probabilities as OpenAI's API shows them (F110): tokens as text, and as bytes, since a token may be a part of a character.

use mesh_core::generation::TokenLogprobs;
use serde::Serialize;

use super::model::TextModel;

/// What is shown for a log-probability that JSON has no number for (a token that a filter made impossible).
const IMPOSSIBLE: f32 = -9999.0;

/// A token and how likely it was.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenLikelihood {
    /// The token as text. Bytes that are no whole characters are written as `\xF0`.
    pub token: String,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// Its bytes. Those of all tokens, one after the other, are the text's.
    pub bytes: Vec<u8>,
}

/// An entry of a chat choice's `logprobs.content`: one for each generated token.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChatLogprob {
    /// The token that was chosen.
    #[serde(flatten)]
    pub chosen: TokenLikelihood,
    /// The likeliest ones, likeliest first; as many as were asked for.
    pub top_logprobs: Vec<TokenLikelihood>,
}

/// The `logprobs` of a completions choice: lists with one entry for each token.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CompletionLogprobs {
    /// The tokens as text. One that is no whole characters is written as `bytes:\xF0\x9F`.
    pub tokens: Vec<String>,
    /// Natural logarithms of their probabilities.
    pub token_logprobs: Vec<f32>,
    /// The likeliest tokens at each place, the chosen one always among them.
    pub top_logprobs: Vec<serde_json::Map<String, serde_json::Value>>,
    /// Where each token begins, in characters, counted from the first token of the answer.
    pub text_offset: Vec<u32>,
}

impl TextModel {
    /// A generated token's entry in a chat's `logprobs.content`.
    #[must_use]
    pub fn chat_logprob(&self, id: u32, logprobs: &TokenLogprobs) -> ChatLogprob {
        let top_logprobs = logprobs.top.iter().map(|&(id, logprob)| self.likelihood(id, logprob)).collect();
        ChatLogprob { chosen: self.likelihood(id, logprobs.chosen), top_logprobs }
    }

    fn likelihood(&self, id: u32, logprob: f32) -> TokenLikelihood {
        let bytes = self.token_bytes(id);
        TokenLikelihood { token: readable(&bytes), logprob: finite(logprob), bytes }
    }

    /// A token as a key or list entry of a completion's logprobs.
    fn completion_token(&self, id: u32) -> String {
        let bytes = self.token_bytes(id);
        String::from_utf8(bytes).unwrap_or_else(|error| format!("bytes:{}", escaped(error.as_bytes())))
    }
}

impl CompletionLogprobs {
    /// Appends a generated token. For a stream, make one of these for each chunk and pass the `offset` on: the return value is
    /// where the next token begins.
    pub fn push(&mut self, text: &TextModel, id: u32, logprobs: &TokenLogprobs, offset: u32) -> u32 {
        let token = text.completion_token(id);
        let mut top = serde_json::Map::new();
        for &(id, logprob) in &logprobs.top {
            top.entry(text.completion_token(id)).or_insert_with(|| finite(logprob).into());
        }
        top.entry(token.clone()).or_insert_with(|| finite(logprobs.chosen).into());
        let characters = u32::try_from(token.chars().count()).unwrap_or(u32::MAX);
        self.tokens.push(token);
        self.token_logprobs.push(finite(logprobs.chosen));
        self.top_logprobs.push(top);
        self.text_offset.push(offset);
        offset.saturating_add(characters)
    }
}

fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { IMPOSSIBLE }
}

/// Characters as they are, other bytes escaped.
fn readable(bytes: &[u8]) -> String {
    bytes.utf8_chunks().map(|chunk| format!("{}{}", chunk.valid(), escaped(chunk.invalid()))).collect()
}

fn escaped(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Byte-level tokens: `a`, ` a`, and the first three bytes of an emoji.
    fn model() -> TextModel {
        let tokenizer = json!({"version": "1.0", "added_tokens": [], "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "vocab": {"a": 0, "Ġa": 1, "ðŁĺ": 2}, "merges": []}});
        TextModel::from_bytes(tokenizer.to_string().as_bytes(), b"", b"", b"").expect("reads")
    }

    #[test]
    fn chat_entries_have_text_bytes_and_the_likeliest() {
        let entry = model().chat_logprob(2, &TokenLogprobs { chosen: -0.5, top: vec![(2, -0.5), (1, f32::NEG_INFINITY)] });
        assert_eq!(
            serde_json::to_value(entry).unwrap(),
            json!({"token": "\\xf0\\x9f\\x98", "logprob": -0.5, "bytes": [0xF0, 0x9F, 0x98], "top_logprobs": [
                {"token": "\\xf0\\x9f\\x98", "logprob": -0.5, "bytes": [0xF0, 0x9F, 0x98]},
                {"token": " a", "logprob": -9999.0, "bytes": [32, 97]}]})
        );
    }

    #[test]
    fn completion_lists_grow_together_and_hold_the_chosen_token() {
        let (model, mut all) = (model(), CompletionLogprobs::default());
        let offset = all.push(&model, 1, &TokenLogprobs { chosen: -2.0, top: vec![(0, -0.25)] }, 0);
        all.push(&model, 2, &TokenLogprobs { chosen: -1.0, top: vec![] }, offset);
        assert_eq!(
            serde_json::to_value(all).unwrap(),
            json!({"tokens": [" a", "bytes:\\xf0\\x9f\\x98"], "token_logprobs": [-2.0, -1.0], "text_offset": [0, 2],
                "top_logprobs": [{"a": -0.25, " a": -2.0}, {"bytes:\\xf0\\x9f\\x98": -1.0}]})
        );
    }
}
