//! How the world outside the arbiter's thread speaks to a node: commands over a bounded queue, answers over one-shots.
//!
//! No `Addr` leaves the arbiter (DESIGN, section 16). A [`NodeHandle`] is `Send + Sync + Clone`, works from any runtime
//! or plain thread, and outlives the node: it then answers [`Gone`].

pub use mesh_core::deployments::Health;
use mesh_core::generation::{FinishReason, GenerationRequest, StreamError, TokenLogprobs};
use mesh_core::ids::{DeploymentId, Digest, NodeId, StreamId};
use mesh_core::links::SeenLink;
use mesh_core::model::{Layers, ModelSheet};
use mesh_core::records::{DeploymentRecord, DeploymentStatus, NodeRecord, Wish};
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

/// Commands that wait for the node at most; more are refused with [`Gone::Busy`].
pub const COMMANDS_MAX: usize = 256;

/// Events of a generation that wait for the client at most. The owner's grant (R5) stays below it.
pub const EVENTS_MAX: usize = 128;

/// The node did not take a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Gone {
    /// It has stopped, or is stopping.
    #[error("the node has stopped")]
    Stopped,
    /// Its command queue is full: try again in a moment.
    #[error("the node has {COMMANDS_MAX} commands waiting")]
    Busy,
}

/// What can be asked of a node.
pub enum Command {
    /// Keep a model answering. The answer comes when the record is on disk and told, not when it is loaded.
    Deploy {
        /// The model's table of contents.
        sheet: ModelSheet,
        /// How.
        wish: Wish,
        /// The deployment's name, or why not.
        reply: oneshot::Sender<Result<DeploymentId, String>>,
    },
    /// Stop and forget a deployment.
    Undeploy {
        /// Which.
        id: DeploymentId,
        /// Done, or why not.
        reply: oneshot::Sender<Result<(), String>>,
    },
    /// Forget a node that is gone for good.
    Forget {
        /// Which.
        node: NodeId,
        /// Done, or why not.
        reply: oneshot::Sender<Result<(), String>>,
    },
    /// What the node sees.
    Status {
        /// A copy.
        reply: oneshot::Sender<NodeStatus>,
    },
    /// What a question needs to know of a deployment, and no more than that: it is asked with each request.
    Find {
        /// The model's name, or the deployment's id.
        name: String,
        /// The deployment, or the names of those that are there.
        reply: oneshot::Sender<Result<Found, Vec<String>>>,
    },
    /// What the planner would do, and why; changes nothing.
    Plan {
        /// The model's table of contents.
        sheet: ModelSheet,
        /// How.
        wish: Wish,
        /// The answer.
        reply: oneshot::Sender<PlanPreview>,
    },
    /// Start a generation on a ready deployment.
    Generate {
        /// Which.
        deployment: DeploymentId,
        /// What is asked.
        request: GenerationRequest,
        /// The running generation, or why it cannot start.
        reply: oneshot::Sender<Result<Generation, StreamError>>,
    },
    /// End streams, tell the others, stop. Answered when done.
    Leave {
        /// Done.
        reply: oneshot::Sender<()>,
    },
}

/// The sending end of a node's command queue.
#[derive(Clone)]
pub struct NodeHandle {
    commands: mpsc::Sender<Command>,
}

impl NodeHandle {
    /// A handle, and the queue that the node actor reads.
    #[must_use]
    pub fn new() -> (Self, mpsc::Receiver<Command>) {
        let (commands, queue) = mpsc::channel(COMMANDS_MAX);
        (Self { commands }, queue)
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, Gone> {
        let (reply, answer) = oneshot::channel();
        self.commands.try_send(command(reply)).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Gone::Busy,
            mpsc::error::TrySendError::Closed(_) => Gone::Stopped,
        })?;
        answer.await.map_err(|_| Gone::Stopped)
    }

    /// See [`Command::Deploy`].
    ///
    /// # Errors
    /// The node is gone. The inner error is the node's own no, in words.
    pub async fn deploy(&self, sheet: ModelSheet, wish: Wish) -> Result<Result<DeploymentId, String>, Gone> {
        self.ask(|reply| Command::Deploy { sheet, wish, reply }).await
    }
    /// See [`Command::Undeploy`].
    ///
    /// # Errors
    /// The node is gone. The inner error is the node's own no, in words.
    pub async fn undeploy(&self, id: DeploymentId) -> Result<Result<(), String>, Gone> {
        self.ask(|reply| Command::Undeploy { id, reply }).await
    }
    /// See [`Command::Forget`].
    ///
    /// # Errors
    /// The node is gone. The inner error is the node's own no, in words.
    pub async fn forget(&self, node: NodeId) -> Result<Result<(), String>, Gone> {
        self.ask(|reply| Command::Forget { node, reply }).await
    }
    /// See [`Command::Status`].
    ///
    /// # Errors
    /// The node is gone.
    pub async fn status(&self) -> Result<NodeStatus, Gone> {
        self.ask(|reply| Command::Status { reply }).await
    }
    /// See [`Command::Find`].
    ///
    /// # Errors
    /// The node is gone. The inner error lists the models that are deployed.
    pub async fn find(&self, name: &str) -> Result<Result<Found, Vec<String>>, Gone> {
        self.ask(|reply| Command::Find { name: name.to_owned(), reply }).await
    }
    /// See [`Command::Plan`].
    ///
    /// # Errors
    /// The node is gone.
    pub async fn plan(&self, sheet: ModelSheet, wish: Wish) -> Result<PlanPreview, Gone> {
        self.ask(|reply| Command::Plan { sheet, wish, reply }).await
    }
    /// See [`Command::Generate`].
    ///
    /// # Errors
    /// The node is gone. The inner error says why the stream cannot start.
    pub async fn generate(&self, deployment: DeploymentId, request: GenerationRequest) -> Result<Result<Generation, StreamError>, Gone> {
        self.ask(|reply| Command::Generate { deployment, request, reply }).await
    }
    /// Answers when the node has stopped: its actor, and with it the end of this queue, is gone.
    pub async fn ended(&self) {
        self.commands.closed().await;
    }
    /// See [`Command::Leave`].
    pub async fn leave(&self) {
        let _ = self.ask(|reply| Command::Leave { reply }).await;
    }
}

