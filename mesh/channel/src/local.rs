//! The sending end of a lane inside the process: it fills the receiver's own slots, so nothing is copied.

use std::sync::Arc;

use mesh_core::ports::{LaneError, LaneSender, LaneState, Wake};

use crate::arena::{Filled, Slot};
use crate::inlet::{Inlet, Upstream};

/// The sending end.
pub(crate) struct LocalSender {
    inlet: Arc<Inlet>,
    reserved: Option<Slot>,
}

/// The way back: a wake is all that a sender in the same process needs.
struct Neighbour(Arc<dyn Wake>);

impl Upstream for Neighbour {
    fn released(&self, starved: bool) {
        if starved {
            self.0.wake();
        }
    }

    fn hang_up(&self) {
        self.0.wake();
    }
}

impl LocalSender {
    /// Takes the sending end of `inlet`. `None` if it is taken, or over.
    pub(crate) fn claim(inlet: Arc<Inlet>, waker: Arc<dyn Wake>) -> Option<Self> {
        let upstream = Arc::new(Neighbour(Arc::clone(&waker)));
        if !inlet.claim(upstream) {
            return None;
        }
        waker.wake();
        Some(Self { inlet, reserved: None })
    }
}

impl LaneSender for LocalSender {
    fn reserve(&mut self) -> Option<&mut [u8]> {
        if self.reserved.is_none() {
            self.reserved = self.inlet.ring.claim().ok();
        }
        self.reserved.as_deref_mut()
    }

    /// # Panics
    /// Without a slot from `reserve`.
    fn commit(&mut self, bytes: usize) -> Result<(), LaneError> {
        let slot = self.reserved.take().expect("a message is written into a reserved slot");
        if bytes > slot.len() {
            let slot_bytes = slot.len();
            self.reserved = Some(slot);
            return Err(LaneError::TooLong { bytes, slot_bytes });
        }
        self.inlet.ring.push(Filled { slot, bytes }).map_err(LaneError::Down)?;
        self.inlet.waker.wake();
        Ok(())
    }

    fn state(&self) -> LaneState {
        self.inlet.ring.state()
    }
}

impl Drop for LocalSender {
    fn drop(&mut self) {
        self.inlet.end("the sending end closed the lane", false);
    }
}
