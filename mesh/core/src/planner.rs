//! Which node should hold which layers: the one planner of the live mesh, of `mesh plan` and of the simulator.
//!
//! The idea. A chain of stages costs, for each token, the time that every stage needs to read its weights plus one hop
//! between neighbours, and twice what its slowest stage takes: that is what the next stream or the next chunk of a
//! prompt waits for. For a given set and order of nodes the best cut is found exactly by dynamic programming over
//! layers; orders are tried as a walk over *sets* of nodes (Held and Karp 1962), which covers all orders of up to eight
//! nodes, and keeps only the most promising sets beyond. Everything is integer picoseconds and bytes, so that two nodes
//! that plan from the same input get the same plan. Around that stand the rules: what fits one node stays there
//! ([`choose`](self::plan)), one numerics class if possible, a context that fits if none was asked for, and at a repair
//! as few bytes loaded as possible.

mod chain;
mod costs;
mod memory;
mod placed;
mod search;
#[cfg(test)]
mod tests;
mod words;

use serde::{Deserialize, Serialize};

use crate::ids::NodeId;
use crate::model::{Layers, ModelSheet};
use crate::plan::{Numerics, Plan, Stage};
use crate::records::{Capacity, Wish};

pub use memory::{BASE_BYTES, HEADROOM_PERCENT, lends_at_least, stage_bytes};

use costs::{Costs, Hops, Reference};
use memory::Sizes;
use search::Link;

/// Layers of a model that is planned for at most; more are refused (deep models of today have about 130).
pub const LAYERS_MAX: usize = 512;
/// Nodes that are weighed against each other at most; of more, those with the most memory are taken.
pub const NODES_MAX: usize = 24;
/// A context that nobody calls short: below it the planner rather spreads a model than shrinks the context (guess).
pub const CONTEXT_COMFORTABLE: u32 = 8_192;
/// Nobody asked for a context, and not even this fits: then the model does not fit.
pub const CONTEXT_MIN: u32 = 256;

/// What the planner is asked.
#[derive(Clone, Debug)]
pub struct PlanInput<'a> {
    /// The model.
    pub sheet: &'a ModelSheet,
    /// What the user asked for.
    pub wish: &'a Wish,
    /// How values shall be stored.
    pub numerics: Numerics,
    /// Every node that could be thought of, in any order; ids are unique.
    pub nodes: Vec<PlanNode>,
    /// Pairs that can be neighbours, measured. `None` = not measured: any pair works, at [`PlanLink::DEFAULT_DELAY_US`]
    /// and [`PlanLink::DEFAULT_BYTES_PER_S`].
    pub links: Option<Vec<PlanLink>>,
    /// At a repair: the plan that was in force. Then as few bytes as possible are loaded, its context is kept if it
    /// fits, and a wished number of stages gives way if there are fewer nodes now.
    pub keep: Option<&'a Plan>,
}

/// A node as the planner sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanNode {
    /// Who.
    pub node: NodeId,
    /// For words only.
    pub name: String,
    /// What it lends and how fast it is.
    pub capacity: Capacity,
    /// Bytes of what it lends that other deployments take.
    pub taken_bytes: u64,
    /// Its numerics class (N1).
    pub numerics_class: u64,
    /// Layers of this model whose files it can read.
    pub files: Option<Layers>,
    /// Layers of this deployment that are in its memory now.
    pub shard: Option<Layers>,
    /// Why it cannot take part, if it cannot: it is down, leaving, or failed before.
    pub unusable: Option<String>,
}

/// A pair of nodes that can be neighbours; direction does not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanLink {
    /// One end.
    pub a: NodeId,
    /// The other.
    pub b: NodeId,
    /// One-way delay of a short message, in microseconds.
    pub delay_us: u32,
    /// Bytes a second.
    pub bytes_per_s: u64,
}

