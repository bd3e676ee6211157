//! A swarm on virtual time: every node runs the shipped membership and deployments cores, joined by streams.
//!
//! Loss on a stream is delay: a lost segment is sent again after 200 ms, 400 ms, and so on, and all behind it waits
//! (RFC 6298 without fast retransmit, which is the worse case; a lost SYN costs a second). A killed process resets its
//! streams and refuses new ones; a frozen one takes bytes and connections and says nothing; a cut drops everything.

mod dialling;
mod random;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use mesh_core::deployments::{self, Deployments};
use mesh_core::directory::Directory;
use mesh_core::ids::{BootId, NodeId, Time};
use mesh_core::lifetimes::Wall;
use mesh_core::membership::{Effect, Input, LinkId, Membership, Suspicion, Timings, Word};
use mesh_core::records::{Capacity, NodeRecord, NodeState, Record};
use mesh_core::wire::{self, Message};

use random::Random;

/// A frame's header, and a ping or pong with it (mesh-net's framing).
const HEADER_BYTES: u64 = 4;
const BEAT_BYTES: u64 = 10 + HEADER_BYTES;
/// What a control message has around it: header, stamp, and the marked ping that follows it.
const MAIL_BYTES: u64 = HEADER_BYTES + 12 + BEAT_BYTES;

/// What travels on a stream.
#[derive(Clone)]
enum Mail {
    Hello(BootId),
    Ping(u64),
    Pong(u64),
    Word(Word),
    Control(Box<Message>),
    End,
}

#[derive(Clone)]
enum Event {
    Wake(usize),
    Thaw(usize),
    Arrive { link: LinkId, to: usize, life: u32, mail: Mail },
    Gossip { to: usize, life: u32, record: Box<Record> },
    Try { from: usize, life: u32, to: usize, pause_ms: u64 },
    Connect { from: usize, life: u32, to: usize, redial: bool },
    Answered { node: usize, life: u32, of: usize, refused: bool },
}

#[derive(Clone)]
struct Node {
    core: Membership,
    records: Deployments,
    life: u32,
    alive: bool,
    frozen_until: Time,
    backlog: VecDeque<Event>,
    armed: Option<Time>,
    /// Open links: the other end's index.
    links: BTreeMap<LinkId, usize>,
    in_use: BTreeMap<usize, LinkId>,
    tried: BTreeSet<usize>,
    pub sent_bytes: u64,
    hushed: bool,
}

/// A verdict of one node on another.
#[derive(Clone, Debug)]
pub struct Verdict {
    pub at: Time,
    pub by: usize,
    pub of: usize,
    pub why: String,
}

#[derive(Clone)]
pub struct World {
    pub now: Time,
    random: Random,
    sequence: u64,
    queue: BTreeMap<(Time, u64), Event>,
    nodes: Vec<Node>,
    links_drawn: u64,
    /// When the last byte of each direction of a link arrives: (link, receiver).
    arrived: BTreeMap<(LinkId, usize), Time>,
    pub loss_percent: u64,
    /// Pairs between which everything is dropped.
    cut: BTreeSet<(usize, usize)>,
    pub downs: Vec<Verdict>,
    pub suspicions: BTreeMap<(usize, usize), Suspicion>,
    pub suspected: u64,
    pub events: u64,
    /// How many messages of each kind were sent, and their bytes.
    pub kinds: BTreeMap<&'static str, (u64, u64)>,
}

pub fn id(node: usize) -> NodeId {
    NodeId([node as u8 + 1; 32])
}

fn index(node: NodeId) -> usize {
    usize::from(node.0[0]) - 1
}

fn record(node: usize, life: u32) -> NodeRecord {
    NodeRecord {
        node: id(node),
        name: format!("node-{node}"),
        boot: boot(node, life),
        incarnation: u64::from(life),
        version: 0,
        state: NodeState::Up,
        alive: Wall(0),
        in_touch: None,
        capacity: Capacity::default(),
        numerics_class: 1,
        addresses: vec![format!("/ip4/10.0.0.{node}/tcp/7000/p2p/12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp")],
        models: Vec::new(),
        shards: Vec::new(),
        interfaces: Vec::new(),
        paths: Vec::new(),
    }
}

fn boot(node: usize, life: u32) -> BootId {
    // As long on the wire as a drawn one.
    BootId(u128::MAX - (node as u128) * 1_000 - u128::from(life))
}

