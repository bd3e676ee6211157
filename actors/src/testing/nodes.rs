//! Whole nodes in one process: node actors over control connections in memory, stores that survive a node, drawn ids.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mesh_core::ids::{BootId, NodeId};
use mesh_core::lifetimes::{Lifetimes, Wall};
use mesh_core::ports::{Carrier, CarrierEvent, Channels, Entropy, Models, SendError, Store};
use mesh_core::records::{Capacity, NodeRecord, NodeState, Record, RecordKey};
use mesh_core::wire::Message;
use mesh_core::{stage, stream};
use tokio::sync::mpsc;

use super::{MemoryCarrier, MemoryLanes, MemoryNet, Stopwatch};
use crate::handle::{NodeHandle, NodeStatus};
use crate::node::{NodeActor, NodeParts};
use crate::router::Router;
use crate::workers::Threads;

/// Carrier events that wait at most.
const EVENTS_MAX: usize = 4_096;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records that outlive their node, as a disk does.
#[derive(Default)]
pub struct MemoryStore {
    records: Mutex<BTreeMap<RecordKey, Record>>,
    full: Mutex<bool>,
}

impl MemoryStore {
    /// Lets writes fail, or work again.
    pub fn fill(&self, full: bool) {
        *lock(&self.full) = full;
    }
}

impl Store for MemoryStore {
    fn load(&self) -> Vec<Record> {
        lock(&self.records).values().cloned().collect()
    }
    fn save(&self, record: &Record) -> Result<(), String> {
        if *lock(&self.full) {
            return Err("no space left on device".to_owned());
        }
        lock(&self.records).insert(record.key(), record.clone());
        Ok(())
    }
    fn erase(&self, key: RecordKey) -> Result<(), String> {
        lock(&self.records).remove(&key);
        Ok(())
    }
}

/// Numbers that never repeat.
#[derive(Default)]
pub struct Dice(AtomicU64);

