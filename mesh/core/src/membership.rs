//! Who is alive: probes by nonce echo, suspicion, verdicts, and which link to a node is the one in use. Pure.
//!
//! R9: a node is alive when it echoes a nonce that we drew, never because something was heard from it. The link in use is
//! probed every `probe_ms`; silence makes a suspicion, then a death. A link that ends without a farewell is a suspicion
//! that one immediate redial settles (R14): refused means dead, accepted means that nothing happened. A suspicion by silence
//! redials too: over a second path, the new link challenges the silent one and takes its place before anybody is held dead.
//!
//! Both ends may dial, so two links to one node are ordinary. Each valid hello is a *knock*; an end *accepts* a link by
//! sending its first probe on it, and a link is established once both have. The end with the smaller id accepts one link
//! at a time and closes the others, the end with the greater id accepts them all: so the smaller id alone chooses, both
//! agree without a further message, and nothing was sent on a link that is given up.
//!
//! A knock by a node that is up is settled by a challenge (R15): one fresh nonce on the old link. Echoed, the newcomer is
//! a clone (other boot id) or a duplicate (same boot id) and is closed; silent, the old link is dead and the newcomer takes over.
//!
//! R8, basic form: if a step comes later than it was asked for by more than a probe period, this process slept (or
//! starved), and every deadline moves by as much before anyone is judged.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use crate::ids::{BootId, NodeId, Time};

/// Names one connection to another node, drawn by the carrier; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// How long to wait for what, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timings {
    /// Between two probes of a link.
    pub probe_ms: u64,
    /// Silence after which a node is suspected: three probes (guess).
    pub suspect_ms: u64,
    /// Silence after which it is held dead; higher = slower failover, fewer false alarms (guess).
    pub dead_ms: u64,
    /// From the end of a link until its node is held dead if no redial was accepted or refused before.
    pub redial_ms: u64,
    /// How long an old link may take to echo when a newcomer with the same id knocks.
    pub challenge_ms: u64,
    /// From a knock until both ends must have accepted.
    pub greet_ms: u64,
}

impl Default for Timings {
    fn default() -> Self {
        Self { probe_ms: 250, suspect_ms: 750, dead_ms: 2_000, redial_ms: 1_000, challenge_ms: 750, greet_ms: 5_000 }
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
    /// Echoes are overdue, or the link ended.
    Suspect(NodeId),
    /// A suspected node echoed, or came back in the same life.
    Trusted(NodeId),
    /// Held dead until it knocks again.
    Down {
        /// Who.
        node: NodeId,
        /// Why.
        why: Death,
    },
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
    /// No nonce came back for so long.
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
            Self::Silent { ms } => write!(f, "no echo of a probe for {ms} ms"),
            Self::Refused => f.write_str("the connection ended and its addresses refuse a new one"),
            Self::Unanswered { ms } => write!(f, "the connection ended and no new one came about in {ms} ms"),
            Self::Goodbye(text) => write!(f, "it said goodbye: {text}"),
            Self::Restarted => f.write_str("it was restarted"),
            Self::Dropped => f.write_str("dropped by this node"),
        }
    }
}

/// Probes whose echo is still of interest; older ones are forgotten. Four seconds' worth at the default period.
const PROBES_OUTSTANDING_MAX: usize = 16;

/// Links that one node may have at a time, knocks included.
const LINKS_PER_NODE_MAX: usize = 8;

/// Between two tries of a redial that had no answer.
const REDIAL_PAUSE_MS: u64 = 100;

/// One connection on which a valid hello came.
#[derive(Clone, Debug)]
struct Link {
    boot: BootId,
    knocked: Time,
    /// We accepted it; set in all established links.
    ours: bool,
    /// The other end accepted it.
    theirs: bool,
    /// When a nonce last came back.
    proven: Time,
    next_probe: Time,
    probes: VecDeque<u64>,
    /// Set while the link in use has to prove that it is alive before this one is closed or takes over.
    challenge: Option<(u64, Time)>,
}

/// A life of a node that both sides accepted.
#[derive(Clone, Debug)]
struct Life {
    boot: BootId,
    suspect: bool,
    at: Reached,
}

#[derive(Clone, Copy, Debug)]
enum Reached {
    By(LinkId),
    /// The link ended: dead at the deadline, dialled again when the pause is over.
    Lost {
        deadline: Time,
        redial: Option<Time>,
    },
}

