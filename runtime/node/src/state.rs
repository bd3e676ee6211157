//! The state directory: key, secret, incarnation, records. One node at a time may hold it.
//!
//! ```text
//! lock            held by the running node (an advisory lock, gone when the process is)
//! node.key        ed25519 seed, mode 0600
//! mesh.json       name and secret of the mesh, mode 0600
//! incarnation     counts starts; raised on disk before joining (R15)
//! records/*.rec   newest version of each deployment record, one file each
//! records/*.node  what nodes last said about themselves: where to look for the others after a restart, and when this one ran
//! records/*.other what newer programs said: carried on
//! contents.json   hashes of model files that were read whole: a cache, safe to remove
//! api.json        where the running node serves HTTP, for the other commands; removed at a clean stop
//! ```
//! Every file is written whole beside its place and renamed over it, so a full disk or a power cut leaves the old one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use mesh_core::ids::NodeId;
use mesh_core::ports::Store;
use mesh_core::records::{Record, RecordKey};
use mesh_core::wire;
use serde::{Deserialize, Serialize};

/// The directory, open and locked by this process.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    _lock: Option<File>,
}

/// Name and secret of a mesh, as kept on disk.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshIdentity {
    /// Name of the mesh.
    pub name: String,
    /// 32 bytes as hex.
    pub secret: String,
}

/// Where a running node serves HTTP.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ApiPlace {
    /// `http://ADDRESS`.
    pub url: String,
    /// Process id of the node.
    pub pid: u32,
    /// The key, if one is demanded.
    pub key: Option<String>,
}

/// The state directory cannot be used. Says which file, why, and what would help.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Cannot be made, read or written.
    #[error("the state directory {path} cannot be used: {error}; choose another with --state-dir or MESH_STATE_DIR")]
    Unusable {
        /// The path.
        path: PathBuf,
        /// What the operating system said.
        error: io::Error,
    },
    /// Another node runs on it.
    #[error("a node is already running on {path}; stop it, or give this one its own --state-dir")]
    Locked {
        /// The path.
        path: PathBuf,
    },
    /// A file in it is not what it should be.
    #[error("{path} is damaged ({why}); restore it, or move the state directory away to start as a new node")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The token names another mesh than the directory.
    #[error(
        "this node belongs to mesh \"{have}\" already (in {path}) and the token is for \"{want}\": use another --state-dir, or remove that file to move over"
    )]
    OtherMesh {
        /// The file.
        path: PathBuf,
        /// The mesh on disk.
        have: String,
        /// The mesh in the token.
        want: String,
    },
}

