//! The loop on the carrier's thread: turns what libp2p, the links and the handle say into inputs of the liveness core,
//! and performs its effects. Nothing here waits for one peer.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use libp2p::core::ConnectedPoint;
use libp2p::gossipsub::{self, IdentTopic};
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionId, SwarmEvent};
use libp2p::{Multiaddr, PeerId, Swarm};
use mesh_core::ids::{NodeId, Time};
use mesh_core::liveness::{Closing, Death, Effect, Input, LinkId, Liveness};
use mesh_core::ports::{CarrierEvent, Clock};
use mesh_core::records::{NodeRecord, NodeState, Record};
use mesh_core::wire::{self, Message};
use tokio::sync::{mpsc, watch};

use crate::clock::SystemClock;
use crate::control;
use crate::dialer::{Attempt, Dialer, Key, Outcome, host_of, host_port, split_peer};
use crate::greeting::{First, Greeting};
use crate::interfaces::{address_at, interfaces, is_local, place_of};
use crate::key::{node_of, peer_of};
use crate::link::{Beat, Link, MARK, News};
use crate::net::{LISTEN_MS, NetConfig, NetError, Shared};
use crate::notices::Notices;
use crate::swarm::{self, Behaviour, BehaviourEvent, Failure};

/// News of links that wait for the loop at most; readers wait when it is full. Heartbeats have a queue of their own.
const NEWS_MAX: usize = 256;
/// Messages handled between two looks at everything else.
const NEWS_BATCH: usize = 64;
/// From the connection to the peer's hello.
const HELLO_MS: u64 = 5_000;
/// How long a goodbye may take to leave.
const FAREWELL_MS: u64 = 300;
/// How long a name may take to resolve.
const RESOLVE_MS: u64 = 3_000;
/// The greater id lets the smaller one dial first where both heard of each other: one connection instead of two.
const COURTESY_MS: u64 = 200;
/// Nobody heard for so long: say how to name a peer (F7).
const LONELY_MS: u64 = 10_000;
/// Longest text that we repeat from a peer.
const TEXT_BYTES_MAX: usize = 400;

