//! Q4_0, Q4_1, Q5_0, Q5_1: blocks of 32 with one scale.

use std::arch::x86_64::*;

use super::super::activations::{Chunk, PIECE};
use super::super::layout::{LINE, Layout, ROWS};
use super::{Unpacked, add_fifth_bits, dot, prefetch, singles, unpack_nibbles};

/// What tells these formats apart.
pub(super) trait Kind {
    /// A fifth bit follows the nibbles.
    const FIFTH: bool;
    /// A minimum follows the scale; otherwise numbers have an offset.
    const MINIMUM: bool;
    /// Lines of a block.
    const LINES: usize = if Self::FIFTH { 5 } else { 4 };
}

pub(super) struct Q4_0;
pub(super) struct Q4_1;
pub(super) struct Q5_0;
pub(super) struct Q5_1;

impl Kind for Q4_0 {
    const FIFTH: bool = false;
    const MINIMUM: bool = false;
}
impl Kind for Q4_1 {
    const FIFTH: bool = false;
    const MINIMUM: bool = true;
}
impl Kind for Q5_0 {
    const FIFTH: bool = true;
    const MINIMUM: bool = false;
}
impl Kind for Q5_1 {
    const FIFTH: bool = true;
    const MINIMUM: bool = true;
}

/// One tile times a chunk; `ONE` if that is a single column.
///
/// # Safety
/// All lengths are those of the layout, whose format is `K`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn tile<K: Kind, const ONE: bool>(layout: &Layout, tile: &[u8], x: &Chunk<'_>, acc: &mut [[f32; ROWS]]) {
    let n = if ONE { 1 } else { x.n };
    let mut one = [_mm256_setzero_ps(); 2];
    if !ONE {
        acc.fill([0.0; ROWS]);
    }
    for b in 0..layout.blocks {
        let place = layout.place(b);
        // SAFETY: the layout's places are in the tile.
        let (scales, lines) = unsafe { (tile.as_ptr().add(place.scales), tile.as_ptr().add(place.lines)) };
        if n <= PREFETCH_COLUMNS {
            for i in 0..K::LINES + 1 {
                prefetch(lines.wrapping_add(i * LINE));
            }
        }
        for (half, one) in one.iter_mut().enumerate() {
            // SAFETY: a block's scales, minima and lines follow each other as the layout says.
            let (d, m, w) = unsafe {
                let d = singles(scales.add(16 * half));
                let m = if K::MINIMUM { singles(scales.add(32 + 16 * half)) } else { d };
                (d, m, unpack::<K>(lines.add(32 * half)))
            };
            for c in 0..n {
                // SAFETY: b < blocks and c < n; each of the three has an entry for every block and column.
                let (q, dx, sum) = unsafe {
                    let at = b * n + c;
                    (x.q.as_ptr().add(at * PIECE), *x.scale.get_unchecked(at), *x.sum.get_unchecked(at))
                };
                let ones = _mm256_set1_epi16(1);
                // SAFETY: `q` points to the 32 numbers of this block and column.
                let s = unsafe { if K::FIFTH { dot::<4>(&w, q, ones) } else { dot::<8>(&w, q, ones) } };
                let dx = _mm256_set1_ps(dx);
                let step = |acc: __m256| {
                    if K::MINIMUM {
                        let minimum = _mm256_mul_ps(m, _mm256_cvtepi32_ps(_mm256_set1_epi32(sum)));
                        _mm256_fmadd_ps(dx, _mm256_fmadd_ps(d, _mm256_cvtepi32_ps(s), minimum), acc)
                    } else {
                        let offset = _mm256_set1_epi32(sum * if K::FIFTH { 16 } else { 8 });
                        _mm256_fmadd_ps(_mm256_mul_ps(dx, d), _mm256_cvtepi32_ps(_mm256_sub_epi32(s, offset)), acc)
                    }
                };
                if ONE {
                    *one = step(*one);
                } else {
                    // SAFETY: c < n = acc.len(), and a half is eight of its sixteen.
                    unsafe {
                        let acc = acc.as_mut_ptr().add(c).cast::<f32>().add(8 * half);
                        _mm256_storeu_ps(acc, step(_mm256_loadu_ps(acc)));
                    }
                }
            }
        }
    }
    if ONE {
        for (half, one) in one.into_iter().enumerate() {
            // SAFETY: one column has sixteen sums.
            unsafe { _mm256_storeu_ps(acc[0].as_mut_ptr().add(8 * half), one) };
        }
    }
}

/// With more columns, arithmetic hides memory.
pub(super) const PREFETCH_COLUMNS: usize = 8;

/// # Safety
/// `lines` points to half of a block's first line.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack<K: Kind>(lines: *const u8) -> Unpacked {
    let mut w = [_mm256_setzero_si256(); 8];
    // SAFETY: a block is four nibble lines, and a line of fifth bits where the kind has them.
    unsafe {
        unpack_nibbles(lines, 4, &mut w);
        if K::FIFTH {
            add_fifth_bits(lines.add(4 * LINE), &mut w);
        }
    }
    w
}
