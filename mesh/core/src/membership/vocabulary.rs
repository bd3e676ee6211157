//! What goes into the core and what comes out of it, in the words of SWIM and of our rules.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{BootId, NodeId};

/// Names one connection to another node, drawn by the carrier; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// How long to wait for what, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timings {
    /// Between two probes of a link in a small mesh, and of a suspect in any.
    pub probe_ms: u64,
    /// From a probe without echo until its node is suspected, on a link whose echoes are quick.
    pub suspect_ms: u64,
    /// From that probe until it is held dead, likewise. A node that freezes right after an echo is probed `probe_ms` later,
    /// so it is held dead after `probe_ms + dead_ms`: 900 ms of the budget of a second (DESIGN 15).
    pub dead_ms: u64,
    /// Links whose echoes are late stretch the two above up to this (guess: Wi-Fi that is worse is as good as gone).
    pub dead_max_ms: u64,
    /// From the end of a link until its node is held dead if no redial was accepted or refused before.
    pub redial_ms: u64,
    /// From a knock until both ends must have accepted.
    pub greet_ms: u64,
}

impl Default for Timings {
    fn default() -> Self {
        Self { probe_ms: 200, suspect_ms: 300, dead_ms: 700, dead_max_ms: 5_000, redial_ms: 1_000, greet_ms: 5_000 }
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A valid hello came in on a new link.
    Knock {
        /// The link.
        link: LinkId,
        /// Who, authenticated.
        node: NodeId,
        /// Which of its lives.
        boot: BootId,
    },
    /// The other end accepted the link: its first probe came.
    Accepted(LinkId),
    /// An echo came in.
    Echo {
        /// On which link.
        link: LinkId,
        /// Of which nonce.
        nonce: u64,
    },
    /// A member said something about a third one, on any link of its.
    Heard {
        /// Who, authenticated.
        from: NodeId,
        /// What.
        word: Word,
    },
    /// A link is gone.
    Ended {
        /// Which.
        link: LinkId,
        /// The other end said goodbye: no evidence of a crash, and no reason to redial at once.
        on_purpose: bool,
        /// In words.
        why: String,
    },
    /// How a [`Effect::Redial`] went. Success shows as a knock.
    Redialled {
        /// Whom.
        node: NodeId,
        /// Every known address refused, or belongs to someone else: nobody listens there. False = no answer, or no route.
        refused: bool,
    },
    /// Our own side wants no links to this node.
    Drop(NodeId),
    /// Time passed.
    Elapsed,
}

/// What to do, or what became known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send this nonce on this link. The first one on a link tells the other end that the link is accepted.
    Probe {
        /// The link.
        link: LinkId,
        /// To be echoed.
        nonce: u64,
    },
    /// Say this to a node that is up, on the link in use. Overtakes other mail; may be lost.
    Tell {
        /// To whom; never to ourselves.
        to: NodeId,
        /// What.
        word: Word,
    },
    /// Close this link; it is forgotten here already.
    Close {
        /// Which.
        link: LinkId,
        /// Why.
        why: Closing,
    },
    /// Dial every known address of this node now and answer with [`Input::Redialled`].
    Redial(NodeId),
    /// The node is up, in this life, and reached by this link.
    Up {
        /// Who.
        node: NodeId,
        /// Which life.
        boot: BootId,
        /// The link in use.
        link: LinkId,
    },
    /// The same life is now reached by another link.
    Moved {
        /// Who.
        node: NodeId,
        /// The link in use.
        link: LinkId,
    },
    /// Echoes are overdue, or the link ended. Said again when the reason changes.
    Suspect {
        /// Who.
        node: NodeId,
        /// Why.
        why: Suspicion,
    },
    /// A suspected node echoed, or came back in the same life.
    Trusted(NodeId),
    /// Held dead until it knocks again.
    Down {
        /// Who.
        node: NodeId,
        /// Why.
        why: Death,
    },
    /// This process was frozen, slept or starved: what it believes may be old. Publish nothing (R8).
    Waking,
    /// Every peer has echoed a fresh probe since, or missed it: go on.
    Awake,
}

