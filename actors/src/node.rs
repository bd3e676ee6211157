//! The node actor: one core ([`Deployments`]), one set of ports, and the shards and streams that run here.
//!
//! Its handlers turn what happens into an [`Input`], step the core and perform the [`Effect`]s; nothing here decides. It
//! never waits for a peer, a shard or a client. Two queues come in from outside (carrier events, commands), both bounded
//! by their senders; the children report through the mailbox. One timer, re-armed after each step.

mod commands;
mod contents;
mod links;
mod notices;
mod shards;
mod status;
mod streams;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use mesh_core::deployments::{Deployments, Effect, Health, Input};
use mesh_core::directory::Directory;
use mesh_core::ids::{NodeId, Time};
use mesh_core::lifetimes::Lifetimes;
use mesh_core::model::HeldModel;
use mesh_core::ports::{Carrier, CarrierEvent, Channels, Clock, Entropy, Models, Store};
use mesh_core::records::{NodeRecord, NodeState, Record};
use mesh_core::wire::Message;
use mesh_core::{stage, stream};
use tokio::sync::mpsc;

use crate::handle::Command;
use crate::router::Router;
use crate::workers::Workers;

/// Messages from shards and streams that wait at most.
const MAILBOX_MAX: usize = 1_024;
/// Nodes known from others that are dialled in one step at most.
const REDIAL_MAX: usize = 64;
/// Addresses of one node that are tried at most.
const ADDRESSES_DIALLED_MAX: usize = 4;
/// Models that a node tells of at most, so that its record stays short enough for gossip.
const MODELS_MAX: usize = 256;
/// Model directories are looked through again for files that a deployment needs, no more often than this.
const SCAN_PAUSE_MS: u64 = 10_000;

/// What a node is made of.
pub struct NodeParts {
    /// What it says about itself: a fresh boot id, an incarnation that is on disk already, models, capacity.
    pub me: NodeRecord,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Randomness for ids.
    pub entropy: Arc<dyn Entropy>,
    /// Records on disk.
    pub store: Arc<dyn Store>,
    /// Control connections.
    pub carrier: Arc<dyn Carrier>,
    /// Tensor lanes.
    pub channels: Arc<dyn Channels>,
    /// Weight files.
    pub models: Arc<dyn Models>,
    /// Where shards and scans run.
    pub workers: Arc<dyn Workers>,
    /// Compute threads of each shard.
    pub threads: u16,
    /// The carrier asks the same router before it makes an event of a message.
    pub router: Arc<Router>,
    /// How long what has ended is remembered: the same on all nodes of a mesh.
    pub lifetimes: Lifetimes,
    /// Bounds and deadlines of a stage.
    pub stage_limits: stage::Limits,
    /// Bounds and deadlines of a stream.
    pub stream_limits: stream::Limits,
}

/// The actor. See the module's head.
pub struct NodeActor {
    parts: NodeParts,
    core: Deployments,
    state: NodeState,
    models: Vec<HeldModel>,
    contents: contents::Known,
    shards: shards::Shards,
    streams: streams::Streams,
    links: links::LinkDesk,
    notices: notices::Notices,
    /// Nodes that were dialled because others told of them, and in which of their lives.
    dialled: BTreeMap<NodeId, u64>,
    scanned: Option<Time>,
    timer: Option<(Time, SpawnHandle)>,
    /// What could not be written in the current step.
    unsaved: Vec<(mesh_core::ids::DeploymentId, String)>,
    queues: Option<(mpsc::Receiver<CarrierEvent>, mpsc::Receiver<Command>)>,
}

impl NodeActor {
    /// Starts a node in the current arbiter. `events` come from the carrier, `commands` from [`crate::handle::NodeHandle`]s.
    pub fn launch(mut parts: NodeParts, events: mpsc::Receiver<CarrierEvent>, commands: mpsc::Receiver<Command>) -> Addr<Self> {
        parts.me.models.truncate(MODELS_MAX);
        let directory = Directory::new(parts.lifetimes, parts.clock.wall());
        let core = Deployments::new(parts.clock.now(), parts.me.clone(), directory, parts.store.load());
        let actor = Self {
            core,
            state: parts.me.state,
            models: parts.me.models.clone(),
            contents: contents::Known::default(),
            shards: shards::Shards::default(),
            streams: streams::Streams::default(),
            links: links::LinkDesk::new(parts.clock.now(), parts.me.node, parts.entropy.draw(), parts.me.addresses.clone()),
            notices: notices::Notices::default(),
            dialled: BTreeMap::new(),
            scanned: None,
            timer: None,
            unsaved: Vec::new(),
            queues: Some((events, commands)),
            parts,
        };
        actor.start()
    }

    /// The only way anything happens here: in the core, in order, at a time that was handed in.
    fn step(&mut self, input: Input, ctx: &mut Context<Self>) {
        let mut effects = Vec::new();
        self.core.step(self.parts.clock.now(), input, &mut effects);
        self.perform_all(effects, ctx);
    }

