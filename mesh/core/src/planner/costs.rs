//! What a range of layers costs on a node: time for each token, bytes to load.
//!
//! Decode reads every weight once for each token, so a layer costs `bytes / bandwidth`, or its arithmetic where that
//! takes longer. A measurement of the same machine differs by a tenth or two from one to the next, so nodes whose rates
//! are within [`NOISE_FIFTHS`] of each other count as equal when layers are shared out; predictions use what was
//! measured. Two small terms break what would be ties: filling nodes evenly, and sharing out the prefill. Each is a
//! sum over stages of (share × share / size), which is least where shares are proportional to sizes.

use std::collections::BTreeMap;

use crate::ids::NodeId;
use crate::model::{Layers, ModelSheet};

use super::memory::{Sizes, net_budget};
use super::{Desk, PlanInput, PlanLink, PlanNode};

/// Rates from this many fifths of the fastest one on count as equal to it (seen: equal machines differ by 10 to 20 %).
const NOISE_FIFTHS: u128 = 4;
/// Weight of even filling against decode time (guess; it settles ties).
const EVEN_FILL: f64 = 0.02;
/// Weight of even prefill against decode time (guess; below even filling: it settles ties).
const EVEN_PREFILL: f64 = 0.005;
/// The small terms are rounded to this part of the whole, so that a few kilobytes of logits decide no order of nodes.
const GRAIN: f64 = 1.0 / 262_144.0;
/// A further stage must save this much of a token (its own time and what the next one waits) to be worth its trouble (guess).
const SPREAD: f64 = 0.05;
/// Software cost of a hop over TCP (budget of DESIGN section 15).
const HOP_SOFTWARE_US: u32 = 60;
/// Taken where no node was measured: one channel of DDR4, a few cores (guess).
const BANDWIDTH_DEFAULT: u64 = 20_000_000_000;
/// Prefill is predicted from this where nobody measured arithmetic; it then decides nothing (guess).
const FLOPS_DEFAULT: u64 = 100_000_000_000;
const PS: f64 = 1e12;

/// What ranges of layers cost on one node, for one context.
pub(super) struct Costs {
    layers: usize,
    /// Picoseconds for each (first, end), `u64::MAX` where it does not fit or there are no files.
    table: Vec<u64>,
    /// Exclusive bound of the useful ends, by first layer; 0 = cannot start here.
    end_max: Vec<usize>,
    /// Bytes to be loaded for layers `0..i`, and for embedding and head.
    moved: Vec<u64>,
    moved_embed: u64,
    moved_head: u64,
    /// Decode picoseconds of layers `0..i`, and of the head.
    decode: Vec<u64>,
    decode_head: u64,
}

impl Costs {
    pub fn of(desk: &Desk<'_>, node: &PlanNode, context: u32) -> Self {
        let sheet = desk.input.sheet;
        let speed = Speed::levelled(&desk.nodes, node);
        let mut costs = Self::sums(sheet, node, &speed);
        costs.fill(desk, node, context, &speed);
        costs
    }

    /// The additive parts.
    fn sums(sheet: &ModelSheet, node: &PlanNode, speed: &Speed) -> Self {
        let held = node.shard.unwrap_or(Layers::new(0, 0));
        let (mut moved, mut decode) = (vec![0_u64], vec![0_u64]);
        for (index, layer) in (0_u16..).zip(&sheet.layers) {
            let bytes = if held.contains(index) { 0 } else { layer.weight_bytes };
            moved.push(moved[moved.len() - 1].saturating_add(bytes));
            decode.push(decode[decode.len() - 1].saturating_add(speed.decode_ps(layer.weight_bytes, layer.flops)));
        }
        let (has_first, has_last) = (held.contains(0), held.count() > 0 && held.end == sheet.layer_count());
        Self {
            layers: sheet.layers.len(),
            table: Vec::new(),
            end_max: Vec::new(),
            moved,
            moved_embed: if has_first { 0 } else { sheet.embed_bytes },
            moved_head: if has_last { 0 } else { sheet.head_bytes },
            decode,
            decode_head: speed.decode_ps(head_read_bytes(sheet), sheet.head_flops),
        }
    }