impl PlanLink {
    /// Delay where nothing was measured: a quiet gigabit network (guess).
    pub const DEFAULT_DELAY_US: u32 = 200;
    /// Rate where nothing was measured: gigabit Ethernet.
    pub const DEFAULT_BYTES_PER_S: u64 = 125_000_000;
}

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

/// The best plan for `input`, or why there is none. Same input, same answer.
///
/// # Errors
/// Nothing fits, the wish contradicts the model or the nodes, or the model's sheet makes no sense: see [`NoPlan`].
pub fn plan(input: &PlanInput<'_>) -> Result<Planned, NoPlan> {
    check_wish(input.sheet, input.wish)?;
    let desk = Desk::new(input)?;
    let chosen = desk.choose().ok_or_else(|| desk.no_plan())?;
    Ok(desk.planned(chosen))
}

/// Whether a plan is what was wished for: the placement, or the number of stages.
#[must_use]
pub fn fulfils(plan: &Plan, wish: &Wish) -> bool {
    let split = wish.split.is_none_or(|split| usize::from(split) == plan.stages().len());
    split && (wish.place.is_empty() || wish.place == plan.stages())
}

/// Refuses what cannot be planned for, whatever the nodes.
///
/// # Errors
/// The wish contradicts the model, or the sheet makes no sense.
pub fn check_wish(sheet: &ModelSheet, wish: &Wish) -> Result<(), NoPlan> {
    let refuse = |why: String| Err(NoPlan { missing_bytes: 0, why, left_out: Vec::new() });
    if let Err(why) = memory::sound(sheet) {
        return refuse(why);
    }
    match wish.split {
        Some(0) => return refuse("a model cannot be split into 0 stages: ask for at least 1".into()),
        Some(split) if usize::from(split) > sheet.layers.len() => {
            return refuse(format!(
                "{} has {} layers and cannot be split into {split} stages: ask for at most {}",
                sheet.name,
                sheet.layers.len(),
                sheet.layers.len()
            ));
        }
        _ => {}
    }
    placed::check(sheet, wish).or_else(refuse)?;
    match wish.context {
        Some(0) => refuse("a context of 0 tokens holds nothing: ask for at least 1".into()),
        Some(context) if context > sheet.context_max => {
            refuse(format!("{} was made for at most {} tokens: {context} were asked for", sheet.name, sheet.context_max))
        }
        _ if wish.streams == 0 => refuse("a deployment needs room for at least 1 stream".into()),
        _ => Ok(()),
    }
}

/// The planner's working table: the nodes that can take part, in order of preference, and the model's sizes.
struct Desk<'a> {
    input: &'a PlanInput<'a>,
    sizes: Sizes,
    /// Sorted: fast before slow, large before small, then by id.
    nodes: Vec<&'a PlanNode>,
    left_out: Vec<(NodeId, String)>,
    reference: Reference,
    hops: Hops,
    /// Longest context worth trying.
    context_top: u32,
}

/// What was chosen: stages, and what was given up for it.
struct Chosen {
    stages: Vec<Stage>,
    context: u32,
    one_node_by_rule: bool,
    mixed_classes: bool,
    split: Option<u16>,
}

/// One thing to try: all of `nodes`, this context, this number of stages.
struct Attempt<'a> {
    nodes: &'a [&'a PlanNode],
    context: u32,
    split: Option<u16>,
}

