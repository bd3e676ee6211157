//! One stage: accept, fence, order, batch and credit, as a pure core (R12).
//!
//! A stage holds the caches of many streams. Rows reach it from the stage before (or, at stage 0, as token ids from the
//! owner's `Open` and from the last stage); it accepts them one by one (R1–R3: plan and attempt are *equal* to its own,
//! the position is the next one, the prefix hash is its own), batches what waits, has the engine run it, and sends the
//! outcome on: activations to the next stage, or tokens to the stream's owner and to stage 0.
//!
//! ```text
//! Open ── fence, attempt, sizes ──> OpenCache ── CacheOpened ──> Opened to the owner
//! Arrived (a slot of rows) ──> pieces, queued by stream ──┐
//! Start, Grant, Token (stage 0) ──> ids, granted ─────────┴─> Run (one batch at a time, only with credit)
//! Stepped ── plan, attempt and row still as at acceptance? ──> Emit (parts that fit a slot) or Token
//! ```
//! Who drives it performs the effects in order and says what came of them: the shard's thread live, the simulator inline.
//! While a step runs, everything else may happen: an `Open` or `Close` voids the stream's rows in flight, and what the
//! engine gives for them is written nowhere.
//!
//! Bounds: streams, positions in a step and the memory of what has ended are limited by [`Limits`]; rows that wait lie in
//! slots of the lane, which are given back only when their last row is done, so their number is the lane's.

mod accept;
mod batch;
mod outcome;
mod run;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use crate::generation::{Attempt, Open, Refusal, TokenOut};
use crate::ids::{DeploymentId, NodeId, PlanHash, StreamId, Time};
use crate::plan::Plan;
use crate::ports::{CacheFull, LaneSlot, SampleHow, Sampled};
use crate::step_message::Row;
use crate::wire::{Message, Opened, StreamFailed, StreamTag};
use batch::Flight;
use run::Run;

/// Bounds and deadlines of a stage. (Guesses where nothing else is said.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Streams that are open at once.
    pub streams_max: u32,
    /// Positions in one step.
    pub step_positions_max: u32,
    /// Positions of one stream in one step.
    pub chunk_positions_max: u32,
    /// A stream that got no row, token or grant for so long is dropped (R5).
    pub lease_ms: u64,
    /// Work that waits so long for the next stage to take rows ends its streams (P4). Below the owner's own deadline, so
    /// that the stage that is stuck is named by the one that sees it.
    pub credit_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { streams_max: 256, step_positions_max: 256, chunk_positions_max: 128, lease_ms: 600_000, credit_ms: 25_000 }
    }
}

/// Streams that have ended and whose attempts are still remembered, so that a late repeat of their `Open` finds nothing
/// to open. (Guess: a few times `streams_max`.)
const ENDED_MAX: usize = 1024;

/// Log-probabilities of likeliest tokens that may be asked for with each token.
const LOGPROBS_MAX: u8 = 20;

/// Tokens that may end a generation. (Guess; models have up to five.)
const END_IDS_MAX: usize = 256;

/// A stage's place: which plan is in force, and what it says about this stage.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// The deployment.
    pub deployment: DeploymentId,
    /// The plan in force.
    pub plan: Plan,
    /// Index of this stage in it.
    pub index: u16,
    /// Values a position.
    pub width: u32,
    /// Number of token ids.
    pub vocabulary: u32,
    /// Bytes of a slot of the lane to the next stage: at least one row with one position fits.
    pub slot_bytes: u32,
}

impl Place {
    fn is_first(&self) -> bool {
        self.index == 0
    }
    fn is_last(&self) -> bool {
        usize::from(self.index) + 1 == self.plan.stages().len()
    }
    fn me(&self) -> NodeId {
        self.plan.stages()[usize::from(self.index)].node
    }
    /// A neighbour's stage, in words: "stage 2 on n:01020304".
    fn neighbour(&self, side: Side) -> String {
        let index = match side {
            Side::In => usize::from(self.index).wrapping_sub(1),
            Side::Out => usize::from(self.index) + 1,
        };
        match self.plan.stages().get(index) {
            Some(stage) => format!("stage {index} on {:?}", stage.node),
            None => "nobody".to_owned(),
        }
    }
}

/// Which of a stage's lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// From the stage before.
    In,
    /// To the next stage.
    Out,
}

/// A received slot, by the life of the lane that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlotId {
    /// Which life of the lane; the driver counts them.
    pub lane: u64,
    /// Which slot of it.
    pub slot: LaneSlot,
}