    /// The table: what fits, and its cost with the convex terms.
    fn fill(&mut self, desk: &Desk<'_>, node: &PlanNode, context: u32, speed: &Speed) {
        let (layers, sizes) = (self.layers, &desk.sizes);
        let files = node.files.unwrap_or(Layers::new(0, 0));
        let budget = net_budget(node);
        let whole = sizes.share_bytes(0, layers, context).max(1) as f64;
        let largest = desk.nodes.iter().map(|node| net_budget(node)).max().unwrap_or(1);
        let smallness = largest as f64 / budget.max(1) as f64;
        let all_flops = if speed.measured { sizes.flops(0, layers).max(1) as f64 } else { f64::INFINITY };
        let reference = &desk.reference;
        self.table = vec![u64::MAX; (layers + 1) * (layers + 1)];
        self.end_max = vec![0; layers + 1];
        for first in usize::from(files.first)..layers {
            for end in first + 1..=layers.min(files.end.into()) {
                let net = sizes.net_bytes(first, end, context);
                if net > budget {
                    break; // and so is every longer range
                }
                let share = sizes.share_bytes(first, end, context) as f64 / whole;
                let fill = EVEN_FILL * share * share * smallness;
                let flops = sizes.flops(first, end);
                let prefill = EVEN_PREFILL * (flops as f64 / all_flops) * (speed.prefill_ps(flops) / reference.prefill_ps);
                let convex = ((fill + prefill) / GRAIN).round() * GRAIN * reference.decode_ps;
                self.table[first * (layers + 1) + end] = self.decode_ps(first, end).saturating_add(convex as u64);
                self.end_max[first] = end + 1;
            }
        }
    }

    /// Decode time of a range, in picoseconds for each token.
    pub fn decode_ps(&self, first: usize, end: usize) -> u64 {
        let head = if end == self.layers { self.decode_head } else { 0 };
        (self.decode[end] - self.decode[first]).saturating_add(head)
    }

    /// Cost of a range in picoseconds; `u64::MAX` where it does not fit.
    pub fn cost_ps(&self, first: usize, end: usize) -> u64 {
        self.table[first * (self.layers + 1) + end]
    }

    /// Exclusive bounds of the ends, by first layer, of ranges that fit and take at most `limit` picoseconds.
    pub fn ends_within(&self, limit: u64) -> Vec<usize> {
        let mut end = 0;
        let bound = |first: usize| {
            // The later a range starts, the later it may end.
            end = end.max(first);
            while end + 1 < self.end_max[first] && self.decode_ps(first, end + 1) <= limit {
                end += 1;
            }
            if end > first { end.min(self.end_max[first].saturating_sub(1)) + 1 } else { 0 }
        };
        (0..self.layers).map(bound).collect()
    }

    /// Bytes of weights that the node would have to read for a range.
    pub fn moved_bytes(&self, first: usize, end: usize) -> u64 {
        let embed = if first == 0 { self.moved_embed } else { 0 };
        let head = if end == self.layers { self.moved_head } else { 0 };
        (self.moved[end] - self.moved[first]).saturating_add(embed).saturating_add(head)
    }
}

/// A node's rates, with a guess where nothing was measured.
#[derive(Clone, Copy, PartialEq)]
struct Speed {
    bandwidth: f64,
    flops: f64,
    /// Whether `flops` means anything: a guess must not slow a layer down.
    measured: bool,
}

impl Speed {
    /// As measured. An unmeasured node is taken to be as slow as the slowest measured one.
    fn of(nodes: &[&PlanNode], node: &PlanNode) -> Self {
        let (bandwidth, flops) = (Self::bandwidth(nodes, node), Self::flops(nodes, node));
        Self { bandwidth: bandwidth as f64, flops: flops as f64, measured: nodes.iter().any(|node| node.capacity.flops > 0) }
    }

    /// With the noise taken out.
    fn levelled(nodes: &[&PlanNode], node: &PlanNode) -> Self {
        let all = |rate: fn(&[&PlanNode], &PlanNode) -> u64| nodes.iter().map(|node| rate(nodes, node)).collect();
        Self {
            bandwidth: level(all(Self::bandwidth), Self::bandwidth(nodes, node)) as f64,
            flops: level(all(Self::flops), Self::flops(nodes, node)) as f64,
            ..Self::of(nodes, node)
        }
    }

    fn bandwidth(nodes: &[&PlanNode], node: &PlanNode) -> u64 {
        known(nodes, node, |node| node.capacity.memory_bandwidth, BANDWIDTH_DEFAULT)
    }

    fn flops(nodes: &[&PlanNode], node: &PlanNode) -> u64 {
        known(nodes, node, |node| node.capacity.flops, FLOPS_DEFAULT)
    }