/// What members say to each other about a third one (SWIM: Das, Gupta and Motivala 2002). Part of the wire format: append
/// only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Word {
    /// To any other member: ping this node for me, with this nonce of mine.
    Ask {
        /// Whom.
        suspect: NodeId,
        /// To be echoed.
        nonce: u64,
    },
    /// That member to the suspect: echo this.
    Ping {
        /// Who drew the nonce.
        origin: NodeId,
        /// To be echoed.
        nonce: u64,
    },
    /// The suspect to that member: the echo.
    Echo {
        /// Who drew the nonce.
        origin: NodeId,
        /// The nonce.
        nonce: u64,
        /// Which life of the suspect echoes.
        boot: BootId,
    },
    /// That member to who asked: here is the echo.
    Brought {
        /// Whose.
        suspect: NodeId,
        /// Of which nonce.
        nonce: u64,
        /// Which life of the suspect echoed.
        boot: BootId,
    },
    /// To all: this node does not echo, and nobody whom I asked brought an echo. Judge for yourselves.
    Suspect {
        /// Who.
        node: NodeId,
        /// Which life of it.
        boot: BootId,
        /// The greatest refutation that the sender has heard from it: names the wave of suspicion.
        refuted: u32,
    },
    /// The suspected node to all: waves of suspicion below this are void. Its own counter, not its incarnation (R15).
    Refute {
        /// Greater than every wave that it heard of.
        refuted: u32,
    },
}

impl Word {
    /// The third node whose state the hearer may change.
    pub(super) fn subject(&self) -> Option<NodeId> {
        match self {
            Self::Brought { suspect, .. } => Some(*suspect),
            Self::Suspect { node, .. } => Some(*node),
            Self::Ask { .. } | Self::Ping { .. } | Self::Echo { .. } | Self::Refute { .. } => None,
        }
    }
}

/// Why a node is suspected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspicion {
    /// It has not echoed a probe in time.
    Silent,
    /// The connection ended and no new one has come about yet.
    Ended,
    /// Nothing comes directly; its echoes are brought by this node.
    OnlyThrough(NodeId),
}

impl fmt::Display for Suspicion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent => f.write_str("it does not echo probes"),
            Self::Ended => f.write_str("the connection ended"),
            Self::OnlyThrough(node) => write!(f, "reached only through {}", node.short()),
        }
    }
}

/// Why a link is closed by this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// There is another link to the same life of this node.
    Duplicate,
    /// Another life with the same key is alive: this one is a clone (R15).
    Clone,
    /// It does not echo.
    Silent,
    /// Both ends did not accept in time.
    Ungreeted,
    /// Its node is not wanted, or held dead.
    Dropped,
}

/// Why a node is held dead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Death {
    /// No nonce came back for so long, by no way.
    Silent {
        /// Milliseconds.
        ms: u64,
    },
    /// Its link ended and nobody listens at its addresses.
    Refused,
    /// Its link ended and a redial had no answer in time.
    Unanswered {
        /// Milliseconds.
        ms: u64,
    },
    /// It said goodbye.
    Goodbye(String),
    /// It is back under another boot id: what it held in memory is gone.
    Restarted,
    /// This side dropped it.
    Dropped,
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent { ms } => write!(f, "no echo of a probe for {ms} ms, directly or through others"),
            Self::Refused => f.write_str("the connection ended and its addresses refuse a new one"),
            Self::Unanswered { ms } => write!(f, "the connection ended and no new one came about in {ms} ms"),
            Self::Goodbye(text) => write!(f, "it said goodbye: {text}"),
            Self::Restarted => f.write_str("it was restarted"),
            Self::Dropped => f.write_str("dropped by this node"),
        }
    }
}
