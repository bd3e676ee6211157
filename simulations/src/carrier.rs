//! Control connections as mesh-net drives them, over simulated wires: hello, knock, probes, redials, mail, gossip, goodbye.
//!
//! The one file that knows the membership core. As mesh-net's driver it turns what connections say into the core's inputs and
//! performs its effects; it differs in what lies below (wires that the world delays and breaks) and in gossip, which goes
//! from node to node over the same connections, each record once.
//!
//! It belongs to the node's process: while that is frozen, what arrives piles up unread and no timer acts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use mesh_core::ids::{NodeId, Time};
use mesh_core::membership::{Closing, Effect, Input, LinkId, Membership, Suspicion, Timings, Word};
use mesh_core::ports::{CarrierEvent, SendError};
use mesh_core::records::{NodeRecord, NodeState, Record};
use mesh_core::wire::{self, Hello, Message};

use crate::dice::Dice;
use crate::happening::{Happening, View};
use crate::net::queue::{Event, EventKey};
use crate::net::wires::{Arrival, Body, Frame};
use crate::net::{Delivery, Net};

/// From the connection to the peer's hello, as in mesh-net.
const HELLO_MS: u64 = 5_000;
/// Pauses between dials, as in mesh-net.
const PAUSE_FIRST_MS: u64 = 250;
const PAUSE_MAX_MS: u64 = 5_000;
const PAUSE_REFUSED_MS: u64 = 30_000;
/// After a connection came about: time to greet.
const GREET_MS: u64 = 6_000;
/// The greater id lets the smaller one dial first.
const COURTESY_MS: u64 = 200;
/// Redials of one node under way.
const REDIALS_MAX: usize = 2;
/// Gossiped records that are remembered, so that each is passed on once. (Guess: a minute's worth.)
const GOSSIP_MAX: usize = 4_096;
/// Peers that a record is passed on to at most: as many as gossipsub's mesh has at its fullest (12).
const GOSSIP_PEERS_MAX: usize = 12;
/// A message to oneself takes so long. (Guess: a queue between two threads.)
const SELF_NS: u64 = 5_000;

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Greeting(Time),
    Known,
    Leaving,
}

struct Socket {
    wire: u64,
    end: usize,
    node: NodeId,
    place: usize,
    phase: Phase,
    record: Option<Box<NodeRecord>>,
}

/// Somebody to be connected to.
struct Target {
    place: usize,
    next: Option<Time>,
    pause_ms: u64,
}

/// One life's end of all its connections.
pub struct Carrier {
    life: usize,
    place: usize,
    me: NodeRecord,
    protocol: u32,
    core: Membership,
    inputs: VecDeque<Input>,
    sockets: BTreeMap<LinkId, Socket>,
    links_of: BTreeMap<u64, LinkId>,
    links_drawn: u64,
    in_use: BTreeMap<NodeId, LinkId>,
    /// Mail of nodes that are up and have no connection for the moment.
    in_between: BTreeMap<NodeId, VecDeque<Frame>>,
    up: BTreeSet<NodeId>,
    /// Whom to dial, by machine.
    targets: BTreeMap<usize, Target>,
    /// Where nodes were met.
    places: BTreeMap<NodeId, usize>,
    /// Dials under way, by number: to which machine.
    dials: BTreeMap<u64, usize>,
    redials: BTreeMap<u64, NodeId>,
    gossip_seen: BTreeSet<u64>,
    gossip_order: VecDeque<u64>,
    dice: Dice,
    /// How far this node's clock is ahead of the world's.
    pub clock_ahead_ns: u64,
    wake: Option<(u64, EventKey)>,
    backlog: VecDeque<Arrival>,
    /// The process is stopped.
    pub frozen: bool,
    woken: bool,
}

