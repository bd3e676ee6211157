//! The handle: starts the thread, and implements [`Carrier`] over bounded queues.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use dashmap::DashMap;
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use mesh_core::ids::NodeId;
use mesh_core::links::Interface;
use mesh_core::membership::Timings;
use mesh_core::ports::{Carrier, CarrierEvent, SendError};
use mesh_core::records::{NodeRecord, Record};
use mesh_core::wire::{self, Message};
use tokio::sync::{mpsc, watch};

use crate::counters::{Counters, Counts};
use crate::driver::{Command, Driver};
use crate::interfaces::{Lister, candidates, reachable};
use crate::key::{NodeKey, peer_of};
use crate::mail::Outbox;
use crate::secret::MeshSecret;
use crate::swarm::GOSSIP_BYTES_MAX;

/// Commands that wait for the carrier's thread at most.
const COMMANDS_MAX: usize = 256;

/// How to join a mesh.
#[derive(Clone, Debug)]
pub struct NetConfig {
    /// Who we are.
    pub key: NodeKey,
    /// Name of the mesh.
    pub mesh: String,
    /// Its secret.
    pub secret: MeshSecret,
    /// Where to listen: multiaddresses or `IP:PORT`; port 0 = any free one.
    pub listen: Vec<String>,
    /// Whom to dial, for ever until connected: multiaddresses or `HOST:PORT`.
    pub peers: Vec<String>,
    /// Whether to find and be found by multicast DNS.
    pub mdns: bool,
    /// What we say about ourselves. If it names no addresses, hellos carry [`Net::listen_addresses`].
    pub me: NodeRecord,
    /// When to probe, suspect and bury.
    pub timings: Timings,
    /// Version of this program, for people.
    pub program: String,
    /// The protocol version to speak. Anything but the default makes a node that others refuse: for tests of just that.
    pub protocol: u32,
}

impl NetConfig {
    /// Listens on every interface at any port, dials nobody, finds peers by multicast DNS.
    #[must_use]
    pub fn new(key: NodeKey, mesh: impl Into<String>, secret: MeshSecret, me: NodeRecord) -> Self {
        Self {
            key,
            mesh: mesh.into(),
            secret,
            listen: vec!["/ip4/0.0.0.0/tcp/0".to_owned()],
            peers: Vec::new(),
            mdns: true,
            me,
            timings: Timings::default(),
            program: concat!("mesh ", env!("CARGO_PKG_VERSION")).to_owned(),
            protocol: wire::PROTOCOL_VERSION,
        }
    }
}

/// The carrier did not start. Says which setting or resource, and what would help.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// Cannot listen there.
    #[error("cannot listen on {address}: {why}")]
    Listen {
        /// As it was given.
        address: String,
        /// What is wrong with it.
        why: String,
    },
    /// A peer's address makes no sense.
    #[error("cannot dial a peer: {0}")]
    Peer(String),
    /// The record is not this key's.
    #[error("the node record names another node than the key")]
    OtherKey,
    /// The operating system refused a thread, a socket or random bits.
    #[error("the network carrier cannot start: {0}")]
    System(String),
}

/// Where events go.
pub(crate) type Sink = Box<dyn Fn(CarrierEvent) + Send + Sync>;
/// The fast way of messages, past the node actor.
pub(crate) type Route = Box<dyn Fn(NodeId, Message) -> Option<Message> + Send + Sync>;

/// What the handle and the thread share.
pub(crate) struct Shared {
    pub me: NodeId,
    /// One for each node that is up.
    pub outboxes: DashMap<NodeId, Outbox>,
    pub counters: Counters,
    /// What the listeners are bound to, with real ports. Written once, before `start` returns.
    pub bound: OnceLock<Vec<SocketAddr>>,
    /// Knows this machine's interfaces.
    pub lister: Lister,
    /// End like a killed process: no goodbyes.
    #[cfg(test)]
    pub killed: std::sync::atomic::AtomicBool,
    sink: Sink,
    route: Route,
}

impl Shared {
    /// Tells an event. A panic in foreign code must not end the thread that every heartbeat depends on.
    pub fn tell(&self, event: CarrierEvent) {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (self.sink)(event))).is_err() {
            tracing::error!("the receiver of carrier events panicked");
        }
    }

    /// The fast route first, then the node.
    pub fn deliver(&self, from: NodeId, message: Message) {
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (self.route)(from, message))) {
            Ok(None) => {}
            Ok(Some(message)) => self.tell(CarrierEvent::Heard { from, message }),
            Err(_) => tracing::error!(node = %from, "the route of control messages panicked"),
        }
    }

    /// The addresses to tell others, each ending in our peer id.
    pub fn addresses(&self) -> Vec<Multiaddr> {
        let peer = peer_of(self.me);
        candidates(self.bound.get().map_or(&[], Vec::as_slice), &self.lister.dialable())
            .into_iter()
            .map(|address| match peer {
                Some(peer) => address.with(Protocol::P2p(peer)),
                None => address,
            })
            .collect()
    }
}