    /// Performs effects and what follows from them, then sets the timer. Never waits, but for this node's own disk (R1).
    fn perform_all(&mut self, effects: Vec<Effect>, ctx: &mut Context<Self>) {
        let mut queue = VecDeque::from(effects);
        let mut more = Vec::new();
        while let Some(effect) = queue.pop_front() {
            if let Some(input) = self.perform(effect, ctx) {
                self.core.step(self.parts.clock.now(), input, &mut more);
                queue.extend(more.drain(..));
            }
        }
        self.meet_for_links(ctx);
        self.tell_of_shards(ctx);
        self.dial_the_unmet();
        self.arm(ctx);
    }

    /// One effect, and what it leads to at once.
    fn perform(&mut self, effect: Effect, ctx: &mut Context<Self>) -> Option<Input> {
        match effect {
            Effect::Publish(record) => return Some(self.publish(record)),
            Effect::Keep(record) => {
                if let Err(why) = self.parts.store.save(&record) {
                    self.notice(format!("a record could not be written: {why}"));
                }
            }
            Effect::Erase(key) => {
                if let Err(why) = self.parts.store.erase(key) {
                    self.notice(format!("a record that is over could not be removed: {why}"));
                }
            }
            Effect::Gossip(record) => self.parts.carrier.gossip(&record),
            Effect::Introduce(record) => {
                self.parts.carrier.introduce(&record);
                self.parts.carrier.gossip(&Record::Node(record));
            }
            Effect::Send { to, message } => {
                // Lost is late: whoever needs an answer asks again.
                if let Err(error) = self.parts.carrier.send(to, message) {
                    tracing::debug!(%error, "a control message was not sent");
                }
            }
            Effect::Load { deployment, plan } => return self.load_shard(deployment, &plan, false, ctx),
            Effect::Adopt { deployment, plan } => return self.load_shard(deployment, &plan, true, ctx),
            Effect::Retire(deployment) => self.shards.retire(deployment),
            Effect::Probe { deployment, plan } => self.probe(deployment, plan, ctx),
            Effect::Fenced { deployment, plan, deleted } => self.streams.fenced(deployment, plan, deleted),
            Effect::NodeGone(node) => {
                self.streams.node_gone(node);
                self.shards.node_gone(node);
            }
            Effect::Forgotten(node) => self.parts.carrier.disconnect(node),
            Effect::Notice(notice) => self.notice(notice),
        }
        None
    }

    /// R1: on disk before anyone hears of it.
    fn publish(&mut self, record: Record) -> Input {
        match (self.parts.store.save(&record), &record) {
            (Ok(()), _) => Input::Saved(record),
            (Err(why), Record::Deployment(of)) => {
                self.unsaved.push((of.id, why.clone()));
                Input::NotSaved { deployment: of.id, why }
            }
            (Err(_), Record::Node(_) | Record::Other(_)) => Input::Elapsed, // the core publishes deployments only
        }
    }

    fn notice(&mut self, notice: String) {
        if self.notices.take(self.parts.clock.now(), notice.clone()) {
            tracing::info!("{notice}");
        }
    }

    /// Sets the one timer to when a core next wants to be woken.
    fn arm(&mut self, ctx: &mut Context<Self>) {
        let at = self.links.wake_at().map_or(self.core.wake_at(), |at| at.min(self.core.wake_at()));
        if self.timer.as_ref().is_some_and(|timer| timer.0 == at) {
            return;
        }
        if let Some((_, timer)) = self.timer.take() {
            ctx.cancel_future(timer);
        }
        let pause = Duration::from_nanos(at.0.saturating_sub(self.parts.clock.now().0)).max(Duration::from_millis(1));
        let timer = ctx.run_later(pause, |actor, ctx| {
            actor.timer = None;
            actor.tick(ctx);
        });
        self.timer = Some((at, timer));
    }

    /// Looks after the children and the files, then lets the core do what is due.
    fn tick(&mut self, ctx: &mut Context<Self>) {
        for lost in self.shards.lost() {
            self.step(Input::ShardLost(lost), ctx);
        }
        self.streams.look_after(&self.parts.router);
        self.scan_models_if_needed(ctx);
        self.look_at_contents(ctx);
        self.look_at_links(ctx);
        self.step(Input::Wall(self.parts.clock.wall()), ctx);
    }

    /// A deployment needs files that we do not know of: perhaps they were copied here since.
    fn scan_models_if_needed(&mut self, ctx: &mut Context<Self>) {
        let now = self.parts.clock.now();
        let known = |digest| self.models.iter().any(|held| held.digest == digest);
        let missing = self.core.directory().deployments().any(|record| !record.is_deleted() && !known(record.sheet.digest));
        if missing && self.scanned.is_none_or(|at| now.ms_since(at) >= SCAN_PAUSE_MS) {
            self.scan_models(ctx);
        }
    }