impl Carrier {
    /// Knows the machines in `known`, and dials them.
    #[must_use]
    pub fn new(life: usize, place: usize, me: NodeRecord, protocol: u32, known: &[usize], dice: Dice) -> Self {
        let mut dice = dice;
        let core = Membership::new(me.node, me.boot, Timings::default(), dice.draw());
        let target =
            |dice: &mut Dice, other: usize| Target { place: other, next: Some(Time(dice.below(50_000_000))), pause_ms: PAUSE_FIRST_MS };
        let targets = known.iter().filter(|other| **other != place).map(|other| (*other, target(&mut dice, *other))).collect();
        Self {
            life,
            place,
            me,
            protocol,
            core,
            inputs: VecDeque::new(),
            sockets: BTreeMap::new(),
            links_of: BTreeMap::new(),
            links_drawn: 0,
            in_use: BTreeMap::new(),
            in_between: BTreeMap::new(),
            up: BTreeSet::new(),
            targets,
            places: BTreeMap::new(),
            dials: BTreeMap::new(),
            redials: BTreeMap::new(),
            gossip_seen: BTreeSet::new(),
            gossip_order: VecDeque::new(),
            dice,
            clock_ahead_ns: 0,
            wake: None,
            backlog: VecDeque::new(),
            frozen: false,
            woken: false,
        }
    }

    /// What it speaks.
    #[must_use]
    pub fn protocol(&self) -> u32 {
        self.protocol
    }

    fn now(&self, net: &Net) -> Time {
        Time(net.now + self.clock_ahead_ns + crate::EPOCH_NS)
    }

    /// Something arrived.
    pub fn hear(&mut self, arrival: Arrival, net: &mut Net) {
        if self.frozen {
            return self.backlog.push_back(arrival);
        }
        self.read(arrival, net);
        self.settle(net);
    }

    /// A timer.
    pub fn elapsed(&mut self, net: &mut Net) {
        self.wake = None;
        if self.frozen {
            self.woken = true;
        } else {
            self.settle(net);
        }
    }

    /// The process goes on.
    pub fn thaw(&mut self, net: &mut Net) {
        self.frozen = false;
        self.woken = false;
        // A timer that is overdue acts before what lies unread: as after a real SIGCONT.
        self.settle(net);
        while let Some(arrival) = self.backlog.pop_front() {
            self.read(arrival, net);
            self.settle(net);
        }
    }

    /// Connects to a machine that somebody told of.
    pub fn learn(&mut self, place: usize, after_ms: u64, net: &mut Net) {
        if place != self.place {
            let next = self.now(net).plus_ms(after_ms);
            self.targets.entry(place).or_insert(Target { place, next: Some(next), pause_ms: PAUSE_FIRST_MS });
            self.settle(net);
        }
    }

    /// The port: a control message.
    ///
    /// # Errors
    /// No connection, or its queue is full.
    pub fn send(&mut self, to: NodeId, message: Message, net: &mut Net) -> Result<(), SendError> {
        if to == self.me.node {
            net.after(SELF_NS, Event::ToSelf { life: self.life, message: Box::new(message) });
            return Ok(());
        }
        let bytes = wire::encode(&message).map_err(|_| SendError::Full(to))?.len() + 16;
        self.mail(to, Frame { body: Body::Control(Box::new(message)), bytes, heart: false }, net)
    }

    /// The port: a record for everybody.
    pub fn gossip(&mut self, record: &Record, net: &mut Net) {
        let Ok(bytes) = wire::encode(record) else { return };
        let hash = xxhash_rust::xxh3::xxh3_64(&bytes);
        if self.is_new(hash) {
            let frame = Frame { body: Body::Gossip(Arc::new(record.clone()), hash), bytes: bytes.len() + 16, heart: false };
            self.pass_on(&frame, None, net);
        }
    }

    /// The port: what is said in hellos, and to everybody.
    pub fn introduce(&mut self, me: &NodeRecord, net: &mut Net) {
        self.me = NodeRecord { addresses: vec![address_of(self.place)], ..me.clone() };
        let record = Record::Node(self.me.clone());
        self.gossip(&record, net);
    }

