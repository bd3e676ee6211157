//! The bodies that clients send, in OpenAI's form. Unknown fields are ignored, wrong types are a 400 that names them.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::errors::ApiError;
use crate::answer::{GenerateOptions, Prompt};

/// Body of `/v1/chat/completions`.
#[derive(Debug, Deserialize)]
pub struct ChatRequest {
    /// Name of a deployed model.
    pub model: String,
    /// The conversation.
    pub messages: Value,
    /// Tools for the template.
    pub tools: Option<Value>,
    /// Further variables for the template.
    #[serde(default)]
    pub chat_template_kwargs: Map<String, Value>,
    /// Newer name of `max_tokens`.
    pub max_completion_tokens: Option<u32>,
    /// Whether to report log-probabilities.
    pub logprobs: Option<bool>,
    /// With how many of the likeliest tokens.
    pub top_logprobs: Option<u8>,
    /// What both kinds of request share.
    #[serde(flatten)]
    pub common: Common,
}

/// Body of `/v1/completions`.
#[derive(Debug, Deserialize)]
pub struct CompletionRequest {
    /// Name of a deployed model.
    pub model: String,
    /// Text, a list with one text, or token ids.
    pub prompt: Value,
    /// Report log-probabilities with so many of the likeliest tokens.
    pub logprobs: Option<u8>,
    /// Refused unless false.
    pub echo: Option<bool>,
    /// Refused unless empty.
    pub suffix: Option<String>,
    /// Refused unless 1.
    pub best_of: Option<u32>,
    /// What both kinds of request share.
    #[serde(flatten)]
    pub common: Common,
}

/// What both kinds of request share.
#[derive(Debug, Deserialize)]
pub struct Common {
    /// Refused unless 1.
    pub n: Option<u32>,
    /// Whether to send events as tokens come.
    #[serde(default)]
    pub stream: bool,
    /// Only with `stream`.
    pub stream_options: Option<StreamOptions>,
    /// A text, or up to sixteen.
    pub stop: Option<Value>,
    max_tokens: Option<u32>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    logit_bias: Option<Map<String, Value>>,
    seed: Option<i64>,
}

/// Options of a streamed answer.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct StreamOptions {
    /// One more chunk with the counts before `[DONE]` (F94).
    #[serde(default)]
    pub include_usage: bool,
}

impl Common {
    /// Whether the usage chunk was asked for.
    #[must_use]
    pub fn include_usage(&self) -> bool {
        self.stream_options.is_some_and(|options| options.include_usage)
    }

    fn options(&self, max_tokens: Option<u32>, logprobs: Option<u8>) -> Result<GenerateOptions, ApiError> {
        if self.n.is_some_and(|n| n != 1) {
            return Err(ApiError::invalid("n", "n must be 1: ask several times for several answers"));
        }
        if let Some(value) = logprobs.filter(|count| *count > 20) {
            return Err(ApiError::invalid("top_logprobs", format!("{value} is more than 20 log-probabilities a token")));
        }
        range("temperature", self.temperature, 0.0, 100.0)?;
        range("top_p", self.top_p, 0.0, 1.0)?;
        range("min_p", self.min_p, 0.0, 1.0)?;
        range("repetition_penalty", self.repetition_penalty, 0.01, 100.0)?;
        range("presence_penalty", self.presence_penalty, -100.0, 100.0)?;
        range("frequency_penalty", self.frequency_penalty, -100.0, 100.0)?;
        if max_tokens == Some(0) {
            return Err(ApiError::invalid("max_tokens", "max_tokens must be at least 1"));
        }
        Ok(GenerateOptions {
            max_tokens,
            temperature: self.temperature,
            top_k: self.top_k.map(|k| u32::try_from(k).unwrap_or(0)), // -1 = off, as some clients send it
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.bias()?,
            seed: self.seed.map(i64::cast_unsigned),
            stop: self.stops()?,
            logprobs,
        })
    }

    fn bias(&self) -> Result<Vec<(u32, f32)>, ApiError> {
        let wrong =
            |id: &str| ApiError::invalid("logit_bias", format!("logit_bias maps token ids to numbers from -100 to 100, not `{id}`"));
        let mut bias = Vec::new();
        for (id, value) in self.logit_bias.iter().flatten() {
            let token = id.parse().map_err(|_| wrong(id))?;
            let value = value.as_f64().filter(|value| value.abs() <= 100.0).ok_or_else(|| wrong(id))?;
            bias.push((token, value as f32));
        }
        if bias.len() > 1024 {
            return Err(ApiError::invalid("logit_bias", "more than 1,024 tokens are biased"));
        }
        bias.sort_unstable_by_key(|(token, _)| *token);
        bias.dedup_by_key(|(token, _)| *token);
        Ok(bias)
    }

    fn stops(&self) -> Result<Vec<String>, ApiError> {
        let wrong = || ApiError::invalid("stop", "stop is a text, or a list of up to 16 texts of 1 to 1,024 bytes");
        let stops = match &self.stop {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::String(stop)) => vec![stop.clone()],
            Some(Value::Array(stops)) => {
                stops.iter().map(|stop| stop.as_str().map(str::to_owned).ok_or_else(wrong)).collect::<Result<_, _>>()?
            }
            Some(_) => return Err(wrong()),
        };
        if stops.len() > 16 || stops.iter().any(|stop| stop.is_empty() || stop.len() > 1024) {
            return Err(wrong());
        }
        Ok(stops)
    }
}