impl World {
    /// `count` nodes that know each other, not yet connected.
    pub fn new(seed: u64, count: usize, loss_percent: u64) -> Self {
        let mut world = Self {
            now: Time(1_000_000_000),
            random: Random::new(seed),
            sequence: 0,
            queue: BTreeMap::new(),
            nodes: Vec::new(),
            links_drawn: 0,
            arrived: BTreeMap::new(),
            loss_percent,
            cut: BTreeSet::new(),
            downs: Vec::new(),
            suspicions: BTreeMap::new(),
            suspected: 0,
            events: 0,
            kinds: BTreeMap::new(),
        };
        (0..count).for_each(|node| world.add(node));
        for node in 0..count {
            (0..count).filter(|other| *other != node).for_each(|other| world.learn(node, other));
        }
        world
    }

    fn add(&mut self, node: usize) {
        let (seed, me) = (self.random.draw(), record(node, 1));
        let fresh = Node {
            core: Membership::new(id(node), me.boot, Timings::default(), seed),
            records: Deployments::new(self.now, me, Directory::default(), Vec::new()),
            life: 1,
            alive: true,
            frozen_until: Time::default(),
            backlog: VecDeque::new(),
            armed: None,
            links: BTreeMap::new(),
            in_use: BTreeMap::new(),
            tried: BTreeSet::new(),
            sent_bytes: 0,
            hushed: false,
        };
        self.nodes.push(fresh);
        self.arm(node);
    }

    /// Another node comes, and knows one.
    pub fn join(&mut self, seed: usize) -> usize {
        let node = self.nodes.len();
        self.add(node);
        self.learn(node, seed);
        node
    }

    pub fn kill(&mut self, node: usize) {
        self.nodes[node].alive = false;
        for (link, other) in std::mem::take(&mut self.nodes[node].links) {
            self.carry(link, node, other, Mail::End);
        }
    }

    pub fn freeze(&mut self, node: usize, ms: u64) {
        let until = self.now.plus_ms(ms);
        self.nodes[node].frozen_until = until;
        self.at(until, Event::Thaw(node));
    }

    /// Drops everything between two nodes, or lets it pass again: what was dropped is sent again then.
    pub fn cut(&mut self, a: usize, b: usize, whether: bool) {
        for pair in [(a, b), (b, a)] {
            if whether {
                self.cut.insert(pair);
            } else {
                self.cut.remove(&pair);
            }
        }
    }

    /// Whether each of the living sees each of the living up, and knows its record.
    pub fn is_whole(&self) -> bool {
        let living: Vec<usize> = (0..self.nodes.len()).filter(|node| self.nodes[*node].alive).collect();
        living.iter().all(|a| living.iter().all(|b| a == b || self.sees(*a, *b)))
    }

    pub fn sees(&self, a: usize, b: usize) -> bool {
        self.nodes[a].core.is_up(id(b)) && self.nodes[a].records.directory().node(id(b)).is_some()
    }

    /// Bytes that a node has sent for probes, words and the exchange of records.
    pub fn sent_bytes(&self, node: usize) -> u64 {
        self.nodes[node].sent_bytes
    }

    pub fn is_hushed(&self, node: usize) -> bool {
        self.nodes[node].hushed
    }

    /// What is drawn from here on is drawn anew.
    pub fn reseed(&mut self, seed: u64) {
        self.random = Random::new(seed);
    }

    pub fn phase(&mut self) -> u64 {
        self.random.draw() % 1_000_000_000
    }

    pub fn run(&mut self, ms: u64) {
        self.run_to(self.now.plus_ms(ms));
    }

    /// Runs until the condition holds, looking every 10 ms; the milliseconds it took, or `None` after `most_ms`.
    pub fn run_until(&mut self, most_ms: u64, holds: impl Fn(&Self) -> bool) -> Option<u64> {
        let start = self.now;
        while !holds(self) {
            if self.now.ms_since(start) >= most_ms {
                return None;
            }
            self.run(10);
        }
        Some(self.now.ms_since(start))
    }

    pub fn run_to(&mut self, end: Time) {
        while let Some(((at, _), _)) = self.queue.first_key_value().filter(|((at, _), _)| *at <= end).map(|(key, event)| (*key, event)) {
            let (_, event) = self.queue.pop_first().expect("just seen");
            self.now = at;
            self.events += 1;
            self.happen(event);
        }
        self.now = end;
    }

    fn at(&mut self, at: Time, event: Event) {
        self.sequence += 1;
        self.queue.insert((at, self.sequence), event);
    }

