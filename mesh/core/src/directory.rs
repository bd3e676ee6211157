//! Every record that a node knows: the newest version of each, whatever way and order it came in.
//!
//! Merging takes the greater version (R1, R16), so it is commutative, idempotent and associative: gossip may lose, repeat
//! and reorder as it likes. What was lost is made good by digests: two nodes compare (key, hash) of all they have and
//! send each other what differs (anti-entropy, Demers et al. 1987). Only newest versions are here, so a long history costs a
//! joiner nothing (F40). Records come from the wire: what makes no sense, or would grow the directory beyond its bound, is
//! refused with a reason. What is over ends by the clock ([`expiry`]); what cannot be read is carried on ([`others`]).

mod expiry;
mod others;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::ids::{DeploymentId, NodeId};
use crate::lifetimes::{Lifetimes, Wall};
use crate::model::ModelSheet;
use crate::mutation::{Mutation, made};
use crate::plan::Plan;
use crate::planner::LAYERS_MAX;
use crate::records::{DeploymentRecord, DeploymentStatus, NodeRecord, Record, RecordKey};
use crate::wire;

use expiry::{Absence, Presence};
use others::Others;
pub use others::{OTHERS_BYTES_MAX, OTHERS_MAX};

/// Nodes that are remembered at most (we design for 64; 1,000 is a later issue).
pub const NODES_MAX: usize = 1_024;
/// Deployments that are remembered at most, tombstones included.
pub const DEPLOYMENTS_MAX: usize = 1_024;
/// Records that are remembered at most.
pub const RECORDS_MAX: usize = NODES_MAX + DEPLOYMENTS_MAX + OTHERS_MAX;
/// Longest record, in bytes: below gossip's message limit of 64 KiB, and 128 layers take 3 KB.
pub const RECORD_BYTES_MAX: usize = 60 << 10;
/// Bytes of records that go into one message.
const PIECE_BYTES: usize = 256 << 10;
/// Longest text inside a record, in bytes.
const TEXT_BYTES_MAX: usize = 4 << 10;

/// What became of a record that was handed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merged {
    /// It is newer than what was known: act on it.
    Newer,
    /// The same, or older, or over and forgotten.
    Known,
    /// Not taken: it makes no sense, for this reason, or there is no room.
    Refused(&'static str),
}

/// The newest version of every record.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    nodes: BTreeMap<NodeId, (NodeRecord, u64)>,
    deployments: BTreeMap<DeploymentId, (DeploymentRecord, u64)>,
    others: Others,
    presence: BTreeMap<NodeId, Presence>,
    lifetimes: Lifetimes,
    wall: Wall,
    absence: Option<Absence>,
}

impl Directory {
    /// An empty one, that lets go by these times. The default is the ordinary times, and a clock that stands.
    #[must_use]
    pub fn new(lifetimes: Lifetimes, wall: Wall) -> Self {
        Self { lifetimes, wall, ..Self::default() }
    }

    /// Takes a record if it is newer than what is known under its key.
    pub fn merge(&mut self, record: Record) -> Merged {
        let hash = match hash(&record) {
            Ok(hash) => hash,
            Err(why) => return Merged::Refused(why),
        };
        match record {
            Record::Node(record) => self.merge_node(record, hash),
            Record::Deployment(record) => self.merge_deployment(record, hash),
            Record::Other(record) => self.others.merge(record, hash),
        }
    }

    /// As [`Directory::merge`], and says which version was replaced.
    pub fn merge_reporting(&mut self, record: Record) -> (Merged, Option<Record>) {
        let former = match &record {
            Record::Node(record) => self.node(record.node).cloned().map(Record::Node),
            Record::Deployment(record) => self.deployment(record.id).cloned().map(Record::Deployment),
            Record::Other(_) => None,
        };
        (self.merge(record), former)
    }

