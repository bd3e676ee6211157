//! How long records are told and kept, by the wall clock (R16, F35).
//!
//! What ends, ends by the clocks of many nodes, and clocks differ. So each record is *told* for one time and *kept* for a
//! seventh longer: as long as clocks differ by less than that seventh, whoever still tells a record meets only nodes that
//! still keep it, and a record that has ended is neither offered, nor asked for, nor taken back. All nodes of a mesh should
//! use the same times; if they do not, records are exchanged in vain, but nothing comes back.

use serde::{Deserialize, Serialize};

/// Milliseconds since 1970 by a node's wall clock. Clocks of two nodes differ, and may jump: compare with a margin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Wall(pub u64);

impl Wall {
    /// The moment `ms` milliseconds later; saturates.
    #[must_use]
    pub const fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }
    /// Milliseconds from `earlier` until here; zero if `earlier` is later.
    #[must_use]
    pub const fn ms_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

const HOUR_MS: u64 = 3_600_000;

/// A deleted deployment's tombstone is told so long (R16). Guess: longer than a machine is away in ordinary life.
pub const TOMBSTONE_MS: u64 = 7 * 24 * HOUR_MS;
/// A node that is down is shown and told of so long (F35), and its forgetting as long. Guess: over a night and a day.
pub const DOWN_MS: u64 = 24 * HOUR_MS;
/// A node that said goodbye is shown so long (F35). Guess: until whoever wondered has looked.
pub const LEFT_MS: u64 = HOUR_MS / 6;

/// How long what has ended is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// Tombstones of deployments; see [`TOMBSTONE_MS`].
    pub tombstone_ms: u64,
    /// Nodes that are down; see [`DOWN_MS`].
    pub down_ms: u64,
    /// Nodes that left are shown so long; see [`LEFT_MS`].
    pub left_ms: u64,
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self { tombstone_ms: TOMBSTONE_MS, down_ms: DOWN_MS, left_ms: LEFT_MS }
    }
}

impl Lifetimes {
    /// A running node renews the time in its record so often: an hour for a day, so that "down since" is not far off.
    #[must_use]
    pub const fn renew_ms(&self) -> u64 {
        self.down_ms / 24
    }
    /// Stamps of two nodes say which is later only if they differ by more than this: the renewal and the clocks.
    #[must_use]
    pub const fn margin_ms(&self) -> u64 {
        let (renewals, most) = (2 * self.renew_ms(), self.tombstone_ms / 2);
        if renewals < most { renewals } else { most }
    }
}

/// How long something is kept that is told for `told_ms`.
#[must_use]
pub const fn kept_ms(told_ms: u64) -> u64 {
    told_ms.saturating_add(told_ms / 7)
}

// Clocks ten minutes apart are within the margin between telling and keeping.
const _: () = assert!(kept_ms(DOWN_MS) - DOWN_MS > HOUR_MS / 6 && LEFT_MS < DOWN_MS && DOWN_MS <= TOMBSTONE_MS);
