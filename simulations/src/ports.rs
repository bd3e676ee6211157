//! The ports of one life of a node: the same traits that libp2p, channels and clocks implement live.
//!
//! A life that is over can still run for a moment, while its actors are dropped: nothing that it does then reaches anybody.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use mesh_actors::testing::{Pace, Wait};
use mesh_core::ids::{NodeId, Time};
use mesh_core::model::{Layers, ModelSheet};
use mesh_core::ports::{
    Carrier, Channels, Clock, Entropy, LaneError, LaneReceiver, LaneSender, LaneShape, LaneSlot, LaneState, SendError, Wake,
};
use mesh_core::records::{NodeRecord, Record};
use mesh_core::wire::{LaneId, LaneOffer, Message};
use zerocopy::IntoBytes;

use crate::dice::Dice;
use crate::ground::Ground;
use crate::happening::Happening;
use crate::net::lanes::{RECEIVER, SENDER, Slot};

/// A step costs so much besides what its layers cost. (Guess: batching, mailboxes, kernels' starts.)
const STEP_NS: u64 = 150_000;

/// One life's ports.
pub struct Ports {
    ground: Arc<Ground>,
    life: usize,
    place: usize,
    bandwidth: f64,
    flops: f64,
    disk: f64,
    dice: Mutex<Dice>,
}

impl Ports {
    /// Of this life on this machine: bytes a second from memory, operations a second, bytes a second from disk.
    #[must_use]
    pub fn new(ground: Arc<Ground>, life: usize, place: usize, rates: [f64; 3], dice: Dice) -> Self {
        let [bandwidth, flops, disk] = rates;
        Self { ground, life, place, bandwidth, flops, disk, dice: Mutex::new(dice) }
    }
}

impl Clock for Ports {
    fn now(&self) -> Time {
        self.ground.clock(self.place)
    }
}

impl Entropy for Ports {
    fn draw(&self) -> u128 {
        let mut dice = self.dice.lock().unwrap_or_else(PoisonError::into_inner);
        u128::from(dice.draw()) << 64 | u128::from(dice.draw())
    }
}

