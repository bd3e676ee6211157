//! Who reads contents: one thread while there is something to read, none else.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mesh_core::ids::Digest;
use mesh_core::model::Contents;
use mesh_core::ports::ModelError;

use super::cache::Cache;
use super::contents;
use super::pace::Pace;
use super::shelves::Shelves;

/// Contents that are known are looked at again after so long: files may have been replaced. That costs a few looks at
/// directories, and a reading only of what has changed.
const AGAIN: Duration = Duration::from_secs(60);
/// Models whose contents are asked for at most; more are not looked at. A mesh serves a handful.
const MODELS_MAX: usize = 256;

/// What is known of one model.
#[derive(Debug, Default)]
struct Known {
    last: Option<Result<Contents, ModelError>>,
    looked: Option<Instant>,
    wanted: bool,
}

#[derive(Debug, Default)]
struct Desk {
    known: BTreeMap<Digest, Known>,
    running: bool,
}

/// Reads contents in the background.
#[derive(Debug)]
pub(super) struct Reader {
    cache_file: Option<PathBuf>,
    desk: Arc<Mutex<Desk>>,
    stop: Arc<AtomicBool>,
}

impl Reader {
    pub fn new(cache_file: Option<PathBuf>) -> Self {
        Self { cache_file, desk: Arc::default(), stop: Arc::default() }
    }

    /// What is known; has it read if it is not, or not lately.
    pub fn contents(&self, shelves: &Arc<Shelves>, digest: Digest) -> Result<Option<Contents>, ModelError> {
        let mut desk = lock(&self.desk);
        if !desk.known.contains_key(&digest) && desk.known.len() >= MODELS_MAX {
            return Ok(None);
        }
        let known = desk.known.entry(digest).or_default();
        let answer = known.last.clone().transpose();
        if known.looked.is_none_or(|at| at.elapsed() >= AGAIN) && !self.stop.load(Ordering::Relaxed) {
            known.wanted = true;
            if !desk.running {
                desk.running = self.start(shelves);
            }
        }
        answer
    }

    /// Ends the reading soon, for good.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    fn start(&self, shelves: &Arc<Shelves>) -> bool {
        let work = Work { shelves: shelves.clone(), desk: self.desk.clone(), stop: self.stop.clone(), cache_file: self.cache_file.clone() };
        let thread = std::thread::Builder::new().name("mesh-contents".to_owned()).spawn(move || work.run());
        if let Err(error) = &thread {
            tracing::warn!(%error, "no thread to read models' contents: it is tried again");
        }
        thread.is_ok()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What the thread needs.
struct Work {
    shelves: Arc<Shelves>,
    desk: Arc<Mutex<Desk>>,
    stop: Arc<AtomicBool>,
    cache_file: Option<PathBuf>,
}

impl Work {
    fn run(self) {
        let mut cache = Cache::open(self.cache_file.as_deref());
        while let Some(digest) = self.next() {
            let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let origin = self.shelves.find(digest)?;
                contents::read(&origin, &mut cache, &mut Pace::new(&self.stop))
            }));
            let read = read.unwrap_or_else(|_| Err(ModelError::System("reading a model's contents broke off unexpectedly".to_owned())));
            if matches!(read, Err(ModelError::GivenUp)) {
                continue; // `next` ends it
            }
            let mut desk = lock(&self.desk);
            let known = desk.known.entry(digest).or_default();
            (known.last, known.looked, known.wanted) = (Some(read), Some(Instant::now()), false);
        }
    }

    /// The next model to read. With none left the thread ends, and the next question starts another one.
    fn next(&self) -> Option<Digest> {
        let mut desk = lock(&self.desk);
        let next = desk.known.iter().find(|(_, known)| known.wanted).map(|(digest, _)| *digest);
        let next = next.filter(|_| !self.stop.load(Ordering::Relaxed));
        desk.running = next.is_some();
        next
    }
}

fn lock(desk: &Mutex<Desk>) -> MutexGuard<'_, Desk> {
    // Nothing panics with the lock held.
    desk.lock().unwrap_or_else(PoisonError::into_inner)
}
