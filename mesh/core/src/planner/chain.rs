//! The cheapest chain none of whose stages takes longer than a limit: dynamic programming over (set of nodes, last node,
//! layers covered).
//!
//! A cell says what it costs at least to cover layers `0..l` with exactly this set of nodes, this one last; extending
//! it by a node and an end gives cells of sets one larger. All orders of a set share its cells, so up to
//! [`EXACT_NODES`] nodes the answer is exact in `2^n · n · L² / 4` steps, as long as those are not more than
//! [`EXACT_STEPS`] (8 nodes and 60 layers, 6 nodes and 128). Of larger questions each generation keeps the [`BEAM`] most promising
//! sets, always among them those of a greedy chain, so that what fits is found.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::search::{Cost, Link, NEVER, Part, Question, add};

/// Up to so many nodes every order is tried.
const EXACT_NODES: usize = 8;
/// .. as long as that takes no more steps than this.
const EXACT_STEPS: usize = 1_600_000;
/// Sets of one size that are kept beyond (16 unlike nodes and 128 layers must plan in under 50 ms).
const BEAM: usize = 8;

/// The best known way to a state, and where it came from.
#[derive(Clone, Copy)]
struct Cell {
    cost: Cost,
    from_node: u8,
    from_layer: u16,
}

/// Cells of one set: by last node, then by layers covered.
type Front = BTreeMap<usize, Vec<Cell>>;

/// A whole chain: cost, set, last node. Of equals, the one with the preferred nodes, and those in front.
type Finished = (Cost, u32, Reverse<usize>);

/// One run of the programme.
pub(super) struct Run<'q> {
    question: &'q Question<'q>,
    /// Exclusive bound of the ends within the limit, by node and first layer; 0 = cannot start here.
    ends: Vec<Vec<usize>>,
    /// Most layers within the limit, by node.
    longest: Vec<usize>,
    /// Chains that cost as much, pace not counted, are of no use.
    ceiling: Cost,
    /// Ranges that were looked at: a measure of time that is the same on every machine.
    pub steps: u64,
}

impl<'q> Run<'q> {
    /// For stages that take at most `limit` picoseconds and chains that cost less than `ceiling`.
    pub fn new(question: &'q Question<'q>, limit: u64, ceiling: Cost) -> Self {
        let ends: Vec<Vec<usize>> = question.costs.iter().map(|costs| costs.ends_within(limit)).collect();
        let longest =
            ends.iter().map(|ends| (0..).zip(ends).map(|(first, end)| end.saturating_sub(first + 1)).max().unwrap_or(0)).collect();
        Self { question, ends, longest, ceiling, steps: 0 }
    }

    /// Whether a chain that reaches as far as it can with each node covers the model: then the programme need not run.
    pub fn greedy_fits(&self) -> bool {
        self.greedy().1 == self.question.layers
    }

    /// The cheapest chain and its cost, pace not counted.
    pub fn cheapest(&mut self) -> Option<(Cost, Vec<Part>)> {
        assert!(self.costs().len() <= 32, "sets of nodes are 32-bit masks");
        if self.longest.iter().sum::<usize>() < self.layers() {
            return None;
        }
        let guard = self.greedy().0;
        let most = self.question.stages.unwrap_or(self.costs().len()).min(self.costs().len()).min(self.layers());
        let mut generations: Vec<BTreeMap<u32, Front>> = vec![BTreeMap::from([(0, Front::new())])];
        let mut best: Option<Finished> = None;
        for size in 1..=most {
            let found = best.filter(|_| self.question.stages.is_none()).map_or(NEVER, |best| best.0);
            let mut next = self.extend(&generations[size - 1], found.min(self.ceiling));
            if !self.exact() {
                self.thin(&mut next, &guard);
            }
            if self.question.stages.is_none_or(|stages| stages == size) {
                best = next.iter().flat_map(|(&set, front)| self.finished(set, front)).chain(best).min();
            }
            generations.push(next);
        }
        let (cost, set, Reverse(last)) = best?;
        Some((cost, self.walk_back(&generations, set, last)))
    }

    /// Whether there is time for all orders.
    fn exact(&self) -> bool {
        let nodes = self.costs().len();
        nodes <= EXACT_NODES && (nodes << nodes) * self.layers() * self.layers() / 4 <= EXACT_STEPS
    }

    /// Every set of one more node. What already costs as much as a whole chain is not followed.
    fn extend(&mut self, sets: &BTreeMap<u32, Front>, bound: Cost) -> BTreeMap<u32, Front> {
        let mut next = BTreeMap::<u32, Front>::new();
        for (&set, front) in sets {
            for node in (0..self.costs().len()).filter(|&node| self.may_add(set, node)).collect::<Vec<_>>() {
                if let Some(cells) = self.extend_by(front, set, node, bound) {
                    next.entry(set | 1 << node).or_default().insert(node, cells);
                }
            }
        }
        next
    }

    /// Of nodes that cannot be told apart the first comes first.
    fn may_add(&self, set: u32, node: usize) -> bool {
        let twins_before = (0..node).filter(|&other| self.question.kinds[other] == self.question.kinds[node]);
        set & 1 << node == 0 && twins_before.into_iter().all(|other| set & 1 << other != 0)
    }

