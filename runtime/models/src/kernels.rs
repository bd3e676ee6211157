//! Products of weights and activations on the CPU, in the canonical order.
//!
//! # The canonical order (N2)
//! Every level computes an output by these operations, each rounded once, in this order. So bits do not depend on the
//! instruction set, on the number of columns, on how columns and rows are shared out, or on threads: a row is never split.
//!
//! *Activations of quantised formats.* A block (256 numbers of k for K formats, else 32) becomes int8. With `a` the largest
//! magnitude: `inverse = 127 / a`, `dx = a / 127`, `x = round_to_even(value * inverse)`. If `a` is below 2^-119 the
//! numbers and `dx` are 0; if a number is infinite or NaN the numbers are 0 and `dx` is NaN.
//!
//! *A block.* S, M and X are exact 32-bit integer sums. Converting them to a single rounds to even, once.
//! - Q4_0, Q5_0, Q8_0, Q6_K: `acc = fma(dx * d, S, acc)`, S = sum of `scale * (q - offset) * x`.
//! - Q4_1, Q5_1: `t = fma(d, S, m * X)`, `acc = fma(dx, t, acc)`, S = sum of `q * x`, X = sum of `x`.
//! - Q4_K, Q5_K: `t = fma(d, S, -(dmin * M))`, `acc = fma(dx, t, acc)`, S = sum of `scale * q * x`, M = sum of `min * x`.
//!
//! Blocks follow in the order of k, from `acc = 0`.
//!
//! *Floats.* Weights become singles, exactly; activations are singles. For each 32 of k, lane l of sixteen takes
//! `acc = fma(w, x, acc)` for k = 2l + 1, then for k = 2l; the last 32 is filled up with zeros. In the end lanes i and
//! i + 8 are added, then 4, 2 and 1 apart. (Odd first is the order of the bf16 dot instructions of x86.)
//!
//! A bias is added last. The payload of a NaN is not promised.
//!
//! # Traffic
//! Decode reads each weight byte once, front to back, so memory bounds it. Prefill unpacks 32 of k of a tile into registers
//! and walks up to 64 columns with them; the tile stays in the first- or second-level cache for all columns.

mod activations;
#[cfg(target_arch = "x86_64")]
mod avx2;
mod canon;
mod file;
mod layout;
mod memory;
mod out;
mod panel;
mod repack;
mod scalar;
#[cfg(test)]
mod tests;

use std::sync::Mutex;

use crate::compute::{Compute, Level};
use crate::format::Format;

use activations::{Activations, CHUNK};
use layout::{FLOAT_BLOCK, Layout, ROWS};
use memory::Memory;
use out::Out;

/// A weight in tiles.
#[derive(Debug)]
pub(crate) struct Weight {
    layout: Layout,
    memory: Memory,
}

/// Why there is no weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WeightError {
    /// The format has no rows of this length, or no memory could count the matrix.
    Shape,
    /// The bytes are not as many as the shape takes: so many are due.
    Length { due: u64 },
    /// The system has no memory for so many bytes.
    Memory { bytes: usize },
}

impl Weight {
    /// Repacks a matrix in file layout.
    pub fn new(cx: &Compute, format: Format, rows: usize, cols: usize, bytes: &[u8]) -> Result<Self, WeightError> {
        let due = format.bytes_of(rows, cols).ok_or(WeightError::Shape)?;
        if due != bytes.len() as u64 {
            return Err(WeightError::Length { due });
        }
        let layout = Layout::new(format, rows, cols).ok_or(WeightError::Shape)?;
        let mut memory = Memory::zeroed(layout.bytes()).ok_or(WeightError::Memory { bytes: layout.bytes() })?;
        if layout.bytes() > 0 {
            let row_bytes = bytes.len() / rows;
            // Some tiles a task, so that locks and pieces cost nothing.
            let tiles_each = (REPACK_BYTES / layout.tile_bytes).max(1);
            let pieces: Vec<_> = memory
                .as_mut_slice()
                .chunks_mut(tiles_each * layout.tile_bytes)
                .zip(bytes.chunks(tiles_each * ROWS * row_bytes))
                .map(Mutex::new)
                .collect();
            cx.pool().run(pieces.len(), &|i| {
                // A task has its piece to itself, so the lock is free and not poisoned.
                let Ok(mut piece) = pieces[i].lock() else { return };
                let (to, from) = &mut *piece;
                for (tile, rows) in to.chunks_exact_mut(layout.tile_bytes).zip(from.chunks(ROWS * row_bytes)) {
                    repack::tile(&layout, rows, tile);
                }
            });
        }
        Ok(Self { layout, memory })
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.layout.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.layout.cols
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.layout.bytes()
    }

