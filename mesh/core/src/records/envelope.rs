//! The cover of every record: kind, format, name and version stand outside, so that a program can store, order and pass on
//! records that it cannot read.
//!
//! A mesh of several versions needs this: were unknown records dropped, those of a newer program would reach only nodes with
//! a direct line to their author. A record whose kind or format this program does not know is an [`OtherRecord`]: its bytes
//! are kept as they came and the greater version wins, by plain comparison of bytes.

use serde::{Deserialize, Serialize};

use crate::ids::{DeploymentId, NodeId};
use crate::wire::{self, DecodeError};

use super::{DeploymentRecord, NodeRecord, NodeState};

/// Longest version of a record, in bytes. Ours take 17 and 65.
pub const VERSION_BYTES_MAX: usize = 128;

const KIND_NODE: u16 = 1;
const KIND_DEPLOYMENT: u16 = 2;
/// The format of both kinds that this program writes and reads.
const FORMAT: u16 = 1;

/// Anything that gossip carries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Envelope", try_from = "Envelope")]
#[expect(clippy::large_enum_variant, reason = "records are few, and most of their bytes are behind vectors anyway")]
pub enum Record {
    /// A node.
    Node(NodeRecord),
    /// A deployment.
    Deployment(DeploymentRecord),
    /// Something that a newer program says.
    Other(OtherRecord),
}

/// A record that this program cannot read, as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherRecord {
    /// What it is about.
    pub kind: u16,
    /// How its body is written.
    pub format: u16,
    /// Its name within its kind.
    pub id: [u8; 32],
    /// Greater wins, compared byte by byte.
    pub version: Vec<u8>,
    /// The rest.
    pub body: Vec<u8>,
}

/// Names a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "(u16, [u8; 32])", from = "(u16, [u8; 32])")]
pub enum RecordKey {
    /// A node's.
    Node(NodeId),
    /// A deployment's.
    Deployment(DeploymentId),
    /// One of a kind that this program does not know.
    Other(u16, [u8; 32]),
}

impl Record {
    /// Its name.
    #[must_use]
    pub fn key(&self) -> RecordKey {
        match self {
            Self::Node(record) => RecordKey::Node(record.node),
            Self::Deployment(record) => RecordKey::Deployment(record.id),
            Self::Other(record) => RecordKey::from((record.kind, record.id)),
        }
    }
}

impl From<RecordKey> for (u16, [u8; 32]) {
    fn from(key: RecordKey) -> Self {
        match key {
            RecordKey::Node(node) => (KIND_NODE, node.0),
            RecordKey::Deployment(id) => {
                let mut bytes = [0; 32];
                bytes[..16].copy_from_slice(&id.0.to_be_bytes());
                (KIND_DEPLOYMENT, bytes)
            }
            RecordKey::Other(kind, id) => (kind, id),
        }
    }
}

impl From<(u16, [u8; 32])> for RecordKey {
    fn from((kind, id): (u16, [u8; 32])) -> Self {
        let (front, rest) = id.split_at(16);
        match (kind, front.try_into()) {
            (KIND_NODE, _) => Self::Node(NodeId(id)),
            (KIND_DEPLOYMENT, Ok(front)) if rest == [0; 16] => Self::Deployment(DeploymentId(u128::from_be_bytes(front))),
            _ => Self::Other(kind, id),
        }
    }
}

/// A record on the wire and on disk.
#[derive(Clone, Serialize, Deserialize)]
struct Envelope {
    kind: u16,
    format: u16,
    id: [u8; 32],
    version: Vec<u8>,
    body: Vec<u8>,
}

impl From<Record> for Envelope {
    fn from(record: Record) -> Self {
        let (kind, id) = record.key().into();
        // A body that is too long to be written is empty, and refused by whoever reads it; the directory never lets one in.
        let (version, body) = match &record {
            Record::Node(node) => (version_of_node(node), wire::encode(node)),
            Record::Deployment(deployment) => (version_of_deployment(deployment), wire::encode(deployment)),
            Record::Other(_) => (Vec::new(), Ok(Vec::new())),
        };
        match record {
            Record::Other(OtherRecord { kind, format, id, version, body }) => Self { kind, format, id, version, body },
            _ => Self { kind, format: FORMAT, id, version, body: body.unwrap_or_default() },
        }
    }
}

impl TryFrom<Envelope> for Record {
    type Error = &'static str;

    fn try_from(envelope: Envelope) -> Result<Self, Self::Error> {
        let Envelope { kind, format, id, version, body } = envelope;
        if version.len() > VERSION_BYTES_MAX {
            return Err("the version of a record is too long");
        }
        let read = match (kind, format) {
            (KIND_NODE, FORMAT) => wire::decode(&body).map(Record::Node),
            (KIND_DEPLOYMENT, FORMAT) => wire::decode(&body).map(Record::Deployment),
            _ => Err(DecodeError::UnknownKind),
        };
        match read {
            Ok(record) if record.key() == RecordKey::from((kind, id)) => Ok(record),
            Ok(_) => Err("a record under another's name"),
            Err(DecodeError::UnknownKind) => Ok(Self::Other(OtherRecord { kind, format, id, version, body })),
            Err(_) => Err("the body of a record cannot be read"),
        }
    }
}

/// As [`NodeRecord::order`], in bytes.
fn version_of_node(record: &NodeRecord) -> Vec<u8> {
    let forgotten = u8::from(record.state == NodeState::Forgotten);
    [&record.incarnation.to_be_bytes()[..], &[forgotten], &record.version.to_be_bytes()].concat()
}

/// As [`DeploymentRecord::order`], in bytes, but for the plan's hash.
fn version_of_deployment(record: &DeploymentRecord) -> Vec<u8> {
    let deleted = record.deleted.map_or([0; 9], |at| {
        let mut bytes = [1; 9];
        bytes[1..].copy_from_slice(&at.0.to_be_bytes());
        bytes
    });
    let version = record.version;
    let counts = [version.term, version.epoch, version.revision].map(u64::to_be_bytes).concat();
    [&deleted[..], &counts, &version.coordinator.0].concat()
}
