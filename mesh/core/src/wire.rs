//! Control messages, and the one place where bytes become them (bincode 2, standard configuration, bounded).
//!
//! Tensors never pass through here: see [`crate::step_message`]. Nobody's bytes may panic us: [`decode`] reads a bounded
//! frame into a type or says why not. Kinds this version does not know come out as [`DecodeError::UnknownKind`], to be
//! counted and ignored.

use serde::{Deserialize, Serialize};

use crate::generation::{AttemptTag, Open, Refusal, TokenOut};
use crate::ids::{BootId, DeploymentId, NodeId, PlanHash, PrefixHash, StreamId};
use crate::links::LinkMessage;
use crate::membership::Word;
use crate::model::Layers;
use crate::plan::Plan;
use crate::records::{NodeRecord, Record, RecordKey};

/// Version of everything on the wire. Peers with another one are refused at hello, with both versions named.
pub const PROTOCOL_VERSION: u32 = 1;

/// Longest control message, in bytes. An `Open` with 200,000 ids takes at most 1 MB.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// A control message. The order of variants is the wire format: append only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// First on each control stream, both ways; handled inside the carrier.
    Hello(Box<Hello>),
    /// "I refuse you", last on a stream; handled inside the carrier.
    Goodbye(String),
    /// Echo this (R9: alive = my nonce came back); handled inside the carrier.
    Ping(u64),
    /// The echo.
    Pong(u64),

    /// What I have: (key, hash of the newest version), the whole store in pieces. Answered by `Records` and `Want`.
    Digest(Vec<(RecordKey, u64)>),
    /// Send me these.
    Want(Vec<RecordKey>),
    /// Here they are.
    Records(Vec<Record>),

    /// Coordinator to a stage's node: have this plan's layers in memory and say so.
    Load(Box<LoadOrder>),
    /// The answer, and again at each change: how far the shard is.
    Shard(ShardReport),
    /// Receiver of a lane to its sender's node: connect here.
    Lane(LaneOffer),

    /// Owner to a stage.
    Open(Box<Open>),
    /// Stage to owner: I take part in this attempt and have so many positions.
    Opened(Opened),
    /// Owner to stage 0: every stage has opened, begin.
    Start(StreamTag),
    /// Owner to stage 0: you may compute positions below this one (R5).
    Grant {
        /// Whose.
        tag: StreamTag,
        /// The first position that is not granted.
        position: u32,
    },
    /// Owner to every stage: the stream is over, drop its cache. Idempotent.
    Close(StreamTag),
    /// Last stage to owner and stage 0.
    Token(TokenOut),
    /// Stage to owner: this stream cannot go on.
    StreamFailed(StreamFailed),

    /// Member to member about a third one; handled inside the carrier, overtakes other mail.
    Word(Word),
    /// One hash of all I have. Answered by a `Digest` if the other's is not the same.
    Summary(u64),
    /// Between the two ends of links: measuring, and what came of it.
    Links(LinkMessage),
}

/// Who I am and what I speak.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL_VERSION`].
    pub protocol: u32,
    /// Version of the program, for people.
    pub program: String,
    /// Name of the mesh. Another name is another mesh (F24).
    pub mesh: String,
    /// What the sender says about itself.
    pub me: NodeRecord,
}

/// Have these layers in memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadOrder {
    /// The deployment.
    pub deployment: DeploymentId,
    /// The plan that is about to be published.
    pub plan: Plan,
    /// Who wants to hear.
    pub coordinator: NodeId,
}

/// How far a shard is with a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardReport {
    /// The deployment.
    pub deployment: DeploymentId,
    /// The plan that was ordered or published.
    pub plan: PlanHash,
    /// Whose shard.
    pub node: NodeId,
    /// The life of that node.
    pub boot: BootId,
    /// The layers.
    pub layers: Layers,
    /// How far.
    pub state: ShardState,
}

