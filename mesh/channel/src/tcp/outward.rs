//! The sending end of a connection: messages out while there is credit.

use std::io;
use std::sync::{Arc, Mutex, OnceLock};

use mesh_core::ports::{LaneError, LaneSender, LaneShape, LaneState, Wake};
use mesh_core::wire::LaneOffer;

use super::dial::{self, Connected, Dialler};
use super::link::Link;
use super::pump::{self, Side};
use crate::arena::{self, Filled, Slot};
use crate::counters::Counters;
use crate::frame::{FrameError, Header, Kind};
use crate::lock;
use crate::poll::Bell;

/// A sending end, as its owner and its thread share it.
struct Outlet {
    gate: Mutex<Gate>,
    slots: u16,
    waker: Arc<dyn Wake>,
    bell: Arc<Bell>,
    /// Set when the handshake is done.
    link: OnceLock<Arc<Link>>,
}

/// Decides whether there is a slot to write into. Slots here are as many as the receiver's: what is not yet written has
/// not been received, much less released, so whoever has credit finds a free one.
struct Gate {
    free: Vec<Slot>,
    /// Messages that may have been sent in all.
    granted: u64,
    sent: u64,
    state: LaneState,
    /// The owner asked for a slot in vain and wants to be woken.
    starved: bool,
}

impl Gate {
    fn claim(&mut self) -> Option<Slot> {
        let slot = if self.state == LaneState::Ready && self.sent < self.granted { self.free.pop() } else { None };
        self.starved = slot.is_none();
        slot
    }

    /// Whether to wake the owner now.
    fn relieved(&mut self) -> bool {
        let relieved = self.starved && self.sent < self.granted && !self.free.is_empty();
        if relieved {
            self.starved = false;
        }
        relieved
    }
}

impl Outlet {
    fn ready(&self, link: Arc<Link>) {
        assert!(self.link.set(link).is_ok(), "a sending end is connected once");
        let mut gate = lock(&self.gate);
        if gate.state == LaneState::Connecting {
            gate.state = LaneState::Ready;
        }
        drop(gate);
        self.waker.wake();
    }

    /// The first reason stays.
    fn end(&self, why: &str) {
        let mut gate = lock(&self.gate);
        if matches!(gate.state, LaneState::Down(_)) {
            return;
        }
        gate.state = LaneState::Down(why.to_owned());
        gate.free = Vec::new();
        drop(gate);
        self.waker.wake();
    }

    fn put_back(&self, slot: Slot) -> bool {
        let mut gate = lock(&self.gate);
        if !matches!(gate.state, LaneState::Down(_)) {
            gate.free.push(slot);
        }
        gate.relieved()
    }

    fn grant(&self, granted: u64) -> Result<(), FrameError> {
        let mut gate = lock(&self.gate);
        if granted < gate.granted || granted > gate.sent + u64::from(self.slots) {
            return Err(FrameError::Grant { granted, sent: gate.sent, slots: self.slots });
        }
        gate.granted = granted;
        let relieved = gate.relieved();
        drop(gate);
        if relieved {
            self.waker.wake();
        }
        Ok(())
    }
}

/// A sending end, for the pump.
struct Outward {
    outlet: Arc<Outlet>,
    link: Arc<Link>,
}

impl Side for Outward {
    fn slot(&self) -> Result<Slot, FrameError> {
        Err(FrameError::WrongWay)
    }

    fn frame(&self, header: &Header, _message: Option<Filled>) -> Result<(), FrameError> {
        self.outlet.grant(header.granted)
    }

    fn written(&self, slot: Slot) {
        if self.outlet.put_back(slot) {
            self.outlet.waker.wake();
        }
    }

    fn catch_up(&self) -> io::Result<()> {
        Ok(())
    }

    fn keep_alive(&self) -> io::Result<()> {
        self.link.send_small(Kind::KeepAlive, 0).map(drop)
    }

    fn ended(&self, why: &str) {
        self.outlet.end(why);
    }
}

