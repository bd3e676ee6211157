//! x86-64 with AVX2, FMA and F16C.

use super::activations::{Chunk, Sums};
use super::layout::{Layout, ROWS};
use super::scalar;

/// As `scalar::quantise`.
pub(super) fn quantise(x: &[f32], q: &mut [i8], stride: usize, sums: Sums, sum: &mut [i32]) -> f32 {
    scalar::quantise(x, q, stride, sums, sum)
}

/// As `scalar::quantised`.
pub(super) fn quantised(layout: &Layout, tile: &[u8], x: &Chunk<'_>, acc: &mut [[f32; ROWS]]) {
    scalar::quantised(layout, tile, x, acc);
}

/// As `scalar::floats`.
pub(super) fn floats(layout: &Layout, tile: &[u8], x: &[f32], acc: &mut [[f32; ROWS]]) {
    scalar::floats(layout, tile, x, acc);
}
