//! The stream actor: the owner of one generation, a thin shell around [`mesh_core::stream`].
//!
//! What stages say reaches it over a bounded queue that the router fills. What comes out goes into an outbox and from there
//! to the client's bounded queue: a token counts as taken when it has left the outbox. So a client that does not read stops
//! the stages at its grant (R5), and never more than a grant and the queue wait in memory. When the client drops its end,
//! every stage is told at once.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use mesh_core::generation::{Attempt, GenerationRequest, StreamError};
use mesh_core::ids::{DeploymentId, NodeId, StreamId};
use mesh_core::plan::Plan;
use mesh_core::ports::{Carrier, Clock};
use mesh_core::stream::{self, Effect, Event, Input, Kind, Stream};
use mesh_core::wire::Message;
use tokio::sync::mpsc;

use crate::handle::{EVENTS_MAX, Generation, GenerationEvent, Timing};
use crate::router::{Router, STREAM_MESSAGES_MAX};

/// Events in the client's queue. The rest of [`EVENTS_MAX`] is the outbox's: a grant, and the last event.
const QUEUE_MAX: usize = EVENTS_MAX / 2;

/// The largest grant whose tokens the outbox has room for.
const GRANT_MAX: u32 = 48;
const _: () = assert!(QUEUE_MAX + GRANT_MAX as usize + 2 <= EVENTS_MAX);

/// A client that has not read the end of its answer after this is not waited for (P4). As long as a stage's lease.
const LINGER: Duration = Duration::from_secs(600);

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
    /// Bounds and deadlines. Grants above 48 are cut to it.
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
    /// The user deleted the deployment.
    Undeployed,
    /// This node leaves.
    ShuttingDown,
}

/// The actor. See the module's head.
pub struct StreamActor {
    stream: StreamId,
    core: Stream,
    clock: Arc<dyn Clock>,
    carrier: Arc<dyn Carrier>,
    router: Arc<Router>,
    ended: Recipient<StreamEnded>,
    heard: Option<mpsc::Receiver<(NodeId, Message)>>,
    client: mpsc::Sender<GenerationEvent>,
    outbox: VecDeque<GenerationEvent>,
    /// Tokens that have left the outbox.
    taken: u32,
    /// A future waits for room in the client's queue.
    waiting: bool,
    timer: Option<SpawnHandle>,
    error: Option<StreamError>,
}

impl StreamActor {
    /// Starts a generation: opens it on every stage. Dropping the returned `Generation` cancels it.
    #[must_use]
    pub fn launch(setup: StreamSetup) -> (Addr<Self>, Generation) {
        let (client, events) = mpsc::channel(QUEUE_MAX);
        let (inlet, heard) = mpsc::channel(STREAM_MESSAGES_MAX);
        let StreamSetup { deployment, plan, stream, attempt, request, names, clock, carrier, router, limits, ended } = setup;
        router.add_stream(stream, inlet);
        let core_setup = stream::Setup { deployment, plan, stream, attempt, request, names };
        let limits = stream::Limits { grant: limits.grant.min(GRANT_MAX), ..limits };
        let actor = Self {
            stream,
            core: Stream::new(core_setup, limits),
            clock,
            carrier,
            router,
            ended,
            heard: Some(heard),
            client,
            outbox: VecDeque::new(),
            taken: 0,
            waiting: false,
            timer: None,
            error: None,
        };
        (actor.start(), Generation { stream, events })
    }

