//! Shards of one toy deployment on the nodes of a world in memory, without node actors: loaded, wired, ready for streams.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use mesh_core::generation::{Attempt, GenerationRequest};
use mesh_core::ids::{BootId, DeploymentId, NodeId, StreamId};
use mesh_core::model::{Layers, ModelSheet};
use mesh_core::plan::{Numerics, Plan, Stage};
use mesh_core::ports::{Channels, EngineOptions};
use mesh_core::toy::ToyModels;
use mesh_core::wire::ShardState;
use mesh_core::{stage, stream};

use super::{MemoryCarrier, MemoryLanes, MemoryNet, Stopwatch};
use crate::handle::Generation;
use crate::router::Router;
use crate::shard::{ShardActor, ShardNews, ShardPorts, ShardSetup};
use crate::shard_inlet::ShardHandle;
use crate::stream::{StreamActor, StreamEnded, StreamSetup};
use crate::workers::Threads;

/// What a cluster is made of.
#[derive(Clone)]
pub struct ClusterShape {
    /// The model.
    pub sheet: ModelSheet,
    /// Nodes.
    pub nodes: u8,
    /// Tokens of a stream.
    pub context: u32,
    /// Bytes of caches of each shard.
    pub kv_bytes_max: u64,
    /// Bounds of stages.
    pub stage: stage::Limits,
    /// Bounds of streams.
    pub stream: stream::Limits,
}

/// See the module's head. Lives inside an actix system.
pub struct Cluster {
    shape: ClusterShape,
    /// The lanes, to be pulled.
    pub lanes: Arc<MemoryLanes>,
    /// The control connections, to be cut.
    pub net: Arc<MemoryNet>,
    nodes: Vec<Node>,
    plan: Option<Plan>,
    streams: u128,
    ear: Addr<Ear>,
    clock: Arc<Stopwatch>,
}

struct Node {
    router: Arc<Router>,
    carrier: Arc<MemoryCarrier>,
    shard: ShardHandle,
    actor: Addr<ShardActor>,
}

/// Takes news that nobody waits for.
struct Ear;

impl Actor for Ear {
    type Context = Context<Self>;
}
impl Handler<ShardNews> for Ear {
    type Result = ();
    fn handle(&mut self, _: ShardNews, _: &mut Self::Context) {}
}
impl Handler<StreamEnded> for Ear {
    type Result = ();
    fn handle(&mut self, _: StreamEnded, _: &mut Self::Context) {}
}

const DEPLOYMENT: DeploymentId = DeploymentId(0xd0);

impl Cluster {
    /// Shards on every node, with models from `models(node)`; nothing is loaded yet.
    ///
    /// # Panics
    /// If the system gives no threads.
    pub fn new(shape: ClusterShape, models: impl Fn(u8) -> ToyModels) -> Self {
        let (net, lanes, clock) = (Arc::new(MemoryNet::default()), Arc::new(MemoryLanes::default()), Arc::new(Stopwatch::start()));
        let ear = Ear.start();
        let nodes = (0..shape.nodes)
            .map(|index| {
                let router = Arc::new(Router::new());
                let carrier = net.join(Self::node(index), router.clone(), Box::new(|_, _| ()));
                router.answer_through(carrier.clone());
                let setup = ShardSetup {
                    deployment: DEPLOYMENT,
                    me: Self::node(index),
                    boot: BootId(1),
                    sheet: shape.sheet.clone(),
                    ports: ShardPorts {
                        clock: clock.clone(),
                        carrier: carrier.clone(),
                        channels: lanes.clone() as Arc<dyn Channels>,
                        models: Arc::new(models(index)),
                        workers: Arc::new(Threads),
                    },
                    router: router.clone(),
                    limits: shape.stage,
                    news: ear.clone().recipient(),
                };
                let (actor, shard) = ShardActor::launch(setup).expect("a thread");
                Node { router, carrier, shard, actor }
            })
            .collect();
        Self { shape, lanes, net, nodes, plan: None, streams: 0, ear, clock }
    }

    /// Node `index`.
    #[must_use]
    pub fn node(index: u8) -> NodeId {
        NodeId([index + 1; 32])
    }

    /// The shard on node `index`.
    #[must_use]
    pub fn shard(&self, index: usize) -> &ShardHandle {
        &self.nodes[index].shard
    }

