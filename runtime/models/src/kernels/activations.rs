//! What goes into a product: activations, quantised or put into the order that kernels read.
//!
//! Columns (rows of the input tensor: positions) are taken in chunks of [`CHUNK`], so that what a tile is multiplied
//! with stays in the first-level cache. In a chunk, numbers lie by 32 of k, then by column: a kernel that has unpacked 32
//! of k of a tile walks the columns in one line of memory.

use std::sync::Mutex;

use super::layout::{FLOAT_BLOCK, Layout};
use super::{canon, scalar};
use crate::compute::{Compute, Level};
use crate::format::Format;

/// Columns that share a pass over a tile: 64 columns of 256 k are 16 KiB, half of a first-level cache.
pub(super) const CHUNK: usize = 64;

/// Numbers in a piece of k that lies together.
pub(super) const PIECE: usize = 32;

/// What a format wants to know about its activations beside scales and numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sums {
    /// The sum of each block of 32.
    Whole,
    /// For a block of 256 the sums of its eight 32s as four pairs (2j, 2j + 1) of i16, the first one lower.
    Of32,
    /// For a block of 256 the sums of its sixteen 16s as eight pairs of i16: (0, 2), (1, 3), (4, 6), (5, 7) and so on.
    Of16,
}

impl Sums {
    /// What a quantised format wants.
    pub fn of(format: Format) -> Self {
        match format {
            Format::Q4_K | Format::Q5_K => Self::Of32,
            Format::Q6_K => Self::Of16,
            _ => Self::Whole,
        }
    }

    /// Words for a block.
    pub fn words(self) -> usize {
        match self {
            Self::Whole => 1,
            Self::Of32 => 4,
            Self::Of16 => 8,
        }
    }
}

/// All activations of a product.
pub(super) enum Activations {
    Quantised(Quantised),
    Floats(Floats),
}

/// As int8 with a scale for each block.
pub(super) struct Quantised {
    columns: usize,
    /// Inputs.
    cols: usize,
    blocks: usize,
    sums: Sums,
    q: Vec<i8>,
    scale: Vec<f32>,
    sum: Vec<i32>,
}

/// As singles: per column, for 32 of k the 16 odd ones first; filled up with zeros.
pub(super) struct Floats {
    columns: usize,
    width: usize,
    x: Vec<f32>,
}

/// One chunk of quantised activations.
#[derive(Clone, Copy)]
pub(super) struct Chunk<'a> {
    /// Columns in it: at most [`CHUNK`].
    pub n: usize,
    /// `[k / 32][column][32]`.
    pub q: &'a [i8],
    /// `[block][column]`.
    pub scale: &'a [f32],
    /// `[block][column][word]`, see [`Sums`].
    pub sum: &'a [i32],
}

impl Activations {
    /// Prepares `columns` rows of `layout.cols` numbers.
    pub fn new(cx: &Compute, layout: &Layout, x: &[f32], columns: usize) -> Self {
        if layout.format.is_float() {
            Self::Floats(Floats::new(cx, layout, x, columns))
        } else {
            Self::Quantised(Quantised::new(cx, layout, x, columns))
        }
    }
}

impl Quantised {
    fn new(cx: &Compute, layout: &Layout, x: &[f32], columns: usize) -> Self {
        let (cols, blocks, sums) = (layout.cols, layout.blocks, Sums::of(layout.format));
        let mut this = Self {
            columns,
            cols,
            blocks,
            sums,
            q: vec![0; columns * cols],
            scale: vec![0.0; columns * blocks],
            sum: vec![0; columns * blocks * sums.words()],
        };
        if columns * cols < PARALLEL_VALUES || cx.pool().threads() == 1 {
            this.pieces(x, |mut piece| piece.fill(cx.level()));
        } else {
            let mut pieces = Vec::with_capacity(columns.div_ceil(CHUNK) * blocks);
            this.pieces(x, |piece| pieces.push(Mutex::new(piece)));
            cx.pool().run(pieces.len(), &|i| {
                // A task has its piece to itself, so the lock is free and not poisoned.
                if let Ok(mut piece) = pieces[i].lock() {
                    piece.fill(cx.level());
                }
            });
        }
        this
    }