    /// The port: an address.
    pub fn dial(&mut self, address: &str, net: &mut Net) {
        if let Some(place) = place_of(address).filter(|place| *place < net.running.len()) {
            self.learn(place, 0, net);
        }
    }

    /// The port: away with a node.
    pub fn disconnect(&mut self, node: NodeId, net: &mut Net) {
        self.inputs.push_back(Input::Drop(node));
        self.settle(net);
    }

    /// The last words before the process ends on purpose.
    pub fn say_goodbye(&mut self, net: &mut Net) {
        let links: Vec<LinkId> = self.sockets.keys().copied().collect();
        links.into_iter().for_each(|link| self.farewell(link, "it was stopped", net));
    }

    fn mail(&mut self, to: NodeId, frame: Frame, net: &mut Net) -> Result<(), SendError> {
        if let Some(socket) = self.in_use.get(&to).and_then(|link| self.sockets.get(link)) {
            return if net.send(socket.wire, socket.end, frame) { Ok(()) } else { Err(SendError::Full(to)) };
        }
        match self.in_between.get_mut(&to) {
            Some(waiting) if waiting.len() < GOSSIP_MAX => {
                waiting.push_back(frame);
                Ok(())
            }
            Some(_) => Err(SendError::Full(to)),
            None => Err(SendError::Unreachable(to)),
        }
    }

    fn is_new(&mut self, hash: u64) -> bool {
        if !self.gossip_seen.insert(hash) {
            return false;
        }
        self.gossip_order.push_back(hash);
        if self.gossip_order.len() > GOSSIP_MAX
            && let Some(old) = self.gossip_order.pop_front()
        {
            self.gossip_seen.remove(&old);
        }
        true
    }

    /// To everybody in a small mesh, to a few drawn ones in a large one: they pass it on in their turn.
    fn pass_on(&mut self, frame: &Frame, but: Option<NodeId>, net: &mut Net) {
        let mut others: Vec<NodeId> = self.up.iter().filter(|node| Some(**node) != but).copied().collect();
        while others.len() > GOSSIP_PEERS_MAX {
            let one = usize::try_from(self.dice.below(others.len() as u64)).unwrap_or(0);
            others.swap_remove(one);
        }
        for node in others {
            let _ = self.mail(node, frame.clone(), net); // digests repair it
        }
    }

    fn read(&mut self, arrival: Arrival, net: &mut Net) {
        match arrival {
            Arrival::Connected { wire, end, dial } => self.on_connected(wire, end, dial, net),
            Arrival::DialFailed { dial, refused } => self.on_dial_failed(dial, refused, net),
            Arrival::Frame { wire, end, frame } => {
                if !frame.heart {
                    net.has_read(wire, end, frame.bytes);
                }
                self.on_frame(wire, frame, net);
            }
            Arrival::Closed { wire, why } => {
                if let Some(link) = self.links_of.get(&wire).copied() {
                    self.end(link, false, why, net);
                }
            }
        }
    }

    fn on_connected(&mut self, wire: u64, end: usize, dial: Option<u64>, net: &mut Net) {
        let now = self.now(net);
        if let Some(dial) = dial {
            self.redials.remove(&dial);
            if let Some(target) = self.dials.remove(&dial).and_then(|place| self.targets.get_mut(&place)) {
                target.next = Some(now.plus_ms(GREET_MS));
            }
        }
        let Some(other) = net.wires.get(&wire).map(|wire| wire.ends[1 - end]) else { return };
        let (node, place) = (net.lives[other].node, net.lives[other].place);
        if node == self.me.node {
            // Another process with our key: one of the two is a copy (F11).
            self.notify(format!("another node, on machine {place}, has this node's key: one of the two is a copy"), net);
            if let Some(target) = self.targets.get_mut(&place) {
                target.next = Some(now.plus_ms(PAUSE_REFUSED_MS));
            }
            return net.close_wire(wire, end, "the same key");
        }
        self.links_drawn += 1;
        let link = LinkId(self.links_drawn);
        self.sockets.insert(link, Socket { wire, end, node, place, phase: Phase::Greeting(now.plus_ms(HELLO_MS)), record: None });
        self.links_of.insert(wire, link);
        let hello = Hello { protocol: self.protocol, program: "simulated".to_owned(), mesh: "mesh".to_owned(), me: self.me.clone() };
        self.beat(link, Message::Hello(Box::new(hello)), net);
    }

