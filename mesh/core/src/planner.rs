//! Which node should hold which layers (placeholder of the planner's result types; the algorithm lands next).

use serde::{Deserialize, Serialize};

use crate::ids::NodeId;
use crate::plan::Plan;

/// A plan, what it should give, and why it looks as it does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Planned {
    /// The plan.
    pub plan: Plan,
    /// Predicted tokens a second of a long prompt.
    pub prefill_tokens_per_s: f64,
    /// Predicted tokens a second of one stream.
    pub decode_tokens_per_s: f64,
    /// Memory by stage: bytes it will take, bytes the node lends.
    pub memory: Vec<(u64, u64)>,
    /// What bound the choice, in sentences.
    pub reasons: Vec<String>,
    /// Who was left out, and why.
    pub left_out: Vec<(NodeId, String)>,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{why}")]
pub struct NoPlan {
    /// Bytes that are missing over all; zero if memory is not what is missing.
    pub missing_bytes: u64,
    /// Need, have per node, and the largest that would fit, in words.
    pub why: String,
    /// Who cannot take part, and why.
    pub left_out: Vec<(NodeId, String)>,
}