    /// Cells of `set` plus `node`, with `node` last; `None` if it can add nothing.
    fn extend_by(&mut self, front: &Front, set: u32, node: usize, bound: Cost) -> Option<Vec<Cell>> {
        let question = self.question;
        let costs = &question.costs[node];
        let (least, most) = self.useful_ends(set | 1 << node);
        let mut cells = vec![Cell { cost: NEVER, from_node: 0, from_layer: 0 }; self.layers() + 1];
        let mut any = false;
        for first in 0..self.layers() {
            let Some((before, from_node)) = self.arrive(front, set, node, first) else { continue };
            if add(before, question.order(question.rest_ps[first], 0)) >= bound {
                continue;
            }
            let from_layer = u16::try_from(first).expect("at most LAYERS_MAX layers");
            let ends = (first + 1).max(least)..self.ends[node][first].min(most + 1);
            self.steps += 1 + ends.len() as u64;
            for (end, cell) in cells.iter_mut().enumerate().take(ends.end).skip(ends.start) {
                let ps = costs.cost_ps(first, end);
                let cost = add(before, self.question.order(ps, costs.moved_bytes(first, end)));
                if cost < cell.cost && ps != u64::MAX {
                    *cell = Cell { cost, from_node, from_layer };
                    any = true;
                }
            }
        }
        any.then_some(cells)
    }

    /// The ends from which the rest can still be covered: the other nodes must have room for it, and, where the number of
    /// stages is given, each of those to come needs a layer.
    fn useful_ends(&self, set: u32) -> (usize, usize) {
        let room = self.room_beside(set);
        let to_come = self.question.stages.map(|stages| stages.saturating_sub(set.count_ones() as usize));
        match to_come {
            Some(0) => (self.layers(), self.layers()),
            to_come => (self.layers().saturating_sub(room), self.layers() - to_come.unwrap_or(0).min(self.layers())),
        }
    }

    /// Layers that the nodes outside a set can hold at most.
    fn room_beside(&self, set: u32) -> usize {
        (0..self.costs().len()).filter(|&node| set & 1 << node == 0).map(|node| self.longest[node]).sum()
    }

    /// The cheapest way to have `first` layers covered and the hidden state at `node`.
    fn arrive(&self, front: &Front, set: u32, node: usize, first: usize) -> Option<(Cost, u8)> {
        if set == 0 {
            return (first == 0).then_some(((0, 0), u8::MAX));
        }
        let ways = front.iter().filter_map(|(&last, cells)| match (cells[first].cost, self.question.hops[last][node]) {
            (NEVER, _) | (_, Link::None) => None,
            (cost, Link::Ps(ps)) => Some((add(cost, self.question.order(ps, 0)), u8::try_from(last).expect("at most 32 nodes"))),
        });
        ways.min_by_key(|&(cost, last)| (cost, Reverse(last)))
    }

    /// Whole chains of a set.
    fn finished<'f>(&self, set: u32, front: &'f Front) -> impl Iterator<Item = Finished> + use<'f> {
        let layers = self.layers();
        front.iter().map(move |(&last, cells)| (cells[layers].cost, set, Reverse(last))).filter(|found| found.0 != NEVER)
    }

    /// Keeps the most promising sets: those whose cost so far, and the rest at the price of the cheapest node, is least.
    fn thin(&self, sets: &mut BTreeMap<u32, Front>, guard: &[u32]) {
        if sets.len() <= BEAM {
            return;
        }
        let rest = &self.question.rest_ps;
        let promise = |(&set, front): (&u32, &Front)| {
            // The rest must have room somewhere: else a set of fast, small nodes looks best until the end.
            let room = self.room_beside(set);
            let cells = front.values().flat_map(|cells| cells.iter().enumerate());
            let hopeful = cells.filter(|(layer, cell)| cell.cost != NEVER && self.layers() - layer <= room);
            hopeful.map(|(layer, cell)| add(cell.cost, self.question.order(rest[layer], 0))).min().unwrap_or(NEVER)
        };
        let mut ranked: Vec<(Cost, u32)> = sets.iter().map(|entry| (promise(entry), *entry.0)).collect();
        ranked.sort_unstable();
        let keep: Vec<u32> = ranked.into_iter().take(BEAM).map(|(_, set)| set).chain(guard.iter().copied()).collect();
        sets.retain(|set, _| keep.contains(set));
    }

    /// Sets of a chain that takes the node which reaches furthest, again and again, and how far it comes.
    fn greedy(&self) -> (Vec<u32>, usize) {
        let (mut set, mut covered, mut last, mut sets) = (0_u32, 0, None, Vec::new());
        while covered < self.layers() {
            let joined = |node: &usize| last.is_none_or(|last: usize| matches!(self.question.hops[last][*node], Link::Ps(_)));
            let candidates = (0..self.costs().len()).filter(|&node| self.may_add(set, node)).filter(joined);
            let furthest = candidates.max_by_key(|&node| (self.ends[node][covered], Reverse(node)));
            match furthest.map(|node| (node, self.ends[node][covered])) {
                Some((node, end)) if end > covered + 1 => (set, covered, last) = (set | 1 << node, end - 1, Some(node)),
                _ => break,
            }
            sets.push(set);
        }
        (sets, covered)
    }

    /// The chain that led to a cell.
    fn walk_back(&self, generations: &[BTreeMap<u32, Front>], set: u32, last: usize) -> Vec<Part> {
        let (mut set, mut node, mut end) = (set, last, self.layers());
        let mut parts = Vec::new();
        for size in (1..=set.count_ones() as usize).rev() {
            let cell = generations[size][&set][&node][end];
            parts.push(Part { node, first: cell.from_layer, end: u16::try_from(end).expect("at most LAYERS_MAX layers") });
            (set, node, end) = (set & !(1 << node), cell.from_node.into(), cell.from_layer.into());
        }
        parts.reverse();
        parts
    }

    fn costs(&self) -> &'q [super::costs::Costs] {
        self.question.costs
    }

    fn layers(&self) -> usize {
        self.question.layers
    }
}