    /// Looks through the model directories, off the arbiter: a disk may be slow.
    fn scan_models(&mut self, ctx: &mut Context<Self>) {
        self.scanned = Some(self.parts.clock.now());
        let (found, list) = tokio::sync::oneshot::channel();
        if let Err(error) = self.parts.workers.scan(self.parts.models.clone(), found) {
            return self.notice(format!("no thread to look for models: {error}"));
        }
        let listed = list.into_actor(self).map(|list, actor, ctx| {
            if let Ok(models) = list {
                let more = models.len().saturating_sub(MODELS_MAX);
                actor.models = actor.fitting(models);
                actor.contents.tell(&mut actor.models);
                if more > 0 {
                    actor.notice(format!("{more} models are not told to the others: a node tells of {MODELS_MAX}"));
                }
                actor.tell_of_shards(ctx);
            }
        });
        ctx.spawn(listed);
    }

    /// As many models as can be told; those that are deployed first.
    fn fitting(&self, mut models: Vec<HeldModel>) -> Vec<HeldModel> {
        let deployed = |held: &HeldModel| self.core.directory().deployments().any(|record| record.sheet.digest == held.digest);
        models.sort_by_key(|held| !deployed(held));
        models.truncate(MODELS_MAX);
        models
    }

    /// Tells the core what this node holds and does, if that has changed.
    fn tell_of_shards(&mut self, ctx: &mut Context<Self>) {
        let shards = self.shards.held();
        let me = self.core.me();
        if (&me.models, &me.shards, me.state) != (&self.models, &shards, self.state) {
            let (models, state) = (self.models.clone(), self.state);
            self.step(Input::Mine { models, shards, state }, ctx);
        }
    }

    /// Nodes that others told of and that never greeted us, each once in each of its lives: the carrier goes on by itself
    /// from there. So a full mesh grows from one known address, whichever way the record came.
    fn dial_the_unmet(&mut self) {
        let me = self.parts.me.node;
        let unmet = |record: &&NodeRecord| record.node != me && !record.is_over() && self.core.health(record.node) == Health::Unmet;
        let fresh = |record: &&NodeRecord| self.dialled.get(&record.node) != Some(&record.incarnation) && !record.addresses.is_empty();
        let found: Vec<NodeRecord> = self.core.directory().nodes().filter(unmet).filter(fresh).take(REDIAL_MAX).cloned().collect();
        for record in found {
            record.addresses.iter().take(ADDRESSES_DIALLED_MAX).for_each(|address| self.parts.carrier.dial(address));
            self.dialled.insert(record.node, record.incarnation);
        }
        if self.dialled.len() > 4 * REDIAL_MAX {
            self.dialled.clear(); // only costs dials
        }
    }
}

impl Actor for NodeActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX_MAX);
        let (mut events, mut commands) = self.queues.take().expect("an actor starts once");
        ctx.add_stream(futures::stream::poll_fn(move |cx| events.poll_recv(cx)));
        ctx.add_stream(futures::stream::poll_fn(move |cx| commands.poll_recv(cx)));
        self.parts.router.answer_through(self.parts.carrier.clone());
        self.dial_the_unmet();
        self.perform_all(vec![Effect::Introduce(self.core.me().clone())], ctx);
        self.tick(ctx);
    }
}

impl StreamHandler<CarrierEvent> for NodeActor {
    fn handle(&mut self, event: CarrierEvent, ctx: &mut Self::Context) {
        match event {
            CarrierEvent::Up(record) => {
                tracing::info!(node = %record.node.short(), name = record.name, incarnation = record.incarnation, "node is up");
                self.step(Input::Up(record), ctx);
            }
            CarrierEvent::Suspect { node, why } => self.step(Input::Suspect { node, why }, ctx),
            CarrierEvent::Trusted(node) => self.step(Input::Trusted(node), ctx),
            CarrierEvent::Down { node, why } => {
                tracing::info!(node = %node.short(), why, "node is down");
                self.step(Input::Down(node), ctx);
            }
            CarrierEvent::Waking => self.step(Input::Waking, ctx),
            CarrierEvent::Awake => self.step(Input::Awake, ctx),
            // The router handed it back: the shard was not here a moment ago. Its offers are repeated.
            CarrierEvent::Heard { from, message: message @ Message::Lane(_) } => self.shards.lane(from, message),
            CarrierEvent::Heard { from, message: Message::Links(message) } => self.heard_of_links(from, message, ctx),
            CarrierEvent::Heard { from, message } => self.step(Input::Heard { from, message }, ctx),
            CarrierEvent::Gossip(record) => self.step(Input::Gossip(record), ctx),
            CarrierEvent::Refused { address, why } => self.notice(format!("{address}: {why}")),
        }
    }

    /// The carrier has ended; the facade stops the node. Until then it answers commands.
    fn finished(&mut self, _: &mut Self::Context) {}
}

impl StreamHandler<Command> for NodeActor {
    fn handle(&mut self, command: Command, ctx: &mut Self::Context) {
        self.command(command, ctx);
    }

    /// Every handle is gone: the node goes on for the others until it is told to leave.
    fn finished(&mut self, _: &mut Self::Context) {}
}
