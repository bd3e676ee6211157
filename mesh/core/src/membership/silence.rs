//! Silence and its end: suspicion, redials, verdicts.

use std::collections::VecDeque;

use crate::ids::{NodeId, Time};

use super::peers::{Life, Peer, Reached, Suspected};
use super::{Closing, Death, Effect, LinkId, Membership, Suspicion};

/// Between two tries of a redial that had no answer, right after a link was lost.
const REDIAL_PAUSE_MS: u64 = 100;
/// The same later on, and for a node whose link is silent.
const REDIAL_LATER_MS: u64 = 1_000;
/// A redial of which nothing was heard at all is tried again: longer than the handshakes' own deadline.
const REDIAL_AGAIN_MS: u64 = 6_000;

impl Membership {
    /// The next moment at which something is due for the life of a peer.
    pub(super) fn life_deadline(&self, peer: &Peer) -> Option<Time> {
        let life = peer.life.as_ref()?;
        let next = life.suspected.as_ref().map(Suspected::next);
        let silent = match life.at {
            Reached::By(_) => self.silence_due(peer),
            Reached::Lost(at) => Some(self.loss_due(life, at)),
        };
        next.into_iter().chain(silent).min()
    }

    /// When the silence of the link in use has its next consequence.
    fn silence_due(&self, peer: &Peer) -> Option<Time> {
        let (life, link) = peer.used()?;
        let since = link.silent_since?;
        let link_dead_at = peer.link_dead_at(&self.timings)?;
        if life.suspected.is_none() {
            return Some(since.plus_ms(life.delays.suspect_ms(&self.timings)).min(link_dead_at));
        }
        let over = life.is_said_to_be_brought();
        Some(if over { life.verdict_at(link_dead_at, &self.timings) } else { link_dead_at })
    }

    fn loss_due(&self, life: &Life, lost: Time) -> Time {
        let direct = lost.plus_ms(self.timings.redial_ms);
        if life.is_said_to_be_brought() { life.verdict_at(direct, &self.timings) } else { direct }
    }

    pub(super) fn settle_silence(&mut self, now: Time, node: NodeId, effects: &mut Vec<Effect>) {
        let Some(peer) = self.peers.get(&node) else { return };
        let (Some(id), Some((life, link)), Some(link_dead_at)) = (peer.in_use(), peer.used(), peer.link_dead_at(&self.timings)) else {
            return;
        };
        let Some(since) = link.silent_since else { return };
        if link_dead_at > now {
            if life.suspected.is_none() && since.plus_ms(life.delays.suspect_ms(&self.timings)) <= now {
                self.suspect(now, node, since, effects);
            }
            return;
        }
        let boot = life.boot;
        let heir = peer.links.iter().any(|(other, link)| *other != id && link.boot == boot);
        if heir {
            self.close(id, Closing::Silent, effects);
            self.hand_over(now, node, effects);
        } else if life.verdict_at(link_dead_at, &self.timings) > now {
            self.say_who_brings(node, effects);
        } else {
            self.close(id, Closing::Silent, effects);
            self.end_life(node, Death::Silent { ms: now.ms_since(since) }, effects);
            self.hand_over(now, node, effects);
        }
    }

    pub(super) fn settle_lost(&mut self, now: Time, node: NodeId, effects: &mut Vec<Effect>) {
        let Some(life) = self.peers.get(&node).and_then(|peer| peer.life.as_ref()) else { return };
        let Reached::Lost(lost) = life.at else { return };
        let direct = lost.plus_ms(self.timings.redial_ms);
        if direct > now {
            return;
        }
        if life.verdict_at(direct, &self.timings) > now {
            self.say_who_brings(node, effects);
        } else {
            self.end_life(node, Death::Unanswered { ms: now.ms_since(lost) }, effects);
        }
    }

    /// By its own evidence it would be dead now.
    fn say_who_brings(&mut self, node: NodeId, effects: &mut Vec<Effect>) {
        let Some(suspected) = self.suspected_mut(node) else { return };
        let Some((through, _)) = suspected.brought else { return };
        if !matches!(suspected.why, Suspicion::OnlyThrough(_)) {
            suspected.why = Suspicion::OnlyThrough(through);
            effects.push(Effect::Suspect { node, why: suspected.why });
        }
    }

