//! Attention of a tile of query rows over a range of key blocks, in the canonical order of the module above.
//!
//! A row is one query head at one position. Rows of one kv head are taken six at a time against sixteen keys (scores) or
//! sixteen value dimensions, which fills AVX2's sixteen registers with twelve sums, two operands and one broadcast.
//! Neither the tile nor the number of rows beside it shows in a row: each sum is a chain of its own.

use crate::kv::{BLOCK_POSITIONS, HalfLine, HeadShape, SLAB_POSITIONS, Slab};
use crate::math::{Kernel, LANES, Lanes, Line, exp_of};

/// Query rows of one kv head of one stream, and the keys and values they look at.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    /// The stream's cache for this layer.
    pub(super) slabs: &'a [Slab],
    pub(super) heads: HeadShape,
    pub(super) kv_head: usize,
    /// Query heads of the kv head.
    pub(super) group: usize,
    /// Position of the first row.
    pub(super) first: u32,
    /// How many positions; `group` rows each.
    pub(super) positions: usize,
    /// The queries of row r of the tile begin at `q[(r / group) * q_stride + (r % group) * dim]`.
    pub(super) q: &'a [f32],
    pub(super) q_stride: usize,
    pub(super) scale: f32,
    pub(super) window: Option<u32>,
    /// One for each query head of the kv head.
    pub(super) sinks: Option<&'a [f32]>,
}

/// Query rows at once.
const ROWS: usize = 6;

/// Scores or probabilities of a block for the rows at hand.
type Scores = [[f32; BLOCK_POSITIONS]; ROWS];

/// Softmax so far of some rows.
#[derive(Clone, Debug)]
pub(super) struct State {
    /// Greatest score of each row.
    greatest: Vec<f32>,
    /// Sum of its exponentials.
    sum: Vec<f32>,
    /// Sum of values, weighted: `value_lines` for each row.
    values: Vec<Line>,
}

impl Tile<'_> {
    pub(super) fn rows(&self) -> usize {
        self.positions * self.group
    }

    /// The blocks that some row looks at.
    pub(super) fn blocks(&self) -> std::ops::Range<usize> {
        let last = self.first as usize + self.positions - 1;
        self.first_seen(self.first as usize) / BLOCK_POSITIONS..last / BLOCK_POSITIONS + 1
    }

    /// First key that a position sees.
    fn first_seen(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window as usize))
    }

    /// Keys of a block, counted from its first, that a row sees.
    fn seen(&self, row: usize, block: usize) -> std::ops::Range<usize> {
        let position = self.first as usize + row / self.group;
        let start = block * BLOCK_POSITIONS;
        let end = (position + 1).saturating_sub(start).min(BLOCK_POSITIONS);
        self.first_seen(position).saturating_sub(start).min(end)..end
    }

    /// The rows, cut into pieces of about equal size, of six at most.
    fn pieces(&self) -> impl Iterator<Item = std::ops::Range<usize>> + use<> {
        let rows = self.rows();
        let pieces = rows.div_ceil(ROWS);
        (0..pieces).map(move |piece| piece * rows / pieces..(piece + 1) * rows / pieces)
    }

    /// The queries, (dim, rows of a piece) for one piece after the other.
    fn packed_queries(&self) -> Vec<f32> {
        let dim = self.heads.dim;
        let mut packed = vec![0.0; self.rows() * dim];
        for piece in self.pieces() {
            let (first, rows) = (piece.start, piece.len());
            for row in piece {
                let at = row / self.group * self.q_stride + row % self.group * dim;
                for (d, &x) in self.q[at..at + dim].iter().enumerate() {
                    packed[first * dim + d * rows + row - first] = x;
                }
            }
        }
        packed
    }
}

impl State {
    /// Before the first block.
    pub(super) fn new(tile: &Tile<'_>) -> Self {
        let rows = tile.rows();
        let (greatest, sum) = match tile.sinks {
            Some(sinks) => ((0..rows).map(|row| sinks[row % tile.group]).collect(), vec![1.0; rows]),
            None => (vec![f32::NEG_INFINITY; rows], vec![0.0; rows]),
        };
        Self { greatest, sum, values: vec![Line::ZERO; rows * tile.heads.value_lines()] }
    }

