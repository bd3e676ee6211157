//! The owner's side of one generation, as a pure core: opens it on every stage, takes its tokens in order and each once
//! (P1), grants as the client takes (R5), and ends it with a reason that names who was waited for (P4).
//!
//! ```text
//! Begin ── Open to all ──> Opening ── all Opened ── Start to stage 0 ──> Running ── Token … Token(finish) ──> Over
//!              └ refused, late, unreachable ─┐            └ gap, late, failed, node down, replanned ─┐
//!                                            └──────────── Failed, Close to all ─────────────────────┘
//! ```
//! A token that is late does not say where it is stuck. So at half of the deadline the owner repeats its `Open`: a stage that
//! knows the attempt changes nothing and answers with the position it is at. When the deadline comes, the first stage that did
//! not answer is named, else the first that is behind.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::generation::{Attempt, FinishReason, GenerationRequest, Open, Refusal, StreamError, TokenLogprobs, TokenOut};
use crate::ids::{DeploymentId, NodeId, PrefixHash, StreamId, Time};
use crate::mutation::{Mutation, made};
use crate::plan::Plan;
use crate::wire::{Message, Opened, StreamFailed, StreamTag};

/// Bounds and deadlines of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Every stage answers an `Open` within this.
    pub open_ms: u64,
    /// A token comes within this after the last one (or a grant that ended a pause).
    pub token_ms: u64,
    /// What each prompt token adds to the first one's deadline. (Guess: twenty positions a second, all stages together.)
    pub prompt_token_ms: u64,
    /// Positions beyond what the client took that stages may compute (R5).
    pub grant: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { open_ms: 3_000, token_ms: 30_000, prompt_token_ms: 50, grant: 32 }
    }
}

/// A grant that could not be sent is tried again after this.
const REGRANT_MS: u64 = 100;

/// Characters of a stage's own words that are passed on.
const WHY_CHARS_MAX: usize = 1_000;

/// What a stream is made of.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Which deployment answers.
    pub deployment: DeploymentId,
    /// Its plan in force.
    pub plan: Plan,
    /// The stream's name.
    pub stream: StreamId,
    /// This attempt.
    pub attempt: Attempt,
    /// What is asked.
    pub request: GenerationRequest,
    /// Names of the plan's nodes, for errors.
    pub names: BTreeMap<NodeId, String>,
}

/// What happens to a stream.
#[derive(Clone, Debug)]
pub enum Input {
    /// Once, first.
    Begin,
    /// A control message: `Opened`, `Token` or `StreamFailed`. Others are ignored.
    Heard {
        /// From whom, authenticated.
        from: NodeId,
        /// What.
        message: Message,
    },
    /// A message could not be sent.
    Unsent {
        /// To whom.
        to: NodeId,
        /// Which kind.
        kind: Kind,
        /// Why.
        why: String,
    },
    /// The client has taken so many tokens in all.
    Taken(u32),
    /// The client is gone.
    Cancel,
    /// A node is down, left or restarted.
    NodeDown(NodeId),
    /// The deployment has another plan, or none.
    Replanned,
    /// The user deleted the deployment: the answer ends.
    Undeployed,
    /// This node leaves.
    ShuttingDown,
    /// Time passed.
    Elapsed,
}

/// Kinds of messages that an owner sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `Open`
    Open,
    /// `Start`
    Start,
    /// `Grant`
    Grant,
    /// `Close`
    Close,
}

impl Kind {
    /// The kind of a message, if an owner sends it.
    #[must_use]
    pub fn of(message: &Message) -> Option<Self> {
        match message {
            Message::Open(_) => Some(Self::Open),
            Message::Start(_) => Some(Self::Start),
            Message::Grant { .. } => Some(Self::Grant),
            Message::Close(_) => Some(Self::Close),
            _ => None,
        }
    }
}

/// What a stream wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send a control message. If that fails, say [`Input::Unsent`].
    Send {
        /// To whom.
        to: NodeId,
        /// What.
        message: Message,
    },
    /// Tell the client. After `Finished` or `Failed` nothing more comes.
    Emit(Event),
}

/// What comes out of a generation.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A token, each once and in order (P1).
    Token {
        /// Counts generated tokens from 0.
        index: u32,
        /// The id.
        token: u32,
        /// If asked for.
        logprobs: Option<TokenLogprobs>,
    },
    /// The whole answer is out.
    Finished {
        /// Why it ended.
        reason: FinishReason,
        /// From the beginning to the first token.
        prefill_ms: u64,
        /// From the first token to the last.
        decode_ms: u64,
    },
    /// It cannot go on.
    Failed(StreamError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    New,
    Opening,
    Running,
    Over,
}

