//! The pure heart of `mesh`: identities, records, plans, streams, stages, wire types and ports.
//!
//! What this room must *not* know: sockets, files, clocks, threads, async, randomness, candle, libp2p, actix. Time and
//! random bits are handed in; maps have an order. Same history, same effects: that is what lets the simulator run the
//! shipped code.

pub mod deployments;
pub mod directory;
pub mod generation;
pub mod ids;
pub mod lifetimes;
pub mod links;
pub mod membership;
pub mod model;
pub mod mutation;
pub mod plan;
pub mod planner;
pub mod ports;
pub mod records;
pub mod stage;
pub mod step_message;
pub mod stream;
#[cfg(any(test, feature = "testing"))]
pub mod toy;
pub mod wire;
