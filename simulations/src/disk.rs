//! A machine's disk: records and the count of starts. It outlives the node's lives, and can be copied, full or the last
//! thing that a node ever touched.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mesh_core::ids::NodeId;
use mesh_core::ports::Store;
use mesh_core::records::{DeploymentStatus, Record, RecordKey};

use crate::ground::{Ground, Inner};
use crate::happening::Happening;
use crate::net::queue::{Event, WorldEvent};
use crate::scenario::Side;

/// What is on a disk.
#[derive(Clone, Default)]
struct Contents {
    records: BTreeMap<RecordKey, Record>,
    starts: u64,
    full: u32,
    /// The next record of a deployment is the last thing that its node writes.
    doom: Option<Doom>,
}

/// When a node dies while it writes.
#[derive(Clone, Copy, Debug)]
pub struct Doom {
    /// On which side of the write.
    pub side: Side,
    /// It starts again after so long.
    pub again_ns: Option<u64>,
}

/// A machine's disk.
#[derive(Default)]
pub struct Disk(Mutex<Contents>);

impl Disk {
    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another start of the node with this key: its incarnation.
    pub fn start(&self, node: NodeId) -> u64 {
        let mut contents = self.contents();
        let known = match contents.records.get(&RecordKey::Node(node)) {
            Some(Record::Node(record)) => record.incarnation,
            _ => 0,
        };
        contents.starts = contents.starts.max(known) + 1;
        contents.starts
    }

    /// Becomes a copy of another disk.
    pub fn copy(&self, other: &Self) {
        let copy = other.contents().clone();
        *self.contents() = copy;
    }

    /// Has no more room, or has some again.
    pub fn fill(&self, full: bool) {
        let count = &mut self.contents().full;
        *count = if full { *count + 1 } else { count.saturating_sub(1) };
    }

    /// Its node dies at the next write, or does not.
    pub fn doom(&self, doom: Option<Doom>) {
        self.contents().doom = doom;
    }

    /// Has room and is harmless.
    pub fn heal(&self) {
        let mut contents = self.contents();
        (contents.full, contents.doom) = (0, None);
    }
}

/// One life's view of its disk.
pub struct DiskStore {
    /// The disk.
    pub disk: Arc<Disk>,
    /// Whose.
    pub life: usize,
    /// Where it is noted.
    pub ground: Arc<Ground>,
}

impl Store for DiskStore {
    fn load(&self) -> Vec<Record> {
        self.disk.contents().records.values().cloned().collect()
    }

    fn save(&self, record: &Record) -> Result<(), String> {
        let mut contents = self.disk.contents();
        let deployment = matches!(record, Record::Deployment(_));
        let doom = if deployment { contents.doom.take() } else { None };
        self.ground.with(|inner| {
            if !inner.net.lives[self.life].alive {
                return Err("the process is gone".to_owned());
            }
            let node = inner.net.place_of(self.life);
            if contents.full > 0 {
                inner.net.note(Happening::NotSaved { node });
                return Err("no space left on device".to_owned());
            }
            if doom.is_none_or(|doom| doom.side == Side::After) {
                contents.records.insert(record.key(), record.clone());
                note_saved(inner, node, record);
            }
            if let Some(doom) = doom {
                inner.end_life(self.life, false, "killed while it wrote a record");
                let end = WorldEvent::End { life: self.life, why: "killed while it wrote a record", again_ns: doom.again_ns };
                inner.net.after(0, Event::World(end));
            }
            Ok(())
        })
    }

    fn erase(&self, key: RecordKey) -> Result<(), String> {
        let mut contents = self.disk.contents();
        if self.ground.with(|inner| inner.net.lives[self.life].alive) {
            contents.records.remove(&key);
        }
        Ok(())
    }
}

fn note_saved(inner: &mut Inner, node: usize, record: &Record) {
    let Record::Deployment(record) = record else { return };
    let deployment = inner.deployment(record.id);
    let status = match &record.status {
        _ if record.is_deleted() => "deleted".to_owned(),
        DeploymentStatus::Planning => "planning".to_owned(),
        DeploymentStatus::Loading { .. } => "loading".to_owned(),
        DeploymentStatus::Starting => "starting".to_owned(),
        DeploymentStatus::Ready => "ready".to_owned(),
        DeploymentStatus::Waiting { why, .. } => format!("waiting: {why}"),
        DeploymentStatus::Failed { why } => format!("failed: {why}"),
    };
    let plan = match &record.status {
        DeploymentStatus::Loading { plan } => Some(plan),
        _ => record.plan.as_ref(),
    };
    let plan = plan.map(|plan| inner.plan_in_words(plan)).unwrap_or_default();
    let by = inner.place_of(record.version.coordinator);
    let author = by == Some(node);
    let version = [record.version.term, record.version.epoch, record.version.revision];
    inner.net.note(Happening::Saved { node, deployment, version, status, plan, author, by });
}
