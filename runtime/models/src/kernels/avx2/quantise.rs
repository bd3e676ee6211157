//! Activations to int8.

use std::arch::x86_64::*;

use super::super::activations::{PIECE, Sums};
use super::super::canon::Scale;
use super::super::scalar;

/// See `scalar::quantise`.
///
/// # Safety
/// `x` is one to eight pieces of 32; piece j has room at `q[j * stride..]`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn block(x: &[f32], q: &mut [i8], stride: usize, sums: Sums, sum: &mut [i32]) -> f32 {
    let magnitude = _mm256_set1_epi32(0x7fff_ffff);
    let mut largest = _mm256_setzero_si256();
    for x in x.chunks_exact(8) {
        // SAFETY: eight singles.
        let x = unsafe { _mm256_loadu_si256(x.as_ptr().cast()) };
        // Magnitudes order as integers do, with NaN on top.
        largest = _mm256_max_epi32(largest, _mm256_and_si256(x, magnitude));
    }
    let (inverse, scale) = match Scale::of(highest(largest)) {
        Scale::By { inverse, scale } => (_mm256_set1_ps(inverse), scale),
        Scale::Zero => return scalar::zero(x.len(), q, stride, sum, 0.0),
        Scale::NotFinite => return scalar::zero(x.len(), q, stride, sum, f32::NAN),
    };
    let mut sixteens = [0_i32; 16];
    for (j, x) in x.chunks_exact(PIECE).enumerate() {
        let x = x.as_ptr();
        // SAFETY: 32 singles from `x` on.
        let part = |i: usize| _mm256_cvtps_epi32(_mm256_mul_ps(unsafe { _mm256_loadu_ps(x.add(8 * i)) }, inverse));
        // Packing works on 128-bit halves, so fours of bytes come out as 0 4 1 5 ..: the permutation undoes that.
        let words = (_mm256_packs_epi32(part(0), part(1)), _mm256_packs_epi32(part(2), part(3)));
        let bytes = _mm256_packs_epi16(words.0, words.1);
        let bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        // SAFETY: as promised, 32 bytes at `j * stride`.
        unsafe { _mm256_storeu_si256(q.as_mut_ptr().add(j * stride).cast(), bytes) };
        let fours = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes), _mm256_set1_epi16(1));
        let twos = _mm_hadd_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256::<1>(fours));
        let ones = _mm_hadd_epi32(twos, twos);
        sixteens[2 * j] = _mm_cvtsi128_si32(ones);
        sixteens[2 * j + 1] = _mm_extract_epi32::<1>(ones);
    }
    scalar::store_sums(&sixteens, sums, sum);
    scale
}

/// The largest of eight.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn highest(of: __m256i) -> u32 {
    let four = _mm_max_epi32(_mm256_castsi256_si128(of), _mm256_extracti128_si256::<1>(of));
    let two = _mm_max_epi32(four, _mm_shuffle_epi32::<0b_01_00_11_10>(four));
    _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32::<0b_10_11_00_01>(two))).cast_unsigned()
}
