//! Manual control: the user says which node holds which layers, the planner checks it and says what is in the way.

use crate::model::ModelSheet;
use crate::plan::{Numerics, Plan, PlanError, Stage};
use crate::records::Wish;

use super::words::bytes;
use super::{CONTEXT_MIN, Chosen, Desk, NoPlan, PlanNode, stage_bytes};

/// Refuses a placement that cannot be, whatever the nodes.
pub(super) fn check(sheet: &ModelSheet, wish: &Wish) -> Result<(), String> {
    if wish.place.is_empty() {
        return Ok(());
    }
    if let Some(split) = wish.split.filter(|&split| usize::from(split) != wish.place.len()) {
        return Err(format!("{split} stages were asked for, and a placement of {}: leave one of the two out", wish.place.len()));
    }
    Plan::new(sheet, wish.place.clone(), 1, 1, Numerics::default()).map(drop).map_err(|error| match error {
        PlanError::Layers { layer, layers } => {
            format!("the placement must cover layers 0..{layers} of {} once and in order: it is wrong at layer {layer}", sheet.name)
        }
        PlanError::NodeTwice(_) => "the placement names a node twice: each node holds one range of layers".to_owned(),
    })
}

impl<'a> Desk<'a> {
    /// The stages that were asked for, or the first thing that is in their way.
    pub(super) fn as_placed(&self) -> Result<Chosen, NoPlan> {
        let place = &self.input.wish.place;
        let nodes = place.iter().map(|stage| self.placed_on(*stage)).collect::<Result<Vec<&PlanNode>, NoPlan>>()?;
        for (pair, stages) in nodes.windows(2).zip(place.windows(2)) {
            if self.hops.ps(self.input.sheet, pair[0].node, pair[1].node).is_none() {
                let at = stages[1].layers.first;
                return Err(self.refuse(
                    0,
                    format!("{} and {} are to be neighbours at layer {at}, but no link joins them", pair[0].name, pair[1].name),
                ));
            }
        }
        let context = if self.input.wish.context.is_some() { self.context_top } else { self.context_top.min(CONTEXT_MIN) };
        let missing: Vec<(u64, String)> =
            nodes.iter().zip(place).filter_map(|(node, stage)| self.too_much(node, *stage, context)).collect();
        if !missing.is_empty() {
            let why: Vec<&str> = missing.iter().map(|(_, why)| why.as_str()).collect();
            return Err(self.refuse(missing.iter().map(|(bytes, _)| bytes).sum(), why.join("; ")));
        }
        let mixed_classes = nodes.iter().any(|node| node.numerics_class != nodes[0].numerics_class);
        let context = self.context_for(place);
        Ok(Chosen { stages: place.clone(), context, one_node_by_rule: false, mixed_classes, split: self.input.wish.split })
    }

    /// The node of a stage that was asked for, if it can take part and has the files.
    fn placed_on(&self, stage: Stage) -> Result<&'a PlanNode, NoPlan> {
        let known = self.input.nodes.iter().find(|node| node.node == stage.node);
        let layers = format!("layers {}..{}", stage.layers.first, stage.layers.end);
        if let Some(node) = self.node(stage.node) {
            let has = |layer| node.files.is_some_and(|files| files.contains(layer));
            return match (stage.layers.first..stage.layers.end).find(|&layer| !has(layer)) {
                None => Ok(node),
                Some(layer) => Err(self.refuse(0, format!("{} is to hold {layers} but has no files of layer {layer}", node.name))),
            };
        }
        let name = known.map_or_else(|| stage.node.short(), |node| node.name.clone());
        let why = self.left_out.iter().find(|(node, _)| *node == stage.node).map_or("it is not a member", |(_, why)| why.as_str());
        Err(self.refuse(0, format!("{name} is to hold {layers}, but that cannot be: {why}")))
    }

    /// What a stage takes beyond what its node has left, and that in words.
    fn too_much(&self, node: &PlanNode, stage: Stage, context: u32) -> Option<(u64, String)> {
        if self.context_that_fits(node, stage.layers) >= context {
            return None;
        }
        let (need, streams) =
            (stage_bytes(self.input.sheet, stage.layers, context, self.input.wish.streams, self.input.numerics), self.input.wish.streams);
        let free = node.capacity.memory_bytes.saturating_sub(node.taken_bytes);
        let layers = format!("layers {}..{}", stage.layers.first, stage.layers.end);
        let why =
            format!("{layers} with {streams} × {context} tokens of cache take {}, and {} has {}", bytes(need), node.name, bytes(free));
        Some((need.saturating_sub(free).max(1), why))
    }

    fn refuse(&self, missing_bytes: u64, why: String) -> NoPlan {
        NoPlan { missing_bytes, why: format!("the placement asked for does not go: {why}"), left_out: self.left_out.clone() }
    }
}
