//! Tensor lanes: slots that travel, credits that come back, generations that end.
//!
//! A lane takes the fastest link that is up when it is connected, and lives and dies with it. Over TCP a lost packet is a
//! delay and a damaged frame ends the lane (it is sealed). Over RDMA a lost, reordered or damaged message ends it, and so does
//! a second without a way through. A spell that is `raw` reaches the stage instead: what a carrier must never do, to see
//! that the stage holds all the same.

use std::collections::VecDeque;
use std::sync::Arc;

use mesh_core::ports::{LaneError, LaneShape, LaneState, Wake};
use mesh_core::step_message::{HEADER_BYTES, ROW_BYTES};
use mesh_core::wire::{LaneId, LaneOffer};
use zerocopy::IntoBytes;

use super::links::Spell;
use super::queue::Event;
use super::{Delivery, Net};
use crate::happening::Happening;
use crate::scenario::LinkKind;

/// A lane over TCP ends when nothing came through for so long. (Guess: TCP_USER_TIMEOUT as one would set it.)
const STUCK_NS: u64 = 10_000_000_000;
/// RDMA's retries end sooner.
const STUCK_RDMA_NS: u64 = 1_000_000_000;
/// First pause before something is sent again.
const RTO_NS: u64 = 200_000_000;
/// A sender that cannot reach its receiver gives up.
const CONNECT_NS: u64 = 5_000_000_000;
/// A message that another one overtakes comes later by so much.
const OVERTAKEN_NS: u64 = 3_000_000;
/// What a slot carries besides the message.
const FRAME_BYTES: u64 = 64;

/// A slot's memory.
pub type Slot = Box<[u64]>;

/// A message under way.
struct Sent {
    slot: Slot,
    bytes: u32,
    /// A copy that a spell made: its slot is nobody's credit.
    extra: bool,
    arrives: u64,
    number: u64,
}

/// One life of a lane.
pub struct Lane {
    lane: LaneId,
    /// The lives at its ends: the sender's once it connects.
    sender: Option<usize>,
    receiver: usize,
    link: usize,
    slot_bytes: usize,
    free: Vec<Slot>,
    /// Given back, and not heard of at the sender yet.
    returning: VecDeque<Slot>,
    /// Slots that were never used: made when they are.
    unused: u16,
    under_way: VecDeque<Sent>,
    filled: VecDeque<(Slot, u32, bool)>,
    states: [LaneState; 2],
    wakers: [Option<Arc<dyn Wake>>; 2],
    free_at: u64,
    last_arrival: u64,
    numbered: u64,
    stuck_since: Option<u64>,
    told_up: bool,
}

/// Which end.
pub const SENDER: usize = 0;
/// Which end.
pub const RECEIVER: usize = 1;

/// What happens on lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneEvent {
    /// An end can use the lane.
    Up(u64, usize),
    /// A message is there.
    Arrive(u64, u64),
    /// A slot is free again at the sender.
    Credit(u64),
    /// Something stuck is tried again.
    Retry(u64),
    /// An end learns that the lane is over.
    Over(u64, usize),
    /// A connect has taken long enough.
    Late(u64),
}

impl Net {
    /// The receiving end of a new generation.
    pub fn accept_lane(&mut self, life: usize, lane: LaneId, shape: LaneShape, waker: Arc<dyn Wake>) -> (u64, LaneOffer) {
        let former: Vec<u64> =
            self.lanes.iter().filter(|(_, other)| other.lane == lane && other.receiver == life).map(|(id, _)| *id).collect();
        former.into_iter().for_each(|id| self.end_lane(id, "a new generation was accepted", None));
        let id = self.draw_id();
        let slot_bytes = shape.slot_bytes as usize;
        self.lanes.insert(
            id,
            Lane {
                lane,
                sender: None,
                receiver: life,
                link: 0,
                slot_bytes,
                free: Vec::new(),
                returning: VecDeque::new(),
                unused: shape.slots,
                under_way: VecDeque::new(),
                filled: VecDeque::new(),
                states: [LaneState::Connecting, LaneState::Connecting],
                wakers: [None, Some(waker)],
                free_at: 0,
                last_arrival: 0,
                numbered: 0,
                stuck_since: None,
                told_up: false,
            },
        );
        let offer = LaneOffer {
            lane,
            generation: id,
            endpoints: vec![format!("sim:{}", self.place_of(life))],
            secret: [0; 32],
            slot_bytes: shape.slot_bytes,
            slots: shape.slots,
        };
        (id, offer)
    }

