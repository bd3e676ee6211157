//! Tensor lanes in memory: a slot is a buffer that moves from sender to receiver and back. No bytes are copied.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mesh_core::ids::NodeId;
use mesh_core::ports::{Channels, LaneError, LaneReceiver, LaneSender, LaneShape, LaneSlot, LaneState, Wake};
use mesh_core::wire::{LaneId, LaneOffer};
use zerocopy::IntoBytes;

/// All lanes of a world. Every node of it shares one.
#[derive(Default)]
pub struct MemoryLanes {
    lanes: Mutex<BTreeMap<LaneId, Arc<Lane>>>,
}

/// One life of a lane.
struct Lane {
    generation: u64,
    slot_bytes: usize,
    inner: Mutex<Inner>,
    receiver: Arc<dyn Wake>,
}

struct Inner {
    free: Vec<Box<[u64]>>,
    filled: VecDeque<(Box<[u64]>, u32)>,
    state: LaneState,
    sender: Option<Arc<dyn Wake>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lane {
    fn end(&self, why: &str) {
        let sender = {
            let mut inner = lock(&self.inner);
            if !matches!(inner.state, LaneState::Down(_)) {
                inner.state = LaneState::Down(why.to_owned());
            }
            inner.filled.clear();
            inner.sender.take()
        };
        self.receiver.wake();
        if let Some(sender) = sender {
            sender.wake();
        }
    }
}

impl MemoryLanes {
    /// Breaks every lane of this boundary: what is on it is lost, both ends see it go down.
    pub fn pull(&self, boundary: u16, why: &str) {
        let lanes: Vec<Arc<Lane>> =
            lock(&self.lanes).iter().filter(|(id, _)| id.boundary == boundary).map(|(_, lane)| lane.clone()).collect();
        lanes.iter().for_each(|lane| lane.end(why));
    }
}

impl Channels for MemoryLanes {
    fn accept(
        &self,
        lane: LaneId,
        _: NodeId,
        shape: LaneShape,
        waker: Arc<dyn Wake>,
    ) -> Result<(LaneOffer, Box<dyn LaneReceiver>), LaneError> {
        let mut lanes = lock(&self.lanes);
        let generation = lanes.get(&lane).map_or(0, |former| former.generation) + 1;
        let slot_bytes = shape.slot_bytes as usize;
        let life = Arc::new(Lane {
            generation,
            slot_bytes,
            inner: Mutex::new(Inner {
                free: (0..shape.slots).map(|_| vec![0; slot_bytes.div_ceil(8)].into_boxed_slice()).collect(),
                filled: VecDeque::new(),
                state: LaneState::Connecting,
                sender: None,
            }),
            receiver: waker,
        });
        if let Some(former) = lanes.insert(lane, life.clone()) {
            former.end("a new generation was accepted");
        }
        let offer = LaneOffer {
            lane,
            generation,
            endpoints: vec!["local:".to_owned()],
            secret: [0; 32],
            slot_bytes: shape.slot_bytes,
            slots: shape.slots,
        };
        Ok((offer, Box::new(Receiver { lane: life, held: BTreeMap::new(), next: 0 })))
    }

    fn connect(&self, _: NodeId, offer: &LaneOffer, waker: Arc<dyn Wake>) -> Result<Box<dyn LaneSender>, LaneError> {
        let lane = lock(&self.lanes).get(&offer.lane).filter(|lane| lane.generation == offer.generation).cloned();
        let lane = lane.ok_or_else(|| LaneError::Down("no such generation".to_owned()))?;
        {
            let mut inner = lock(&lane.inner);
            if inner.state == LaneState::Connecting {
                inner.state = LaneState::Ready;
            }
            inner.sender = Some(waker.clone());
        }
        lane.receiver.wake();
        waker.wake();
        Ok(Box::new(Sender { lane, reserved: None }))
    }
}

struct Sender {
    lane: Arc<Lane>,
    reserved: Option<Box<[u64]>>,
}

impl LaneSender for Sender {
    fn reserve(&mut self) -> Option<&mut [u8]> {
        if self.reserved.is_none() {
            let mut inner = lock(&self.lane.inner);
            self.reserved = if inner.state == LaneState::Ready { inner.free.pop() } else { None };
        }
        let slot_bytes = self.lane.slot_bytes;
        self.reserved.as_mut().map(|slot| &mut slot.as_mut_bytes()[..slot_bytes])
    }

    fn commit(&mut self, bytes: usize) -> Result<(), LaneError> {
        let slot_bytes = self.lane.slot_bytes;
        if bytes > slot_bytes {
            return Err(LaneError::TooLong { bytes, slot_bytes });
        }
        let Some(slot) = self.reserved.take() else { return Err(LaneError::Down("nothing was reserved".to_owned())) };
        {
            let mut inner = lock(&self.lane.inner);
            if let LaneState::Down(why) = &inner.state {
                return Err(LaneError::Down(why.clone()));
            }
            inner.filled.push_back((slot, u32::try_from(bytes).expect("shorter than a slot")));
        }
        self.lane.receiver.wake();
        Ok(())
    }

    fn state(&self) -> LaneState {
        lock(&self.lane.inner).state.clone()
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.lane.end("the sender hung up");
    }
}

struct Receiver {
    lane: Arc<Lane>,
    held: BTreeMap<u16, Box<[u64]>>,
    next: u16,
}

impl LaneReceiver for Receiver {
    fn take(&mut self) -> Option<LaneSlot> {
        let (slot, bytes) = lock(&self.lane.inner).filled.pop_front()?;
        self.next = self.next.wrapping_add(1);
        self.held.insert(self.next, slot);
        Some(LaneSlot { index: self.next, bytes })
    }

    fn bytes(&self, slot: LaneSlot) -> &[u8] {
        &self.held[&slot.index].as_bytes()[..slot.bytes as usize]
    }

    fn release(&mut self, slot: LaneSlot) {
        let Some(buffer) = self.held.remove(&slot.index) else { return };
        let sender = {
            let mut inner = lock(&self.lane.inner);
            inner.free.push(buffer);
            inner.sender.clone()
        };
        if let Some(sender) = sender {
            sender.wake();
        }
    }

    fn state(&self) -> LaneState {
        lock(&self.lane.inner).state.clone()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.lane.end("the receiver hung up");
    }
}
