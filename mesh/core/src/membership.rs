//! Who is alive: probes by nonce echo, indirect probes, suspicion and refutation, verdicts, and which link to a node is the
//! one in use. Pure.
//!
//! R9: a node is alive when it echoes a nonce that we drew, never because something was heard from it or about it. Peers are
//! probed in [`rounds`]; a probe without echo makes a suspicion, and later a death. How much later follows from how late the
//! echoes of that peer were lately ([`delays`]). In between comes independent evidence, as in SWIM (Das, Gupta and
//! Motivala 2002): other members are asked to bring an echo of *our* nonce, and half-way to the verdict the node is dialled
//! anew and, in a large mesh, all are told of the suspicion, so that each probes at once and judges by its own evidence
//! ([`words`]). A node whose echoes come only through others stays suspected, with words, and is not dead.
//!
//! A link that ends without a farewell is a suspicion that one immediate redial settles (R14): refused means dead, accepted
//! means that nothing happened. Over a second path, the new link challenges the silent one and takes its place before
//! anybody is held dead.
//!
//! Both ends may dial, so two links to one node are ordinary. Each valid hello is a *knock*; an end *accepts* a link by
//! sending its first probe on it, and a link is established once both have. The end with the smaller id accepts one link
//! at a time and closes the others, the end with the greater id accepts them all: so the smaller id alone chooses, both
//! agree without a further message, and nothing was sent on a link that is given up.
//!
//! A knock by a node that is up is settled by a challenge (R15): one fresh nonce on the old link. Echoed, the newcomer is
//! a clone (other boot id) or a duplicate (same boot id) and is closed; silent, the old link is dead and the newcomer takes over.
//!
//! R8: if a step comes later than it was asked for by more than a probe period, this process slept (or starved): every
//! deadline moves by as much before anyone is judged, and [`waking`] says when we may trust ourselves again.

mod delays;
mod links;
mod peers;
mod rounds;
mod silence;
mod vocabulary;
mod waking;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{BootId, NodeId, Time};

pub use vocabulary::{Closing, Death, Effect, Input, LinkId, Suspicion, Timings, Word};

use peers::{Link, Peer};
use rounds::Rounds;
use waking::Waking;

/// The state of all links and lives.
#[derive(Clone, Debug)]
pub struct Membership {
    me: NodeId,
    boot: BootId,
    timings: Timings,
    seed: u64,
    drawn: u64,
    peers: BTreeMap<NodeId, Peer>,
    /// Whose each link is.
    owners: BTreeMap<LinkId, NodeId>,
    /// When something is next due for whom; each peer's entry is renewed after whatever concerns it.
    due: BTreeSet<(Time, NodeId)>,
    rounds: Rounds,
    /// Suspicions of us below this are void.
    refuted: u32,
    /// When we last refuted one.
    refuted_at: Option<Time>,
    waking: Option<Waking>,
    /// When the last step asked to be woken.
    expected: Option<Time>,
}

impl Membership {
    /// Knows nobody yet. `boot` is this start of `me`; `seed` makes the nonces unpredictable to others.
    #[must_use]
    pub fn new(me: NodeId, boot: BootId, timings: Timings, seed: u64) -> Self {
        Self {
            me,
            boot,
            timings,
            seed,
            drawn: 0,
            peers: BTreeMap::new(),
            owners: BTreeMap::new(),
            due: BTreeSet::new(),
            rounds: Rounds::default(),
            refuted: 0,
            refuted_at: None,
            waking: None,
            expected: None,
        }
    }

    /// Same history, same effects.
    pub fn step(&mut self, now: Time, input: Input, effects: &mut Vec<Effect>) {
        self.forgive_sleep(now, effects);
        self.settle_due(now, effects);
        let concerned = self.concerned(&input);
        match input {
            Input::Knock { link, node, boot } => self.on_knock(now, link, node, boot, effects),
            Input::Accepted(link) => self.on_accepted(now, link, effects),
            Input::Echo { link, nonce } => self.on_echo(now, link, nonce, effects),
            Input::Heard { from, word } => self.on_word(now, from, word, effects),
            Input::Ended { link, on_purpose, why } => self.on_ended(now, link, on_purpose, why, effects),
            Input::Redialled { node, refused } => self.on_redialled(now, node, refused, effects),
            Input::Drop(node) => self.on_drop(node, effects),
            Input::Elapsed => {}
        }
        concerned.into_iter().flatten().for_each(|node| self.renew(node));
        self.perhaps_awake(now, effects);
        self.expected = self.wake_at();
    }

    /// When `step` next wants [`Input::Elapsed`]. Being woken early, or twice, changes nothing.
    #[must_use]
    pub fn wake_at(&self) -> Option<Time> {
        let peers = self.due.first().map(|(at, _)| *at);
        let turn = self.peers.values().any(Peer::may_be_probed).then_some(self.rounds.next);
        peers.into_iter().chain(turn).chain(self.waking.as_ref().map(|waking| waking.until)).min()
    }