impl StateDir {
    /// Makes the directory if need be, locks it, and checks that it can be written.
    ///
    /// # Errors
    /// Unwritable, or in use by another node.
    pub fn open(path: &Path) -> Result<Self, StateError> {
        let unusable = |error| StateError::Unusable { path: path.to_owned(), error };
        fs::create_dir_all(path.join("records")).map_err(unusable)?;
        restrict(path).map_err(unusable)?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(path.join("lock")).map_err(unusable)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(StateError::Locked { path: path.to_owned() }),
            Err(fs::TryLockError::Error(error)) => return Err(unusable(error)),
        }
        Ok(Self { path: path.to_owned(), _lock: Some(lock) })
    }

    /// The directory for reading only, without its lock: for commands beside a running node.
    #[must_use]
    pub fn peek(path: &Path) -> Self {
        Self { path: path.to_owned(), _lock: None }
    }

    /// The node key's file.
    #[must_use]
    pub fn key_path(&self) -> PathBuf {
        self.path.join("node.key")
    }

    /// Where hashes of model files are kept.
    #[must_use]
    pub fn contents_path(&self) -> PathBuf {
        self.path.join("contents.json")
    }

    fn identity_path(&self) -> PathBuf {
        self.path.join("mesh.json")
    }

    /// The mesh this node belongs to, if it has one yet.
    ///
    /// # Errors
    /// Unreadable or damaged.
    pub fn identity(&self) -> Result<Option<MeshIdentity>, StateError> {
        let path = self.identity_path();
        let Some(text) = read_if_there(&path)? else { return Ok(None) };
        serde_json::from_slice(&text).map(Some).map_err(|error| StateError::Damaged { path, why: error.to_string() })
    }

    /// Makes `wanted` this node's mesh; refuses if it belongs to another one.
    ///
    /// # Errors
    /// Another mesh is on disk, or the disk refused.
    pub fn adopt(&self, wanted: &MeshIdentity) -> Result<(), StateError> {
        let path = self.identity_path();
        match self.identity()? {
            Some(have) if have == *wanted => Ok(()),
            Some(have) => Err(StateError::OtherMesh { path, have: have.name, want: wanted.name.clone() }),
            None => self.write(&path, &serde_json::to_vec_pretty(wanted).expect("plain data")),
        }
    }

    /// Raises the incarnation and writes it down. `at_least` is the greatest that others have seen of us.
    ///
    /// # Errors
    /// Damaged, or the disk refused.
    pub fn next_incarnation(&self, at_least: u64) -> Result<u64, StateError> {
        let path = self.path.join("incarnation");
        let last = match read_if_there(&path)? {
            None => 0,
            Some(text) => String::from_utf8_lossy(&text)
                .trim()
                .parse::<u64>()
                .map_err(|error| StateError::Damaged { path: path.clone(), why: error.to_string() })?,
        };
        let next = last.max(at_least).saturating_add(1);
        self.write(&path, next.to_string().as_bytes())?;
        Ok(next)
    }

    /// Writes where HTTP is served.
    ///
    /// # Errors
    /// The disk refused.
    pub fn write_api(&self, place: &ApiPlace) -> Result<(), StateError> {
        self.write(&self.path.join("api.json"), &serde_json::to_vec_pretty(place).expect("plain data"))
    }

    /// Where the node on this directory serves HTTP, if it runs.
    #[must_use]
    pub fn api(&self) -> Option<ApiPlace> {
        serde_json::from_slice(&fs::read(self.path.join("api.json")).ok()?).ok()
    }

    /// Forgets where HTTP was served.
    pub fn remove_api(&self) {
        let _ = fs::remove_file(self.path.join("api.json"));
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), StateError> {
        write_whole(path, bytes, true).map_err(|error| StateError::Unusable { path: path.to_owned(), error })
    }

    /// The records on disk, as the port that the actors use.
    #[must_use]
    pub fn store(&self) -> RecordFiles {
        RecordFiles { dir: self.path.join("records") }
    }
}

/// One file for each deployment record, and one for each node that was met.
#[derive(Clone, Debug)]
pub struct RecordFiles {
    dir: PathBuf,
}

/// First bytes of a record file: format and version. A newer format is refused with text, not destroyed (F148).
const RECORD_MAGIC: &[u8; 8] = b"meshrec1";

impl RecordFiles {
    fn path_of(&self, key: RecordKey) -> PathBuf {
        self.dir.join(match key {
            RecordKey::Deployment(id) => format!("{id}.rec"),
            RecordKey::Node(id) => format!("{id}.node"),
            RecordKey::Other(kind, id) => format!("{kind}-{}.other", NodeId(id)),
        })
    }

    fn read(path: &Path) -> Result<Record, String> {
        let bytes = fs::read(path).map_err(|error| error.to_string())?;
        let body = bytes.strip_prefix(RECORD_MAGIC).ok_or("written by another version")?;
        if body.len() < 32 {
            return Err("truncated".to_owned());
        }
        let (sum, body) = body.split_at(32);
        if blake3::hash(body).as_bytes() != sum {
            return Err("its checksum does not match".to_owned());
        }
        wire::decode(body).map_err(|error| error.to_string())
    }
}

impl Store for RecordFiles {
    fn load(&self) -> Vec<Record> {
        let Ok(entries) = fs::read_dir(&self.dir) else { return Vec::new() };
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.sort();
        paths
            .iter()
            .filter(|path| path.extension().is_some_and(|extension| ["rec", "node", "other"].iter().any(|known| extension == *known)))
            .filter_map(|path| match Self::read(path) {
                Ok(record) => Some(record),
                Err(why) => {
                    tracing::warn!(path = %path.display(), why, "a record on disk cannot be read and is left alone");
                    None
                }
            })
            .collect()
    }

    fn save(&self, record: &Record) -> Result<(), String> {
        let body = wire::encode(record).map_err(|error| error.to_string())?;
        let bytes = [RECORD_MAGIC.as_slice(), blake3::hash(&body).as_bytes(), &body].concat();
        let path = self.path_of(record.key());
        // Where a node was last is a help, not a promise: it need not survive a power cut, and is not worth a flush.
        let flush = matches!(record, Record::Deployment(_));
        write_whole(&path, &bytes, flush).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn erase(&self, key: RecordKey) -> Result<(), String> {
        let path = self.path_of(key);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(format!("{}: {error}", path.display())),
            _ => Ok(()),
        }
    }
}

