//! Tensor channels: the lanes on which stages hand each other activations.
//!
//! A *lane* carries step messages in one direction between two stages. Its receiver owns an *arena* of equal *slots*; a
//! sender may fill a slot only with a *credit*, which the receiver gives back by releasing a slot. One accept and one
//! connection make a *generation*: its memory and its keys serve that generation only (DESIGN section 10, rule R11).
//! Lanes never resend: what a broken generation lost is made good by the stages (R13).
//!
//! [`TensorChannels`] implements [`mesh_core::ports::Channels`] with two carriers behind one suite of tests: slots handed over
//! inside the process, and TCP with sealed frames. What a message of `b` bytes costs on its way, so that a measurement
//! has something to disagree with:
//!
//! ```text
//! in process  no copy, no system call; two short locks and one wake
//! TCP         sealed in place (b / 2 GB/s), one sendmsg; poll, recv of 56 bytes, recv of b into a free slot, opened in place
//!             (b / 2 GB/s: measured on a busy EPYC); every half arena of messages one credit frame of 56 bytes comes back
//! ```
//!
//! Which addresses a lane takes is decided elsewhere (`mesh_core::links`): this room is told an order of ways to each node
//! ([`Channels::prefer`](mesh_core::ports::Channels::prefer)), offers them in that order, and measures links when asked, with
//! a lane of one slot.
//!
//! This room must not know: what is in a message, what a stage or a stream is, libp2p, actors. It is threads and sockets
//! only, because a data path has no place on a runtime with millisecond timers (DESIGN section 16).

mod arena;
mod book;
mod channels;
mod config;
mod counters;
mod endpoint;
mod frame;
mod inlet;
mod listeners;
mod local;
mod measure;
mod poll;
mod registry;
mod ring;
mod seal;
mod tcp;

pub use arena::{ARENA_BYTES_MAX, SLOT_BYTES_MAX, SLOTS_MAX};
pub use channels::TensorChannels;
pub use config::{ChannelConfig, Deadlines};
pub use counters::ChannelCounters;
pub use endpoint::{ENDPOINT_BYTES_MAX, ENDPOINTS_MAX};
pub use listeners::LISTENERS_MAX;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also after a panic elsewhere: what these locks guard is whole between any two statements (F27).
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