fn range(name: &str, value: Option<f32>, low: f32, high: f32) -> Result<(), ApiError> {
    match value {
        Some(value) if !(low..=high).contains(&value) => {
            Err(ApiError::invalid(name, format!("{name} must lie between {low} and {high}, not {value}")))
        }
        _ => Ok(()),
    }
}

impl ChatRequest {
    /// Prompt and options, checked.
    ///
    /// # Errors
    /// 400 with the field at fault.
    pub fn question(&self) -> Result<(Prompt, GenerateOptions), ApiError> {
        let messages =
            self.messages.as_array().ok_or_else(|| ApiError::invalid("messages", "messages is a list of objects with role and content"))?;
        if messages.is_empty() {
            return Err(ApiError::invalid("messages", "messages is empty: send at least one"));
        }
        for (index, message) in messages.iter().enumerate() {
            if message.get("role").and_then(Value::as_str).is_none() {
                return Err(ApiError::invalid(
                    "messages",
                    format!("messages[{index}] has no role: it is `system`, `user`, `assistant` or `tool`"),
                ));
            }
        }
        if self.top_logprobs.is_some() && self.logprobs != Some(true) {
            return Err(ApiError::invalid("top_logprobs", "top_logprobs needs logprobs: true"));
        }
        let logprobs = (self.logprobs == Some(true)).then(|| self.top_logprobs.unwrap_or(0));
        let options = self.common.options(self.max_completion_tokens.or(self.common.max_tokens), logprobs)?;
        let prompt = Prompt::Chat { messages: self.messages.clone(), tools: self.tools.clone(), extra: self.chat_template_kwargs.clone() };
        Ok((prompt, options))
    }
}

impl CompletionRequest {
    /// Prompt and options, checked.
    ///
    /// # Errors
    /// 400 with the field at fault.
    pub fn question(&self) -> Result<(Prompt, GenerateOptions), ApiError> {
        if self.echo == Some(true) {
            return Err(ApiError::invalid("echo", "echo is not supported"));
        }
        if self.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty()) {
            return Err(ApiError::invalid("suffix", "suffix is not supported"));
        }
        if self.best_of.is_some_and(|best| best != 1) {
            return Err(ApiError::invalid("best_of", "best_of must be 1"));
        }
        // OpenAI's default for this route is 16 tokens; clients rely on it to be short.
        let options = self.common.options(Some(self.common.max_tokens.unwrap_or(16)), self.logprobs)?;
        Ok((self.prompt()?, options))
    }

    fn prompt(&self) -> Result<Prompt, ApiError> {
        let wrong = || ApiError::invalid("prompt", "prompt is one text, a list with one text, or a list of token ids");
        match &self.prompt {
            Value::String(text) => Ok(Prompt::Text(text.clone())),
            Value::Array(items) if items.len() == 1 && items[0].is_string() => {
                Ok(Prompt::Text(items[0].as_str().unwrap_or_default().to_owned()))
            }
            Value::Array(items) if items.len() == 1 && items[0].is_array() => ids(items[0].as_array().ok_or_else(wrong)?).ok_or_else(wrong),
            Value::Array(items) => ids(items).ok_or_else(wrong),
            _ => Err(wrong()),
        }
    }
}

fn ids(items: &[Value]) -> Option<Prompt> {
    let ids: Option<Vec<u32>> = items.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect();
    ids.filter(|ids| !ids.is_empty()).map(Prompt::Ids)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn chat(body: Value) -> Result<(Prompt, GenerateOptions), ApiError> {
        serde_json::from_value::<ChatRequest>(body).map_err(|error| ApiError::invalid("", error.to_string()))?.question()
    }

    #[test]
    fn a_plain_question_is_taken_and_unknown_fields_are_ignored() {
        let (prompt, options) = chat(
            json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "stop": "x", "seed": -1, "user": "me", "top_k": -1}),
        )
        .expect("taken");
        assert!(matches!(prompt, Prompt::Chat { .. }));
        assert_eq!((options.stop, options.seed, options.top_k), (vec!["x".to_owned()], Some(u64::MAX), Some(0)));
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_field() {
        let message = json!([{"role": "user", "content": "hi"}]);
        for (field, body) in [
            ("messages", json!({"model": "m", "messages": "x"})),
            ("messages", json!({"model": "m", "messages": []})),
            ("messages", json!({"model": "m", "messages": [{"content": "x"}]})),
            ("n", json!({"model": "m", "messages": message, "n": 2})),
            ("temperature", json!({"model": "m", "messages": message, "temperature": -1})),
            ("top_logprobs", json!({"model": "m", "messages": message, "top_logprobs": 3})),
            ("stop", json!({"model": "m", "messages": message, "stop": [""]})),
            ("max_tokens", json!({"model": "m", "messages": message, "max_tokens": 0})),
            ("logit_bias", json!({"model": "m", "messages": message, "logit_bias": {"x": 1}})),
        ] {
            assert_eq!(chat(body).expect_err("refused").param.as_deref(), Some(field));
        }
    }

    proptest! {
        #[test]
        fn any_json_is_taken_or_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), field in "[a-z_]{1,12}", number in any::<i64>()) {
            let _ = serde_json::from_slice::<ChatRequest>(&bytes);
            let _ = serde_json::from_slice::<CompletionRequest>(&bytes);
            let _ = chat(json!({"model": "m", "messages": [{"role": "user", "content": field}], field: number}));
        }
    }
}
