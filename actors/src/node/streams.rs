//! The streams that this node owns: started on a client's request or as a probe, told what may end them.

use std::collections::BTreeMap;

use actix::prelude::*;
use mesh_core::deployments::Input;
use mesh_core::generation::{Attempt, GenerationRequest, Sampling, StreamError};
use mesh_core::ids::{DeploymentId, NodeId, PlanHash, StreamId};
use mesh_core::plan::Plan;
use mesh_core::records::{DeploymentStatus, NodeState};

use super::NodeActor;
use crate::handle::{Generation, GenerationEvent};
use crate::router::Router;
use crate::stream::{StreamActor, StreamEnded, StreamNews, StreamSetup};

/// Generations that one node owns at most.
pub const STREAMS_MAX: usize = 256;

/// A running stream.
struct Running {
    actor: Addr<StreamActor>,
    deployment: DeploymentId,
    plan: PlanHash,
    nodes: Vec<NodeId>,
}

/// Streams by name.
#[derive(Default)]
pub(super) struct Streams {
    running: BTreeMap<StreamId, Running>,
    /// Told when their mailbox has room.
    untold: Vec<(StreamId, StreamNews)>,
}

impl Streams {
    pub fn node_gone(&mut self, node: NodeId) {
        self.tell(StreamNews::NodeDown(node), |running| running.nodes.contains(&node));
    }

    /// Streams through another plan than the one in force are over; all are where the deployment was deleted.
    pub fn fenced(&mut self, deployment: DeploymentId, plan: Option<PlanHash>, deleted: bool) {
        let news = if deleted { StreamNews::Undeployed } else { StreamNews::Replanned };
        self.tell(news, |running| running.deployment == deployment && Some(running.plan) != plan);
    }

    pub fn shut_down(&mut self) {
        self.tell(StreamNews::ShuttingDown, |_| true);
    }

    fn tell(&mut self, news: StreamNews, whom: impl Fn(&Running) -> bool) {
        let concerned: Vec<StreamId> = self.running.iter().filter(|entry| whom(entry.1)).map(|entry| *entry.0).collect();
        self.untold.extend(concerned.into_iter().map(|stream| (stream, news.clone())));
        self.tell_untold();
    }

    fn tell_untold(&mut self) {
        let running = &self.running;
        self.untold.retain(|(stream, news)| match running.get(stream) {
            Some(running) => matches!(running.actor.try_send(news.clone()), Err(SendError::Full(_))),
            None => false,
        });
    }

    /// Tries again what could not be told, and forgets streams whose actor is gone without a word (a panic).
    pub fn look_after(&mut self, router: &Router) {
        self.tell_untold();
        self.running.retain(|stream, running| {
            let alive = running.actor.connected();
            if !alive {
                router.remove_stream(*stream);
            }
            alive
        });
    }
}

impl NodeActor {
    /// Starts a generation for a client.
    pub(super) fn generate(
        &mut self,
        deployment: DeploymentId,
        request: GenerationRequest,
        ctx: &mut Context<Self>,
    ) -> Result<Generation, StreamError> {
        let not_ready = |why: String| Err(StreamError::NotReady { why });
        if self.state != NodeState::Up {
            return Err(StreamError::ShuttingDown);
        }
        let Some(record) = self.core.directory().deployment(deployment).filter(|record| !record.is_deleted()) else {
            return not_ready(format!("there is no deployment {deployment} (any more)"));
        };
        let plan = match (&record.status, &record.plan) {
            (DeploymentStatus::Ready, Some(plan)) => plan.clone(),
            (status, _) => return not_ready(in_words(status)),
        };
        if request.prompt.is_empty() {
            return not_ready("the prompt has no tokens".into());
        }
        if self.streams.running.len() >= STREAMS_MAX {
            return not_ready(format!("this node runs {STREAMS_MAX} answers already: try again when one has ended"));
        }
        Ok(self.launch_stream(deployment, plan, request, ctx))
    }

    fn launch_stream(&mut self, deployment: DeploymentId, plan: Plan, request: GenerationRequest, ctx: &mut Context<Self>) -> Generation {
        let stream = StreamId(self.parts.entropy.draw());
        let nodes: Vec<NodeId> = plan.stages().iter().map(|stage| stage.node).collect();
        let name = |node: &NodeId| self.core.directory().node(*node).map(|record| (*node, record.name.clone()));
        let hash = plan.hash();
        let (actor, generation) = StreamActor::launch(StreamSetup {
            deployment,
            stream,
            attempt: Attempt { takeover: 0, owner: self.parts.me.node, boot: self.core.me().boot, counter: 1 },
            request,
            names: nodes.iter().filter_map(name).collect(),
            plan,
            clock: self.parts.clock.clone(),
            carrier: self.parts.carrier.clone(),
            router: self.parts.router.clone(),
            limits: self.parts.stream_limits,
            ended: ctx.address().recipient(),
        });
        self.streams.running.insert(stream, Running { actor, deployment, plan: hash, nodes });
        generation
    }

    /// P6: a deployment is ready after a real token made the full round. The probe is an ordinary stream.
    pub(super) fn probe(&mut self, deployment: DeploymentId, plan: Plan, ctx: &mut Context<Self>) {
        let hash = plan.hash();
        let vocabulary = self.core.directory().deployment(deployment).map_or(1, |record| record.sheet.vocabulary);
        let request = GenerationRequest {
            prompt: vec![1.min(vocabulary.saturating_sub(1))],
            sampling: Sampling::default(),
            end_ids: Vec::new(),
            max_tokens: 1,
        };
        let mut generation = self.launch_stream(deployment, plan, request, ctx);
        let outcome = async move {
            while let Some(event) = generation.events.recv().await {
                match event {
                    GenerationEvent::Token { .. } => {}
                    GenerationEvent::Finished { .. } => return Ok(()),
                    GenerationEvent::Failed(error) => return Err(error.to_string()),
                }
            }
            Err("the probe ended without a word".to_owned())
        };
        ctx.spawn(outcome.into_actor(self).map(move |outcome, actor, ctx| {
            actor.step(Input::Probed { deployment, plan: hash, outcome }, ctx);
        }));
    }
}

/// Why a deployment does not answer now.
fn in_words(status: &DeploymentStatus) -> String {
    match status {
        DeploymentStatus::Planning => "it is being placed: try again in a moment".into(),
        DeploymentStatus::Loading { plan } => format!("{} nodes are loading it: try again in a moment", plan.stages().len()),
        DeploymentStatus::Starting => "its stages are connecting: try again in a moment".into(),
        DeploymentStatus::Ready => "it has no plan".into(),
        DeploymentStatus::Waiting { why, .. } | DeploymentStatus::Failed { why } => why.clone(),
    }
}

impl Handler<StreamEnded> for NodeActor {
    type Result = ();
    fn handle(&mut self, StreamEnded { stream, error }: StreamEnded, _: &mut Self::Context) {
        if let Some(error) = error {
            tracing::info!(?stream, %error, "a stream broke");
        }
        self.streams.running.remove(&stream);
    }
}
