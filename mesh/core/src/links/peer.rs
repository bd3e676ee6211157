//! What is known of the links to one peer: how each is, and the order in which both ends use them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::message::{LinkName, LinkSaid, LinkState, Measured, Way};
use super::pairs::{PAIRS_MAX, Pair, Reach};
use super::{
    AGAIN_MS, Interface, PAUSE_FIRST_MS, PAUSE_LAST_MS, PREFERRED_MAX, RATE_GUESS_MAX, RATE_MISSING_MS, REFERENCE_BYTES, SECOND_LOOK_MS,
    TABLE_AGAIN_MS, alike, cut,
};
use crate::ids::{BootId, NodeId, Time};

/// One link to one peer.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub pair: Pair,
    pub state: LinkState,
    pub since: Time,
    pub measured: Option<Measured>,
    /// When its rate was measured last.
    pub rate_at: Option<Time>,
    /// The other end wants no rate measured before this.
    pub rate_after: Time,
    /// Failures in a row.
    pub failures: u32,
    /// When it is to be measured next.
    pub next_at: Time,
}

impl Link {
    /// One that nobody has tried. With failures of a former life it waits as if it had just failed again.
    pub fn new(now: Time, pair: Pair, failures: u32) -> Self {
        let next_at = if failures == 0 { now } else { now.plus_ms(pause_ms(failures)) };
        Self { pair, state: LinkState::Untried, since: now, measured: None, rate_at: None, rate_after: now, failures, next_at }
    }

    fn set(&mut self, now: Time, state: LinkState) {
        if std::mem::discriminant(&self.state) != std::mem::discriminant(&state) {
            self.since = now;
        }
        self.state = state;
    }

    /// A measurement came back. `jitter` is 0..=255.
    pub fn came_back(&mut self, now: Time, measured: Measured, jitter: u64) {
        let rate = if measured.bytes_per_s > 0 {
            self.rate_at = Some(now);
            measured.bytes_per_s
        } else {
            self.measured.map_or(0, |known| known.bytes_per_s)
        };
        self.measured = Some(Measured { bytes_per_s: rate, ..measured });
        self.failures = 0;
        // Without its rate it is not comparable: soon again, should the streams that were in the way have ended.
        let again_ms = if rate == 0 { RATE_MISSING_MS } else { AGAIN_MS };
        self.next_at = now.plus_ms(spread(again_ms, jitter));
        self.set(now, LinkState::Up);
    }

    /// It failed. One that was up gets a second look first.
    pub fn failed(&mut self, now: Time, why: &str, jitter: u64) {
        self.failures = self.failures.saturating_add(1);
        if self.state == LinkState::Up && self.failures == 1 {
            self.next_at = now.plus_ms(SECOND_LOOK_MS);
            return;
        }
        self.next_at = now.plus_ms(spread(pause_ms(self.failures), jitter));
        self.rate_at = None; // whatever comes back may be another cable
        self.set(now, LinkState::Down(cut(why)));
    }

    /// Nanoseconds that the reference message takes: what links are compared by. A rate that is not known yet is taken to be
    /// the system's word, else `like`: then the delay decides.
    fn cost_ns(&self, like: u64) -> u64 {
        let nominal = match u64::from(self.pair.speed_mbps) * 125_000 {
            0 => like,
            known => known.min(RATE_GUESS_MAX),
        };
        let (delay_us, rate) = self.measured.map_or((u32::MAX, 0), |measured| (measured.delay_us, measured.bytes_per_s));
        let rate = if rate == 0 { nominal } else { rate };
        u64::from(delay_us) * 1_000 + (REFERENCE_BYTES * 1_000_000_000).checked_div(rate).unwrap_or(u64::MAX / 2)
    }

    fn is_up(&self) -> bool {
        self.state == LinkState::Up
    }
}

/// Quarantine: the pause after so many failures in a row.
fn pause_ms(failures: u32) -> u64 {
    PAUSE_FIRST_MS.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(PAUSE_LAST_MS)
}

/// An eighth more or less, so that nodes do not measure in step.
fn spread(ms: u64, jitter: u64) -> u64 {
    ms - ms / 8 + ms / 4 * (jitter & 0xff) / 255
}

/// A node that is up.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub boot: BootId,
    pub interfaces: Vec<Interface>,
    /// In the order of first guesses.
    pub links: Vec<Link>,
    /// Both ends' order, as decided or told.
    pub order: Vec<LinkName>,
    /// Links that are not here any more: failures so far, and when they went.
    pub remembered: BTreeMap<LinkName, (u32, Time)>,
    /// Low end: when to say the table again.
    pub table_at: Time,
    /// What the carrier was told.
    pub preferred: Vec<Way>,
    /// What was told (low end) or heard (high end) last; none yet.
    table: Option<Vec<LinkSaid>>,
    /// Nothing but a virtual link is up, and that was said.
    detour_said: bool,
}

impl Peer {
    pub fn new(now: Time, boot: BootId) -> Self {
        Self {
            boot,
            interfaces: Vec::new(),
            links: Vec::new(),
            order: Vec::new(),
            remembered: BTreeMap::new(),
            table_at: now,
            preferred: Vec::new(),
            table: None,
            detour_said: false,
        }
    }

    pub fn link(&self, name: &LinkName) -> Option<&Link> {
        self.links.iter().find(|link| link.pair.name == *name)
    }
    pub fn link_mut(&mut self, name: &LinkName) -> Option<&mut Link> {
        self.links.iter_mut().find(|link| link.pair.name == *name)
    }

    /// Whether this link may be tried and used at all: a virtual one only if every other one was tried and is down (F1).
    pub fn may_try(&self, link: &Link) -> bool {
        !link.pair.is_virtual()
            || self.links.iter().filter(|other| !other.pair.is_virtual()).all(|other| matches!(other.state, LinkState::Down(_)))
    }

