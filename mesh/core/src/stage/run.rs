//! One stream as one stage sees it: what is computed, what is accepted, what may be computed next.
//!
//! ```text
//! 0 ........ done ........ next                 a later stage: positions that lie in slots
//! 0 ........ done ........ min(ids, granted)    stage 0: positions whose ids are known and granted
//! ```
//! Two stages that agree on (position, prefix hash) agree on every token before it (R3). The hash at `done` moves with
//! `done`; where the ids are known (the prompt, tokens sent before this attempt, and at both ends of the chain every
//! token) it is computed here, elsewhere it is what the row says.

use std::collections::VecDeque;

use super::{Piece, SlotId};
use crate::generation::{Attempt, FinishReason, Open, TokenOut};
use crate::ids::{NodeId, PrefixHash, Time};
use crate::mutation::{Mutation, made};
use crate::ports::SampleHow;
use crate::step_message::Row;
use crate::wire::StreamTag;

/// A position and the hash of the ids before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub at: u32,
    pub hash: PrefixHash,
}

impl Position {
    const START: Self = Self { at: 0, hash: PrefixHash::EMPTY };
}

/// Accepted positions that wait.
#[derive(Clone, Copy, Debug)]
struct Queued {
    piece: Piece,
    hash_after: PrefixHash,
    sample: bool,
}

/// What becomes of a row.
#[derive(Debug, PartialEq)]
pub(super) enum RowFate {
    /// It was queued.
    Taken,
    /// It was computed or queued before.
    Repeat,
    /// The stream cannot go on, for this reason.
    Wrong(String),
}

/// What becomes of a token at stage 0.
#[derive(Debug, PartialEq)]
pub(super) enum TokenFate {
    Taken,
    Repeat,
    Wrong(String),
}

/// What a step is to do for a stream.
#[derive(Clone, Debug)]
pub(super) struct Share {
    pub serial: u64,
    pub tag: StreamTag,
    pub owner: NodeId,
    pub before: Position,
    pub after: Position,
    pub sample: bool,
    pub pieces: Vec<Piece>,
}

impl Share {
    pub fn count(&self) -> u32 {
        self.after.at - self.before.at
    }
}

/// The serial of a run whose plan was replaced. No share bears it.
const FENCED: u64 = 0;

/// One stream at one stage. See the module's head.
pub(super) struct Run {
    /// Tells this run from any other that bears the same attempt; [`FENCED`] if it is over but for its cache.
    serial: u64,
    tag: StreamTag,
    attempt: Attempt,
    open: Open,
    ids_hash: PrefixHash,
    /// Positions of an older attempt's cache that this one's ids confirm.
    keep: u32,
    cached: bool,
    done: Position,
    next: Position,
    queue: VecDeque<Queued>,
    /// Prefix hashes after rows whose ids this stage does not know; in order of position.
    marks: Vec<Position>,
    granted: u32,
    started: bool,
    finished: bool,
    touched: Time,
}

impl Run {
    /// A run whose cache is not open yet. `old` is the stream's run before this attempt: a prefix of its cache may stay.
    pub fn new(now: Time, serial: u64, open: Open, old: Option<Self>) -> Self {
        let tag = StreamTag { deployment: open.deployment, plan: open.plan, stream: open.stream, attempt: open.attempt.tag() };
        let keep = old.map_or(0, |old| old.confirmed(&open));
        Self {
            serial,
            tag,
            attempt: open.attempt,
            ids_hash: PrefixHash::EMPTY.over(&open.ids),
            keep,
            cached: false,
            done: Position::START,
            next: Position::START,
            queue: VecDeque::new(),
            marks: Vec::new(),
            granted: open.granted,
            started: false,
            finished: false,
            touched: now,
            open,
        }
    }