    #[inline(always)]
    fn fold<V: Lanes>(&mut self, row: usize, greatest: f32, sum: f32, values: &[Line]) {
        let before = self.greatest[row];
        let (old, new) = if before >= greatest { (1.0, exp_of(greatest - before)) } else { (exp_of(before - greatest), 1.0) };
        if before < greatest || before.is_nan() || greatest.is_nan() {
            self.greatest[row] = greatest;
        }
        self.sum[row] = self.sum[row].mul_add(old, sum * new);
        let (old, new) = (V::splat(old), V::splat(new));
        for (to, from) in self.values[row * values.len()..][..values.len()].iter_mut().zip(values) {
            V::load(&to.0).fma(old, V::load(&from.0).mul(new)).store(&mut to.0);
        }
    }

    /// The result of one row into `out`, (dim).
    pub(super) fn finish(&self, row: usize, out: &mut [f32]) {
        let lines = out.len().div_ceil(LANES);
        let inverse = 1.0 / self.sum[row];
        for (out, line) in out.chunks_mut(LANES).zip(&self.values[row * lines..]) {
            for (out, value) in out.iter_mut().zip(line.0) {
                *out = value * inverse;
            }
        }
    }
}

/// What single blocks gave, to be folded later in block order.
#[derive(Debug, Default)]
pub(super) struct Partials {
    /// Row, greatest score, sum.
    heads: Vec<(usize, f32, f32)>,
    values: Vec<Line>,
}

/// Attention over a range of blocks, folded into a state.
pub(super) struct Fold<'a> {
    pub(super) tile: Tile<'a>,
    pub(super) blocks: std::ops::Range<usize>,
    pub(super) state: &'a mut State,
}

impl Kernel for Fold<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let state = self.state;
        each_block::<V>(&self.tile, self.blocks, |row, greatest, sum, values| state.fold::<V>(row, greatest, sum, values));
    }
}

/// Attention over a range of blocks, each kept for itself.
pub(super) struct Keep<'a> {
    pub(super) tile: Tile<'a>,
    pub(super) blocks: std::ops::Range<usize>,
}

impl Kernel for Keep<'_> {
    type Out = Partials;
    #[inline(always)]
    fn run<V: Lanes>(self) -> Partials {
        let mut kept = Partials::default();
        each_block::<V>(&self.tile, self.blocks, |row, greatest, sum, values| {
            kept.heads.push((row, greatest, sum));
            kept.values.extend_from_slice(values);
        });
        kept
    }
}

/// Folds kept blocks.
pub(super) struct FoldKept<'a> {
    pub(super) kept: &'a Partials,
    pub(super) state: &'a mut State,
}

impl Kernel for FoldKept<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let lines = self.kept.values.len() / self.kept.heads.len().max(1);
        for (&(row, greatest, sum), values) in self.kept.heads.iter().zip(self.kept.values.chunks_exact(lines.max(1))) {
            self.state.fold::<V>(row, greatest, sum, values);
        }
    }
}

/// Hands (row, greatest score, sum, values) of each row of each block to `emit`, for a row in block order.
#[inline(always)]
fn each_block<V: Lanes>(tile: &Tile<'_>, blocks: std::ops::Range<usize>, mut emit: impl FnMut(usize, f32, f32, &[Line])) {
    let lines = tile.heads.value_lines();
    let queries = tile.packed_queries();
    let mut widened = Widened::default();
    let mut scores: Scores = [[0.0; BLOCK_POSITIONS]; ROWS];
    let mut values = vec![Line::ZERO; ROWS * lines];
    for block in blocks {
        // The last row sees the most of a block's end.
        let end = tile.seen(tile.rows() - 1, block).end;
        let (keys, block_values) = widened.block::<V>(tile, block, end);
        for piece in tile.pieces() {
            let (first, rows) = (piece.start, piece.len());
            let q = &queries[first * tile.heads.dim..][..rows * tile.heads.dim];
            let seen = |r: usize| tile.seen(first + r, block);
            let values = &mut values[..rows * lines];
            macro_rules! with_rows {
                ($($rows:literal)*) => {
                    match rows {
                        $($rows => piece_of_block::<V, $rows>(q, keys, block_values, tile.scale, seen, &mut scores, values),)*
                        _ => continue,
                    }
                };
            }
            let stats = with_rows!(1 2 3 4 5 6);
            for (r, (greatest, sum)) in stats.into_iter().enumerate().take(rows) {
                if !seen(r).is_empty() {
                    emit(first + r, greatest, sum, &values[r * lines..][..lines]);
                }
            }
        }
    }
}

