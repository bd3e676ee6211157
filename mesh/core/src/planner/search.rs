//! The best chain: what one stream waits for a token, and what the next one waits for the slowest stage.
//!
//! A chain costs the sum of its stages and hops, plus [`PACES`] times its *pace*: the time of its slowest stage, which is
//! what a second stream or the next chunk of a prompt waits for. The sum alone would heap all layers on whichever node was measured a
//! little faster. A sum is what dynamic programming is good at (`chain`), a greatest stage is not; so the programme runs
//! under a falling limit on the stages. Under a lower limit no chain's sum is less, so that after a run with sum `s` and
//! best whole cost `b` only a pace below `(b - s) / PACES` can be better: that is the next limit. It is exact as long as time
//! ([`STEPS`]) allows; after that the limit falls in larger steps, and what is missed is smaller than those.

use super::chain::Run;
use super::costs::Costs;

/// How much the slowest stage's time weighs against one stream's time for a token. With 1, a node a bit more than twice as
/// fast as its only neighbour would get everything, and one exactly twice as fast two thirds; with 2 that edge is at three
/// times as fast, where heaping is right (guess).
pub(super) const PACES: u64 = 2;
/// Ranges looked at in all runs together, about (in release some 3 ns each).
const STEPS: u64 = 3_000_000;

/// What a chain costs: what matters first, then what breaks ties.
pub(super) type Cost = (u64, u64);
pub(super) const NEVER: Cost = (u64::MAX, u64::MAX);

/// Whether one node can follow another, and what the hop costs.
#[derive(Clone, Copy)]
pub(super) enum Link {
    /// They are not joined.
    None,
    /// Picoseconds for each token.
    Ps(u64),
}

/// A stage of the answer: layers `first..end` on the node with this index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub node: usize,
    pub first: u16,
    pub end: u16,
}

/// What is searched.
pub(super) struct Question<'a> {
    /// By node.
    pub costs: &'a [Costs],
    /// By node: equal numbers for nodes that cannot be told apart.
    pub kinds: &'a [usize],
    /// The hop from one node to another, by both: `hops[from][to]`.
    pub hops: &'a [Vec<Link>],
    /// Layers to cover.
    pub layers: usize,
    /// Exactly so many stages, or as many as it takes.
    pub stages: Option<usize>,
    /// Whether bytes to load come before time (a repair) or after it.
    pub moves_first: bool,
    /// By layer: the least time of it and all that follow, on whichever node.
    pub rest_ps: Vec<u64>,
}

impl Question<'_> {
    /// Whether there is any chain.
    pub fn has_chain(&self) -> bool {
        let mut whole = Run::new(self, u64::MAX, NEVER);
        let greedy = self.stages.is_none() && whole.greedy_fits();
        greedy || Run::new(self, self.guess(), NEVER).cheapest().is_some() || whole.cheapest().is_some()
    }

    /// The cheapest chain and its cost, pace counted.
    pub fn best(&self) -> Option<(Cost, Vec<Part>)> {
        let floor = self.least_pace();
        let mut best: Option<(Cost, Vec<Part>)> = None;
        let mut steps_left = STEPS;
        // A guess first, which is quick because its stages are short: what costs more is then not looked at.
        let mut limit = self.guess();
        let mut known = self.order(self.rest_ps[0], 0);
        let mut guessed = false;
        loop {
            let ceiling = best.as_ref().map_or(NEVER, |best| self.less_pace(best.0, floor));
            let mut run = Run::new(self, limit, ceiling);
            match run.cheapest() {
                Some((cost, parts)) => {
                    let whole = add(cost, self.order(PACES.saturating_mul(self.pace(&parts)), 0));
                    known = if guessed { cost } else { known };
                    if best.as_ref().is_none_or(|best| whole < best.0) {
                        best = Some((whole, parts));
                    }
                }
                None if guessed => return best,
                None => {}
            }
            steps_left = steps_left.saturating_sub(run.steps);
            if steps_left == 0 && best.is_some() {
                break;
            }
            let grain = if guessed { self.grain(limit, steps_left, run.steps) } else { 1 };
            limit = match &best {
                None => u64::MAX,
                Some(best) => match self.next_limit(best.0, known, grain) {
                    Some(limit) if limit >= floor => limit,
                    _ => break,
                },
            };
            guessed = true;
        }
        best
    }

    /// A limit under which there probably is a chain, and a good one.
    fn guess(&self) -> u64 {
        let floor = self.least_pace();
        floor.saturating_add(floor / 4)
    }

    /// How much less the next limit is than it must be: 1 where all limits that matter can be tried.
    fn grain(&self, limit: u64, steps_left: u64, steps: u64) -> u64 {
        let runs = (steps_left / steps.max(1)).max(1);
        let paces = self.costs.len() * self.layers * (self.layers + 1) / 2;
        if runs >= paces as u64 { 1 } else { (limit / (2 * runs)).max(1) }
    }

    /// The greatest pace with which a chain could be better than `best`, if none costs less than `known`, pace not
    /// counted; `None` if no chain could.
    fn next_limit(&self, best: Cost, known: Cost, grain: u64) -> Option<u64> {
        let ((best_moved, best_ps), (known_moved, known_ps)) = if self.moves_first { (best, known) } else { ((0, best.0), (0, known.0)) };
        match known_moved.cmp(&best_moved) {
            std::cmp::Ordering::Less => Some(u64::MAX),
            std::cmp::Ordering::Equal => (best_ps.checked_sub(known_ps)?.checked_sub(1)? / PACES).checked_sub(grain - 1),
            std::cmp::Ordering::Greater => None,
        }
    }

    /// A whole cost without the pace that it has at least.
    fn less_pace(&self, cost: Cost, floor: u64) -> Cost {
        let (moved, ps) = if self.moves_first { cost } else { (cost.1, cost.0) };
        self.order(ps.saturating_sub(PACES.saturating_mul(floor)), moved)
    }

    /// The time of the slowest stage.
    fn pace(&self, parts: &[Part]) -> u64 {
        parts.iter().map(|part| self.costs[part.node].decode_ps(part.first.into(), part.end.into())).max().unwrap_or(0)
    }

    /// No chain has a lower pace than this: below it all nodes together have no room for the layers.
    fn least_pace(&self) -> u64 {
        let (mut low, mut high) = (0, self.costs.iter().map(|costs| costs.decode_ps(0, self.layers)).max().unwrap_or(0));
        let longest = |costs: &Costs, limit: u64| {
            (0..).zip(costs.ends_within(limit)).map(|(first, end): (usize, usize)| end.saturating_sub(first + 1)).max().unwrap_or(0)
        };
        for _ in 0..16 {
            let middle = low + (high - low) / 2;
            let room: usize = self.costs.iter().map(|costs| longest(costs, middle)).sum();
            if room < self.layers { low = middle } else { high = middle }
        }
        low
    }

    /// Time and bytes to load in the order in which they matter.
    pub fn order(&self, ps: u64, moved: u64) -> Cost {
        if self.moves_first { (moved, ps) } else { (ps, moved) }
    }
}

/// By layer: the least time of it and all that follow, on whichever node.
pub(super) fn rest_ps(costs: &[Costs], layers: usize) -> Vec<u64> {
    (0..=layers).map(|first| costs.iter().map(|costs| costs.decode_ps(first, layers)).min().unwrap_or(0)).collect()
}

pub(super) fn add(a: Cost, b: Cost) -> Cost {
    (a.0.saturating_add(b.0), a.1.saturating_add(b.1))
}
