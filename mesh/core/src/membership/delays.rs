//! How late a peer's echoes were lately, and what patience follows from it.
//!
//! Loss on a stream shows as delay: a lost segment costs a retransmission time-out (200 ms and more, doubled each time,
//! RFC 6298), and all behind it waits. A mean and deviation (Jacobson) forget such rare long delays within seconds; the
//! maximum over a window of about a minute keeps them. So a quiet wire stays at the floor, and Wi-Fi that stalls for 600 ms
//! now and then widens its own deadlines and nobody else's.

use crate::ids::Time;

use super::Timings;

/// The window is this long to twice as long.
const HALF_MS: u64 = 30_000;

/// A node is held dead after this many times the longest delay of the window. A lost segment's next time-out is twice the
/// one before, which adds up to a little more than two; three leaves a margin (chosen in simulation, see
/// `tests/membership.rs`: at 5 % loss, two gave suspicions of the living several times a minute).
const PATIENCE: u64 = 3;

/// The longest delays of the running half of the window and of the one before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Delays {
    since: Time,
    running_ms: u64,
    before_ms: u64,
}

impl Delays {
    /// An echo came so late.
    pub fn note(&mut self, now: Time, ms: u64) {
        match now.ms_since(self.since) / HALF_MS {
            0 => {}
            1 => (self.since, self.before_ms, self.running_ms) = (now, self.running_ms, 0),
            _ => *self = Self { since: now, ..Self::default() },
        }
        self.running_ms = self.running_ms.max(ms);
    }

    /// From a probe without echo until its node is held dead.
    pub fn dead_ms(&self, timings: &Timings) -> u64 {
        let longest = self.running_ms.max(self.before_ms);
        longest.saturating_mul(PATIENCE).min(timings.dead_max_ms).max(timings.dead_ms)
    }

    /// From a probe without echo until its node is suspected: stretched as much.
    pub fn suspect_ms(&self, timings: &Timings) -> u64 {
        timings.suspect_ms.saturating_mul(self.dead_ms(timings)) / timings.dead_ms.max(1)
    }

    /// From a probe without echo until more is done than asking a few others: half-way from suspicion to verdict.
    pub fn half_ms(&self, timings: &Timings) -> u64 {
        self.suspect_ms(timings).midpoint(self.dead_ms(timings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_follows_the_longest_delay_of_about_a_minute() {
        let (mut delays, timings) = (Delays::default(), Timings::default());
        let at = |ms| Time::default().plus_ms(ms);
        let dead = |delays: &Delays| delays.dead_ms(&timings);
        assert_eq!((dead(&delays), delays.suspect_ms(&timings)), (700, 300));
        delays.note(at(10), 200);
        assert_eq!(dead(&delays), 700, "the floor");
        delays.note(at(20), 600);
        delays.note(at(30), 5);
        assert_eq!((dead(&delays), delays.suspect_ms(&timings)), (1_800, 771));
        delays.note(at(31_000), 5);
        assert_eq!(dead(&delays), 1_800, "still in the window");
        delays.note(at(62_000), 5);
        assert_eq!(dead(&delays), 700, "forgotten");
        delays.note(at(62_001), 60_000);
        assert_eq!(dead(&delays), 5_000, "the ceiling");
        delays.note(at(200_000), 1);
        assert_eq!(dead(&delays), 700);
        let slow = Timings { dead_ms: 9_000, ..timings };
        assert_eq!(delays.dead_ms(&slow), 9_000, "a floor above the ceiling is the floor");
    }
}