    fn happen(&mut self, event: Event) {
        let node = match &event {
            Event::Thaw(node) => return self.thaw(*node),
            Event::Connect { from, life, to, redial } => return self.connect(*from, *life, *to, *redial),
            Event::Wake(node) | Event::Answered { node, .. } => *node,
            Event::Arrive { to, .. } | Event::Gossip { to, .. } => *to,
            Event::Try { from, .. } => *from,
        };
        let place = &mut self.nodes[node];
        if !place.alive {
            return;
        }
        if place.frozen_until > self.now {
            place.backlog.push_back(event);
            return;
        }
        match event {
            Event::Wake(node) => self.wake(node),
            Event::Arrive { link, to, life, mail } if life == self.nodes[to].life => self.arrive(link, to, mail),
            Event::Gossip { to, life, record } if life == self.nodes[to].life => self.tell(to, deployments::Input::Gossip(*record)),
            Event::Try { from, life, to, pause_ms } if life == self.nodes[from].life => self.attempt(from, to, pause_ms),
            Event::Answered { node, life, of, refused } if life == self.nodes[node].life => {
                self.step(node, Input::Redialled { node: id(of), refused });
            }
            _ => {} // for a life that is over
        }
    }

    fn thaw(&mut self, node: usize) {
        if self.nodes[node].frozen_until <= self.now {
            for event in std::mem::take(&mut self.nodes[node].backlog) {
                self.happen(event);
            }
            self.wake(node);
        }
    }

    fn wake(&mut self, node: usize) {
        if self.nodes[node].armed.is_none_or(|at| at > self.now) {
            return;
        }
        self.nodes[node].armed = None;
        if self.nodes[node].core.wake_at().is_some_and(|at| at <= self.now) {
            self.step(node, Input::Elapsed);
        }
        if self.nodes[node].records.wake_at() <= self.now {
            self.tell(node, deployments::Input::Elapsed);
        }
        self.arm(node);
    }

    fn arm(&mut self, node: usize) {
        let place = &mut self.nodes[node];
        let at = place.core.wake_at().map_or(place.records.wake_at(), |at| at.min(place.records.wake_at())).max(self.now);
        if place.armed.is_none_or(|armed| at < armed) {
            place.armed = Some(at);
            self.at(at, Event::Wake(node));
        }
    }

    fn step(&mut self, node: usize, input: Input) {
        let mut effects = Vec::new();
        self.nodes[node].core.step(self.now, input, &mut effects);
        effects.into_iter().for_each(|effect| self.perform(node, effect));
        self.arm(node);
    }

    fn perform(&mut self, node: usize, effect: Effect) {
        match effect {
            Effect::Probe { link, nonce } => self.send(link, node, Mail::Ping(nonce)),
            Effect::Tell { to, word } => {
                if let Some(link) = self.nodes[node].in_use.get(&index(to)) {
                    self.send(*link, node, Mail::Word(word));
                }
            }
            Effect::Close { link, .. } => self.close(node, link),
            Effect::Redial(of) => self.dial(node, index(of), true),
            Effect::Up { node: of, link, .. } => {
                self.nodes[node].in_use.insert(index(of), link);
                let record = record(index(of), self.nodes[index(of)].life);
                self.tell(node, deployments::Input::Up(record));
            }
            Effect::Moved { node: of, link } => {
                self.nodes[node].in_use.insert(index(of), link);
            }
            Effect::Suspect { node: of, why } => {
                self.suspected += u64::from(self.suspicions.insert((node, index(of)), why).is_none());
                self.tell(node, deployments::Input::Suspect { node: of, why: why.to_string() });
            }
            Effect::Trusted(of) => {
                self.suspicions.remove(&(node, index(of)));
                self.tell(node, deployments::Input::Trusted(of));
            }
            Effect::Down { node: of, why } => {
                self.suspicions.remove(&(node, index(of)));
                self.nodes[node].in_use.remove(&index(of));
                self.downs.push(Verdict { at: self.now, by: node, of: index(of), why: why.to_string() });
                self.tell(node, deployments::Input::Down(of));
                self.lost(node, index(of));
            }
            Effect::Waking => {
                self.nodes[node].hushed = true;
                self.tell(node, deployments::Input::Waking);
            }
            Effect::Awake => {
                self.nodes[node].hushed = false;
                self.tell(node, deployments::Input::Awake);
            }
        }
    }

