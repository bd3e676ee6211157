//! How worlds and lives begin.

use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex};

use mesh_actors::handle::NodeHandle;
use mesh_actors::node::{NodeActor, NodeParts};
use mesh_actors::router::Router;
use mesh_actors::testing::Inline;
use mesh_core::ids::{BootId, NodeId};
use mesh_core::lifetimes::{Lifetimes, Wall};
use mesh_core::model::{LayerCost, ModelSheet};
use mesh_core::ports::{Entropy, Models};
use mesh_core::records::{Capacity, NodeRecord, NodeState};
use mesh_core::toy::{self, ToyModels};
use mesh_core::wire::PROTOCOL_VERSION;
use mesh_core::{stage, stream};
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio::time::Instant;

use super::{Flag, Place, Process, World};
use crate::carrier::{Carrier, address_of};
use crate::dice::Seed;
use crate::disk::{Disk, DiskStore};
use crate::ground::Ground;
use crate::happening::{Happening, Trace};
use crate::models::WatchedModels;
use crate::net::links::Links;
use crate::net::{Life, Net};
use crate::outside::Outside;
use crate::ports::Ports;
use crate::scenario::{Discovery, EngineKind, ModelLine, Scenario};

/// Carrier events that wait for a node at most, as live.
const EVENTS_MAX: usize = 4_096;
/// Ids of the toy.
const VOCABULARY: u32 = 1_000;
/// A stage answers an `Open` within this, as live.
const STREAM_OPEN_MS: u64 = 3_000;

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be positive and small")]
fn whole(value: f64) -> u64 {
    value.clamp(0.0, 1e18) as u64
}

/// The toy with the scenario's costs.
fn toy_sheet(model: &ModelLine, vocabulary: u32) -> ModelSheet {
    let mut sheet = toy::sheet(model.layers, model.width, vocabulary, model.context);
    let cost = LayerCost { weight_bytes: whole(model.layer_mb * 1e6), flops: whole(model.layer_mflop * 1e6), kv_bytes: model.kv_bytes };
    sheet.layers.fill(cost);
    sheet
}