    /// The sending end connects to an offer.
    ///
    /// # Errors
    /// The receiver knows no such generation, or there is no link for it.
    pub fn connect_lane(&mut self, life: usize, offer: &LaneOffer, waker: Arc<dyn Wake>) -> Result<u64, LaneError> {
        let id = offer.generation;
        let down = |why: &str| LaneError::Down(why.to_owned());
        let lane = self.lanes.get(&id).filter(|lane| lane.lane == offer.lane).ok_or_else(|| down("no such generation"))?;
        let (from, to) = (self.place_of(life), self.place_of(lane.receiver));
        if lane.sender.is_some() {
            return Err(down("this generation has a sender"));
        }
        let link = self.links.for_lane(from, to).ok_or_else(|| down("no link to it is up"))?;
        let lane = self.lanes.get_mut(&id).ok_or_else(|| down("no such generation"))?;
        (lane.sender, lane.link, lane.wakers[SENDER]) = (Some(life), link, Some(waker));
        self.after(CONNECT_NS, Event::Lane(LaneEvent::Late(id)));
        if self.links.passes(from, to, link) && self.links.passes(to, from, link) {
            let there = self.links.delay_ns(from, to, link, &mut self.lane_dice);
            let back = self.links.delay_ns(to, from, link, &mut self.lane_dice);
            self.after(there + back, Event::Lane(LaneEvent::Up(id, SENDER)));
            self.after(there + back + there, Event::Lane(LaneEvent::Up(id, RECEIVER)));
        }
        Ok(id)
    }

    /// A slot to write the next message into, if there is credit.
    pub fn reserve_slot(&mut self, id: u64) -> Option<Slot> {
        let lane = self.lanes.get_mut(&id).filter(|lane| lane.states[SENDER] == LaneState::Ready)?;
        lane.free.pop().or_else(|| {
            lane.unused = lane.unused.checked_sub(1)?;
            Some(vec![0; lane.slot_bytes.div_ceil(8)].into_boxed_slice())
        })
    }

    /// Sends a slot.
    ///
    /// # Errors
    /// The lane is over.
    pub fn commit_slot(&mut self, id: u64, slot: Slot, bytes: u32) -> Result<(), LaneError> {
        let lane = self.lanes.get(&id).ok_or_else(|| LaneError::Down("it ended".to_owned()))?;
        if let LaneState::Down(why) = &lane.states[SENDER] {
            return Err(LaneError::Down(why.clone()));
        }
        let Some(sender) = lane.sender else { return Err(LaneError::Down("it was never connected".to_owned())) };
        let (from, to, link) = (self.place_of(sender), self.place_of(lane.receiver), lane.link);
        let rdma = self.links.kind(from, to, link) == LinkKind::Rdma;
        let spell = self.links.spell(from, to);
        let mut sent = Sent { slot, bytes, extra: false, arrives: 0, number: 0 };
        let mut late_ns = 0;
        if let Some(spell) = spell {
            match self.curse(spell, rdma, &mut sent) {
                Fate::Comes => {}
                Fate::Late(ns) => late_ns = ns,
                Fate::Twice => {
                    let copy = Sent { slot: sent.slot.clone(), bytes, extra: true, arrives: 0, number: 0 };
                    self.launch(id, sent, 0);
                    self.launch(id, copy, 0);
                    return Ok(());
                }
                Fate::Lost => {
                    // The carrier does not know: the credit comes back as if it had arrived.
                    let ns = 2 * self.links.delay_ns(from, to, link, &mut self.lane_dice);
                    if let Some(lane) = self.lanes.get_mut(&id) {
                        lane.returning.push_back(sent.slot);
                    }
                    self.after(ns, Event::Lane(LaneEvent::Credit(id)));
                    return Ok(());
                }
                Fate::Ends(why) => {
                    self.end_lane(id, why, None);
                    return Ok(());
                }
            }
        }
        self.launch(id, sent, late_ns);
        Ok(())
    }

