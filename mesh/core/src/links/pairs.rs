//! Which interfaces of two nodes may be the two ends of a link.
//!
//! A pure function of what both nodes say of themselves, so both ends get the same pairs, by the same names and in the
//! same order, whatever each system calls its interfaces (F3). An interface pair on one network is *direct*. Many pairs can
//! look direct without being so: every cable with addresses of its own choosing is 169.254/16 or fe80::/64. Only a
//! measurement tells (F18). Interfaces that share no network with any of the other node's are *routed*.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::interface::{Interface, InterfaceKind, is_link_local};
use super::message::LinkName;

/// Pairs of two nodes at most. Guess: two cables, a LAN and Wi-Fi at both ends make up to nine.
pub const PAIRS_MAX: usize = 16;
/// Address pairs of one link that are tried at most.
pub const WAYS_MAX: usize = 4;

/// How the two ends reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reach {
    /// One network.
    Direct,
    /// Through a router, if at all.
    Routed,
}

/// Two interfaces that may be the ends of a link. *Low* is the node with the smaller id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The link's name.
    pub name: LinkName,
    /// The lesser of both ends' kinds.
    pub kind: InterfaceKind,
    /// The lesser of both ends' nominal rates, in megabits a second; 0 = neither is known.
    pub speed_mbps: u32,
    /// How they reach each other.
    pub reach: Reach,
    /// Addresses of the low and the high end, best first; at least one.
    pub addresses: Vec<(IpAddr, IpAddr)>,
}

impl Pair {
    /// Whether a VPN or a bridge of containers is one of its ends.
    #[must_use]
    pub fn is_virtual(&self) -> bool {
        self.kind == InterfaceKind::Virtual
    }

    /// First guesses first. Names only settle ties.
    fn rank(&self) -> impl Ord + '_ {
        (self.kind, self.reach, std::cmp::Reverse(self.speed_mbps), &self.name)
    }
}

/// All pairs of two nodes, first guesses first, at most [`PAIRS_MAX`].
#[must_use]
pub fn pairs(low: &[Interface], high: &[Interface]) -> Vec<Pair> {
    let at_home = one_machine(low, high);
    let mut found = Vec::new();
    let (mut low_near, mut high_near) = (vec![false; low.len()], vec![false; high.len()]);
    for (i, a) in low.iter().enumerate() {
        for (j, b) in high.iter().enumerate() {
            if (a.kind == InterfaceKind::Loopback) != (b.kind == InterfaceKind::Loopback) || (a.kind == InterfaceKind::Loopback && !at_home)
            {
                continue;
            }
            let addresses = direct(a, b);
            if !addresses.is_empty() {
                (low_near[i], high_near[j]) = (true, true);
                found.push(pair(a, b, Reach::Direct, addresses));
            }
        }
    }
    let alone = |near: &[bool], i: usize, one: &Interface| !near[i] && one.kind != InterfaceKind::Loopback;
    for (_, a) in low.iter().enumerate().filter(|&(i, a)| alone(&low_near, i, a)) {
        for (_, b) in high.iter().enumerate().filter(|&(j, b)| alone(&high_near, j, b)) {
            let addresses = routed(a, b);
            if !addresses.is_empty() {
                found.push(pair(a, b, Reach::Routed, addresses));
            }
        }
    }
    found.sort_by(|a, b| a.rank().cmp(&b.rank()));
    found.truncate(PAIRS_MAX);
    found
}

fn pair(low: &Interface, high: &Interface, reach: Reach, mut addresses: Vec<(IpAddr, IpAddr)>) -> Pair {
    addresses.sort_by_key(|&(a, b)| (is_link_local(a), a.is_ipv6(), a, b));
    addresses.truncate(WAYS_MAX);
    let speed_mbps = match (low.speed_mbps, high.speed_mbps) {
        (0, known) | (known, 0) => known,
        (a, b) => a.min(b),
    };
    let name = LinkName { low: low.name.clone(), high: high.name.clone() };
    Pair { name, kind: low.kind.max(high.kind), speed_mbps, reach, addresses }
}

/// Address pairs on one network, in the view of both ends. An address that both have (a bridge of containers has the same
/// one on every machine) would be a way to oneself.
fn direct(low: &Interface, high: &Interface) -> Vec<(IpAddr, IpAddr)> {
    let near = low.addresses.iter().flat_map(|a| high.addresses.iter().map(move |b| (a, b)));
    let own = low.kind == InterfaceKind::Loopback;
    near.filter(|(a, b)| a.holds(b.ip) && b.holds(a.ip) && (own || a.ip != b.ip)).map(|(a, b)| (a.ip, b.ip)).collect()
}

/// Address pairs that a router may connect.
fn routed(low: &Interface, high: &Interface) -> Vec<(IpAddr, IpAddr)> {
    let all = low.addresses.iter().flat_map(|a| high.addresses.iter().map(move |b| (a, b)));
    let fits = |a: IpAddr, b: IpAddr| a.is_ipv4() == b.is_ipv4() && a != b && !is_link_local(a) && !is_link_local(b);
    all.filter(|(a, b)| fits(a.ip, b.ip)).map(|(a, b)| (a.ip, b.ip)).collect()
}

/// Whether two nodes may run on one machine: they have an address in common, or one of them has nothing but loopback. If
/// the guess is wrong, nobody who knows our key answers there.
fn one_machine(low: &[Interface], high: &[Interface]) -> bool {
    let outward = |interfaces: &[Interface]| -> Vec<IpAddr> {
        let out = interfaces.iter().filter(|one| !matches!(one.kind, InterfaceKind::Loopback | InterfaceKind::Virtual));
        out.flat_map(|one| one.addresses.iter().map(|address| address.ip)).collect()
    };
    let (ours, theirs) = (outward(low), outward(high));
    ours.is_empty() || theirs.is_empty() || ours.iter().any(|ip| theirs.contains(ip))
}
