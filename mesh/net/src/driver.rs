//! The loop on the carrier's thread: turns what libp2p, the links and the handle say into inputs of the membership core,
//! and performs its effects. Nothing here waits for one peer.

mod dialling;
mod hearsay;
mod links;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use libp2p::gossipsub::{self, IdentTopic};
use libp2p::swarm::{ConnectionId, SwarmEvent};
use libp2p::{Multiaddr, PeerId, Swarm};
use mesh_core::ids::{NodeId, Time};
use mesh_core::membership::{Death, Effect, Input, LinkId, Membership, Suspicion, Word};
use mesh_core::ports::{CarrierEvent, Clock};
use mesh_core::records::NodeRecord;
use mesh_core::wire::{self, Message};
use tokio::sync::{mpsc, watch};

use crate::clock::SystemClock;
use crate::dialer::{Dialer, Key};
use crate::greeting::Greeting;
use crate::interfaces::multicast_addresses;
use crate::key::peer_of;
use crate::link::{Beat, Link, MailBack, Read};
use crate::listen::listen;
use crate::mail::{Mail, Received};
use crate::net::{NetConfig, NetError, Shared};
use crate::notices::Notices;
use crate::swarm::{self, Behaviour, BehaviourEvent, Failure};

/// News of links that wait for the loop at most; readers wait when it is full. Heartbeats have a queue of their own.
const NEWS_MAX: usize = 256;
/// Messages handled between two looks at everything else.
const NEWS_BATCH: usize = 64;
/// Nobody heard for so long: say how to name a peer (F7).
const LONELY_MS: u64 = 10_000;

/// libp2p's multicast DNS opens two sockets an address, and each hears the queries of all: beyond this it eats the file
/// descriptors and answers itself (measured: 500 addresses and 1024 descriptors, no join in 8 s).
const DISCOVERY_INTERFACES_MAX: usize = 64;

/// What the handle asks.
pub enum Command {
    /// Publish an encoded record.
    Gossip(Vec<u8>),
    /// Dial an address.
    Dial(String),
    /// End all links to a node.
    Disconnect(NodeId),
}

/// Both ends of a bounded queue from tasks to the loop.
type Queue<T> = (mpsc::Sender<T>, mpsc::Receiver<T>);

/// How far a connection is.
#[derive(Debug, PartialEq, Eq)]
enum Phase {
    /// Control stream or hello are awaited until then.
    Greeting(Time),
    /// The core knows it.
    Known,
    /// A goodbye is on its way out; closed at the latest then.
    Leaving(Time),
}

/// One connection.
struct Connection {
    id: ConnectionId,
    peer: PeerId,
    node: NodeId,
    address: Multiaddr,
    dialled: bool,
    phase: Phase,
    link: Option<Link>,
    record: Option<Box<NodeRecord>>,
}

/// See the module's head.
pub struct Driver {
    swarm: Swarm<Behaviour>,
    shared: Arc<Shared>,
    clock: SystemClock,
    core: Membership,
    greeting: Greeting,
    topic: IdentTopic,
    connections: BTreeMap<LinkId, Connection>,
    links_of: HashMap<ConnectionId, LinkId>,
    links_drawn: u64,
    /// The link that has each node's mail.
    in_use: BTreeMap<NodeId, LinkId>,
    /// Mail of nodes that are up and have no link for the moment.
    in_between: BTreeMap<NodeId, MailBack>,
    received: BTreeMap<NodeId, Received>,
    dialer: Dialer,
    /// Dials under way, by connection.
    dials: HashMap<ConnectionId, Key>,
    /// The redials that settle a suspicion.
    redials: HashMap<ConnectionId, NodeId>,
    notices: Notices,
    inputs: VecDeque<Input>,
    /// Hellos, pings, pongs and goodbyes overtake what else was read.
    beats: Queue<Read>,
    news: Queue<Read>,
    resolved: Queue<(Key, Vec<Multiaddr>)>,
    commands: mpsc::Receiver<Command>,
    me: watch::Receiver<NodeRecord>,
    /// When to wonder aloud why nobody is there.
    lonely_at: Option<Time>,
}