    fn decode_ps(&self, bytes: u64, flops: u64) -> u64 {
        let arithmetic = if self.measured { flops as f64 / self.flops } else { 0.0 };
        ((bytes as f64 / self.bandwidth).max(arithmetic) * PS) as u64
    }

    fn prefill_ps(&self, flops: u64) -> f64 {
        flops as f64 / self.flops * PS
    }
}

/// The node's rate, else the slowest that was measured, else the default.
fn known(nodes: &[&PlanNode], node: &PlanNode, rate: fn(&PlanNode) -> u64, default: u64) -> u64 {
    let measured = |node: &PlanNode| Some(rate(node)).filter(|&rate| rate > 0);
    measured(node).or_else(|| nodes.iter().filter_map(|node| measured(node)).min()).unwrap_or(default)
}

/// The mean of the rates that `rate` cannot be told from: from the fastest down, a group is what is within the noise.
fn level(mut rates: Vec<u64>, rate: u64) -> u64 {
    rates.sort_unstable_by(|a, b| b.cmp(a));
    let mut rest = rates.as_slice();
    while let Some(&fastest) = rest.first() {
        let equal = rest.iter().take_while(|&&rate| u128::from(rate) * 5 >= u128::from(fastest) * NOISE_FIFTHS).count();
        let (group, slower) = rest.split_at(equal);
        if group.last().is_some_and(|&slowest| rate >= slowest) {
            let mean = group.iter().map(|&rate| u128::from(rate)).sum::<u128>() / group.len() as u128;
            return u64::try_from(mean).unwrap_or(rate);
        }
        rest = slower;
    }
    rate
}

/// Picoseconds that a token takes on a node with these layers, at the rates that were measured.
pub(super) fn token_ps(desk: &Desk<'_>, node: &PlanNode, layers: Layers) -> u64 {
    let speed = Speed::of(&desk.nodes, node);
    Costs::sums(desk.input.sheet, node, &speed).decode_ps(layers.first.into(), layers.end.into())
}

/// Whether noise was taken out of the bandwidth of any of these nodes.
pub(super) fn any_levelled(desk: &Desk<'_>, parts: &[(&PlanNode, Layers)]) -> bool {
    let differs = |node: &PlanNode| Speed::of(&desk.nodes, node).bandwidth != Speed::levelled(&desk.nodes, node).bandwidth;
    parts.iter().any(|(node, _)| differs(node))
}

/// The whole model on the fastest node, had it room: what the small terms are fractions of.
#[derive(Clone, Copy)]
pub(super) struct Reference {
    decode_ps: f64,
    prefill_ps: f64,
}

impl Reference {
    pub fn of(sheet: &ModelSheet, sizes: &Sizes, nodes: &[&PlanNode]) -> Self {
        let speeds: Vec<Speed> = nodes.iter().map(|node| Speed::levelled(nodes, node)).collect();
        let bytes = sheet.layers.iter().map(|layer| layer.weight_bytes).fold(head_read_bytes(sheet), u64::saturating_add);
        let flops = sizes.flops(0, sizes.layers);
        let least = |of: &dyn Fn(&Speed) -> f64| speeds.iter().map(of).fold(f64::INFINITY, f64::min).max(1.0);
        Self { decode_ps: least(&|speed| speed.decode_ps(bytes, flops) as f64), prefill_ps: least(&|speed| speed.prefill_ps(flops)) }
    }
}

/// Bytes of the head that each token reads.
fn head_read_bytes(sheet: &ModelSheet) -> u64 {
    if sheet.tied { sheet.embed_bytes.max(sheet.head_bytes) } else { sheet.head_bytes }
}

/// What going from one node to the next costs.
pub(super) struct Hops {
    /// The quickest link of each pair, (delay in microseconds, bytes a second), by (smaller id, greater id).
    links: Option<BTreeMap<(NodeId, NodeId), (u32, u64)>>,
    /// What one more stage must gain.
    spread_ps: u64,
}

impl Hops {
    pub fn new(input: &PlanInput<'_>, reference: &Reference) -> Self {
        let by_pair = |links: &[PlanLink]| {
            let mut quickest: BTreeMap<(NodeId, NodeId), (u32, u64)> = BTreeMap::new();
            for link in links {
                let this = (link.delay_us, link.bytes_per_s.max(1));
                let known = quickest.entry((link.a.min(link.b), link.a.max(link.b))).or_insert(this);
                *known = if this.0 < known.0 { this } else { *known };
            }
            quickest
        };
        Self { links: input.links.as_deref().map(by_pair), spread_ps: (SPREAD * reference.decode_ps) as u64 }
    }