/// What happens to a stage.
#[derive(Clone, Debug)]
pub enum Input {
    /// A plan was published and is in force here from now on.
    Adopt(Box<Place>),
    /// No plan is in force here any more; streams end, for this reason.
    Fence {
        /// Why.
        why: String,
    },
    /// A control message: `Open`, `Start`, `Grant`, `Close` or `Token`. Others are counted and ignored.
    Heard {
        /// From whom, authenticated.
        from: NodeId,
        /// What.
        message: Message,
    },
    /// A node is down, left or restarted: what it owned is over.
    NodeDown(NodeId),
    /// What came of [`Effect::OpenCache`]: positions that the cache has.
    CacheOpened {
        /// Whose.
        tag: StreamTag,
        /// How many positions it has, or why it has none.
        outcome: Result<u32, CacheFull>,
    },
    /// A message arrived on the lane from the stage before.
    Arrived {
        /// Where its values lie. Given back by [`Effect::Release`].
        slot: SlotId,
        /// The plan that it names.
        plan: PlanHash,
        /// Values a position.
        width: u32,
        /// Its rows.
        rows: Vec<Row>,
    },
    /// What came of [`Effect::Run`]: tokens, or what went wrong, in words.
    Stepped(Result<Vec<Sampled>, String>),
    /// The lane to the next stage has a free slot.
    Credit,
    /// A lane ended. What was on it is lost.
    LaneDown {
        /// Which.
        side: Side,
        /// Why.
        why: String,
    },
    /// Time passed.
    Elapsed,
}

/// What a stage wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send a control message.
    Send {
        /// To whom.
        to: NodeId,
        /// What.
        message: Message,
    },
    /// Make room for a stream, or keep the first `keep` positions of its cache. Answered by [`Input::CacheOpened`].
    OpenCache {
        /// Whose.
        tag: StreamTag,
        /// Positions to keep at most.
        keep: u32,
        /// Positions it may grow to.
        positions_max: u32,
    },
    /// Drop a stream's cache.
    CloseCache(StreamId),
    /// Run a step. Answered by [`Input::Stepped`]; until then no other is asked for.
    Run(Batch),
    /// Send a part of the last step's output on; takes one slot of the lane.
    Emit(Part),
    /// Nothing more is read from this slot. Ignored if its lane is gone: what was due earlier may come out together with the
    /// lane's end.
    Release(SlotId),
}

/// One step's work.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// One row a stream.
    pub rows: Vec<BatchRow>,
    /// The ids, row by row (stage 0; else empty).
    pub tokens: Vec<u32>,
    /// Where the values lie, row by row (not at stage 0).
    pub pieces: Vec<Piece>,
    /// Sum of the rows' counts.
    pub positions: u32,
    /// Whether the whole output fits one slot of the lane, so that the engine can write straight into it.
    pub fits_slot: bool,
}

/// One stream's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchRow {
    /// Which attempt of which stream.
    pub tag: StreamTag,
    /// Its owner.
    pub owner: NodeId,
    /// First position.
    pub first: u32,
    /// How many.
    pub count: u32,
    /// Whether to choose the token after the last of them: see [`Stage::sample_how`].
    pub sample: bool,
}

/// Consecutive positions of one stream in a received slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The slot.
    pub slot: SlotId,
    /// First position's place in the slot's values.
    pub at: u32,
    /// How many.
    pub count: u32,
}

/// Rows of a step's output that fit one slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The plan that they belong to.
    pub plan: PlanHash,
    /// Each row, and its first position's place in the step's output.
    pub rows: Vec<(Row, u32)>,
}

/// What a stage has seen so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// Steps that gave something.
    pub steps: u64,
    /// Positions computed and kept.
    pub positions: u64,
    /// Rows of streams that are not open here.
    pub rows_unknown: u64,
    /// Rows, messages and tokens of another plan or attempt.
    pub stale: u64,
    /// Rows and tokens that were there already.
    pub repeats: u64,
    /// Outcomes that nobody wanted any more when they were done.
    pub rows_void: u64,
    /// Control messages that make no sense here, or come from one who may not send them.
    pub refused: u64,
}

/// The core of one stage. See the module's head.
pub struct Stage {
    limits: Limits,
    place: Option<Place>,
    runs: BTreeMap<StreamId, Run>,
    /// The greatest attempt of streams that have ended, oldest first in `ended_order`.
    ended: BTreeMap<StreamId, Attempt>,
    ended_order: VecDeque<StreamId>,
    /// Pieces that still need each slot.
    slots: BTreeMap<SlotId, u32>,
    flight: Option<Flight>,
    parked: VecDeque<Part>,
    credit: bool,
    /// Work has waited for credit since.
    starved_since: Option<Time>,
    lease_check_at: Option<Time>,
    /// The stream that is served first next time.
    turn: Option<StreamId>,
    serial: u64,
    counts: Counts,
}