/// What the handle asks.
pub enum Command {
    /// Publish an encoded record.
    Gossip(Vec<u8>),
    /// Dial an address.
    Dial(String),
    /// End all links to a node.
    Disconnect(NodeId),
}

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
    core: Liveness,
    greeting: Greeting,
    topic: IdentTopic,
    connections: BTreeMap<LinkId, Connection>,
    links_of: HashMap<ConnectionId, LinkId>,
    links_drawn: u64,
    dialer: Dialer,
    /// Dials under way, by connection.
    dials: HashMap<ConnectionId, Key>,
    /// The redials that settle a suspicion.
    redials: HashMap<ConnectionId, NodeId>,
    notices: Notices,
    inputs: VecDeque<Input>,
    /// Hellos, pings, pongs and goodbyes overtake what else was read.
    beats: (mpsc::Sender<(LinkId, News)>, mpsc::Receiver<(LinkId, News)>),
    news: (mpsc::Sender<(LinkId, News)>, mpsc::Receiver<(LinkId, News)>),
    resolved: (mpsc::Sender<(Key, Vec<Multiaddr>)>, mpsc::Receiver<(Key, Vec<Multiaddr>)>),
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
        let mut swarm =
            swarm::build(config.key.pair(), config.secret, config.mdns, &topic).map_err(|error| NetError::System(error.to_string()))?;
        listen(&mut swarm, &config.listen, &shared).await?;
        let mut dialer = Dialer::new(*swarm.local_peer_id());
        config.peers.iter().try_for_each(|peer| dialer.add(now, peer, true)).map_err(NetError::Peer)?;
        Ok(Self {
            core: Liveness::new(shared.me, config.timings, rand::random()),
            greeting: Greeting { protocol: config.protocol, program: config.program, mesh: config.mesh },
            lonely_at: config.mdns.then(|| now.plus_ms(LONELY_MS)),
            swarm,
            shared,
            clock,
            topic,
            connections: BTreeMap::new(),
            links_of: HashMap::new(),
            links_drawn: 0,
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
                Some((link, news)) = self.beats.1.recv() => self.on_news(link, news),
                Some((link, news)) = self.news.1.recv() => self.on_news_batch(link, news),
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
            Effect::Moved { node, link } => self.use_link(node, link),
            Effect::Suspect(node) => self.shared.tell(CarrierEvent::Suspect(node)),
            Effect::Trusted(node) => self.shared.tell(CarrierEvent::Trusted(node)),
            Effect::Down { node, why } => self.on_down(node, &why),
        }
    }

    fn on_up(&mut self, node: NodeId, link: LinkId) {
        self.lonely_at = None;
        self.use_link(node, link);
        let Some(connection) = self.connections.get(&link) else { return };
        let (peer, address, dialled) = (connection.peer, connection.address.clone(), connection.dialled);
        let Some(record) = connection.record.clone() else { return };
        let now = self.clock.now();
        let told = record.addresses.iter().filter_map(|text| text.parse().ok());
        self.dialer.learn(now, peer, told.chain(dialled.then_some(address)), 0);
        self.dialer.connected(peer);
        tracing::info!(%node, name = record.name, "a node is up");
        self.shared.tell(CarrierEvent::Up(*record));
    }

    fn on_down(&mut self, node: NodeId, why: &Death) {
        self.shared.outboxes.remove(&node);
        if let Some(peer) = peer_of(node) {
            self.dialer.lost(self.clock.now(), peer, rand::random());
        }
        tracing::info!(%node, %why, "a node is down");
        self.shared.tell(CarrierEvent::Down { node, why: why.to_string() });
    }

    fn use_link(&mut self, node: NodeId, link: LinkId) {
        if let Some(link) = self.connections.get(&link).and_then(|connection| connection.link.as_ref()) {
            self.shared.outboxes.insert(node, link.outbox.clone());
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

    // Links: from connection to hello to end.

    fn on_connected(&mut self, id: ConnectionId, peer: PeerId, endpoint: &ConnectedPoint) {
        let now = self.clock.now();
        self.redials.remove(&id);
        let Some(node) = node_of(peer) else {
            self.swarm.close_connection(id);
            return;
        };
        if let Some(key) = self.dials.remove(&id) {
            self.dialer.ended(now, &key, Outcome::Connected(peer), rand::random());
            if self.core.is_up(node) {
                self.dialer.connected(peer);
            }
        }
        self.links_drawn += 1;
        let link = LinkId(self.links_drawn);
        let connection = Connection {
            id,
            peer,
            node,
            address: endpoint.get_remote_address().clone(),
            dialled: endpoint.is_dialer(),
            phase: Phase::Greeting(now.plus_ms(HELLO_MS)),
            link: None,
            record: None,
        };
        self.connections.insert(link, connection);
        self.links_of.insert(id, link);
    }

    fn on_control(&mut self, event: control::Event) {
        let Some(&id) = self.links_of.get(&event.connection) else { return };
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match event.opened {
            control::Opened::Stream(stream) => {
                connection.link = Some(Link::start(id, connection.node, stream, self.beats.0.clone(), self.news.0.clone()));
                let mut me = self.me.borrow().clone();
                if me.addresses.is_empty() {
                    me.addresses = self.shared.addresses().iter().map(ToString::to_string).collect();
                }
                let hello = self.greeting.hello(me);
                self.beat(id, &hello);
            }
            control::Opened::Failed(why) => {
                let why = format!(
                    "it holds the mesh secret and speaks no control protocol ({why}): it is not a mesh node, or of another version"
                );
                self.refused(id, "control", &why);
                self.close(id);
            }
        }
    }

    fn on_news_batch(&mut self, id: LinkId, news: News) {
        let mut next = Some((id, news));
        for _ in 0..NEWS_BATCH {
            while let Ok((id, beat)) = self.beats.1.try_recv() {
                self.on_news(id, beat);
            }
            self.settle_core();
            let Some((id, news)) = next.take().or_else(|| self.news.1.try_recv().ok()) else { return };
            self.on_news(id, news);
        }
    }

    fn on_news(&mut self, id: LinkId, news: News) {
        let Some(connection) = self.connections.get(&id) else { return };
        if matches!(connection.phase, Phase::Leaving(_)) {
            if matches!(news, News::Ended { .. }) {
                self.close(id);
            }
            return;
        }
        match news {
            News::First(bytes) => self.on_first(id, &bytes),
            News::Heard(message) => self.on_message(id, message),
            News::UnknownKind => self.shared.counters.unknown_kinds.add(),
            News::Ended { why, malformed } => {
                if malformed {
                    self.shared.counters.malformed_frames.add();
                    self.refused(id, "malformed", &format!("it sent bytes that are no messages ({why}): the connection was closed"));
                }
                self.end(id, false, why);
            }
        }
    }

    fn on_first(&mut self, id: LinkId, bytes: &[u8]) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let node = connection.node;
        match self.greeting.judge(node, bytes) {
            First::Hello(record) => {
                let boot = record.boot;
                connection.record = Some(record);
                connection.phase = Phase::Known;
                self.inputs.push_back(Input::Knock { link: id, node, boot });
            }
            First::Goodbye(text) => self.on_goodbye(id, text),
            First::Refuse { theirs, ours } => {
                self.refused(id, "hello", &ours);
                self.farewell(id, &theirs);
            }
            First::Malformed(why) => {
                self.shared.counters.malformed_frames.add();
                self.refused(id, "malformed", &format!("its greeting cannot be read ({why}): it is broken, or of another version"));
                self.close(id);
            }
        }
    }

    fn on_message(&mut self, id: LinkId, message: Message) {
        match message {
            Message::Ping(nonce) => {
                self.beat(id, &Message::Pong(nonce));
                if nonce & MARK == 0 {
                    self.inputs.push_back(Input::Accepted(id));
                }
            }
            Message::Pong(nonce) if nonce & MARK != 0 => self.push(id, Beat::Marked(nonce)),
            Message::Pong(nonce) => self.inputs.push_back(Input::Echo { link: id, nonce }),
            Message::Goodbye(text) => self.on_goodbye(id, text),
            Message::Hello(_) => {} // said twice: harmless
            message => {
                let Some(connection) = self.connections.get(&id) else { return };
                if self.core.is_up(connection.node) {
                    self.shared.deliver(connection.node, message);
                }
            }
        }
    }

    fn on_goodbye(&mut self, id: LinkId, mut text: String) {
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        let Some(connection) = self.connections.get(&id) else { return };
        if !self.core.is_up(connection.node) {
            self.refused(id, "goodbye", &format!("it refused this node: {text}"));
        }
        self.end(id, true, text);
    }

    /// The link is over, by the other side or by the network.
    fn end(&mut self, id: LinkId, on_purpose: bool, why: String) {
        if self.connections.get(&id).is_some_and(|connection| connection.phase == Phase::Known) {
            self.inputs.push_back(Input::Ended { link: id, on_purpose, why });
        }
        self.close(id);
    }

    /// Forgets a link and closes its connection.
    fn close(&mut self, id: LinkId) {
        if let Some(connection) = self.connections.remove(&id) {
            self.links_of.remove(&connection.id);
            self.swarm.close_connection(connection.id);
        }
    }

    fn close_by_core(&mut self, id: LinkId, why: Closing) {
        tracing::debug!(link = id.0, ?why, "closing a link");
        match why {
            Closing::Clone => {
                let Some(connection) = self.connections.get(&id) else { return };
                let node = connection.node.short();
                let elder = self.connections.values().find(|other| other.node == connection.node && other.id != connection.id);
                let elder = elder.map(|other| other.address.to_string()).unwrap_or_default();
                self.refused(
                    id,
                    "clone",
                    &format!("another running node, at {elder}, has the same key ({node}): one of the two is a copy"),
                );
                self.farewell(
                    id,
                    &format!(
                        "your key ({node}) is in use by a running node at {elder}: this one is a copy. Remove node.key from its state \
                         directory to become a node of its own, or stop the other one"
                    ),
                );
            }
            Closing::Dropped => self.farewell(id, "disconnected"),
            Closing::Duplicate | Closing::Silent | Closing::Ungreeted => self.close(id),
        }
    }

    /// Tells our operator why a node is not let in, and lets the dialer pause.
    fn refused(&mut self, id: LinkId, kind: &'static str, why: &str) {
        let Some(connection) = self.connections.get(&id) else { return };
        self.shared.counters.refused_hellos.add();
        let (peer, address, now) = (connection.peer, connection.address.to_string(), self.clock.now());
        self.dialer.unwelcome(now, peer, rand::random());
        // An incoming connection has another port each time: one notice for a node, whatever its address.
        if self.notices.may_tell(now, &peer.to_string(), kind) {
            self.notify(address, why.to_owned());
        }
    }

    fn notify(&self, address: String, why: String) {
        tracing::warn!(address, why, "refused");
        self.shared.tell(CarrierEvent::Refused { address, why });
    }

    fn farewell(&mut self, id: LinkId, text: &str) {
        let deadline = self.clock.now().plus_ms(FAREWELL_MS);
        let Ok(bytes) = wire::encode(&Message::Goodbye(text.to_owned())) else { return };
        self.push(id, Beat::Farewell(bytes));
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.phase = Phase::Leaving(deadline);
        }
    }

    fn close_overdue(&mut self, now: Time) {
        let overdue = |connection: &Connection| match connection.phase {
            Phase::Greeting(deadline) | Phase::Leaving(deadline) => deadline <= now,
            Phase::Known => false,
        };
        let ids: Vec<LinkId> = self.connections.iter().filter(|(_, connection)| overdue(connection)).map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.close(id));
    }

    async fn say_goodbye(&mut self) {
        self.shared.outboxes.clear();
        let ids: Vec<LinkId> = self.connections.keys().copied().collect();
        ids.iter().for_each(|id| self.farewell(*id, "it was stopped"));
        let deadline = tokio::time::sleep(Duration::from_millis(FAREWELL_MS));
        tokio::pin!(deadline);
        while !self.connections.is_empty() {
            tokio::select! {
                () = &mut deadline => break,
                event = self.swarm.select_next_some() => if let SwarmEvent::ConnectionClosed { connection_id, .. } = event {
                    self.on_closed(connection_id, "stopped".to_owned());
                },
                Some(_) = self.beats.1.recv() => {}
                Some((id, news)) = self.news.1.recv() => if matches!(news, News::Ended { .. }) { self.close(id) },
            }
        }
    }

    // Dialling.

    fn attempt(&mut self, now: Time, attempt: Attempt) {
        match attempt.key {
            Key::Node(peer) if node_of(peer).is_some_and(|node| self.core.is_up(node)) => self.dialer.connected(peer),
            Key::Node(peer) if !attempt.addresses.is_empty() => {
                let options = DialOpts::peer_id(peer).condition(PeerCondition::Always).addresses(attempt.addresses).allocate_new_port();
                self.dial(now, options.build(), attempt.key);
            }
            Key::Node(_) => self.dialer.ended(now, &attempt.key, Outcome::Failed, rand::random()),
            Key::Place(ref text) => {
                let (text, answer, key) = (text.clone(), self.resolved.0.clone(), attempt.key);
                tokio::spawn(async move {
                    let addresses = resolve(&text).await;
                    let _ = answer.send((key, addresses)).await;
                });
            }
        }
    }

    fn on_resolved(&mut self, key: &Key, addresses: Vec<Multiaddr>) {
        let now = self.clock.now();
        if addresses.is_empty() {
            self.dial_failed(now, key, &Failure::Other("the name cannot be resolved".to_owned()));
        }
        for address in addresses {
            let options = match split_peer(&address) {
                (place, Some(peer)) => {
                    DialOpts::peer_id(peer).condition(PeerCondition::Always).addresses(vec![place]).allocate_new_port().build()
                }
                (place, None) => DialOpts::unknown_peer_id().address(place).allocate_new_port().build(),
            };
            self.dial(now, options, key.clone());
        }
    }

    fn dial(&mut self, now: Time, options: DialOpts, key: Key) {
        let id = options.connection_id();
        match self.swarm.dial(options) {
            Ok(()) => {
                self.dials.insert(id, key);
            }
            Err(error) => self.dial_failed(now, &key, &swarm::failure_of(&error)),
        }
    }

    fn redial(&mut self, node: NodeId) {
        let Some(peer) = peer_of(node) else { return };
        let addresses = self.dialer.addresses_of(peer);
        let options = DialOpts::peer_id(peer).condition(PeerCondition::Always).addresses(addresses).allocate_new_port().build();
        let id = options.connection_id();
        match self.swarm.dial(options) {
            Ok(()) => {
                self.redials.insert(id, node);
            }
            Err(error) => {
                tracing::debug!(%node, %error, "no redial");
                self.inputs.push_back(Input::Redialled { node, refused: false });
            }
        }
    }

    fn dial_failed(&mut self, now: Time, key: &Key, failure: &Failure) {
        let named = self.dialer.is_configured(key);
        let place = match key {
            Key::Place(text) => text.clone(),
            Key::Node(peer) => self.dialer.addresses_of(*peer).first().map(ToString::to_string).unwrap_or_default(),
        };
        let (outcome, kind, why) = match failure {
            Failure::Stranger => (
                Outcome::Unwelcome,
                "secret",
                Some("it is of another mesh (another secret), or no mesh node at all: to join its mesh, use its token".to_owned()),
            ),
            Failure::OwnKey(address) => self.own_key(key, address),
            Failure::Refused => (Outcome::Failed, "silent", named.then(|| "connection refused: no node listens there yet".to_owned())),
            Failure::Other(why) => (Outcome::Failed, "silent", named.then(|| format!("no answer yet ({why})"))),
        };
        if self.dials.values().any(|other| other == key) {
            return; // another address of this place is still being tried
        }
        self.dialer.ended(now, key, outcome, rand::random());
        if let Some(peer) = self.dialer.peer_at(key).filter(|peer| node_of(*peer).is_some_and(|node| self.core.is_up(node))) {
            self.dialer.connected(peer);
            return;
        }
        if let Some(why) = why
            && self.notices.may_tell(now, &place, kind)
        {
            self.notify(place, format!("{why}; it is tried again"));
        }
    }

    /// A dial ended at our own key: at this process, or at a clone of it (F1, F11).
    fn own_key(&mut self, key: &Key, address: &Multiaddr) -> (Outcome, &'static str, Option<String>) {
        let ports: Vec<u16> = self.swarm.listeners().filter_map(place_of).map(|(_, port)| port).collect();
        if place_of(address).is_none_or(|(ip, port)| is_local(ip) && ports.contains(&port)) {
            self.dialer.unlearn(key, address);
            return (Outcome::Myself, "self", None);
        }
        let why = format!(
            "another node, at {address}, has this node's key: one of the two is a copy. Remove node.key from the state directory of one to \
             make it a node of its own"
        );
        (Outcome::Unwelcome, "clone", Some(why))
    }

    // What libp2p says.

    fn on_swarm(&mut self, event: SwarmEvent<BehaviourEvent>) {
        let now = self.clock.now();
        match event {
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, endpoint, .. } => {
                self.on_connected(connection_id, peer_id, &endpoint)
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
            SwarmEvent::NewListenAddr { .. } | SwarmEvent::ExpiredListenAddr { .. } | SwarmEvent::ListenerClosed { .. } => {
                note_listeners(&self.swarm, &self.shared);
            }
            SwarmEvent::ListenerError { error, .. } => tracing::warn!(%error, "a listener has trouble"),
            SwarmEvent::Behaviour(BehaviourEvent::Control(event)) => self.on_control(event),
            SwarmEvent::Behaviour(BehaviourEvent::Gossip(gossipsub::Event::Message { message, .. })) => self.on_gossip(&message.data),
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

    fn on_incoming_error(&mut self, now: Time, from: &Multiaddr, error: &libp2p::swarm::ListenError) {
        if !swarm::is_stranger(error) {
            tracing::debug!(%from, %error, "an incoming connection came to nothing");
            return;
        }
        self.shared.counters.strangers.add();
        let Some((ip, _)) = place_of(from) else { return };
        if self.notices.may_tell(now, &ip.to_string(), "stranger") {
            let why = "a connection from there does not hold this mesh's secret: a node of another mesh (invite it with this mesh's token), \
                       or no mesh node at all";
            self.notify(ip.to_string(), why.to_owned());
        }
    }

    fn on_gossip(&mut self, bytes: &[u8]) {
        match wire::decode::<Record>(bytes) {
            Ok(record) => {
                if let Record::Node(node) = &record {
                    self.learn(node);
                }
                self.shared.tell(CarrierEvent::Gossip(record));
            }
            Err(wire::DecodeError::UnknownKind) => self.shared.counters.unknown_kinds.add(),
            Err(_) => self.shared.counters.malformed_gossip.add(),
        }
    }

    /// Whoever speaks of itself is there to be connected to: a full mesh.
    fn learn(&mut self, record: &NodeRecord) {
        let Some(peer) = peer_of(record.node) else { return };
        if record.state == NodeState::Left {
            self.dialer.forget(peer);
            return;
        }
        let now = self.clock.now();
        self.dialer.learn(now, peer, record.addresses.iter().filter_map(|text| text.parse().ok()), self.courtesy_ms(record.node));
        if self.core.is_up(record.node) {
            self.dialer.connected(peer);
        }
    }

    fn courtesy_ms(&self, node: NodeId) -> u64 {
        if self.shared.me < node { 0 } else { COURTESY_MS }
    }

    #[cfg(feature = "mdns")]
    fn on_discovery(&mut self, now: Time, event: libp2p::mdns::Event) {
        let libp2p::mdns::Event::Discovered(found) = event else { return };
        for (peer, address) in found {
            let Some(node) = node_of(peer) else { continue };
            self.dialer.learn(now, peer, [address], self.courtesy_ms(node));
            if self.core.is_up(node) {
                self.dialer.connected(peer);
            }
        }
    }

    fn wonder(&self) {
        let there: Vec<String> = interfaces().iter().map(|interface| format!("{} ({})", interface.name, interface.address)).collect();
        let seconds = LONELY_MS / 1000;
        let why = if there.is_empty() {
            format!("no other node was heard in {seconds} s: no network interface is up")
        } else {
            format!(
                "no other node was heard in {seconds} s by multicast on {}; if there is one, multicast is blocked: name it as HOST:PORT",
                there.join(", ")
            )
        };
        self.notify("multicast DNS".to_owned(), why);
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Gossip(bytes) => {
                // Nobody subscribed yet is ordinary: digests bring it to whoever comes.
                if let Err(error) = self.swarm.behaviour_mut().gossip.publish(self.topic.clone(), bytes) {
                    tracing::debug!(%error, "a record was not gossiped");
                    self.shared.counters.gossip_dropped.add();
                }
            }
            Command::Dial(text) => self.on_dial(&text),
            Command::Disconnect(node) => {
                self.inputs.push_back(Input::Drop(node));
                let known: Vec<LinkId> =
                    self.connections.iter().filter(|(_, c)| c.node == node && c.phase != Phase::Known).map(|(id, _)| *id).collect();
                known.into_iter().for_each(|id| self.close(id));
            }
        }
    }

    fn on_dial(&mut self, text: &str) {
        let now = self.clock.now();
        let peer = text.parse::<Multiaddr>().ok().and_then(|address| split_peer(&address).1);
        if let Err(why) = self.dialer.add(now, text, false) {
            self.notify(text.to_owned(), why);
        }
        if let Some(peer) = peer.filter(|peer| node_of(*peer).is_some_and(|node| self.core.is_up(node))) {
            self.dialer.connected(peer);
        }
    }
}

