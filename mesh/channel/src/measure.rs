//! What a link is worth, measured with what lanes are made of: a lane of one slot, sealed like any other.
//!
//! With one slot a message goes out when the one before has come back as a credit, so each message is a round trip. Short
//! ones give the delay: half of their median. Full-size ones, less that round trip, give the rate: what a lane gives, sealing
//! and opening included, which is what a planner wants to know. Sizes grow until a message takes long, so a slow line sees
//! few bytes. Both ends run on a thread of their own with a deadline, and at most [`ECHOES_MAX`] far ends at a time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mesh_core::links::Measured;
use mesh_core::ports::{LaneReceiver, LaneSender, LaneShape, LaneState, Wake};

use crate::lock;

/// Far ends of measurements at most: each holds a slot and two threads.
const ECHOES_MAX: usize = 4;
/// How long a far end waits for its measurement to begin, and lasts at most.
pub(crate) const UNCLAIMED: Duration = Duration::from_secs(6);
const ECHO_LIFE: Duration = Duration::from_secs(12);
/// How long a measurement may take, connecting included.
const LIFE: Duration = Duration::from_secs(12);
/// One try to reach one address: long enough for a second SYN, which TCP sends after a second.
pub(crate) const ATTEMPT: Duration = Duration::from_millis(1_500);
/// All tries.
pub(crate) const CONNECT: Duration = Duration::from_secs(5);

/// Round trips for the delay; the first ones warm caches and congestion windows up.
const ROUND_TRIPS: usize = 19;
const WARM_UP: usize = 3;
const SHORT_BYTES: usize = 64;
/// The first message for the rate; each is four times the one before.
const SIZE_FIRST: usize = 16 << 10;
const SIZE_LAST: usize = 1 << 20;
/// Messages of the last size: the quickest of them counts, since anything else on the machine only slows them.
const FULL_SIZE: usize = 4;
/// A message that takes longer is the last one.
const LONG: Duration = Duration::from_millis(75);

/// One slot of full size.
pub(crate) const SHAPE: LaneShape = LaneShape { slot_bytes: SIZE_LAST as u32, slots: 1 };

/// Lets a thread sleep until its lane stirs.
#[derive(Default)]
pub(crate) struct Doorbell {
    rung: Mutex<bool>,
    bell: Condvar,
}

impl Wake for Doorbell {
    fn wake(&self) {
        *lock(&self.rung) = true;
        self.bell.notify_one();
    }
}

impl Doorbell {
    /// Sleeps until the lane stirs or `until` has come.
    fn wait(&self, until: Instant) {
        let left = until.saturating_duration_since(Instant::now());
        let waited = self.bell.wait_timeout_while(lock(&self.rung), left, |rung| !*rung);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

/// Counts far ends; dropping one gives its place back.
pub(crate) struct Place(Arc<AtomicUsize>);

impl Place {
    /// A place among the far ends, if one is free.
    pub(crate) fn take(taken: &Arc<AtomicUsize>) -> Option<Self> {
        let place = Self(Arc::clone(taken)); // gives back what was added, also if it was one too many
        (taken.fetch_add(1, Ordering::SeqCst) < ECHOES_MAX).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The far end: gives every message's slot back at once. Returns when the lane is over or the time is up.
pub(crate) fn echo(mut receiver: Box<dyn LaneReceiver>, doorbell: &Doorbell, _place: Place) {
    let until = Instant::now() + ECHO_LIFE;
    while Instant::now() < until && !matches!(receiver.state(), LaneState::Down(_)) {
        match receiver.take() {
            Some(slot) => receiver.release(slot),
            None => doorbell.wait(until),
        }
    }
}

/// The near end: waits for the lane, then measures.
///
/// # Errors
/// In words, why there are no figures.
pub(crate) fn measure(mut sender: Box<dyn LaneSender>, doorbell: &Doorbell, rate: bool) -> Result<Measured, String> {
    let until = Instant::now() + LIFE;
    loop {
        match sender.state() {
            LaneState::Ready => break,
            LaneState::Down(why) => return Err(why),
            LaneState::Connecting if Instant::now() >= until => return Err("it is not connected in time".into()),
            LaneState::Connecting => doorbell.wait(until),
        }
    }
    let mut run = Run { sender: sender.as_mut(), doorbell, until };
    let round_trip = run.round_trip()?;
    let bytes_per_s = if rate { run.rate(round_trip)? } else { 0 };
    Ok(Measured { delay_us: u32::try_from((round_trip / 2).as_micros()).unwrap_or(u32::MAX), bytes_per_s })
}

struct Run<'a> {
    sender: &'a mut dyn LaneSender,
    doorbell: &'a Doorbell,
    until: Instant,
}

impl Run<'_> {
    fn round_trip(&mut self) -> Result<Duration, String> {
        for _ in 0..WARM_UP {
            self.send(SHORT_BYTES)?;
        }
        let mut all = (0..ROUND_TRIPS - WARM_UP).map(|_| self.send(SHORT_BYTES)).collect::<Result<Vec<_>, _>>()?;
        all.sort_unstable();
        Ok(all[all.len() / 2])
    }

    fn rate(&mut self, round_trip: Duration) -> Result<u64, String> {
        let growing = std::iter::successors(Some(SIZE_FIRST), |size| Some(size * 4)).take_while(|size| *size < SIZE_LAST);
        let mut best = 0;
        for size in growing.chain([SIZE_LAST; FULL_SIZE]) {
            let took = self.send(size)?;
            // A short message that was lucky must not make the line infinitely fast.
            let nanos = took.saturating_sub(round_trip).max(took / 2).as_nanos().max(1);
            best = best.max(u64::try_from(size as u128 * 1_000_000_000 / nanos).unwrap_or(u64::MAX).max(1));
            if took >= LONG {
                break;
            }
        }
        Ok(best)
    }

    /// Sends a message and waits until its credit is back.
    fn send(&mut self, bytes: usize) -> Result<Duration, String> {
        self.credit()?;
        let start = Instant::now();
        self.sender.commit(bytes).map_err(|error| error.to_string())?;
        self.credit()?;
        Ok(start.elapsed())
    }

    fn credit(&mut self) -> Result<(), String> {
        while self.sender.reserve().is_none() {
            if let LaneState::Down(why) = self.sender.state() {
                return Err(why);
            }
            if Instant::now() >= self.until {
                return Err("it takes too long".into());
            }
            self.doorbell.wait(self.until);
        }
        Ok(())
    }
}
