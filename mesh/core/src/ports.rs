//! What the cores and actors ask of the world, as traits. Rooms around this one implement them; the simulator
//! implements them too, on virtual time.

use std::sync::atomic::AtomicBool;

use crate::generation::{Sampling, TokenLogprobs};
use crate::ids::{Digest, NodeId, StreamId, Time};
use crate::lifetimes::Wall;
use crate::links::{Interface, LinkName, Measured, Way};
use crate::model::{Contents, HeldModel, Layers, ModelSheet};
use crate::plan::Numerics;
use crate::records::{NodeRecord, Record, RecordKey};
use crate::wire::{LaneId, LaneOffer, Message};

/// The time. Counts sleep (R8).
pub trait Clock: Send + Sync {
    /// Now.
    fn now(&self) -> Time;
    /// What the calendar says, for what is kept for days. May be wrong, and may jump. A virtual clock may leave it at this:
    /// its own time.
    fn wall(&self) -> Wall {
        Wall(self.now().0 / 1_000_000)
    }
}

/// Randomness for ids, seeds and jitter. Cores get drawn values handed in.
pub trait Entropy: Send + Sync {
    /// 128 fresh random bits.
    fn draw(&self) -> u128;
}

/// Records on this node's disk.
pub trait Store: Send + Sync {
    /// Every record that was saved, in any order. Unreadable ones are reported by the adapter and left where they are.
    fn load(&self) -> Vec<Record>;
    /// Durable when it returns (R1: on disk before it is sent).
    ///
    /// # Errors
    /// What the operating system said, with the path.
    fn save(&self, record: &Record) -> Result<(), String>;
    /// Removes a record, if it is there. It need not be gone after a power cut: it is then dropped again.
    ///
    /// # Errors
    /// As [`Store::save`].
    fn erase(&self, key: RecordKey) -> Result<(), String>;
}

/// Control connections to other nodes. Nothing here waits.
pub trait Carrier: Send + Sync {
    /// Sends one message on the control stream to `to`; to oneself, it is delivered like any other.
    ///
    /// # Errors
    /// No connection, or its bounded queue is full. The message is gone; the caller's own deadline acts.
    fn send(&self, to: NodeId, message: Message) -> Result<(), SendError>;
    /// Gives a record to gossip. Lost records are made good by digest exchange.
    fn gossip(&self, record: &Record);
    /// Replaces what we say about ourselves in hellos.
    fn introduce(&self, me: &NodeRecord);
    /// Tries to reach a node at a multiaddress; a success shows as [`CarrierEvent::Up`].
    fn dial(&self, address: &str);
    /// Ends all connections to a node that is gone for good, and dials it no more unless it is heard of anew.
    fn disconnect(&self, node: NodeId);
    /// The interfaces over which this node can be reached now, best guess first. Looks at the system; takes microseconds,
    /// a few milliseconds with hundreds of interfaces. A carrier without interfaces has none.
    fn interfaces(&self) -> Vec<Interface> {
        Vec::new()
    }
    /// Where this node can be dialled now, as multiaddresses; `None` if that never changes.
    fn addresses(&self) -> Option<Vec<String>> {
        None
    }
}

/// Why a control message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// No connection.
    #[error("no connection to {0:?}")]
    Unreachable(NodeId),
    /// The queue to it is full: it is slow or frozen.
    #[error("the control queue to {0:?} is full")]
    Full(NodeId),
}

/// What control connections tell the node actor. The adapter runs hello, probes and redials itself.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "events are moved one by one; the large one is the rare one")]
pub enum CarrierEvent {
    /// A node greeted us and both sides accepted. Carries its own record.
    Up(NodeRecord),
    /// A node's echoes are overdue but it is not held dead yet. Said again when the reason changes.
    Suspect {
        /// Who.
        node: NodeId,
        /// In words: silent, its connection ended, reached only through another node (F13).
        why: String,
    },
    /// A suspected node echoed again.
    Trusted(NodeId),
    /// No link echoes, or the connection ended and a redial was refused: held dead until it greets again.
    Down {
        /// Who.
        node: NodeId,
        /// In words, for the log.
        why: String,
    },
    /// This process was frozen, slept or starved: publish nothing, what is known of others may be old (R8).
    Waking,
    /// Every node has answered a fresh probe since then, or missed it.
    Awake,
    /// A control message arrived that no fast route took.
    Heard {
        /// From whom, authenticated.
        from: NodeId,
        /// What.
        message: Message,
    },
    /// Gossip brought a record.
    Gossip(Record),
    /// A dial or a hello failed, in words that name cause and next step (wrong secret, wrong version, clone).
    Refused {
        /// The address, as dialled or seen.
        address: String,
        /// Why.
        why: String,
    },
}

