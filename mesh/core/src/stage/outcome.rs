//! What a step gave: checked once more against plan and attempt (R12), then sent on.

use std::collections::BTreeMap;

use super::batch::Flight;
use super::run::Share;
use super::{Effect, Part, Place, Side, Stage};
use crate::generation::TokenOut;
use crate::ids::{PrefixHash, StreamId, Time};
use crate::ports::Sampled;
use crate::step_message::{ROWS_MAX, Row, payload_offset};
use crate::wire::Message;

impl Stage {
    pub(super) fn stepped(&mut self, now: Time, outcome: Result<Vec<Sampled>, String>, effects: &mut Vec<Effect>) {
        let Some(Flight { shares }) = self.flight.take() else { return };
        match outcome {
            Ok(sampled) => {
                self.counts.steps += 1;
                let mut sampled: BTreeMap<StreamId, Sampled> = sampled.into_iter().map(|one| (one.stream, one)).collect();
                self.keep(now, &shares, &mut sampled, effects);
            }
            // The engine's caches of these streams are unchanged or gone, it does not say which (see `Engine::step`).
            Err(why) => {
                for share in shares.iter().filter(|share| self.is_wanted(share)).map(|share| share.tag.stream).collect::<Vec<_>>() {
                    self.fail(share, &why, effects);
                }
            }
        }
        for piece in shares.iter().flat_map(|share| &share.pieces) {
            self.unneeded(piece.slot, effects);
        }
    }

    /// Whether the run is still the one that the share was cut from, under the same plan.
    fn is_wanted(&self, share: &Share) -> bool {
        let plan = self.place.as_ref().map(|place| place.plan.hash());
        plan == Some(share.tag.plan)
            && self.runs.get(&share.tag.stream).is_some_and(|run| run.serial() == share.serial && run.done() == share.before)
    }

    fn keep(&mut self, now: Time, shares: &[Share], sampled: &mut BTreeMap<StreamId, Sampled>, effects: &mut Vec<Effect>) {
        let mut cutter = self.place.as_ref().map(Cutter::new);
        let mut at = 0;
        for share in shares {
            let (place_at, stream) = (at, share.tag.stream);
            at += share.count();
            if !self.is_wanted(share) {
                self.counts.rows_void += 1;
                continue;
            }
            let place = self.place.as_ref().expect("wanted only under a plan");
            let run = self.runs.get_mut(&stream).expect("wanted only if it is open");
            run.computed(share);
            self.counts.positions += u64::from(share.count());
            if !place.is_last() {
                let ids = run.ids().get(share.before.at as usize..share.after.at as usize);
                cutter.as_mut().expect("there is a plan").add(share, place_at, ids);
            } else if share.sample && share.after.at == run.ids_len() {
                match sampled.remove(&stream).filter(|one| one.position == share.after.at && one.token < place.vocabulary) {
                    Some(one) => self.say_token(now, one, effects),
                    None => self.fail(stream, "the engine chose no token, or none of the vocabulary", effects),
                }
            }
        }
        self.parked.extend(cutter.map(|cutter| cutter.parts).unwrap_or_default());
    }

    /// The last stage chose a token: to stage 0 first, which can begin at once, and to the owner.
    fn say_token(&mut self, now: Time, one: Sampled, effects: &mut Vec<Effect>) {
        let place = self.place.as_ref().expect("tokens come out under a plan");
        let run = self.runs.get_mut(&one.stream).expect("tokens come out of open streams");
        let finish = run.finish_with(one.token, place.plan.context());
        let (tag, owner) = (run.tag(), run.owner());
        let token = TokenOut {
            deployment: tag.deployment,
            plan: tag.plan,
            stream: tag.stream,
            attempt: tag.attempt,
            position: one.position,
            token: one.token,
            hash_before: run.ids_hash(),
            finish,
            logprobs: one.logprobs,
        };
        run.append(one.token, finish);
        run.touch(now);
        let first = place.plan.first_node();
        if first != owner && first != place.me() {
            let short = TokenOut { logprobs: None, ..token.clone() };
            effects.push(Effect::Send { to: first, message: Message::Token(short) });
        }
        effects.push(Effect::Send { to: owner, message: Message::Token(token) });
    }