    /// What a spell does to a message.
    fn curse(&mut self, spell: Spell, rdma: bool, sent: &mut Sent) -> Fate {
        let dice = &mut self.lane_dice;
        let drawn = [spell.drop, spell.duplicate, spell.reorder, spell.corrupt].map(|probability| dice.chance(probability));
        let [drop, duplicate, reorder, corrupt] = drawn;
        match () {
            () if corrupt && spell.raw => {
                flip_a_bit(sent, dice.draw());
                Fate::Comes
            }
            () if corrupt => {
                Fate::Ends(if rdma { "a message does not match its checksum" } else { "a frame cannot be opened: it was damaged" })
            }
            () if drop && spell.raw => Fate::Lost,
            () if drop && rdma => Fate::Ends("a message is missing"),
            () if drop => Fate::Late(RTO_NS),
            () if reorder && spell.raw => Fate::Late(OVERTAKEN_NS),
            () if reorder && rdma => Fate::Ends("a message is out of order"),
            () if reorder => Fate::Late(OVERTAKEN_NS),
            () if duplicate && spell.raw => Fate::Twice,
            // A carrier that counts its frames drops the second.
            () => Fate::Comes,
        }
    }

    fn launch(&mut self, id: u64, mut sent: Sent, late_ns: u64) {
        let Some(lane) = self.lanes.get(&id) else { return };
        let Some(sender) = lane.sender else { return };
        let (from, to, link) = (self.place_of(sender), self.place_of(lane.receiver), lane.link);
        let bytes = u64::from(sent.bytes) + FRAME_BYTES;
        let raw_late = late_ns > 0 && self.links.spell(from, to).is_some_and(|spell| spell.raw);
        let busy = self.links.busy_ns(from, to, link, bytes);
        let delay = self.links.delay_ns(from, to, link, &mut self.lane_dice);
        let lost = self.links.loses(from, to, link, bytes, &mut self.lane_dice);
        let passes = self.links.passes(from, to, link);
        let now = self.now;
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        lane.numbered += 1;
        sent.number = lane.numbered;
        lane.free_at = lane.free_at.max(now) + busy;
        let late_ns = late_ns + if lost { RTO_NS } else { 0 };
        sent.arrives = lane.free_at + delay + late_ns;
        // A stream keeps its order: what is late holds up the rest. Raw lanes do not.
        if !raw_late {
            sent.arrives = sent.arrives.max(lane.last_arrival + 1);
            lane.last_arrival = sent.arrives;
        }
        let (number, arrives) = (sent.number, sent.arrives);
        lane.under_way.push_back(sent);
        if passes && lane.stuck_since.is_none() {
            self.queue.push(arrives, Event::Lane(LaneEvent::Arrive(id, number)));
        } else if lane.stuck_since.is_none() {
            lane.stuck_since = Some(now);
            self.after(RTO_NS, Event::Lane(LaneEvent::Retry(id)));
        }
    }

    /// Gives a received slot back.
    pub fn release_slot(&mut self, id: u64, slot: Slot, extra: bool) {
        let Some(lane) = self.lanes.get_mut(&id).filter(|_| !extra) else { return };
        let Some(sender) = lane.sender else { return };
        lane.returning.push_back(slot);
        let (from, to, link) = (self.lives[sender].place, self.lives[lane.receiver].place, lane.link);
        let ns = self.links.delay_ns(to, from, link, &mut self.lane_dice);
        self.after(ns, Event::Lane(LaneEvent::Credit(id)));
    }

    /// The next message that is there.
    pub fn take_slot(&mut self, id: u64) -> Option<(Slot, u32, bool)> {
        self.lanes.get_mut(&id)?.filled.pop_front()
    }

