//! What is still to come, in order of (time, number).

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use mesh_core::wire::Message;

use super::lanes::LaneEvent;
use super::wires::WireEvent;

/// Something that will happen.
pub enum Event {
    /// A wait is over.
    Waited(Arc<Bell>),
    /// A carrier wants to be woken.
    Carrier {
        /// Of which life.
        life: usize,
    },
    /// A message from a node to itself.
    ToSelf {
        /// Which life.
        life: usize,
        /// What.
        message: Box<Message>,
    },
    /// On a control connection.
    Wire(WireEvent),
    /// On a tensor lane.
    Lane(LaneEvent),
    /// The world's own: starts, faults, questions, the end.
    World(WorldEvent),
}

/// What the world itself does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorldEvent {
    /// A machine starts its node.
    Start {
        /// Which.
        place: usize,
    },
    /// A node's process ends now.
    End {
        /// Which life.
        life: usize,
        /// Why.
        why: &'static str,
        /// Starts again after so many nanoseconds.
        again_ns: Option<u64>,
    },
    /// A fault begins.
    Break(usize),
    /// A fault ends.
    Mend(usize),
    /// A flapping link turns.
    Flap {
        /// Which fault.
        fault: usize,
        /// Whether it is cut now.
        cut: bool,
    },
    /// Everything is mended.
    Heal,
    /// The world is over.
    Over,
}

/// Names an event, to take it back.
pub type EventKey = (u64, u64);

/// The queue.
#[derive(Default)]
pub struct Queue {
    events: BTreeMap<EventKey, Event>,
    pushed: u64,
    /// Events that happened.
    pub done: u64,
}

impl Queue {
    /// Has something happen at this time.
    pub fn push(&mut self, at_ns: u64, event: Event) -> EventKey {
        self.pushed += 1;
        let key = (at_ns, self.pushed);
        self.events.insert(key, event);
        key
    }

    /// Takes something back.
    pub fn cancel(&mut self, key: EventKey) {
        self.events.remove(&key);
    }

    /// When the next thing happens.
    #[must_use]
    pub fn next_at(&self) -> Option<u64> {
        self.events.first_key_value().map(|(key, _)| key.0)
    }

    /// The next thing, if it is due.
    pub fn pop_due(&mut self, now_ns: u64) -> Option<Event> {
        let first = self.events.first_entry().filter(|entry| entry.key().0 <= now_ns)?;
        self.done += 1;
        Some(first.remove())
    }
}

/// Rung once.
#[derive(Default)]
pub struct Bell {
    state: Mutex<(bool, Option<Waker>)>,
}

impl Bell {
    /// Wakes who waits.
    pub fn ring(&self) {
        let waker = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.0 = true;
            state.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn poll(&self, context: &Context<'_>) -> Poll<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.0 {
            return Poll::Ready(());
        }
        state.1 = Some(context.waker().clone());
        Poll::Pending
    }
}

/// A wait that is taken back when nobody waits any more.
pub struct Waiting<F: FnMut(EventKey) + Send + Unpin> {
    /// Rung at its end.
    pub bell: Arc<Bell>,
    /// The event that rings it.
    pub key: EventKey,
    /// Takes it back.
    pub cancel: F,
}

impl<F: FnMut(EventKey) + Send + Unpin> Future for Waiting<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.bell.poll(context)
    }
}

impl<F: FnMut(EventKey) + Send + Unpin> Drop for Waiting<F> {
    fn drop(&mut self) {
        let key = self.key;
        (self.cancel)(key);
    }
}
