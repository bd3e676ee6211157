//! What happened at the door and on the lanes, in numbers.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since the channels were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ChannelCounters {
    /// Connections that proved to be a lane's sender.
    pub accepted: u64,
    /// Connections that were closed because preamble or proof were wrong, or their lane was unknown, over or taken.
    pub refused: u64,
    /// Connections that said too little in time, or gave way to newer ones while the door was crowded.
    pub late: u64,
    /// Lanes that ended for another reason than a goodbye.
    pub broken: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) accepted: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) late: AtomicU64,
    pub(crate) broken: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> ChannelCounters {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ChannelCounters { accepted: of(&self.accepted), refused: of(&self.refused), late: of(&self.late), broken: of(&self.broken) }
    }
}