    /// A probe was not echoed in time. Others are asked at once; half-way to the verdict the node is dialled and all hear
    /// of it. If nobody can be asked, it is dialled at once.
    fn suspect(&mut self, now: Time, node: NodeId, since: Time, effects: &mut Vec<Effect>) {
        let Some(life) = self.peers.get_mut(&node).and_then(|peer| peer.life.as_mut()) else { return };
        let half = since.plus_ms(life.delays.half_ms(&self.timings)).max(now);
        let why = Suspicion::Silent;
        let (asked, brought) = (VecDeque::new(), None);
        life.suspected = Some(Suspected { why, ask_at: now, tell_at: Some(half), redial_at: Some(half), asked, brought });
        effects.push(Effect::Suspect { node, why });
        if !self.peers.values().any(Peer::may_be_probed)
            && let Some(suspected) = self.suspected_mut(node)
        {
            (suspected.tell_at, suspected.redial_at) = (None, Some(now));
        }
    }

    /// The life goes on without a link, for a while.
    pub(super) fn lose(&mut self, now: Time, node: NodeId, effects: &mut Vec<Effect>) {
        let Some(life) = self.peers.get_mut(&node).and_then(|peer| peer.life.as_mut()) else { return };
        life.at = Reached::Lost(now);
        let redial_at = Some(now.plus_ms(REDIAL_PAUSE_MS));
        if let Some(suspected) = &mut life.suspected {
            (suspected.tell_at, suspected.redial_at) = (None, redial_at);
            return;
        }
        let why = Suspicion::Ended;
        let ask_at = now.plus_ms(life.delays.suspect_ms(&self.timings));
        life.suspected = Some(Suspected { why, ask_at, tell_at: None, redial_at, asked: VecDeque::new(), brought: None });
        effects.push(Effect::Suspect { node, why });
    }

    /// What a suspicion has due: another probe and others asked, all told, a redial.
    pub(super) fn settle_suspicion(&mut self, now: Time, node: NodeId, effects: &mut Vec<Effect>) {
        let Some(suspected) = self.suspected_mut(node) else { return };
        let (ask, tell) = (suspected.ask_at <= now, suspected.tell_at.is_some_and(|at| at <= now));
        let redial = suspected.redial_at.is_some_and(|at| at <= now);
        if ask {
            self.ask_others(now, node, effects);
        }
        if tell {
            self.tell_of(node, effects);
        }
        if redial {
            self.redial(now, node, effects);
        }
    }

    pub(super) fn redial(&mut self, now: Time, node: NodeId, effects: &mut Vec<Effect>) {
        if let Some(suspected) = self.suspected_mut(node) {
            suspected.redial_at = Some(now.plus_ms(REDIAL_AGAIN_MS));
            effects.push(Effect::Redial(node));
        }
    }

    pub(super) fn on_redialled(&mut self, now: Time, node: NodeId, refused: bool, effects: &mut Vec<Effect>) {
        let redial_ms = self.timings.redial_ms;
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let alone = peer.links.is_empty();
        let Some(life) = &mut peer.life else { return };
        let Some(suspected) = &mut life.suspected else { return };
        let (lost, brought) = (matches!(life.at, Reached::Lost(_)), suspected.brought.is_some());
        if refused && lost && alone && !brought {
            self.end_life(node, Death::Refused, effects);
            self.forget_if_empty(node);
            return;
        }
        let soon = matches!(life.at, Reached::Lost(at) if now < at.plus_ms(redial_ms));
        suspected.redial_at = Some(now.plus_ms(if soon { REDIAL_PAUSE_MS } else { REDIAL_LATER_MS }));
    }

    pub(super) fn on_echo(&mut self, now: Time, id: LinkId, nonce: u64, effects: &mut Vec<Effect>) {
        let Some(&node) = self.owners.get(&id) else { return };
        let Some(late_ms) = self.link_mut(id).and_then(|link| link.echoed(now, nonce)) else { return };
        let Some(peer) = self.peers.get_mut(&node).filter(|peer| peer.in_use() == Some(id)) else { return };
        let Some(life) = &mut peer.life else { return };
        life.delays.note(now, late_ms);
        if life.suspected.take().is_some() {
            effects.push(Effect::Trusted(node));
        }
        self.echoed_while_waking(node, id);
        self.settle_challenges(node, nonce, effects);
    }

    pub(super) fn suspected_mut(&mut self, node: NodeId) -> Option<&mut Suspected> {
        self.peers.get_mut(&node)?.life.as_mut()?.suspected.as_mut()
    }
}
