//! x86-64 with AVX2, FMA and F16C.
//!
//! A tile's sixteen rows are two registers, *halves*. For 32 of k, a half is unpacked into eight registers of unsigned
//! bytes, and each column is then eight broadcasts of four activations, eight `maddubs` and a few additions in 16 bits:
//! `u8 * i8` pairs add up to at most 2 * 15 * 127 (63 for Q6_K), so [`dot`] adds so many of them as surely fit 16 bits
//! before it widens. That widening also multiplies by the sub-block's scale.
//!
//! With one column, sums stay in registers; with more they wait in the first-level cache.

#![expect(unsafe_code, reason = "vector loads at places that the layout gives")]

mod bytes;
mod floats;
mod nibbles;
mod quantise;
mod scaled;

use std::arch::x86_64::*;

use super::activations::{Chunk, PIECE, Sums};
use super::layout::{FLOAT_BLOCK, Layout, ROWS};
use crate::format::Format;

/// As `scalar::quantise`. To be called where `Level::Avx2` was found usable, as everything here.
pub(super) fn quantise(x: &[f32], q: &mut [i8], stride: usize, sums: Sums, sum: &mut [i32]) -> f32 {
    assert!(x.len().is_multiple_of(PIECE) && x.len() <= 256 && sum.len() == sums.words());
    assert!(!x.is_empty() && q.len() >= (x.len() / PIECE - 1) * stride + PIECE);
    // SAFETY: `Level::Avx2` exists only where `Compute` found these instructions; the asserts are what the function asks.
    unsafe { quantise::block(x, q, stride, sums, sum) }
}

/// As `scalar::quantised`.
pub(super) fn quantised(layout: &Layout, tile: &[u8], x: &Chunk<'_>, acc: &mut [[f32; ROWS]]) {
    let blocks = layout.blocks;
    assert!(tile.len() == layout.tile_bytes && acc.len() == x.n && x.n <= super::activations::CHUNK);
    assert!(x.q.len() == blocks * layout.format.block_len() * x.n && x.scale.len() == blocks * x.n);
    assert!(x.sum.len() == blocks * x.n * Sums::of(layout.format).words());
    // SAFETY: `Level::Avx2` exists only where `Compute` found these instructions. The asserts say that tile, activations
    // and sums have the lengths of this layout, and kernels stay inside the places that it gives.
    unsafe {
        match (layout.format, x.n) {
            (Format::Q4_0, 1) => nibbles::tile::<nibbles::Q4_0, true>(layout, tile, x, acc),
            (Format::Q4_0, _) => nibbles::tile::<nibbles::Q4_0, false>(layout, tile, x, acc),
            (Format::Q4_1, 1) => nibbles::tile::<nibbles::Q4_1, true>(layout, tile, x, acc),
            (Format::Q4_1, _) => nibbles::tile::<nibbles::Q4_1, false>(layout, tile, x, acc),
            (Format::Q5_0, 1) => nibbles::tile::<nibbles::Q5_0, true>(layout, tile, x, acc),
            (Format::Q5_0, _) => nibbles::tile::<nibbles::Q5_0, false>(layout, tile, x, acc),
            (Format::Q5_1, 1) => nibbles::tile::<nibbles::Q5_1, true>(layout, tile, x, acc),
            (Format::Q5_1, _) => nibbles::tile::<nibbles::Q5_1, false>(layout, tile, x, acc),
            (Format::Q8_0, 1) => bytes::tile::<true>(layout, tile, x, acc),
            (Format::Q8_0, _) => bytes::tile::<false>(layout, tile, x, acc),
            (Format::Q4_K, 1) => scaled::tile_k::<false, true>(layout, tile, x, acc),
            (Format::Q4_K, _) => scaled::tile_k::<false, false>(layout, tile, x, acc),
            (Format::Q5_K, 1) => scaled::tile_k::<true, true>(layout, tile, x, acc),
            (Format::Q5_K, _) => scaled::tile_k::<true, false>(layout, tile, x, acc),
            (Format::Q6_K, 1) => scaled::tile_6::<true>(layout, tile, x, acc),
            (Format::Q6_K, _) => scaled::tile_6::<false>(layout, tile, x, acc),
            (Format::F32 | Format::F16 | Format::BF16, _) => unreachable!("floats have their own kernel"),
        }
    }
}

