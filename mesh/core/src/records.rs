//! What nodes tell each other and keep on disk: node records and deployment records.
//!
//! A record is written by one author at a time and versioned; the greater version wins, wherever it is heard and
//! in whatever order. Merging is therefore commutative and idempotent: a lost message only costs time. How they travel, and
//! what becomes of kinds that this program does not know, is in [`envelope`].

pub mod envelope;

pub use envelope::{OtherRecord, Record, RecordKey};

use serde::{Deserialize, Serialize};

use crate::ids::{BootId, DeploymentId, NodeId, PlanHash};
use crate::lifetimes::Wall;
use crate::links::{Interface, Path};
use crate::model::{Contents, HeldModel, Layers, ModelSheet};
use crate::plan::{Plan, Stage};

/// What a node says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Who.
    pub node: NodeId,
    /// The name that its owner gave it; the host name by default. For people: two nodes may share one.
    pub name: String,
    /// Which of its lives.
    pub boot: BootId,
    /// Counts its starts; written to disk before joining (R15).
    pub incarnation: u64,
    /// Counts the versions of this record within one incarnation.
    pub version: u64,
    /// What it is doing.
    pub state: NodeState,
    /// When it last said that it runs, by its own wall clock: renewed every hour. In a life that has just begun it is what
    /// the life before said last.
    pub alive: Wall,
    /// When it last had another node beside it, by its own wall clock; `None` if never.
    pub in_touch: Option<Wall>,
    /// What it can hold and how fast it is.
    pub capacity: Capacity,
    /// Hash of the bits that its kernels give for a fixed probe (N1).
    pub numerics_class: u64,
    /// libp2p multiaddresses under which it can be dialled.
    pub addresses: Vec<String>,
    /// Models whose files it can read.
    pub models: Vec<HeldModel>,
    /// Shards in its memory.
    pub shards: Vec<HeldShard>,
    /// Its network interfaces, those that it would use first in front.
    pub interfaces: Vec<Interface>,
    /// The best link to each node with a greater id, as measured.
    pub paths: Vec<Path>,
}

impl NodeRecord {
    /// Greater wins: a later life; then that this life was forgotten; then a later version.
    #[must_use]
    pub fn order(&self) -> (u64, bool, u64) {
        (self.incarnation, self.state == NodeState::Forgotten, self.version)
    }

    /// Whether this life is over, by its own word or a person's.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.state, NodeState::Left | NodeState::Forgotten)
    }
}

/// What a node says it is doing. That it does not answer is for others to find out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// Holds shards and takes more.
    Up,
    /// Is about to leave: takes nothing new.
    Leaving,
    /// Left on purpose.
    Left,
    /// Somebody said to forget this life of it (F36). Said by others: the node itself, if it is there after all, answers with
    /// a later incarnation.
    Forgotten,
}

/// What a node can hold and how fast it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Capacity {
    /// Bytes it lends to models: weights, caches, activations, journals.
    pub memory_bytes: u64,
    /// Bytes a second that its compute can read from memory, measured. Zero = not measured.
    pub memory_bandwidth: u64,
    /// Floating-point (or 8-bit multiply-add) operations a second in a matrix product, measured. Zero = not measured.
    pub flops: u64,
    /// Compute threads it lends.
    pub threads: u16,
}

/// A shard in a node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldShard {
    /// Of which deployment.
    pub deployment: DeploymentId,
    /// The layers whose weights are in memory.
    pub layers: Layers,
}

/// The wish "keep model M answering", and the plan that fulfils it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeploymentRecord {
    /// Which.
    pub id: DeploymentId,
    /// The model's table of contents.
    pub sheet: ModelSheet,
    /// What the deployed copy's files hold, once its coordinator knows: nodes whose copies hold something else take no part.
    pub contents: Option<Contents>,
    /// What the user asked for.
    pub wish: Wish,
    /// Who wrote this version, and the order of versions.
    pub version: PlanId,
    /// The plan in force, if there is one.
    pub plan: Option<Plan>,
    /// How it goes.
    pub status: DeploymentStatus,
    /// When the user deleted it, by the wall clock of the node that was asked: beats every version (R16).
    pub deleted: Option<Wall>,
}

impl DeploymentRecord {
    /// The total order of R1 and R16: deletion (the later one), then term, epoch, revision, author, plan hash.
    #[must_use]
    pub fn order(&self) -> (Option<Wall>, PlanId, Option<PlanHash>) {
        (self.deleted, self.version, self.plan.as_ref().map(Plan::hash))
    }

    /// Whether this is a tombstone.
    #[must_use]
    pub fn is_deleted(&self) -> bool {
        self.deleted.is_some()
    }
}

/// Names one version of a deployment record. Ordered as its fields stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PlanId {
    /// Counts a deployment's coordinators.
    pub term: u64,
    /// Counts a deployment's plans.
    pub epoch: u64,
    /// Counts changes of status within an epoch.
    pub revision: u64,
    /// The author.
    pub coordinator: NodeId,
}

/// What the user asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wish {
    /// Exactly this many stages; `None` leaves it to the planner.
    pub split: Option<u16>,
    /// Tokens a stream may have; `None` = as many as the model was made for and memory allows.
    pub context: Option<u32>,
    /// Streams of full context that run side by side.
    pub streams: u16,
    /// Exactly these stages on these nodes, first to last; empty leaves it to the planner.
    pub place: Vec<Stage>,
}

/// How a deployment goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeploymentStatus {
    /// Not placed yet, or being placed again.
    Planning,
    /// Nodes are loading the plan that is about to be published.
    Loading {
        /// The stages being loaded, first to last.
        plan: Plan,
    },
    /// The plan is published; stages are connecting and a first token is on its way (P6).
    Starting,
    /// A token came out.
    Ready,
    /// No plan fits the nodes that are there. It is tried again when nodes change.
    Waiting {
        /// Bytes that are missing over all; zero if memory is not what is missing.
        missing_bytes: u64,
        /// What is missing, in a sentence, node by node where that helps.
        why: String,
    },
    /// Gave up after repeated failures (F28); deploying again starts afresh.
    Failed {
        /// The last failure.
        why: String,
    },
}
