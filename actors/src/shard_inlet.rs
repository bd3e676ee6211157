//! The way into a shard: one bounded queue that any thread may push to, and a view that any thread may read.
//!
//! The shard itself (core, engine, lanes) belongs to one thread. Everybody else holds a [`ShardHandle`]: the router pushes
//! control messages from the carrier's thread, the node actor pushes orders, lanes call [`Wake::wake`]. Nothing here waits:
//! a full queue is an answer. What the shard says about itself lies in a `watch` cell, so that a reader sees the newest
//! state and a writer never waits for a reader.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_channel::{Receiver, Sender};
use mesh_core::generation::AttemptTag;
use mesh_core::ids::{BootId, DeploymentId, NodeId, PlanHash, StreamId};
use mesh_core::model::Layers;
use mesh_core::plan::Plan;
use mesh_core::ports::{EngineOptions, Wake};
use mesh_core::wire::{Message, ShardReport, ShardState, StreamTag};
use tokio::sync::{Notify, watch};

use crate::handle::SeenShard;

/// Orders that wait for a shard at most. A stage takes 256 streams; each has a handful of messages under way. (Guess.)
pub const ORDERS_MAX: usize = 4096;

/// The shard's queue is full, or the shard is gone. Control messages are lost then; their senders' deadlines act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// Full: the shard is busy loading, or flooded.
    #[error("the shard has {ORDERS_MAX} orders waiting")]
    Full,
    /// The shard has ended.
    #[error("the shard has ended")]
    Ended,
}

/// What a shard is told.
#[derive(Debug)]
pub(crate) enum Order {
    /// Have the layers of this plan in memory.
    Load { plan: Plan, options: EngineOptions },
    /// This plan was published: put it in force and connect its lanes.
    Adopt { plan: Plan },
    /// A control message from a peer, authenticated.
    Heard { from: NodeId, message: Message },
    /// A node is down or restarted: its streams are over.
    NodeDown(NodeId),
    /// Drop everything and end.
    Retire,
    /// A lane has something.
    Look,
}

/// What a shard says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardView {
    /// The plan that was ordered or adopted last, and this node's layers in it.
    pub plan: Option<(PlanHash, Layers)>,
    /// How far it is with that plan.
    pub state: ShardState,
    /// Weights, caches and lanes are gone, and the thread with them.
    pub ended: bool,
}

/// A stream with rows in the step that runs now: (stream, attempt, owner).
pub(crate) type Running = (StreamId, AttemptTag, NodeId);

/// What both sides of the inlet read and write.
#[derive(Default)]
pub(crate) struct Shared {
    /// A `Look` is queued already.
    look: AtomicBool,
    /// The running step shall stop.
    pub give_up: AtomicBool,
    /// The streams of the running step that were not closed since it began.
    running: Mutex<Vec<Running>>,
    /// The plan that was ordered last: a load for another one gives up.
    wanted: Mutex<Option<PlanHash>>,
    /// The shard shall end: loads and steps give up.
    pub retired: AtomicBool,
    /// Streams with a cache.
    pub streams: AtomicU32,
    /// Bytes of those caches.
    pub kv_bytes: AtomicU64,
    /// Steps since the start.
    pub steps: AtomicU64,
    /// Bytes of weights read since the start.
    pub loaded_bytes: AtomicU64,
    /// Layers in memory: first in the upper half, end in the lower.
    layers: AtomicU32,
}

impl Shared {
    /// Lanes are about to be looked at: wakes from here on count again.
    pub fn looking_at_lanes(&self) {
        self.look.store(false, Ordering::SeqCst);
    }
    /// A step with these streams begins.
    pub fn begin(&self, streams: Vec<Running>) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        *running = streams;
        self.give_up.store(self.retired.load(Ordering::Acquire), Ordering::Release);
    }
    /// The step has ended.
    pub fn end(&self) {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
    /// An owner closed a stream: a step that works for nobody else stops between two layers.
    fn closed(&self, from: NodeId, tag: &StreamTag) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let before = running.len();
        running.retain(|entry| *entry != (tag.stream, tag.attempt, from));
        if running.is_empty() && before > 0 {
            self.give_up.store(true, Ordering::Release);
        }
    }
    /// Whatever runs is for nobody any more.
    fn stop(&self) {
        // Under the lock, so that a step that is just beginning cannot overwrite it.
        let _running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        self.give_up.store(true, Ordering::Release);
    }
    /// Whether a load for `plan` is still what is wanted.
    pub fn wants(&self, plan: PlanHash) -> bool {
        !self.retired.load(Ordering::Acquire) && *self.wanted.lock().unwrap_or_else(PoisonError::into_inner) == Some(plan)
    }
    /// Says which layers are in memory.
    pub fn holds(&self, layers: Layers) {
        self.layers.store(u32::from(layers.first) << 16 | u32::from(layers.end), Ordering::Release);
    }
    fn held(&self) -> Layers {
        let packed = self.layers.load(Ordering::Acquire);
        let half = |bits: u32| u16::try_from(bits & 0xffff).expect("sixteen bits");
        Layers::new(half(packed >> 16), half(packed))
    }
}