#[derive(Clone, Debug, Default)]
struct Peer {
    life: Option<Life>,
    links: BTreeMap<LinkId, Link>,
}

impl Peer {
    fn in_use(&self) -> Option<LinkId> {
        match self.life.as_ref()?.at {
            Reached::By(link) => Some(link),
            Reached::Lost { .. } => None,
        }
    }
}

/// The state of all links and lives.
#[derive(Clone, Debug)]
pub struct Membership {
    me: NodeId,
    timings: Timings,
    seed: u64,
    drawn: u64,
    peers: BTreeMap<NodeId, Peer>,
    /// Whose each link is.
    owners: BTreeMap<LinkId, NodeId>,
    /// When the last step asked to be woken.
    expected: Option<Time>,
}

impl Membership {
    /// Knows nobody yet. `seed` makes the nonces unpredictable to others.
    #[must_use]
    pub fn new(me: NodeId, timings: Timings, seed: u64) -> Self {
        Self { me, timings, seed, drawn: 0, peers: BTreeMap::new(), owners: BTreeMap::new(), expected: None }
    }

    /// Same history, same effects.
    pub fn step(&mut self, now: Time, input: Input, effects: &mut Vec<Effect>) {
        self.forgive_sleep(now);
        self.settle_due(now, effects);
        match input {
            Input::Knock { link, node, boot } => self.on_knock(now, link, node, boot, effects),
            Input::Accepted(link) => self.on_accepted(now, link, effects),
            Input::Echo { link, nonce } => self.on_echo(now, link, nonce, effects),
            Input::Ended { link, on_purpose, why } => self.on_ended(now, link, on_purpose, why, effects),
            Input::Redialled { node, refused } => self.on_redialled(now, node, refused, effects),
            Input::Drop(node) => self.on_drop(node, effects),
            Input::Elapsed => {}
        }
        self.expected = self.wake_at();
    }

    /// When `step` next wants [`Input::Elapsed`]. Being woken early, or twice, changes nothing.
    #[must_use]
    pub fn wake_at(&self) -> Option<Time> {
        self.peers.values().flat_map(|peer| self.deadlines(peer)).min()
    }

    /// Whether a life of this node is up, suspected ones included.
    #[must_use]
    pub fn is_up(&self, node: NodeId) -> bool {
        self.peers.get(&node).is_some_and(|peer| peer.life.is_some())
    }

    fn deadlines(&self, peer: &Peer) -> impl Iterator<Item = Time> {
        let in_use = peer.in_use();
        let suspect = peer.life.as_ref().is_some_and(|life| life.suspect);
        let links = peer.links.iter().flat_map(move |(id, link)| {
            let of_use = (in_use == Some(*id)).then(|| {
                let silence_ms = if suspect { self.timings.dead_ms } else { self.timings.suspect_ms };
                link.next_probe.min(link.proven.plus_ms(silence_ms))
            });
            let of_knock = (in_use != Some(*id)).then(|| link.knocked.plus_ms(self.timings.greet_ms));
            [of_use, of_knock, link.challenge.map(|(_, deadline)| deadline)].into_iter().flatten()
        });
        let lost = match peer.life.as_ref().map(|life| life.at) {
            Some(Reached::Lost { deadline, redial }) => [Some(deadline), redial],
            _ => [None, None],
        };
        links.chain(lost.into_iter().flatten())
    }

    fn forgive_sleep(&mut self, now: Time) {
        let Some(expected) = self.expected else { return };
        if now <= expected.plus_ms(self.timings.probe_ms) {
            return;
        }
        let jump = now.0 - expected.0;
        let later = |time: &mut Time| time.0 = time.0.saturating_add(jump);
        for peer in self.peers.values_mut() {
            for link in peer.links.values_mut() {
                later(&mut link.knocked);
                later(&mut link.proven);
                later(&mut link.next_probe);
                if let Some((_, deadline)) = &mut link.challenge {
                    later(deadline);
                }
            }
            if let Some(Life { at: Reached::Lost { deadline, redial }, .. }) = &mut peer.life {
                later(deadline);
                redial.iter_mut().for_each(later);
            }
        }
    }

