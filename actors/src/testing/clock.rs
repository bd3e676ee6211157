//! The machine's clock as a port.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use mesh_core::ids::Time;
use mesh_core::lifetimes::Wall;
use mesh_core::ports::Clock;

/// Time since it was made.
pub struct Stopwatch(Instant, AtomicU64);

impl Stopwatch {
    /// Starts at one second.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the clock port")]
    pub fn start() -> Self {
        Self(Instant::now(), AtomicU64::new(0))
    }

    /// Lets the calendar, and nothing else, jump ahead.
    pub fn days_pass(&self, days: u64) {
        self.1.fetch_add(days * 24 * 3_600_000, Ordering::Relaxed);
    }
}

impl Clock for Stopwatch {
    fn now(&self) -> Time {
        Time(1_000_000_000 + u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX / 2))
    }
    fn wall(&self) -> Wall {
        Wall(self.now().0 / 1_000_000).plus_ms(self.1.load(Ordering::Relaxed))
    }
}