/// Binds every address and waits until each listener has reported one.
async fn listen(swarm: &mut Swarm<Behaviour>, addresses: &[String], shared: &Shared) -> Result<(), NetError> {
    let mut waiting = BTreeMap::new();
    for text in addresses {
        let wrong = |why: String| NetError::Listen { address: text.clone(), why };
        let address = match text.parse::<std::net::SocketAddr>() {
            Ok(socket) => address_at(socket.ip(), socket.port()),
            Err(_) => text.parse().map_err(|_| wrong("it is neither IP:PORT nor a multiaddress such as /ip4/0.0.0.0/tcp/0".to_owned()))?,
        };
        check_free(&address).map_err(|error| wrong(error.to_string()))?;
        let listener = swarm.listen_on(address).map_err(|error| wrong(error.to_string()))?;
        waiting.insert(format!("{listener:?}"), text.clone());
    }
    let deadline = tokio::time::sleep(Duration::from_millis(LISTEN_MS));
    tokio::pin!(deadline);
    while let Some(text) = waiting.values().next().cloned() {
        tokio::select! {
            () = &mut deadline => return Err(NetError::Listen { address: text, why: "no interface has such an address".to_owned() }),
            event = swarm.select_next_some() => match event {
                SwarmEvent::NewListenAddr { listener_id, .. } => { waiting.remove(&format!("{listener_id:?}")); }
                SwarmEvent::ListenerClosed { reason: Err(error), .. } => {
                    return Err(NetError::Listen { address: text, why: error.to_string() });
                }
                _ => {}
            },
        }
    }
    note_listeners(swarm, shared);
    Ok(())
}