/// How far a shard is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShardState {
    /// So many of so many bytes are in memory.
    Loading {
        /// Bytes read.
        done_bytes: u64,
        /// Bytes to read.
        all_bytes: u64,
    },
    /// All layers are in memory.
    Loaded,
    /// The published plan is in force here and its lanes are connected.
    Wired,
    /// Could not load or run.
    Failed {
        /// Why.
        why: String,
        /// Whether another try may help (memory, a lane) or not (a file that is missing or damaged).
        retry: bool,
    },
}

/// Names a lane: the boundary after `boundary` stages of a plan, in the direction of the tokens' way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LaneId {
    /// The deployment.
    pub deployment: DeploymentId,
    /// The plan.
    pub plan: PlanHash,
    /// Index of the sending stage.
    pub boundary: u16,
}

/// What a sender needs to connect a lane. Carries a key: travels over authenticated, encrypted control streams only.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneOffer {
    /// Which lane.
    pub lane: LaneId,
    /// Which life of it; rises at each accept.
    pub generation: u64,
    /// How to reach the receiver, best first: `tcp:ADDRESS:PORT via NAME` for a link that both ends agreed on, NAME being
    /// the sender's interface; `tcp:ADDRESS:PORT` for other addresses; `local:` in one process.
    pub endpoints: Vec<String>,
    /// The receiver's random value, from which both ends derive the generation's keys.
    pub secret: [u8; 32],
    /// Bytes of a slot.
    pub slot_bytes: u32,
    /// Number of slots.
    pub slots: u16,
}

impl std::fmt::Debug for LaneOffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "LaneOffer({:?} generation {} at {:?}, {} slots of {} bytes)",
            self.lane, self.generation, self.endpoints, self.slots, self.slot_bytes
        )
    }
}

/// Names an attempt of a stream in a deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StreamTag {
    /// The deployment.
    pub deployment: DeploymentId,
    /// The plan.
    pub plan: PlanHash,
    /// The stream.
    pub stream: StreamId,
    /// The attempt.
    pub attempt: AttemptTag,
}

/// A stage's answer to an [`Open`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// Which attempt.
    pub tag: StreamTag,
    /// Index of the stage.
    pub stage: u16,
    /// The first position that it lacks and the prefix hash there, or why it takes no part.
    pub answer: Result<(u32, PrefixHash), Refusal>,
}

/// A stage gives a stream up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamFailed {
    /// Which attempt.
    pub tag: StreamTag,
    /// Index of the stage.
    pub stage: u16,
    /// Why.
    pub why: String,
}

/// Why bytes are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Longer than [`MESSAGE_BYTES_MAX`].
    #[error("a control message of {0} bytes is longer than {MESSAGE_BYTES_MAX}")]
    TooLong(usize),
    /// A kind this version does not know: count it and go on.
    #[error("unknown kind of message")]
    UnknownKind,
    /// Anything else: the peer is broken or hostile.
    #[error("malformed control message: {0}")]
    Malformed(String),
}

fn config() -> impl bincode::config::Config {
    bincode::config::standard().with_limit::<MESSAGE_BYTES_MAX>()
}

/// Bytes of a message or record.
///
/// # Errors
/// Too long to be sent.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, DecodeError> {
    let bytes = bincode::serde::encode_to_vec(value, config()).map_err(|error| DecodeError::Malformed(error.to_string()))?;
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(DecodeError::TooLong(bytes.len()));
    }
    Ok(bytes)
}

/// A message or record from bytes. Every byte must be used.
///
/// # Errors
/// See [`DecodeError`]. Takes no more memory than a small multiple of the bytes' length.
pub fn decode<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(DecodeError::TooLong(bytes.len()));
    }
    match bincode::serde::decode_from_slice(bytes, config()) {
        Ok((value, used)) if used == bytes.len() => Ok(value),
        Ok((_, used)) => Err(DecodeError::Malformed(format!("{} bytes after its end", bytes.len() - used))),
        Err(bincode::error::DecodeError::UnexpectedVariant { .. }) => Err(DecodeError::UnknownKind),
        Err(bincode::error::DecodeError::OtherString(text)) if text.contains("variant") => Err(DecodeError::UnknownKind),
        Err(error) => Err(DecodeError::Malformed(error.to_string())),
    }
}

#[cfg(test)]
mod tests;
