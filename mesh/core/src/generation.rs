//! What a client asks of a generation and what it gets, in token ids. Text is the business of the rooms above.

use serde::{Deserialize, Serialize};

use crate::ids::{BootId, DeploymentId, NodeId, PlanHash, PrefixHash, StreamId};

/// How the next token is chosen. The random number used is a pure function of (seed, position): see `seed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 = greedy. Otherwise logits are divided by it.
    pub temperature: f32,
    /// Keep the k likeliest tokens; 0 = all.
    pub top_k: u32,
    /// Keep the smallest set of likeliest tokens whose probability reaches p; 1 = all.
    pub top_p: f32,
    /// Keep tokens at least this likely relative to the likeliest; 0 = all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen before (Keskar et al. 2019); 1 = off.
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of each generated token (OpenAI); 0 = off.
    pub presence_penalty: f32,
    /// Subtracted for each time a token was generated (OpenAI); 0 = off.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens. Sorted by id, ids unique.
    pub logit_bias: Vec<(u32, f32)>,
    /// Draws are a function of this and the position only. Drawn at random by the owner if the client gave none.
    pub seed: u64,
    /// How many of the likeliest tokens to report with each token (0..=20), and whether to report at all.
    pub logprobs: Option<u8>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            logprobs: None,
        }
    }
}

/// A generation as its owner opens it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GenerationRequest {
    /// Token ids of the prompt. Never empty.
    pub prompt: Vec<u32>,
    /// How to choose tokens.
    pub sampling: Sampling,
    /// Any of these ends the generation; sorted.
    pub end_ids: Vec<u32>,
    /// Generate no more than this many.
    pub max_tokens: u32,
}

/// One try to drive a stream through a plan (R2). Ordered as its fields stand; only the greatest opened is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Attempt {
    /// Counts the takeovers of the stream by another owner.
    pub takeover: u32,
    /// The owner.
    pub owner: NodeId,
    /// The owner's life.
    pub boot: BootId,
    /// Raised by the owner at each replay, rewind, truncation or lost token.
    pub counter: u32,
}

/// 64-bit hash of an attempt, carried by rows and tokens: equality is all they need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttemptTag(pub u64);

impl Attempt {
    /// The tag that rows and tokens of this attempt carry.
    #[must_use]
    pub fn tag(&self) -> AttemptTag {
        let mut bytes = [0_u8; 56];
        bytes[..4].copy_from_slice(&self.takeover.to_le_bytes());
        bytes[4..36].copy_from_slice(&self.owner.0);
        bytes[36..52].copy_from_slice(&self.boot.0.to_le_bytes());
        bytes[52..].copy_from_slice(&self.counter.to_le_bytes());
        AttemptTag(xxhash_rust::xxh3::xxh3_64(&bytes))
    }
}

/// Owner to every stage: take part in an attempt (R2).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Open {
    /// The deployment.
    pub deployment: DeploymentId,
    /// The plan that the attempt runs through. A stage with another plan in force answers [`Refusal::Fenced`].
    pub plan: PlanHash,
    /// The stream.
    pub stream: StreamId,
    /// The attempt.
    pub attempt: Attempt,
    /// Positions whose cache may be kept, at most `ids.len() - 1`; confirmed by the prefix hash over `ids[..keep]`.
    pub keep: u32,
    /// Nothing is sampled before this position: the number of ids, since a replay never samples what was sent (R18).
    pub sample_from: u32,
    /// Prompt, then tokens sent so far.
    pub ids: Vec<u32>,
    /// How many of `ids` are the prompt.
    pub prompt_len: u32,
    /// Stage 0 may compute positions below this one (R5).
    pub granted: u32,
    /// How to choose tokens (read by the last stage).
    pub sampling: Sampling,
    /// Tokens that end the generation; sorted.
    pub end_ids: Vec<u32>,
    /// The last stage stops after this many generated tokens, the sent ones included.
    pub max_tokens: u32,
}

