//! The portable level: the canonical order in plain Rust, on tiles.

use super::activations::{Chunk, PIECE, Sums};
use super::canon::{self, Scale};
use super::layout::{FLOAT_BLOCK, LINE, Layout, ROWS};
use super::panel::{Panel, float_block};
use crate::format::Format;

/// Quantises one block of one column: 32 numbers to `q`, the next 32 `stride` further on. Returns the scale.
pub(super) fn quantise(x: &[f32], q: &mut [i8], stride: usize, sums: Sums, sum: &mut [i32]) -> f32 {
    let largest = x.iter().fold(0, |largest, x| largest.max(x.to_bits() & 0x7fff_ffff));
    let (inverse, scale) = match Scale::of(largest) {
        Scale::By { inverse, scale } => (inverse, scale),
        Scale::Zero => return zero(x.len(), q, stride, sum, 0.0),
        Scale::NotFinite => return zero(x.len(), q, stride, sum, f32::NAN),
    };
    let mut sixteens = [0_i32; 16];
    for (j, x) in x.chunks_exact(PIECE).enumerate() {
        let q = &mut q[j * stride..][..PIECE];
        for (q, x) in q.iter_mut().zip(x) {
            // Adding 1.5 * 2^23 rounds to even and leaves the integer in the low bits.
            *q = ((x * inverse) + ROUNDER).to_bits() as i8;
        }
        for (half, q) in q.chunks_exact(16).enumerate() {
            sixteens[2 * j + half] = q.iter().map(|&q| i32::from(q)).sum();
        }
    }
    store_sums(&sixteens, sums, sum);
    scale
}

/// 1.5 * 2^23.
const ROUNDER: f32 = 12_582_912.0;

/// Stores a block of zeros and gives back its scale.
pub(super) fn zero(len: usize, q: &mut [i8], stride: usize, sum: &mut [i32], scale: f32) -> f32 {
    for j in 0..len / PIECE {
        q[j * stride..][..PIECE].fill(0);
    }
    sum.fill(0);
    scale
}

/// Stores sums of sixteens as a format wants them.
pub(super) fn store_sums(sixteens: &[i32; 16], sums: Sums, sum: &mut [i32]) {
    match sums {
        Sums::Whole => sum[0] = sixteens[0] + sixteens[1],
        Sums::Of32 => {
            for (sum, s) in sum.iter_mut().zip(sixteens.chunks_exact(4)) {
                *sum = canon::pair(s[0] + s[1], s[2] + s[3]);
            }
        }
        Sums::Of16 => {
            for (sum, s) in sum.chunks_exact_mut(2).zip(sixteens.chunks_exact(4)) {
                sum[0] = canon::pair(s[0], s[2]);
                sum[1] = canon::pair(s[1], s[3]);
            }
        }
    }
}

/// One quantised tile times a chunk of columns: sixteen outputs a column.
pub(super) fn quantised(layout: &Layout, tile: &[u8], x: &Chunk<'_>, acc: &mut [[f32; ROWS]]) {
    let block_len = layout.format.block_len();
    let pieces = block_len / PIECE;
    let words = Sums::of(layout.format).words();
    let mut panel = Panel::new();
    for acc in &mut *acc {
        *acc = [0.0; ROWS];
    }
    for b in 0..layout.blocks {
        panel.read(layout, tile, b);
        for (c, acc) in acc.iter_mut().enumerate() {
            let piece = |j: usize| &x.q[((b * pieces + j) * x.n + c) * PIECE..][..PIECE];
            let dx = x.scale[b * x.n + c];
            let sum = &x.sum[(b * x.n + c) * words..][..words];
            match layout.format {
                Format::Q4_K | Format::Q5_K => with_minima(&panel, piece, dx, sum, acc),
                Format::Q6_K => with_scales(&panel, piece, dx, acc),
                Format::Q4_1 | Format::Q5_1 => {
                    let s = dot(&panel.q[..8], piece(0));
                    for r in 0..ROWS {
                        let t = panel.d[r].mul_add(s[r] as f32, panel.m[r] * sum[0] as f32);
                        acc[r] = dx.mul_add(t, acc[r]);
                    }
                }
                _ => {
                    let s = dot(&panel.q[..8], piece(0));
                    for r in 0..ROWS {
                        acc[r] = (dx * panel.d[r]).mul_add(s[r] as f32, acc[r]);
                    }
                }
            }
        }
    }
}

/// Q4_K and Q5_K.
fn with_minima<'a>(panel: &Panel, piece: impl Fn(usize) -> &'a [i8], dx: f32, sum: &[i32], acc: &mut [f32; ROWS]) {
    let (mut s, mut m) = ([0_i32; ROWS], [0_i32; ROWS]);
    for j in 0..8 {
        let part = dot(&panel.q[8 * j..8 * j + 8], piece(j));
        let (even, odd) = canon::unpair(sum[j / 2]);
        let x_sum = if j % 2 == 0 { even } else { odd };
        for r in 0..ROWS {
            s[r] += panel.scales[j][r] * part[r];
            m[r] += panel.mins[j][r] * x_sum;
        }
    }
    for r in 0..ROWS {
        let t = panel.d[r].mul_add(s[r] as f32, -(panel.m[r] * m[r] as f32));
        acc[r] = dx.mul_add(t, acc[r]);
    }
}

/// Q6_K.
fn with_scales<'a>(panel: &Panel, piece: impl Fn(usize) -> &'a [i8], dx: f32, acc: &mut [f32; ROWS]) {
    let mut s = [0_i32; ROWS];
    for j in 0..16 {
        let part = dot(&panel.q[4 * j..4 * j + 4], &piece(j / 2)[j % 2 * 16..]);
        for r in 0..ROWS {
            s[r] += panel.scales[j][r] * part[r];
        }
    }
    for r in 0..ROWS {
        acc[r] = (dx * panel.d[r]).mul_add(s[r] as f32, acc[r]);
    }
}

/// Exact sums of four products a line.
#[inline]
fn dot(q: &[[i8; LINE]], x: &[i8]) -> [i32; ROWS] {
    let mut s = [0_i32; ROWS];
    for (q, x) in q.iter().zip(x.chunks_exact(4)) {
        let x: [i32; 4] = std::array::from_fn(|i| i32::from(x[i]));
        for r in 0..ROWS {
            let q = |i: usize| i32::from(q[4 * r + i]);
            s[r] += q(0) * x[0] + q(1) * x[1] + q(2) * x[2] + q(3) * x[3];
        }
    }
    s
}

/// One float tile times a chunk of columns.
pub(super) fn floats(layout: &Layout, tile: &[u8], x: &[f32], acc: &mut [[f32; ROWS]]) {
    let width = layout.blocks * FLOAT_BLOCK;
    let mut lanes = vec![[0.0; ROWS]; acc.len()];
    for r in 0..ROWS {
        lanes.fill([0.0; ROWS]);
        for b in 0..layout.blocks {
            let [odd, even] = float_block(layout, tile, r, b);
            for (c, lanes) in lanes.iter_mut().enumerate() {
                let x = &x[c * width + b * FLOAT_BLOCK..][..FLOAT_BLOCK];
                for l in 0..ROWS {
                    lanes[l] = even[l].mul_add(x[ROWS + l], odd[l].mul_add(x[l], lanes[l]));
                }
            }
        }
        for (acc, lanes) in acc.iter_mut().zip(&lanes) {
            acc[r] = canon::fold(*lanes);
        }
    }
}
