//! Links: every usable path between this node and another, one object at both ends.
//!
//! A link is a pair of interfaces. Both ends compute the same pairs under the same names from what both nodes say of
//! themselves ([`pairs`]). Which of them work, and how well, only a measurement tells, and two ends that each judge for
//! themselves disagree sooner or later (F3, F18). So of two nodes the one with the smaller id, the *low* end, decides: it
//! asks the other end for a place to connect to, measures, orders the links and tells the order ([`LinkMessage::Table`]);
//! the *high* end takes over what it is told. Until it is told, both ends use the same order of first guesses.
//!
//! The order: links that are up, quickest first, the best one staying until another is better by a quarter; then those not
//! yet tried; then those that are down, which cost a failed dial at most. A VPN or a bridge of containers is neither tried
//! nor used while anything else connects the two nodes (F1), and it is said when one is.
//!
//! Measurements are few, small and polite: one at a time, delays every minute or so, rates every ten minutes and never
//! beside running streams. A link that fails is tried again after growing pauses (quarantine). Nothing here is trusted to
//! answer: an ask has a deadline, a ticket is used once, and a table is believed from the low end only, about links that
//! both nodes have.

mod interface;
mod measure;
mod message;
mod pairs;
mod peer;
mod seen;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::ids::{BootId, NodeId, Time};
use crate::wire::LaneOffer;

use measure::Asked;
use peer::{Link, Peer};

pub use interface::{ADDRESSES_MAX, INTERFACES_MAX, Interface, InterfaceKind, NAME_BYTES_MAX, NetAddress, bounded, is_link_local};
pub use message::{LinkMessage, LinkName, LinkSaid, LinkState, Measured, NotNow, PATHS_MAX, Path, Way};
pub use pairs::{PAIRS_MAX, Pair, Reach, WAYS_MAX, pairs};
pub use seen::{SeenEnd, SeenLink};

/// A link that is up is measured again after this, give or take an eighth.
pub const AGAIN_MS: u64 = 60_000;
/// Its rate, which costs megabytes, only after this.
pub const RATE_AGAIN_MS: u64 = 600_000;
/// While streams run only delays are measured; a link whose rate is not known yet is looked at again after this.
pub const RATE_MISSING_MS: u64 = 5_000;
/// First pause after a failure; doubles up to the last.
pub const PAUSE_FIRST_MS: u64 = 2_000;
/// Longest pause.
pub const PAUSE_LAST_MS: u64 = 60_000;
/// A link that was up and fails once is looked at again so soon, before it counts as down: one lost packet is no verdict.
const SECOND_LOOK_MS: u64 = 250;
/// A table is repeated after this: the last one may have been lost.
const TABLE_AGAIN_MS: u64 = 30_000;
/// Paths go into this node's record no more often than this.
const PATHS_MS: u64 = 2_000;
/// A step that comes so late was not late by itself: this machine slept (R8), and nobody failed to answer.
const JUMP_MS: u64 = 5_000;
/// While something is waited for, the core is woken at least this often: that is how it notices a jump.
const TICK_MS: u64 = 1_000;
const _: () = assert!(TICK_MS < JUMP_MS);
/// Bytes for which links are compared: the hidden states of a batch. Guess.
const REFERENCE_BYTES: u64 = 64 << 10;
/// No carrier of ours seals faster than this, whatever a system says of its interface. Measured: 2 GB/s on one core.
const RATE_GUESS_MAX: u64 = 1_000_000_000;
/// Ways that a carrier gets at most.
pub const PREFERRED_MAX: usize = 24;
/// Links that went away and are remembered, so that one that comes and goes is not tried ever again at once.
const REMEMBERED_MAX: usize = 2 * PAIRS_MAX;
/// Reasons that are shown and told are cut to this.
const WHY_BYTES_MAX: usize = 200;