/// The core of one stream. See the module's head.
pub struct Stream {
    limits: Limits,
    plan: Plan,
    names: BTreeMap<NodeId, String>,
    /// As sent to every stage.
    open: Open,
    tag: StreamTag,
    phase: Phase,
    began: Time,
    first_token: Option<Time>,
    /// The sent tokens: the journal.
    tokens: Vec<u32>,
    /// Prefix hash over prompt and tokens.
    hash: PrefixHash,
    granted: u32,
    taken: u32,
    regrant_at: Option<Time>,
    /// What each stage answered: to the open, later to the question how far it is.
    answers: Vec<Option<u32>>,
    /// The deadline runs from here.
    progress: Time,
    asked: bool,
}

impl Stream {
    /// A stream that has not begun.
    #[must_use]
    pub fn new(setup: Setup, limits: Limits) -> Self {
        let Setup { deployment, plan, stream, attempt, request, names } = setup;
        let prompt_len = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
        let granted = prompt_len.saturating_add(limits.grant.max(1));
        let mut end_ids = request.end_ids;
        end_ids.sort_unstable();
        end_ids.dedup();
        let tag = StreamTag { deployment, plan: plan.hash(), stream, attempt: attempt.tag() };
        Self {
            limits,
            answers: vec![None; plan.stages().len()],
            names,
            hash: PrefixHash::EMPTY.over(&request.prompt),
            open: Open {
                deployment,
                plan: plan.hash(),
                stream,
                attempt,
                keep: 0,
                sample_from: prompt_len,
                ids: request.prompt,
                prompt_len,
                granted,
                sampling: request.sampling,
                end_ids,
                max_tokens: request.max_tokens,
            },
            plan,
            tag,
            phase: Phase::New,
            began: Time::default(),
            first_token: None,
            tokens: Vec::new(),
            granted,
            taken: 0,
            regrant_at: None,
            progress: Time::default(),
            asked: false,
        }
    }

    /// Same history, same effects. What is due by `now` is settled first.
    pub fn step(&mut self, now: Time, input: Input, effects: &mut Vec<Effect>) {
        self.settle(now, effects);
        if self.phase == Phase::Over {
            return;
        }
        match input {
            Input::Begin => self.begin(now, effects),
            Input::Heard { from, message: Message::Opened(opened) } => self.opened(now, from, opened, effects),
            Input::Heard { from, message: Message::Token(token) } => self.token(now, from, token, effects),
            Input::Heard { from, message: Message::StreamFailed(failed) } => self.stage_failed(from, &failed, effects),
            Input::Heard { .. } | Input::Elapsed => {}
            Input::Unsent { to, kind, why } => self.unsent(now, to, kind, why, effects),
            Input::Taken(taken) => {
                self.taken = self.taken.max(taken);
                self.grant(now, effects);
            }
            Input::Cancel => self.close(None, effects),
            Input::NodeDown(node) => self.node_down(node, effects),
            Input::Replanned => self.fail(StreamError::Replanned, None, effects),
            Input::Undeployed => self.fail(StreamError::Undeployed, None, effects),
            Input::ShuttingDown => self.fail(StreamError::ShuttingDown, None, effects),
        }
    }

    /// When `step` next wants `Elapsed`.
    #[must_use]
    pub fn wake_at(&self) -> Option<Time> {
        match self.phase {
            Phase::New | Phase::Over => None,
            Phase::Running if made(Mutation::ForgetDeadline) => None,
            Phase::Opening => Some(self.began.plus_ms(self.limits.open_ms)),
            Phase::Running => {
                let deadline = if self.asked { self.deadline_ms() } else { self.deadline_ms() / 2 };
                let token = self.owed().then(|| self.progress.plus_ms(deadline));
                token.into_iter().chain(self.regrant_at).min()
            }
        }
    }

    /// Whether it is over: finished, failed or cancelled.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Tokens sent to the client so far.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Tokens of the prompt.
    #[must_use]
    pub fn prompt_tokens(&self) -> u32 {
        self.open.prompt_len
    }

    /// Ids so far, which is the position of the next token.
    fn length(&self) -> u32 {
        self.open.prompt_len + self.generated()
    }
    fn generated(&self) -> u32 {
        u32::try_from(self.tokens.len()).expect("no longer than the plan's context")
    }
    /// Whether stages may compute the next token: else we wait for the client.
    fn owed(&self) -> bool {
        self.length() <= self.granted
    }
    fn deadline_ms(&self) -> u64 {
        let prompt_ms =
            if self.tokens.is_empty() { self.limits.prompt_token_ms.saturating_mul(u64::from(self.open.prompt_len)) } else { 0 };
        self.limits.token_ms.saturating_add(prompt_ms)
    }