impl Stage {
    /// A stage without a plan: it refuses every stream.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            place: None,
            runs: BTreeMap::new(),
            ended: BTreeMap::new(),
            ended_order: VecDeque::new(),
            slots: BTreeMap::new(),
            flight: None,
            parked: VecDeque::new(),
            credit: false,
            starved_since: None,
            lease_check_at: None,
            turn: None,
            serial: 0,
            counts: Counts::default(),
        }
    }

    /// Same history, same effects. What is due by `now` is settled first.
    pub fn step(&mut self, now: Time, input: Input, effects: &mut Vec<Effect>) {
        self.settle(now, effects);
        match input {
            Input::Adopt(place) => self.adopt(*place, effects),
            Input::Fence { why } => self.fence(&why, effects),
            Input::Heard { from, message } => self.heard(now, from, message, effects),
            Input::NodeDown(node) => self.end_where(effects, |run| run.owner() == node),
            Input::CacheOpened { tag, outcome } => self.cache_opened(tag, outcome, effects),
            Input::Arrived { slot, plan, width, rows } => self.arrived(now, slot, plan, width, &rows, effects),
            Input::Stepped(outcome) => self.stepped(now, outcome, effects),
            Input::Credit => {
                self.credit = true;
                self.starved_since = None;
            }
            Input::LaneDown { side, why } => self.lane_down(side, &why, effects),
            Input::Elapsed => {}
        }
        self.emit(effects);
        self.start(now, effects);
        if self.lease_check_at.is_none() && !self.runs.is_empty() {
            self.lease_check_at = Some(now.plus_ms(self.limits.lease_ms));
        }
    }

    /// When `step` next wants `Elapsed`.
    #[must_use]
    pub fn wake_at(&self) -> Option<Time> {
        let starved = self.starved_since.map(|since| since.plus_ms(self.limits.credit_ms));
        starved.into_iter().chain(self.lease_check_at).min()
    }

    /// Whether a free slot of the lane to the next stage would be news: say [`Input::Credit`] then.
    #[must_use]
    pub fn wants_credit(&self) -> bool {
        !self.credit && self.place.as_ref().is_some_and(|place| !place.is_last())
    }

    /// How to choose a token for a row of the running step whose `sample` is set.
    #[must_use]
    pub fn sample_how(&self, stream: StreamId) -> Option<SampleHow<'_>> {
        self.runs.get(&stream).map(Run::sample_how)
    }

    /// Streams that are open.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.runs.len()
    }

    /// What it has seen so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn settle(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.starved_since.is_some_and(|since| now >= since.plus_ms(self.limits.credit_ms)) {
            self.starved_since = None;
            self.end_starved(effects);
        }
        if self.lease_check_at.is_some_and(|at| now >= at) {
            let lease_ms = self.limits.lease_ms;
            let why = format!("no row, token or grant for {lease_ms} ms");
            self.fail_where(&why, effects, |run| now >= run.touched().plus_ms(lease_ms));
            self.lease_check_at = self.runs.values().map(|run| run.touched().plus_ms(lease_ms)).min();
        }
    }

    fn adopt(&mut self, place: Place, effects: &mut Vec<Effect>) {
        let same_layers = match &self.place {
            Some(sitting) if *sitting == place => return,
            Some(sitting) => {
                sitting.plan.stages()[usize::from(sitting.index)].layers == place.plan.stages()[usize::from(place.index)].layers
            }
            None => false,
        };
        // Rows in flight and on their way belong to the old plan. Caches stay where the layers stay (R3): the owner's next
        // attempt may keep a prefix of them.
        self.forget_output();
        let streams: Vec<StreamId> = self.runs.keys().copied().collect();
        for stream in streams {
            self.drop_pieces(stream, effects);
        }
        self.runs.values_mut().for_each(Run::fence);
        self.place = Some(place);
        if !same_layers {
            self.end_where(effects, |_| true);
        }
    }

    fn fence(&mut self, why: &str, effects: &mut Vec<Effect>) {
        self.fail_where(why, effects, |_| true);
        self.forget_output();
        self.place = None;
    }

    fn heard(&mut self, now: Time, from: NodeId, message: Message, effects: &mut Vec<Effect>) {
        match message {
            Message::Open(open) => self.open(now, from, *open, effects),
            Message::Start(tag) => {
                if let Some(run) = self.owned(from, &tag) {
                    run.start(now);
                }
            }
            Message::Grant { tag, position } => {
                if let Some(run) = self.owned(from, &tag) {
                    run.grant(now, position);
                }
            }
            Message::Close(tag) => {
                if self.owned(from, &tag).is_some() {
                    self.end(tag.stream, effects);
                }
            }
            Message::Token(token) => self.token(now, from, &token, effects),
            _ => self.counts.refused += 1,
        }
    }

    /// The run of exactly this attempt, if `from` is its owner.
    fn owned(&mut self, from: NodeId, tag: &StreamTag) -> Option<&mut Run> {
        let run = self.runs.get_mut(&tag.stream).filter(|run| run.tag() == *tag && run.owner() == from);
        if run.is_none() {
            self.counts.stale += 1;
        }
        run
    }

    fn open(&mut self, now: Time, from: NodeId, open: Open, effects: &mut Vec<Effect>) {
        if from != open.attempt.owner {
            self.counts.refused += 1;
            return;
        }
        let tag = StreamTag { deployment: open.deployment, plan: open.plan, stream: open.stream, attempt: open.attempt.tag() };
        // An owner that missed the answer, or wants to know how far we are, repeats itself.
        if let Some(run) = self.runs.get(&open.stream).filter(|run| run.tag() == tag) {
            if let Some(position) = run.opened() {
                self.answer(from, tag, Ok(position), effects);
            }
            return;
        }
        if let Err(refusal) = self.admit(&open) {
            self.answer(from, tag, Err(refusal), effects);
            return;
        }
        let context = self.place.as_ref().expect("admitted only under a plan").plan.context();
        self.drop_pieces(open.stream, effects);
        self.serial += 1;
        let old = self.runs.remove(&open.stream);
        let run = Run::new(now, self.serial, open, old);
        effects.push(Effect::OpenCache { tag, keep: run.keep(), positions_max: run.positions_max(context) });
        self.runs.insert(tag.stream, run);
    }

    /// Whether an attempt may be opened here. Everything that the engine takes for granted is checked here: one stream's
    /// nonsense must not fail a step that others share.
    fn admit(&self, open: &Open) -> Result<(), Refusal> {
        let malformed = |what: &str| Err(Refusal::Malformed(what.to_owned()));
        let Some(place) = self.place.as_ref().filter(|place| place.plan.hash() == open.plan && place.deployment == open.deployment) else {
            return Err(Refusal::Fenced(self.place.as_ref().map(|place| place.plan.hash())));
        };
        let sitting = self.runs.get(&open.stream).map(Run::attempt);
        if sitting.into_iter().chain(self.ended.get(&open.stream).copied()).any(|attempt| open.attempt <= attempt) {
            return Err(Refusal::Deposed);
        }
        let asked = u32::try_from(open.ids.len()).unwrap_or(u32::MAX);
        if asked == 0 || open.prompt_len == 0 || open.prompt_len > asked {
            return malformed("a stream needs a prompt, and its ids begin with it");
        }
        if asked >= place.plan.context() {
            return Err(Refusal::TooLong { asked: asked.saturating_add(1), context: place.plan.context() });
        }
        if open.keep >= asked || open.sample_from > asked {
            return malformed("positions to keep or to sample from lie beyond the ids");
        }
        if asked - open.prompt_len >= open.max_tokens {
            return malformed("every token that may be generated is there already");
        }
        if open.ids.iter().any(|&id| id >= place.vocabulary) {
            return malformed("a token id is not in the vocabulary");
        }
        if open.end_ids.len() > END_IDS_MAX || !open.end_ids.is_sorted() || open.sampling.logprobs.is_some_and(|top| top > LOGPROBS_MAX) {
            return malformed("end tokens are unsorted or too many, or too many log-probabilities are asked for");
        }
        if sitting.is_none() && self.runs.len() >= self.limits.streams_max as usize {
            return Err(Refusal::Busy { streams: u32::try_from(self.runs.len()).unwrap_or(u32::MAX) });
        }
        Ok(())
    }

    fn cache_opened(&mut self, tag: StreamTag, outcome: Result<u32, CacheFull>, effects: &mut Vec<Effect>) {
        let Some(run) = self.runs.get_mut(&tag.stream).filter(|run| run.tag() == tag && run.opened().is_none()) else {
            return; // superseded meanwhile: its own OpenCache follows
        };
        let owner = run.owner();
        match outcome {
            Ok(positions) => {
                let position = run.cache_is_open(positions);
                self.answer(owner, tag, Ok(position), effects);
            }
            Err(full) => {
                self.runs.remove(&tag.stream);
                effects.push(Effect::CloseCache(tag.stream));
                let refusal = Refusal::CacheFull { need_bytes: full.need_bytes, free_bytes: full.free_bytes };
                self.answer(owner, tag, Err(refusal), effects);
            }
        }
    }

    fn answer(&self, owner: NodeId, tag: StreamTag, answer: Result<run::Position, Refusal>, effects: &mut Vec<Effect>) {
        let stage = self.place.as_ref().map_or(u16::MAX, |place| place.index);
        let answer = answer.map(|position| (position.at, position.hash));
        effects.push(Effect::Send { to: owner, message: Message::Opened(Opened { tag, stage, answer }) });
    }

    /// The last stage's token reaches stage 0.
    fn token(&mut self, now: Time, from: NodeId, token: &TokenOut, effects: &mut Vec<Effect>) {
        let Some(place) = &self.place else { return };
        let right = place.is_first() && !place.is_last() && from == place.plan.last_node() && token.plan == place.plan.hash();
        let Some(run) =
            self.runs.get_mut(&token.stream).filter(|run| right && run.tag().plan == token.plan && run.tag().attempt == token.attempt)
        else {
            self.counts.stale += 1;
            return;
        };
        if token.token >= place.vocabulary {
            self.fail(token.stream, "the last stage chose a token that is not in the vocabulary", effects);
            return;
        }
        match run.token(now, token) {
            run::TokenFate::Taken => {}
            run::TokenFate::Repeat => self.counts.repeats += 1,
            run::TokenFate::Wrong(why) => self.fail(token.stream, &why, effects),
        }
    }

    fn lane_down(&mut self, side: Side, why: &str, effects: &mut Vec<Effect>) {
        match side {
            Side::In => self.slots.clear(), // its memory is gone
            Side::Out => self.forget_output(),
        }
        let Some(place) = &self.place else { return };
        let plan = place.plan.hash();
        let why = match side {
            Side::In => format!("the tensor lane from {} is down: {why}", place.neighbour(side)),
            Side::Out => format!("the tensor lane to {} is down: {why}", place.neighbour(side)),
        };
        // Rows may have been on it, and channels never resend. A stream that has sent nothing yet has lost nothing: an idle
        // lane may move to a better link just as a stream is opened.
        self.fail_where(&why, effects, |run| run.tag().plan == plan && (side == Side::In || run.has_begun()));
    }

    /// Whatever waited for the lane to the next stage is for nobody.
    fn forget_output(&mut self) {
        self.parked.clear();
        self.credit = false;
        self.starved_since = None;
    }

    /// Ends a stream that cannot go on and tells its owner.
    fn fail(&mut self, stream: StreamId, why: &str, effects: &mut Vec<Effect>) {
        let Some(run) = self.runs.get(&stream) else { return };
        let stage = self.place.as_ref().map_or(u16::MAX, |place| place.index);
        let failed = StreamFailed { tag: run.tag(), stage, why: why.to_owned() };
        effects.push(Effect::Send { to: run.owner(), message: Message::StreamFailed(failed) });
        self.end(stream, effects);
    }

    fn fail_where(&mut self, why: &str, effects: &mut Vec<Effect>, whether: impl Fn(&Run) -> bool) {
        let streams: Vec<StreamId> = self.runs.iter().filter(|(_, run)| whether(run)).map(|(stream, _)| *stream).collect();
        for stream in streams {
            self.fail(stream, why, effects);
        }
    }

    fn end_where(&mut self, effects: &mut Vec<Effect>, whether: impl Fn(&Run) -> bool) {
        let streams: Vec<StreamId> = self.runs.iter().filter(|(_, run)| whether(run)).map(|(stream, _)| *stream).collect();
        for stream in streams {
            self.end(stream, effects);
        }
    }

    /// Drops everything of a stream but the memory that its attempt was here.
    fn end(&mut self, stream: StreamId, effects: &mut Vec<Effect>) {
        self.drop_pieces(stream, effects);
        let Some(run) = self.runs.remove(&stream) else { return };
        effects.push(Effect::CloseCache(stream));
        if self.ended.insert(stream, run.attempt()).is_none() {
            self.ended_order.push_back(stream);
        }
        while self.ended_order.len() > ENDED_MAX {
            if let Some(oldest) = self.ended_order.pop_front() {
                self.ended.remove(&oldest);
            }
        }
    }
}