/// What the owner of a sending end holds.
struct Sender {
    outlet: Arc<Outlet>,
    reserved: Option<Slot>,
}

impl LaneSender for Sender {
    fn reserve(&mut self) -> Option<&mut [u8]> {
        if self.reserved.is_none() {
            self.reserved = lock(&self.outlet.gate).claim();
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
        let mut gate = lock(&self.outlet.gate);
        if let LaneState::Down(why) = &gate.state {
            return Err(LaneError::Down(why.clone()));
        }
        gate.sent += 1;
        drop(gate);
        let link = self.outlet.link.get().expect("slots are given out by connected lanes only");
        match link.send(Filled { slot, bytes }) {
            Ok(None) => Ok(()),
            Ok(Some(slot)) => {
                self.outlet.put_back(slot); // nobody waits: the owner is here
                Ok(())
            }
            Err(error) => {
                let why = format!("{} is lost: {error}", link.peer);
                link.shut(); // the pump sees it at once
                self.outlet.end(&why);
                Err(LaneError::Down(why))
            }
        }
    }

    fn state(&self) -> LaneState {
        lock(&self.outlet.gate).state.clone()
    }
}

impl Drop for Sender {
    /// What was committed is still written, for `linger` at most, by the lane's thread, which then ends.
    fn drop(&mut self) {
        self.outlet.bell.end();
    }
}

/// Starts to connect. Offer and sizes were checked.
///
/// # Errors
/// No memory, descriptors or thread.
pub(crate) fn connect(
    offer: &LaneOffer,
    dialler: Dialler,
    counters: Arc<Counters>,
    waker: Arc<dyn Wake>,
) -> Result<Box<dyn LaneSender>, LaneError> {
    let system = |error: io::Error| LaneError::System(error.to_string());
    let free = arena::slots(LaneShape { slot_bytes: offer.slot_bytes, slots: offer.slots })?;
    let bell = Arc::new(Bell::new().map_err(system)?);
    let outlet = Arc::new(Outlet {
        gate: Mutex::new(Gate { free, granted: 0, sent: 0, state: LaneState::Connecting, starved: false }),
        slots: offer.slots,
        waker,
        bell: Arc::clone(&bell),
        link: OnceLock::new(),
    });
    let (offer, shared) = (offer.clone(), Arc::clone(&outlet));
    let thread = std::thread::Builder::new().name(format!("lane-out-{}", offer.lane.boundary));
    thread.spawn(move || lane(&offer, &dialler, shared, &bell, &counters)).map_err(system)?;
    Ok(Box::new(Sender { outlet, reserved: None }))
}

/// The thread of a sending end: connect, then pump.
fn lane(offer: &LaneOffer, dialler: &Dialler, outlet: Arc<Outlet>, bell: &Arc<Bell>, counters: &Counters) {
    let Connected { socket, peer, sealer, opener, granted } = match dial::dial(offer, dialler, bell) {
        Ok(connected) => connected,
        Err(why) => {
            if dialler.measuring {
                tracing::debug!(why, "a link cannot be measured"); // finding that out is what was asked for
            } else if !bell.is_over() {
                Counters::add(&counters.broken);
                tracing::warn!(lane = ?offer.lane, why, "a tensor lane cannot be connected");
            }
            outlet.end(&why);
            return;
        }
    };
    let link = Arc::new(Link::new(socket, peer, Arc::clone(bell), sealer));
    if let Err(error) = outlet.grant(granted) {
        outlet.end(&format!("{peer} sent {error}"));
        return;
    }
    let local = link.socket.local_addr().map_or(peer.ip(), |local| local.ip());
    let entry = dialler.book.enter(dialler.to, offer.lane, local, peer.ip());
    outlet.ready(Arc::clone(&link));
    let side = Outward { outlet, link: Arc::clone(&link) };
    entry.close(pump::run(&link, opener, &side, &dialler.deadlines, counters));
}