impl Driver {
    /// Builds the swarm and binds the listeners.
    pub async fn start(
        config: NetConfig,
        shared: Arc<Shared>,
        commands: mpsc::Receiver<Command>,
        me: watch::Receiver<NodeRecord>,
    ) -> Result<Self, NetError> {
        let clock = SystemClock;
        let now = clock.now();
        let topic = swarm::topic(config.protocol, &config.mesh);
        let interfaces = multicast_addresses();
        let discover = config.mdns && interfaces <= DISCOVERY_INTERFACES_MAX;
        if config.mdns && !discover {
            let why =
                format!("off: this machine has {interfaces} addresses (at most {DISCOVERY_INTERFACES_MAX}); name a peer as HOST:PORT");
            shared.tell(CarrierEvent::Refused { address: "multicast DNS".to_owned(), why });
        }
        let mut swarm =
            swarm::build(config.key.pair(), config.secret, discover, &topic).map_err(|error| NetError::System(error.to_string()))?;
        listen(&mut swarm, &config.listen, &shared).await?;
        #[cfg(feature = "mdns")]
        if discover {
            tokio::spawn(crate::announce::announce(shared.clone())); // ends with this thread's runtime
        }
        let mut dialer = Dialer::new(*swarm.local_peer_id());
        config.peers.iter().try_for_each(|peer| dialer.add(now, peer, true)).map_err(NetError::Peer)?;
        Ok(Self {
            core: Membership::new(shared.me, config.me.boot, config.timings, rand::random()),
            greeting: Greeting { protocol: config.protocol, program: config.program, mesh: config.mesh },
            lonely_at: discover.then(|| now.plus_ms(LONELY_MS)),
            swarm,
            shared,
            clock,
            topic,
            connections: BTreeMap::new(),
            links_of: HashMap::new(),
            links_drawn: 0,
            in_use: BTreeMap::new(),
            in_between: BTreeMap::new(),
            received: BTreeMap::new(),
            dialer,
            dials: HashMap::new(),
            redials: HashMap::new(),
            notices: Notices::default(),
            inputs: VecDeque::new(),
            beats: mpsc::channel(NEWS_MAX),
            news: mpsc::channel(NEWS_MAX),
            resolved: mpsc::channel(NEWS_MAX),
            commands,
            me,
        })
    }

    /// Runs until told to stop, then says goodbye.
    pub async fn run(mut self, mut stopped: watch::Receiver<bool>) {
        loop {
            let wake = self.wake_in();
            tokio::select! {
                _ = stopped.wait_for(|stop| *stop) => break,
                event = self.swarm.select_next_some() => self.on_swarm(event),
                Some((link, node, news)) = self.beats.1.recv() => self.on_news(link, node, news),
                Some(read) = self.news.1.recv() => self.on_news_batch(read),
                Some((key, addresses)) = self.resolved.1.recv() => self.on_resolved(&key, addresses),
                Some(command) = self.commands.recv() => self.on_command(command),
                () = tokio::time::sleep(wake) => self.inputs.push_back(Input::Elapsed),
            }
            self.settle();
        }
        self.say_goodbye().await;
    }

    fn wake_in(&self) -> Duration {
        let phases = self.connections.values().filter_map(|connection| match connection.phase {
            Phase::Greeting(deadline) | Phase::Leaving(deadline) => Some(deadline),
            Phase::Known => None,
        });
        let next = phases.chain(self.core.wake_at()).chain(self.dialer.wake_at()).chain(self.lonely_at).min();
        // Timers have a millisecond's grain: one more, so that it is surely due when we wake.
        next.map_or(Duration::from_secs(60), |next| Duration::from_millis(next.ms_since(self.clock.now()) + 1))
    }

    /// Feeds the core until it has nothing more to say.
    fn settle_core(&mut self) {
        let mut effects = Vec::new();
        while let Some(input) = self.inputs.pop_front() {
            self.core.step(self.clock.now(), input, &mut effects);
            effects.drain(..).for_each(|effect| self.perform(effect));
        }
    }

    /// Does everything that is due.
    fn settle(&mut self) {
        if self.core.wake_at().is_some_and(|wake| wake <= self.clock.now()) {
            self.inputs.push_back(Input::Elapsed);
        }
        self.settle_core();
        let now = self.clock.now();
        self.close_overdue(now);
        for attempt in self.dialer.due(now) {
            self.attempt(now, attempt);
        }
        if self.lonely_at.is_some_and(|at| at <= now) {
            self.lonely_at = None;
            self.wonder();
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Probe { link, nonce } => self.beat(link, &Message::Ping(nonce)),
            Effect::Close { link, why } => self.close_by_core(link, why),
            Effect::Redial(node) => self.redial(node),
            Effect::Up { node, link, .. } => self.on_up(node, link),
            Effect::Moved { node, link } => self.on_moved(node, link),
            Effect::Tell { to, word } => self.say(to, word),
            Effect::Suspect { node, why } => self.on_suspect(node, why),
            Effect::Trusted(node) => self.shared.tell(CarrierEvent::Trusted(node)),
            Effect::Down { node, why } => self.on_down(node, &why),
            Effect::Waking => {
                tracing::debug!("this process stood still for a while: nothing is published until the others have answered");
                self.shared.tell(CarrierEvent::Waking);
            }
            Effect::Awake => self.shared.tell(CarrierEvent::Awake),
        }
    }

    /// Words about third nodes overtake other mail, as heartbeats do.
    fn say(&mut self, to: NodeId, word: Word) {
        if let Some(link) = self.in_use.get(&to) {
            self.beat(*link, &Message::Word(word));
        }
    }

