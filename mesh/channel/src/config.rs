//! What channels need to be told: interfaces and deadlines.

use std::time::Duration;

use mesh_core::links::Interface;

/// How channels shall run.
#[derive(Clone, Debug)]
pub struct ChannelConfig {
    /// Where to listen, and from where to connect, best guess first; see [`Channels::renew`](mesh_core::ports::Channels::renew).
    pub interfaces: Vec<Interface>,
    /// How long each thing may take.
    pub deadlines: Deadlines,
    /// Whether a lane between two ends of the same channels goes through memory. Off, it takes TCP like any other.
    pub in_process: bool,
}

impl ChannelConfig {
    /// Listens on loopback only.
    #[must_use]
    pub fn loopback() -> Self {
        Self { interfaces: vec![Interface::loopback()], deadlines: Deadlines::default(), in_process: true }
    }
}

/// How long each thing may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// From a connection's arrival until its preamble and proof are here; then it is closed.
    pub preamble: Duration,
    /// One try to connect one endpoint, handshake included.
    pub attempt: Duration,
    /// All tries to connect a lane; then it is down.
    pub connect: Duration,
    /// From `accept` until a sender has connected; then the lane is down.
    pub unclaimed: Duration,
    /// Silence after which the other end is held dead. Higher = slower failover, fewer false alarms.
    pub silent: Duration,
    /// Pause between keep-alive frames on an idle lane; several of them must fit into `silent`.
    pub keep_alive: Duration,
    /// How long a sender that was dropped goes on writing what was committed, and waits for the other end to hang up.
    pub linger: Duration,
}

impl Default for Deadlines {
    /// Guesses, but for `silent`, which DESIGN names, and `unclaimed`, which covers a neighbour that still wires up.
    fn default() -> Self {
        Self {
            preamble: Duration::from_secs(2),
            attempt: Duration::from_secs(1),
            connect: Duration::from_secs(5),
            unclaimed: Duration::from_secs(30),
            silent: Duration::from_secs(3),
            keep_alive: Duration::from_millis(750),
            linger: Duration::from_secs(1),
        }
    }
}