    fn on_dial_failed(&mut self, dial: u64, refused: bool, net: &mut Net) {
        if let Some(node) = self.redials.remove(&dial) {
            self.inputs.push_back(Input::Redialled { node, refused });
        }
        if let Some(place) = self.dials.remove(&dial) {
            self.pause(place, net);
        }
    }

    /// The next dial comes later than the last one did.
    fn pause(&mut self, place: usize, net: &Net) {
        let now = self.now(net);
        let Some(target) = self.targets.get_mut(&place) else { return };
        let jitter = self.dice.below(target.pause_ms / 4 + 1);
        target.next = Some(now.plus_ms(target.pause_ms + jitter));
        target.pause_ms = (target.pause_ms * 2).min(PAUSE_MAX_MS);
    }

    fn on_frame(&mut self, wire: u64, frame: Frame, net: &mut Net) {
        let Some(link) = self.links_of.get(&wire).copied() else { return };
        let Some(socket) = self.sockets.get_mut(&link) else { return };
        let (node, place, greeting) = (socket.node, socket.place, matches!(socket.phase, Phase::Greeting(_)));
        if socket.phase == Phase::Leaving {
            return;
        }
        match frame.body {
            Body::Control(message) if net.chatty => {
                net.note(Happening::Message { from: place, to: self.place, what: name_of(&message), bytes: frame.bytes });
                self.on_message(link, node, greeting, *message, net);
            }
            Body::Control(message) => self.on_message(link, node, greeting, *message, net),
            Body::Gossip(record, hash) => self.on_gossip(node, &record, hash, frame.bytes, net),
            Body::Fin(_) => {}
        }
    }

    fn on_message(&mut self, link: LinkId, node: NodeId, greeting: bool, message: Message, net: &mut Net) {
        match message {
            Message::Hello(hello) if greeting => self.on_hello(link, *hello, net),
            Message::Hello(_) => {}
            Message::Goodbye(text) => {
                if !self.core.is_up(node) {
                    self.notify(format!("it refused this node: {text}"), net);
                    self.unwelcome(link, net);
                }
                self.end(link, true, text, net);
            }
            Message::Ping(nonce) => {
                self.beat(link, Message::Pong(nonce), net);
                self.inputs.push_back(Input::Accepted(link));
            }
            Message::Pong(nonce) => self.inputs.push_back(Input::Echo { link, nonce }),
            Message::Word(word) => self.inputs.push_back(Input::Heard { from: node, word }),
            message => {
                // What came before the greeting was over counts for nothing.
                if self.core.is_up(node) {
                    net.deliveries.push_back(Delivery::Message { life: self.life, from: node, message });
                }
            }
        }
    }

    fn on_hello(&mut self, link: LinkId, hello: Hello, net: &mut Net) {
        let Some(socket) = self.sockets.get_mut(&link) else { return };
        if hello.protocol != self.protocol {
            let (theirs, ours) = (hello.protocol, self.protocol);
            let place = socket.place;
            self.notify(format!("machine {place} speaks protocol {theirs}, this node {ours}: update the older one"), net);
            self.unwelcome(link, net);
            return self.farewell(link, &format!("you speak protocol {theirs}, this node {ours}: update the older one"), net);
        }
        if hello.me.node != socket.node {
            self.unwelcome(link, net);
            return self.close(link, "its hello names another node", net);
        }
        socket.phase = Phase::Known;
        let (node, boot) = (hello.me.node, hello.me.boot);
        socket.record = Some(Box::new(hello.me));
        self.places.insert(node, socket.place);
        self.inputs.push_back(Input::Knock { link, node, boot });
    }