    fn settle_due(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let due: Vec<NodeId> =
            self.peers.iter().filter(|(_, peer)| self.deadlines(peer).any(|time| time <= now)).map(|(node, _)| *node).collect();
        for node in due {
            self.settle_knocks(now, node, effects);
            self.settle_silence(now, node, effects);
            self.settle_lost(now, node, effects);
            self.forget_if_empty(node);
        }
    }

    /// Challenges that had no echo, and knocks that came to nothing.
    fn settle_knocks(&mut self, now: Time, node: NodeId, effects: &mut Vec<Effect>) {
        let Some(peer) = self.peers.get(&node) else { return };
        let in_use = peer.in_use();
        let unechoed: Vec<LinkId> =
            peer.links.iter().filter(|(_, link)| link.challenge.is_some_and(|(_, deadline)| deadline <= now)).map(|(id, _)| *id).collect();
        let stale: Vec<LinkId> = peer
            .links
            .iter()
            .filter(|(id, link)| in_use != Some(**id) && link.knocked.plus_ms(self.timings.greet_ms) <= now)
            .map(|(id, _)| *id)
            .collect();
        for link in stale {
            self.close(link, Closing::Ungreeted, effects);
        }
        if !unechoed.is_empty()
            && let Some(old) = in_use
        {
            self.close(old, Closing::Silent, effects);
            self.hand_over(now, node, effects);
        }
    }

    fn settle_silence(&mut self, now: Time, node: NodeId, effects: &mut Vec<Effect>) {
        let timings = self.timings;
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let Some(id) = peer.in_use() else { return };
        let (Some(link), Some(life)) = (peer.links.get(&id), &mut peer.life) else { return };
        if link.proven.plus_ms(timings.dead_ms) <= now {
            let ms = now.ms_since(link.proven);
            self.close(id, Closing::Silent, effects);
            self.end_life(node, Death::Silent { ms }, effects);
            self.hand_over(now, node, effects);
            return;
        }
        let next_probe = link.next_probe;
        if link.proven.plus_ms(timings.suspect_ms) <= now && !life.suspect {
            life.suspect = true;
            effects.push(Effect::Suspect(node));
            if peer.links.len() == 1 {
                effects.push(Effect::Redial(node));
            }
        }
        if next_probe <= now {
            self.probe(now, id, effects);
        }
    }

    fn settle_lost(&mut self, now: Time, node: NodeId, effects: &mut Vec<Effect>) {
        let ms = self.timings.redial_ms;
        let Some(Life { at: Reached::Lost { deadline, redial }, .. }) = self.peers.get_mut(&node).and_then(|peer| peer.life.as_mut())
        else {
            return;
        };
        if *deadline <= now {
            self.end_life(node, Death::Unanswered { ms }, effects);
        } else if redial.is_some_and(|at| at <= now) {
            *redial = None;
            effects.push(Effect::Redial(node));
        }
    }

    fn on_knock(&mut self, now: Time, id: LinkId, node: NodeId, boot: BootId, effects: &mut Vec<Effect>) {
        if self.owners.contains_key(&id) {
            return;
        }
        let peer = self.peers.entry(node).or_default();
        if peer.links.len() >= LINKS_PER_NODE_MAX {
            effects.push(Effect::Close { link: id, why: Closing::Duplicate });
            return;
        }
        let link =
            Link { boot, knocked: now, ours: false, theirs: false, proven: now, next_probe: now, probes: VecDeque::new(), challenge: None };
        peer.links.insert(id, link);
        self.owners.insert(id, node);
        self.consider(now, node, id, effects);
    }

    /// Whether to accept a link that knocked: at once, after a challenge, or when the one accepted before it fails.
    fn consider(&mut self, now: Time, node: NodeId, id: LinkId, effects: &mut Vec<Effect>) {
        let i_choose = self.me < node;
        let Some(peer) = self.peers.get(&node) else { return };
        let Some(link) = peer.links.get(&id) else { return };
        match (&peer.life, peer.in_use()) {
            (Some(life), Some(in_use)) if life.boot != link.boot || i_choose => {
                let nonce = self.probe(now, in_use, effects);
                let deadline = now.plus_ms(self.timings.challenge_ms);
                if let Some(link) = self.link_mut(id) {
                    link.challenge = Some((nonce, deadline));
                }
            }
            (Some(life), None) if life.boot != link.boot => {
                self.end_life(node, Death::Restarted, effects);
                self.consider(now, node, id, effects);
            }
            _ if i_choose && peer.links.values().any(|other| other.ours) => {} // its turn comes if that one fails
            _ => self.accept(now, id, effects),
        }
    }

