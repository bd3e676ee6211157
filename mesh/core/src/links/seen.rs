//! Links as a person or a program is shown them.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::interface::{Interface, InterfaceKind};
use super::message::{LinkName, LinkState, Measured};
use super::pairs::Reach;
use super::peer::{Link, Peer};
use crate::ids::{NodeId, Time};
use crate::wire::LaneId;

/// A link, as this node sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenLink {
    /// The other node.
    pub peer: NodeId,
    /// Its name, the same at both ends.
    pub link: LinkName,
    /// This node's end.
    pub mine: SeenEnd,
    /// The other node's end.
    pub theirs: SeenEnd,
    /// The lesser of both ends' kinds.
    pub kind: InterfaceKind,
    /// How they reach each other.
    pub reach: Reach,
    /// How it is.
    pub state: LinkState,
    /// For how long, in milliseconds.
    pub since_ms: u64,
    /// What it gave when it was measured last.
    pub measured: Option<Measured>,
    /// Its place in the order in which both ends use their links, from 0; none = it is not used.
    pub place: Option<u16>,
    /// The lanes on it now.
    pub lanes: Vec<LaneId>,
    /// Why it is not the one that is used, or why it is although it should not be; empty if there is nothing to say.
    pub note: String,
}

/// One end of a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenEnd {
    /// The interface's name on its node.
    pub interface: String,
    /// What it is.
    pub kind: InterfaceKind,
    /// The address that is tried first.
    pub address: IpAddr,
}

/// The links to one peer.
pub(super) fn of(me: NodeId, mine: &[Interface], node: NodeId, peer: &Peer, now: Time) -> Vec<SeenLink> {
    let end = |interfaces: &[Interface], name: &str, address: IpAddr| {
        let kind = interfaces.iter().find(|one| one.name == name).map_or(InterfaceKind::Virtual, |one| one.kind);
        SeenEnd { interface: name.to_owned(), kind, address }
    };
    let seen = |link: &Link| {
        let name = &link.pair.name;
        let (low, high) = link.pair.addresses.first().copied()?;
        let (mine, theirs) = if me < node {
            (end(mine, &name.low, low), end(&peer.interfaces, &name.high, high))
        } else {
            (end(mine, &name.high, high), end(&peer.interfaces, &name.low, low))
        };
        let place = peer.order.iter().position(|other| other == name).and_then(|place| u16::try_from(place).ok());
        Some(SeenLink {
            peer: node,
            link: name.clone(),
            mine,
            theirs,
            kind: link.pair.kind,
            reach: link.pair.reach,
            state: link.state.clone(),
            since_ms: now.ms_since(link.since),
            measured: link.measured,
            place,
            lanes: Vec::new(),
            note: note(peer, link, place, now),
        })
    };
    let mut all: Vec<SeenLink> = peer.links.iter().filter_map(seen).collect();
    all.sort_by_key(|link| (link.place.unwrap_or(u16::MAX), link.link.clone()));
    all
}

fn note(peer: &Peer, link: &Link, place: Option<u16>, now: Time) -> String {
    let wait_s = link.next_at.ms_since(now).div_ceil(1_000);
    match (&link.state, place) {
        (LinkState::Up, Some(0)) if link.pair.is_virtual() => "used because no other link connects the two nodes".to_owned(),
        (LinkState::Up, Some(0)) => String::new(),
        (LinkState::Up, _) => match peer.order.first() {
            Some(best) => format!("{best} is quicker"),
            None => String::new(),
        },
        (LinkState::Untried, None) => "a VPN or container bridge: used only if no other link connects the two nodes".to_owned(),
        (LinkState::Untried, _) if !peer.is_agreed() => "the other end has not measured it yet".to_owned(),
        (LinkState::Untried, _) => "not measured yet".to_owned(),
        (LinkState::Down(why), _) if wait_s > 0 && link.failures > 0 => format!("{why}; tried again in {wait_s} s"),
        (LinkState::Down(why), _) => why.clone(),
    }
}
