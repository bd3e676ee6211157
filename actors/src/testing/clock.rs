//! The machine's clock as a port.

use std::time::Instant;

use mesh_core::ids::Time;
use mesh_core::ports::Clock;

/// Time since it was made.
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts at one second.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the clock port")]
    pub fn start() -> Self {
        Self(Instant::now())
    }
}

impl Clock for Stopwatch {
    fn now(&self) -> Time {
        Time(1_000_000_000 + u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX / 2))
    }
}