/// Tells a parked thread that there is something to look at. Called from any thread, often; must be cheap.
pub trait Wake: Send + Sync {
    /// Look again.
    fn wake(&self);
}

/// Tensor lanes to neighbours. One lane carries step messages in one direction between two stages.
pub trait Channels: Send + Sync {
    /// Prepares the receiving end of a lane from `from` and returns the offer that the sender needs. The offer travels over the
    /// authenticated control connection, since it carries the key. An earlier generation of the same lane ends here.
    ///
    /// # Errors
    /// No memory or no socket for it.
    fn accept(
        &self,
        lane: LaneId,
        from: NodeId,
        shape: LaneShape,
        waker: std::sync::Arc<dyn Wake>,
    ) -> Result<(LaneOffer, Box<dyn LaneReceiver>), LaneError>;

    /// Connects the sending end to an offer. Returns at once; the lane is usable when its state says `Ready`.
    ///
    /// # Errors
    /// An offer that makes no sense.
    fn connect(&self, to: NodeId, offer: &LaneOffer, waker: std::sync::Arc<dyn Wake>) -> Result<Box<dyn LaneSender>, LaneError>;

    /// This machine's interfaces have changed: listen on the new ones. Channels without interfaces ignore it.
    fn renew(&self, interfaces: &[Interface]) {
        let _ = interfaces;
    }

    /// Lanes that are made from now on to and from `peer` take these ways, best first; none = as can be.
    fn prefer(&self, peer: NodeId, ways: Vec<Way>) {
        let _ = (peer, ways);
    }

    /// Is the far end of one measurement over these ways, for seconds at most, on a thread of its own. Returns where the
    /// other end shall connect.
    ///
    /// # Errors
    /// Cannot measure, or is the far end of too many already.
    fn echo(&self, from: NodeId, ways: &[Way]) -> Result<LaneOffer, LaneError> {
        let _ = (from, ways);
        Err(LaneError::System("these channels measure nothing".to_owned()))
    }

    /// Measures a link on a thread of its own: its delay, and its rate if asked. `done` is called once, seconds later at
    /// most.
    fn measure(&self, to: NodeId, offer: &LaneOffer, ways: Vec<Way>, rate: bool, done: MeasureDone) {
        let _ = (to, offer, ways, rate);
        done(Err("these channels measure nothing".to_owned()));
    }

    /// The lanes that are connected, by link, and how often lanes broke on each link.
    fn links_in_use(&self) -> Vec<LinkUse> {
        Vec::new()
    }
}

/// Hears what a measurement gave. Called on any thread.
pub type MeasureDone = Box<dyn FnOnce(Result<Measured, String>) + Send>;

/// What lanes do with a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkUse {
    /// To or from whom.
    pub peer: NodeId,
    /// Which link.
    pub link: LinkName,
    /// Lanes on it now, in either direction.
    pub lanes: Vec<LaneId>,
    /// Lanes that ended on it in an error since the start.
    pub broken: u64,
}

/// Sizes of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneShape {
    /// Bytes of a slot: the longest message.
    pub slot_bytes: u32,
    /// Number of slots: messages in flight.
    pub slots: u16,
}

/// How a lane is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaneState {
    /// Not connected yet; the adapter's connect deadline runs.
    Connecting,
    /// Usable.
    Ready,
    /// Over for this generation, for this reason. A new accept and offer make the next one.
    Down(String),
}

