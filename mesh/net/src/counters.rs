//! What was counted rather than logged. Plain atomics: read by status pages, never by logic.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// How often something happened since the start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The live counters behind [`Counts`].
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub $name: Counter,)*
        }

        impl Counters {
            /// All of them, each read at its own moment.
            pub fn read(&self) -> Counts {
                Counts { $($name: self.$name.0.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Control messages of a kind that this version does not know: ignored (F37).
    unknown_kinds,
    /// Frames that were no frames or messages: the link was closed.
    malformed_frames,
    /// Gossip that was no record.
    malformed_gossip,
    /// Gossip about a node that another node said: ignored.
    foreign_gossip,
    /// Incoming connections that did not know the mesh secret, or were no mesh nodes at all (F24).
    strangers,
    /// Hellos that were refused: another version, another mesh, a clone.
    refused_hellos,
    /// Echoes that did not fit into a link's queue: the peer sends pings faster than it reads.
    echoes_dropped,
    /// Messages that did not fit into a link's queue, as the sender was told.
    messages_full,
    /// Records that were not gossiped: too long, nobody there, or the queue was full. Digests repair it.
    gossip_dropped,
}

/// One counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// One more.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