impl Carrier for Ports {
    fn send(&self, to: NodeId, message: Message) -> Result<(), SendError> {
        let sent = self.ground.carrier(self.life, |carrier, net| carrier.send(to, message, net));
        sent.unwrap_or(Err(SendError::Unreachable(to)))
    }
    fn gossip(&self, record: &Record) {
        self.ground.carrier(self.life, |carrier, net| carrier.gossip(record, net));
    }
    fn introduce(&self, me: &NodeRecord) {
        self.ground.carrier(self.life, |carrier, net| carrier.introduce(me, net));
    }
    fn dial(&self, address: &str) {
        self.ground.carrier(self.life, |carrier, net| carrier.dial(address, net));
    }
    fn disconnect(&self, node: NodeId) {
        self.ground.carrier(self.life, |carrier, net| carrier.disconnect(node, net));
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped just before")]
fn ns(seconds: f64) -> u64 {
    (seconds * 1e9).clamp(0.0, 1e18) as u64
}

#[expect(clippy::cast_precision_loss, reason = "a cost is an estimate")]
fn float(value: u64) -> f64 {
    value as f64
}

fn scaled(ns: u64, thousandths: u64) -> u64 {
    u64::try_from(u128::from(ns) * u128::from(thousandths) / 1_000).unwrap_or(u64::MAX / 4)
}

impl Pace for Ports {
    fn wait(&self, ns: u64) -> Wait {
        Box::pin(self.ground.wait(ns))
    }

    /// What bounds it: weights through memory once, or operations for each position.
    fn step_ns(&self, sheet: &ModelSheet, layers: Layers, _rows: usize, positions: u32) -> u64 {
        let costs = &sheet.layers[layers.indices()];
        let bytes: u64 = costs.iter().map(|cost| cost.weight_bytes).sum();
        let flops: u64 = costs.iter().map(|cost| cost.flops).sum();
        let seconds = (float(bytes) / self.bandwidth).max(float(flops) * f64::from(positions) / self.flops);
        scaled(STEP_NS + ns(seconds), self.ground.speeds[self.place].compute.load(Ordering::Relaxed))
    }

    fn read_ns(&self, bytes: u64) -> u64 {
        let node = self.place;
        self.ground.with(|inner| inner.net.note(Happening::Loading { node, bytes }));
        scaled(ns(float(bytes) / self.disk), self.ground.speeds[self.place].disk.load(Ordering::Relaxed))
    }
}

impl Channels for Ports {
    fn accept(
        &self,
        lane: LaneId,
        _: NodeId,
        shape: LaneShape,
        waker: Arc<dyn Wake>,
    ) -> Result<(LaneOffer, Box<dyn LaneReceiver>), LaneError> {
        let accepted = self.ground.with(|inner| {
            let alive = inner.net.lives[self.life].alive;
            alive.then(|| inner.net.accept_lane(self.life, lane, shape, waker))
        });
        let (id, offer) = accepted.ok_or_else(|| LaneError::System("the process is gone".to_owned()))?;
        Ok((offer, Box::new(Receiver { ground: self.ground.clone(), id, held: BTreeMap::new(), next: 0 })))
    }

    fn connect(&self, _: NodeId, offer: &LaneOffer, waker: Arc<dyn Wake>) -> Result<Box<dyn LaneSender>, LaneError> {
        let id = self.ground.with(|inner| {
            if !inner.net.lives[self.life].alive {
                return Err(LaneError::System("the process is gone".to_owned()));
            }
            inner.net.connect_lane(self.life, offer, waker)
        })?;
        Ok(Box::new(Sender { ground: self.ground.clone(), id, slot_bytes: offer.slot_bytes as usize, reserved: None }))
    }
}

struct Sender {
    ground: Arc<Ground>,
    id: u64,
    slot_bytes: usize,
    reserved: Option<Slot>,
}

impl LaneSender for Sender {
    fn reserve(&mut self) -> Option<&mut [u8]> {
        if self.reserved.is_none() {
            self.reserved = self.ground.with(|inner| inner.net.reserve_slot(self.id));
        }
        let slot_bytes = self.slot_bytes;
        self.reserved.as_mut().and_then(|slot| slot.as_mut_bytes().get_mut(..slot_bytes))
    }

    fn commit(&mut self, bytes: usize) -> Result<(), LaneError> {
        if bytes > self.slot_bytes {
            return Err(LaneError::TooLong { bytes, slot_bytes: self.slot_bytes });
        }
        let Some(slot) = self.reserved.take() else { return Err(LaneError::Down("nothing was reserved".to_owned())) };
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.ground.with(|inner| inner.net.commit_slot(self.id, slot, bytes))
    }

    fn state(&self) -> LaneState {
        self.ground.with(|inner| inner.net.lane_state(self.id, SENDER))
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.ground.with(|inner| inner.net.hang_up(self.id, SENDER));
    }
}

struct Receiver {
    ground: Arc<Ground>,
    id: u64,
    held: BTreeMap<u16, (Slot, bool)>,
    next: u16,
}

impl LaneReceiver for Receiver {
    fn take(&mut self) -> Option<LaneSlot> {
        let (slot, bytes, extra) = self.ground.with(|inner| inner.net.take_slot(self.id))?;
        self.next = self.next.wrapping_add(1);
        self.held.insert(self.next, (slot, extra));
        Some(LaneSlot { index: self.next, bytes })
    }

    fn bytes(&self, slot: LaneSlot) -> &[u8] {
        &self.held[&slot.index].0.as_bytes()[..slot.bytes as usize]
    }

    fn release(&mut self, slot: LaneSlot) {
        if let Some((buffer, extra)) = self.held.remove(&slot.index) {
            self.ground.with(|inner| inner.net.release_slot(self.id, buffer, extra));
        }
    }

    fn state(&self) -> LaneState {
        self.ground.with(|inner| inner.net.lane_state(self.id, RECEIVER))
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.ground.with(|inner| inner.net.hang_up(self.id, RECEIVER));
    }
}