    /// The actor of the shard on node `index`.
    #[must_use]
    pub fn actor(&self, index: usize) -> &Addr<ShardActor> {
        &self.nodes[index].actor
    }

    /// A plan that cuts the layers before each of `cuts`, over the first nodes.
    ///
    /// # Panics
    /// If the cuts make no chain.
    #[must_use]
    pub fn plan(&self, cuts: &[u16]) -> Plan {
        let ends = cuts.iter().copied().chain([self.shape.sheet.layer_count()]);
        let mut first = 0;
        let mut stages = Vec::new();
        for (index, end) in ends.enumerate() {
            let node = Self::node(u8::try_from(index).expect("few nodes"));
            stages.push(Stage { node, layers: Layers::new(first, end) });
            first = end;
        }
        Plan::new(&self.shape.sheet, stages, self.shape.context, 8, Numerics::default()).expect("a chain")
    }

    /// Loads a plan on its nodes, puts it in force and waits until all lanes are up.
    ///
    /// # Panics
    /// If that takes ten seconds, or a shard fails.
    pub async fn deploy(&mut self, plan: &Plan) {
        let options =
            EngineOptions { threads: 1, numerics: plan.numerics(), context: plan.context(), kv_bytes_max: self.shape.kv_bytes_max };
        for index in 0..plan.stages().len() {
            self.nodes[index].shard.load(plan, options).expect("the queue is empty");
        }
        self.wait_for(plan, |state| matches!(state, ShardState::Loaded | ShardState::Wired)).await;
        for index in 0..plan.stages().len() {
            self.nodes[index].shard.adopt(plan).expect("the queue is empty");
        }
        self.wait(plan, &ShardState::Wired).await;
        self.plan = Some(plan.clone());
    }

    /// Waits until every shard of `plan` is in `state`.
    ///
    /// # Panics
    /// If that takes ten seconds, or a shard fails.
    pub async fn wait(&self, plan: &Plan, state: &ShardState) {
        self.wait_for(plan, |is| is == state).await;
    }

    async fn wait_for(&self, plan: &Plan, there: impl Fn(&ShardState) -> bool) {
        for index in 0..plan.stages().len() {
            let mut view = self.nodes[index].shard.watch();
            let waited = view.wait_for(|view| {
                assert!(!matches!(view.state, ShardState::Failed { .. }), "shard {index}: {:?}", view.state);
                view.plan.is_some_and(|(hash, _)| hash == plan.hash()) && there(&view.state)
            });
            let waited = actix::clock::timeout(Duration::from_secs(10), waited).await.map(drop);
            assert!(waited.is_ok(), "shard {index} is still {:?}", self.nodes[index].shard.report());
        }
    }

    /// Asks node `owner`.
    ///
    /// # Panics
    /// If nothing is deployed.
    pub fn ask(&mut self, owner: u8, request: GenerationRequest) -> (Addr<StreamActor>, Generation) {
        self.streams += 1;
        let node = &self.nodes[usize::from(owner)];
        StreamActor::launch(StreamSetup {
            deployment: DEPLOYMENT,
            plan: self.plan.clone().expect("something is deployed"),
            stream: StreamId(self.streams),
            attempt: Attempt { takeover: 0, owner: Self::node(owner), boot: BootId(1), counter: 1 },
            request,
            names: BTreeMap::new(),
            clock: self.clock.clone(),
            carrier: node.carrier.clone(),
            router: node.router.clone(),
            limits: self.shape.stream,
            ended: self.ear.clone().recipient(),
        })
    }

    /// Waits until no shard has a stream.
    ///
    /// # Panics
    /// If that takes longer than a second (F104).
    pub async fn quiet(&self) {
        for _ in 0..100 {
            if self.nodes.iter().all(|node| node.shard.seen().streams == 0 && node.shard.seen().kv_bytes == 0) {
                return;
            }
            actix::clock::sleep(Duration::from_millis(10)).await;
        }
        panic!("streams are left: {:?}", self.nodes.iter().map(|node| node.shard.seen()).collect::<Vec<_>>());
    }

    /// Ends every shard and waits for their threads.
    pub async fn end(self) {
        for node in &self.nodes {
            let _ = node.actor.send(crate::shard::Retire).await;
            node.shard.ended().await;
        }
    }
}