    /// The link between two nodes, if they can be neighbours.
    pub fn link(&self, a: NodeId, b: NodeId) -> Option<(u32, u64)> {
        match &self.links {
            None => Some((PlanLink::DEFAULT_DELAY_US, PlanLink::DEFAULT_BYTES_PER_S)),
            Some(links) => links.get(&(a.min(b), a.max(b))).copied(),
        }
    }

    /// Whether two nodes have equal links to all others, but for noise.
    fn alike(&self, nodes: &[&PlanNode], a: NodeId, b: NodeId) -> bool {
        let near = |x: u64, y: u64| x.abs_diff(y) <= x.max(y) / 4;
        let same = |x: Option<(u32, u64)>, y: Option<(u32, u64)>| match (x, y) {
            (Some(x), Some(y)) => near(x.0.into(), y.0.into()) && near(x.1, y.1),
            (x, y) => x == y,
        };
        let others = nodes.iter().map(|node| node.node).filter(|&node| node != a && node != b);
        self.links.is_none() || others.into_iter().all(|other| same(self.link(a, other), self.link(b, other)))
    }

    /// Picoseconds that the hidden state of one token takes from `a` to `b`.
    fn travel_ps(&self, sheet: &ModelSheet, a: NodeId, b: NodeId) -> Option<u64> {
        let (delay_us, rate) = self.link(a, b)?;
        let transfer = f64::from(sheet.hidden_width) * 4.0 / rate as f64 * PS;
        Some((u64::from(delay_us) + u64::from(HOP_SOFTWARE_US)) * 1_000_000 + transfer as u64)
    }

    /// The hop as the search counts it: travel, and the trouble of one more stage.
    pub fn ps(&self, sheet: &ModelSheet, a: NodeId, b: NodeId) -> Option<u64> {
        Some(self.travel_ps(sheet, a, b)?.saturating_add(self.spread_ps))
    }

    /// Numbers that are equal for nodes which no plan can tell apart, so that only one order of them is tried.
    pub fn kinds(&self, all: &[&PlanNode], nodes: &[&PlanNode]) -> Vec<usize> {
        let speed = |node: &PlanNode| Speed::levelled(all, node);
        let alike = |a: &PlanNode, b: &PlanNode| {
            self.alike(nodes, a.node, b.node)
                && (net_budget(a), a.numerics_class, a.files, a.shard) == (net_budget(b), b.numerics_class, b.files, b.shard)
                && speed(a) == speed(b)
        };
        nodes.iter().map(|node| nodes.iter().position(|other| std::ptr::eq(*other, *node) || alike(other, node)).unwrap_or(0)).collect()
    }
}

/// Predicted (prefill, decode) tokens a second of a chain.
pub(super) fn rates(desk: &Desk<'_>, parts: &[(&PlanNode, Layers)]) -> (f64, f64) {
    let sheet = desk.input.sheet;
    let mut decode_ps = 0_u64;
    let mut slowest_ps = 0.0_f64; // chunks of a prompt follow each other: the slowest stage or link sets the pace
    for (node, layers) in parts {
        let (first, end) = (usize::from(layers.first), usize::from(layers.end));
        decode_ps = decode_ps.saturating_add(token_ps(desk, node, *layers));
        slowest_ps = slowest_ps.max(Speed::of(&desk.nodes, node).prefill_ps(desk.sizes.flops(first, end)));
    }
    for pair in parts.windows(2) {
        let (a, b) = (pair[0].0.node, pair[1].0.node);
        decode_ps = decode_ps.saturating_add(desk.hops.travel_ps(sheet, a, b).unwrap_or(0));
        let rate = desk.hops.link(a, b).map_or(PlanLink::DEFAULT_BYTES_PER_S, |link| link.1);
        slowest_ps = slowest_ps.max(f64::from(sheet.hidden_width) * 4.0 / rate as f64 * PS);
    }
    if parts.len() > 1 {
        // The token goes back to stage 0: a short message.
        let delay_us = desk.hops.link(parts[0].0.node, parts[parts.len() - 1].0.node).map_or(PlanLink::DEFAULT_DELAY_US, |link| link.0);
        decode_ps = decode_ps.saturating_add((u64::from(delay_us) + u64::from(HOP_SOFTWARE_US)) * 1_000_000);
    }
    (PS / slowest_ps.max(1.0), PS / (decode_ps as f64).max(1.0))
}
