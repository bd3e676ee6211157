//! Decisions as text tables, any input at all, and whole worlds of stages in random order.

mod fuzz;
mod table;
mod world;

use super::*;
use crate::generation::Sampling;
use crate::model::Layers;
use crate::plan::{Numerics, Stage as PlanStage};
use crate::toy;

/// Node `n` of the tests.
pub(super) fn node(n: u8) -> NodeId {
    NodeId([n; 32])
}

/// A toy of six layers over so many stages, on nodes 0, 1, ...
pub(super) fn plan_of(stages: u8, context: u32) -> (crate::model::ModelSheet, Plan) {
    let sheet = toy::sheet(6, 4, 50, 4096);
    let cut = |stage: u8| u16::from(stage) * 6 / u16::from(stages);
    let list = (0..stages).map(|stage| PlanStage { node: node(stage), layers: Layers::new(cut(stage), cut(stage + 1)) }).collect();
    let plan = Plan::new(&sheet, list, context, 4, Numerics::default()).expect("a chain");
    (sheet, plan)
}

/// Stage `index` of `plan`, with slots of so many bytes.
pub(super) fn place_of(plan: &Plan, index: u16, slot_bytes: u32) -> Place {
    Place { deployment: DeploymentId(1), plan: plan.clone(), index, width: 4, vocabulary: 50, slot_bytes }
}

/// Attempt `counter` of the owner on `owner`.
pub(super) fn attempt_of(owner: NodeId, counter: u32) -> Attempt {
    Attempt { takeover: 0, owner, boot: crate::ids::BootId(1), counter }
}

/// An `Open` as an owner writes it.
pub(super) fn open_of(plan: &Plan, stream: u128, attempt: Attempt, ids: &[u32], prompt_len: u32) -> Open {
    let length = u32::try_from(ids.len()).expect("few");
    Open {
        deployment: DeploymentId(1),
        plan: plan.hash(),
        stream: StreamId(stream),
        attempt,
        keep: 0,
        sample_from: length,
        ids: ids.to_vec(),
        prompt_len,
        granted: length + 32,
        sampling: Sampling::default(),
        end_ids: vec![49],
        max_tokens: 64,
    }
}

/// The tag of an `Open`.
pub(super) fn tag_of(open: &Open) -> StreamTag {
    StreamTag { deployment: open.deployment, plan: open.plan, stream: open.stream, attempt: open.attempt.tag() }
}
