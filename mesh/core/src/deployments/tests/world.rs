//! A world of a few nodes on virtual time, drawn from a seed. Shards load and wire after a while; messages take their time.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::ids::Digest;
use crate::lifetimes::Lifetimes;
use crate::model::{Contents, FileContents, LayerCost, Layers};
use crate::records::{Capacity, RecordKey};
use crate::wire::ShardState;

/// A model that any node can hold.
pub fn small_sheet() -> ModelSheet {
    sheet("small", 6, 10 << 20)
}

/// A model that takes several nodes of a GiB.
pub fn large_sheet() -> ModelSheet {
    sheet("large one", 6, 300 << 20)
}

/// Node `node` as it introduces itself, with the files of both models.
pub fn node_record(node: usize, memory_bytes: u64) -> NodeRecord {
    let held = |sheet: ModelSheet| HeldModel {
        layers: Layers::new(0, sheet.layer_count()),
        name: sheet.name,
        digest: sheet.digest,
        contents: None,
    };
    NodeRecord {
        node: NodeId([node as u8 + 1; 32]),
        name: format!("n{node}"),
        boot: BootId(node as u128),
        incarnation: 1,
        version: 0,
        state: NodeState::Up,
        alive: Wall::default(),
        in_touch: None,
        capacity: Capacity { memory_bytes, ..Capacity::default() },
        numerics_class: 0,
        addresses: Vec::new(),
        models: vec![held(small_sheet()), held(large_sheet())],
        shards: Vec::new(),
        interfaces: Vec::new(),
        paths: Vec::new(),
    }
}

fn sheet(name: &str, layers: usize, layer_bytes: u64) -> ModelSheet {
    ModelSheet {
        name: name.into(),
        digest: Digest([name.len() as u8; 32]),
        architecture: "llama".into(),
        storage: "f32".into(),
        layers: vec![LayerCost { weight_bytes: layer_bytes, flops: layer_bytes, kv_bytes: 64 }; layers],
        embed_bytes: 0,
        head_bytes: 0,
        head_flops: 0,
        tied: false,
        hidden_width: 64,
        vocabulary: 100,
        context_max: 512,
    }
}

struct Shard {
    plan: PlanHash,
    layers: Layers,
    state: ShardState,
    life: u64,
}

struct Node {
    core: Option<Deployments>,
    disk: BTreeMap<RecordKey, Record>,
    disk_full: bool,
    boot: u128,
    /// Which copy of the models its files hold; 0 = they were not read yet.
    copy: u8,
    clock_ahead_ms: u64,
    forgotten: Vec<NodeId>,
    frozen_until: u64,
    shards: BTreeMap<DeploymentId, Shard>,
    /// Peers it believes to be connected with, and in which life.
    met: BTreeMap<usize, u128>,
    /// When it hears the last of what its carrier has to say of a peer: a carrier keeps that order.
    told_at: BTreeMap<usize, u64>,
}

enum Event {
    Input(usize, u128, Box<Input>),
    Load(usize, u128, DeploymentId, u64, ShardState),
    Probe(usize, u128, DeploymentId, Plan),
}

pub struct World {
    random: u64,
    now_ms: u64,
    sequence: u64,
    nodes: Vec<Node>,
    events: BTreeMap<(u64, u64), Event>,
    part: u8,
    lifetimes: Lifetimes,
    pub loads: u32,
    pub loads_fail: bool,
    pub steps: u64,
    pub notices: Vec<String>,
    heard_of: BTreeSet<(DeploymentId, PlanId)>,
}

impl World {
    pub fn new(seed: u64, count: usize) -> Self {
        Self::with_lifetimes(seed, count, Lifetimes::default())
    }