impl<'a> Desk<'a> {
    fn new(input: &'a PlanInput<'a>) -> Result<Self, NoPlan> {
        let sheet = input.sheet;
        let mut left_out = Vec::new();
        let mut nodes: Vec<&PlanNode> = Vec::new();
        for node in &input.nodes {
            match (&node.unusable, node.files) {
                (Some(why), _) => left_out.push((node.node, why.clone())),
                (None, files) if files.is_none_or(|files| files.count() == 0) => {
                    left_out.push((node.node, words::no_files(node, sheet)));
                }
                (None, _) => nodes.push(node),
            }
        }
        let sizes = Sizes::new(sheet, input.wish.streams, input.numerics);
        nodes.sort_by_key(|node| {
            (std::cmp::Reverse(node.capacity.memory_bandwidth), std::cmp::Reverse(node.capacity.memory_bytes), node.node)
        });
        nodes.dedup_by_key(|node| node.node);
        // Nodes that were asked for by name are weighed, however slow.
        let (named, others): (Vec<_>, Vec<_>) =
            nodes.into_iter().partition(|node| input.wish.place.iter().any(|stage| stage.node == node.node));
        let mut nodes = [named, others].concat();
        for node in nodes.split_off(nodes.len().min(NODES_MAX)) {
            left_out.push((node.node, format!("only the {NODES_MAX} fastest nodes were weighed")));
        }
        let context_top = match (input.wish.context, input.keep) {
            (Some(context), _) => context,
            (None, Some(keep)) => keep.context().clamp(1, sheet.context_max),
            (None, None) => sheet.context_max,
        };
        let reference = Reference::of(sheet, &sizes, &nodes);
        let hops = Hops::new(input, &reference);
        let desk = Self { input, sizes, nodes, left_out, reference, hops, context_top };
        desk.check_nodes()?;
        Ok(desk)
    }

    /// Refuses what cannot be, however large the nodes.
    fn check_nodes(&self) -> Result<(), NoPlan> {
        let refuse = |why: String| Err(NoPlan { missing_bytes: 0, why, left_out: self.left_out.clone() });
        let sheet = self.input.sheet;
        if self.nodes.is_empty() {
            return refuse(words::nobody(self.input, &self.left_out));
        }
        let covered = |layer: u16| self.nodes.iter().any(|node| node.files.is_some_and(|files| files.contains(layer)));
        if let Some(layer) = (0..sheet.layer_count()).find(|&layer| !covered(layer)) {
            return refuse(format!("no node has the files of layer {layer} of {}: copy them to a model directory of one", sheet.name));
        }
        match self.input.wish.split {
            Some(split) if usize::from(split) > self.nodes.len() && self.input.keep.is_none() => {
                refuse(words::too_few_nodes(self.input, split, self.nodes.len(), &self.left_out))
            }
            _ => Ok(()),
        }
    }

