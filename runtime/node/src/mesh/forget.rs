//! Forgetting a node that is gone for good, by its name or the start of its id (F36).

use mesh_actors::handle::{Health, SeenNode};
use mesh_core::ids::NodeId;

use super::Mesh;

/// Fewer digits of an id than these are more likely a name with a slip in it.
const ID_DIGITS_MIN: usize = 4;

/// A node was not forgotten.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForgetError {
    /// Nobody by this name or id.
    #[error("no node `{name}` is known; there are: {}", .have.join(", "))]
    Unknown {
        /// As asked.
        name: String,
        /// Who is known.
        have: Vec<String>,
    },
    /// More than one.
    #[error("`{name}` may be any of: {}; give more of the id", .candidates.join(", "))]
    Ambiguous {
        /// As asked.
        name: String,
        /// Whom it may mean.
        candidates: Vec<String>,
    },
    /// The node that was asked said no: it is up, or the asked node itself.
    #[error("{0}")]
    Refused(String),
    /// The asked node has stopped.
    #[error("the node has stopped")]
    Gone,
}

impl Mesh {
    /// Forgets a node that is gone for good: on every node, until it comes back by itself in a later life. `name` is its
    /// name or the start of its id.
    ///
    /// # Errors
    /// See [`ForgetError`]. Nothing was changed then.
    pub async fn forget(&self, name: &str) -> Result<NodeId, ForgetError> {
        let status = self.status().await.map_err(|_| ForgetError::Gone)?;
        let node = meant(&status.nodes, name)?;
        self.inner.handle.forget(node).await.map_err(|_| ForgetError::Gone)?.map_err(ForgetError::Refused)?;
        Ok(node)
    }
}

/// The one node that a person means.
fn meant(nodes: &[SeenNode], name: &str) -> Result<NodeId, ForgetError> {
    let described = |seen: &&SeenNode| format!("{} ({}, {})", seen.record.name, seen.record.node.short(), state_of(seen.health));
    let mut found: Vec<&SeenNode> = nodes.iter().filter(|seen| seen.record.name == name).collect();
    if found.is_empty() && name.len() >= ID_DIGITS_MIN {
        let start = name.to_ascii_lowercase();
        found = nodes.iter().filter(|seen| seen.record.node.to_string().starts_with(&start)).collect();
    }
    match found[..] {
        [one] => Ok(one.record.node),
        [] => Err(ForgetError::Unknown { name: name.to_owned(), have: nodes.iter().map(|seen| described(&seen)).collect() }),
        _ => Err(ForgetError::Ambiguous { name: name.to_owned(), candidates: found.iter().map(described).collect() }),
    }
}

fn state_of(health: Health) -> &'static str {
    match health {
        Health::Up => "up",
        Health::Suspect => "suspect",
        Health::Down => "down",
        Health::Left => "left",
        Health::Unmet => "unmet",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mesh_core::ids::BootId;
    use mesh_core::lifetimes::Wall;
    use mesh_core::records::{Capacity, NodeRecord, NodeState};

    fn seen(id: [u8; 2], name: &str) -> SeenNode {
        let mut node = [0; 32];
        node[..2].copy_from_slice(&id);
        let record = NodeRecord {
            node: NodeId(node),
            name: name.to_owned(),
            boot: BootId(1),
            incarnation: 1,
            version: 0,
            state: NodeState::Up,
            alive: Wall(0),
            in_touch: None,
            capacity: Capacity::default(),
            numerics_class: 0,
            addresses: Vec::new(),
            models: Vec::new(),
            shards: Vec::new(),
            interfaces: Vec::new(),
            paths: Vec::new(),
        };
        SeenNode { record, health: Health::Down, why: None, away_ms: Some(1) }
    }

    #[test]
    fn a_name_or_the_start_of_an_id_means_one_node_or_is_refused_in_words() {
        let nodes = [seen([0xab, 0xcd], "mac"), seen([0xab, 0xce], "mac"), seen([0x12, 0x34], "box")];
        assert_eq!(meant(&nodes, "box"), Ok(nodes[2].record.node));
        assert_eq!(meant(&nodes, "ABCD"), Ok(nodes[0].record.node));
        assert!(meant(&nodes, "mac").expect_err("two").to_string().contains("abce0000, down"));
        assert!(matches!(meant(&nodes, "abc"), Err(ForgetError::Unknown { .. })), "too short for an id");
        let error = meant(&nodes, "nobody").expect_err("none").to_string();
        assert!(error.contains("box (12340000, down)"), "{error}");
        let twins = [seen([0xab, 0xcd], "x"), seen([0xab, 0xcd], "y")];
        assert!(matches!(meant(&twins, "abcd"), Err(ForgetError::Ambiguous { .. })));
    }
}
