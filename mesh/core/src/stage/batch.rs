//! What goes into the next step: single positions first (streams that already talk), then prompt chunks, under one budget
//! of positions. Turns go round, so that no stream waits for ever behind another.

use super::run::{Run, Share};
use super::{Batch, BatchRow, Effect, Place, Stage};
use crate::ids::{StreamId, Time};
use crate::step_message::{ROWS_MAX, payload_offset};

/// The step that runs.
pub(super) struct Flight {
    pub shares: Vec<Share>,
}

impl Stage {
    /// Asks for a step if there is work and its output has a place to go.
    pub(super) fn start(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let Some(place) = &self.place else { return };
        let (is_first, is_last) = (place.is_first(), place.is_last());
        if self.flight.is_some() {
            return;
        }
        let waiting = self.waiting(is_first);
        if !is_last && (!self.credit || !self.parked.is_empty()) {
            let idle = waiting.is_empty() && self.parked.is_empty();
            self.starved_since = if idle { None } else { self.starved_since.or(Some(now)) };
            return;
        }
        if waiting.is_empty() {
            return;
        }
        let picked = self.pick(&waiting);
        let shares: Vec<Share> = picked.into_iter().map(|(stream, count)| self.share(stream, count, is_first)).collect();
        effects.push(Effect::Run(self.batch(&shares)));
        self.flight = Some(Flight { shares });
    }

    /// Streams of the plan in force that could compute now, in order of their turn, and how many positions each.
    fn waiting(&self, is_first: bool) -> Vec<(StreamId, u32)> {
        let plan = self.place.as_ref().map(|place| place.plan.hash());
        let turn = self.turn.unwrap_or(StreamId(0));
        let in_turn = self.runs.range(turn..).chain(self.runs.range(..turn));
        in_turn
            .filter(|(_, run)| Some(run.tag().plan) == plan)
            .map(|(stream, run)| (*stream, run.ready(is_first)))
            .filter(|(_, ready)| *ready > 0)
            .collect()
    }

    fn pick(&mut self, waiting: &[(StreamId, u32)]) -> Vec<(StreamId, u32)> {
        let mut room = self.limits.step_positions_max.max(1);
        let mut picked = Vec::new();
        let singles = waiting.iter().filter(|(_, ready)| *ready == 1);
        let chunks = waiting.iter().filter(|(_, ready)| *ready > 1);
        for &(stream, ready) in singles.chain(chunks) {
            if room == 0 || picked.len() == ROWS_MAX {
                self.turn = Some(stream); // the first one that found no room
                return picked;
            }
            let fair = ready.min(self.limits.chunk_positions_max.max(1));
            picked.push((stream, fair.min(room)));
            if fair > room {
                self.turn = Some(stream); // came short
                return picked;
            }
            room -= fair;
        }
        // All were served: the one that was served last will be last.
        self.turn = picked.last().and_then(|(stream, _)| stream.0.checked_add(1)).map(StreamId);
        picked
    }

    fn share(&mut self, stream: StreamId, count: u32, is_first: bool) -> Share {
        let run = self.runs.get_mut(&stream).expect("waiting streams are open");
        if is_first {
            return run.share_of_ids(count);
        }
        let (share, cut) = run.share_of_queue(count);
        if let Some(needed) = cut.and_then(|slot| self.slots.get_mut(&slot)) {
            *needed += 1;
        }
        share
    }

    fn batch(&self, shares: &[Share]) -> Batch {
        let place = self.place.as_ref().expect("steps run under a plan");
        let positions = shares.iter().map(Share::count).sum();
        let mut batch = Batch {
            rows: Vec::with_capacity(shares.len()),
            tokens: Vec::new(),
            pieces: Vec::new(),
            positions,
            fits_slot: fits_slot(place, shares.len(), positions),
        };
        for share in shares {
            let sample = share.sample && place.is_last();
            batch.rows.push(BatchRow { tag: share.tag, owner: share.owner, first: share.before.at, count: share.count(), sample });
            if place.is_first() {
                let ids = self.runs.get(&share.tag.stream).map(Run::ids).expect("waiting streams are open");
                batch.tokens.extend_from_slice(&ids[share.before.at as usize..share.after.at as usize]);
            }
            batch.pieces.extend_from_slice(&share.pieces);
        }
        batch
    }
}

fn fits_slot(place: &Place, rows: usize, positions: u32) -> bool {
    let payload = u64::from(positions) * u64::from(place.width) * 4;
    !place.is_last() && rows <= ROWS_MAX && payload_offset(rows) as u64 + payload <= u64::from(place.slot_bytes)
}