/// As `scalar::floats`.
pub(super) fn floats(layout: &Layout, tile: &[u8], x: &[f32], acc: &mut [[f32; ROWS]]) {
    assert!(tile.len() == layout.tile_bytes && x.len() == acc.len() * layout.blocks * FLOAT_BLOCK);
    // SAFETY: `Level::Avx2` exists only where `Compute` found these instructions; the assert gives the lengths of this layout.
    unsafe {
        match layout.format {
            Format::F32 => floats::tile::<floats::F32>(layout, tile, x, acc),
            Format::F16 => floats::tile::<floats::F16>(layout, tile, x, acc),
            Format::BF16 => floats::tile::<floats::BF16>(layout, tile, x, acc),
            _ => unreachable!("quantised formats have their own kernels"),
        }
    }
}

/// Thirty-two of k of eight rows: register g holds k = 4g..4g+3 of each row.
type Unpacked = [__m256i; 8];

/// Exact sums of 32 products a row, times a scale: pairs of 16 bits of `scale` hold it twice. `RUN` is how many `maddubs`
/// surely add up in 16 bits: 8 for 4-bit numbers, 4 for 5 bits, 2 for 6 bits.
///
/// # Safety
/// `x` points to 32 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dot<const RUN: usize>(w: &[__m256i], x: *const i8, scale: __m256i) -> __m256i {
    let mut total = _mm256_setzero_si256();
    let mut g = 0;
    while g < w.len() {
        let mut sum = _mm256_setzero_si256();
        #[expect(clippy::needless_range_loop, reason = "the same index reads weights and activations")]
        for i in g..g + RUN {
            // SAFETY: as promised; four bytes at 4i of 4 * w.len() at most 32.
            let four = unsafe { broadcast(x.add(4 * i)) };
            sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(w[i], four));
        }
        total = _mm256_add_epi32(total, _mm256_madd_epi16(sum, scale));
        g += RUN;
    }
    total
}

/// Four bytes in every lane.
///
/// # Safety
/// `x` points to four bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn broadcast(x: *const i8) -> __m256i {
    // SAFETY: as promised.
    _mm256_set1_epi32(unsafe { x.cast::<i32>().read_unaligned() })
}

/// Half a line.
///
/// # Safety
/// `at` points to 32 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn half_line(at: *const u8) -> __m256i {
    // SAFETY: as promised.
    unsafe { _mm256_loadu_si256(at.cast()) }
}

/// Eight halves (16 bits each) as singles.
///
/// # Safety
/// `at` points to 16 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn singles(at: *const u8) -> __m256 {
    // SAFETY: as promised.
    _mm256_cvtph_ps(unsafe { _mm_loadu_si128(at.cast()) })
}

/// Unpacks `LINES` nibble lines (half of each): 4 lines are 32 of k.
///
/// # Safety
/// `at` points to half a line, and the others follow 64 bytes apart.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack_nibbles(at: *const u8, lines: usize, w: &mut [__m256i]) {
    let low = _mm256_set1_epi8(15);
    for i in 0..lines {
        // SAFETY: as promised.
        let line = unsafe { half_line(at.add(64 * i)) };
        w[2 * i] = _mm256_and_si256(line, low);
        w[2 * i + 1] = _mm256_and_si256(_mm256_srli_epi16::<4>(line), low);
    }
}

/// Adds the fifth bits of 32 of k.
///
/// # Safety
/// `at` points to half a line.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn add_fifth_bits(at: *const u8, w: &mut Unpacked) {
    // SAFETY: as promised.
    let bits = unsafe { half_line(at) };
    let fifth = _mm256_set1_epi8(16);
    let mut add = |g: usize, moved: __m256i| w[g] = _mm256_or_si256(w[g], _mm256_and_si256(moved, fifth));
    add(0, _mm256_slli_epi16::<4>(bits));
    add(1, _mm256_slli_epi16::<3>(bits));
    add(2, _mm256_slli_epi16::<2>(bits));
    add(3, _mm256_slli_epi16::<1>(bits));
    add(4, bits);
    add(5, _mm256_srli_epi16::<1>(bits));
    add(6, _mm256_srli_epi16::<2>(bits));
    add(7, _mm256_srli_epi16::<3>(bits));
}

/// Asks for memory that the tile stream reaches soon. Beyond the weight's end it asks for nothing.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn prefetch(at: *const u8) {
    _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD).cast());
}

/// How far ahead of a tile stream to prefetch. 8 KiB was best on a Zen 5 server (against 4 and 16).
const AHEAD: usize = 8 << 10;