/// What happens to the core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// This node's interfaces; whenever they change.
    Mine(Vec<Interface>),
    /// A node is up, and says this of itself; whenever that changes.
    Met {
        /// Who.
        node: NodeId,
        /// Which of its lives: another one begins anew.
        boot: BootId,
        /// Its interfaces.
        interfaces: Vec<Interface>,
    },
    /// A node is down or has left.
    Gone(NodeId),
    /// A node said something about links.
    Heard {
        /// Who, authenticated.
        from: NodeId,
        /// What.
        message: LinkMessage,
    },
    /// What [`Effect::Measure`] gave.
    Measured {
        /// Its ticket.
        ticket: u64,
        /// The figures, or why there are none.
        outcome: Result<Measured, String>,
    },
    /// A lane on this link broke.
    Broke {
        /// To whom.
        peer: NodeId,
        /// Which link.
        link: LinkName,
    },
    /// Whether streams run through this node: then nothing is sent that takes their bandwidth.
    Busy(bool),
    /// Time passed.
    Elapsed,
}

/// What the core wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send a control message. It may be lost.
    Send {
        /// To whom.
        to: NodeId,
        /// What.
        message: LinkMessage,
    },
    /// Be the far end of one measurement, and send the offer as the answer to `ticket`.
    Echo {
        /// Who measures.
        to: NodeId,
        /// Its ticket.
        ticket: u64,
        /// From where to where.
        ways: Vec<Way>,
    },
    /// Measure a link, and answer [`Input::Measured`].
    Measure {
        /// The other end.
        to: NodeId,
        /// Ours.
        ticket: u64,
        /// Where the other end waits.
        offer: LaneOffer,
        /// From where to where.
        ways: Vec<Way>,
        /// Whether the rate, too.
        rate: bool,
    },
    /// Lanes to and from this node shall take these ways, best first. Empty = nothing is known (any more).
    Prefer {
        /// Whom.
        peer: NodeId,
        /// The ways.
        ways: Vec<Way>,
    },
    /// Say this in our record: planners read it.
    Tell(Vec<Path>),
    /// Something an operator should know.
    Notice(String),
}

/// The core. See the module's head.
#[derive(Clone, Debug)]
pub struct Links {
    me: NodeId,
    mine: Vec<Interface>,
    peers: BTreeMap<NodeId, Peer>,
    asked: Option<Asked>,
    /// Whose measurement this end is the far end of, until when.
    echo: Option<(NodeId, Time)>,
    /// Names our questions, and feeds the jitter.
    ticket: u64,
    busy: bool,
    last: Time,
    told_paths: Vec<Path>,
    paths_at: Time,
}

impl Links {
    /// A node that knows nobody yet. `drawn`: random bits, for tickets and jitter.
    #[must_use]
    pub fn new(now: Time, me: NodeId, drawn: u64) -> Self {
        Self {
            me,
            mine: Vec::new(),
            peers: BTreeMap::new(),
            asked: None,
            echo: None,
            ticket: drawn,
            busy: false,
            last: now,
            told_paths: Vec::new(),
            paths_at: now,
        }
    }

    /// Same history, same effects.
    pub fn step(&mut self, now: Time, input: Input, effects: &mut Vec<Effect>) {
        self.notice_jump(now);
        match input {
            Input::Mine(interfaces) => self.on_mine(now, bounded(interfaces)),
            Input::Met { node, boot, interfaces } => self.on_met(now, node, boot, bounded(interfaces)),
            Input::Gone(node) => self.on_gone(node, effects),
            Input::Heard { from, message } => self.on_heard(now, from, message, effects),
            Input::Measured { ticket, outcome } => self.on_measured(now, ticket, outcome),
            Input::Broke { peer, link } => self.on_broke(now, peer, &link, effects),
            Input::Busy(busy) => self.busy = busy,
            Input::Elapsed => {}
        }
        self.settle(now, effects);
    }

