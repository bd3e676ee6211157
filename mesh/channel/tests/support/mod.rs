//! What the tests of this room share: a waker to wait with, and short ways to send and take.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod relay;

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use mesh_channel::{ChannelConfig, Deadlines, TensorChannels};
use mesh_core::ids::{DeploymentId, NodeId, PlanHash};
use mesh_core::ports::{Channels, LaneReceiver, LaneSender, LaneShape, LaneSlot, LaneState, Wake};
use mesh_core::wire::{LaneId, LaneOffer};

/// The other node, whichever it is.
pub const PEER: NodeId = NodeId([7; 32]);

/// What no test waits longer for.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A waker that counts, and a thread can wait for it.
#[derive(Default)]
pub struct Gong {
    count: Mutex<u64>,
    struck: Condvar,
}

impl Wake for Gong {
    fn wake(&self) {
        *self.count.lock().expect("no panic inside") += 1;
        self.struck.notify_all();
    }
}

impl Gong {
    /// Asks again after each wake until there is an answer. No wake, no answer: so this also tests that wakes come.
    pub fn until<T>(&self, what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let seen = *self.count.lock().expect("no panic inside");
            if let Some(answer) = ask() {
                return answer;
            }
            let count = self.count.lock().expect("no panic inside");
            let left = deadline.checked_duration_since(Instant::now()).unwrap_or_else(|| panic!("waited too long for: {what}"));
            drop(self.struck.wait_timeout_while(count, left, |count| *count == seen).expect("no panic inside"));
        }
    }

    pub fn count(&self) -> u64 {
        *self.count.lock().expect("no panic inside")
    }
}

pub fn lane(boundary: u16) -> LaneId {
    LaneId { deployment: DeploymentId(7), plan: PlanHash(8), boundary }
}

pub fn shape(slot_bytes: u32, slots: u16) -> LaneShape {
    LaneShape { slot_bytes, slots }
}

/// Both ends of a lane, each with its waker.
pub struct Lane {
    pub sender: Box<dyn LaneSender>,
    pub receiver: Box<dyn LaneReceiver>,
    pub at_sender: Arc<Gong>,
    pub at_receiver: Arc<Gong>,
    pub offer: LaneOffer,
}

/// A lane from `from` to `to`, ready at both ends.
pub fn ready_lane(to: &dyn Channels, from: &dyn Channels, shape: LaneShape) -> Lane {
    ready_lane_by(to, from, shape, |_| {})
}

/// As [`ready_lane`]; `detour` may change the offer on its way.
pub fn ready_lane_by(to: &dyn Channels, from: &dyn Channels, shape: LaneShape, detour: impl FnOnce(&mut LaneOffer)) -> Lane {
    let mut one = connecting_lane(to, from, shape, detour);
    one.at_sender.until("ready at the sender", || (one.sender.state() == LaneState::Ready).then_some(()));
    one.at_receiver.until("ready at the receiver", || (one.receiver.state() == LaneState::Ready).then_some(()));
    assert!(one.sender.reserve().is_some(), "a fresh lane has credit");
    one
}

pub fn connecting_lane(to: &dyn Channels, from: &dyn Channels, shape: LaneShape, detour: impl FnOnce(&mut LaneOffer)) -> Lane {
    let (at_sender, at_receiver) = (Arc::new(Gong::default()), Arc::new(Gong::default()));
    let (mut offer, receiver) = to.accept(lane(0), PEER, shape, at_receiver.clone()).expect("accept");
    detour(&mut offer);
    let sender = from.connect(PEER, &offer, at_sender.clone()).expect("connect");
    Lane { sender, receiver, at_sender, at_receiver, offer }
}

/// Content that depends on the message's number and each byte's place.
pub fn pattern(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (number.wrapping_mul(31) ^ at ^ (at >> 8)) as u8).collect()
}

impl Lane {
    /// Waits for credit and sends.
    pub fn send(&mut self, message: &[u8]) {
        send(&mut *self.sender, &self.at_sender, message);
    }

    /// Waits for the next message.
    pub fn take(&mut self) -> LaneSlot {
        let receiver = &mut self.receiver;
        self.at_receiver.until("a message", || receiver.take())
    }

    pub fn take_and_check(&mut self, expected: &[u8]) {
        let slot = self.take();
        assert!(self.receiver.bytes(slot) == expected, "the message came as it was sent");
        self.receiver.release(slot);
    }

    pub fn sender_down(&self) -> String {
        self.at_sender.until("the sender to see the end", || down(&self.sender.state()))
    }

    pub fn receiver_down(&self) -> String {
        self.at_receiver.until("the receiver to see the end", || down(&self.receiver.state()))
    }
}

pub fn send(sender: &mut dyn LaneSender, gong: &Gong, message: &[u8]) {
    gong.until("credit", || {
        let slot = sender.reserve()?;
        slot[..message.len()].copy_from_slice(message);
        Some(())
    });
    sender.commit(message.len()).expect("the lane is up");
}

pub fn down(state: &LaneState) -> Option<String> {
    match state {
        LaneState::Down(why) => Some(why.clone()),
        _ => None,
    }
}

/// Channels on loopback over TCP alone, with deadlines that a test can wait for.
pub fn tcp_channels(change: impl FnOnce(&mut Deadlines)) -> Arc<TensorChannels> {
    let mut config = ChannelConfig { in_process: false, ..ChannelConfig::loopback() };
    change(&mut config.deadlines);
    Arc::new(TensorChannels::new(config).expect("loopback"))
}
