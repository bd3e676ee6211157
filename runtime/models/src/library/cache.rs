//! Hashes of files that were read whole, kept on disk: hundreds of gigabytes are read once, not at each start.
//!
//! A file is the one that was read if path, size, time of change and inode are the same. The cache is a help and no promise:
//! one that is damaged, or cannot be written, costs another reading.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

/// Files that are remembered at most; beyond it those that are gone are forgotten, then the first.
const FILES_MAX: usize = 8_192;
/// A cache of that many files has about 2 MB.
const BYTES_MAX: u64 = 16 << 20;

/// What shows that a file is still the one that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mark {
    bytes: u64,
    /// Nanoseconds since 1970; 0 if the system does not say.
    changed_ns: u64,
    inode: u64,
}

impl Mark {
    pub fn of(path: &Path) -> io::Result<Self> {
        let about = std::fs::metadata(path)?;
        let changed = about.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let changed_ns = changed.and_then(|time| u64::try_from(time.as_nanos()).ok()).unwrap_or(0);
        #[cfg(unix)]
        let inode = std::os::unix::fs::MetadataExt::ino(&about);
        #[cfg(not(unix))]
        let inode = 0;
        Ok(Self { bytes: about.len(), changed_ns, inode })
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    #[serde(flatten)]
    mark: Mark,
    hash: [u8; 32],
}

/// Hashes by path.
#[derive(Debug, Default)]
pub(super) struct Cache {
    place: Option<PathBuf>,
    entries: BTreeMap<PathBuf, Entry>,
    changed: bool,
}

impl Cache {
    /// The cache in this file; an empty one if there is none, or none that can be read. `None` = in memory only.
    pub fn open(place: Option<&Path>) -> Self {
        let entries = place.and_then(|place| {
            let small = std::fs::metadata(place).is_ok_and(|about| about.len() <= BYTES_MAX);
            serde_json::from_slice(&std::fs::read(place).ok().filter(|_| small)?).ok()
        });
        Self { place: place.map(Path::to_owned), entries: entries.unwrap_or_default(), changed: false }
    }

    pub fn get(&self, path: &Path, mark: &Mark) -> Option<[u8; 32]> {
        self.entries.get(path).filter(|entry| entry.mark == *mark).map(|entry| entry.hash)
    }

    pub fn put(&mut self, path: &Path, mark: Mark, hash: [u8; 32]) {
        if self.entries.len() >= FILES_MAX {
            self.entries.retain(|path, _| path.exists());
        }
        if self.entries.len() >= FILES_MAX {
            self.entries.pop_first();
        }
        self.entries.insert(path.to_owned(), Entry { mark, hash });
        self.changed = true;
        self.save();
    }

    /// Whole beside its place and renamed over it. A cache that cannot be written is kept in memory.
    fn save(&mut self) {
        let Some(place) = self.place.as_ref().filter(|_| self.changed) else { return };
        let beside = place.with_extension("new");
        let written = serde_json::to_vec(&self.entries)
            .map_err(io::Error::other)
            .and_then(|bytes| std::fs::write(&beside, bytes))
            .and_then(|()| std::fs::rename(&beside, place));
        match written {
            Ok(()) => self.changed = false,
            Err(error) => {
                tracing::debug!(%error, path = %place.display(), "hashes of model files cannot be kept on disk");
                let _ = std::fs::remove_file(&beside);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_is_remembered_until_the_file_changes() {
        let dir = tempfile::tempdir().unwrap();
        let (place, file) = (dir.path().join("contents.json"), dir.path().join("file"));
        std::fs::write(&file, "one").unwrap();
        let mark = Mark::of(&file).unwrap();
        Cache::open(Some(&place)).put(&file, mark, [7; 32]);
        let cache = Cache::open(Some(&place));
        assert_eq!(cache.get(&file, &mark), Some([7; 32]));
        // Another file under the same name, of the same length and age.
        let other = dir.path().join("other");
        std::fs::write(&other, "two").unwrap();
        let time = std::fs::metadata(&file).unwrap().modified().unwrap();
        std::fs::File::options().write(true).open(&other).unwrap().set_modified(time).unwrap();
        std::fs::rename(&other, &file).unwrap();
        assert_eq!(cache.get(&file, &Mark::of(&file).unwrap()), None);
    }

    #[test]
    fn a_damaged_cache_is_an_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("contents.json");
        for garbage in ["", "{", "[1]", "{\"a\": 3}", "{\"a\": {\"bytes\": 1, \"changed_ns\": 1, \"inode\": 1, \"hash\": [1]}}"] {
            std::fs::write(&place, garbage).unwrap();
            assert!(Cache::open(Some(&place)).entries.is_empty());
        }
    }
}