    /// Tries what is preferred first, then what is acceptable.
    fn choose(&self) -> Option<Chosen> {
        if !self.input.wish.place.is_empty() {
            match self.as_placed() {
                Ok(chosen) => return Some(chosen),
                Err(_) if self.input.keep.is_none() => return None,
                Err(_) => {} // at a repair an answer beats a wish
            }
        }
        if self.input.keep.is_none()
            && self.input.wish.split.is_none_or(|split| split == 1)
            && let Some(chosen) = self.one_node()
        {
            return Some(chosen);
        }
        let classes = self.classes();
        for split in self.splits() {
            let (long, short): (Vec<u32>, Vec<u32>) = self.contexts().into_iter().partition(|&context| context >= self.context_floor());
            let mut found = self.first_fit(&classes, &long, split);
            found = found.or_else(|| self.first_fit(std::slice::from_ref(&self.nodes), &long, split));
            found = found.or_else(|| self.first_fit(&classes, &short, split));
            found = found.or_else(|| self.first_fit(std::slice::from_ref(&self.nodes), &short, split));
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// What fits one node stays on one node (F133): the fastest that holds it with a context that nobody calls short.
    fn one_node(&self) -> Option<Chosen> {
        let whole = Layers::new(0, self.input.sheet.layer_count());
        let floor = self.context_floor();
        let fits = |node: &&PlanNode| node.files == Some(whole) && self.context_that_fits(node, whole) >= floor;
        let best =
            self.nodes.iter().filter(|node| fits(node)).min_by_key(|node| {
                (costs::token_ps(self, node, whole), std::cmp::Reverse(self.context_that_fits(node, whole)), node.node)
            })?;
        let stages = vec![Stage { node: best.node, layers: whole }];
        let context = self.context_for(&stages);
        let one_node_by_rule = self.input.wish.split.is_none();
        Some(Chosen { stages, context, one_node_by_rule, mixed_classes: false, split: self.input.wish.split })
    }

    /// The first (longest) context at which one of the groups of nodes holds the model; of several groups the best.
    fn first_fit(&self, groups: &[Vec<&'a PlanNode>], contexts: &[u32], split: Option<u16>) -> Option<Chosen> {
        // Fitting is monotone in the context, so the longest one that fits is found by halving.
        let fits = |context: u32| groups.iter().any(|nodes| self.has_chain(&Attempt { nodes, context, split }));
        let (mut low, mut high) = (0, contexts.len());
        while low < high {
            let middle = if low == 0 && high == contexts.len() { 0 } else { low.midpoint(high) };
            if fits(contexts[middle]) { high = middle } else { low = middle + 1 }
        }
        let context = *contexts.get(low)?;
        let chains = groups.iter().filter_map(|nodes| self.best_chain(&Attempt { nodes, context, split }));
        let (_, stages) = chains.min_by(|a, b| a.0.cmp(&b.0))?;
        let class_of = |id: NodeId| self.nodes.iter().find(|node| node.node == id).map(|node| node.numerics_class);
        let mixed_classes = stages.iter().any(|stage| class_of(stage.node) != class_of(stages[0].node));
        let context = self.context_for(&stages);
        Some(Chosen { stages, context, one_node_by_rule: false, mixed_classes, split })
    }

    fn has_chain(&self, attempt: &Attempt<'_>) -> bool {
        self.ask(attempt, |question| question.has_chain()).unwrap_or(false)
    }

    fn best_chain(&self, attempt: &Attempt<'_>) -> Option<(search::Cost, Vec<Stage>)> {
        let (cost, chain) = self.ask(attempt, |question| question.best())??;
        let stage = |part: &search::Part| Stage { node: attempt.nodes[part.node].node, layers: Layers::new(part.first, part.end) };
        Some((cost, chain.iter().map(stage).collect()))
    }

    /// Puts the question of an attempt; `None` if the answer is plain without asking: no chain.
    fn ask<T>(&self, attempt: &Attempt<'_>, put: impl FnOnce(&search::Question<'_>) -> T) -> Option<T> {
        let nodes = attempt.nodes;
        let free: u64 = nodes.iter().map(|node| memory::net_budget(node)).fold(0, u64::saturating_add);
        if free < self.sizes.net_bytes(0, self.sizes.layers, attempt.context) {
            return None; // not even if it could be cut anywhere
        }
        let costs: Vec<Costs> = nodes.iter().map(|node| Costs::of(self, node, attempt.context)).collect();
        let kinds = self.hops.kinds(&self.nodes, nodes);
        let hop = |from: &PlanNode, to: &PlanNode| self.hops.ps(self.input.sheet, from.node, to.node).map_or(Link::None, Link::Ps);
        let hops: Vec<Vec<Link>> = nodes.iter().map(|from| nodes.iter().map(|to| hop(from, to)).collect()).collect();
        Some(put(&search::Question {
            costs: &costs,
            kinds: &kinds,
            hops: &hops,
            layers: self.sizes.layers,
            stages: attempt.split.map(usize::from),
            moves_first: self.input.keep.is_some(),
            rest_ps: search::rest_ps(&costs, self.sizes.layers),
        }))
    }

    /// Groups of nodes of one numerics class, the largest memory first.
    fn classes(&self) -> Vec<Vec<&'a PlanNode>> {
        let mut classes = std::collections::BTreeMap::<u64, Vec<&PlanNode>>::new();
        for node in &self.nodes {
            classes.entry(node.numerics_class).or_default().push(node);
        }
        classes.into_values().collect()
    }

    /// Numbers of stages to try. A repair may take fewer than were wished for: an answer beats a wish.
    fn splits(&self) -> Vec<Option<u16>> {
        match self.input.wish.split {
            None => vec![None],
            Some(split) if self.input.keep.is_none() => vec![Some(split)],
            Some(split) => {
                let most = usize::from(split).min(self.nodes.len());
                (1..=most).rev().map(|stages| u16::try_from(stages).ok()).collect()
            }
        }
    }

    /// Contexts to try, longest first.
    fn contexts(&self) -> Vec<u32> {
        let mut contexts = vec![self.context_top];
        if self.input.wish.context.is_none() {
            let powers = (0..31).rev().map(|power| 1_u32 << power);
            contexts.extend(powers.filter(|&context| context < self.context_top && context >= CONTEXT_MIN));
        }
        contexts
    }

    /// The context below which spreading beats shrinking.
    fn context_floor(&self) -> u32 {
        if self.input.wish.context.is_some() { self.context_top } else { self.context_top.min(CONTEXT_COMFORTABLE) }
    }

    /// The longest context up to the top one with which `node` holds `layers`; 0 if none.
    fn context_that_fits(&self, node: &PlanNode, layers: Layers) -> u32 {
        self.sizes.context_within(layers, memory::net_budget(node), self.context_top)
    }

    /// The context of a finished chain: the wished one, or the longest that these very stages have room for.
    fn context_for(&self, stages: &[Stage]) -> u32 {
        if self.input.wish.context.is_some() {
            return self.context_top;
        }
        let room = |stage: &Stage| self.node(stage.node).map_or(0, |node| self.context_that_fits(node, stage.layers));
        let fits = stages.iter().map(room).min().unwrap_or(0);
        if fits >= self.context_top { fits } else { (fits - fits % CONTEXT_MIN).max(fits.min(CONTEXT_MIN)) }
    }

    fn node(&self, id: NodeId) -> Option<&'a PlanNode> {
        self.nodes.iter().find(|node| node.node == id).copied()
    }

