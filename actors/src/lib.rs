//! actix actors Node, Shard and Stream: thin shells around the pure cores of `mesh-core`, speaking to its ports.
//!
//! What this room must *not* know: libp2p, candle, sockets, files. It reads the clock port, never the machine's clock.

pub mod handle;
pub mod node;
pub mod router;
pub mod shard;
pub mod shard_inlet;
mod shard_lanes;
mod shard_thread;
mod shard_worker;
pub mod stream;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
pub mod workers;
