//! Which lanes can be connected to: the newest generation of each.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Instant, SystemTime};

use mesh_core::wire::LaneId;

use crate::inlet::Inlet;
use crate::lock;

/// Lanes at most. A node has one or two a deployment and plan. Guess.
const LANES_MAX: usize = 4096;

/// The accepted lanes. Holds none of them alive: a lane is its receiver's.
pub(crate) struct Registry(Mutex<Lanes>);

struct Lanes {
    newest: BTreeMap<LaneId, Weak<Inlet>>,
    generation: u64,
    open: bool,
}

/// Why a connection cannot have a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoLane {
    #[error("no such lane is accepted here")]
    Unknown,
    #[error("generation {asked} of the lane is over; the newest is {newest}")]
    Superseded { asked: u64, newest: u64 },
    #[error("the lane has its sender already")]
    Taken,
}

impl Registry {
    /// Generations start at the clock's microseconds: so they also rise over a restart, unless the clock was set back,
    /// and then the secret still tells the lives apart.
    pub(crate) fn new() -> Self {
        let micros = SystemTime::UNIX_EPOCH.elapsed().map_or(1, |since| u64::try_from(since.as_micros()).unwrap_or(1));
        Self(Mutex::new(Lanes { newest: BTreeMap::new(), generation: micros, open: true }))
    }

    /// Makes the next generation of a lane and ends the one before.
    ///
    /// # Errors
    /// Too many lanes, or the channels are closed.
    pub(crate) fn accept(&self, lane: LaneId, make: impl FnOnce(u64) -> Arc<Inlet>) -> Result<Arc<Inlet>, String> {
        let mut lanes = lock(&self.0);
        if !lanes.open {
            return Err("the channels are closed".into());
        }
        lanes.newest.retain(|_, inlet| inlet.strong_count() > 0);
        if lanes.newest.len() >= LANES_MAX && !lanes.newest.contains_key(&lane) {
            return Err(format!("{LANES_MAX} lanes are accepted already"));
        }
        lanes.generation += 1;
        let inlet = make(lanes.generation);
        let before = lanes.newest.insert(lane, Arc::downgrade(&inlet));
        drop(lanes); // ending a lane calls a waker
        if let Some(before) = before.and_then(|inlet| inlet.upgrade()) {
            before.end(&format!("generation {} follows", inlet.generation), true);
        }
        Ok(inlet)
    }

    /// The lane that a sender asks for, if it can still have it.
    pub(crate) fn find(&self, lane: &LaneId, generation: u64) -> Result<Arc<Inlet>, NoLane> {
        let inlet = lock(&self.0).newest.get(lane).and_then(Weak::upgrade).ok_or(NoLane::Unknown)?;
        if inlet.generation != generation {
            return Err(NoLane::Superseded { asked: generation, newest: inlet.generation });
        }
        if inlet.is_claimed() { Err(NoLane::Taken) } else { Ok(inlet) }
    }

    /// Gives up lanes that nobody came for. Returns when to call again.
    pub(crate) fn expire(&self, now: Instant) -> Option<Instant> {
        let waiting: Vec<Arc<Inlet>> = self.alive().into_iter().filter(|inlet| !inlet.is_claimed()).collect();
        let (over, rest): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|inlet| inlet.unclaimed_until <= now);
        for inlet in over {
            inlet.end("no sender has connected before the deadline", false);
        }
        rest.iter().filter(|inlet| inlet.ring.state() == mesh_core::ports::LaneState::Connecting).map(|inlet| inlet.unclaimed_until).min()
    }

    /// No more lanes; those that wait for a sender end, connected ones go on.
    pub(crate) fn close(&self) {
        lock(&self.0).open = false;
        for inlet in self.alive() {
            if !inlet.is_claimed() {
                inlet.end("the channels were closed", false);
            }
        }
    }

    fn alive(&self) -> Vec<Arc<Inlet>> {
        lock(&self.0).newest.values().filter_map(Weak::upgrade).collect()
    }
}
