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
            let packed = &mut packed[first * dim..(first + rows) * dim];
            for row in piece {
                let at = row / self.group * self.q_stride + row % self.group * dim;
                for (to, &x) in packed.iter_mut().skip(row - first).step_by(rows).zip(&self.q[at..at + dim]) {
                    *to = x;
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
        let values = &self.values[row * lines..(row + 1) * lines];
        let (whole, tail) = out.as_chunks_mut::<LANES>();
        for (out, value) in whole.iter_mut().zip(values) {
            *out = value.0.map(|x| x * inverse);
        }
        if let Some(value) = values.last() {
            // Empty if the lines are full.
            tail.iter_mut().zip(value.0).for_each(|(out, x)| *out = x * inverse);
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

/// Attention over a range of blocks.
pub(super) struct Blocks<'a> {
    pub(super) tile: Tile<'a>,
    pub(super) blocks: std::ops::Range<usize>,
    pub(super) into: Target<'a>,
}

/// Where a block's results go.
pub(super) enum Target<'a> {
    /// Folded at once.
    State(&'a mut State),
    /// Kept for itself.
    Partials(&'a mut Partials),
}

impl Target<'_> {
    #[inline(always)]
    fn put<V: Lanes>(&mut self, row: usize, greatest: f32, sum: f32, values: &[Line]) {
        match self {
            Self::State(state) => state.fold::<V>(row, greatest, sum, values),
            Self::Partials(kept) => {
                kept.heads.push((row, greatest, sum));
                kept.values.extend_from_slice(values);
            }
        }
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

impl Kernel for Blocks<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: Lanes>(mut self) {
        let tile = &self.tile;
        let queries = tile.packed_queries();
        let mut room = Room::new(tile);
        let mut widened = Widened::default();
        for block in self.blocks {
            // The last row sees furthest.
            let end = tile.seen(tile.rows() - 1, block).end;
            let (keys, values) = widened.block::<V>(tile, block, end);
            for piece in tile.pieces() {
                let q = &queries[piece.start * tile.heads.dim..piece.end * tile.heads.dim];
                room.piece::<V>(tile, piece, block, q, keys, values, &mut self.into);
            }
        }
    }
}

/// Working memory for up to six rows against one block.
struct Room {
    /// Keys of the block that each row sees, counted from the block's first.
    seen: [std::ops::Range<usize>; ROWS],
    scores: Scores,
    /// Greatest score and sum of each row.
    stats: [(f32, f32); ROWS],
    values: Vec<Line>,
}

/// Calls a function that is generic over a number of rows.
macro_rules! with_rows {
    ($rows:expr, $function:ident::<V, _>($($operand:expr),* $(,)?)) => {
        match $rows {
            1 => $function::<V, 1>($($operand),*),
            2 => $function::<V, 2>($($operand),*),
            3 => $function::<V, 3>($($operand),*),
            4 => $function::<V, 4>($($operand),*),
            5 => $function::<V, 5>($($operand),*),
            6 => $function::<V, 6>($($operand),*),
            _ => {}
        }
    };
}

impl Room {
    fn new(tile: &Tile<'_>) -> Self {
        Self {
            seen: Default::default(),
            scores: [[0.0; BLOCK_POSITIONS]; ROWS],
            stats: [(0.0, 0.0); ROWS],
            values: vec![Line::ZERO; ROWS * tile.heads.value_lines()],
        }
    }

    /// One piece of a tile against one block.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "the operands of a kernel, called at one place")]
    fn piece<V: Lanes>(
        &mut self,
        tile: &Tile<'_>,
        piece: std::ops::Range<usize>,
        block: usize,
        q: &[f32],
        keys: &[Line],
        block_values: &[Line],
        into: &mut Target<'_>,
    ) {
        let (first, rows) = (piece.start, piece.len());
        for (row, seen) in piece.zip(&mut self.seen) {
            *seen = tile.seen(row, block);
        }
        let seen = &self.seen[..rows];
        // Positions rise with the rows: the last sees furthest, the first with anything to see reaches back furthest.
        let Some(start) = seen.iter().find(|seen| !seen.is_empty()).map(|seen| seen.start) else { return };
        let groups = start / LANES..seen[rows - 1].end.div_ceil(LANES);
        with_rows!(rows, all_scores::<V, _>(q, keys, tile.scale, groups.clone(), &mut self.scores));
        for ((seen, scores), stats) in seen.iter().zip(&mut self.scores).zip(&mut self.stats) {
            if !seen.is_empty() {
                *stats = softmax::<V>(scores, seen.clone());
            }
        }
        // What all rows see, together; what is before and behind it, row by row.
        let all = seen.iter().fold(0..BLOCK_POSITIONS, |all, seen| all.start.max(seen.start)..all.end.min(seen.end));
        let together = rows > 1 && !all.is_empty();
        let lines = block_values.len() / BLOCK_POSITIONS;
        let values = &mut self.values[..rows * lines];
        values.fill(Line::ZERO);
        for behind in [false, true] {
            for ((seen, scores), values) in seen.iter().zip(&self.scores).zip(values.chunks_exact_mut(lines)) {
                let keys = match (together, behind) {
                    (true, false) => seen.start..all.start,
                    (true, true) => all.end..seen.end,
                    (false, false) => seen.clone(),
                    (false, true) => 0..0,
                };
                add_values::<V, 1>(std::slice::from_ref(scores), block_values, keys, values);
            }
            if together && !behind {
                with_rows!(rows, add_values::<V, _>(&self.scores, block_values, all.clone(), values));
            }
        }
        for (r, (&(greatest, sum), values)) in self.stats.iter().zip(values.chunks_exact(lines)).enumerate() {
            if !self.seen[r].is_empty() {
                into.put::<V>(first + r, greatest, sum, values);
            }
        }
    }
}

/// Scores of R rows against some groups of sixteen keys. Few rows take several groups at once, to have sums enough in
/// flight for the multipliers' latency.
#[inline(always)]
fn all_scores<V: Lanes, const R: usize>(q: &[f32], keys: &[Line], scale: f32, groups: std::ops::Range<usize>, scores: &mut Scores) {
    let (q, _) = q.as_chunks::<R>();
    let mut group = groups.start;
    if const { R == 1 } {
        while group + 4 <= groups.end {
            some_scores::<V, R, 4>(q, keys, scale, group, scores);
            group += 4;
        }
    }
    if const { R == 2 || R == 3 } {
        while group + 2 <= groups.end {
            some_scores::<V, R, 2>(q, keys, scale, group, scores);
            group += 2;
        }
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
    weights: &[[f32; BLOCK_POSITIONS]],
    block_values: &[Line],
    keys: std::ops::Range<usize>,
    values: &mut [Line],
) {
    let Some(weights) = weights.first_chunk::<R>() else { return };
    if keys.is_empty() {
        return;
    }
    let lines = values.len() / R;
    let mut line = 0;
    if const { R == 1 } {
        while line + 4 <= lines {
            add_lines::<V, R, 4>(weights, block_values, keys.clone(), line, values);
            line += 4;
        }
    }
    if const { R == 2 || R == 3 } {
        while line + 2 <= lines {
            add_lines::<V, R, 2>(weights, block_values, keys.clone(), line, values);
            line += 2;
        }
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
