//! Words about third nodes: indirect probes (SWIM, section 4.1), suspicions that travel and their refutation (4.2).
//!
//! An indirect probe takes four steps: we *ask* some members, each *pings* the suspect with our nonce, the suspect *echoes*
//! to whom it heard, and that one *brings* the echo. Members hold nothing in between. They know the nonce, so a lying one
//! can keep a suspicion open; it cannot make a node trusted, which takes an echo on a link of our own.
//!
//! A suspicion that no echo settled half-way, by whatever way, is told to all in a large mesh, where each is probed by each only every few
//! seconds. It is no evidence: who hears it probes at once and judges for itself. A wave of suspicion is named by the
//! suspect's refutation counter, so that it passes each node once; the suspect raises the counter and ends the wave.

use crate::ids::{BootId, NodeId, Time};

use super::peers::Peer;
use super::rounds::SMALL_MAX;
use super::{Effect, Membership, Word};

/// Members that are asked each time (SWIM's k).
const ASKED_EACH_TIME: usize = 3;

impl Membership {
    /// Probes a suspect again, and asks others to bring an echo.
    pub(super) fn ask_others(&mut self, now: Time, node: NodeId, effects: &mut Vec<Effect>) {
        let (probe_ms, timings) = (self.timings.probe_ms, self.timings);
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let (in_use, Some(life)) = (peer.in_use(), &mut peer.life) else { return };
        let suspect_ms = life.delays.suspect_ms(&timings).max(1);
        let Some(suspected) = &mut life.suspected else { return };
        // Once an echo was brought it only has to be repeated often enough.
        suspected.ask_at = now.plus_ms(if suspected.brought.is_some() { suspect_ms } else { probe_ms });
        if let Some(link) = in_use {
            self.probe(now, link, effects);
        }
        let mut others: Vec<NodeId> =
            self.peers.iter().filter(|(other, peer)| **other != node && peer.may_be_probed()).map(|(other, _)| *other).collect();
        for _ in 0..ASKED_EACH_TIME.min(others.len()) {
            let chosen = (self.draw() % others.len() as u64) as usize;
            let (to, nonce) = (others.swap_remove(chosen), self.draw());
            if let Some(suspected) = self.suspected_mut(node) {
                suspected.ask(nonce);
            }
            effects.push(Effect::Tell { to, word: Word::Ask { suspect: node, nonce } });
        }
    }

    /// Half-way to the verdict: all who may see this node hear of it, and the node itself, so that it can refute.
    pub(super) fn tell_of(&mut self, node: NodeId, effects: &mut Vec<Effect>) {
        if let Some(suspected) = self.suspected_mut(node) {
            suspected.tell_at = None;
        }
        let to: Vec<NodeId> = self.peers.iter().filter(|(_, peer)| peer.used().is_some()).map(|(to, _)| *to).collect();
        let Some(life) = self.peers.get_mut(&node).and_then(|peer| peer.life.as_mut()) else { return };
        if to.len() <= SMALL_MAX || life.wave >= Some(life.refuted) {
            return; // all probe it as often as we do, or have heard of this wave
        }
        life.wave = Some(life.refuted);
        let word = Word::Suspect { node, boot: life.boot, refuted: life.refuted };
        effects.extend(to.into_iter().map(|to| Effect::Tell { to, word }));
    }

    pub(super) fn on_word(&mut self, now: Time, from: NodeId, word: Word, effects: &mut Vec<Effect>) {
        if !self.has_link(from) {
            return;
        }
        let me = self.me;
        match word {
            Word::Ask { suspect, nonce } if suspect != me && suspect != from => {
                self.tell_if_up(suspect, Word::Ping { origin: from, nonce }, effects);
            }
            Word::Ping { origin, nonce } => {
                let word = Word::Echo { origin, nonce, boot: self.boot };
                effects.push(Effect::Tell { to: from, word });
            }
            Word::Echo { origin, nonce, boot } if origin != me => {
                self.tell_if_up(origin, Word::Brought { suspect: from, nonce, boot }, effects);
            }
            Word::Brought { suspect, nonce, boot } => self.on_brought(now, from, suspect, nonce, boot),
            Word::Suspect { node, refuted, .. } if node == me => self.refute(now, from, refuted, effects),
            Word::Suspect { node, boot, refuted } => self.on_suspected(now, node, boot, refuted, effects),
            Word::Refute { refuted } => {
                if let Some(life) = self.peers.get_mut(&from).and_then(|peer| peer.life.as_mut()) {
                    life.refuted = life.refuted.max(refuted);
                }
            }
            Word::Ask { .. } | Word::Echo { .. } => {} // about the wrong node
        }
    }

    fn tell_if_up(&self, to: NodeId, word: Word, effects: &mut Vec<Effect>) {
        if self.has_link(to) {
            effects.push(Effect::Tell { to, word });
        }
    }

    fn has_link(&self, node: NodeId) -> bool {
        self.peers.get(&node).is_some_and(|peer| peer.used().is_some())
    }

    /// Our own nonce came back through another node. An echo of another life says nothing about this one.
    fn on_brought(&mut self, now: Time, through: NodeId, suspect: NodeId, nonce: u64, boot: BootId) {
        let Some(life) = self.peers.get_mut(&suspect).and_then(|peer| peer.life.as_mut()) else { return };
        let half_ms = life.delays.half_ms(&self.timings);
        let Some(suspected) = life.suspected.as_mut().filter(|_| life.boot == boot) else { return };
        if let Some(place) = suspected.asked.iter().position(|asked| *asked == nonce) {
            suspected.asked.remove(place);
            suspected.brought = Some((through, now));
            suspected.tell_at = suspected.tell_at.map(|_| now.plus_ms(half_ms));
            self.no_longer_awaited(suspect);
        }
    }

    /// Another node suspects this one: a probe at once, if none is under way, and our own judgement.
    fn on_suspected(&mut self, now: Time, node: NodeId, boot: BootId, refuted: u32, effects: &mut Vec<Effect>) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let quiet = peer.in_use().filter(|id| peer.links.get(id).is_some_and(|link| link.silent_since.is_none()));
        let Some(life) = peer.life.as_mut().filter(|life| life.boot == boot) else { return };
        if refuted < life.refuted || life.wave >= Some(refuted) {
            return;
        }
        life.wave = Some(refuted);
        if let Some(link) = quiet {
            self.probe(now, link, effects);
        }
    }

    /// We are suspected. Everybody hears a refutation once for each wave, and no more often than probes go out.
    fn refute(&mut self, now: Time, from: NodeId, refuted: u32, effects: &mut Vec<Effect>) {
        if refuted < self.refuted {
            effects.push(Effect::Tell { to: from, word: Word::Refute { refuted: self.refuted } });
            return;
        }
        if self.refuted_at.is_some_and(|at| now < at.plus_ms(self.timings.probe_ms)) {
            return;
        }
        (self.refuted, self.refuted_at) = (refuted.saturating_add(1), Some(now));
        let word = Word::Refute { refuted: self.refuted };
        let up = self.peers.iter().filter(|(_, peer): &(&NodeId, &Peer)| peer.used().is_some());
        effects.extend(up.map(|(to, _)| Effect::Tell { to: *to, word }));
    }
}