    /// When `step` next wants [`Input::Elapsed`].
    #[must_use]
    pub fn wake_at(&self) -> Option<Time> {
        let asked = self.asked.as_ref().map(|asked| asked.until.min(self.last.plus_ms(TICK_MS)));
        let me = self.me;
        let low = self.peers.iter().filter(move |(node, _)| me < **node).map(|(_, peer)| peer);
        let links = low.clone().filter(|_| self.asked.is_none()).flat_map(|peer| peer.links.iter().filter(|link| peer.may_try(link)));
        let tables = low.filter(|peer| !peer.links.is_empty()).map(|peer| peer.table_at);
        let paths = (self.paths() != self.told_paths).then_some(self.paths_at);
        links.map(|link| link.next_at).chain(tables).chain(asked).chain(paths).min()
    }

    /// Whether the core knows this of a node already.
    #[must_use]
    pub fn knows(&self, node: NodeId, boot: BootId, interfaces: &[Interface]) -> bool {
        self.peers.get(&node).is_some_and(|peer| peer.boot == boot && peer.interfaces == interfaces)
    }

    /// The nodes it knows.
    pub fn peers(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.peers.keys().copied()
    }

    /// Every link there is or might be, as seen at `now`.
    #[must_use]
    pub fn seen(&self, now: Time) -> Vec<SeenLink> {
        self.peers.iter().flat_map(|(node, peer)| seen::of(self.me, &self.mine, *node, peer, now)).collect()
    }

    fn on_mine(&mut self, now: Time, interfaces: Vec<Interface>) {
        if self.mine != interfaces {
            self.mine = interfaces;
            for node in self.peers.keys().copied().collect::<Vec<_>>() {
                self.pair_up(now, node);
            }
        }
    }

    fn on_met(&mut self, now: Time, node: NodeId, boot: BootId, interfaces: Vec<Interface>) {
        if node == self.me {
            return;
        }
        let peer = self.peers.entry(node).or_insert_with(|| Peer::new(now, boot));
        if peer.boot != boot {
            let preferred = std::mem::take(&mut peer.preferred);
            *peer = Peer::new(now, boot);
            peer.preferred = preferred;
        }
        peer.interfaces = interfaces;
        self.pair_up(now, node);
    }

    /// The pairs of this node and another have changed: what stays keeps its state.
    fn pair_up(&mut self, now: Time, node: NodeId) {
        let low = self.me < node;
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let pairs = if low { pairs(&self.mine, &peer.interfaces) } else { pairs(&peer.interfaces, &self.mine) };
        let mut former = std::mem::take(&mut peer.links);
        for pair in pairs {
            let link = match former.iter().position(|link| link.pair.name == pair.name) {
                Some(at) => {
                    let known = former.swap_remove(at);
                    let moved = known.pair.addresses != pair.addresses; // other addresses are another path
                    let next_at = if moved { now } else { known.next_at };
                    Link { pair, next_at, ..known }
                }
                None => {
                    let failures = peer.remembered.get(&pair.name).map_or(0, |(failures, _)| *failures);
                    Link::new(now, pair, failures)
                }
            };
            peer.links.push(link);
        }
        for gone in former {
            peer.remembered.insert(gone.pair.name, (gone.failures + 1, now));
        }
        peer.remembered.retain(|_, (_, since)| now.ms_since(*since) < PAUSE_LAST_MS);
        while peer.remembered.len() > REMEMBERED_MAX {
            peer.remembered.pop_first();
        }
        peer.table_at = now;
    }

    fn on_gone(&mut self, node: NodeId, effects: &mut Vec<Effect>) {
        if self.peers.remove(&node).is_some_and(|peer| !peer.preferred.is_empty()) {
            effects.push(Effect::Prefer { peer: node, ways: Vec::new() });
        }
        if self.asked.as_ref().is_some_and(|asked| asked.peer == node) {
            self.asked = None; // a late result finds no ticket
        }
    }