    fn on_gossip(&mut self, from: NodeId, record: &Arc<Record>, hash: u64, bytes: usize, net: &mut Net) {
        if !self.core.is_up(from) || !self.is_new(hash) {
            return;
        }
        if let Record::Node(node) = record.as_ref() {
            self.meet(node, net);
        }
        net.tell(self.life, CarrierEvent::Gossip(record.as_ref().clone()));
        self.pass_on(&Frame { body: Body::Gossip(record.clone(), hash), bytes, heart: false }, Some(from), net);
    }

    /// Whoever speaks of itself is there to be connected to.
    fn meet(&mut self, record: &NodeRecord, net: &mut Net) {
        let courtesy = if self.me.node < record.node { 0 } else { COURTESY_MS };
        let places: Vec<usize> =
            record.addresses.iter().filter_map(|text| place_of(text)).filter(|place| *place < net.running.len()).collect();
        for place in places {
            if record.state == NodeState::Left {
                self.targets.remove(&place);
            } else if place != self.place && !self.core.is_up(record.node) {
                let next = Some(self.now(net).plus_ms(courtesy));
                self.targets.entry(place).or_insert(Target { place, next, pause_ms: PAUSE_FIRST_MS });
            }
        }
    }

    /// Everything that is due.
    fn settle(&mut self, net: &mut Net) {
        let now = self.now(net);
        if self.core.wake_at().is_some_and(|at| at <= now) {
            self.inputs.push_back(Input::Elapsed);
        }
        let mut effects = Vec::new();
        while let Some(input) = self.inputs.pop_front() {
            self.core.step(now, input, &mut effects);
            for effect in effects.drain(..) {
                self.perform(effect, net);
            }
        }
        let overdue = |socket: &Socket| matches!(socket.phase, Phase::Greeting(deadline) if deadline <= now);
        let late: Vec<LinkId> = self.sockets.iter().filter(|(_, socket)| overdue(socket)).map(|(link, _)| *link).collect();
        late.into_iter().for_each(|link| self.close(link, "no hello came", net));
        let due: Vec<usize> =
            self.targets.values().filter(|target| target.next.is_some_and(|at| at <= now)).map(|target| target.place).collect();
        for place in due {
            let met = self.up.iter().any(|node| self.places.get(node) == Some(&place));
            let Some(target) = self.targets.get_mut(&place) else { continue };
            target.next = None;
            if !met {
                let dial = net.dial(self.life, place);
                self.dials.insert(dial, place);
            }
        }
        self.arm(net);
    }

    fn arm(&mut self, net: &mut Net) {
        let phases = self.sockets.values().filter_map(|socket| match socket.phase {
            Phase::Greeting(deadline) => Some(deadline),
            Phase::Known | Phase::Leaving => None,
        });
        let dials = self.targets.values().filter_map(|target| target.next);
        let next = phases.chain(dials).chain(self.core.wake_at()).min();
        let at = next.map(|next| next.0.saturating_sub(self.clock_ahead_ns + crate::EPOCH_NS).max(net.now));
        if self.wake.map(|wake| wake.0) == at {
            return;
        }
        if let Some((_, key)) = self.wake.take() {
            net.queue.cancel(key);
        }
        if let Some(at) = at {
            self.wake = Some((at, net.queue.push(at, Event::Carrier { life: self.life })));
        }
    }

