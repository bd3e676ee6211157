//! The receiving end of one generation: what its owner, its connection, the door and a local sender share.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use mesh_core::ids::NodeId;
use mesh_core::links::LinkName;
use mesh_core::ports::{LaneReceiver, LaneShape, LaneSlot, LaneState, Wake};
use mesh_core::wire::LaneId;

use crate::arena::Filled;
use crate::book::Book;
use crate::ring::Ring;

/// One generation of a lane, at its receiver.
pub(crate) struct Inlet {
    pub(crate) lane: LaneId,
    /// The sender's node.
    pub(crate) from: NodeId,
    pub(crate) generation: u64,
    pub(crate) secret: [u8; 32],
    pub(crate) shape: LaneShape,
    pub(crate) ring: Ring,
    pub(crate) book: Arc<Book>,
    pub(crate) waker: Arc<dyn Wake>,
    /// When a lane that nobody connected to is given up.
    pub(crate) unclaimed_until: Instant,
    /// Set once: a generation has one sender.
    upstream: OnceLock<Arc<dyn Upstream>>,
    /// The link that the sender came over, if it came over one that was agreed on. Not set inside a process.
    link: OnceLock<Option<LinkName>>,
}

/// What an inlet is made of. See [`Inlet`].
pub(crate) struct Terms {
    pub(crate) lane: LaneId,
    pub(crate) from: NodeId,
    pub(crate) secret: [u8; 32],
    pub(crate) shape: LaneShape,
    pub(crate) unclaimed_until: Instant,
}

/// The way back to a sender, whatever carries it.
pub(crate) trait Upstream: Send + Sync {
    /// A slot was released; `starved` if somebody asked this end's ring for one in vain.
    fn released(&self, starved: bool);
    /// The receiving end is over: hang up, without waiting.
    fn hang_up(&self);
}

impl Inlet {
    pub(crate) fn new(generation: u64, terms: Terms, ring: Ring, waker: Arc<dyn Wake>, book: Arc<Book>) -> Self {
        let Terms { lane, from, secret, shape, unclaimed_until } = terms;
        let (upstream, link) = (OnceLock::new(), OnceLock::new());
        Self { lane, from, generation, secret, shape, ring, book, waker, unclaimed_until, upstream, link }
    }

    /// The sender came over this link.
    pub(crate) fn came_over(&self, link: Option<LinkName>) {
        let _ = self.link.set(link); // a generation has one sender, so it is set once
    }

    /// Whether a sender has it already.
    pub(crate) fn is_claimed(&self) -> bool {
        self.upstream.get().is_some()
    }

    /// Gives the lane its sender. False if it has one or is over.
    pub(crate) fn claim(&self, upstream: Arc<dyn Upstream>) -> bool {
        let claimed = self.upstream.set(upstream).is_ok() && self.ring.set_ready();
        if claimed {
            self.waker.wake();
        }
        claimed
    }

    /// Ends the lane and tells both ends; the first reason stays. See [`Ring::end`] for `forget`.
    pub(crate) fn end(&self, why: &str, forget: bool) {
        if self.ring.end(why, forget) {
            if let Some(upstream) = self.upstream.get() {
                upstream.hang_up();
            }
            self.waker.wake();
        }
    }
}

/// What the owner of a receiving end holds.
pub(crate) struct Receiver {
    inlet: Arc<Inlet>,
    /// Messages between `take` and `release`, by slot index.
    held: Vec<Option<Filled>>,
}

impl Receiver {
    pub(crate) fn new(inlet: Arc<Inlet>) -> Self {
        let held = std::iter::repeat_with(|| None).take(usize::from(inlet.shape.slots)).collect();
        Self { inlet, held }
    }
}

impl LaneReceiver for Receiver {
    fn take(&mut self) -> Option<LaneSlot> {
        let filled = self.inlet.ring.pop()?;
        let bytes = u32::try_from(filled.bytes).expect("a slot is at most SLOT_BYTES_MAX");
        let slot = LaneSlot { index: filled.slot.index(), bytes };
        self.held[usize::from(slot.index)] = Some(filled);
        Some(slot)
    }

    /// # Panics
    /// If the slot is not held: the caller released it already.
    fn bytes(&self, slot: LaneSlot) -> &[u8] {
        self.held[usize::from(slot.index)].as_ref().expect("a slot is read between take and release").message()
    }

    /// # Panics
    /// If the slot is not held: the caller released it already.
    fn release(&mut self, slot: LaneSlot) {
        let filled = self.held[usize::from(slot.index)].take().expect("a slot is released once");
        let starved = self.inlet.ring.give_back(filled.slot);
        if let Some(upstream) = self.inlet.upstream.get() {
            upstream.released(starved);
        }
    }

    fn state(&self) -> LaneState {
        self.inlet.ring.state()
    }

    fn has_better_link(&self) -> bool {
        self.inlet.link.get().is_some_and(|link| self.inlet.book.has_better(self.inlet.from, link.as_ref()))
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.inlet.end("the receiving end closed the lane", true);
    }
}