/// The outer end of a shard's queue. `Send + Sync + Clone`; outlives the shard.
#[derive(Clone)]
pub struct ShardHandle {
    deployment: DeploymentId,
    me: NodeId,
    boot: BootId,
    orders: Sender<Order>,
    shared: Arc<Shared>,
    view: Arc<watch::Sender<ShardView>>,
    /// Rung where the shard does not sleep on the queue itself.
    bell: Option<Arc<Notify>>,
}

/// The inner end: what the shard reads, and where it writes its view.
pub(crate) struct ShardInlet {
    pub orders: Receiver<Order>,
    pub shared: Arc<Shared>,
    pub view: Arc<watch::Sender<ShardView>>,
}

impl ShardHandle {
    /// Both ends. The bell is rung after each order, and when a step shall give up.
    pub(crate) fn new(deployment: DeploymentId, me: NodeId, boot: BootId, bell: Option<Arc<Notify>>) -> (Self, ShardInlet) {
        let (sender, orders) = crossbeam_channel::bounded(ORDERS_MAX);
        let shared = Arc::new(Shared::default());
        let idle = ShardView { plan: None, state: ShardState::Loading { done_bytes: 0, all_bytes: 0 }, ended: false };
        let view = Arc::new(watch::Sender::new(idle));
        let inlet = ShardInlet { orders, shared: shared.clone(), view: view.clone() };
        (Self { deployment, me, boot, orders: sender, shared, view, bell }, inlet)
    }

    fn push(&self, order: Order) -> Result<(), PushError> {
        let pushed = self.orders.try_send(order).map_err(|error| match error {
            crossbeam_channel::TrySendError::Full(_) => PushError::Full,
            crossbeam_channel::TrySendError::Disconnected(_) => PushError::Ended,
        });
        if let Some(bell) = &self.bell {
            bell.notify_one();
        }
        pushed
    }

    /// Rung after each order.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn bell(&self) -> Option<Arc<Notify>> {
        self.bell.clone()
    }

    /// Orders the layers of `plan` into memory. What is held already is not read again; a load for another plan gives up.
    /// An order that is being carried out, or was, changes nothing; after a failure it starts again.
    ///
    /// # Errors
    /// See [`PushError`]. The order is not remembered then.
    ///
    /// # Panics
    /// If this node has no stage in `plan`: the caller looked.
    pub fn load(&self, plan: &Plan, options: EngineOptions) -> Result<(), PushError> {
        let (_, stage) = plan.stage_of(self.me).expect("only a node of the plan is told to load");
        let mut wanted = self.shared.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = matches!(self.view.borrow().state, ShardState::Failed { .. });
        if *wanted == Some(plan.hash()) && !failed {
            return Ok(());
        }
        self.push(Order::Load { plan: plan.clone(), options })?;
        *wanted = Some(plan.hash());
        if self.shared.held() != stage.layers {
            self.shared.stop(); // its streams end before the layers change
        }
        self.view.send_replace(ShardView {
            plan: Some((plan.hash(), stage.layers)),
            state: ShardState::Loading { done_bytes: 0, all_bytes: 0 },
            ended: false,
        });
        Ok(())
    }

    /// Puts a published plan in force and connects its lanes; its layers must have been ordered before. Repeats change nothing.
    ///
    /// # Errors
    /// See [`PushError`].
    pub fn adopt(&self, plan: &Plan) -> Result<(), PushError> {
        self.push(Order::Adopt { plan: plan.clone() })
    }

    /// Hands over a control message from `from` (authenticated): `Open`, `Start`, `Grant`, `Close`, `Token`, `Lane`.
    ///
    /// # Errors
    /// See [`PushError`]. The message is lost.
    pub fn heard(&self, from: NodeId, message: Message) -> Result<(), PushError> {
        if let Message::Close(tag) = &message {
            self.shared.closed(from, tag);
        }
        self.push(Order::Heard { from, message })
    }

    /// A node is down, left or restarted: caches of streams that it owned are dropped.
    ///
    /// # Errors
    /// See [`PushError`].
    pub fn node_down(&self, node: NodeId) -> Result<(), PushError> {
        self.push(Order::NodeDown(node))
    }

    /// Ends the shard: running loads and steps give up, weights, caches and lanes are dropped.
    pub fn retire(&self) {
        self.shared.retired.store(true, Ordering::Release);
        self.shared.stop();
        let _ = self.push(Order::Retire); // a full queue is drained soon, and then `retired` is seen
    }

    /// Which deployment it serves.
    #[must_use]
    pub fn deployment(&self) -> DeploymentId {
        self.deployment
    }

    /// How far it is with the plan that was ordered or adopted last; `None` before the first order.
    #[must_use]
    pub fn report(&self) -> Option<ShardReport> {
        let view = self.view.borrow().clone();
        let (plan, layers) = view.plan?;
        Some(ShardReport { deployment: self.deployment, plan, node: self.me, boot: self.boot, layers, state: view.state })
    }

    /// The newest view, and a way to wait for a newer one.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<ShardView> {
        self.view.subscribe()
    }

    /// Returns once weights, caches and lanes are gone after [`ShardHandle::retire`].
    pub async fn ended(&self) {
        let _ = self.view.subscribe().wait_for(|view| view.ended).await;
    }

    /// Whether both are handles of one shard.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// What it holds and has done. A copy, taken at once.
    #[must_use]
    pub fn seen(&self) -> SeenShard {
        SeenShard {
            layers: self.shared.held(),
            streams: self.shared.streams.load(Ordering::Relaxed),
            kv_bytes: self.shared.kv_bytes.load(Ordering::Relaxed),
            steps: self.shared.steps.load(Ordering::Relaxed),
            loaded_bytes: self.shared.loaded_bytes.load(Ordering::Relaxed),
        }
    }
}