impl Entropy for Dice {
    fn draw(&self) -> u128 {
        let count = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        u128::from(count) << 64 | u128::from(count.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

/// Who is there, and where their events go.
#[derive(Default)]
struct Hub {
    present: Mutex<BTreeMap<NodeId, (mpsc::Sender<CarrierEvent>, NodeRecord)>>,
}

impl Hub {
    fn tell_others(&self, but: NodeId, event: &CarrierEvent) {
        for (node, (events, _)) in lock(&self.present).iter() {
            if *node != but {
                let _ = events.try_send(event.clone()); // full is lost
            }
        }
    }

    /// Everybody greets the newcomer.
    fn join(&self, me: NodeRecord, events: mpsc::Sender<CarrierEvent>) {
        for (_, other) in lock(&self.present).values() {
            let _ = events.try_send(CarrierEvent::Up(other.clone()));
        }
        self.tell_others(me.node, &CarrierEvent::Up(me.clone()));
        lock(&self.present).insert(me.node, (events, me));
    }

    fn leave(&self, node: NodeId) {
        lock(&self.present).remove(&node);
        self.tell_others(node, &CarrierEvent::Down { node, why: "its connection ended".to_owned() });
    }
}

/// One node's connections, gossip included.
struct HubCarrier {
    me: NodeId,
    lines: Arc<MemoryCarrier>,
    hub: Arc<Hub>,
}

impl Carrier for HubCarrier {
    fn send(&self, to: NodeId, message: Message) -> Result<(), SendError> {
        self.lines.send(to, message)
    }
    fn gossip(&self, record: &Record) {
        if lock(&self.hub.present).contains_key(&self.me) {
            self.hub.tell_others(self.me, &CarrierEvent::Gossip(record.clone()));
        }
    }
    fn introduce(&self, me: &NodeRecord) {
        if let Some(present) = lock(&self.hub.present).get_mut(&self.me) {
            present.1 = me.clone();
        }
    }
    fn dial(&self, _: &str) {}
    fn disconnect(&self, _: NodeId) {}
}

/// A few nodes. Lives inside an actix system.
pub struct Nodes {
    /// The control connections, to be cut.
    pub net: Arc<MemoryNet>,
    /// The lanes, to be pulled.
    pub lanes: Arc<MemoryLanes>,
    hub: Arc<Hub>,
    /// The clock of all of them.
    pub clock: Arc<Stopwatch>,
    dice: Arc<Dice>,
    stores: BTreeMap<u8, Arc<MemoryStore>>,
    running: BTreeMap<u8, NodeHandle>,
}

impl Default for Nodes {
    fn default() -> Self {
        Self {
            net: Arc::default(),
            lanes: Arc::default(),
            hub: Arc::default(),
            clock: Arc::new(Stopwatch::start()),
            dice: Arc::default(),
            stores: BTreeMap::new(),
            running: BTreeMap::new(),
        }
    }
}

impl Nodes {
    /// Node `index`.
    #[must_use]
    pub fn id(index: u8) -> NodeId {
        NodeId([index + 1; 32])
    }

    /// A node's disk.
    pub fn store(&mut self, index: u8) -> Arc<MemoryStore> {
        self.stores.entry(index).or_default().clone()
    }

    /// Starts a node, or starts it again on the same disk.
    pub fn start(&mut self, index: u8, models: Arc<dyn Models>) -> NodeHandle {
        let (store, router) = (self.store(index), Arc::new(Router::new()));
        let (events, events_in) = mpsc::channel(EVENTS_MAX);
        let heard = events.clone();
        let lines = self.net.join(
            Self::id(index),
            router.clone(),
            Box::new(move |from, message| {
                let _ = heard.try_send(CarrierEvent::Heard { from, message });
            }),
        );
        let me = self.record(index, &store, models.list());
        let carrier = Arc::new(HubCarrier { me: me.node, lines, hub: self.hub.clone() });
        let (handle, commands) = NodeHandle::new();
        let parts = NodeParts {
            me: me.clone(),
            clock: self.clock.clone(),
            entropy: self.dice.clone(),
            store,
            carrier,
            channels: self.lanes.clone() as Arc<dyn Channels>,
            models,
            workers: Arc::new(Threads),
            threads: 1,
            router,
            lifetimes: Lifetimes::default(),
            stage_limits: stage::Limits::default(),
            stream_limits: stream::Limits::default(),
        };
        NodeActor::launch(parts, events_in, commands);
        self.net.cut(me.node, false);
        self.hub.join(me, events);
        self.running.insert(index, handle.clone());
        handle
    }

    fn record(&self, index: u8, store: &MemoryStore, models: Vec<mesh_core::model::HeldModel>) -> NodeRecord {
        let former = store.load().into_iter().find_map(|record| match record {
            Record::Node(record) if record.node == Self::id(index) => Some(record.incarnation),
            _ => None,
        });
        let me = NodeRecord {
            node: Self::id(index),
            name: format!("n{index}"),
            boot: BootId(self.dice.draw()),
            incarnation: former.unwrap_or(0) + 1,
            version: 0,
            state: NodeState::Up,
            alive: Wall::default(),
            in_touch: None,
            capacity: Capacity { memory_bytes: 1 << 30, ..Capacity::default() },
            numerics_class: 1,
            addresses: Vec::new(),
            models,
            shards: Vec::new(),
            interfaces: Vec::new(),
            paths: Vec::new(),
        };
        store.save(&Record::Node(me.clone())).expect("a disk that is not full at the start");
        me
    }

    /// The node is gone from one moment to the next: nothing that it says or hears gets through any more.
    pub async fn kill(&mut self, index: u8) {
        self.net.cut(Self::id(index), true);
        self.hub.leave(Self::id(index));
        if let Some(handle) = self.running.remove(&index) {
            actix::spawn(async move { handle.leave().await });
        }
    }

    /// What a node says about itself and the others.
    ///
    /// # Panics
    /// If the node has stopped.
    pub async fn status(&self, index: u8) -> NodeStatus {
        self.running[&index].status().await.expect("the node runs")
    }

    /// Waits until node `index` sees what is hoped for.
    ///
    /// # Panics
    /// If that takes fifteen seconds.
    pub async fn until(&self, index: u8, what: &str, hope: impl Fn(&NodeStatus) -> bool) -> NodeStatus {
        for _ in 0..1_500 {
            let status = self.status(index).await;
            if hope(&status) {
                return status;
            }
            actix::clock::sleep(Duration::from_millis(10)).await;
        }
        let status = self.status(index).await;
        let nodes: Vec<_> = status.nodes.iter().map(|seen| (&seen.record.name, seen.health, &seen.record.shards)).collect();
        let deployments: Vec<_> = status.deployments.iter().map(|seen| (seen.record.version, &seen.record.status, seen.shard)).collect();
        panic!("n{index} does not see that {what}: {nodes:?} {deployments:?} {:?}", status.notices);
    }
}
