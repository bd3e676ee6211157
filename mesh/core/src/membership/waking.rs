//! R8: who was frozen, slept or starved suspects only itself.
//!
//! A step that comes later than it was asked for shows it: no time passed for us, so every deadline moves by the jump.
//! What we believe about others may be old, and others may hold us dead and have done without us. So all peers are probed
//! afresh, and until each has echoed or missed the ordinary time, nothing is to be published.

use std::collections::BTreeMap;

use crate::ids::{NodeId, Time};

use super::peers::{Peer, Reached};
use super::{Effect, LinkId, Membership};

/// Awake at the latest after this, whoever is still undecided: twice the longest patience with a peer (derived).
const WAKING_MS_MAX: u64 = 10_000;

/// Whose echoes we wait for before we trust ourselves.
#[derive(Clone, Debug)]
pub(super) struct Waking {
    /// The fresh probe of each, `None` where there was no link.
    awaited: BTreeMap<NodeId, Option<u64>>,
    /// Awake then at the latest.
    pub until: Time,
}

impl Membership {
    pub(super) fn forgive_sleep(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let Some(expected) = self.expected else { return };
        if now <= expected.plus_ms(self.timings.probe_ms) {
            return;
        }
        let jump = now.0 - expected.0;
        self.peers.values_mut().for_each(|peer| shift(peer, jump));
        self.wake(now, effects);
        let all: Vec<NodeId> = self.peers.keys().copied().collect();
        all.into_iter().for_each(|node| self.renew(node));
    }

    fn wake(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let alive: Vec<(NodeId, Option<LinkId>)> =
            self.peers.iter().filter(|(_, peer)| peer.life.is_some()).map(|(node, peer)| (*node, peer.in_use())).collect();
        if alive.is_empty() {
            return;
        }
        let awaited = alive.into_iter().map(|(node, link)| (node, link.map(|link| self.probe(now, link, effects)))).collect();
        let until = match self.waking.take() {
            Some(waking) => waking.until, // it goes on: a process that starves for ever must not be mute for ever
            None => {
                effects.push(Effect::Waking);
                now.plus_ms(WAKING_MS_MAX)
            }
        };
        self.waking = Some(Waking { awaited, until });
    }

    /// An echo came on the link in use. It counts if the fresh probe, or one after it, is no longer under way.
    pub(super) fn echoed_while_waking(&mut self, node: NodeId, link: LinkId) {
        let Some(waking) = &mut self.waking else { return };
        let link = self.peers.get(&node).and_then(|peer| peer.links.get(&link));
        let under_way = |fresh: u64| link.is_some_and(|link| link.probes.iter().any(|(nonce, _)| *nonce == fresh));
        if !waking.awaited.get(&node).is_some_and(|fresh| fresh.is_some_and(under_way)) {
            waking.awaited.remove(&node);
        }
    }

    /// This peer has echoed, or is down.
    pub(super) fn no_longer_awaited(&mut self, node: NodeId) {
        if let Some(waking) = &mut self.waking {
            waking.awaited.remove(&node);
        }
    }

    pub(super) fn perhaps_awake(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.waking.as_ref().is_some_and(|waking| waking.awaited.is_empty() || waking.until <= now) {
            self.waking = None;
            effects.push(Effect::Awake);
        }
    }
}

/// Moves every deadline of a peer.
fn shift(peer: &mut Peer, by: u64) {
    let later = |time: &mut Time| time.0 = time.0.saturating_add(by);
    for link in peer.links.values_mut() {
        later(&mut link.knocked);
        link.silent_since.iter_mut().for_each(later);
        link.probes.iter_mut().for_each(|(_, sent)| later(sent));
        link.challenge.iter_mut().for_each(|(_, deadline)| later(deadline));
    }
    let Some(life) = &mut peer.life else { return };
    if let Reached::Lost(at) = &mut life.at {
        later(at);
    }
    if let Some(suspected) = &mut life.suspected {
        later(&mut suspected.ask_at);
        suspected.tell_at.iter_mut().for_each(later);
        suspected.redial_at.iter_mut().for_each(later);
        suspected.brought.iter_mut().for_each(|(_, at)| later(at));
    }
}