    /// Sends on what waits, one part for each credit.
    pub(super) fn emit(&mut self, effects: &mut Vec<Effect>) {
        while self.credit {
            let Some(mut part) = self.parked.pop_front() else { return };
            let plan = self.place.as_ref().map(|place| place.plan.hash());
            part.rows.retain(|(row, _)| {
                plan == Some(part.plan)
                    && self.runs.get(&row.stream).is_some_and(|run| run.tag().attempt == row.attempt && run.tag().plan == part.plan)
            });
            if !part.rows.is_empty() {
                self.credit = false;
                effects.push(Effect::Emit(part));
            }
        }
    }

    /// The next stage has taken nothing for too long.
    pub(super) fn end_starved(&mut self, effects: &mut Vec<Effect>) {
        let Some(place) = &self.place else { return };
        let why = format!("{} has taken no rows for {} ms", place.neighbour(Side::Out), self.limits.credit_ms);
        let is_first = place.is_first();
        let parked: Vec<StreamId> = self.parked.drain(..).flat_map(|part| part.rows).map(|(row, _)| row.stream).collect();
        for stream in parked {
            self.fail(stream, &why, effects);
        }
        self.fail_where(&why, effects, |run| run.ready(is_first) > 0);
    }
}

/// Cuts a step's output into parts that fit a slot each: by rows, and a row by positions.
struct Cutter {
    plan: crate::ids::PlanHash,
    position_bytes: usize,
    slot_bytes: usize,
    parts: Vec<Part>,
    /// Positions in the last part.
    filled: usize,
}

impl Cutter {
    fn new(place: &Place) -> Self {
        Self {
            plan: place.plan.hash(),
            position_bytes: place.width as usize * 4,
            slot_bytes: place.slot_bytes as usize,
            parts: Vec::new(),
            filled: 0,
        }
    }

    /// Positions that a slot with so many rows can hold.
    fn room(&self, rows: usize) -> usize {
        self.slot_bytes.saturating_sub(payload_offset(rows)) / self.position_bytes
    }

    /// `ids` are those of the share's positions; unknown only where there is one position, which is never cut.
    fn add(&mut self, share: &Share, at: u32, ids: Option<&[u32]>) {
        let (mut first, mut hash) = (share.before.at, share.before.hash);
        while first < share.after.at {
            let rows = self.parts.last().map_or(usize::MAX, |part| part.rows.len());
            if rows >= ROWS_MAX || self.room(rows + 1) <= self.filled {
                self.parts.push(Part { plan: self.plan, rows: Vec::new() });
                self.filled = 0;
            }
            let part_rows = self.parts.last().map_or(0, |part| part.rows.len());
            let room = self.room(part_rows + 1).saturating_sub(self.filled).max(1); // one position fits: `Place::slot_bytes`
            let count = u32::try_from(room).unwrap_or(u32::MAX).min(share.after.at - first);
            let done = first + count == share.after.at;
            let hash_after = if done { share.after.hash } else { hash_of(hash, ids, first - share.before.at, count) };
            let row = Row {
                stream: share.tag.stream,
                attempt: share.tag.attempt,
                first,
                count,
                hash_before: hash,
                hash_after,
                sample: share.sample && done,
            };
            self.parts.last_mut().expect("one was pushed").rows.push((row, at + (first - share.before.at)));
            self.filled += count as usize;
            first += count;
            hash = hash_after;
        }
    }
}

fn hash_of(before: PrefixHash, ids: Option<&[u32]>, from: u32, count: u32) -> PrefixHash {
    let ids = ids.expect("rows of more than one position have known ids");
    before.over(&ids[from as usize..(from + count) as usize])
}
