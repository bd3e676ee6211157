//! The receiving end of a connection: messages in, credits out.

use std::io;
use std::sync::{Arc, Mutex};

use super::link::Link;
use super::pump::{self, Side};
use crate::arena::{Filled, Slot};
use crate::config::Deadlines;
use crate::counters::Counters;
use crate::frame::{FrameError, Header, Kind};
use crate::inlet::{Inlet, Upstream};
use crate::lock;
use crate::seal::Opener;

/// The way back to a sender on TCP. Grants are cumulative, so one stands for all before it: they are sent when the sender
/// is down to half of its credit, not for each slot.
struct Credits {
    link: Arc<Link>,
    slots: u64,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    received: u64,
    released: u64,
    granted: u64,
}

impl Credits {
    fn received(&self) -> io::Result<()> {
        let mut counts = lock(&self.counts);
        counts.received += 1;
        self.grant_if_due(&mut counts)
    }

    fn grant_if_due(&self, counts: &mut Counts) -> io::Result<()> {
        let left = counts.granted.saturating_sub(counts.received);
        if left <= self.slots / 2 && counts.released + self.slots > counts.granted {
            self.grant(counts, Kind::Grant)?;
        }
        Ok(())
    }

    fn grant(&self, counts: &mut Counts, kind: Kind) -> io::Result<()> {
        let granted = counts.released + self.slots;
        if self.link.send_small(kind, granted)? {
            counts.granted = granted;
        }
        Ok(())
    }
}

impl Upstream for Credits {
    fn released(&self, _starved: bool) {
        let mut counts = lock(&self.counts);
        counts.released += 1;
        // A dead connection shows in the pump, which ends the lane.
        let _ = self.grant_if_due(&mut counts);
    }

    fn hang_up(&self) {
        self.link.bell.end();
    }
}

/// A receiving end with its credits, for the pump.
struct Inward {
    inlet: Arc<Inlet>,
    credits: Arc<Credits>,
}

impl Side for Inward {
    fn slot(&self) -> Result<Slot, FrameError> {
        self.inlet.ring.claim().map_err(|_| FrameError::NoCredit)
    }

    fn frame(&self, header: &Header, message: Option<Filled>) -> Result<(), FrameError> {
        match (header.kind, message) {
            (Kind::Data, Some(message)) => {
                // Refused only by a lane that has just ended, and then the bell has been rung.
                if self.inlet.ring.push(message).is_ok() {
                    let _ = self.credits.received();
                    self.inlet.waker.wake();
                }
                Ok(())
            }
            (Kind::KeepAlive, _) => Ok(()),
            _ => Err(FrameError::WrongWay),
        }
    }

    fn written(&self, _slot: Slot) {}

    fn catch_up(&self) -> io::Result<()> {
        self.credits.grant_if_due(&mut lock(&self.credits.counts))
    }

    fn keep_alive(&self) -> io::Result<()> {
        self.credits.grant(&mut lock(&self.credits.counts), Kind::KeepAlive)
    }

    fn ended(&self, why: &str) {
        self.inlet.end(why, false);
    }
}

/// Gives a connection that proved itself to its lane, and starts its thread. False if the lane is over or taken.
pub(super) fn start(inlet: Arc<Inlet>, link: Arc<Link>, opener: Opener, deadlines: Deadlines, counters: Arc<Counters>) -> bool {
    let slots = u64::from(inlet.shape.slots);
    let counts = Mutex::new(Counts { granted: slots, ..Counts::default() });
    let credits = Arc::new(Credits { link: Arc::clone(&link), slots, counts });
    let upstream: Arc<dyn Upstream> = Arc::clone(&credits) as _;
    if !inlet.claim(upstream) {
        return false;
    }
    let side = Inward { inlet: Arc::clone(&inlet), credits };
    let local = link.socket.local_addr().map_or(link.peer.ip(), |local| local.ip());
    let entry = inlet.book.enter(inlet.from, inlet.lane, local, link.peer.ip());
    inlet.came_over(entry.link().cloned());
    let thread = std::thread::Builder::new().name(format!("lane-in-{}", inlet.lane.boundary));
    if let Err(error) = thread.spawn(move || entry.close(pump::run(&link, opener, &side, &deadlines, &counters))) {
        inlet.end(&format!("no thread for the lane: {error}"), false);
    }
    true
}
