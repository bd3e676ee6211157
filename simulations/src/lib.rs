//! Worlds, faults and checkers that drive the shipped actors and cores on virtual time.
//!
//! A [`Scenario`] (a TOML file) and a [`Seed`] make a world: machines, links, traffic, faults. The nodes in it are the ones
//! that ship; what is simulated is what lies around them: the clock, connections, lanes, disks, how long a layer takes.
//! The same seed gives the same trace, byte for byte, in another process too.
//!
//! ```
//! use mesh_simulations::{Options, Scenario, Seed, run};
//!
//! let scenario = Scenario::parse(
//!     r#"
//!     title = "one of three is killed"
//!     world.run_s = 12
//!     [[nodes]]
//!     name = "n"
//!     count = 3
//!     [[faults]]
//!     at_ms = 8000
//!     crash = "n2"
//!     for_ms = 2000
//!     "#,
//! )
//! .expect("a scenario");
//! let outcome = run(&scenario, Seed(7), Options::default());
//! assert!(outcome.is_green(), "{:?}", outcome.violations);
//! ```
//!
//! [`explore`] runs many seeds side by side; [`shrink`] takes faults out of a scenario that fails, one by one, while it still
//! does. `Outcome::timeline` is what a picture is made of.
//!
//! What this room must *not* know: real time, real sockets. What it may: everything that is public of the cores and actors.

mod carrier;
mod checks;
mod dice;
mod disk;
mod draw;
mod explore;
mod ground;
pub mod happening;
mod models;
mod net;
pub mod outcome;
mod outside;
mod ports;
pub mod report;
mod run;
pub mod scenario;
mod story;
pub mod timeline;
mod world;

pub use dice::{Dice, Seed};
pub use draw::expand;
pub use explore::{Explored, explore, shrink};
pub(crate) use ground::EPOCH_NS;
pub use outcome::{Demand, Kind, Metrics, Outcome, Violation};
pub use run::{Options, run};
pub use scenario::{Scenario, ScenarioError};
pub use timeline::Timeline;
