//! The bodies that clients get, in OpenAI's form: whole, or as server-sent events.

use mesh_core::generation::TokenLogprobs;
use mesh_core::ids::StreamId;
use mesh_models::text::TextModel;
use serde_json::{Value, json};

use crate::answer::{EndReason, TokenPiece, Usage};

/// Which route is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completion,
}

/// What every body of one answer repeats.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Which route.
    pub form: Form,
    /// `chatcmpl-…` or `cmpl-…`.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The model as asked for.
    pub model: String,
    /// Whether log-probabilities were asked for.
    pub logprobs: bool,
}

impl Reply {
    /// For one stream.
    #[must_use]
    pub fn new(form: Form, stream: StreamId, model: String, logprobs: bool) -> Self {
        let prefix = if form == Form::Chat { "chatcmpl" } else { "cmpl" };
        let created = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self { form, id: format!("{prefix}-{stream}"), created, model, logprobs }
    }

    fn body(&self, object: &str, choices: Value) -> Value {
        json!({ "id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices })
    }

    fn chunk(&self, choices: Value) -> Value {
        self.body(if self.form == Form::Chat { "chat.completion.chunk" } else { "text_completion" }, choices)
    }

    /// First chunk of a chat: who speaks. Completions have none.
    #[must_use]
    pub fn opening(&self) -> Option<Value> {
        (self.form == Form::Chat)
            .then(|| self.chunk(json!([{ "index": 0, "delta": { "role": "assistant", "content": "" }, "finish_reason": null }])))
    }

    /// A chunk with text.
    #[must_use]
    pub fn delta(&self, text: &str, logprobs: Option<Value>) -> Value {
        let mut choice = match self.form {
            Form::Chat => json!({ "index": 0, "delta": { "content": text }, "finish_reason": null }),
            Form::Completion => json!({ "index": 0, "text": text, "finish_reason": null }),
        };
        if self.logprobs {
            choice["logprobs"] = logprobs.unwrap_or(Value::Null);
        }
        self.chunk(json!([choice]))
    }

    /// The chunk that ends the text.
    #[must_use]
    pub fn closing(&self, reason: EndReason) -> Value {
        let choice = match self.form {
            Form::Chat => json!({ "index": 0, "delta": {}, "finish_reason": reason }),
            Form::Completion => json!({ "index": 0, "text": "", "finish_reason": reason }),
        };
        self.chunk(json!([choice]))
    }

    /// The chunk with the counts (F94).
    #[must_use]
    pub fn usage_chunk(&self, usage: Usage) -> Value {
        let mut chunk = self.chunk(json!([]));
        chunk["usage"] = usage_json(usage);
        chunk
    }

    /// The whole answer in one body.
    #[must_use]
    pub fn whole(&self, text: &str, reason: EndReason, logprobs: Option<Value>, usage: Usage) -> Value {
        let mut choice = match self.form {
            Form::Chat => json!({ "index": 0, "message": { "role": "assistant", "content": text }, "finish_reason": reason }),
            Form::Completion => json!({ "index": 0, "text": text, "finish_reason": reason }),
        };
        choice["logprobs"] = logprobs.unwrap_or(Value::Null);
        let mut body = self.body(if self.form == Form::Chat { "chat.completion" } else { "text_completion" }, json!([choice]));
        body["usage"] = usage_json(usage);
        body
    }

    /// Log-probabilities of tokens (F110), in the route's form.
    #[must_use]
    pub fn logprobs_json(&self, text: &TextModel, tokens: &[(TokenPiece, usize)]) -> Option<Value> {
        if !self.logprobs {
            return None;
        }
        Some(match self.form {
            Form::Chat => {
                let content: Vec<Value> = tokens.iter().filter_map(|(token, _)| chat_logprob(text, token)).collect();
                json!({ "content": content, "refusal": null })
            }
            Form::Completion => completion_logprobs(text, tokens),
        })
    }
}

fn usage_json(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    })
}

fn chat_logprob(text: &TextModel, token: &TokenPiece) -> Option<Value> {
    let logprobs = token.logprobs.as_ref()?;
    let entry = |id: u32, logprob: f32| json!({ "token": text.token_text(id), "logprob": finite(logprob), "bytes": text.token_bytes(id) });
    let mut chosen = entry(token.id, logprobs.chosen);
    chosen["top_logprobs"] = logprobs.top.iter().map(|(id, logprob)| entry(*id, *logprob)).collect();
    Some(chosen)
}

fn completion_logprobs(text: &TextModel, tokens: &[(TokenPiece, usize)]) -> Value {
    let known: Vec<(u32, &TokenLogprobs, usize)> =
        tokens.iter().filter_map(|(token, offset)| Some((token.id, token.logprobs.as_ref()?, *offset))).collect();
    // OpenAI's older form: the likeliest tokens, and the chosen one if it is not among them.
    let top = |id: u32, logprobs: &TokenLogprobs| -> Value {
        let listed = logprobs.top.iter().copied().chain([(id, logprobs.chosen)]);
        Value::Object(listed.map(|(id, logprob)| (text.token_text(id), json!(finite(logprob)))).collect())
    };
    json!({
        "tokens": known.iter().map(|(id, ..)| text.token_text(*id)).collect::<Vec<_>>(),
        "token_logprobs": known.iter().map(|(_, logprobs, _)| finite(logprobs.chosen)).collect::<Vec<_>>(),
        "top_logprobs": known.iter().map(|(id, logprobs, _)| top(*id, logprobs)).collect::<Vec<_>>(),
        "text_offset": known.iter().map(|(.., offset)| offset).collect::<Vec<_>>(),
    })
}

/// JSON has no infinity; OpenAI writes -9999 for "practically impossible".
fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { -9999.0 }
}
