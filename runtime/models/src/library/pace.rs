//! Reading in the background without getting in anybody's way: a quarter of the time reads, three quarters rest.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mesh_core::ports::ModelError;

/// Rest for each time that was worked. A quarter of one core and of the disk's time is what nobody misses (guess): 400 GB
/// from a disk of 2 GB/s are read in a quarter of an hour.
const REST: u32 = 3;
/// Rests shorter than this are saved up: sleeping is coarse.
const REST_MIN: Duration = Duration::from_millis(2);
/// No rest is longer, whatever took so long before it: giving up must be noticed in time.
const REST_MAX: Duration = Duration::from_millis(100);

/// Keeps the pace, and says when to give up.
pub(super) struct Pace<'a> {
    stop: &'a AtomicBool,
    since: Instant,
}

impl<'a> Pace<'a> {
    pub fn new(stop: &'a AtomicBool) -> Self {
        Self { stop, since: Instant::now() }
    }

    /// Called after each piece of work.
    ///
    /// # Errors
    /// Told to give up.
    pub fn rest(&mut self) -> Result<(), ModelError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(ModelError::GivenUp);
        }
        let rest = self.since.elapsed() * REST;
        if rest >= REST_MIN {
            std::thread::sleep(rest.min(REST_MAX));
            self.since = Instant::now();
        }
        Ok(())
    }
}
