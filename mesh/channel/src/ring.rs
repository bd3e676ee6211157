//! The slots of a receiving end, and where they are: free, or holding a message that waits to be taken.
//!
//! A slot that is in neither list is in somebody's hands: a sender writes it, a connection reads into it, or a stage looks
//! at it. One short lock guards it all; nothing waits inside, and nobody is woken inside.

use std::collections::VecDeque;
use std::sync::Mutex;

use mesh_core::ports::LaneState;

use crate::arena::{Filled, Slot};
use crate::lock;

pub(crate) struct Ring(Mutex<Inner>);

struct Inner {
    free: Vec<Slot>,
    ready: VecDeque<Filled>,
    state: LaneState,
    /// Somebody asked for a slot in vain and wants to be woken.
    starved: bool,
}

/// Why there is no slot to fill.
pub(crate) enum NoSlot {
    /// All are in use.
    Starved,
    /// The lane is not ready, or not any more.
    NotReady,
}

impl Ring {
    pub(crate) fn new(slots: Vec<Slot>) -> Self {
        Self(Mutex::new(Inner { ready: VecDeque::with_capacity(slots.len()), free: slots, state: LaneState::Connecting, starved: false }))
    }

    /// A free slot to fill.
    pub(crate) fn claim(&self) -> Result<Slot, NoSlot> {
        let mut inner = lock(&self.0);
        match (&inner.state, inner.free.is_empty()) {
            (LaneState::Down(_), _) => Err(NoSlot::NotReady),
            (LaneState::Ready, false) => Ok(inner.free.pop().expect("not empty")),
            (state, _) => {
                let no = if *state == LaneState::Ready { NoSlot::Starved } else { NoSlot::NotReady };
                inner.starved = true;
                Err(no)
            }
        }
    }

    /// Appends a message. On a lane that is down it is dropped, and the reason comes back.
    pub(crate) fn push(&self, filled: Filled) -> Result<(), String> {
        let mut inner = lock(&self.0);
        if let LaneState::Down(why) = &inner.state {
            return Err(why.clone());
        }
        inner.ready.push_back(filled);
        Ok(())
    }

    /// The next message.
    pub(crate) fn pop(&self) -> Option<Filled> {
        lock(&self.0).ready.pop_front()
    }

    /// Takes a slot back. Says whether somebody waits for it. On a lane that is down, it is freed.
    pub(crate) fn give_back(&self, slot: Slot) -> bool {
        let mut inner = lock(&self.0);
        if matches!(inner.state, LaneState::Down(_)) {
            return false;
        }
        inner.free.push(slot);
        std::mem::take(&mut inner.starved)
    }

    /// `Connecting` becomes `Ready`. False if the lane is past that.
    pub(crate) fn set_ready(&self) -> bool {
        let mut inner = lock(&self.0);
        let connecting = inner.state == LaneState::Connecting;
        if connecting {
            inner.state = LaneState::Ready;
        }
        connecting
    }

    /// Ends the lane and frees what nobody holds. The first reason stays; false if there was one already. Messages that
    /// arrived can still be taken, unless they are to be forgotten.
    pub(crate) fn end(&self, why: &str, forget: bool) -> bool {
        let mut inner = lock(&self.0);
        if forget {
            inner.ready.clear();
        }
        if matches!(inner.state, LaneState::Down(_)) {
            return false;
        }
        inner.state = LaneState::Down(why.to_owned());
        inner.free = Vec::new();
        true
    }

    pub(crate) fn state(&self) -> LaneState {
        lock(&self.0).state.clone()
    }
}

#[cfg(test)]
mod tests {
    use mesh_core::ports::LaneShape;

    use super::*;

    fn ring(slots: u16) -> Ring {
        Ring::new(crate::arena::slots(LaneShape { slot_bytes: 8, slots }).expect("small"))
    }

    #[test]
    fn a_slot_goes_round() {
        let ring = ring(1);
        assert!(matches!(ring.claim(), Err(NoSlot::NotReady)), "not before the lane is ready");
        assert!(ring.set_ready());
        let slot = ring.claim().ok().expect("one is free");
        assert!(matches!(ring.claim(), Err(NoSlot::Starved)));
        ring.push(Filled { slot, bytes: 3 }).expect("ready");
        let filled = ring.pop().expect("pushed");
        assert!(ring.give_back(filled.slot), "somebody asked in vain");
        let slot = ring.claim().ok().expect("back again");
        assert!(!ring.give_back(slot), "nobody waits now");
    }

    #[test]
    fn the_first_reason_stays_and_messages_can_be_forgotten() {
        let ring = ring(2);
        ring.set_ready();
        let slot = ring.claim().ok().expect("free");
        ring.push(Filled { slot, bytes: 1 }).expect("ready");
        assert!(ring.end("first", false));
        assert!(!ring.end("second", false));
        assert!(!ring.set_ready());
        assert_eq!(ring.state(), LaneState::Down("first".into()));
        assert!(matches!(ring.claim(), Err(NoSlot::NotReady)));
        let filled = ring.pop().expect("still there");
        assert_eq!(ring.push(filled), Err("first".into()));
        ring.end("third", true);
        assert!(ring.pop().is_none());
    }
}