    fn accept(&mut self, now: Time, id: LinkId, effects: &mut Vec<Effect>) {
        let Some(link) = self.link_mut(id) else { return };
        link.ours = true;
        link.challenge = None;
        let theirs = link.theirs;
        self.probe(now, id, effects);
        if theirs {
            self.establish(now, id, effects);
        }
    }

    fn on_accepted(&mut self, now: Time, id: LinkId, effects: &mut Vec<Effect>) {
        let Some(link) = self.link_mut(id) else { return };
        let first = !std::mem::replace(&mut link.theirs, true);
        if first && link.ours {
            self.establish(now, id, effects);
        }
    }

    /// Both ends accepted: this link is the one in use.
    fn establish(&mut self, now: Time, id: LinkId, effects: &mut Vec<Effect>) {
        let Some(&node) = self.owners.get(&id) else { return };
        let next_probe = now.plus_ms(self.timings.probe_ms);
        let Some(link) = self.link_mut(id) else { return };
        let boot = link.boot;
        link.proven = now;
        if link.next_probe <= now {
            link.next_probe = next_probe;
        }
        let peer = self.peers.entry(node).or_default();
        let old = peer.in_use();
        if peer.life.as_ref().is_some_and(|life| life.boot != boot) {
            self.end_life(node, Death::Restarted, effects);
        }
        let peer = self.peers.entry(node).or_default();
        match &mut peer.life {
            Some(life) => {
                life.at = Reached::By(id);
                effects.push(Effect::Moved { node, link: id });
                if std::mem::replace(&mut life.suspect, false) {
                    effects.push(Effect::Trusted(node));
                }
            }
            None => {
                peer.life = Some(Life { boot, suspect: false, at: Reached::By(id) });
                effects.push(Effect::Up { node, boot, link: id });
            }
        }
        if let Some(old) = old {
            self.close(old, Closing::Duplicate, effects);
        }
        self.settle_rivals(now, node, id, effects);
    }

    /// Closes or challenges the links that knocked beside the one that is now in use.
    fn settle_rivals(&mut self, now: Time, node: NodeId, chosen: LinkId, effects: &mut Vec<Effect>) {
        let Some(peer) = self.peers.get(&node) else { return };
        let Some(boot) = peer.links.get(&chosen).map(|link| link.boot) else { return };
        let rivals: Vec<(LinkId, BootId)> = peer.links.iter().filter(|(id, _)| **id != chosen).map(|(id, link)| (*id, link.boot)).collect();
        for (rival, of) in rivals {
            if of != boot {
                self.consider(now, node, rival, effects);
            } else if self.me < node {
                self.close(rival, Closing::Duplicate, effects);
            }
        }
    }

    fn on_echo(&mut self, now: Time, id: LinkId, nonce: u64, effects: &mut Vec<Effect>) {
        let Some(&node) = self.owners.get(&id) else { return };
        let Some(link) = self.link_mut(id) else { return };
        let Some(place) = link.probes.iter().position(|probe| *probe == nonce) else { return };
        link.probes.drain(..=place);
        link.proven = now;
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if peer.in_use() != Some(id) {
            return;
        }
        let Some(life) = &mut peer.life else { return };
        let boot = life.boot;
        if std::mem::replace(&mut life.suspect, false) {
            effects.push(Effect::Trusted(node));
        }
        let answered: Vec<(LinkId, BootId)> = peer
            .links
            .iter()
            .filter(|(_, link)| link.challenge.is_some_and(|(challenge, _)| challenge == nonce))
            .map(|(id, link)| (*id, link.boot))
            .collect();
        for (newcomer, of) in answered {
            let why = if of == boot { Closing::Duplicate } else { Closing::Clone };
            self.close(newcomer, why, effects);
        }
    }

    fn on_ended(&mut self, now: Time, id: LinkId, on_purpose: bool, why: String, effects: &mut Vec<Effect>) {
        let Some(node) = self.owners.get(&id).copied() else { return };
        let Some(peer) = self.peers.get(&node) else { return };
        let was_in_use = peer.in_use() == Some(id);
        let alone = peer.links.len() == 1;
        self.remove(id);
        if was_in_use && on_purpose && alone {
            self.end_life(node, Death::Goodbye(why), effects);
        } else if was_in_use && alone {
            self.lose(now, node, None, effects);
            effects.push(Effect::Redial(node));
        } else {
            self.hand_over(now, node, effects);
        }
        self.forget_if_empty(node);
    }