/// Why a stage refused an [`Open`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// Another plan is in force here.
    #[error("the plan was replaced by {0:?}")]
    Fenced(Option<PlanHash>),
    /// A greater attempt was opened already: the caller was deposed or is late.
    #[error("a newer attempt of this stream is open")]
    Deposed,
    /// The cache memory is taken.
    #[error("no cache memory for {need_bytes} bytes, {free_bytes} are free")]
    CacheFull {
        /// Bytes asked for.
        need_bytes: u64,
        /// Bytes left.
        free_bytes: u64,
    },
    /// More positions than the plan's context.
    #[error("{asked} tokens are more than the context of {context}")]
    TooLong {
        /// Positions asked for.
        asked: u32,
        /// Positions there may be.
        context: u32,
    },
    /// Something in the message contradicts itself.
    #[error("malformed: {0}")]
    Malformed(String),
    /// As many streams as the stage takes: try again when one has ended.
    #[error("{streams} streams run here already")]
    Busy {
        /// Streams that are open.
        streams: u32,
    },
}

/// A token as the last stage reports it, to owner and stage 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenOut {
    /// The deployment (routes it to stage 0's shard).
    pub deployment: DeploymentId,
    /// The plan that computed it.
    pub plan: PlanHash,
    /// The stream.
    pub stream: StreamId,
    /// The attempt that computed it.
    pub attempt: AttemptTag,
    /// Its position: the number of ids before it.
    pub position: u32,
    /// Its id.
    pub token: u32,
    /// Prefix hash before it.
    pub hash_before: PrefixHash,
    /// Set if the generation ends with it.
    pub finish: Option<FinishReason>,
    /// Natural logarithm of its probability, and of the likeliest ones', if asked for. Absent towards stage 0.
    pub logprobs: Option<TokenLogprobs>,
}

/// Log-probabilities before temperature, penalties and filters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprobs {
    /// Of the chosen token.
    pub chosen: f32,
    /// Of the likeliest: (id, log-probability), sorted by probability, then lower id.
    pub top: Vec<(u32, f32)>,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// An end token was chosen. It is reported with its token and shown to no one.
    EndToken,
    /// `max_tokens` or the context was reached.
    Length,
}

/// Why a running generation cannot go on. Each names the part at fault and what helps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum StreamError {
    /// A node that holds layers of the plan is gone.
    #[error("node {name} ({node:?}), which holds layers {first}..{end}, is down: ask again, the rest is planning without it")]
    NodeDown {
        /// The node.
        node: NodeId,
        /// Its name.
        name: String,
        /// Its first layer.
        first: u16,
        /// One past its last layer.
        end: u16,
    },
    /// A stage did not do its part in time.
    #[error("stage {stage} on {node:?} did not {what} within {ms} ms: ask again")]
    Late {
        /// Index of the stage.
        stage: u16,
        /// Its node.
        node: NodeId,
        /// What was waited for.
        what: String,
        /// The deadline.
        ms: u64,
    },
    /// A stage failed.
    #[error("stage {stage} on {node:?} failed: {why}")]
    Stage {
        /// Index of the stage.
        stage: u16,
        /// Its node.
        node: NodeId,
        /// In its own words.
        why: String,
    },
    /// A stage refused the stream.
    #[error("stage {stage} on {node:?} refused: {refusal}")]
    Refused {
        /// Index of the stage.
        stage: u16,
        /// Its node.
        node: NodeId,
        /// Why.
        refusal: Refusal,
    },
    /// The plan changed under the stream.
    #[error("the deployment was planned anew while the answer ran: ask again")]
    Replanned,
    /// The user deleted the deployment.
    #[error("the model was undeployed while the answer ran")]
    Undeployed,
    /// The deployment is not ready, or is gone.
    #[error("the model is not ready: {why}")]
    NotReady {
        /// Why.
        why: String,
    },
    /// This node is leaving.
    #[error("this node is shutting down")]
    ShuttingDown,
}