/// Writes beside, flushes to the disk if asked, renames over: all of the old or all of the new.
fn write_whole(path: &Path, bytes: &[u8], flush: bool) -> io::Result<()> {
    let beside = path.with_extension("new");
    let written = (|| {
        let mut options = OpenOptions::new();
        options.create(true).truncate(true).write(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&beside)?;
        file.write_all(bytes)?;
        if flush {
            file.sync_all()?;
        }
        fs::rename(&beside, path)?;
        if flush { File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all() } else { Ok(()) }
    })();
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, StateError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StateError::Unusable { path: path.to_owned(), error }),
    }
}

/// Secrets lie here: nobody else may look in.
fn restrict(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use mesh_core::ids::{DeploymentId, Digest};
    use mesh_core::model::ModelSheet;
    use mesh_core::records::{DeploymentRecord, DeploymentStatus, OtherRecord, PlanId, Wish};

    fn record(id: u128) -> Record {
        Record::Deployment(DeploymentRecord {
            id: DeploymentId(id),
            sheet: ModelSheet {
                name: "m".to_owned(),
                digest: Digest([1; 32]),
                architecture: "llama".to_owned(),
                storage: "f32".to_owned(),
                layers: Vec::new(),
                embed_bytes: 0,
                head_bytes: 0,
                head_flops: 0,
                tied: false,
                hidden_width: 8,
                vocabulary: 8,
                context_max: 8,
            },
            contents: None,
            wish: Wish { split: None, context: None, streams: 1, place: Vec::new() },
            version: PlanId { term: 1, epoch: 0, revision: 0, coordinator: NodeId([2; 32]) },
            plan: None,
            status: DeploymentStatus::Planning,
            deleted: None,
        })
    }

    #[test]
    fn one_node_at_a_time_and_incarnations_rise() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let state = StateDir::open(dir.path()).expect("opens");
        assert!(matches!(StateDir::open(dir.path()), Err(StateError::Locked { .. })));
        assert_eq!(
            (state.next_incarnation(0).ok(), state.next_incarnation(0).ok(), state.next_incarnation(9).ok()),
            (Some(1), Some(2), Some(10))
        );
        drop(state);
        assert_eq!(StateDir::open(dir.path()).expect("free again").next_incarnation(0).ok(), Some(11));
    }

    #[test]
    fn a_damaged_record_is_passed_over_and_left_alone() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let state = StateDir::open(dir.path()).expect("opens");
        let store = state.store();
        store.save(&record(1)).expect("saved");
        store.save(&record(2)).expect("saved");
        assert_eq!(store.load().len(), 2);
        let path = store.path_of(RecordKey::Deployment(DeploymentId(1)));
        let mut bytes = fs::read(&path).expect("there");
        *bytes.last_mut().expect("not empty") ^= 1;
        fs::write(&path, &bytes).expect("written");
        assert_eq!(store.load(), vec![record(2)]);
        assert!(path.exists());
    }

    #[test]
    fn the_disk_holds_newest_versions_only_and_what_is_erased_is_gone() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = StateDir::open(dir.path()).expect("opens").store();
        let files = || fs::read_dir(dir.path().join("records")).expect("there").count();
        let other = Record::Other(OtherRecord { kind: 9, format: 1, id: [3; 32], version: vec![1], body: vec![7; 5] });
        for _ in 0..20 {
            [record(1), record(2), other.clone()].iter().for_each(|record| store.save(record).expect("saved"));
        }
        assert_eq!(files(), 3);
        assert!(store.load().contains(&other));
        for key in [record(1).key(), other.key(), other.key()] {
            store.erase(key).expect("erased, or not there");
        }
        assert_eq!((files(), store.load()), (1, vec![record(2)]));
    }

    #[test]
    fn a_node_does_not_change_its_mesh_by_accident() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let state = StateDir::open(dir.path()).expect("opens");
        let home = MeshIdentity { name: "home".to_owned(), secret: "00".repeat(32) };
        state.adopt(&home).expect("first");
        state.adopt(&home).expect("the same again");
        let other = MeshIdentity { secret: "11".repeat(32), ..home };
        assert!(matches!(state.adopt(&other), Err(StateError::OtherMesh { .. })));
    }
}