/// A running generation. Dropping it cancels: all stages stop and free the cache.
pub struct Generation {
    /// Its name.
    pub stream: StreamId,
    /// What comes out. Closed after `Finished` or `Failed`.
    pub events: mpsc::Receiver<GenerationEvent>,
}

/// What comes out of a generation.
#[derive(Clone, Debug, PartialEq)]
pub enum GenerationEvent {
    /// A token, each once and in order (P1).
    Token {
        /// Counts generated tokens from 0.
        index: u32,
        /// The id.
        token: u32,
        /// If asked for.
        logprobs: Option<TokenLogprobs>,
    },
    /// The last event of a whole answer.
    Finished {
        /// Why it ended.
        reason: FinishReason,
        /// How long the parts took.
        timing: Timing,
    },
    /// The last event of a broken one.
    Failed(StreamError),
}

/// How long the parts of a generation took, by the owner's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize)]
pub struct Timing {
    /// From the request to the first token.
    pub prefill_ms: u64,
    /// From the first token to the last.
    pub decode_ms: u64,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens generated, an end token included.
    pub generated_tokens: u32,
}

/// What a node sees: a copy, taken at once.
#[derive(Clone, Debug, Serialize)]
pub struct NodeStatus {
    /// Itself.
    pub me: NodeId,
    /// Every node it knows, itself included, in order of id.
    pub nodes: Vec<SeenNode>,
    /// Every deployment that was not deleted.
    pub deployments: Vec<SeenDeployment>,
    /// Every link between this node and another that is up, or might be one.
    pub links: Vec<SeenLink>,
    /// Refused connections and other things an operator should know, newest last, each once: at most 32, of the last ten
    /// minutes.
    pub notices: Vec<String>,
}

/// A node as seen from here.
#[derive(Clone, Debug, Serialize)]
pub struct SeenNode {
    /// What it last said about itself.
    pub record: NodeRecord,
    /// How it looks from here.
    pub health: Health,
    /// Why it is suspected, in words.
    pub why: Option<String>,
    /// For how long it has not been seen to run, in milliseconds; none while it runs.
    pub away_ms: Option<u64>,
}

/// A deployment as seen from here.
#[derive(Clone, Debug, Serialize)]
pub struct SeenDeployment {
    /// The newest record.
    pub record: DeploymentRecord,
    /// What this node's own shard of it does, if it has one.
    pub shard: Option<SeenShard>,
    /// While loading, as the coordinator hears it: (node, bytes in memory, bytes to load).
    pub loading: Vec<(NodeId, u64, u64)>,
    /// Nodes whose copy of the model holds something else than the deployed one: in words, by node.
    pub other_copies: Vec<(NodeId, String)>,
}

/// This node's own shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SeenShard {
    /// Layers in memory.
    pub layers: Layers,
    /// Streams with a cache here.
    pub streams: u32,
    /// Bytes of those caches.
    pub kv_bytes: u64,
    /// Steps since the shard started.
    pub steps: u64,
    /// Bytes of weights read from disk since the shard started: stays the same when nothing is reloaded.
    pub loaded_bytes: u64,
}

/// A deployment as a question needs it.
#[derive(Clone, Debug)]
pub struct Found {
    /// Which.
    pub id: DeploymentId,
    /// Of which model.
    pub digest: Digest,
    /// Number of token ids.
    pub vocabulary: u32,
    /// How it goes.
    pub status: DeploymentStatus,
    /// Tokens a stream may have by the plan in force, if there is one.
    pub context: Option<u32>,
}

/// What the planner would do, and why.
#[derive(Clone, Debug, Serialize)]
pub struct PlanPreview {
    /// Stages, predicted rates and reasons, or why nothing fits.
    pub outcome: Result<mesh_core::planner::Planned, mesh_core::planner::NoPlan>,
    /// Names of the nodes.
    pub names: Vec<(NodeId, String)>,
}
