//! From a question to text: prompt to ids on the way in, ids to characters on the way out.
//!
//! One pipeline serves streaming and not: bytes → whole characters → stop strings → text. Dropping an [`Answer`] cancels
//! the generation on every stage.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use futures::Stream;
use mesh_actors::handle::{Generation, GenerationEvent};
use mesh_core::generation::{FinishReason, StreamError, TokenLogprobs};
use mesh_core::ids::StreamId;
use mesh_models::text::{TextModel, TextPipeline};
use serde::{Deserialize, Serialize};

/// What is asked.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// Text to go on from, as it is.
    Text(String),
    /// Messages for the model's chat template, in OpenAI's form: an array of objects with `role` and `content`.
    Chat {
        /// The messages.
        messages: serde_json::Value,
        /// Tools, as the template wants them.
        tools: Option<serde_json::Value>,
        /// Further variables for the template (`chat_template_kwargs`).
        extra: serde_json::Map<String, serde_json::Value>,
    },
    /// Token ids.
    Ids(Vec<u32>),
}

impl Prompt {
    /// Bytes of text that are to be encoded: a lower bound, without the template's own. Ids count for nothing.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Chat { messages, tools, .. } => text_bytes(messages) + tools.as_ref().map_or(0, text_bytes),
            Self::Ids(_) => 0,
        }
    }

    /// One user message.
    #[must_use]
    pub fn user(text: &str) -> Self {
        Self::Chat { messages: serde_json::json!([{ "role": "user", "content": text }]), tools: None, extra: serde_json::Map::new() }
    }
}

/// Bytes of all texts in a JSON value.
fn text_bytes(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::String(text) => text.len(),
        serde_json::Value::Array(items) => items.iter().map(text_bytes).sum(),
        serde_json::Value::Object(fields) => fields.values().map(text_bytes).sum(),
        _ => 0,
    }
}

/// How to answer. Everything left out is the model's own default (`generation_config`), then OpenAI's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GenerateOptions {
    /// Tokens to generate at most; default: what the context leaves.
    pub max_tokens: Option<u32>,
    /// 0 = greedy.
    pub temperature: Option<f32>,
    /// Keep the k likeliest.
    pub top_k: Option<u32>,
    /// Keep the likeliest up to this probability.
    pub top_p: Option<f32>,
    /// Keep those at least this likely relative to the likeliest.
    pub min_p: Option<f32>,
    /// 1 = off.
    pub repetition_penalty: Option<f32>,
    /// 0 = off.
    pub presence_penalty: Option<f32>,
    /// 0 = off.
    pub frequency_penalty: Option<f32>,
    /// (token, added to its logit).
    pub logit_bias: Vec<(u32, f32)>,
    /// Same seed, same text. Drawn if left out.
    pub seed: Option<u64>,
    /// Texts that end the answer; none of them is shown.
    pub stop: Vec<String>,
    /// Report log-probabilities, with so many of the likeliest tokens.
    pub logprobs: Option<u8>,
}

/// What comes out of an answer, in order: one `Started`, any number of `Text`, one `Finished`. An error is the last item.
#[derive(Clone, Debug, PartialEq)]
pub enum AnswerEvent {
    /// All stages took the question.
    Started {
        /// The stream's name.
        stream: StreamId,
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// The seed in use, given or drawn.
        seed: u64,
    },
    /// More text: whole characters, possibly none yet while a token is only part of one.
    Text {
        /// The text.
        text: String,
        /// The token it came with.
        token: TokenPiece,
    },
    /// The answer is whole.
    Finished {
        /// Text that was held back in case it became a stop string.
        rest: String,
        /// Why it ended.
        reason: EndReason,
        /// Counts and times.
        usage: Usage,
    },
}

/// A generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenPiece {
    /// Its id.
    pub id: u32,
    /// If asked for.
    pub logprobs: Option<TokenLogprobs>,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// The model ended its turn, or a stop string came.
    Stop,
    /// `max_tokens` or the context was reached.
    Length,
}

