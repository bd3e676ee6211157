//! What is known of one other node: its links, and the life of it that is up.

use std::collections::{BTreeMap, VecDeque};

use crate::ids::{BootId, NodeId, Time};

use super::delays::Delays;
use super::{LinkId, Suspicion, Timings};

/// Probes whose echo is still of interest; older ones are forgotten. Three seconds' worth at the default period.
const PROBES_OUTSTANDING_MAX: usize = 16;

/// Nonces that others may bring back; older ones are forgotten. Two seconds' worth.
const ASKED_MAX: usize = 32;

/// One connection on which a valid hello came.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub boot: BootId,
    pub knocked: Time,
    /// We accepted it; set in all established links.
    pub ours: bool,
    /// The other end accepted it.
    pub theirs: bool,
    /// Nonces without echo, and when each was sent.
    pub probes: VecDeque<(u64, Time)>,
    /// Since when an echo is awaited: the first probe after the last echo, or that echo if probes were under way behind it.
    pub silent_since: Option<Time>,
    /// Set while the link in use has to prove that it is alive before this one is closed or takes over.
    pub challenge: Option<(u64, Time)>,
}

impl Link {
    pub fn new(now: Time, boot: BootId) -> Self {
        Self { boot, knocked: now, ours: false, theirs: false, probes: VecDeque::new(), silent_since: None, challenge: None }
    }

    pub fn probed(&mut self, now: Time, nonce: u64) {
        if self.probes.len() == PROBES_OUTSTANDING_MAX {
            self.probes.pop_front();
        }
        self.probes.push_back((nonce, now));
        self.silent_since.get_or_insert(now);
    }

    /// Takes an echo; says how late it is in milliseconds, or `None` for a nonce that proves nothing.
    pub fn echoed(&mut self, now: Time, nonce: u64) -> Option<u64> {
        let place = self.probes.iter().position(|(probe, _)| *probe == nonce)?;
        let (_, sent) = self.probes.drain(..=place).next_back()?;
        self.silent_since = (!self.probes.is_empty()).then_some(now);
        Some(now.ms_since(sent))
    }
}

/// A life of a node that both sides accepted.
#[derive(Clone, Debug)]
pub(super) struct Life {
    pub boot: BootId,
    pub at: Reached,
    pub delays: Delays,
    pub suspected: Option<Suspected>,
    /// The greatest refutation heard from it: waves of suspicion below are void.
    pub refuted: u32,
    /// The newest wave of suspicion of it that was heard or told.
    pub wave: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Reached {
    By(LinkId),
    /// The link ended, at this time.
    Lost(Time),
}

/// A suspicion and what is done about it.
#[derive(Clone, Debug)]
pub(super) struct Suspected {
    pub why: Suspicion,
    /// When to probe again and ask others.
    pub ask_at: Time,
    /// When to tell all; once.
    pub tell_at: Option<Time>,
    /// When to dial.
    pub redial_at: Option<Time>,
    /// Nonces that others may bring back.
    pub asked: VecDeque<u64>,
    /// Who brought an echo last, and when.
    pub brought: Option<(NodeId, Time)>,
}

impl Suspected {
    /// A nonce goes out through others.
    pub fn ask(&mut self, nonce: u64) {
        if self.asked.len() == ASKED_MAX {
            self.asked.pop_front();
        }
        self.asked.push_back(nonce);
    }

    /// When something is to be done next, verdicts aside.
    pub fn next(&self) -> Time {
        [self.tell_at, self.redial_at].into_iter().flatten().fold(self.ask_at, Time::min)
    }
}

impl Life {
    pub fn new(boot: BootId, link: LinkId) -> Self {
        Self { boot, at: Reached::By(link), delays: Delays::default(), suspected: None, refuted: 0, wave: None }
    }

    /// Silence counts from here at the earliest: an echo that others brought.
    fn brought_at(&self) -> Option<Time> {
        self.suspected.as_ref()?.brought.map(|(_, at)| at)
    }

    /// When a life whose direct evidence ran out at `direct` is over: later, if others brought an echo meanwhile.
    pub fn verdict_at(&self, direct: Time, timings: &Timings) -> Time {
        self.brought_at().map_or(direct, |at| direct.max(at.plus_ms(self.delays.dead_ms(timings))))
    }

    /// Whether its suspicion says already that it is reached through others.
    pub fn is_said_to_be_brought(&self) -> bool {
        self.suspected.as_ref().is_some_and(|suspected| matches!(suspected.why, Suspicion::OnlyThrough(_)))
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Peer {
    pub life: Option<Life>,
    pub links: BTreeMap<LinkId, Link>,
    /// Its entry among what is due.
    pub due: Option<Time>,
}

impl Peer {
    pub fn in_use(&self) -> Option<LinkId> {
        match self.life.as_ref()?.at {
            Reached::By(link) => Some(link),
            Reached::Lost(_) => None,
        }
    }

    /// The life that is up, and the link in use.
    pub fn used(&self) -> Option<(&Life, &Link)> {
        self.life.as_ref().zip(self.in_use().and_then(|id| self.links.get(&id)))
    }

    /// Whether its turn in the rounds may come, and whether it can be asked to bring an echo.
    pub fn may_be_probed(&self) -> bool {
        self.used().is_some_and(|(life, _)| life.suspected.is_none())
    }

    /// When the link in use has been silent for too long to be of use.
    pub fn link_dead_at(&self, timings: &Timings) -> Option<Time> {
        let (life, link) = self.used()?;
        Some(link.silent_since?.plus_ms(life.delays.dead_ms(timings)))
    }
}