    fn settle(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.regrant_at.is_some_and(|at| now >= at) {
            self.regrant_at = None;
            self.send(self.plan.first_node(), Message::Grant { tag: self.tag, position: self.granted }, effects);
        }
        match self.phase {
            Phase::Opening if now >= self.began.plus_ms(self.limits.open_ms) => {
                let stage = self.answers.iter().position(Option::is_none).unwrap_or_default();
                self.late(stage, "open the stream".to_owned(), self.limits.open_ms, effects);
            }
            Phase::Running if self.owed() && now >= self.progress.plus_ms(self.deadline_ms()) => self.token_is_late(effects),
            Phase::Running if self.owed() && !self.asked && now >= self.progress.plus_ms(self.deadline_ms() / 2) => {
                self.asked = true;
                self.answers.fill(None);
                self.open_all(effects);
            }
            _ => {}
        }
    }

    fn token_is_late(&mut self, effects: &mut Vec<Effect>) {
        let (length, ms) = (self.length(), self.deadline_ms());
        if let Some(silent) = self.answers.iter().position(Option::is_none).filter(|_| self.asked) {
            return self.late(silent, "say how far it is".to_owned(), ms - ms / 2, effects);
        }
        let last = self.answers.len() - 1;
        let behind = self.answers.iter().position(|answer| answer.is_some_and(|position| position < length)).filter(|_| self.asked);
        match behind {
            Some(stage) => self.late(stage, format!("compute position {}", length - 1), ms, effects),
            None => self.late(last, format!("choose token {}", self.generated()), ms, effects),
        }
    }

    fn late(&mut self, stage: usize, what: String, ms: u64, effects: &mut Vec<Effect>) {
        let node = self.plan.stages()[stage].node;
        self.fail(StreamError::Late { stage: index(stage), node, what, ms }, None, effects);
    }

    fn begin(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.phase != Phase::New {
            return;
        }
        self.began = now;
        let context = self.plan.context();
        let refusal = if self.open.prompt_len == 0 {
            Some(Refusal::Malformed("the prompt is empty".to_owned()))
        } else if self.open.prompt_len >= context {
            Some(Refusal::TooLong { asked: self.open.prompt_len.saturating_add(1), context })
        } else {
            None
        };
        if let Some(refusal) = refusal {
            let error = StreamError::Refused { stage: 0, node: self.plan.first_node(), refusal };
            return self.fail(error, None, effects);
        }
        if self.open.max_tokens == 0 {
            self.phase = Phase::Over;
            effects.push(Effect::Emit(Event::Finished { reason: FinishReason::Length, prefill_ms: 0, decode_ms: 0 }));
            return;
        }
        self.phase = Phase::Opening;
        self.open_all(effects);
    }

    fn open_all(&self, effects: &mut Vec<Effect>) {
        for stage in self.plan.stages() {
            self.send(stage.node, Message::Open(Box::new(self.open.clone())), effects);
        }
    }

    fn opened(&mut self, now: Time, from: NodeId, opened: Opened, effects: &mut Vec<Effect>) {
        let Some((stage, _)) = self.plan.stage_of(from).filter(|_| opened.tag == self.tag) else { return };
        let position = match opened.answer {
            Ok((position, hash)) => {
                // What it kept must be what we said that it may keep, and a prefix of what we have.
                let known = self.open.ids.get(..position as usize).map(|ids| PrefixHash::EMPTY.over(ids));
                if self.phase == Phase::Opening && (position > self.open.keep || known != Some(hash)) {
                    let why = format!("it opened the stream at position {position} instead of at most {}", self.open.keep);
                    return self.fail(StreamError::Stage { stage: index(stage), node: from, why }, None, effects);
                }
                position
            }
            Err(refusal) => return self.fail(StreamError::Refused { stage: index(stage), node: from, refusal }, None, effects),
        };
        self.answers[stage] = Some(position);
        if self.phase == Phase::Opening && self.answers.iter().all(Option::is_some) {
            self.phase = Phase::Running;
            self.progress = now;
            self.send(self.plan.first_node(), Message::Start(self.tag), effects);
            self.grant(now, effects);
        }
    }