    /// The only way anything happens here: in the core, in order, at a time that was handed in.
    fn step(&mut self, input: Input, ctx: &mut Context<Self>) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let mut effects = Vec::new();
            self.core.step(self.clock.now(), input, &mut effects);
            for effect in effects {
                match effect {
                    Effect::Send { to, message } => {
                        let kind = Kind::of(&message);
                        if let (Err(error), Some(kind)) = (self.carrier.send(to, message), kind) {
                            inputs.push_back(Input::Unsent { to, kind, why: error.to_string() });
                        }
                    }
                    Effect::Emit(event) => self.emit(event),
                }
            }
            if let Some(taken) = self.pump(ctx) {
                inputs.push_back(Input::Taken(taken));
            }
        }
        self.arm(ctx);
        self.rest(ctx);
    }

    fn emit(&mut self, event: Event) {
        let event = match event {
            Event::Token { index, token, logprobs } => GenerationEvent::Token { index, token, logprobs },
            Event::Finished { reason, prefill_ms, decode_ms } => {
                let generated_tokens = u32::try_from(self.core.tokens().len()).unwrap_or(u32::MAX);
                let timing = Timing { prefill_ms, decode_ms, prompt_tokens: self.core.prompt_tokens(), generated_tokens };
                GenerationEvent::Finished { reason, timing }
            }
            Event::Failed(error) => {
                self.error = Some(error.clone());
                GenerationEvent::Failed(error)
            }
        };
        self.outbox.push_back(event);
    }

    /// Moves what fits into the client's queue. Gives the number of tokens taken so far if that changed.
    fn pump(&mut self, ctx: &mut Context<Self>) -> Option<u32> {
        let before = self.taken;
        while !self.waiting && !self.outbox.is_empty() {
            match self.client.try_reserve() {
                Ok(permit) => {
                    let event = self.outbox.pop_front().expect("it is not empty");
                    self.taken += u32::from(matches!(event, GenerationEvent::Token { .. }));
                    permit.send(event);
                }
                Err(mpsc::error::TrySendError::Full(())) => {
                    self.waiting = true;
                    let room = self.client.clone().reserve_owned();
                    ctx.spawn(room.into_actor(self).map(|room, actor, ctx| actor.has_room(room, ctx)));
                }
                Err(mpsc::error::TrySendError::Closed(())) => self.outbox.clear(), // it is cancelled by `closed`
            }
        }
        (self.taken != before).then_some(self.taken)
    }

    fn has_room(&mut self, room: Result<mpsc::OwnedPermit<GenerationEvent>, mpsc::error::SendError<()>>, ctx: &mut Context<Self>) {
        self.waiting = false;
        if let (Ok(permit), Some(event)) = (room, self.outbox.pop_front()) {
            self.taken += u32::from(matches!(event, GenerationEvent::Token { .. }));
            permit.send(event);
        }
        self.step(Input::Taken(self.taken), ctx);
    }

    /// One timer, at the core's next deadline.
    fn arm(&mut self, ctx: &mut Context<Self>) {
        if let Some(timer) = self.timer.take() {
            ctx.cancel_future(timer);
        }
        if let Some(at) = self.core.wake_at() {
            let pause = Duration::from_nanos(at.0.saturating_sub(self.clock.now().0)).max(Duration::from_millis(1));
            self.timer = Some(ctx.run_later(pause, |actor, ctx| {
                actor.timer = None;
                actor.step(Input::Elapsed, ctx);
            }));
        }
    }

    /// Stops once it is over and the client has everything, or does not want it.
    fn rest(&mut self, ctx: &mut Context<Self>) {
        if !self.core.is_over() {
            return;
        }
        self.router.remove_stream(self.stream);
        if self.outbox.is_empty() {
            ctx.stop();
        } else if self.timer.is_none() {
            self.timer = Some(ctx.run_later(LINGER, |_, ctx| ctx.stop()));
        }
    }
}

impl Actor for StreamActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        if let Some(heard) = self.heard.take() {
            let heard = futures::stream::unfold(heard, |mut heard| async move { heard.recv().await.map(|message| (message, heard)) });
            ctx.add_stream(heard);
        }
        let client = self.client.clone();
        let gone = async move { client.closed().await };
        ctx.spawn(gone.into_actor(self).map(|(), actor, ctx| {
            actor.outbox.clear();
            actor.step(Input::Cancel, ctx);
        }));
        self.step(Input::Begin, ctx);
    }

    fn stopping(&mut self, ctx: &mut Self::Context) -> Running {
        if !self.core.is_over() {
            self.step(Input::ShuttingDown, ctx); // the arbiter ends: stages are told while they can be
        }
        Running::Stop
    }

    fn stopped(&mut self, _: &mut Self::Context) {
        self.router.remove_stream(self.stream);
        let ended = StreamEnded { stream: self.stream, error: self.error.take() };
        if self.ended.try_send(ended).is_err() {
            tracing::debug!(stream = %self.stream, "the node did not hear that a stream is over");
        }
    }
}

impl StreamHandler<(NodeId, Message)> for StreamActor {
    fn handle(&mut self, (from, message): (NodeId, Message), ctx: &mut Self::Context) {
        self.step(Input::Heard { from, message }, ctx);
    }

    /// The router forgot us: only when we are over.
    fn finished(&mut self, _: &mut Self::Context) {}
}

impl Handler<StreamNews> for StreamActor {
    type Result = ();
    fn handle(&mut self, news: StreamNews, ctx: &mut Self::Context) {
        let input = match news {
            StreamNews::NodeDown(node) => Input::NodeDown(node),
            StreamNews::Replanned => Input::Replanned,
            StreamNews::Undeployed => Input::Undeployed,
            StreamNews::ShuttingDown => Input::ShuttingDown,
        };
        self.step(input, ctx);
    }
}
