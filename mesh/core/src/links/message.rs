//! What nodes tell each other about links, and what is known of one.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::ids::NodeId;
use crate::wire::LaneOffer;

/// Names a link of two nodes, the same at both ends: the interfaces of the node with the smaller id and of the other one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LinkName {
    /// Interface of the node with the smaller id.
    pub low: String,
    /// Interface of the other node.
    pub high: String,
}

impl std::fmt::Display for LinkName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.low, self.high)
    }
}

/// What a measurement gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    /// One-way delay of a short message, half of the median round trip, in microseconds.
    pub delay_us: u32,
    /// Bytes a second that full-size messages got, sealing included; 0 = not measured yet.
    pub bytes_per_s: u64,
}

/// How a link is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkState {
    /// Nobody has tried it yet.
    Untried,
    /// The last measurement came back.
    Up,
    /// The last try failed, for this reason.
    Down(String),
}

/// A control message about links.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkMessage {
    /// Low end to high end: let me measure this link.
    Ask {
        /// Names the question; the asker's counter.
        ticket: u64,
        /// Which link.
        link: LinkName,
        /// Whether many bytes will come.
        rate: bool,
    },
    /// High end to low end: the answer.
    Answer {
        /// Of which question.
        ticket: u64,
        /// Where to connect, or why not now.
        offer: Result<LaneOffer, NotNow>,
    },
    /// Low end to high end: how our links are, in the order in which both ends use them.
    Table(Vec<LinkSaid>),
    /// High end to low end: a lane on this link broke; please look.
    Doubt(LinkName),
}

/// Why a link cannot be measured now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotNow {
    /// The high end knows no such link (yet), or cannot listen on it.
    Unknown,
    /// Streams run there, or another measurement: no rate now, a delay is welcome.
    Busy,
}

/// One line of a [`LinkMessage::Table`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkSaid {
    /// Which link.
    pub link: LinkName,
    /// How it is.
    pub state: LinkState,
    /// What it gave when it was measured last.
    pub measured: Option<Measured>,
}

/// One way of a link, as one end sees it: from which address to which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// Which link.
    pub link: LinkName,
    /// This end's interface.
    pub local_interface: String,
    /// This end's address.
    pub local: IpAddr,
    /// The other end's interface.
    pub remote_interface: String,
    /// The other end's address.
    pub remote: IpAddr,
    /// Both are on one network.
    pub direct: bool,
    /// A measurement came back on it.
    pub proven: bool,
}

/// The best link to a peer, as the node with the smaller id measured it; travels in that node's record, for planners.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Path {
    /// To whom.
    pub peer: NodeId,
    /// What it gives.
    pub measured: Measured,
}

/// Paths that a record carries at most.
pub const PATHS_MAX: usize = 256;
