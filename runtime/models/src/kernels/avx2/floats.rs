//! F32, F16 and BF16 weights with activations in singles.
//!
//! Lanes run along k here, sixteen a row, and are folded at the end. One column reads the tile as it is stored, four
//! rows with two registers each. More columns first get the four rows as singles (in F32's layout), then take three at
//! a time, one half of the lanes after the other: twelve sums are enough to keep both multipliers busy.

use std::arch::x86_64::*;

use super::super::layout::{FLOAT_BLOCK, FLOAT_ROWS, LINE, Layout, ROWS};
use super::prefetch;

/// How a float format gives its numbers.
pub(super) trait Kind {
    /// Bytes of a number.
    const BYTES: usize;
    /// 32 of k of one row: odd ones 0 to 7 and 8 to 15, even ones 0 to 7 and 8 to 15.
    ///
    /// # Safety
    /// `at` points to 32 numbers, and the machine has AVX2, FMA and F16C.
    unsafe fn load(at: *const u8) -> [__m256; 4];
}

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct BF16;

impl Kind for F32 {
    const BYTES: usize = 4;
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load(at: *const u8) -> [__m256; 4] {
        let at = at.cast::<f32>();
        // SAFETY: 32 singles, as promised.
        unsafe { [_mm256_loadu_ps(at), _mm256_loadu_ps(at.add(8)), _mm256_loadu_ps(at.add(16)), _mm256_loadu_ps(at.add(24))] }
    }
}

impl Kind for F16 {
    const BYTES: usize = 2;
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load(at: *const u8) -> [__m256; 4] {
        // SAFETY: 32 halves, as promised.
        unsafe { [super::singles(at), super::singles(at.add(16)), super::singles(at.add(32)), super::singles(at.add(48))] }
    }
}

impl Kind for BF16 {
    const BYTES: usize = 2;
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load(at: *const u8) -> [__m256; 4] {
        // SAFETY: 32 numbers of two bytes, as promised.
        let (low, high) = unsafe { (super::half_line(at), super::half_line(at.add(32))) };
        let odd = |words| _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(-0x1_0000)));
        let even = |words| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words));
        [odd(low), odd(high), even(low), even(high)]
    }
}

/// One tile times a chunk of columns.
///
/// # Safety
/// All lengths are those of the layout, whose format is `K`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn tile<K: Kind>(layout: &Layout, tile: &[u8], x: &[f32], acc: &mut [[f32; ROWS]]) {
    let width = layout.blocks * FLOAT_BLOCK;
    let stream = FLOAT_ROWS * width * K::BYTES;
    if acc.len() == 1 || K::BYTES == 2 && acc.len() <= FEW {
        for group in 0..ROWS / FLOAT_ROWS {
            for (c, acc) in acc.iter_mut().enumerate() {
                // SAFETY: the stream of this group of rows, and column c.
                unsafe {
                    let (rows, x) = (tile.as_ptr().add(group * stream), x.as_ptr().add(c * width));
                    one_column::<K>(rows, layout.blocks, x, &mut acc[group * FLOAT_ROWS..]);
                }
            }
        }
        return;
    }
    let mut panel = if K::BYTES == 4 { Vec::new() } else { vec![0.0_f32; FLOAT_ROWS * width] };
    for group in 0..ROWS / FLOAT_ROWS {
        // SAFETY: the stream of this group of rows.
        let rows = unsafe { tile.as_ptr().add(group * stream) };
        let rows = if K::BYTES == 4 {
            rows.cast::<f32>()
        } else {
            for (i, to) in panel.chunks_exact_mut(FLOAT_BLOCK).enumerate() {
                // SAFETY: number block i of the stream, which has as many as the panel; four times eight singles to store.
                unsafe {
                    for (part, value) in K::load(rows.add(i * FLOAT_BLOCK * K::BYTES)).into_iter().enumerate() {
                        _mm256_storeu_ps(to.as_mut_ptr().add(8 * part), value);
                    }
                }
            }
            panel.as_ptr()
        };
        let mut c = 0;
        while c < acc.len() {
            let left = acc.len() - c;
            // SAFETY: the group's rows in singles, and columns c.. of which as many are left.
            c += unsafe {
                let x = x.as_ptr().add(c * width);
                let acc = &mut acc[c..];
                match left {
                    1 => columns::<1>(rows, layout.blocks, x, group, acc),
                    2 | 4 => columns::<2>(rows, layout.blocks, x, group, acc),
                    _ => columns::<3>(rows, layout.blocks, x, group, acc),
                }
            };
        }
    }
}