    /// Cuts the room into the parts of one chunk and block each.
    fn pieces<'a>(&'a mut self, x: &'a [f32], mut take: impl FnMut(Piece<'a>)) {
        let (cols, blocks, words) = (self.cols, self.blocks, self.sums.words());
        if blocks == 0 {
            return;
        }
        let block_len = cols / blocks;
        let chunks = self
            .q
            .chunks_mut(CHUNK * cols)
            .zip(self.scale.chunks_mut(CHUNK * blocks))
            .zip(self.sum.chunks_mut(CHUNK * blocks * words))
            .zip(x.chunks(CHUNK * cols));
        for (((q, scale), sum), x) in chunks {
            let n = scale.len() / blocks;
            let parts = q.chunks_mut(n * block_len).zip(scale.chunks_mut(n)).zip(sum.chunks_mut(n * words));
            for (b, ((q, scale), sum)) in parts.enumerate() {
                take(Piece { x: &x[b * block_len..], cols, block_len, sums: self.sums, q, scale, sum });
            }
        }
    }

    /// Chunk `i`: columns `CHUNK * i ..`.
    pub fn chunk(&self, i: usize) -> Chunk<'_> {
        let first = i * CHUNK;
        let n = CHUNK.min(self.columns - first);
        let words = self.sums.words();
        Chunk {
            n,
            q: &self.q[first * self.cols..][..n * self.cols],
            scale: &self.scale[first * self.blocks..][..n * self.blocks],
            sum: &self.sum[first * self.blocks * words..][..n * self.blocks * words],
        }
    }
}

/// Values from which quantising is shared out: about ten microseconds on one thread (estimate).
const PARALLEL_VALUES: usize = 16 * 1024;

/// One block of all columns of a chunk.
struct Piece<'a> {
    /// Begins at the block in the chunk's first column; the next column is `cols` further on.
    x: &'a [f32],
    cols: usize,
    block_len: usize,
    sums: Sums,
    q: &'a mut [i8],
    scale: &'a mut [f32],
    sum: &'a mut [i32],
}

impl Piece<'_> {
    fn fill(&mut self, level: Level) {
        let n = self.scale.len();
        let words = self.sums.words();
        for c in 0..n {
            let x = &self.x[c * self.cols..][..self.block_len];
            let q = &mut self.q[c * PIECE..];
            let sum = &mut self.sum[c * words..][..words];
            self.scale[c] = match level {
                Level::Portable => scalar::quantise(x, q, n * PIECE, self.sums, sum),
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => super::avx2::quantise(x, q, n * PIECE, self.sums, sum),
                #[cfg(not(target_arch = "x86_64"))]
                Level::Avx2 => scalar::quantise(x, q, n * PIECE, self.sums, sum),
            };
        }
    }
}

impl Floats {
    fn new(cx: &Compute, layout: &Layout, x: &[f32], columns: usize) -> Self {
        let width = layout.blocks * FLOAT_BLOCK;
        let mut this = Self { columns, width, x: vec![0.0; columns * width] };
        if width == 0 {
            return this;
        }
        let split = |from: &[f32], to: &mut [f32]| {
            for (from, to) in from.chunks(FLOAT_BLOCK).zip(to.chunks_exact_mut(FLOAT_BLOCK)) {
                canon::odd_first(from, to);
            }
        };
        let rows = x.chunks_exact(layout.cols).zip(this.x.chunks_exact_mut(width));
        if columns * width < PARALLEL_VALUES || cx.pool().threads() == 1 {
            rows.for_each(|(from, to)| split(from, to));
        } else {
            let rows: Vec<_> = rows.map(Mutex::new).collect();
            cx.pool().run(rows.len(), &|i| {
                // As above: never contended.
                if let Ok(mut row) = rows[i].lock() {
                    split(row.0, row.1);
                }
            });
        }
        this
    }

    /// The columns of chunk `i`, one after the other.
    pub fn chunk(&self, i: usize) -> &[f32] {
        let first = i * CHUNK;
        &self.x[first * self.width..][..CHUNK.min(self.columns - first) * self.width]
    }
}
