//! Control connections in memory: a message goes straight to the other node's router, on the sender's thread. What the
//! router does not take goes to the node's own ear. A node can be cut off: then nothing reaches it, and senders are told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mesh_core::ids::NodeId;
use mesh_core::ports::{Carrier, SendError};
use mesh_core::records::{NodeRecord, Record};
use mesh_core::wire::Message;

use crate::router::Router;

/// Hears what no router took.
pub type Ear = Box<dyn Fn(NodeId, Message) + Send + Sync>;

struct Place {
    router: Arc<Router>,
    ear: Arc<Ear>,
}

/// Everybody's connections.
#[derive(Default)]
pub struct MemoryNet {
    places: Mutex<BTreeMap<NodeId, Place>>,
    cut: Mutex<BTreeSet<NodeId>>,
    mute: Mutex<BTreeSet<NodeId>>,
}

/// One node's end of it.
pub struct MemoryCarrier {
    me: NodeId,
    net: Arc<MemoryNet>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryNet {
    /// Lets a node in.
    pub fn join(self: &Arc<Self>, me: NodeId, router: Arc<Router>, ear: Ear) -> Arc<MemoryCarrier> {
        lock(&self.places).insert(me, Place { router, ear: Arc::new(ear) });
        Arc::new(MemoryCarrier { me, net: self.clone() })
    }

    /// Cuts a node off: senders get `Unreachable`. Or lets it back in.
    pub fn cut(&self, node: NodeId, whether: bool) {
        let mut cut = lock(&self.cut);
        if whether {
            cut.insert(node)
        } else {
            cut.remove(&node)
        };
    }

    /// Loses what is sent to a node without telling the sender, as a frozen process does. Or ends that.
    pub fn mute(&self, node: NodeId, whether: bool) {
        let mut mute = lock(&self.mute);
        if whether {
            mute.insert(node)
        } else {
            mute.remove(&node)
        };
    }

    fn deliver(&self, from: NodeId, to: NodeId, message: Message) -> Result<(), SendError> {
        let cut = lock(&self.cut);
        if from != to && (cut.contains(&to) || cut.contains(&from)) {
            return Err(SendError::Unreachable(to));
        }
        drop(cut);
        if lock(&self.mute).contains(&to) {
            return Ok(());
        }
        let place = lock(&self.places).get(&to).map(|place| (place.router.clone(), place.ear.clone()));
        let (router, ear) = place.ok_or(SendError::Unreachable(to))?;
        if let Some(message) = router.route(from, message) {
            ear(from, message);
        }
        Ok(())
    }
}

impl Carrier for MemoryCarrier {
    fn send(&self, to: NodeId, message: Message) -> Result<(), SendError> {
        self.net.deliver(self.me, to, message)
    }
    fn gossip(&self, _: &Record) {}
    fn introduce(&self, _: &NodeRecord) {}
    fn dial(&self, _: &str) {}
    fn disconnect(&self, _: NodeId) {}
}