impl Wake for ShardHandle {
    fn wake(&self) {
        if !self.shared.look.swap(true, Ordering::SeqCst) {
            let _ = self.push(Order::Look); // a full queue means that the thread is awake
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mesh_core::ids::PlanHash;

    fn tag(stream: u128) -> StreamTag {
        StreamTag { deployment: DeploymentId(1), plan: PlanHash(1), stream: StreamId(stream), attempt: AttemptTag(7) }
    }

    #[test]
    fn a_step_gives_up_when_its_last_stream_is_closed_by_its_owner() {
        let (owner, other) = (NodeId([1; 32]), NodeId([2; 32]));
        let (handle, inlet) = ShardHandle::new(DeploymentId(1), NodeId([0; 32]), BootId(1), None);
        let gives_up = || inlet.shared.give_up.load(Ordering::Acquire);
        let close = |from, tag| handle.heard(from, Message::Close(tag)).expect("room");
        inlet.shared.begin(vec![(StreamId(1), AttemptTag(7), owner), (StreamId(2), AttemptTag(7), owner)]);
        close(owner, tag(1));
        close(owner, tag(1));
        close(other, tag(2));
        close(owner, StreamTag { attempt: AttemptTag(8), ..tag(2) });
        assert!(!gives_up(), "stream 2 still wants it");
        close(owner, tag(2));
        assert!(gives_up());
        inlet.shared.end();
        inlet.shared.begin(vec![(StreamId(3), AttemptTag(7), owner)]);
        close(owner, tag(2));
        assert!(!gives_up(), "the next step is another one");
        handle.retire();
        assert!(gives_up());
        inlet.shared.begin(vec![(StreamId(3), AttemptTag(7), owner)]);
        assert!(gives_up(), "nothing begins any more");
    }

    #[test]
    fn the_queue_is_bounded_and_wakes_do_not_pile_up() {
        let (handle, inlet) = ShardHandle::new(DeploymentId(1), NodeId([0; 32]), BootId(1), None);
        (0..10).for_each(|_| handle.wake());
        assert_eq!(inlet.orders.len(), 1);
        inlet.shared.looking_at_lanes();
        handle.wake();
        assert_eq!(inlet.orders.len(), 2);
        while handle.heard(NodeId([1; 32]), Message::Start(tag(1))).is_ok() {}
        assert_eq!(inlet.orders.len(), ORDERS_MAX);
        assert_eq!(handle.node_down(NodeId([1; 32])), Err(PushError::Full));
        drop(inlet);
        assert_eq!(handle.node_down(NodeId([1; 32])), Err(PushError::Ended));
    }
}
