//! The short way for data-plane messages: from the carrier's thread straight to the shard's queue or the stream's actor.
//!
//! A token that had to pass the node actor's mailbox would wait behind gossip and plans. So the carrier asks the router
//! first; what it does not take becomes `CarrierEvent::Heard`. The registries are the two places that the carrier's thread
//! and the arbiter both touch; they are looked up, never iterated.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use dashmap::DashMap;
use mesh_core::generation::Refusal;
use mesh_core::ids::{DeploymentId, NodeId, StreamId};
use mesh_core::ports::Carrier;
use mesh_core::wire::{Message, Opened, StreamTag};
use tokio::sync::mpsc;

use crate::shard_inlet::ShardHandle;

/// Messages that wait for one stream's actor at most: its grant (R5) and its stages' answers stay far below.
pub const STREAM_MESSAGES_MAX: usize = 256;

/// Where a stream's actor hears: who said it, and what.
pub type StreamInlet = mpsc::Sender<(NodeId, Message)>;

/// Delivers data-plane messages to the shards and streams of one node. `Send + Sync`.
#[derive(Default)]
pub struct Router {
    shards: DashMap<DeploymentId, ShardHandle>,
    streams: DashMap<StreamId, StreamInlet>,
    carrier: OnceLock<Arc<dyn Carrier>>,
    unknown: AtomicU64,
    full: AtomicU64,
}

/// What a router could not deliver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Undelivered {
    /// Nobody of that name here.
    pub unknown: u64,
    /// Its queue was full, or it has just ended.
    pub full: u64,
}

impl Router {
    /// A router that knows nobody.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets the router answer an `Open` for a shard that is not here, which else waits for its sender's deadline.
    pub fn answer_through(&self, carrier: Arc<dyn Carrier>) {
        let _ = self.carrier.set(carrier);
    }

    /// Registers a shard; one a deployment. A former one is forgotten.
    pub fn add_shard(&self, shard: ShardHandle) {
        self.shards.insert(shard.deployment(), shard);
    }
    /// Forgets a shard, unless another one took its place.
    pub fn remove_shard(&self, shard: &ShardHandle) {
        self.shards.remove_if(&shard.deployment(), |_, sitting| sitting.is(shard));
    }
    /// Registers the owner of a stream.
    pub fn add_stream(&self, stream: StreamId, inlet: StreamInlet) {
        self.streams.insert(stream, inlet);
    }
    /// Forgets a stream.
    pub fn remove_stream(&self, stream: StreamId) {
        self.streams.remove(&stream);
    }

    /// Delivers a message from `from`, authenticated; `None` if it was taken. Called on the carrier's thread; never waits.
    ///
    /// Data-plane messages for nobody are counted and dropped; a `Lane` for a shard that is not here is handed back.
    pub fn route(&self, from: NodeId, message: Message) -> Option<Message> {
        match message {
            Message::Open(open) => {
                let tag = StreamTag { deployment: open.deployment, plan: open.plan, stream: open.stream, attempt: open.attempt.tag() };
                if self.shards.contains_key(&open.deployment) {
                    self.to_shard(open.deployment, from, Message::Open(open));
                } else {
                    self.refuse(from, tag);
                }
            }
            Message::Start(tag) => self.to_shard(tag.deployment, from, message),
            Message::Grant { tag, .. } => self.to_shard(tag.deployment, from, message),
            Message::Close(tag) => self.to_shard(tag.deployment, from, message),
            Message::Token(token) => self.token(from, token),
            Message::Opened(Opened { tag, .. }) => self.to_stream(tag.stream, from, message),
            Message::StreamFailed(ref failed) => self.to_stream(failed.tag.stream, from, message),
            Message::Lane(ref offer) if self.shards.contains_key(&offer.lane.deployment) => {
                self.to_shard(offer.lane.deployment, from, message)
            }
            other => return Some(other),
        }
        None
    }

    /// What could not be delivered so far.
    #[must_use]
    pub fn undelivered(&self) -> Undelivered {
        Undelivered { unknown: self.unknown.load(Ordering::Relaxed), full: self.full.load(Ordering::Relaxed) }
    }

    /// A token goes to its owner, to stage 0, or to both, whoever of them is here.
    fn token(&self, from: NodeId, mut token: mesh_core::generation::TokenOut) {
        let owner = self.streams.contains_key(&token.stream);
        if owner {
            self.to_stream(token.stream, from, Message::Token(token.clone()));
        }
        // A shard that is not stage 0, or does not know the stream, drops it.
        if self.shards.contains_key(&token.deployment) {
            token.logprobs = None;
            self.to_shard(token.deployment, from, Message::Token(token));
        } else if !owner {
            self.unknown.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn to_shard(&self, deployment: DeploymentId, from: NodeId, message: Message) {
        let Some(shard) = self.shards.get(&deployment).map(|shard| shard.clone()) else {
            self.unknown.fetch_add(1, Ordering::Relaxed);
            return;
        };
        if let Err(error) = shard.heard(from, message) {
            self.full.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%deployment, %error, "a message for a shard was lost");
        }
    }

    fn to_stream(&self, stream: StreamId, from: NodeId, message: Message) {
        let Some(inlet) = self.streams.get(&stream).map(|inlet| inlet.clone()) else {
            self.unknown.fetch_add(1, Ordering::Relaxed);
            return;
        };
        if inlet.try_send((from, message)).is_err() {
            self.full.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%stream, "a message for a stream was lost");
        }
    }

    fn refuse(&self, owner: NodeId, tag: StreamTag) {
        self.unknown.fetch_add(1, Ordering::Relaxed);
        if let Some(carrier) = self.carrier.get() {
            let answer = Opened { tag, stage: u16::MAX, answer: Err(Refusal::Fenced(None)) };
            let _ = carrier.send(owner, Message::Opened(answer)); // its own deadline acts if this is lost
        }
    }
}