/// The sending end of a lane. Owned by one thread.
pub trait LaneSender: Send {
    /// A free slot to write the next message into, 64-byte aligned. `None` without credit: the waker will be called.
    fn reserve(&mut self) -> Option<&mut [u8]>;
    /// Sends the first `bytes` of the slot that `reserve` gave. Never waits for the network.
    ///
    /// # Errors
    /// The lane is down.
    fn commit(&mut self, bytes: usize) -> Result<(), LaneError>;
    /// How the lane is.
    fn state(&self) -> LaneState;
}

/// The receiving end of a lane. Owned by one thread. A slot's bytes are stable from `take` to `release`.
pub trait LaneReceiver: Send {
    /// The next message that arrived, in order.
    fn take(&mut self) -> Option<LaneSlot>;
    /// Its bytes, 64-byte aligned.
    fn bytes(&self, slot: LaneSlot) -> &[u8];
    /// Gives the slot back, which is the sender's credit.
    fn release(&mut self, slot: LaneSlot);
    /// How the lane is.
    fn state(&self) -> LaneState;
    /// Whether a new life of the lane would take a better link than this one's.
    fn has_better_link(&self) -> bool {
        false
    }
}

/// A slot that holds a received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LaneSlot {
    /// Index in the arena.
    pub index: u16,
    /// Length of the message.
    pub bytes: u32,
}

/// Why a lane could not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaneError {
    /// The lane ended, for this reason.
    #[error("the tensor lane is down: {0}")]
    Down(String),
    /// A message longer than a slot.
    #[error("a message of {bytes} bytes is longer than a slot of {slot_bytes}")]
    TooLong {
        /// The message.
        bytes: usize,
        /// The slot.
        slot_bytes: usize,
    },
    /// The operating system refused memory or a socket.
    #[error("cannot set up a tensor lane: {0}")]
    System(String),
}

/// The models that this node can read.
pub trait Models: Send + Sync {
    /// Everything in the model directories and the binary. Looks at names and headers only.
    fn list(&self) -> Vec<HeldModel>;

    /// The table of contents of one model: by `builtin:` name, path, or name in a model directory.
    ///
    /// # Errors
    /// Not there, damaged, unknown architecture or storage: in words that name file, cause and next step.
    fn sheet(&self, name: &str) -> Result<ModelSheet, ModelError>;

    /// Loads `layers` of the model with this digest. Runs on the shard's own thread; may take minutes.
    ///
    /// # Errors
    /// As [`Models::sheet`], or no memory, or told to give up.
    fn load(&self, digest: Digest, layers: Layers, options: EngineOptions, progress: &dyn Progress) -> Result<Box<dyn Engine>, ModelError>;

    /// What all files of the model with this digest hold, as far as that is known. Never waits: where it is not known, or was
    /// not looked at for a while, that is done in the background, and a later call has the answer.
    ///
    /// # Errors
    /// The last look found the files gone, changed or unreadable: in words.
    fn contents(&self, digest: Digest) -> Result<Option<Contents>, ModelError>;

    /// Hash of the bits that this node's kernels give for a fixed probe (N1). Computed once.
    fn numerics_class(&self) -> u64;
}

/// How an engine shall run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// Compute threads, the caller's included.
    pub threads: u16,
    /// How values are stored and rounded.
    pub numerics: Numerics,
    /// Longest sequence, in tokens.
    pub context: u32,
    /// Bytes that all caches together may take.
    pub kv_bytes_max: u64,
}

/// Watches a load.
pub trait Progress: Send + Sync {
    /// So many of so many bytes are in memory.
    fn loaded(&self, done_bytes: u64, all_bytes: u64);
    /// Whether to stop: asked at least once a tensor.
    fn give_up(&self) -> bool;
}

/// Why a model could not be read or loaded. The text names the file, the cause and the next step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// Nothing by this name here. Lists what there is.
    #[error("{0}")]
    NotFound(String),
    /// Damaged, truncated or incomplete files.
    #[error("{0}")]
    Damaged(String),
    /// An architecture, storage type or setting that this version does not know.
    #[error("{0}")]
    Unsupported(String),
    /// Not enough memory.
    #[error("{0}")]
    Memory(String),
    /// The operating system refused.
    #[error("{0}")]
    System(String),
    /// Told to give up.
    #[error("loading was given up")]
    GivenUp,
}

