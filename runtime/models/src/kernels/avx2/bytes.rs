//! Q8_0: blocks of 32 bytes with a sign.
//!
//! `maddubs` wants one side unsigned: it gets the weight's magnitude, and the activation takes over its sign. A pair is
//! then at most 2 * 128 * 127, which fits 16 bits, but two pairs would not: each is widened at once.

use std::arch::x86_64::*;

use super::super::activations::{Chunk, PIECE};
use super::super::layout::{LINE, Layout, ROWS};
use super::nibbles::PREFETCH_COLUMNS;
use super::{broadcast, half_line, prefetch, singles};

/// One tile times a chunk; `ONE` if that is a single column.
///
/// # Safety
/// All lengths are those of the layout, whose format is Q8_0.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn tile<const ONE: bool>(layout: &Layout, tile: &[u8], x: &Chunk<'_>, acc: &mut [[f32; ROWS]]) {
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
            for i in 0..9 {
                prefetch(lines.wrapping_add(i * LINE));
            }
        }
        for (half, one) in one.iter_mut().enumerate() {
            let mut size = [_mm256_setzero_si256(); 8];
            // SAFETY: a block has 16 scales and eight lines.
            let (d, lines) = unsafe { (singles(scales.add(16 * half)), lines.add(32 * half)) };
            for (g, size) in size.iter_mut().enumerate() {
                // SAFETY: line g of eight.
                *size = _mm256_abs_epi8(unsafe { half_line(lines.add(g * LINE)) });
            }
            for c in 0..n {
                // SAFETY: b < blocks and c < n; both have an entry for every block and column.
                let (q, dx) = unsafe { (x.q.as_ptr().add((b * n + c) * PIECE), *x.scale.get_unchecked(b * n + c)) };
                let mut s = _mm256_setzero_si256();
                for (g, &size) in size.iter().enumerate() {
                    // SAFETY: line g of eight, and four of the 32 numbers of this block and column.
                    let (w, four) = unsafe { (half_line(lines.add(g * LINE)), broadcast(q.add(4 * g))) };
                    let pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(four, w));
                    s = _mm256_add_epi32(s, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
                }
                let (scale, s) = (_mm256_mul_ps(_mm256_set1_ps(dx), d), _mm256_cvtepi32_ps(s));
                if ONE {
                    *one = _mm256_fmadd_ps(scale, s, *one);
                } else {
                    // SAFETY: c < n = acc.len(), and a half is eight of its sixteen.
                    unsafe {
                        let acc = acc.as_mut_ptr().add(c).cast::<f32>().add(8 * half);
                        _mm256_storeu_ps(acc, _mm256_fmadd_ps(scale, s, _mm256_loadu_ps(acc)));
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