/// Counts and times of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens generated, an end token included.
    pub completion_tokens: u32,
    /// Seconds from the question to the first token.
    pub prefill_s: f64,
    /// Seconds from the first token to the last.
    pub decode_s: f64,
}

impl Usage {
    /// Prompt tokens a second.
    #[must_use]
    pub fn prefill_rate(&self) -> f64 {
        f64::from(self.prompt_tokens) / self.prefill_s.max(1e-9)
    }
    /// Generated tokens a second after the first; zero if there was only one.
    #[must_use]
    pub fn decode_rate(&self) -> f64 {
        f64::from(self.completion_tokens.saturating_sub(1)) / self.decode_s.max(1e-9)
    }
}

/// A running answer: a stream of events. Drop it to cancel.
pub struct Answer {
    generation: Option<Generation>,
    text: Arc<TextModel>,
    pipeline: TextPipeline,
    started: Option<AnswerEvent>,
    asked_at: Instant,
    first_at: Option<Instant>,
    last_at: Instant,
    usage: Usage,
}

impl Answer {
    pub(crate) fn new(
        generation: Generation,
        text: Arc<TextModel>,
        pipeline: TextPipeline,
        prompt_tokens: u32,
        seed: u64,
        asked_at: Instant,
    ) -> Self {
        let started = AnswerEvent::Started { stream: generation.stream, prompt_tokens, seed };
        let usage = Usage { prompt_tokens, ..Usage::default() };
        Self { generation: Some(generation), text, pipeline, started: Some(started), asked_at, first_at: None, last_at: asked_at, usage }
    }

    /// The model's text side: to spell tokens out.
    #[must_use]
    pub fn text_model(&self) -> &Arc<TextModel> {
        &self.text
    }

    fn on_token(&mut self, token: u32, logprobs: Option<TokenLogprobs>) -> AnswerEvent {
        let now = Instant::now();
        self.first_at.get_or_insert(now);
        self.last_at = now;
        self.usage.completion_tokens += 1;
        let piece = self.pipeline.push(token);
        if piece.stopped {
            self.generation = None; // cancels: every stage stops
            let text = piece.text;
            return self.finished(text, EndReason::Stop);
        }
        AnswerEvent::Text { text: piece.text, token: TokenPiece { id: token, logprobs } }
    }

    fn finished(&mut self, rest: String, reason: EndReason) -> AnswerEvent {
        let first = self.first_at.unwrap_or(self.last_at);
        self.usage.prefill_s = (first - self.asked_at).as_secs_f64();
        self.usage.decode_s = (self.last_at - first).as_secs_f64();
        AnswerEvent::Finished { rest, reason, usage: self.usage }
    }
}

impl Stream for Answer {
    type Item = Result<AnswerEvent, StreamError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(started) = self.started.take() {
            return Poll::Ready(Some(Ok(started)));
        }
        let Some(generation) = self.generation.as_mut() else { return Poll::Ready(None) };
        let event = match generation.events.poll_recv(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(event) => event,
        };
        Poll::Ready(Some(match event {
            Some(GenerationEvent::Token { token, logprobs, .. }) => Ok(self.on_token(token, logprobs)),
            Some(GenerationEvent::Finished { reason, timing }) => {
                self.generation = None;
                // An end token is counted, and never shown as a token of its own.
                self.usage.completion_tokens = timing.generated_tokens.max(self.usage.completion_tokens);
                let rest = self.pipeline.finish();
                let reason = match reason {
                    FinishReason::EndToken => EndReason::Stop,
                    FinishReason::Length => EndReason::Length,
                };
                Ok(self.finished(rest, reason))
            }
            Some(GenerationEvent::Failed(error)) => {
                self.generation = None;
                Err(error)
            }
            None => {
                self.generation = None;
                Err(StreamError::ShuttingDown)
            }
        }))
    }
}
