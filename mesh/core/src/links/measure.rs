//! One measurement at a time: whose turn it is, the question to the other end, and what came of it.

use super::message::{LinkMessage, LinkName, Measured, NotNow};
use super::peer::{Link, ways_of};
use super::{Effect, Links, RATE_AGAIN_MS};
use crate::ids::{NodeId, Time};
use crate::wire::LaneOffer;

/// The other end is busy, or says nothing: ask again after this.
const ASK_AGAIN_MS: u64 = 1_000;
/// The other end has so long to answer an ask.
const ASK_MS: u64 = 3_000;
/// The carrier has so long to measure; it has deadlines of its own, which are shorter.
const MEASURE_MS: u64 = 30_000;
/// The other end had no ear for many bytes: not again before this. Guess.
const RATE_REFUSED_MS: u64 = 10_000;
/// For so long after an answer this end is the far end of a measurement, and lets nobody else send many bytes. Guess.
const ECHO_MS: u64 = 1_000;

/// The measurement under way.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub ticket: u64,
    pub peer: NodeId,
    pub link: LinkName,
    pub rate: bool,
    pub until: Time,
    /// The other end has answered.
    pub measuring: bool,
}

impl Links {
    /// The link that is due first, if none is being measured.
    pub(super) fn ask_next(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.asked.is_some() || self.mine.is_empty() {
            return;
        }
        let low = self.peers.iter().filter(|(node, _)| self.me < **node);
        let links =
            low.flat_map(|(node, peer)| peer.links.iter().filter(|link| peer.may_try(link)).map(move |link| (link.next_at, *node, link)));
        let Some((at, peer, link)) = links.min_by(|a, b| (a.0, a.1, &a.2.pair.name).cmp(&(b.0, b.1, &b.2.pair.name))) else { return };
        if at > now {
            return;
        }
        let rate = self.wants_rate(now, link);
        self.ticket = self.ticket.wrapping_add(1);
        let (ticket, link) = (self.ticket, link.pair.name.clone());
        effects.push(Effect::Send { to: peer, message: LinkMessage::Ask { ticket, link: link.clone(), rate } });
        self.asked = Some(Asked { ticket, peer, link, rate, until: now.plus_ms(ASK_MS), measuring: false });
    }

    /// Not beside running streams; and a link that has failed must show that it is there first.
    fn wants_rate(&self, now: Time, link: &Link) -> bool {
        let old = link.rate_at.is_none_or(|at| now.ms_since(at) >= RATE_AGAIN_MS);
        !self.busy && old && link.failures == 0 && now >= link.rate_after
    }

    /// High end: somebody wants to measure a link of ours.
    pub(super) fn on_ask(&mut self, now: Time, from: NodeId, ticket: u64, link: &LinkName, rate: bool, effects: &mut Vec<Effect>) {
        let known = self.peers.get(&from).and_then(|peer| peer.link(link));
        let answer = match known {
            _ if self.me <= from => return, // we ask, not they
            None => Err(NotNow::Unknown),
            Some(_) if rate && self.busy => Err(NotNow::Busy),
            Some(_) if rate && self.echo.is_some_and(|(to, until)| to != from && now < until) => Err(NotNow::Busy),
            Some(_) if self.asked.as_ref().is_some_and(|asked| asked.measuring && asked.rate) => Err(NotNow::Busy),
            Some(link) => Ok(ways_of(&link.pair, false, &self.mine, false)),
        };
        match answer {
            Ok(ways) => {
                if rate {
                    self.echo = Some((from, now.plus_ms(ECHO_MS)));
                }
                effects.push(Effect::Echo { to: from, ticket, ways });
            }
            Err(why) => {
                effects.push(Effect::Send { to: from, message: LinkMessage::Answer { ticket, offer: Err(why) } });
            }
        }
    }

    /// Low end: the other end waits for us, or cannot now.
    pub(super) fn on_answer(&mut self, now: Time, from: NodeId, ticket: u64, offer: Result<LaneOffer, NotNow>, effects: &mut Vec<Effect>) {
        let jitter = self.jitter();
        let Some(asked) = self.asked.as_mut().filter(|asked| asked.ticket == ticket && asked.peer == from && !asked.measuring) else {
            return;
        };
        let link = self.peers.get_mut(&from).and_then(|peer| peer.link_mut(&asked.link));
        let Some(link) = link else {
            self.asked = None;
            return;
        };
        let Ok(offer) = offer else {
            if offer == Err(NotNow::Busy) {
                link.rate_after = now.plus_ms(RATE_REFUSED_MS); // until then the delay alone, which nobody refuses
            }
            let (peer, link) = (asked.peer, asked.link.clone());
            self.asked = None;
            return self.put_off(now, peer, &link, jitter);
        };
        (asked.measuring, asked.until) = (true, now.plus_ms(MEASURE_MS));
        let ways = ways_of(&link.pair, true, &self.mine, false);
        effects.push(Effect::Measure { to: from, ticket, offer, ways, rate: asked.rate });
    }

    pub(super) fn on_measured(&mut self, now: Time, ticket: u64, outcome: Result<Measured, String>) {
        let jitter = self.jitter();
        let Some(asked) = self.asked.take_if(|asked| asked.ticket == ticket && asked.measuring) else { return };
        let Some(link) = self.peers.get_mut(&asked.peer).and_then(|peer| peer.link_mut(&asked.link)) else { return };
        match outcome {
            Ok(measured) => link.came_back(now, measured, jitter),
            Err(why) => return link.failed(now, &why, jitter),
        }
        let rate_next = !asked.rate
            && self.peers.get(&asked.peer).and_then(|peer| peer.link(&asked.link)).is_some_and(|link| self.wants_rate(now, link));
        if rate_next && let Some(link) = self.peers.get_mut(&asked.peer).and_then(|peer| peer.link_mut(&asked.link)) {
            link.next_at = now; // it is there: now its rate
        }
    }

    /// Nobody waits for ever: an ask that is not answered says nothing about the link, a measurement that never ends does.
    pub(super) fn expire(&mut self, now: Time) {
        let jitter = self.jitter();
        let Some(asked) = self.asked.take_if(|asked| now >= asked.until) else { return };
        if !asked.measuring {
            return self.put_off(now, asked.peer, &asked.link, jitter);
        }
        if let Some(link) = self.peers.get_mut(&asked.peer).and_then(|peer| peer.link_mut(&asked.link)) {
            link.failed(now, "the measurement did not end", jitter);
        }
    }

    fn put_off(&mut self, now: Time, node: NodeId, name: &LinkName, jitter: u64) {
        if let Some(link) = self.peers.get_mut(&node).and_then(|peer| peer.link_mut(name)) {
            link.next_at = now.plus_ms(ASK_AGAIN_MS / 2 + ASK_AGAIN_MS * (jitter & 0xff) / 255);
        }
    }

    /// Eight bits that differ from node to node and from time to time (splitmix64 of the ticket).
    fn jitter(&self) -> u64 {
        let mut bits = self.ticket.wrapping_add(self.last.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (bits ^ (bits >> 27)) >> 56
    }
}