    /// How an end is.
    #[must_use]
    pub fn lane_state(&self, id: u64, end: usize) -> LaneState {
        self.lanes.get(&id).map_or_else(|| LaneState::Down("it ended".to_owned()), |lane| lane.states[end].clone())
    }

    /// An end hangs up.
    pub fn hang_up(&mut self, id: u64, end: usize) {
        let why = if end == SENDER { "the sender hung up" } else { "the receiver hung up" };
        self.end_lane(id, why, Some(end));
    }

    /// Does what is due on a lane.
    pub fn on_lane(&mut self, event: LaneEvent) {
        match event {
            LaneEvent::Up(id, end) => {
                let Some(lane) = self.lanes.get_mut(&id).filter(|lane| lane.states[end] == LaneState::Connecting) else { return };
                lane.states[end] = LaneState::Ready;
                let both = lane.states.iter().all(|state| *state == LaneState::Ready);
                self.wake_end(id, end);
                if both {
                    self.say_up(id);
                }
            }
            LaneEvent::Arrive(id, number) => {
                let Some(lane) = self.lanes.get_mut(&id) else { return };
                let Some(place) = lane.under_way.iter().position(|sent| sent.number == number) else { return };
                if let Some(sent) = lane.under_way.remove(place) {
                    lane.filled.push_back((sent.slot, sent.bytes, sent.extra));
                }
                self.wake_end(id, RECEIVER);
            }
            LaneEvent::Credit(id) => {
                if let Some(lane) = self.lanes.get_mut(&id) {
                    lane.free.extend(lane.returning.pop_front());
                }
                self.wake_end(id, SENDER);
            }
            LaneEvent::Retry(id) => self.retry_lane(id),
            LaneEvent::Over(id, end) => {
                let Some(lane) = self.lanes.get_mut(&id) else { return };
                if !matches!(lane.states[end], LaneState::Down(_)) {
                    lane.states[end] = LaneState::Down("the other end closed it".to_owned());
                }
                self.wake_end(id, end);
            }
            LaneEvent::Late(id) => {
                let connecting = |lane: &&Lane| lane.states.contains(&LaneState::Connecting);
                if self.lanes.get(&id).filter(connecting).is_some() {
                    self.end_lane(id, "it could not be connected in time", None);
                }
            }
        }
    }

    fn retry_lane(&mut self, id: u64) {
        let Some(lane) = self.lanes.get(&id) else { return };
        let (Some(sender), Some(since)) = (lane.sender, lane.stuck_since) else { return };
        let (from, to, link) = (self.place_of(sender), self.place_of(lane.receiver), lane.link);
        let patience = if self.links.kind(from, to, link) == LinkKind::Rdma { STUCK_RDMA_NS } else { STUCK_NS };
        if self.links.passes(from, to, link) {
            let delay = self.links.delay_ns(from, to, link, &mut self.lane_dice);
            let at = self.now + delay;
            let Some(lane) = self.lanes.get_mut(&id) else { return };
            lane.stuck_since = None;
            lane.last_arrival = lane.last_arrival.max(at + lane.under_way.len() as u64);
            for (index, sent) in lane.under_way.iter().enumerate() {
                self.queue.push(at + index as u64, Event::Lane(LaneEvent::Arrive(id, sent.number)));
            }
        } else if self.now.saturating_sub(since) >= patience {
            self.end_lane(id, "nothing came through", None);
        } else {
            self.after(RTO_NS, Event::Lane(LaneEvent::Retry(id)));
        }
    }