/// One block for R rows: leaves the weighted values in `values`, gives greatest score and sum of each row.
#[inline(always)]
fn piece_of_block<V: Lanes, const R: usize>(
    q: &[f32],
    keys: &[Line],
    block_values: &[Line],
    scale: f32,
    seen: impl Fn(usize) -> std::ops::Range<usize>,
    scores: &mut Scores,
    values: &mut [Line],
) -> [(f32, f32); ROWS] {
    let mut stats = [(0.0, 0.0); ROWS];
    // Positions rise with the rows: the last row sees furthest, the first row with anything to see reaches back furthest.
    let end = seen(R - 1).end;
    let start = (0..R).map(&seen).find(|keys| !keys.is_empty()).map_or(end, |keys| keys.start);
    if start == end {
        return stats;
    }
    let (q, _) = q.as_chunks::<R>();
    all_scores::<V, R>(q, keys, scale, start / LANES..end.div_ceil(LANES), scores);
    for (r, (stats, scores)) in stats.iter_mut().zip(scores.iter_mut()).enumerate().take(R) {
        let seen = seen(r);
        if !seen.is_empty() {
            *stats = softmax::<V>(scores, seen);
        }
    }
    values.fill(Line::ZERO);
    // What all rows see, together; before and behind it, row by row.
    let all = (0..R).map(&seen).fold(0..BLOCK_POSITIONS, |all, seen| all.start.max(seen.start)..all.end.min(seen.end));
    let lines = values.len() / R;
    if all.is_empty() {
        for (r, values) in values.chunks_exact_mut(lines).enumerate() {
            add_values::<V, 1>(&[scores[r]], block_values, seen(r), values);
        }
        return stats;
    }
    for (r, values) in values.chunks_exact_mut(lines).enumerate() {
        add_values::<V, 1>(&[scores[r]], block_values, seen(r).start..all.start, values);
    }
    if let Some(scores) = scores.first_chunk::<R>() {
        add_values::<V, R>(scores, block_values, all.clone(), values);
    }
    for (r, values) in values.chunks_exact_mut(lines).enumerate() {
        add_values::<V, 1>(&[scores[r]], block_values, all.end..seen(r).end, values);
    }
    stats
}

/// Scores of R rows against some groups of sixteen keys. Few rows take several groups at once, to have sums enough in
/// flight for the multipliers' latency.
#[inline(always)]
fn all_scores<V: Lanes, const R: usize>(q: &[[f32; R]], keys: &[Line], scale: f32, groups: std::ops::Range<usize>, scores: &mut Scores) {
    let mut group = groups.start;
    while R == 1 && group + 4 <= groups.end {
        some_scores::<V, R, 4>(q, keys, scale, group, scores);
        group += 4;
    }
    while R <= 3 && group + 2 <= groups.end {
        some_scores::<V, R, 2>(q, keys, scale, group, scores);
        group += 2;
    }
    while group < groups.end {
        some_scores::<V, R, 1>(q, keys, scale, group, scores);
        group += 1;
    }
}

/// Scores of R rows against G groups of sixteen keys.
#[inline(always)]
fn some_scores<V: Lanes, const R: usize, const G: usize>(q: &[[f32; R]], keys: &[Line], scale: f32, group: usize, scores: &mut Scores) {
    let dim = q.len();
    let keys = &keys[group * dim..(group + G) * dim];
    let mut sums = [[V::splat(0.0); G]; R];
    for (d, q) in q.iter().enumerate() {
        for g in 0..G {
            let key = V::load(&keys[g * dim + d].0);
            for r in 0..R {
                sums[r][g] = V::splat(q[r]).fma(key, sums[r][g]);
            }
        }
    }
    let scale = V::splat(scale);
    for (sums, scores) in sums.iter().zip(scores.iter_mut()) {
        let (lines, _) = scores.as_chunks_mut::<LANES>();
        for (sum, line) in sums.iter().zip(&mut lines[group..]) {
            sum.mul(scale).store(line);
        }
    }
}