    fn on_suspect(&mut self, node: NodeId, why: Suspicion) {
        let why = match why {
            Suspicion::OnlyThrough(other) => format!("reached only through {}", self.name_of(other)),
            why => why.to_string(),
        };
        tracing::info!(%node, why, "a node is suspected");
        self.shared.tell(CarrierEvent::Suspect { node, why });
    }

    /// What a node calls itself, as far as its hello on a link that is open says.
    fn name_of(&self, node: NodeId) -> String {
        let mut records = self.connections.values().filter(|connection| connection.node == node).filter_map(|c| c.record.as_ref());
        records.next().map_or_else(|| node.short(), |record| record.name.clone())
    }

    fn on_up(&mut self, node: NodeId, link: LinkId) {
        self.lonely_at = None;
        let (outbox, mail) = Mail::new(node, rand::random());
        self.in_use.insert(node, link);
        self.push(link, Beat::Mail(Box::new(mail)));
        self.shared.outboxes.insert(node, outbox);
        let Some(connection) = self.connections.get(&link) else { return };
        let (peer, address, dialled) = (connection.peer, connection.address.clone(), connection.dialled);
        let Some(record) = connection.record.clone() else { return };
        let now = self.clock.now();
        let told = record.addresses.iter().filter_map(|text| text.parse().ok());
        self.dialer.learn_anew(now, peer, dialled.then_some(address).into_iter().chain(told));
        self.dialer.connected(peer);
        tracing::info!(%node, name = record.name, "a node is up");
        self.shared.tell(CarrierEvent::Up(*record));
    }

    fn on_down(&mut self, node: NodeId, why: &Death) {
        self.shared.outboxes.remove(&node);
        self.in_use.remove(&node);
        self.in_between.remove(&node);
        if let Some(peer) = peer_of(node) {
            self.dialer.lost(self.clock.now(), peer, rand::random());
        }
        tracing::info!(%node, %why, "a node is down");
        self.shared.tell(CarrierEvent::Down { node, why: why.to_string() });
    }

    /// The mail goes on over another link.
    fn on_moved(&mut self, node: NodeId, link: LinkId) {
        let old = self.in_use.insert(node, link).and_then(|old| self.connections.get_mut(&old)?.link.as_mut()?.take_mail());
        if let Some(mail) = old.or_else(|| self.in_between.remove(&node)) {
            self.push(link, Beat::MailOf(mail));
        }
    }

    fn beat(&mut self, link: LinkId, message: &Message) {
        let Ok(bytes) = wire::encode(message) else { return };
        self.push(link, Beat::Frame(bytes));
    }

    fn push(&mut self, link: LinkId, beat: Beat) {
        let Some(link) = self.connections.get(&link).and_then(|connection| connection.link.as_ref()) else { return };
        if link.heart.try_send(beat).is_err() {
            self.shared.counters.echoes_dropped.add();
        }
    }

    fn on_swarm(&mut self, event: SwarmEvent<BehaviourEvent>) {
        let now = self.clock.now();
        match event {
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, endpoint, .. } => {
                self.on_connected(connection_id, peer_id, &endpoint);
            }
            SwarmEvent::ConnectionClosed { connection_id, cause, .. } => {
                self.on_closed(connection_id, cause.map_or_else(|| "closed".to_owned(), |cause| cause.to_string()));
            }
            SwarmEvent::OutgoingConnectionError { connection_id, error, .. } => {
                let failure = swarm::failure_of(&error);
                tracing::debug!(?failure, "a dial failed");
                if let Some(node) = self.redials.remove(&connection_id) {
                    self.inputs.push_back(Input::Redialled { node, refused: failure == Failure::Refused });
                }
                if let Some(key) = self.dials.remove(&connection_id) {
                    self.dial_failed(now, &key, &failure);
                }
            }
            SwarmEvent::IncomingConnectionError { send_back_addr, error, .. } => self.on_incoming_error(now, &send_back_addr, &error),
            SwarmEvent::ListenerClosed { reason, .. } => tracing::error!(?reason, "a listener ended: no new node can reach this one there"),
            SwarmEvent::ListenerError { error, .. } => tracing::warn!(%error, "a listener has trouble"),
            SwarmEvent::Behaviour(BehaviourEvent::Control(event)) => self.on_control(event),
            SwarmEvent::Behaviour(BehaviourEvent::Gossip(gossipsub::Event::Message { message, .. })) => {
                self.on_gossip(message.source, &message.data)
            }
            #[cfg(feature = "mdns")]
            SwarmEvent::Behaviour(BehaviourEvent::Discovery(event)) => self.on_discovery(now, event),
            _ => {}
        }
    }

    fn on_closed(&mut self, id: ConnectionId, why: String) {
        if let Some(&link) = self.links_of.get(&id) {
            self.end(link, false, why);
        }
    }
}