    /// A lane is over: at `by` at once, at the other end when it can hear of it; without `by`, at both.
    fn end_lane(&mut self, id: u64, why: &str, by: Option<usize>) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        let told_up = std::mem::replace(&mut lane.told_up, false);
        let (sender, receiver, link) = (lane.sender, lane.receiver, lane.link);
        for end in [SENDER, RECEIVER] {
            if by.is_none_or(|by| by == end) && !matches!(lane.states[end], LaneState::Down(_)) {
                lane.states[end] = LaneState::Down(why.to_owned());
            }
        }
        if by.is_none() || by == Some(RECEIVER) {
            lane.under_way.clear();
            lane.filled.clear();
        }
        let both_over = lane.states.iter().all(|state| matches!(state, LaneState::Down(_)));
        let sender = sender.unwrap_or(receiver);
        let [from, to] = [sender, receiver].map(|life| self.lives[life].place);
        if told_up {
            self.note(Happening::LaneDown { from, to, why: why.to_owned() });
        }
        match by {
            None => [SENDER, RECEIVER].into_iter().for_each(|end| self.wake_end(id, end)),
            Some(_) if both_over => drop(self.lanes.remove(&id)),
            Some(by) => {
                let (here, there) = if by == SENDER { (from, to) } else { (to, from) };
                if self.links.passes(here, there, link) || here == there {
                    let ns = self.links.delay_ns(here, there, link, &mut self.lane_dice);
                    self.after(ns, Event::Lane(LaneEvent::Over(id, 1 - by)));
                } else {
                    // It hears when it next gets through, or gives up.
                    self.after(RTO_NS * 4, Event::Lane(LaneEvent::Over(id, 1 - by)));
                }
            }
        }
    }

    /// A process is gone; with `silence`, its kernel too: then the others find out by themselves.
    pub fn drop_lanes_of(&mut self, life: usize, silence: bool) {
        let ends = |lane: &Lane| [lane.sender, Some(lane.receiver)];
        let ids: Vec<(u64, usize)> =
            self.lanes.iter().filter_map(|(id, lane)| Some((*id, ends(lane).iter().position(|end| *end == Some(life))?))).collect();
        for (id, end) in ids {
            if let Some(lane) = self.lanes.get_mut(&id) {
                lane.wakers[end] = None;
            }
            if silence {
                let Some(lane) = self.lanes.get_mut(&id) else { continue };
                lane.states[end] = LaneState::Down("its machine lost power".to_owned());
                lane.stuck_since.get_or_insert(self.now);
                self.after(RTO_NS, Event::Lane(LaneEvent::Retry(id)));
            } else {
                self.hang_up(id, end);
            }
        }
    }

    /// Lanes between two machines that run over a link that `which` picks fail.
    pub fn break_lanes(&mut self, which: impl Fn(usize, usize, LinkKind) -> bool, why: &str) {
        let of = |lane: &Lane| {
            let (from, to) = (self.lives[lane.sender?].place, self.lives[lane.receiver].place);
            Some((from, to, self.links.kind(from, to, lane.link)))
        };
        let ids: Vec<u64> = self
            .lanes
            .iter()
            .filter(|(_, lane)| of(lane).is_some_and(|(from, to, kind)| which(from, to, kind)))
            .map(|(id, _)| *id)
            .collect();
        ids.into_iter().for_each(|id| self.end_lane(id, why, None));
    }

    fn say_up(&mut self, id: u64) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        lane.told_up = true;
        let Some(sender) = lane.sender else { return };
        let (receiver, link) = (lane.receiver, lane.link);
        let [from, to] = [sender, receiver].map(|life| self.lives[life].place);
        let kind = format!("{:?}", self.links.kind(from, to, link)).to_lowercase();
        self.note(Happening::LaneUp { from, to, kind });
    }

    fn wake_end(&mut self, id: u64, end: usize) {
        if let Some(waker) = self.lanes.get(&id).and_then(|lane| lane.wakers[end].clone()) {
            self.deliveries.push_back(Delivery::Wake(waker));
        }
    }
}

/// What becomes of a message under a spell.
enum Fate {
    Comes,
    Late(u64),
    Twice,
    Lost,
    Ends(&'static str),
}

/// In the header or the table of rows.
fn flip_a_bit(sent: &mut Sent, drawn: u64) {
    let bytes = sent.slot.as_mut_bytes();
    let table = (HEADER_BYTES + ROW_BYTES).min(sent.bytes as usize).max(1) as u64;
    let at = usize::try_from(drawn % table).unwrap_or(0);
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1 << (drawn >> 61);
    }
}