    fn merge_node(&mut self, record: NodeRecord, hash: u64) -> Merged {
        if let Some((known, known_hash)) = self.nodes.get(&record.node) {
            // Equal versions with other contents (a clone, R15): the hash decides, the same way everywhere.
            if (record.order(), hash) <= (known.order(), *known_hash) {
                return Merged::Known;
            }
        } else if !self.keeps_node(&record) {
            return Merged::Known;
        } else if self.nodes.len() >= NODES_MAX && !self.forget_someone_who_left() {
            return Merged::Refused("more nodes than can be remembered");
        }
        self.nodes.insert(record.node, (record, hash));
        Merged::Newer
    }

    /// Makes room for a node by forgetting one that is gone for good.
    fn forget_someone_who_left(&mut self) -> bool {
        let left = self.nodes.values().find(|(record, _)| record.is_over()).map(|(record, _)| record.node);
        left.inspect(|node| self.drop_record(RecordKey::Node(*node))).is_some()
    }

    fn merge_deployment(&mut self, record: DeploymentRecord, hash: u64) -> Merged {
        if let Err(why) = sound(&record) {
            return Merged::Refused(why);
        }
        match self.deployments.get(&record.id) {
            Some((known, known_hash)) if newer(&record, hash, known, *known_hash) != Ordering::Greater => return Merged::Known,
            None if !self.keeps_deployment(&record) => return Merged::Known,
            None if self.deployments.len() >= DEPLOYMENTS_MAX => return Merged::Refused("more deployments than can be remembered"),
            _ => {}
        }
        self.deployments.insert(record.id, (record, hash));
        Merged::Newer
    }

    /// What a node last said about itself.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&NodeRecord> {
        self.nodes.get(&id).map(|entry| &entry.0)
    }
    /// The newest version of a deployment, a tombstone too.
    #[must_use]
    pub fn deployment(&self, id: DeploymentId) -> Option<&DeploymentRecord> {
        self.deployments.get(&id).map(|entry| &entry.0)
    }
    /// Every node, in order of id.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeRecord> {
        self.nodes.values().map(|entry| &entry.0)
    }
    /// Every deployment, tombstones too, in order of id.
    pub fn deployments(&self) -> impl Iterator<Item = &DeploymentRecord> {
        self.deployments.values().map(|entry| &entry.0)
    }

    /// (key, hash) of everything that is told, for the other side to compare.
    #[must_use]
    pub fn digest(&self) -> Vec<(RecordKey, u64)> {
        self.told().into_iter().collect()
    }

    fn told(&self) -> BTreeMap<RecordKey, u64> {
        let nodes = self.nodes.iter().filter(|(_, entry)| self.tells_node(&entry.0)).map(|(id, entry)| (RecordKey::Node(*id), entry.1));
        let deployments = self.deployments.iter().filter(|(_, entry)| self.tells_deployment(&entry.0));
        let deployments = deployments.map(|(id, entry)| (RecordKey::Deployment(*id), entry.1));
        // A newer program's word on something that we know too stands for ours, which is made from an older one.
        nodes.chain(deployments).chain(self.others.digest()).collect()
    }

    /// Compares a peer's digest: what it has and we lack or have otherwise, and what it should get from us.
    ///
    /// Where both have different versions of a record, both are exchanged: a hash does not say which is newer. That goes for
    /// what is kept and no longer told, too: who still has a deployment that was deleted long ago must hear of it.
    #[must_use]
    pub fn compare(&self, theirs: &[(RecordKey, u64)]) -> (Vec<RecordKey>, Vec<Record>) {
        let theirs: BTreeMap<RecordKey, u64> = theirs.iter().take(RECORDS_MAX).copied().collect();
        let wants = theirs.iter().filter(|(key, hash)| self.hash_of(**key) != Some(**hash)).map(|(key, _)| *key).collect();
        let lacks = self.told().into_keys().filter(|key| !theirs.contains_key(key));
        let differs = theirs.iter().filter(|(key, hash)| self.hash_of(**key).is_some_and(|ours| ours != **hash)).map(|(key, _)| *key);
        (wants, lacks.chain(differs).filter_map(|key| self.record(key)).collect())
    }

    fn hash_of(&self, key: RecordKey) -> Option<u64> {
        self.others.hash_of(key).or_else(|| match key {
            RecordKey::Node(id) => self.nodes.get(&id).map(|entry| entry.1),
            RecordKey::Deployment(id) => self.deployments.get(&id).map(|entry| entry.1),
            RecordKey::Other(..) => None,
        })
    }

    /// A record by its key.
    #[must_use]
    pub fn record(&self, key: RecordKey) -> Option<Record> {
        if let Some(other) = self.others.record(key) {
            return Some(Record::Other(other.clone()));
        }
        match key {
            RecordKey::Node(id) => self.node(id).cloned().map(Record::Node),
            RecordKey::Deployment(id) => self.deployment(id).cloned().map(Record::Deployment),
            RecordKey::Other(..) => None,
        }
    }

    /// Everything that is told, for a joiner.
    #[must_use]
    pub fn all(&self) -> Vec<Record> {
        self.told().into_keys().filter_map(|key| self.record(key)).collect()
    }
}