/// Replaces the scores of the keys that are seen by their exponentials and the rest by zeros.
#[inline(always)]
fn softmax<V: Lanes>(scores: &mut [f32; BLOCK_POSITIONS], seen: std::ops::Range<usize>) -> (f32, f32) {
    scores[..seen.start].fill(f32::NEG_INFINITY);
    scores[seen.end..].fill(f32::NEG_INFINITY);
    let (lines, _) = scores.as_chunks_mut::<LANES>();
    let mut greatest = V::splat(f32::NEG_INFINITY);
    for line in lines.iter() {
        greatest = greatest.max(V::load(line));
    }
    let greatest = greatest.greatest();
    let mut sum = V::splat(0.0);
    for line in lines {
        let weight = exp_of(V::load(line).sub(V::splat(greatest)));
        weight.store(line);
        sum = sum.add(weight);
    }
    (greatest, sum.sum())
}

/// Adds values of some keys, weighted, to R rows.
#[inline(always)]
fn add_values<V: Lanes, const R: usize>(
    weights: &[[f32; BLOCK_POSITIONS]; R],
    block_values: &[Line],
    keys: std::ops::Range<usize>,
    values: &mut [Line],
) {
    if keys.is_empty() {
        return;
    }
    let lines = values.len() / R;
    let mut line = 0;
    while R == 1 && line + 4 <= lines {
        add_lines::<V, R, 4>(weights, block_values, keys.clone(), line, values);
        line += 4;
    }
    while R <= 3 && line + 2 <= lines {
        add_lines::<V, R, 2>(weights, block_values, keys.clone(), line, values);
        line += 2;
    }
    while line < lines {
        add_lines::<V, R, 1>(weights, block_values, keys.clone(), line, values);
        line += 1;
    }
}

/// [`add_values`] for C lines of the value dimensions.
#[inline(always)]
fn add_lines<V: Lanes, const R: usize, const C: usize>(
    weights: &[[f32; BLOCK_POSITIONS]; R],
    block_values: &[Line],
    keys: std::ops::Range<usize>,
    line: usize,
    values: &mut [Line],
) {
    let lines = values.len() / R;
    let mut sums = [[V::splat(0.0); C]; R];
    for (r, sums) in sums.iter_mut().enumerate() {
        for (c, sum) in sums.iter_mut().enumerate() {
            *sum = V::load(&values[r * lines + line + c].0);
        }
    }
    let first = keys.start;
    for (offset, value) in block_values[first * lines..keys.end * lines].chunks_exact(lines).enumerate() {
        let value = &value[line..line + C];
        for c in 0..C {
            let value = V::load(&value[c].0);
            for r in 0..R {
                // The mask changes nothing, a block has 64 keys; it spares a bounds check.
                let weight = V::splat(weights[r][(first + offset) % BLOCK_POSITIONS]);
                sums[r][c] = weight.fma(value, sums[r][c]);
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        for (c, sum) in sums.iter().enumerate() {
            sum.store(&mut values[r * lines + line + c].0);
        }
    }
}

/// Room for a block of 16-bit floats as 32-bit ones.
#[derive(Default)]
struct Widened {
    keys: Vec<Line>,
    values: Vec<Line>,
}

impl Widened {
    /// Keys and values of a block, of which the first `end` positions are looked at.
    #[inline(always)]
    fn block<'a, V: Lanes>(&'a mut self, tile: &Tile<'a>, block: usize, end: usize) -> (&'a [Line], &'a [Line]) {
        let blocks_of_slab = SLAB_POSITIONS as usize / BLOCK_POSITIONS;
        let keys = Slab::key_range(tile.heads, tile.kv_head, block % blocks_of_slab);
        let values = Slab::value_range(tile.heads, tile.kv_head, block % blocks_of_slab);
        match &tile.slabs[block / blocks_of_slab] {
            Slab::F32(lines) => (&lines[keys], &lines[values]),
            Slab::F16(lines) => {
                self.keys.resize(keys.len(), Line::ZERO);
                self.values.resize(values.len(), Line::ZERO);
                widen::<V>(&lines[keys], &mut self.keys, end.div_ceil(LANES) * tile.heads.dim);
                widen::<V>(&lines[values], &mut self.values, end * tile.heads.value_lines());
                (&self.keys, &self.values)
            }
        }
    }
}

/// The first `lines` lines, exactly.
#[inline(always)]
fn widen<V: Lanes>(from: &[HalfLine], to: &mut [Line], lines: usize) {
    for (from, to) in from[..lines].iter().zip(to) {
        V::load_f16(&from.0).store(&mut to.0);
    }
}
