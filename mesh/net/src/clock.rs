//! The two sources that the cores may not have: a clock that counts sleep (R8), and random bits.

use mesh_core::ids::Time;
use mesh_core::lifetimes::Wall;
use mesh_core::ports::{Clock, Entropy};

#[cfg(target_os = "macos")]
use crate::clock_macos::nanoseconds;
#[cfg(not(target_os = "macos"))]
use crate::clock_unix::nanoseconds;

/// Time since boot, sleep included: a laptop that was shut for an hour sees the hour.
///
/// std's `Instant` stands still during sleep on Linux and macOS and would hide it.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Time {
        Time(nanoseconds())
    }
    fn wall(&self) -> Wall {
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Wall(u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX))
    }
}

/// The operating system's random bits, through `rand`'s generator of this thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn draw(&self) -> u128 {
        rand::random()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_forward_and_draws_differ() {
        let first = SystemClock.now();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(SystemClock.now() >= first.plus_ms(2));
        assert_ne!(SystemEntropy.draw(), SystemEntropy.draw());
    }
}