    /// Low end: the order that both ends shall use.
    pub fn decide(&mut self) {
        let sitting = self.order.first().cloned();
        let mut order: Vec<&Link> = self.links.iter().filter(|link| self.may_try(link)).collect();
        let like =
            self.links.iter().filter_map(|link| Some(link.measured?.bytes_per_s)).max().filter(|&rate| rate > 0).unwrap_or(RATE_GUESS_MAX);
        let group = |link: &Link| match link.state {
            LinkState::Up => (0, link.cost_ns(like)),
            LinkState::Untried => (1, 0),
            LinkState::Down(_) => (2, 0),
        };
        order.sort_by_key(|link| group(link)); // stable: first guesses settle the rest
        let best = order.first().filter(|best| best.is_up()).map(|best| best.cost_ns(like));
        let keeps = |link: &Link| link.is_up() && best.is_some_and(|best| link.cost_ns(like) / 5 * 4 <= best);
        if let Some(at) = order.iter().position(|link| Some(&link.pair.name) == sitting.as_ref() && keeps(link)) {
            let link = order.remove(at);
            order.insert(0, link);
        }
        self.order = order.into_iter().map(|link| link.pair.name.clone()).collect();
    }

    /// High end: as told, and what the low end does not know yet after that.
    pub fn follow(&mut self) {
        let said = self.table.iter().flatten().map(|said| &said.link).filter(|name| self.link(name).is_some());
        let mut order: Vec<LinkName> = Vec::new();
        for name in said.chain(self.links.iter().filter(|link| self.may_try(link)).map(|link| &link.pair.name)) {
            if !order.contains(name) {
                order.push(name.clone());
            }
        }
        self.order = order;
    }

    /// High end: the low one has said how things are.
    pub fn on_table(&mut self, now: Time, mut table: Vec<LinkSaid>) {
        table.truncate(PAIRS_MAX);
        for said in &table {
            if let Some(link) = self.link_mut(&said.link) {
                let state = match &said.state {
                    LinkState::Down(why) => LinkState::Down(cut(why)),
                    other => other.clone(),
                };
                link.set(now, state);
                link.measured = said.measured;
            }
        }
        self.table = Some(table);
    }

    /// Low end: the table, if it is news or was said long ago.
    pub fn table_due(&mut self, now: Time) -> Option<Vec<LinkSaid>> {
        let said = |name: &LinkName| {
            let link = self.link(name)?;
            Some(LinkSaid { link: name.clone(), state: link.state.clone(), measured: link.measured })
        };
        let table: Vec<LinkSaid> = self.order.iter().filter_map(said).collect();
        let known = self.table.as_ref().is_some_and(|former| same(former, &table));
        if (known && now < self.table_at) || (table.is_empty() && self.table.is_none()) {
            return None;
        }
        self.table_at = now.plus_ms(TABLE_AGAIN_MS);
        self.table = Some(table.clone());
        Some(table)
    }

    /// Whether the other end was told of this order, or told it.
    pub fn is_agreed(&self) -> bool {
        self.table.is_some()
    }

    /// The ways for lanes, if they have changed.
    pub fn news_for_lanes(&mut self, low: bool, mine: &[Interface]) -> Option<Vec<Way>> {
        let links = self.order.iter().filter_map(|name| self.link(name));
        let ways: Vec<Way> = links.flat_map(|link| ways_of(&link.pair, low, mine, link.is_up())).take(PREFERRED_MAX).collect();
        if ways == self.preferred {
            return None;
        }
        self.preferred.clone_from(&ways);
        Some(ways)
    }

    /// Says once that there is nothing but a detour, and once that it is over.
    pub fn detour_notice(&mut self, node: NodeId) -> Option<String> {
        let best = self.order.first().and_then(|name| self.link(name));
        let detour = best.filter(|link| link.is_up() && link.pair.is_virtual()).map(|link| link.pair.name.to_string());
        if detour.is_some() == self.detour_said {
            return None;
        }
        self.detour_said = detour.is_some();
        detour.map(|link| {
            format!("tensors to node {} go over {link}, a VPN or container bridge: no other link connects the two", node.short())
        })
    }

    /// Figures of the link that is used, if it is up.
    pub fn best_measured(&self) -> Option<Measured> {
        self.order.first().and_then(|name| self.link(name)).filter(|link| link.is_up())?.measured
    }
}

/// Whether two tables say the same, but for noise in the figures.
fn same(a: &[LinkSaid], b: &[LinkSaid]) -> bool {
    let figures = |a: Option<Measured>, b: Option<Measured>| match (a, b) {
        (Some(a), Some(b)) => alike(a, b),
        (a, b) => a == b,
    };
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.link == b.link && a.state == b.state && figures(a.measured, b.measured))
}

/// A link's address pairs as this end sees them. Interfaces that are named differently by now are left out.
pub(super) fn ways_of(pair: &Pair, low: bool, mine: &[Interface], proven: bool) -> Vec<Way> {
    let (local_name, remote_name) = if low { (&pair.name.low, &pair.name.high) } else { (&pair.name.high, &pair.name.low) };
    if !mine.iter().any(|interface| interface.name == *local_name) {
        return Vec::new();
    }
    let way = |&(a, b): &(IpAddr, IpAddr)| {
        let (local, remote) = if low { (a, b) } else { (b, a) };
        Way {
            link: pair.name.clone(),
            local_interface: local_name.clone(),
            local,
            remote_interface: remote_name.clone(),
            remote,
            direct: pair.reach == Reach::Direct,
            proven,
        }
    };
    pair.addresses.iter().map(way).collect()
}