/// libp2p listens with `SO_REUSEPORT`: a second node on a port would silently get half of the first one's connections. So a
/// port that was asked for is bound once without.
fn check_free(address: &Multiaddr) -> std::io::Result<()> {
    match place_of(address) {
        Some((ip, port)) if port != 0 => std::net::TcpListener::bind((ip, port)).map(drop),
        _ => Ok(()),
    }
}

fn note_listeners(swarm: &Swarm<Behaviour>, shared: &Shared) {
    *shared.listening.write().unwrap_or_else(PoisonError::into_inner) = swarm.listeners().cloned().collect();
}

/// The addresses behind a place: itself, or what its name resolves to, IPv4 and IPv6. All are dialled at once, so a dead one
/// costs nothing (F9).
async fn resolve(text: &str) -> Vec<Multiaddr> {
    let (host, port, peer) = match text.parse::<Multiaddr>() {
        Ok(address) => match host_of(&address) {
            Some((host, port)) => (host, port, split_peer(&address).1),
            None => return vec![address],
        },
        Err(_) => match host_port(text) {
            Some((host, port)) => (host.to_owned(), port, None),
            None => return Vec::new(),
        },
    };
    let found = tokio::time::timeout(Duration::from_millis(RESOLVE_MS), tokio::net::lookup_host((host.as_str(), port))).await;
    let Ok(Ok(found)) = found else { return Vec::new() };
    let addresses = found.take(8).map(|socket| address_at(socket.ip(), socket.port()));
    addresses.map(|address| peer.map_or(address.clone(), |peer| address.with(libp2p::multiaddr::Protocol::P2p(peer)))).collect()
}