    fn token(&mut self, now: Time, from: NodeId, token: TokenOut, effects: &mut Vec<Effect>) {
        let tag = StreamTag { deployment: token.deployment, plan: token.plan, stream: token.stream, attempt: token.attempt };
        let due = self.length();
        if self.phase != Phase::Running || from != self.plan.last_node() || tag != self.tag || token.position < due {
            return; // of another attempt or plan, or there already
        }
        let wrong = if token.position > due {
            Some(format!("token {} came where {due} was due: one was lost", token.position))
        } else if token.hash_before != self.hash {
            Some(format!("token {due} was computed after other tokens than those that were sent"))
        } else if token.position > self.granted {
            Some(format!("token {due} came, but only {} were granted", self.granted))
        } else {
            None
        };
        if let Some(why) = wrong {
            let stage = index(self.plan.stages().len() - 1);
            return self.fail(StreamError::Stage { stage, node: from, why }, None, effects);
        }
        let first = *self.first_token.get_or_insert(now);
        let event = Event::Token { index: self.generated(), token: token.token, logprobs: token.logprobs };
        self.hash = self.hash.then(token.token);
        self.tokens.push(token.token);
        self.progress = now;
        self.asked = false;
        if made(Mutation::DoubleToken) && self.tokens.len() == 3 {
            effects.push(Effect::Emit(event.clone()));
        }
        effects.push(Effect::Emit(event));
        if let Some(reason) = token.finish.or_else(|| self.finish_with(token.token)) {
            let (prefill_ms, decode_ms) = (first.ms_since(self.began), now.ms_since(first));
            effects.push(Effect::Emit(Event::Finished { reason, prefill_ms, decode_ms }));
            self.close(None, effects);
        }
    }

    /// The last stage obeys the limits itself; a client never sees more even if it does not.
    fn finish_with(&self, token: u32) -> Option<FinishReason> {
        if self.open.end_ids.binary_search(&token).is_ok() {
            Some(FinishReason::EndToken)
        } else if self.generated() >= self.open.max_tokens || self.length() >= self.plan.context() {
            Some(FinishReason::Length)
        } else {
            None
        }
    }

    fn stage_failed(&mut self, from: NodeId, failed: &StreamFailed, effects: &mut Vec<Effect>) {
        let Some((stage, _)) = self.plan.stage_of(from).filter(|_| failed.tag == self.tag && self.phase != Phase::New) else { return };
        let why = failed.why.chars().take(WHY_CHARS_MAX).collect();
        self.fail(StreamError::Stage { stage: index(stage), node: from, why }, None, effects);
    }

    fn unsent(&mut self, now: Time, to: NodeId, kind: Kind, why: String, effects: &mut Vec<Effect>) {
        match kind {
            // Asked how far it is: silence is its answer.
            Kind::Open if self.phase == Phase::Running => {}
            Kind::Open | Kind::Start => {
                let stage = self.plan.stage_of(to).map_or(0, |(stage, _)| stage);
                self.fail(StreamError::Stage { stage: index(stage), node: to, why }, None, effects);
            }
            Kind::Grant => self.regrant_at = Some(now.plus_ms(REGRANT_MS)),
            Kind::Close => {} // the lease ends it (R5)
        }
    }

    /// Grants again once half of the last grant is used, so that stages never wait for a client that keeps up.
    fn grant(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let grant = self.limits.grant.max(1);
        let position = self.open.prompt_len.saturating_add(self.taken).saturating_add(grant);
        if self.phase != Phase::Running || position < self.granted.saturating_add(grant.div_ceil(2)) {
            return;
        }
        if !self.owed() {
            self.progress = now;
            self.asked = false;
        }
        self.granted = position;
        self.send(self.plan.first_node(), Message::Grant { tag: self.tag, position }, effects);
    }

    fn node_down(&mut self, node: NodeId, effects: &mut Vec<Effect>) {
        let Some((_, stage)) = self.plan.stage_of(node) else { return };
        let name = self.names.get(&node).cloned().unwrap_or_else(|| node.short());
        let error = StreamError::NodeDown { node, name, first: stage.layers.first, end: stage.layers.end };
        self.fail(error, Some(node), effects);
    }

    fn fail(&mut self, error: StreamError, dead: Option<NodeId>, effects: &mut Vec<Effect>) {
        effects.push(Effect::Emit(Event::Failed(error)));
        self.close(dead, effects);
    }

    /// Over: every stage that may have opened drops its cache.
    fn close(&mut self, dead: Option<NodeId>, effects: &mut Vec<Effect>) {
        if self.phase != Phase::New {
            for stage in self.plan.stages().iter().filter(|stage| Some(stage.node) != dead) {
                self.send(stage.node, Message::Close(self.tag), effects);
            }
        }
        self.phase = Phase::Over;
        self.regrant_at = None;
    }

    fn send(&self, to: NodeId, message: Message, effects: &mut Vec<Effect>) {
        effects.push(Effect::Send { to, message });
    }
}

fn index(stage: usize) -> u16 {
    u16::try_from(stage).unwrap_or(u16::MAX)
}
