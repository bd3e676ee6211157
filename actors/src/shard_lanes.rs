//! A shard's two lanes: accepted from the stage before, connected to the next one, and made anew when they end.
//!
//! The receiving side leads: it accepts, tells the sender's node its offer until the lane is up, and when the lane ends it
//! accepts again, with growing pauses, as a new generation. The sending side connects to whatever it is offered last. Which
//! link a life takes is the channels' business; a lane on which nothing runs moves when there is a better one (F4).

use std::sync::Arc;

use mesh_core::ids::{NodeId, Time};
use mesh_core::ports::{Carrier, Channels, LaneReceiver, LaneSender, LaneShape, LaneState, Wake};
use mesh_core::step_message::payload_offset;
use mesh_core::wire::{LaneId, LaneOffer, Message};

/// First pause after a lane ended; doubles up to the last.
const PAUSE_FIRST_MS: u64 = 100;
/// Longest pause before a lane is tried again. (Guess: a cable is put back in seconds.)
const PAUSE_LAST_MS: u64 = 5_000;
/// An offer that brought no connection is told again after this: the control message may have been lost.
const TELL_AGAIN_MS: u64 = 1_000;
/// A lane that was up for so long starts with the first pause again when it ends.
const STEADY_MS: u64 = 10_000;

/// A lane on which nothing ran for so long may move to a better link. How often it is looked at, too.
const IDLE_MS: u64 = 1_000;
/// First pause after a move: the better link may not take it. Doubles up to the last.
const MOVE_PAUSE_FIRST_MS: u64 = 2_000;
const MOVE_PAUSE_LAST_MS: u64 = 60_000;

/// Positions that a slot holds at least, where they fit at all.
const SLOT_POSITIONS: usize = 64;
/// Smallest and largest slot, and how many of them a lane has.
const SLOT_BYTES_MIN: usize = 128 << 10;
const SLOT_BYTES_MAX: usize = 8 << 20;
const SLOTS: u16 = 8;

/// Sizes of a lane for a model of so many values a position; `None` if not even one position fits.
pub(crate) fn shape_for(width: u32) -> Option<LaneShape> {
    let position_bytes = (width as usize).checked_mul(4)?;
    let wished = position_bytes.checked_mul(SLOT_POSITIONS)?.checked_add(payload_offset(SLOT_POSITIONS))?;
    let slot_bytes = wished.clamp(SLOT_BYTES_MIN, SLOT_BYTES_MAX).next_multiple_of(4096);
    let fits = payload_offset(1) + position_bytes <= slot_bytes;
    fits.then_some(LaneShape { slot_bytes: u32::try_from(slot_bytes).ok()?, slots: SLOTS })
}

/// What became of a lane since it was last looked at.
#[derive(Debug, PartialEq)]
pub(crate) enum Change {
    /// It is usable.
    Ready,
    /// It ended, for this reason, after it was usable or not.
    Down(String),
}

/// The receiving end of the boundary before this stage.
pub(crate) struct Inward {
    lane: LaneId,
    shape: LaneShape,
    /// The sender's node.
    from: NodeId,
    open: Option<OpenIn>,
    /// Counts the lives of this lane here: slots bear it, so that none outlives its memory.
    life: u64,
    pause_ms: u64,
    try_at: Time,
    moves: Moves,
}

/// When a lane that works may be given up for a better link.
struct Moves {
    idle_since: Option<Time>,
    look_at: Time,
    not_before: Time,
    pause_ms: u64,
}

impl Moves {
    /// Whether to move now.
    fn due(&mut self, now: Time, idle: bool, receiver: &dyn LaneReceiver) -> bool {
        if !idle {
            self.idle_since = None;
        }
        if now < self.look_at {
            return false;
        }
        self.look_at = now.plus_ms(IDLE_MS);
        if !receiver.has_better_link() {
            self.pause_ms = MOVE_PAUSE_FIRST_MS;
            return false;
        }
        if !idle {
            return false;
        }
        let since = *self.idle_since.get_or_insert(now);
        if now.ms_since(since) < IDLE_MS || now < self.not_before {
            return false;
        }
        self.not_before = now.plus_ms(self.pause_ms);
        self.pause_ms = (self.pause_ms * 2).min(MOVE_PAUSE_LAST_MS);
        true
    }
}

struct OpenIn {
    receiver: Box<dyn LaneReceiver>,
    offer: LaneOffer,
    tell_at: Time,
    ready_since: Option<Time>,
}

impl Inward {
    pub fn new(lane: LaneId, shape: LaneShape, from: NodeId, life: u64) -> Self {
        let moves = Moves { idle_since: None, look_at: Time::default(), not_before: Time::default(), pause_ms: MOVE_PAUSE_FIRST_MS };
        Self { lane, shape, from, open: None, life, pause_ms: PAUSE_FIRST_MS, try_at: Time::default(), moves }
    }