    /// Whether a life of this node is up, suspected ones included.
    #[must_use]
    pub fn is_up(&self, node: NodeId) -> bool {
        self.peers.get(&node).is_some_and(|peer| peer.life.is_some())
    }

    /// Why this node is suspected, if it is.
    #[must_use]
    pub fn suspicion(&self, node: NodeId) -> Option<Suspicion> {
        Some(self.peers.get(&node)?.life.as_ref()?.suspected.as_ref()?.why)
    }

    /// Whose state an input may change: of the node that it came from, and of the one that it is about.
    fn concerned(&self, input: &Input) -> [Option<NodeId>; 2] {
        let owner = |link: &LinkId| self.owners.get(link).copied();
        match input {
            Input::Knock { node, .. } | Input::Redialled { node, .. } | Input::Drop(node) => [Some(*node), None],
            Input::Accepted(link) | Input::Echo { link, .. } | Input::Ended { link, .. } => [owner(link), None],
            Input::Heard { from, word } => [Some(*from), word.subject()],
            Input::Elapsed => [None, None],
        }
    }

    /// Looks up anew when something is due for a peer.
    fn renew(&mut self, node: NodeId) {
        let next = self.peers.get(&node).and_then(|peer| self.deadline(peer));
        let known = self.peers.get_mut(&node).map(|peer| std::mem::replace(&mut peer.due, next));
        match known {
            Some(known) if known == next => return,
            Some(Some(known)) => drop(self.due.remove(&(known, node))),
            _ => {}
        }
        self.due.extend(next.map(|next| (next, node)));
    }

    /// The next moment at which something is due for a peer.
    fn deadline(&self, peer: &Peer) -> Option<Time> {
        let in_use = peer.in_use();
        let knocks = peer.links.iter().filter(|(id, _)| in_use != Some(**id)).map(|(_, link)| link.knocked.plus_ms(self.timings.greet_ms));
        let challenges = peer.links.values().filter_map(|link| link.challenge.map(|(_, deadline)| deadline));
        knocks.chain(challenges).chain(self.life_deadline(peer)).min()
    }

    fn settle_due(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let due: BTreeSet<NodeId> = self.due.iter().take_while(|(at, _)| *at <= now).map(|(_, node)| *node).collect();
        for node in due {
            self.settle_knocks(now, node, effects);
            self.settle_silence(now, node, effects);
            self.settle_lost(now, node, effects);
            self.settle_suspicion(now, node, effects);
            self.forget_if_empty(node);
            self.renew(node);
        }
        if self.rounds.next <= now {
            self.take_turn(now, effects);
        }
    }

    /// Probes the peer whose turn it is. Suspected ones are probed by themselves.
    fn take_turn(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let probed = self.peers.values().filter(|peer| peer.may_be_probed()).count();
        self.rounds.plan(now, self.timings.probe_ms, probed);
        let (peers, seed, drawn) = (&self.peers, self.seed, &mut self.drawn);
        let Some(node) = self.rounds.turn(peers, || draw(seed, drawn)) else { return };
        if let Some(link) = self.peers.get(&node).and_then(Peer::in_use) {
            self.probe(now, link, effects);
            self.renew(node);
        }
    }

    /// Sends a fresh nonce on a link.
    fn probe(&mut self, now: Time, id: LinkId, effects: &mut Vec<Effect>) -> u64 {
        let nonce = self.draw();
        if let Some(link) = self.link_mut(id) {
            link.probed(now, nonce);
            effects.push(Effect::Probe { link: id, nonce });
        }
        nonce
    }

    fn draw(&mut self) -> u64 {
        draw(self.seed, &mut self.drawn)
    }

    fn end_life(&mut self, node: NodeId, why: Death, effects: &mut Vec<Effect>) {
        if self.peers.get_mut(&node).is_some_and(|peer| peer.life.take().is_some()) {
            effects.push(Effect::Down { node, why });
            self.no_longer_awaited(node);
        }
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
        if self.peers.get(&node).is_some_and(|peer| peer.life.is_none() && peer.links.is_empty())
            && let Some(Peer { due: Some(due), .. }) = self.peers.remove(&node)
        {
            self.due.remove(&(due, node));
        }
    }
}

/// The next random number. The top bit belongs to the carrier's own marks; see mesh-net.
fn draw(seed: u64, drawn: &mut u64) -> u64 {
    *drawn += 1;
    xxhash_rust::xxh3::xxh3_64_with_seed(&drawn.to_le_bytes(), seed) >> 1
}

#[cfg(test)]
mod tests;
