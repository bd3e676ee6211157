//! What the node sees: a copy for whoever asks.

use mesh_core::deployments::Health;
use mesh_core::ids::Time;
use mesh_core::plan::Plan;
use mesh_core::records::NodeRecord;

use super::NodeActor;
use crate::handle::{Found, NodeStatus, SeenDeployment, SeenNode};

/// A node that said goodbye is shown so long (F35).
const LEFT_SHOWN_MS: u64 = 10 * 60_000;
/// One that is dead, or was never met in this life of ours, is shown so long.
const DOWN_SHOWN_MS: u64 = 60 * 60_000;

impl NodeActor {
    pub(super) fn status(&self) -> NodeStatus {
        let now = self.parts.clock.now();
        let directory = self.core.directory();
        let seen = |record: &NodeRecord| SeenNode {
            health: self.core.health(record.node),
            why: self.core.suspicion(record.node).map(str::to_owned),
            record: record.clone(),
        };
        let deployments = directory.deployments().filter(|record| !record.deleted);
        NodeStatus {
            me: self.parts.me.node,
            nodes: directory.nodes().filter(|record| self.is_shown(now, record)).map(seen).collect(),
            deployments: deployments
                .map(|record| SeenDeployment {
                    shard: self.shards.seen(record.id),
                    loading: self.core.loading(record.id),
                    other_copies: self.core.other_copies(record.id),
                    record: record.clone(),
                })
                .collect(),
            links: self.seen_links(),
            notices: self.notices.fresh(now),
        }
    }

    pub(super) fn find(&self, name: &str) -> Result<Found, Vec<String>> {
        let deployed = || self.core.directory().deployments().filter(|record| !record.deleted);
        let record = deployed().find(|record| record.sheet.name == name || record.id.to_string() == name);
        let record = record.ok_or_else(|| deployed().map(|record| record.sheet.name.clone()).collect::<Vec<_>>())?;
        Ok(Found {
            id: record.id,
            digest: record.sheet.digest,
            vocabulary: record.sheet.vocabulary,
            status: record.status.clone(),
            context: record.plan.as_ref().map(Plan::context),
        })
    }

    /// Departed nodes are shown for a while, then vanish.
    fn is_shown(&self, now: Time, record: &NodeRecord) -> bool {
        let shown_ms = match self.core.health(record.node) {
            Health::Up | Health::Suspect => return true,
            Health::Left => LEFT_SHOWN_MS,
            Health::Down | Health::Unmet => DOWN_SHOWN_MS,
        };
        self.away.get(&record.node).is_none_or(|since| now.ms_since(*since) < shown_ms)
    }

    pub(super) fn note_who_is_away(&mut self) {
        let now = self.parts.clock.now();
        for record in self.core.directory().nodes() {
            if matches!(self.core.health(record.node), Health::Up | Health::Suspect) {
                self.away.remove(&record.node);
            } else {
                self.away.entry(record.node).or_insert(now);
            }
        }
    }
}