/// A running carrier. Dropping it stops it.
pub struct Net {
    shared: Arc<Shared>,
    commands: mpsc::Sender<Command>,
    me: watch::Sender<NodeRecord>,
    stop: watch::Sender<bool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Net {
    /// Binds the listeners and starts the thread; returns when the real ports are known.
    ///
    /// `sink` and `route` are called on the carrier's thread, and on the sender's thread for messages to oneself. They must
    /// not wait: every heartbeat does, while they do.
    ///
    /// # Errors
    /// See [`NetError`].
    pub fn start(
        config: NetConfig,
        sink: impl Fn(CarrierEvent) + Send + Sync + 'static,
        route: impl Fn(NodeId, Message) -> Option<Message> + Send + Sync + 'static,
    ) -> Result<Self, NetError> {
        if config.me.node != config.key.node() {
            return Err(NetError::OtherKey);
        }
        let shared = Arc::new(Shared {
            me: config.key.node(),
            outboxes: DashMap::new(),
            counters: Counters::default(),
            bound: OnceLock::new(),
            lister: Lister::default(),
            #[cfg(test)]
            killed: false.into(),
            sink: Box::new(sink),
            route: Box::new(route),
        });
        let (commands, command_queue) = mpsc::channel(COMMANDS_MAX);
        let (me, record) = watch::channel(config.me.clone());
        let (stop, stopped) = watch::channel(false);
        let (started, outcome) = std::sync::mpsc::sync_channel(1);
        let theirs = shared.clone();
        let run = move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => {
                    let _ = started.send(Err(NetError::System(error.to_string())));
                    return;
                }
            };
            runtime.block_on(async {
                match Driver::start(config, theirs.clone(), command_queue, record).await {
                    Ok(driver) => {
                        let _ = started.send(Ok(()));
                        driver.run(stopped).await;
                    }
                    Err(error) => {
                        let _ = started.send(Err(error));
                    }
                }
            });
            theirs.outboxes.clear();
            // A name that is being resolved must not hold us up.
            runtime.shutdown_timeout(Duration::from_millis(100));
        };
        let thread =
            std::thread::Builder::new().name("mesh-net".to_owned()).spawn(run).map_err(|error| NetError::System(error.to_string()))?;
        let net = Self { shared, commands, me, stop, thread: Mutex::new(Some(thread)) };
        outcome.recv().unwrap_or_else(|_| Err(NetError::System("its thread ended".to_owned())))?;
        Ok(net)
    }

    /// Who we are.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.shared.me
    }

    /// Multiaddresses under which others may reach this node now, best first: real ports, no container bridges, loopback
    /// only if there is nothing else. Interfaces come and go: ask again.
    #[must_use]
    pub fn listen_addresses(&self) -> Vec<String> {
        self.shared.addresses().iter().map(ToString::to_string).collect()
    }

    /// What was counted since the start.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.counters.read()
    }

    /// Says goodbye to everybody and waits until the thread has ended (at most about half a second). Idempotent.
    pub fn stop(&self) {
        let _ = self.stop.send(true);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the carrier's thread panicked");
        }
    }

    fn command(&self, command: Command) {
        if let Err(error) = self.commands.try_send(command) {
            tracing::debug!(%error, "a command to the carrier was dropped");
        }
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Carrier for Net {
    fn send(&self, to: NodeId, message: Message) -> Result<(), SendError> {
        if to == self.shared.me {
            self.shared.deliver(to, message);
            return Ok(());
        }
        let outbox = self.shared.outboxes.get(&to).ok_or(SendError::Unreachable(to))?;
        outbox.send(&message).inspect_err(|error| {
            if matches!(error, SendError::Full(_)) {
                self.shared.counters.messages_full.add();
            }
        })
    }

    fn gossip(&self, record: &Record) {
        match wire::encode(record) {
            Ok(bytes) if bytes.len() <= GOSSIP_BYTES_MAX - GOSSIP_ENVELOPE_BYTES => {
                if self.commands.try_send(Command::Gossip(bytes)).is_err() {
                    self.shared.counters.gossip_dropped.add();
                }
            }
            _ => self.shared.counters.gossip_dropped.add(),
        }
    }

    fn introduce(&self, me: &NodeRecord) {
        self.me.send_replace(me.clone());
    }

    fn dial(&self, address: &str) {
        self.command(Command::Dial(address.to_owned()));
    }

    fn disconnect(&self, node: NodeId) {
        self.command(Command::Disconnect(node));
    }

    fn interfaces(&self) -> Vec<Interface> {
        reachable(self.shared.bound.get().map_or(&[], Vec::as_slice), self.shared.lister.list())
    }

    fn addresses(&self) -> Option<Vec<String>> {
        Some(self.listen_addresses())
    }
}

/// Source, sequence number, topic, signature and key around a gossiped record; about 200 in fact.
const GOSSIP_ENVELOPE_BYTES: usize = 1024;
