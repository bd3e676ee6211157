//! What the node sees: a copy for whoever asks.

use mesh_core::deployments::Health;
use mesh_core::plan::Plan;
use mesh_core::records::{NodeRecord, NodeState};

use super::NodeActor;
use crate::handle::{Found, NodeStatus, SeenDeployment, SeenNode};

impl NodeActor {
    pub(super) fn status(&self) -> NodeStatus {
        let (now, directory) = (self.parts.clock.now(), self.core.directory());
        let seen = |record: &NodeRecord| SeenNode {
            health: self.core.health(record.node),
            why: self.core.suspicion(record.node).map(str::to_owned),
            away_ms: self.core.away_ms(record.node),
            record: record.clone(),
        };
        let deployments = directory.deployments().filter(|record| !record.is_deleted());
        NodeStatus {
            me: self.parts.me.node,
            nodes: directory.nodes().filter(|record| self.is_shown(record)).map(seen).collect(),
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
        let deployed = || self.core.directory().deployments().filter(|record| !record.is_deleted());
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

    /// Departed nodes are shown for a while, then vanish (F35).
    fn is_shown(&self, record: &NodeRecord) -> bool {
        let lifetimes = self.core.directory().lifetimes();
        let away_ms = self.core.away_ms(record.node).unwrap_or(0);
        match self.core.health(record.node) {
            _ if record.state == NodeState::Forgotten => false,
            Health::Up | Health::Suspect => true,
            Health::Left => away_ms < lifetimes.left_ms,
            Health::Down | Health::Unmet => away_ms < lifetimes.down_ms,
        }
    }
}