/// Layers of one model in memory, and the caches of the streams that pass through them. Owned by one thread.
///
/// The numbers computed for a position depend only on the token ids up to it: not on the batch, the chunks, the threads
/// or which engine holds which layer (P2).
pub trait Engine: Send {
    /// The layers in memory.
    fn layers(&self) -> Layers;
    /// Loads and drops layers until exactly `layers` are held. What stays is not read again.
    ///
    /// # Errors
    /// As loading; the engine then holds at least what it held and `layers` had in common.
    fn reshape(&mut self, layers: Layers, progress: &dyn Progress) -> Result<(), ModelError>;
    /// Makes room for a stream, or keeps only the first `keep` positions of one that is there. Returns how many it has.
    ///
    /// # Errors
    /// The caches are full: bytes needed and free.
    fn open(&mut self, stream: StreamId, keep: u32, positions_max: u32) -> Result<u32, CacheFull>;
    /// Drops a stream's cache; does nothing if there is none.
    fn close(&mut self, stream: StreamId);
    /// Bytes that caches take now.
    fn kv_bytes(&self) -> u64;
    /// Replaces [`EngineOptions::kv_bytes_max`]: a new plan may leave more or less memory beside the weights. Caches that
    /// are there stay. An engine that does not bound its caches may leave this empty.
    fn limit_kv_bytes(&mut self, kv_bytes_max: u64) {
        let _ = kv_bytes_max;
    }
    /// One forward pass of a batch. See [`Step`].
    ///
    /// # Errors
    /// Told to give up, or failed. The caches of the step's streams are then unchanged or dropped, never half-written.
    fn step(&mut self, step: Step<'_>) -> Result<Vec<Sampled>, StepError>;
}

/// One forward pass. Rows lie one after the other in `input` and `output`.
pub struct Step<'a> {
    /// Which positions of which streams. At least one; a stream appears at most once.
    pub rows: &'a [StepRow<'a>],
    /// What goes in: ids at the first layer, else the hidden state that came out of the layer before, in segments that
    /// follow each other: (sum of counts, hidden width), f32.
    pub input: StepInput<'a>,
    /// Where the hidden state after the last held layer goes: (sum of counts, hidden width). Empty if the engine holds
    /// the model's last layer: its output is what `step` returns.
    pub output: &'a mut [f32],
    /// Asked between layers; true = stop and say [`StepError::GivenUp`].
    pub give_up: &'a AtomicBool,
}

/// Positions `first..first + count` of one stream.
#[derive(Clone, Copy, Debug)]
pub struct StepRow<'a> {
    /// The stream. Its cache must hold exactly `first` positions.
    pub stream: StreamId,
    /// First position.
    pub first: u32,
    /// How many; at least one.
    pub count: u32,
    /// Set if the token after the last of these positions is to be chosen (last stage only).
    pub sample: Option<SampleHow<'a>>,
}

/// How to choose a token.
#[derive(Clone, Copy, Debug)]
pub struct SampleHow<'a> {
    /// Parameters.
    pub sampling: &'a Sampling,
    /// All ids before the token to be chosen (`first + count` of them): penalties are counted from them.
    pub ids: &'a [u32],
    /// How many of them are the prompt.
    pub prompt_len: u32,
}

/// What goes into a step.
pub enum StepInput<'a> {
    /// Token ids, one a row.
    Tokens(&'a [u32]),
    /// Hidden states, in segments.
    Hidden(&'a [&'a [f32]]),
}

/// A chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// Of which stream.
    pub stream: StreamId,
    /// The token's position: the number of ids before it.
    pub position: u32,
    /// The token.
    pub token: u32,
    /// If asked for.
    pub logprobs: Option<TokenLogprobs>,
}

/// The caches are full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no cache memory for {need_bytes} bytes, {free_bytes} are free")]
pub struct CacheFull {
    /// Bytes needed.
    pub need_bytes: u64,
    /// Bytes left.
    pub free_bytes: u64,
}

/// Why a step gave nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// Told to give up.
    #[error("given up")]
    GivenUp,
    /// Failed, in words.
    #[error("{0}")]
    Failed(String),
}