    fn perform(&mut self, effect: Effect, net: &mut Net) {
        match effect {
            Effect::Probe { link, nonce } => self.beat(link, Message::Ping(nonce), net),
            Effect::Close { link, why } => self.close_by_core(link, why, net),
            Effect::Redial(node) => self.redial(node, net),
            Effect::Up { node, link, .. } => self.on_up(node, link, net),
            Effect::Moved { node, link } => self.on_moved(node, link, net),
            Effect::Tell { to, word } => self.say(to, word, net),
            Effect::Waking => net.tell(self.life, CarrierEvent::Waking),
            Effect::Awake => net.tell(self.life, CarrierEvent::Awake),
            Effect::Suspect { node, why } => {
                let why = self.in_words(why);
                self.saw(node, View::Suspect, &why, net);
                net.tell(self.life, CarrierEvent::Suspect { node, why });
            }
            Effect::Trusted(node) => {
                self.saw(node, View::Trusted, "", net);
                net.tell(self.life, CarrierEvent::Trusted(node));
            }
            Effect::Down { node, why } => self.on_down(node, &why.to_string(), net),
        }
    }

    fn saw(&self, node: NodeId, view: View, why: &str, net: &mut Net) {
        if let Some(&place) = self.places.get(&node) {
            net.note(Happening::Saw { by: self.place, node: place, view, why: why.to_owned() });
        }
    }

    /// Words about third nodes overtake other mail, as heartbeats do.
    fn say(&mut self, to: NodeId, word: Word, net: &mut Net) {
        if let Some(link) = self.in_use.get(&to) {
            self.beat(*link, Message::Word(word), net);
        }
    }

    fn in_words(&self, why: Suspicion) -> String {
        let Suspicion::OnlyThrough(other) = why else { return why.to_string() };
        let record = self.sockets.values().filter(|socket| socket.node == other).find_map(|socket| socket.record.as_ref());
        record.map_or_else(|| why.to_string(), |record| format!("reached only through {}", record.name))
    }

    fn on_up(&mut self, node: NodeId, link: LinkId, net: &mut Net) {
        let Some(socket) = self.sockets.get(&link) else { return };
        let (Some(record), place) = (socket.record.clone(), socket.place) else { return };
        self.in_use.insert(node, link);
        self.up.insert(node);
        self.places.insert(node, place);
        self.targets.entry(place).or_insert(Target { place, next: None, pause_ms: PAUSE_FIRST_MS });
        if let Some(target) = self.targets.get_mut(&place) {
            (target.next, target.pause_ms) = (None, PAUSE_FIRST_MS);
        }
        self.saw(node, View::Up, "", net);
        net.tell(self.life, CarrierEvent::Up(*record));
    }

    fn on_moved(&mut self, node: NodeId, link: LinkId, net: &mut Net) {
        let former = self.in_use.insert(node, link).and_then(|old| self.sockets.get(&old)).map(|socket| (socket.wire, socket.end));
        let mut mail: Vec<Frame> = self.in_between.remove(&node).into_iter().flatten().collect();
        if let Some((wire, end)) = former {
            mail.extend(net.take_mail(wire, end));
        }
        for frame in mail {
            let _ = self.mail(node, frame, net); // it fitted before
        }
    }

    fn on_down(&mut self, node: NodeId, why: &str, net: &mut Net) {
        self.up.remove(&node);
        self.in_use.remove(&node);
        self.in_between.remove(&node);
        if let Some(place) = self.places.get(&node).copied() {
            self.pause(place, net);
            let hears = net.running[place].is_some_and(|life| !net.lives[life].frozen) && net.links.connected(self.place, place);
            let by_itself = why.contains("goodbye") || why.contains("restarted") || why.contains("dropped");
            net.false_deaths += u64::from(hears && !by_itself);
        }
        self.saw(node, View::Down, why, net);
        net.tell(self.life, CarrierEvent::Down { node, why: why.to_owned() });
    }

    fn redial(&mut self, node: NodeId, net: &mut Net) {
        if self.redials.values().filter(|other| **other == node).count() >= REDIALS_MAX {
            return; // one of them will answer
        }
        match self.places.get(&node).copied() {
            Some(place) => {
                let dial = net.dial(self.life, place);
                self.redials.insert(dial, node);
            }
            None => self.inputs.push_back(Input::Redialled { node, refused: false }),
        }
    }