    /// `out (columns, rows) = x (columns, cols) * weight^T + bias`.
    ///
    /// # Panics
    /// If a slice's length does not fit: the caller checked shapes.
    pub fn multiply(&self, cx: &Compute, x: &[f32], columns: usize, bias: Option<&[f32]>, out: &mut [f32]) {
        let layout = &self.layout;
        assert_eq!(Some(x.len()), columns.checked_mul(layout.cols), "inputs of a product");
        assert!(bias.is_none_or(|bias| bias.len() == layout.rows), "a bias for each output");
        let out = Out::new(out, columns, layout.rows);
        if columns == 0 || layout.tiles == 0 {
            return;
        }
        let activations = Activations::new(cx, layout, x, columns);
        let tasks = self.tasks(cx, columns);
        cx.pool().run(tasks, &|task| {
            let tiles = task * layout.tiles / tasks..(task + 1) * layout.tiles / tasks;
            if columns == 1 {
                self.tiles(cx.level(), tiles, &activations, 1, bias, &out, &mut [[0.0; ROWS]; 1]);
            } else {
                self.tiles(cx.level(), tiles, &activations, columns, bias, &out, &mut [[0.0; ROWS]; CHUNK]);
            }
        });
    }

    /// Into how many tasks a product is cut: enough for threads of unequal speed, none so short that taking it costs.
    fn tasks(&self, cx: &Compute, columns: usize) -> usize {
        let threads = cx.pool().threads();
        if threads == 1 {
            return 1;
        }
        let work = self.layout.bytes().saturating_mul(columns.div_ceil(2));
        (work / TASK_WORK).clamp(1, 8 * threads).min(self.layout.tiles)
    }

    /// Tiles `tiles` times all columns. `acc` has room for the columns of a chunk.
    #[expect(clippy::too_many_arguments, reason = "the parts of one product")]
    fn tiles(
        &self,
        level: Level,
        tiles: std::ops::Range<usize>,
        x: &Activations,
        columns: usize,
        bias: Option<&[f32]>,
        out: &Out<'_>,
        acc: &mut [[f32; ROWS]],
    ) {
        for chunk in 0..columns.div_ceil(CHUNK) {
            let first = chunk * CHUNK;
            let acc = &mut acc[..CHUNK.min(columns - first)];
            for tile in tiles.clone() {
                self.tile(level, tile, x, chunk, acc);
                for (c, acc) in acc.iter_mut().enumerate() {
                    if let Some(bias) = bias {
                        for (acc, bias) in acc.iter_mut().zip(&bias[tile * ROWS..]) {
                            *acc += bias;
                        }
                    }
                    #[expect(unsafe_code, reason = "`Out` cannot know how tiles are shared out")]
                    // SAFETY: tasks have disjoint ranges of tiles.
                    unsafe {
                        out.store(tile, first + c, acc);
                    }
                }
            }
        }
    }

    /// One tile times one chunk of columns.
    fn tile(&self, level: Level, tile: usize, x: &Activations, chunk: usize, acc: &mut [[f32; ROWS]]) {
        let layout = &self.layout;
        let bytes = &self.memory.as_slice()[tile * layout.tile_bytes..][..layout.tile_bytes];
        match (x, level) {
            #[cfg(target_arch = "x86_64")]
            (Activations::Quantised(x), Level::Avx2) => avx2::quantised(layout, bytes, &x.chunk(chunk), acc),
            #[cfg(target_arch = "x86_64")]
            (Activations::Floats(x), Level::Avx2) => avx2::floats(layout, bytes, x.chunk(chunk), acc),
            (Activations::Quantised(x), _) => scalar::quantised(layout, bytes, &x.chunk(chunk), acc),
            (Activations::Floats(x), _) => scalar::floats(layout, bytes, x.chunk(chunk), acc),
        }
    }

    /// Writes row `row` as singles.
    ///
    /// # Panics
    /// If there is no such row, or `out` is not `cols` long.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        let layout = &self.layout;
        assert!(row < layout.rows && out.len() == layout.cols, "row {row} of {}", layout.rows);
        let tile = &self.memory.as_slice()[row / ROWS * layout.tile_bytes..][..layout.tile_bytes];
        let lane = row % ROWS;
        if layout.format.is_float() {
            for (b, out) in out.chunks_mut(FLOAT_BLOCK).enumerate() {
                let [odd, even] = panel::float_block(layout, tile, lane, b);
                for (k, out) in out.iter_mut().enumerate() {
                    *out = if k % 2 == 1 { odd[k / 2] } else { even[k / 2] };
                }
            }
        } else {
            let mut panel = panel::Panel::new();
            for (b, out) in out.chunks_exact_mut(layout.format.block_len()).enumerate() {
                panel.read(layout, tile, b);
                panel.row(layout, lane, out);
            }
        }
    }
}

/// Bytes that a repacking task writes (guess).
const REPACK_BYTES: usize = 256 << 10;

/// Weight bytes times half the columns that make a task worth taking: about 2 us (estimate, at 20 GB/s).
const TASK_WORK: usize = 40 << 10;