    pub fn tag(&self) -> StreamTag {
        self.tag
    }
    pub fn serial(&self) -> u64 {
        self.serial
    }
    pub fn attempt(&self) -> Attempt {
        self.attempt
    }
    pub fn owner(&self) -> NodeId {
        self.attempt.owner
    }
    pub fn keep(&self) -> u32 {
        self.keep
    }
    pub fn touched(&self) -> Time {
        self.touched
    }
    pub fn done(&self) -> Position {
        self.done
    }
    pub fn ids(&self) -> &[u32] {
        &self.open.ids
    }
    pub fn sample_how(&self) -> SampleHow<'_> {
        SampleHow { sampling: &self.open.sampling, ids: &self.open.ids, prompt_len: self.open.prompt_len }
    }
    /// Positions that the cache may grow to.
    pub fn positions_max(&self, context: u32) -> u32 {
        self.open.prompt_len.saturating_add(self.open.max_tokens).min(context)
    }

    /// The first position that is lacking, once the cache is open.
    pub fn opened(&self) -> Option<Position> {
        (self.cached && self.serial != FENCED).then_some(self.next)
    }

    /// Whether anything of this attempt was begun, accepted or computed here: until then nothing of it was sent on.
    pub fn has_begun(&self) -> bool {
        self.started || !self.queue.is_empty() || self.next.at > self.keep || self.done.at > self.keep
    }

    /// The plan was replaced: nothing more is computed for this attempt, but its cache may serve the next one.
    pub fn fence(&mut self) {
        self.serial = FENCED;
    }

    /// A sign of life of its owner or its neighbours.
    pub fn touch(&mut self, now: Time) {
        self.touched = now;
    }

    /// The cache is open and has `positions`, of which no more than the confirmed ones count.
    pub fn cache_is_open(&mut self, positions: u32) -> Position {
        let at = positions.min(self.keep);
        let hash = PrefixHash::EMPTY.over(&self.open.ids[..at as usize]);
        self.cached = true;
        self.keep = at;
        self.done = Position { at, hash };
        self.next = self.done;
        self.done
    }

    /// How many cached positions the ids of a new attempt confirm, at most its `keep` (R3).
    fn confirmed(self, open: &Open) -> u32 {
        if !self.cached {
            return 0;
        }
        let limit = open.keep.min(self.done.at) as usize;
        let same = self.open.ids.iter().zip(&open.ids).take(limit).take_while(|(old, new)| old == new).count();
        let mut confirmed = same;
        // Past the ids that this stage knows, its own hash after each row says whether it saw the same ones.
        if same == self.open.ids.len() {
            let mut hash = PrefixHash::EMPTY.over(&open.ids[..same]);
            let mut at = same;
            for mark in self.marks.iter().take_while(|mark| mark.at as usize <= limit) {
                while at < mark.at as usize {
                    hash = hash.then(open.ids[at]);
                    at += 1;
                }
                if mark.hash != hash {
                    break;
                }
                confirmed = at;
            }
        }
        u32::try_from(confirmed).unwrap_or(u32::MAX)
    }

    pub fn start(&mut self, now: Time) {
        self.started = true;
        self.touched = now;
    }

    /// A lease, renewed; grants only grow, whatever order they come in.
    pub fn grant(&mut self, now: Time, position: u32) {
        self.granted = self.granted.max(position);
        self.touched = now;
    }

    /// A token at stage 0: the id of the next position.
    pub fn token(&mut self, now: Time, token: &TokenOut) -> TokenFate {
        let known = self.ids_len();
        if token.position < known {
            return TokenFate::Repeat;
        }
        if token.position > known || token.hash_before != self.ids_hash {
            return TokenFate::Wrong(format!("token {} came where {known} was due, or after other tokens than were here", token.position));
        }
        self.append(token.token, token.finish);
        self.touched = now;
        TokenFate::Taken
    }

    /// The next token is known.
    pub fn append(&mut self, token: u32, finish: Option<FinishReason>) {
        self.open.ids.push(token);
        self.ids_hash = self.ids_hash.then(token);
        self.finished = finish.is_some();
    }

    pub fn ids_hash(&self) -> PrefixHash {
        self.ids_hash
    }

    pub fn ids_len(&self) -> u32 {
        u32::try_from(self.open.ids.len()).expect("no longer than the plan's context")
    }

    /// Why the generation ends with `token` at `position`, if it does (R5).
    pub fn finish_with(&self, token: u32, context: u32) -> Option<FinishReason> {
        let length = self.ids_len().saturating_add(1);
        if self.open.end_ids.binary_search(&token).is_ok() {
            Some(FinishReason::EndToken)
        } else if length - self.open.prompt_len >= self.open.max_tokens || length >= context {
            Some(FinishReason::Length)
        } else {
            None
        }
    }

    /// Whether a row can be taken: called for rows of this very attempt and plan.
    pub fn accept(&mut self, now: Time, slot: SlotId, at: u32, row: &Row, knows_all_ids: bool, context: u32) -> RowFate {
        let reckless = made(Mutation::SkipFencing);
        let taken = Row { first: self.next.at, hash_before: self.next.hash, ..*row };
        let row = if reckless { &taken } else { row };
        let end = row.first.saturating_add(row.count);
        let known = self.ids_len();
        if end <= self.next.at {
            return RowFate::Repeat;
        }
        if self.finished {
            return RowFate::Wrong(format!("positions {}..{end} come after the last token", row.first));
        }
        if row.first > self.next.at {
            return RowFate::Wrong(format!("positions {}..{} are missing before {end}", self.next.at, row.first));
        }
        if end > context || (end > known && (row.count > 1 || knows_all_ids)) {
            return RowFate::Wrong(format!("positions {}..{end} have no ids ({known} are known, context {context})", row.first));
        }
        if row.first == self.next.at && row.hash_before != self.next.hash {
            return RowFate::Wrong(format!("another prefix before position {}", row.first));
        }
        let skip = self.next.at - row.first; // resent in other pieces: what is there stays
        if !reckless && end <= known && self.next.hash.over(&self.open.ids[self.next.at as usize..end as usize]) != row.hash_after {
            return RowFate::Wrong(format!("other ids at positions {}..{end}", row.first));
        }
        let piece = Piece { slot, at: at + skip, count: row.count - skip };
        self.queue.push_back(Queued { piece, hash_after: row.hash_after, sample: row.sample });
        self.next = Position { at: end, hash: row.hash_after };
        self.touched = now;
        RowFate::Taken
    }

    /// Positions that could be computed now.
    pub fn ready(&self, is_first: bool) -> u32 {
        if self.opened().is_none() {
            0
        } else if is_first {
            if self.started && !self.finished { self.ids_len().min(self.granted).saturating_sub(self.done.at) } else { 0 }
        } else {
            self.queue.iter().map(|queued| queued.piece.count).sum()
        }
    }

    /// The next step's share at stage 0: `count` positions of known ids, at most as many as are ready.
    pub fn share_of_ids(&self, count: u32) -> Share {
        let end = self.done.at + count;
        let hash = self.done.hash.over(&self.open.ids[self.done.at as usize..end as usize]);
        let sample = end == self.ids_len() && end >= self.open.sample_from;
        self.share(Position { at: end, hash }, sample, Vec::new())
    }

    /// The next step's share at a later stage: at most `count` positions of what is queued. Gives the pieces that were cut
    /// in two, whose slots are needed once more.
    pub fn share_of_queue(&mut self, count: u32) -> (Share, Option<SlotId>) {
        let (mut pieces, mut sample, mut after, mut cut) = (Vec::new(), false, self.done, None);
        let mut room = count;
        while let Some(front) = self.queue.front_mut().filter(|_| room > 0 && !sample) {
            if front.piece.count <= room {
                room -= front.piece.count;
                after = Position { at: after.at + front.piece.count, hash: front.hash_after };
                sample = front.sample;
                pieces.push(front.piece);
                self.queue.pop_front();
            } else {
                // Only rows of known ids have more than one position, so the hash at the cut can be computed.
                let end = after.at + room;
                after = Position { at: end, hash: after.hash.over(&self.open.ids[after.at as usize..end as usize]) };
                pieces.push(Piece { count: room, ..front.piece });
                front.piece.at += room;
                front.piece.count -= room;
                cut = Some(front.piece.slot);
                room = 0;
            }
        }
        let sample = sample && after.at >= self.open.sample_from;
        (self.share(after, sample, pieces), cut)
    }

    fn share(&self, after: Position, sample: bool, pieces: Vec<Piece>) -> Share {
        Share { serial: self.serial, tag: self.tag, owner: self.owner(), before: self.done, after, sample, pieces }
    }

    /// A share was computed.
    pub fn computed(&mut self, share: &Share) {
        self.done = share.after;
        if self.next.at < self.done.at {
            self.next = self.done; // stage 0 accepts nothing: what it computed is what it has
        }
        if share.after.at > self.ids_len() {
            self.marks.push(share.after);
        }
    }

    /// Takes everything that waits out of the queue.
    pub fn unqueue(&mut self) -> impl Iterator<Item = SlotId> {
        std::mem::take(&mut self.queue).into_iter().map(|queued| queued.piece.slot)
    }
}