    /// A world in which what has ended is remembered for so long.
    pub fn with_lifetimes(seed: u64, count: usize, lifetimes: Lifetimes) -> Self {
        let node = |_| Node {
            core: None,
            disk: BTreeMap::new(),
            disk_full: false,
            boot: 0,
            copy: 0,
            clock_ahead_ms: 0,
            forgotten: Vec::new(),
            frozen_until: 0,
            shards: BTreeMap::new(),
            met: BTreeMap::new(),
            told_at: BTreeMap::new(),
        };
        let mut world = Self {
            random: seed | 1,
            now_ms: 1_000,
            sequence: 0,
            nodes: (0..count).map(node).collect(),
            events: BTreeMap::new(),
            part: 0,
            lifetimes,
            loads: 0,
            loads_fail: false,
            steps: 0,
            notices: Vec::new(),
            heard_of: BTreeSet::new(),
        };
        for node in 0..count {
            // Clocks ten minutes apart, or as much of that as these lifetimes allow.
            let drawn = (seed ^ node as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
            world.nodes[node].clock_ahead_ms = drawn % ((lifetimes.margin_ms() / 2).min(600_000) + 1);
            world.restart(node);
        }
        world
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below.max(1)
    }
    pub fn now(&self) -> Time {
        Time(self.now_ms * 1_000_000)
    }
    pub fn id(&self, node: usize) -> NodeId {
        NodeId([node as u8 + 1; 32])
    }
    fn index(&self, id: NodeId) -> usize {
        usize::from(id.0[0]) - 1
    }
    pub fn core(&mut self, node: usize) -> &mut Deployments {
        self.nodes[node].core.as_mut().expect("the node runs")
    }
    fn later(&mut self, ms: u64, event: Event) {
        self.sequence += 1;
        self.events.insert((self.now_ms + ms, self.sequence), event);
    }

    /// The wall clock of a node: they differ by some minutes.
    fn wall(&self, node: usize) -> Wall {
        Wall(1_700_000_000_000 + self.now_ms).plus_ms(self.nodes[node].clock_ahead_ms)
    }
    fn directory(&self, node: usize) -> Directory {
        Directory::new(self.lifetimes, self.wall(node))
    }

    fn record(&self, node: usize) -> NodeRecord {
        let mut record = NodeRecord { boot: BootId(self.nodes[node].boot), ..node_record(node, 1 << 30) };
        let copy = self.nodes[node].copy;
        let files = || vec![FileContents { name: "model.safetensors".into(), hash: copy.into() }];
        let contents = (copy > 0).then(|| Contents::new(Digest([copy; 32]), files()));
        record.models.iter_mut().for_each(|held| held.contents.clone_from(&contents));
        record
    }

    /// A node has read its files: they hold this copy.
    pub fn read_files(&mut self, node: usize, copy: u8) {
        if node < self.nodes.len() {
            self.nodes[node].copy = copy;
            self.mine(node);
        }
    }

    pub fn restart(&mut self, node: usize) {
        if node >= self.nodes.len() || self.nodes[node].core.is_some() {
            return;
        }
        self.nodes[node].boot = u128::from(self.draw(u64::MAX)) << 8 | node as u128;
        let (now, record) = (self.now(), self.record(node));
        let records = self.nodes[node].disk.values().cloned().collect();
        self.nodes[node].core = Some(Deployments::new(now, record, self.directory(node), records));
        self.nodes[node].shards.clear();
        self.meet();
    }

    pub fn crash(&mut self, node: usize) {
        if node < self.nodes.len() {
            (self.nodes[node].core, self.nodes[node].met) = (None, BTreeMap::new());
            self.meet();
        }
    }

    /// Splits the nodes in two groups by the bits of a mask; 0 joins them.
    pub fn part(&mut self, mask: u8) {
        self.part = mask;
        self.meet();
    }

    pub fn disk_full(&mut self, node: usize, full: bool) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.disk_full = full;
        }
    }

    /// The node's process stops for a while, as with SIGSTOP: its events wait. Its carrier notices, and has answers later.
    pub fn freeze(&mut self, node: usize) {
        if node < self.nodes.len() {
            let (boot, answers_ms) = (self.nodes[node].boot, 1 + self.draw(1_000));
            self.nodes[node].frozen_until = self.now_ms + 5_000;
            self.later(5_000, Event::Input(node, boot, Box::new(Input::Waking)));
            self.later(5_000 + answers_ms, Event::Input(node, boot, Box::new(Input::Awake)));
        }
    }

    pub fn shard_panics(&mut self, node: usize) {
        let Some(id) = self.nodes.get(node).and_then(|node| node.shards.keys().next().copied()) else { return };
        self.nodes[node].shards.remove(&id);
        self.step(node, Input::ShardLost(id));
        self.mine(node);
    }

    pub fn heal(&mut self) {
        for node in 0..self.nodes.len() {
            self.disk_full(node, false);
            self.restart(node);
        }
        self.part(0);
    }

    fn joined(&self, a: usize, b: usize) -> bool {
        self.nodes[a].core.is_some() && self.nodes[b].core.is_some() && (self.part >> a & 1) == (self.part >> b & 1)
    }

    /// Tells nodes who has come and who has gone, as a carrier would, after a moment.
    fn meet(&mut self) {
        for a in 0..self.nodes.len() {
            for b in 0..self.nodes.len() {
                if a == b || self.nodes[a].core.is_none() {
                    continue;
                }
                let (boot, life) = (self.nodes[b].boot, self.nodes[a].boot);
                if self.joined(a, b) && self.nodes[a].met.get(&b) != Some(&boot) {
                    self.nodes[a].met.insert(b, boot);
                    let record = self.nodes[b].core.as_ref().expect("joined").me().clone();
                    let ms = 20 + self.draw(200);
                    self.carrier_says(ms, a, b, life, Input::Up(record));
                } else if !self.joined(a, b) && self.nodes[a].met.remove(&b).is_some() {
                    let ms = 250 + self.draw(600);
                    let id = self.id(b);
                    self.carrier_says(ms, a, b, life, Input::Down(id));
                }
            }
        }
    }

    fn carrier_says(&mut self, ms: u64, node: usize, of: usize, life: u128, input: Input) {
        let at = (self.now_ms + ms).max(self.nodes[node].told_at.get(&of).map_or(0, |at| at + 1));
        self.nodes[node].told_at.insert(of, at);
        self.later(at - self.now_ms, Event::Input(node, life, Box::new(input)));
    }

    pub fn deploy(&mut self, node: usize, split: Option<u16>) {
        self.deploy_sheet(node, small_sheet(), split);
    }
    pub fn deploy_large(&mut self, node: usize) {
        self.deploy_sheet(node, large_sheet(), None);
    }

    fn deploy_sheet(&mut self, node: usize, sheet: ModelSheet, split: Option<u16>) {
        if node >= self.nodes.len() || self.nodes[node].core.is_none() {
            return;
        }
        let drawn = u128::from(self.draw(u64::MAX));
        let (wish, mut effects) = (Wish { split, context: None, streams: 1, place: Vec::new() }, Vec::new());
        let _ = self.core(node).deploy(drawn, sheet, wish, &mut effects);
        self.perform(node, effects);
    }

    pub fn undeploy(&mut self, node: usize) {
        let Some(core) = self.nodes.get_mut(node).and_then(|node| node.core.as_mut()) else { return };
        let live = core.directory().deployments().find(|record| !record.is_deleted()).map(|record| record.id);
        let mut effects = Vec::new();
        if let Some(id) = live {
            core.undeploy(id, &mut effects).expect("it is there");
            self.perform(node, effects);
        }
    }

    /// Runs the world for so long.
    pub fn run(&mut self, ms: u64) {
        let end = self.now_ms + ms;
        loop {
            let wake = |node: &Node| node.core.as_ref().map(|core| core.wake_at().0.div_ceil(1_000_000).max(node.frozen_until));
            let timer = (0..self.nodes.len()).filter_map(|index| Some((wake(&self.nodes[index])?, index))).min();
            let event = self.events.keys().next().copied();
            match (timer, event) {
                (_, Some(key)) if key.0 <= end && timer.is_none_or(|timer| key.0 <= timer.0) => {
                    let event = self.events.remove(&key).expect("just seen");
                    self.now_ms = self.now_ms.max(key.0);
                    self.happen(event);
                }
                (Some((at, node)), _) if at <= end => {
                    self.now_ms = self.now_ms.max(at);
                    let wall = self.wall(node);
                    self.step(node, Input::Wall(wall));
                }
                _ => break,
            }
        }
        self.now_ms = end;
    }

    fn happen(&mut self, event: Event) {
        let (Event::Input(node, boot, _) | Event::Load(node, boot, ..) | Event::Probe(node, boot, ..)) = event;
        if self.nodes[node].core.is_none() || self.nodes[node].boot != boot {
            return; // for a life that is over
        }
        if self.nodes[node].frozen_until > self.now_ms {
            let ms = self.nodes[node].frozen_until - self.now_ms;
            return self.later(ms, event);
        }
        match event {
            Event::Input(node, _, input) => self.step(node, *input),
            Event::Load(node, _, id, life, state) => {
                if let Some(shard) = self.nodes[node].shards.get_mut(&id).filter(|shard| shard.life == life) {
                    shard.state = state;
                    self.report(node, id);
                }
            }
            Event::Probe(node, _, deployment, plan) => {
                let wired = |stage: &crate::plan::Stage| {
                    let holder = self.index(stage.node);
                    let shard = self.nodes[holder].shards.get(&deployment);
                    (holder == node || self.joined(node, holder))
                        && shard.is_some_and(|shard| shard.plan == plan.hash() && shard.state == ShardState::Wired)
                };
                let outcome = if plan.stages().iter().all(wired) { Ok(()) } else { Err("a stage is gone".to_owned()) };
                self.step(node, Input::Probed { deployment, plan: plan.hash(), outcome });
            }
        }
    }

    fn report(&mut self, node: usize, id: DeploymentId) {
        let shard = &self.nodes[node].shards[&id];
        let report = ShardReport {
            deployment: id,
            plan: shard.plan,
            node: self.id(node),
            boot: BootId(self.nodes[node].boot),
            layers: shard.layers,
            state: shard.state.clone(),
        };
        self.step(node, Input::MyShard(report));
        self.mine(node);
    }

    fn mine(&mut self, node: usize) {
        let in_memory = |shard: &&Shard| matches!(shard.state, ShardState::Loaded | ShardState::Wired);
        let held = |(id, shard): (&DeploymentId, &Shard)| {
            Some(shard).filter(in_memory).map(|shard| HeldShard { deployment: *id, layers: shard.layers })
        };
        let shards = self.nodes[node].shards.iter().filter_map(held).collect();
        let models = self.record(node).models;
        self.step(node, Input::Mine { models, shards, state: NodeState::Up });
    }

    pub fn step(&mut self, node: usize, input: Input) {
        let (now, mut effects) = (self.now(), Vec::new());
        self.steps += 1;
        if let Some(core) = self.nodes[node].core.as_mut() {
            core.step(now, input, &mut effects);
            self.perform(node, effects);
        }
    }

    pub fn perform(&mut self, node: usize, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Publish(record) if self.nodes[node].disk_full => {
                    let Record::Deployment(record) = record else { panic!("only deployments are published") };
                    self.step(node, Input::NotSaved { deployment: record.id, why: "disk full".into() });
                }
                Effect::Publish(record) => {
                    self.nodes[node].disk.insert(record.key(), record.clone());
                    self.step(node, Input::Saved(record));
                }
                Effect::Keep(record) if !self.nodes[node].disk_full => {
                    self.nodes[node].disk.insert(record.key(), record);
                }
                Effect::Gossip(record) => self.gossip(node, &record),
                Effect::Introduce(record) => self.gossip(node, &Record::Node(record)),
                Effect::Send { to, message } => self.send(node, to, message),
                Effect::Load { deployment, plan } => self.load(node, deployment, &plan, ShardState::Loaded),
                Effect::Adopt { deployment, plan } => self.load(node, deployment, &plan, ShardState::Wired),
                Effect::Retire(deployment) => {
                    self.nodes[node].shards.remove(&deployment);
                    self.mine(node);
                }
                Effect::Probe { deployment, plan } => {
                    let (ms, boot) = (5 + self.draw(50), self.nodes[node].boot);
                    self.later(ms, Event::Probe(node, boot, deployment, plan));
                }
                Effect::Notice(notice) => self.notices.push(notice),
                Effect::Forgotten(gone) => self.nodes[node].forgotten.push(gone),
                Effect::Erase(key) => {
                    self.nodes[node].disk.remove(&key);
                }
                Effect::Keep(_) | Effect::Fenced { .. } | Effect::NodeGone(_) => {}
            }
        }
    }

    fn gossip(&mut self, from: usize, record: &Record) {
        self.check_on_disk(from, record);
        for to in 0..self.nodes.len() {
            if to != from && self.joined(from, to) && self.draw(10) > 0 {
                let (ms, boot) = (1 + self.draw(80), self.nodes[to].boot);
                self.later(ms, Event::Input(to, boot, Box::new(Input::Gossip(record.clone()))));
            }
        }
    }

    fn send(&mut self, from: usize, to: NodeId, message: Message) {
        if let Message::Records(records) = &message {
            records.clone().iter().for_each(|record| self.check_on_disk(from, record));
        }
        let (from_id, to) = (self.id(from), self.index(to));
        assert_ne!(from, to, "nobody sends to itself");
        if !self.joined(from, to) || self.draw(20) == 0 {
            return;
        }
        let boot = self.nodes[to].boot;
        for _ in 0..1 + u64::from(self.draw(20) == 0) {
            let ms = 1 + self.draw(30);
            self.later(ms, Event::Input(to, boot, Box::new(Input::Heard { from: from_id, message: message.clone() })));
        }
    }

    /// R1: a version is told only once its author has it on disk. Whoever tells it first is its author.
    fn check_on_disk(&mut self, from: usize, record: &Record) {
        let Record::Deployment(told) = record else { return };
        if self.heard_of.insert((told.id, told.version)) {
            let saved = self.nodes[from].disk.get(&record.key());
            let Some(Record::Deployment(saved)) = saved else { panic!("{told:?} was told before it was saved") };
            assert!(saved.version >= told.version, "{told:?} was told before it was saved");
        }
    }

    fn load(&mut self, node: usize, id: DeploymentId, plan: &Plan, until: ShardState) {
        let (_, stage) = plan.stage_of(self.id(node)).expect("only for its own nodes");
        self.sequence += 1;
        let life = self.sequence;
        let known =
            self.nodes[node].shards.get(&id).filter(|shard| shard.plan == plan.hash() && !matches!(shard.state, ShardState::Failed { .. }));
        let held = known.is_some_and(|shard| matches!(shard.state, ShardState::Loaded | ShardState::Wired));
        let state = match (known, held) {
            (Some(shard), true) => shard.state.clone(),
            _ => ShardState::Loading { done_bytes: 0, all_bytes: 100 },
        };
        if !held {
            self.loads += 1;
        }
        self.nodes[node].shards.insert(id, Shard { plan: plan.hash(), layers: stage.layers, state, life });
        let boot = self.nodes[node].boot;
        let ms = if held { 5 } else { 20 + self.draw(300) };
        let then = if self.loads_fail { ShardState::Failed { why: "no".into(), retry: true } } else { until };
        self.later(ms, Event::Load(node, boot, id, life, then));
        self.report(node, id);
    }

    pub fn deployments_on_disk(&self, node: usize) -> usize {
        self.nodes[node].disk.keys().filter(|key| matches!(key, RecordKey::Deployment(_))).count()
    }
    pub fn nodes_on_disk(&self, node: usize) -> usize {
        self.nodes[node].disk.keys().filter(|key| matches!(key, RecordKey::Node(_))).count()
    }
    /// Nodes that its carrier was told to dial no more.
    pub fn forgotten(&self, node: usize) -> &[NodeId] {
        &self.nodes[node].forgotten
    }
    /// An empty disk, as on another machine.
    pub fn wipe(&mut self, node: usize) {
        self.nodes[node].disk.clear();
    }
    pub fn record_count(&mut self, node: usize) -> usize {
        self.core(node).directory().deployments().count()
    }
    pub fn shard_count(&self, node: usize) -> usize {
        self.nodes[node].shards.len()
    }
    pub fn only_record(&mut self, node: usize) -> DeploymentRecord {
        self.core(node).directory().deployments().next().expect("a deployment").clone()
    }

    /// Every live node knows the same, and what is deployed answers through stages that are there.
    pub fn check_agreed(&mut self) {
        let live: Vec<usize> = (0..self.nodes.len()).filter(|&node| self.nodes[node].core.is_some()).collect();
        let records = |world: &mut Self, node| world.core(node).directory().deployments().cloned().collect::<Vec<_>>();
        let agreed = records(self, live[0]);
        for &node in &live[1..] {
            assert_eq!(agreed, records(self, node), "n{} and n{node} disagree", live[0]);
        }
        for record in agreed.iter().filter(|record| !record.is_deleted()) {
            // A wish for more stages than nodes may wait; a shard that was made to panic may be given up.
            if matches!(record.status, DeploymentStatus::Failed { .. })
                || record.wish.split.is_some_and(|split| usize::from(split) > live.len())
            {
                continue;
            }
            assert_eq!(record.status, DeploymentStatus::Ready, "{:?}", self.notices);
            let plan = record.plan.as_ref().expect("ready");
            for stage in plan.stages() {
                let holder = self.index(stage.node);
                let shard = self.nodes[holder].shards.get(&record.id).expect("its node has a shard");
                assert_eq!((shard.plan, shard.layers, &shard.state), (plan.hash(), stage.layers, &ShardState::Wired));
            }
        }
        for record in agreed.iter().filter(|record| record.is_deleted()) {
            assert!(self.nodes.iter().all(|node| !node.shards.contains_key(&record.id)), "a deleted deployment keeps memory");
        }
    }
}