    /// Steps the records' core.
    fn tell(&mut self, node: usize, input: deployments::Input) {
        let mut effects = Vec::new();
        self.nodes[node].records.step(self.now, input, &mut effects);
        for effect in effects {
            match effect {
                deployments::Effect::Send { to, message } => {
                    if let Some(link) = self.nodes[node].in_use.get(&index(to)) {
                        self.send(*link, node, Mail::Control(Box::new(message)));
                    }
                }
                deployments::Effect::Introduce(record) => self.gossip(node, Record::Node(record)),
                deployments::Effect::Gossip(record) => self.gossip(node, record),
                _ => {}
            }
        }
        let unmet = |record: &&NodeRecord| !self.nodes[node].tried.contains(&index(record.node)) && record.node != id(node);
        let found: Vec<usize> = self.nodes[node].records.directory().nodes().filter(unmet).map(|record| index(record.node)).collect();
        found.into_iter().for_each(|other| self.learn(node, other));
        self.arm(node);
    }

    fn gossip(&mut self, from: usize, record: Record) {
        for to in self.nodes[from].in_use.keys().copied().collect::<Vec<_>>() {
            let (at, life) = (self.now.plus_ms(1 + self.random.below(5)), self.nodes[to].life);
            self.at(at, Event::Gossip { to, life, record: Box::new(record.clone()) });
        }
    }

    /// Writes on a link, if it is still open at this end.
    fn send(&mut self, link: LinkId, from: usize, mail: Mail) {
        let Some(&to) = self.nodes[from].links.get(&link) else { return };
        let length = |message: &Message| wire::encode(message).map_or(0, |bytes| bytes.len() as u64);
        let (kind, bytes) = match &mail {
            Mail::Ping(_) | Mail::Pong(_) => ("probes", BEAT_BYTES),
            Mail::Word(word @ (Word::Suspect { .. } | Word::Refute { .. })) => ("rumours", HEADER_BYTES + length(&Message::Word(*word))),
            Mail::Word(word) => ("words", HEADER_BYTES + length(&Message::Word(*word))),
            Mail::Control(message) => ("records", MAIL_BYTES + length(message)),
            Mail::Hello(_) | Mail::End => ("links", 0),
        };
        self.nodes[from].sent_bytes += bytes;
        let count = self.kinds.entry(kind).or_default();
        *count = (count.0 + 1, count.1 + bytes);
        if matches!(mail, Mail::Control(_)) {
            self.nodes[to].sent_bytes += BEAT_BYTES; // the echo of the mark
        }
        self.carry(link, from, to, mail);
    }

    fn carry(&mut self, link: LinkId, from: usize, to: usize, mail: Mail) {
        let delay = self.leg(from, to, 200);
        let behind = self.arrived.entry((link, to)).or_default();
        let at = Time(self.now.0.saturating_add(delay)).max(*behind);
        *behind = at;
        if at.0 < u64::MAX {
            let life = self.nodes[to].life;
            self.at(at, Event::Arrive { link, to, life, mail });
        }
    }

    /// Nanoseconds that one segment takes from here to there; never, if everything is dropped.
    fn leg(&mut self, from: usize, to: usize, timeout_ms: u64) -> u64 {
        if self.cut.contains(&(from, to)) {
            return u64::MAX;
        }
        let (mut delay, mut timeout) = (200_000 + self.random.below(800_000), timeout_ms * 1_000_000);
        while self.random.below(100) < self.loss_percent {
            delay += timeout;
            timeout *= 2;
        }
        delay
    }

    fn arrive(&mut self, link: LinkId, to: usize, mail: Mail) {
        let Some(&from) = self.nodes[to].links.get(&link) else { return };
        match mail {
            Mail::Hello(boot) => self.step(to, Input::Knock { link, node: id(from), boot }),
            Mail::Ping(nonce) => {
                self.send(link, to, Mail::Pong(nonce));
                self.step(to, Input::Accepted(link));
            }
            Mail::Pong(nonce) => self.step(to, Input::Echo { link, nonce }),
            Mail::Word(word) => self.step(to, Input::Heard { from: id(from), word }),
            Mail::Control(message) => self.tell(to, deployments::Input::Heard { from: id(from), message: *message }),
            Mail::End => {
                self.forget(to, link);
                self.step(to, Input::Ended { link, on_purpose: false, why: "reset".to_owned() });
            }
        }
    }

    fn close(&mut self, node: usize, link: LinkId) {
        self.send(link, node, Mail::End);
        self.forget(node, link);
    }

    fn forget(&mut self, node: usize, link: LinkId) {
        self.nodes[node].links.remove(&link);
        self.arrived.remove(&(link, node));
    }
}