    pub fn life(&self) -> u64 {
        self.life
    }
    pub fn is_ready(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.ready_since.is_some())
    }
    /// The receiver of this life, if it is usable.
    pub fn receiver(&mut self) -> Option<&mut dyn LaneReceiver> {
        let open = self.open.as_mut()?;
        Some(open.receiver.as_mut())
    }
    pub fn receiver_ref(&self) -> Option<&dyn LaneReceiver> {
        self.open.as_ref().map(|open| open.receiver.as_ref())
    }

    /// Accepts, tells the offer, notices ends; moves to a better link when `idle`: when no stream needs the lane.
    pub fn tend(&mut self, now: Time, idle: bool, channels: &dyn Channels, carrier: &dyn Carrier, waker: &Arc<dyn Wake>) -> Option<Change> {
        if self.open.is_none() {
            if now < self.try_at {
                return None;
            }
            return self.accept(now, channels, waker).err().map(|why| self.pause(now, why));
        }
        let open = self.open.as_mut().expect("looked at just above");
        match open.receiver.state() {
            LaneState::Connecting => {
                if now >= open.tell_at {
                    open.tell_at = now.plus_ms(TELL_AGAIN_MS);
                    if let Err(error) = carrier.send(self.from, Message::Lane(open.offer.clone())) {
                        tracing::debug!(lane = ?self.lane, %error, "an offer could not be sent; it is sent again");
                    }
                }
                None
            }
            LaneState::Ready if open.ready_since.is_none() => {
                open.ready_since = Some(now);
                Some(Change::Ready)
            }
            LaneState::Ready if self.moves.due(now, idle, open.receiver.as_ref()) => {
                (self.open, self.try_at) = (None, now);
                Some(Change::Down("it moves to a better link".to_owned()))
            }
            LaneState::Ready => None,
            LaneState::Down(why) => {
                let steady = open.ready_since.is_some_and(|since| now.ms_since(since) >= STEADY_MS);
                if steady {
                    self.pause_ms = PAUSE_FIRST_MS;
                }
                Some(self.pause(now, why))
            }
        }
    }

    fn accept(&mut self, now: Time, channels: &dyn Channels, waker: &Arc<dyn Wake>) -> Result<(), String> {
        let (offer, receiver) = channels.accept(self.lane, self.from, self.shape, waker.clone()).map_err(|error| error.to_string())?;
        self.life += 1;
        self.open = Some(OpenIn { receiver, offer, tell_at: now, ready_since: None });
        Ok(())
    }

    fn pause(&mut self, now: Time, why: String) -> Change {
        self.open = None;
        self.try_at = now.plus_ms(self.pause_ms);
        self.pause_ms = (self.pause_ms * 2).min(PAUSE_LAST_MS);
        Change::Down(why)
    }

    /// When `tend` next has something to do by itself.
    pub fn wake_at(&self) -> Option<Time> {
        match &self.open {
            None => Some(self.try_at),
            Some(open) if open.ready_since.is_none() => Some(open.tell_at),
            Some(_) => Some(self.moves.look_at),
        }
    }
}

/// The sending end of the boundary after this stage.
pub(crate) struct Outward {
    lane: LaneId,
    /// The receiver's node.
    to: NodeId,
    open: Option<OpenOut>,
    /// The offer that was taken last.
    taken: Option<LaneOffer>,
}

struct OpenOut {
    sender: Box<dyn LaneSender>,
    ready: bool,
}

impl Outward {
    pub fn new(lane: LaneId, to: NodeId) -> Self {
        Self { lane, to, open: None, taken: None }
    }

    pub fn is_ready(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.ready)
    }
    /// The sender, if it is usable.
    pub fn sender(&mut self) -> Option<&mut dyn LaneSender> {
        match self.open.as_mut() {
            Some(open) if open.ready => Some(open.sender.as_mut()),
            _ => None,
        }
    }

    /// Connects to an offer, unless it is the one that is connected or being connected. A former life ends.
    ///
    /// Offers are told apart by equality, not by generation: a receiver that restarted counts from the beginning.
    pub fn offered(&mut self, from: NodeId, offer: LaneOffer, channels: &dyn Channels, waker: &Arc<dyn Wake>) -> Option<Change> {
        if from != self.to || offer.lane != self.lane || (self.open.is_some() && self.taken.as_ref() == Some(&offer)) {
            return None;
        }
        let was_ready = self.is_ready();
        self.open = None;
        match channels.connect(self.to, &offer, waker.clone()) {
            Ok(sender) => self.open = Some(OpenOut { sender, ready: false }),
            Err(error) => tracing::warn!(lane = ?self.lane, %error, "an offer that cannot be connected"),
        }
        self.taken = Some(offer);
        was_ready.then(|| Change::Down("the next stage connects anew".to_owned()))
    }

    /// Notices what became of it.
    pub fn tend(&mut self) -> Option<Change> {
        let open = self.open.as_mut()?;
        match open.sender.state() {
            LaneState::Connecting => None,
            LaneState::Ready if open.ready => None,
            LaneState::Ready => {
                open.ready = true;
                Some(Change::Ready)
            }
            LaneState::Down(why) => {
                self.open = None; // the receiver offers again
                Some(Change::Down(why))
            }
        }
    }
}