    fn beat(&mut self, link: LinkId, message: Message, net: &mut Net) {
        let Some(socket) = self.sockets.get(&link) else { return };
        let bytes = match &message {
            Message::Ping(_) | Message::Pong(_) => 13,
            other => wire::encode(other).map_or(64, |bytes| bytes.len() + 4),
        };
        net.send(socket.wire, socket.end, Frame { body: Body::Control(Box::new(message)), bytes, heart: true });
    }

    /// The link is over, by the other side or by the network.
    fn end(&mut self, link: LinkId, on_purpose: bool, why: String, net: &mut Net) {
        if self.sockets.get(&link).is_some_and(|socket| socket.phase == Phase::Known) {
            self.inputs.push_back(Input::Ended { link, on_purpose, why });
        }
        self.close(link, "it ended", net);
    }

    fn close(&mut self, link: LinkId, why: &str, net: &mut Net) {
        let Some(socket) = self.sockets.remove(&link) else { return };
        self.links_of.remove(&socket.wire);
        if self.in_use.get(&socket.node) == Some(&link) && self.up.contains(&socket.node) {
            let mail = net.take_mail(socket.wire, socket.end);
            self.in_use.remove(&socket.node);
            self.in_between.insert(socket.node, mail.into());
        }
        net.close_wire(socket.wire, socket.end, why);
    }

    fn close_by_core(&mut self, link: LinkId, why: Closing, net: &mut Net) {
        match why {
            Closing::Clone => {
                let node = self.sockets.get(&link).map_or_else(String::new, |socket| socket.node.short());
                self.notify(format!("another running node has the same key ({node}): one of the two is a copy"), net);
                self.unwelcome(link, net);
                self.farewell(link, &format!("your key ({node}) is in use by a running node: this one is a copy"), net);
            }
            Closing::Dropped => self.farewell(link, "disconnected", net),
            Closing::Duplicate | Closing::Silent | Closing::Ungreeted => self.close(link, "one connection is enough", net),
        }
    }

    fn unwelcome(&mut self, link: LinkId, net: &Net) {
        let next = self.now(net).plus_ms(PAUSE_REFUSED_MS);
        let place = self.sockets.get(&link).map(|socket| socket.place);
        if let Some(target) = place.and_then(|place| self.targets.get_mut(&place)) {
            target.next = Some(next);
        }
    }

    fn farewell(&mut self, link: LinkId, text: &str, net: &mut Net) {
        self.beat(link, Message::Goodbye(text.to_owned()), net);
        if let Some(socket) = self.sockets.get_mut(&link) {
            socket.phase = Phase::Leaving;
        }
        self.close(link, text, net);
    }

    fn notify(&mut self, why: String, net: &mut Net) {
        net.note(Happening::Told { by: self.place, text: why.clone() });
        net.tell(self.life, CarrierEvent::Refused { address: "a connection".to_owned(), why });
    }
}

/// The address of a machine.
#[must_use]
pub fn address_of(place: usize) -> String {
    format!("sim:{place}")
}

fn place_of(address: &str) -> Option<usize> {
    address.strip_prefix("sim:")?.parse().ok()
}

fn name_of(message: &Message) -> &'static str {
    match message {
        Message::Hello(_) => "hello",
        Message::Goodbye(_) => "goodbye",
        Message::Ping(_) => "ping",
        Message::Pong(_) => "pong",
        Message::Word(_) => "word",
        Message::Summary(_) => "summary",
        Message::Digest(_) => "digest",
        Message::Want(_) => "want",
        Message::Records(_) => "records",
        Message::Load(_) => "load",
        Message::Shard(_) => "shard",
        Message::Lane(_) => "lane",
        Message::Links(_) => "links",
        Message::Open(_) => "open",
        Message::Opened(_) => "opened",
        Message::Start(_) => "start",
        Message::Grant { .. } => "grant",
        Message::Close(_) => "close",
        Message::Token(_) => "token",
        Message::StreamFailed(_) => "stream-failed",
    }
}