    /// The link in use or the accepted one is gone: the oldest knock that waits gets its turn.
    fn hand_over(&mut self, now: Time, node: NodeId, effects: &mut Vec<Effect>) {
        if self.peers.get(&node).is_some_and(|peer| peer.in_use().is_some_and(|id| !peer.links.contains_key(&id))) {
            self.lose(now, node, Some(now.plus_ms(REDIAL_PAUSE_MS)), effects);
        }
        let Some(peer) = self.peers.get_mut(&node) else { return };
        peer.links.values_mut().for_each(|link| link.challenge = None);
        let waiting: Vec<LinkId> = peer.links.iter().filter(|(_, link)| !link.ours).map(|(id, _)| *id).collect();
        for id in waiting {
            self.consider(now, node, id, effects);
        }
    }

    /// The life goes on without a link, for a while.
    fn lose(&mut self, now: Time, node: NodeId, redial: Option<Time>, effects: &mut Vec<Effect>) {
        let deadline = now.plus_ms(self.timings.redial_ms);
        let Some(life) = self.peers.get_mut(&node).and_then(|peer| peer.life.as_mut()) else { return };
        life.at = Reached::Lost { deadline, redial };
        if !std::mem::replace(&mut life.suspect, true) {
            effects.push(Effect::Suspect(node));
        }
    }

    fn on_redialled(&mut self, now: Time, node: NodeId, refused: bool, effects: &mut Vec<Effect>) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let Some(Life { at: Reached::Lost { redial, .. }, .. }) = &mut peer.life else { return };
        if !refused {
            *redial = Some(now.plus_ms(REDIAL_PAUSE_MS));
        } else if peer.links.is_empty() {
            self.end_life(node, Death::Refused, effects);
            self.forget_if_empty(node);
        }
    }

    fn on_drop(&mut self, node: NodeId, effects: &mut Vec<Effect>) {
        let Some(peer) = self.peers.get(&node) else { return };
        for id in peer.links.keys().copied().collect::<Vec<_>>() {
            self.close(id, Closing::Dropped, effects);
        }
        self.end_life(node, Death::Dropped, effects);
        self.forget_if_empty(node);
    }

    fn end_life(&mut self, node: NodeId, why: Death, effects: &mut Vec<Effect>) {
        if self.peers.get_mut(&node).is_some_and(|peer| peer.life.take().is_some()) {
            effects.push(Effect::Down { node, why });
        }
    }

    fn probe(&mut self, now: Time, id: LinkId, effects: &mut Vec<Effect>) -> u64 {
        self.drawn += 1;
        // The top bit belongs to the carrier's own marks; see mesh-net.
        let nonce = xxhash_rust::xxh3::xxh3_64_with_seed(&self.drawn.to_le_bytes(), self.seed) >> 1;
        let next_probe = now.plus_ms(self.timings.probe_ms);
        if let Some(link) = self.link_mut(id) {
            link.next_probe = next_probe;
            if link.probes.len() == PROBES_OUTSTANDING_MAX {
                link.probes.pop_front();
            }
            link.probes.push_back(nonce);
            effects.push(Effect::Probe { link: id, nonce });
        }
        nonce
    }

    fn close(&mut self, id: LinkId, why: Closing, effects: &mut Vec<Effect>) {
        if self.remove(id) {
            effects.push(Effect::Close { link: id, why });
        }
    }

    fn remove(&mut self, id: LinkId) -> bool {
        let Some(node) = self.owners.remove(&id) else { return false };
        self.peers.get_mut(&node).is_some_and(|peer| peer.links.remove(&id).is_some())
    }

    fn link_mut(&mut self, id: LinkId) -> Option<&mut Link> {
        self.peers.get_mut(self.owners.get(&id)?)?.links.get_mut(&id)
    }

    fn forget_if_empty(&mut self, node: NodeId) {
        if self.peers.get(&node).is_some_and(|peer| peer.life.is_none() && peer.links.is_empty()) {
            self.peers.remove(&node);
        }
    }
}

#[cfg(test)]
mod tests;
