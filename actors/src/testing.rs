//! A world in memory for tests and the simulator: a clock, lanes, control connections between nodes of one process, and
//! whole clusters of shards that run the toy model. Compiled for tests and with the feature `testing` only.

mod clock;
mod cluster;
mod inline;
mod lanes;
mod net;
mod nodes;

pub use clock::Stopwatch;
pub use cluster::{Cluster, ClusterShape};
pub use inline::{Inline, Pace, Wait};
pub use lanes::MemoryLanes;
pub use net::{MemoryCarrier, MemoryNet};
pub use nodes::{Dice, MemoryStore, Nodes};
