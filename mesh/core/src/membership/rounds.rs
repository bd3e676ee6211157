//! Whom to probe next: every peer in turn, at a pace that the mesh's size cannot push up.
//!
//! Up to [`SMALL_MAX`] peers each is probed every `probe_ms`, one after the other, so that probes do not come in bursts.
//! Beyond that the whole node sends [`PROBES_PER_SECOND`] and goes through a list that is shuffled anew for each round
//! (SWIM, section 4.3): a frozen node among 64 then hears nothing back from 16 peers each second, and the first of them
//! that notices tells the others.

use std::collections::{BTreeMap, VecDeque};

use crate::ids::{NodeId, Time};

use super::peers::Peer;

/// Peers that are all probed at full rate: heartbeats of a mesh of eight.
pub(super) const SMALL_MAX: usize = 7;

/// Probes that a node sends beyond that. With echoes 450 bytes a second, and the first notice of a freeze after 60 ms.
const PROBES_PER_SECOND: u64 = 16;

/// The running round.
#[derive(Clone, Debug, Default)]
pub(super) struct Rounds {
    left: VecDeque<NodeId>,
    /// When the next probe is due. Means nothing while nobody is up.
    pub next: Time,
}

/// Time between two probes to any of `peers` peers, in nanoseconds.
fn pace(probe_ms: u64, peers: usize) -> u64 {
    if peers <= SMALL_MAX { probe_ms * 1_000_000 / peers.max(1) as u64 } else { 1_000_000_000 / PROBES_PER_SECOND }
}

impl Rounds {
    /// Plans the next probe from `now` on: a node that was late does not catch up.
    pub fn plan(&mut self, now: Time, probe_ms: u64, peers: usize) {
        self.next = Time(now.0.saturating_add(pace(probe_ms, peers).max(1)));
    }

    /// Whose turn it is among those that may be probed. `draw` gives random numbers.
    pub fn turn(&mut self, peers: &BTreeMap<NodeId, Peer>, mut draw: impl FnMut() -> u64) -> Option<NodeId> {
        while let Some(node) = self.left.pop_front() {
            if peers.get(&node).is_some_and(Peer::may_be_probed) {
                return Some(node);
            }
        }
        let mut order: Vec<NodeId> = peers.iter().filter(|(_, peer)| peer.may_be_probed()).map(|(node, _)| *node).collect();
        if order.len() > SMALL_MAX {
            for last in (1..order.len()).rev() {
                order.swap(last, (draw() % (last as u64 + 1)) as usize);
            }
        }
        self.left = order.into();
        self.left.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::ids::BootId;
    use crate::membership::LinkId;
    use crate::membership::peers::{Life, Link};

    fn peers(count: u8) -> BTreeMap<NodeId, Peer> {
        let boot = BootId(1);
        let peer = |index: u8| Peer {
            life: Some(Life::new(boot, LinkId(u64::from(index)))),
            links: [(LinkId(u64::from(index)), Link::new(Time::default(), boot))].into(),
            due: None,
        };
        (0..count).map(|index| (NodeId([index; 32]), peer(index))).collect()
    }

    #[test]
    fn a_small_mesh_is_probed_at_full_rate_and_a_large_one_at_a_bounded_one() {
        let per_second = |peers| 1_000_000_000 / pace(200, peers);
        assert_eq!([1, 2, 7, 8, 63, 1_000].map(per_second), [5, 10, 35, 16, 16, 16]);
    }

    #[test]
    fn each_has_its_turn_once_a_round_whatever_the_order() {
        let (mut rounds, peers, mut drawn) = (Rounds::default(), peers(20), 0_u64);
        let mut draw = || {
            drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            drawn >> 33
        };
        let mut orders = Vec::new();
        for _ in 0..3 {
            let mut order: Vec<NodeId> = (0..20).filter_map(|_| rounds.turn(&peers, &mut draw)).collect();
            orders.push(order.clone());
            order.sort();
            assert!(order.iter().eq(peers.keys()));
        }
        assert!(orders[0] != orders[1] && orders[1] != orders[2]);
        // who is gone is skipped, who is new comes with the next round
        assert_eq!(rounds.turn(&self::peers(1), &mut draw), Some(NodeId([0; 32])));
        assert_eq!(rounds.turn(&BTreeMap::new(), &mut draw), None);
    }
}
