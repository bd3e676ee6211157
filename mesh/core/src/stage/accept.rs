//! Rows that arrive: accepted one by one, each for its own stream (R17). And the slots that they lie in.

use super::run::RowFate;
use super::{Effect, SlotId, Stage};
use crate::ids::{PlanHash, StreamId, Time};
use crate::mutation::{Mutation, made};
use crate::step_message::Row;

impl Stage {
    pub(super) fn arrived(&mut self, now: Time, slot: SlotId, plan: PlanHash, width: u32, rows: &[Row], effects: &mut Vec<Effect>) {
        self.slots.insert(slot, 1); // held while we look at it, so that a failing row cannot give it away under the others
        let fits = self
            .place
            .as_ref()
            .is_some_and(|place| (place.plan.hash() == plan || made(Mutation::SkipFencing)) && place.width == width && !place.is_first());
        if fits {
            let mut at = 0_u32;
            for row in rows {
                self.accept(now, slot, at, row, effects);
                at = at.saturating_add(row.count);
            }
        } else {
            self.counts.stale += rows.len() as u64;
        }
        self.unneeded(slot, effects);
    }

    fn accept(&mut self, now: Time, slot: SlotId, at: u32, row: &Row, effects: &mut Vec<Effect>) {
        let place = self.place.as_ref().expect("rows are accepted under a plan");
        let Some(run) = self.runs.get_mut(&row.stream).filter(|run| run.opened().is_some()) else {
            self.counts.rows_unknown += 1;
            return;
        };
        let stale = run.tag().plan != place.plan.hash() || run.tag().attempt != row.attempt;
        if stale && !made(Mutation::SkipFencing) {
            self.counts.stale += 1;
            return;
        }
        match run.accept(now, slot, at, row, place.is_last(), place.plan.context()) {
            RowFate::Taken => *self.slots.entry(slot).or_default() += 1,
            RowFate::Repeat => self.counts.repeats += 1,
            RowFate::Wrong(why) => self.fail(row.stream, &why, effects),
        }
    }

    /// One piece less needs this slot.
    pub(super) fn unneeded(&mut self, slot: SlotId, effects: &mut Vec<Effect>) {
        let Some(pieces) = self.slots.get_mut(&slot) else { return }; // its lane went down
        *pieces -= 1;
        if *pieces == 0 {
            self.slots.remove(&slot);
            effects.push(Effect::Release(slot));
        }
    }

    /// A stream's accepted rows are for nobody.
    pub(super) fn drop_pieces(&mut self, stream: StreamId, effects: &mut Vec<Effect>) {
        let slots: Vec<SlotId> = self.runs.get_mut(&stream).map(|run| run.unqueue().collect()).unwrap_or_default();
        for slot in slots {
            self.unneeded(slot, effects);
        }
    }
}
