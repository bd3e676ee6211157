//! What all lanes of a node share about links: this machine's interfaces, the ways to each node in the order in which they
//! shall be used, and which lane is on which link.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use mesh_core::ids::NodeId;
use mesh_core::links::{Interface, LinkName, Way};
use mesh_core::ports::LinkUse;
use mesh_core::wire::LaneId;

use crate::lock;

/// Links whose broken lanes are counted at most; beyond it the counts begin anew. Guess.
const COUNTED_MAX: usize = 1024;

/// See the module's head.
#[derive(Default)]
pub(crate) struct Book(Mutex<Pages>);

#[derive(Default)]
struct Pages {
    interfaces: Arc<[Interface]>,
    ways: BTreeMap<NodeId, Vec<Way>>,
    /// Connected lanes, by the number of their entry.
    lanes: BTreeMap<u64, (NodeId, LaneId, Option<LinkName>)>,
    entries: u64,
    broken: BTreeMap<(NodeId, LinkName), u64>,
}

impl Book {
    /// This machine's interfaces.
    pub(crate) fn interfaces(&self) -> Arc<[Interface]> {
        lock(&self.0).interfaces.clone()
    }

    pub(crate) fn set_interfaces(&self, interfaces: &[Interface]) {
        lock(&self.0).interfaces = interfaces.into();
    }

    /// The ways to a node, best first.
    pub(crate) fn ways(&self, peer: NodeId) -> Vec<Way> {
        lock(&self.0).ways.get(&peer).cloned().unwrap_or_default()
    }

    pub(crate) fn set_ways(&self, peer: NodeId, ways: Vec<Way>) {
        let mut pages = lock(&self.0);
        if ways.is_empty() {
            pages.ways.remove(&peer);
        } else {
            pages.ways.insert(peer, ways);
        }
    }

    /// Whether there is a better link to a node than this one, that works.
    pub(crate) fn has_better(&self, peer: NodeId, link: Option<&LinkName>) -> bool {
        let pages = lock(&self.0);
        pages.ways.get(&peer).and_then(|ways| ways.first()).is_some_and(|best| best.proven && Some(&best.link) != link)
    }

    /// A lane is connected between these addresses. It is in the book until the entry is closed or dropped.
    pub(crate) fn enter(self: &Arc<Self>, peer: NodeId, lane: LaneId, local: IpAddr, remote: IpAddr) -> Entry {
        let mut pages = lock(&self.0);
        let on = |way: &&Way| (way.local, way.remote) == (local, remote);
        let link = pages.ways.get(&peer).and_then(|ways| ways.iter().find(on)).map(|way| way.link.clone());
        pages.entries += 1;
        let number = pages.entries;
        pages.lanes.insert(number, (peer, lane, link.clone()));
        Entry { book: Arc::clone(self), number, peer, link }
    }

    /// What lanes do with each link.
    pub(crate) fn uses(&self) -> Vec<LinkUse> {
        let pages = lock(&self.0);
        let mut uses: BTreeMap<(NodeId, LinkName), (Vec<LaneId>, u64)> = BTreeMap::new();
        for (key, broken) in &pages.broken {
            uses.entry(key.clone()).or_default().1 = *broken;
        }
        for (peer, lane, link) in pages.lanes.values() {
            if let Some(link) = link {
                uses.entry((*peer, link.clone())).or_default().0.push(*lane);
            }
        }
        uses.into_iter().map(|((peer, link), (lanes, broken))| LinkUse { peer, link, lanes, broken }).collect()
    }
}

/// A connected lane in the book.
pub(crate) struct Entry {
    book: Arc<Book>,
    number: u64,
    peer: NodeId,
    link: Option<LinkName>,
}

impl Entry {
    /// The link that the lane is on, if it is one that was agreed on.
    pub(crate) fn link(&self) -> Option<&LinkName> {
        self.link.as_ref()
    }

    /// The lane is over; `broken` if nobody meant it to be.
    pub(crate) fn close(self, broken: bool) {
        if let Some(link) = self.link.clone().filter(|_| broken) {
            let mut pages = lock(&self.book.0);
            if pages.broken.len() >= COUNTED_MAX {
                pages.broken.clear();
            }
            *pages.broken.entry((self.peer, link)).or_default() += 1;
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        lock(&self.book.0).lanes.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use mesh_core::ids::{DeploymentId, PlanHash};

    use super::*;

    #[test]
    fn lanes_are_on_the_link_whose_addresses_they_have() {
        let peer = NodeId([2; 32]);
        let ip = |last: u8| IpAddr::from([10, 0, 0, last]);
        let name = LinkName { low: "a".into(), high: "b".into() };
        let way = Way {
            link: name.clone(),
            local_interface: "a".into(),
            local: ip(1),
            remote_interface: "b".into(),
            remote: ip(2),
            direct: true,
            proven: true,
        };
        let book = Arc::new(Book::default());
        let lane = LaneId { deployment: DeploymentId(1), plan: PlanHash(2), boundary: 0 };
        assert!(!book.has_better(peer, None), "nothing is known of it");
        book.set_ways(peer, vec![way.clone()]);
        let (there, elsewhere) = (book.enter(peer, lane, ip(1), ip(2)), book.enter(peer, lane, ip(1), ip(9)));
        assert_eq!((there.link(), elsewhere.link()), (Some(&name), None));
        assert!(!book.has_better(peer, there.link()) && book.has_better(peer, None));
        assert_eq!(book.uses(), [LinkUse { peer, link: name.clone(), lanes: vec![lane], broken: 0 }]);
        there.close(true);
        elsewhere.close(true);
        assert_eq!(book.uses(), [LinkUse { peer, link: name.clone(), lanes: Vec::new(), broken: 1 }]);
        book.set_ways(peer, vec![Way { proven: false, ..way }]);
        assert!(!book.has_better(peer, None), "what nobody has measured is no reason to move");
    }
}
