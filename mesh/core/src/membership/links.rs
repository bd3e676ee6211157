//! Links: knocks, acceptance, challenges, and which one is in use.

use crate::ids::{BootId, NodeId, Time};

use super::peers::{Life, Link, Peer, Reached};
use super::{Closing, Death, Effect, LinkId, Membership};

/// Links that one node may have at a time, knocks included.
const LINKS_PER_NODE_MAX: usize = 8;

impl Membership {
    pub(super) fn on_knock(&mut self, now: Time, id: LinkId, node: NodeId, boot: BootId, effects: &mut Vec<Effect>) {
        if self.owners.contains_key(&id) {
            return;
        }
        let peer = self.peers.entry(node).or_default();
        if peer.links.len() >= LINKS_PER_NODE_MAX {
            effects.push(Effect::Close { link: id, why: Closing::Duplicate });
            return;
        }
        peer.links.insert(id, Link::new(now, boot));
        self.owners.insert(id, node);
        self.consider(now, node, id, effects);
    }

    /// Whether to accept a link that knocked: at once, after a challenge, or when the one accepted before it fails.
    fn consider(&mut self, now: Time, node: NodeId, id: LinkId, effects: &mut Vec<Effect>) {
        let i_choose = self.me < node;
        let Some(peer) = self.peers.get(&node) else { return };
        let Some(link) = peer.links.get(&id) else { return };
        match (&peer.life, peer.in_use()) {
            (Some(life), Some(in_use)) if life.boot != link.boot || i_choose => self.challenge(now, node, in_use, id, effects),
            (Some(life), None) if life.boot != link.boot => {
                self.end_life(node, Death::Restarted, effects);
                self.consider(now, node, id, effects);
            }
            _ if i_choose && peer.links.values().any(|other| other.ours) => {} // its turn comes if that one fails
            _ => self.accept(now, id, effects),
        }
    }

    /// The link in use has to prove that it is alive, in what is left of its patience.
    fn challenge(&mut self, now: Time, node: NodeId, in_use: LinkId, newcomer: LinkId, effects: &mut Vec<Effect>) {
        let nonce = self.probe(now, in_use, effects);
        let deadline = self.peers.get(&node).and_then(|peer| peer.link_dead_at(&self.timings)).unwrap_or(now);
        if deadline <= now {
            self.close(in_use, Closing::Silent, effects);
            self.hand_over(now, node, effects);
        } else if let Some(link) = self.link_mut(newcomer) {
            link.challenge = Some((nonce, deadline));
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

    pub(super) fn on_accepted(&mut self, now: Time, id: LinkId, effects: &mut Vec<Effect>) {
        let Some(link) = self.link_mut(id) else { return };
        let first = !std::mem::replace(&mut link.theirs, true);
        if first && link.ours {
            self.establish(now, id, effects);
        }
    }

    /// Both ends accepted: this link is the one in use.
    fn establish(&mut self, now: Time, id: LinkId, effects: &mut Vec<Effect>) {
        let Some(&node) = self.owners.get(&id) else { return };
        if !self.peers.values().any(Peer::may_be_probed) {
            self.rounds.plan(now, self.timings.probe_ms, 1);
        }
        let Some(link) = self.link_mut(id) else { return };
        let boot = link.boot;
        // The acceptance is fresh evidence; what was sent before it may never be echoed.
        link.silent_since = None;
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
                if life.suspected.take().is_some() {
                    effects.push(Effect::Trusted(node));
                }
            }
            None => {
                peer.life = Some(Life::new(boot, id));
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

    /// The link in use has echoed this nonce: newcomers that it was a challenge for are turned away.
    pub(super) fn settle_challenges(&mut self, node: NodeId, nonce: u64, effects: &mut Vec<Effect>) {
        let Some(peer) = self.peers.get(&node) else { return };
        let Some(boot) = peer.life.as_ref().map(|life| life.boot) else { return };
        let answered = |link: &Link| link.challenge.is_some_and(|(challenge, _)| challenge == nonce);
        let turned_away: Vec<(LinkId, BootId)> =
            peer.links.iter().filter(|(_, link)| answered(link)).map(|(id, link)| (*id, link.boot)).collect();
        for (newcomer, of) in turned_away {
            let why = if of == boot { Closing::Duplicate } else { Closing::Clone };
            self.close(newcomer, why, effects);
        }
    }

    /// Challenges that had no echo, and knocks that came to nothing.
    pub(super) fn settle_knocks(&mut self, now: Time, node: NodeId, effects: &mut Vec<Effect>) {
        let Some(peer) = self.peers.get(&node) else { return };
        let in_use = peer.in_use();
        let unechoed = peer.links.values().any(|link| link.challenge.is_some_and(|(_, deadline)| deadline <= now));
        let is_stale = |id: &LinkId, link: &Link| in_use != Some(*id) && link.knocked.plus_ms(self.timings.greet_ms) <= now;
        let stale: Vec<LinkId> = peer.links.iter().filter(|(id, link)| is_stale(id, link)).map(|(id, _)| *id).collect();
        for link in stale {
            self.close(link, Closing::Ungreeted, effects);
        }
        if let Some(old) = in_use.filter(|_| unechoed) {
            self.close(old, Closing::Silent, effects);
            self.hand_over(now, node, effects);
        }
    }

    pub(super) fn on_ended(&mut self, now: Time, id: LinkId, on_purpose: bool, why: String, effects: &mut Vec<Effect>) {
        let Some(node) = self.owners.get(&id).copied() else { return };
        let Some(peer) = self.peers.get(&node) else { return };
        let was_in_use = peer.in_use() == Some(id);
        let alone = peer.links.len() == 1;
        self.remove(id);
        if was_in_use && on_purpose && alone {
            self.end_life(node, Death::Goodbye(why), effects);
        } else if was_in_use && alone {
            self.lose(now, node, effects);
            self.redial(now, node, effects);
        } else {
            self.hand_over(now, node, effects);
        }
        self.forget_if_empty(node);
    }

    /// The link in use or the accepted one is gone: the oldest knock that waits gets its turn.
    pub(super) fn hand_over(&mut self, now: Time, node: NodeId, effects: &mut Vec<Effect>) {
        if self.peers.get(&node).is_some_and(|peer| peer.in_use().is_some_and(|id| !peer.links.contains_key(&id))) {
            self.lose(now, node, effects);
        }
        let Some(peer) = self.peers.get_mut(&node) else { return };
        peer.links.values_mut().for_each(|link| link.challenge = None);
        let waiting: Vec<LinkId> = peer.links.iter().filter(|(_, link)| !link.ours).map(|(id, _)| *id).collect();
        for id in waiting {
            self.consider(now, node, id, effects);
        }
    }

    pub(super) fn on_drop(&mut self, node: NodeId, effects: &mut Vec<Effect>) {
        let Some(peer) = self.peers.get(&node) else { return };
        for id in peer.links.keys().copied().collect::<Vec<_>>() {
            self.close(id, Closing::Dropped, effects);
        }
        self.end_life(node, Death::Dropped, effects);
        self.forget_if_empty(node);
    }
}