impl World {
    /// A world that has not begun. The scenario's random faults are drawn already.
    pub fn new(scenario: Scenario, seed: Seed, text: bool) -> Self {
        let machines = scenario.machines();
        let names: Vec<String> = machines.iter().map(|machine| machine.name.clone()).collect();
        let mut dice = seed.stream("keys").dice();
        let mut keys: Vec<NodeId> = machines
            .iter()
            .map(|_| {
                let mut key = [0; 32];
                key.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&dice.draw().to_le_bytes()));
                NodeId(key)
            })
            .collect();
        let indices = scenario.places();
        for (place, machine) in machines.iter().enumerate() {
            if let Some(&of) = machine.line.clone_of.as_ref().and_then(|name| indices.get(name)) {
                keys[place] = keys[of];
            }
        }
        let trace = Trace::new(names.clone(), text);
        let net = Net::new(seed, Links::of(&scenario), trace, text);
        let ground = Ground::new(net, names, keys);
        let (sheet, other_sheet, story) = models_of(&scenario);
        let driver = Arc::new(Mutex::new(None));
        let outside = Outside::new(scenario.clone(), seed, ground.clone(), sheet.clone());
        let flag = Arc::new(Flag { set: AtomicBool::new(true), driver: driver.clone() });
        let places = machines
            .into_iter()
            .map(|machine| Place {
                disk: Arc::new(Disk::default()),
                failing_loads: Arc::new(AtomicU32::new(machine.line.failing_loads)),
                process: None,
                protocol: machine.line.protocol.unwrap_or(PROTOCOL_VERSION),
                lives: 0,
                wanted: false,
                machine,
            })
            .collect();
        Self {
            scenario,
            seed,
            ground,
            places,
            outside,
            outside_tasks: Box::pin(LocalSet::new()),
            outside_flag: flag,
            driver,
            sheet,
            other_sheet,
            story,
            healed: false,
            over: false,
            began: Instant::now(),
            sleep: Box::pin(tokio::time::sleep(std::time::Duration::ZERO)),
        }
    }

    /// Who asks and looks.
    pub fn outside(&self) -> std::rc::Rc<Outside> {
        self.outside.clone()
    }

    /// What all share.
    pub fn ground(&self) -> Arc<Ground> {
        self.ground.clone()
    }

    /// A machine starts its node, on whatever its disk has.
    pub(super) fn start(&mut self, place: usize) {
        if self.places[place].process.is_some() {
            return;
        }
        if self.places[place].lives == 0
            && let Some(of) = self.places[place].machine.line.clone_of.clone()
            && let Some(of) = self.places.iter().position(|other| other.machine.name == of)
        {
            let from = self.places[of].disk.clone();
            self.places[place].disk.copy(&from);
        }
        let there = &mut self.places[place];
        (there.lives, there.wanted) = (there.lives + 1, true);
        let line = there.machine.line.clone();
        let (router, (events, events_in)) = (Arc::new(Router::new()), mpsc::channel(EVENTS_MAX));
        let node = self.ground.with(|inner| inner.keys[place]);
        let incarnation = there.disk.start(node);
        let protocol = there.protocol;
        let life = self.ground.with(|inner| {
            let life = inner.net.lives.len();
            inner.net.lives.push(Life { place, node, alive: true, frozen: false, router: router.clone(), events });
            inner.net.running[place] = Some(life);
            inner.carriers.push(None);
            inner.net.note(Happening::Started { node: place, life, incarnation, protocol });
            life
        });
        let seed = self.seed.stream(&format!("{} life {}", self.places[place].machine.name, self.places[place].lives));
        let rates = [line.bandwidth_gb_s * 1e9, line.gflops * 1e9, line.disk_mb_s * 1e6];
        let ports = Arc::new(Ports::new(self.ground.clone(), life, place, rates, seed.stream("entropy").dice()));
        let memory_bytes = whole(line.memory_gb * 1e9);
        let models = Arc::new(WatchedModels::new(
            self.files(place),
            self.sheet.clone(),
            self.ground.clone(),
            place,
            memory_bytes,
            self.places[place].failing_loads.clone(),
        ));
        let me = NodeRecord {
            node,
            name: self.places[place].machine.name.clone(),
            boot: BootId(ports.draw()),
            incarnation,
            version: 0,
            state: NodeState::Up,
            alive: Wall::default(),
            in_touch: None,
            capacity: Capacity { memory_bytes, memory_bandwidth: whole(rates[0]), flops: whole(rates[1]), threads: 4 },
            numerics_class: models.numerics_class(),
            addresses: vec![address_of(place)],
            models: models.list(),
            shards: Vec::new(),
            interfaces: Vec::new(),
            paths: Vec::new(),
        };
        let known = self.known(place);
        let mut carrier = Box::new(Carrier::new(life, place, me.clone(), protocol, &known, seed.stream("carrier").dice()));
        carrier.clock_ahead_ns = self.ground.speeds[place].clock_ahead_ns.load(std::sync::atomic::Ordering::Relaxed);
        self.ground.with(|inner| inner.carriers[life] = Some(carrier));
        self.ground.carrier(life, |carrier, net| carrier.elapsed(net));
        self.announce(place);

        let (handle, commands) = NodeHandle::new();
        let world = &self.scenario.world;
        let parts = NodeParts {
            me,
            clock: ports.clone(),
            entropy: ports.clone(),
            store: Arc::new(DiskStore { disk: self.places[place].disk.clone(), life, ground: self.ground.clone() }),
            carrier: ports.clone(),
            channels: ports.clone(),
            models,
            workers: Arc::new(Inline::new(ports)),
            threads: 4,
            router,
            lifetimes: Lifetimes::default(),
            stage_limits: stage::Limits { credit_ms: world.credit_ms, lease_ms: world.lease_ms, ..stage::Limits::default() },
            stream_limits: stream::Limits { token_ms: world.token_ms, open_ms: STREAM_OPEN_MS, ..stream::Limits::default() },
        };
        let tasks = Box::pin(LocalSet::new());
        tasks.spawn_local(async move {
            NodeActor::launch(parts, events_in, commands);
        });
        let flag = Arc::new(Flag { set: AtomicBool::new(true), driver: self.driver.clone() });
        self.places[place].process = Some(Process { life, tasks, flag, frozen: false });
        self.outside.born(place, life, handle);
    }

    /// The machines whose addresses a node knows as it starts.
    fn known(&self, place: usize) -> Vec<usize> {
        match self.scenario.world.discovery {
            Discovery::All => (0..self.places.len()).filter(|other| self.places[*other].process.is_some()).collect(),
            Discovery::Seeds => {
                let seeds = &self.scenario.world.seeds;
                (0..self.places.len()).filter(|other| *other != place && seeds.contains(&self.places[*other].machine.name)).collect()
            }
        }
    }

    /// Those who run hear of one who starts, as by multicast.
    fn announce(&mut self, place: usize) {
        if self.scenario.world.discovery == Discovery::All {
            let others: Vec<usize> = self.places.iter().filter_map(|other| Some(other.process.as_ref()?.life)).collect();
            for life in others {
                self.ground.carrier(life, |carrier, net| carrier.learn(place, 200, net));
            }
        }
    }

    fn files(&self, place: usize) -> Arc<dyn Models> {
        let line = &self.places[place].machine.line;
        match (&self.story, line.files, line.other_files) {
            (_, _, true) => Arc::new(ToyModels::new(vec![self.other_sheet.clone()])),
            (_, false, _) => Arc::new(ToyModels::new(Vec::new())),
            (Some(story), ..) => story.clone(),
            (None, ..) => Arc::new(ToyModels::new(vec![self.sheet.clone()])),
        }
    }
}

/// The model that is deployed, another one of the same name, and the real one if it is wanted.
fn models_of(scenario: &Scenario) -> (ModelSheet, ModelSheet, Option<Arc<dyn Models>>) {
    let toy = toy_sheet(&scenario.model, VOCABULARY);
    let other = toy_sheet(&scenario.model, VOCABULARY + 1);
    match scenario.world.engine {
        EngineKind::Toy => (toy, other, None),
        EngineKind::Story => {
            let (sheet, library) = crate::story::models().expect("a scenario that wants it is refused where it is not");
            (sheet, other, Some(library))
        }
    }
}