    fn planned(&self, chosen: Chosen) -> Planned {
        let input = self.input;
        let plan = Plan::new(input.sheet, chosen.stages.clone(), chosen.context, input.wish.streams, input.numerics)
            .expect("the search covers every layer once with distinct nodes");
        let part = |stage: &Stage| (self.node(stage.node).expect("stages are made of these nodes"), stage.layers);
        let parts: Vec<(&PlanNode, Layers)> = chosen.stages.iter().map(part).collect();
        let need = |layers: Layers| stage_bytes(input.sheet, layers, chosen.context, input.wish.streams, input.numerics);
        let memory = parts.iter().map(|(node, layers)| (need(*layers), node.capacity.memory_bytes)).collect();
        let (prefill_tokens_per_s, decode_tokens_per_s) = costs::rates(self, &parts);
        let reasons = words::reasons(self, &chosen, &parts);
        let left_out = words::left_out(self, &chosen);
        Planned { plan, prefill_tokens_per_s, decode_tokens_per_s, memory, reasons, left_out }
    }

    fn no_plan(&self) -> NoPlan {
        if !self.input.wish.place.is_empty()
            && self.input.keep.is_none()
            && let Err(no) = self.as_placed()
        {
            return no;
        }
        let context = if self.input.wish.context.is_some() { self.context_top } else { CONTEXT_MIN.min(self.context_top) };
        let left = words::what_stays_unplaced(self, context);
        let fits = |&context: &u32| self.has_chain(&Attempt { nodes: &self.nodes, context, split: self.input.wish.split });
        let smaller = (0..31).rev().map(|power| 1_u32 << power).filter(|&other| other < context && other >= CONTEXT_MIN).find(fits);
        NoPlan { missing_bytes: left, why: words::does_not_fit(self, context, left, smaller), left_out: words::too_small(self, context) }
    }
}
