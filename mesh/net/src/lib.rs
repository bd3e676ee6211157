//! The libp2p adapter: keys, invitations, discovery, hello, probes, gossip and control streams, behind
//! [`mesh_core::ports::Carrier`].
//!
//! One [`Net`] is one OS thread with its own current-thread runtime, so heartbeats never wait for an actor or an engine.
//! The decisions (who is alive, which of two links is used, clone or restart) are made by the pure
//! [`mesh_core::membership`]; this crate performs them.
//!
//! The layers of a connection: TCP → the mesh secret ([`admit`], pnet) → noise (the peer's key) → yamux → one control
//! stream ([`control`], [`frame`], [`link`]) beside gossipsub.
//!
//! What this room must *not* know: models, plans, tensors, actors. It reads no message but hello, goodbye, ping, pong and words.

mod admit;
#[cfg(feature = "mdns")]
mod announce;
mod clock;
#[cfg(target_os = "macos")]
mod clock_macos;
#[cfg(not(target_os = "macos"))]
mod clock_unix;
mod control;
mod counters;
mod dialer;
mod driver;
mod frame;
mod greeting;
mod ifaddrs;
mod interfaces;
mod key;
mod link;
mod listen;
mod mail;
mod net;
mod notices;
mod secret;
mod swarm;
mod token;

pub use clock::{SystemClock, SystemEntropy};
pub use counters::Counts;
pub use interfaces::interfaces;
pub use key::{KeyError, NodeKey};
pub use mesh_core::membership::Timings;
pub use net::{Net, NetConfig, NetError};
pub use secret::{MeshSecret, SecretError};
pub use token::{Token, TokenError};

#[cfg(test)]
mod tests;