/// So few columns that a detour over singles costs more than reading four rows again, which by then are cached (measured
/// on Zen 3: with 2 and 4 columns it took 1.6 and 1.2 times as long).
const FEW: usize = 4;

/// Four rows, one column.
///
/// # Safety
/// `rows` points to a stream of four rows, `x` to a column, both of `blocks`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn one_column<K: Kind>(rows: *const u8, blocks: usize, x: *const f32, out: &mut [f32]) {
    let mut sums = [[_mm256_setzero_ps(); 2]; FLOAT_ROWS];
    for b in 0..blocks {
        // SAFETY: block b of the column.
        let x = unsafe { F32::load(x.add(b * FLOAT_BLOCK).cast()) };
        for (r, sums) in sums.iter_mut().enumerate() {
            let at = rows.wrapping_add((b * FLOAT_ROWS + r) * FLOAT_BLOCK * K::BYTES);
            for line in 0..FLOAT_BLOCK * K::BYTES / LINE {
                prefetch(at.wrapping_add(line * LINE));
            }
            // SAFETY: block b of row r.
            let w = unsafe { K::load(at) };
            for (half, sum) in sums.iter_mut().enumerate() {
                *sum = _mm256_fmadd_ps(w[half], x[half], *sum);
                *sum = _mm256_fmadd_ps(w[2 + half], x[2 + half], *sum);
            }
        }
    }
    for (out, [low, high]) in out.iter_mut().zip(sums) {
        *out = fold(low, high);
    }
}

/// Four rows, `C` columns. Returns `C`.
///
/// # Safety
/// `rows` points to a stream of four rows of singles, `x` to `C` columns, all of `blocks`; `acc` has `C` entries.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn columns<const C: usize>(rows: *const f32, blocks: usize, x: *const f32, group: usize, acc: &mut [[f32; ROWS]]) -> usize {
    let mut sums = [[[_mm256_setzero_ps(); FLOAT_ROWS]; C]; 2];
    for (half, sums) in sums.iter_mut().enumerate() {
        let mut part = [[_mm256_setzero_ps(); FLOAT_ROWS]; C];
        for b in 0..blocks {
            for parity in 0..2 {
                let at = 16 * parity + 8 * half;
                // SAFETY: eight singles of block b, in each column and row.
                let x: [__m256; C] = std::array::from_fn(|c| unsafe { _mm256_loadu_ps(x.add((c * blocks + b) * FLOAT_BLOCK + at)) });
                #[expect(clippy::needless_range_loop, reason = "rows and columns of one block of sums: indices read as in the formula")]
                for r in 0..FLOAT_ROWS {
                    // SAFETY: as above.
                    let w = unsafe { _mm256_loadu_ps(rows.add((b * FLOAT_ROWS + r) * FLOAT_BLOCK + at)) };
                    for c in 0..C {
                        part[c][r] = _mm256_fmadd_ps(w, x[c], part[c][r]);
                    }
                }
            }
        }
        *sums = part;
    }
    for (c, acc) in acc.iter_mut().take(C).enumerate() {
        for r in 0..FLOAT_ROWS {
            acc[group * FLOAT_ROWS + r] = fold(sums[0][c][r], sums[1][c][r]);
        }
    }
    C
}

/// Sixteen lanes to one: 8, 4, 2, 1 apart.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn fold(low: __m256, high: __m256) -> f32 {
    let eight = _mm256_add_ps(low, high);
    let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}