/// Records in pieces that fit a message each.
#[must_use]
pub fn in_pieces(records: Vec<Record>) -> Vec<Vec<Record>> {
    let mut pieces = Vec::new();
    let (mut piece, mut bytes) = (Vec::new(), 0);
    for record in records {
        let length = wire::encode(&record).map_or(0, |bytes| bytes.len());
        if bytes + length > PIECE_BYTES && !piece.is_empty() {
            pieces.push(std::mem::take(&mut piece));
            bytes = 0;
        }
        bytes += length;
        piece.push(record);
    }
    pieces.extend(Some(piece).filter(|piece| !piece.is_empty()));
    pieces
}

/// The order of versions, and the contents where versions are equal.
fn newer(record: &DeploymentRecord, hash: u64, known: &DeploymentRecord, known_hash: u64) -> Ordering {
    let numbers = |record: &DeploymentRecord| (record.deleted, record.version.term, record.version.epoch, record.version.revision);
    if made(Mutation::NumbersForHash) {
        return numbers(record).cmp(&numbers(known));
    }
    if made(Mutation::ResurrectTombstone) {
        return (record.version, hash).cmp(&(known.version, known_hash));
    }
    (record.order(), hash).cmp(&(known.order(), known_hash))
}

/// Hash of a record's bytes; refuses one that is too long to be told.
fn hash(record: &Record) -> Result<u64, &'static str> {
    match wire::encode(record) {
        Ok(bytes) if bytes.len() <= RECORD_BYTES_MAX => Ok(xxhash_rust::xxh3::xxh3_64(&bytes)),
        _ => Err("longer than a record may be"),
    }
}

/// Whether a deployment's parts agree with each other.
fn sound(record: &DeploymentRecord) -> Result<(), &'static str> {
    if record.is_deleted() {
        return if record.plan.is_none() { Ok(()) } else { Err("a deleted deployment with a plan") };
    }
    if record.sheet.layers.is_empty() || record.sheet.layers.len() > LAYERS_MAX || record.wish.streams == 0 {
        return Err("a sheet or wish that makes no sense");
    }
    let fits = |plan: &Plan| plan.is_sound(&record.sheet);
    let loading_sound = match &record.status {
        DeploymentStatus::Loading { plan } => fits(plan),
        DeploymentStatus::Waiting { why, .. } | DeploymentStatus::Failed { why } => why.len() <= TEXT_BYTES_MAX,
        DeploymentStatus::Starting | DeploymentStatus::Ready => record.plan.is_some(),
        DeploymentStatus::Planning => true,
    };
    if loading_sound && record.plan.as_ref().is_none_or(fits) { Ok(()) } else { Err("a plan that does not match its sheet") }
}

/// What is left of a sheet in a tombstone: its name, and nothing that takes room.
#[must_use]
pub fn name_only(sheet: &ModelSheet) -> ModelSheet {
    ModelSheet { layers: Vec::new(), ..sheet.clone() }
}