    fn on_heard(&mut self, now: Time, from: NodeId, message: LinkMessage, effects: &mut Vec<Effect>) {
        match message {
            LinkMessage::Ask { ticket, link, rate } => self.on_ask(now, from, ticket, &link, rate, effects),
            LinkMessage::Answer { ticket, offer } => self.on_answer(now, from, ticket, offer, effects),
            LinkMessage::Table(table) if from < self.me => {
                if let Some(peer) = self.peers.get_mut(&from) {
                    peer.on_table(now, table);
                }
            }
            LinkMessage::Doubt(link) if self.me < from => self.look_again(now, from, &link),
            LinkMessage::Table(_) | LinkMessage::Doubt(_) => {} // from the wrong end
        }
    }

    /// A lane broke: whoever decides looks at once.
    fn on_broke(&mut self, now: Time, peer: NodeId, link: &LinkName, effects: &mut Vec<Effect>) {
        if self.me < peer {
            self.look_again(now, peer, link);
        } else if self.peers.contains_key(&peer) {
            effects.push(Effect::Send { to: peer, message: LinkMessage::Doubt(link.clone()) });
        }
    }

    fn look_again(&mut self, now: Time, node: NodeId, name: &LinkName) {
        let link = self.peers.get_mut(&node).and_then(|peer| peer.link_mut(name));
        if let Some(link) = link.filter(|link| link.state == LinkState::Up) {
            link.next_at = link.next_at.min(now);
        }
    }

    /// R8: after a sleep of this machine nobody has failed to answer.
    fn notice_jump(&mut self, now: Time) {
        let gap_ms = now.ms_since(self.last);
        if gap_ms > JUMP_MS
            && let Some(asked) = &mut self.asked
        {
            asked.until = asked.until.plus_ms(gap_ms);
        }
        self.last = self.last.max(now);
    }

    /// After each input: whatever is due is done.
    fn settle(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.expire(now);
        for (node, peer) in &mut self.peers {
            if self.me < *node {
                peer.decide();
                if let Some(table) = peer.table_due(now) {
                    effects.push(Effect::Send { to: *node, message: LinkMessage::Table(table) });
                }
            } else {
                peer.follow();
            }
            if let Some(ways) = peer.news_for_lanes(self.me < *node, &self.mine) {
                effects.push(Effect::Prefer { peer: *node, ways });
            }
            if let Some(notice) = peer.detour_notice(*node) {
                effects.push(Effect::Notice(notice));
            }
        }
        self.ask_next(now, effects);
        let paths = self.paths();
        if paths != self.told_paths && now >= self.paths_at {
            self.paths_at = now.plus_ms(PATHS_MS);
            self.told_paths.clone_from(&paths);
            effects.push(Effect::Tell(paths));
        }
    }

    /// The best link to each node of which this is the low end. Small changes of the figures are no news.
    fn paths(&self) -> Vec<Path> {
        let low = self.peers.iter().filter(|(node, _)| self.me < **node);
        let best = low.filter_map(|(node, peer)| Some(Path { peer: *node, measured: peer.best_measured()? }));
        let settled = |path: Path| {
            let told = self.told_paths.iter().find(|told| told.peer == path.peer);
            told.filter(|told| alike(told.measured, path.measured)).copied().unwrap_or(path)
        };
        best.map(settled).take(PATHS_MAX).collect()
    }
}

/// Whether two measurements differ by no more than noise.
fn alike(a: Measured, b: Measured) -> bool {
    let near = |a: u64, b: u64, grain: u64| a.abs_diff(b) <= grain + a.max(b) / 4;
    (a.bytes_per_s == 0) == (b.bytes_per_s == 0) && near(a.bytes_per_s, b.bytes_per_s, 0) && near(a.delay_us.into(), b.delay_us.into(), 50)
}

/// Words of a peer or a system, cut to what is worth carrying.
fn cut(why: &str) -> String {
    let end = (0..=WHY_BYTES_MAX.min(why.len())).rev().find(|&at| why.is_char_boundary(at)).unwrap_or(0);
    why[..end].to_owned()
}
