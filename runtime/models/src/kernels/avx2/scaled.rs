//! Q4_K, Q5_K and Q6_K: blocks of 256 whose sub-blocks have scales.

use std::arch::x86_64::*;

use super::super::activations::{CHUNK, Chunk, PIECE};
use super::super::layout::{LINE, Layout, ROWS};
use super::nibbles::PREFETCH_COLUMNS;
use super::{add_fifth_bits, dot, half_line, prefetch, singles, unpack_nibbles};

/// Sums of a block in the making, one half of a tile, for every column of a chunk.
type Sums = [__m256i; CHUNK];

/// One tile of Q4_K, or with `FIFTH` of Q5_K, times a chunk; `ONE` if that is a single column.
///
/// # Safety
/// All lengths are those of the layout.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn tile_k<const FIFTH: bool, const ONE: bool>(layout: &Layout, tile: &[u8], x: &Chunk<'_>, acc: &mut [[f32; ROWS]]) {
    let n = if ONE { 1 } else { x.n };
    let lines_each = if FIFTH { 5 } else { 4 };
    let mut sums: Sums = [_mm256_setzero_si256(); CHUNK];
    acc.fill([0.0; ROWS]);
    for b in 0..layout.blocks {
        let place = layout.place(b);
        // SAFETY: the layout's places are in the tile.
        let (head, lines) = unsafe { (tile.as_ptr().add(place.scales), tile.as_ptr().add(place.lines)) };
        if n <= PREFETCH_COLUMNS {
            for i in 0..4 + 8 * lines_each {
                prefetch(lines.wrapping_add(i * LINE));
            }
        }
        for half in 0..2 {
            // SAFETY: a block is 16 d, 16 dmin, three lines of scales and the sub-blocks' lines.
            let (d, dmin, words, lines) = unsafe {
                let word = |i: usize| half_line(lines.add(i * LINE + 32 * half));
                let words = [word(0), word(1), word(2)];
                (singles(head.add(16 * half)), singles(head.add(32 + 16 * half)), words, lines.add(3 * LINE + 32 * half))
            };
            let (scales, mins) = pairs(words);
            let mut one = _mm256_setzero_si256();
            for j in 0..8 {
                let scale = twice(scales[j / 2], j % 2);
                let mut w = [_mm256_setzero_si256(); 8];
                // SAFETY: sub-block j of eight.
                unsafe {
                    let lines = lines.add(j * lines_each * LINE);
                    unpack_nibbles(lines, 4, &mut w);
                    if FIFTH {
                        add_fifth_bits(lines.add(4 * LINE), &mut w);
                    }
                }
                for c in 0..n {
                    // SAFETY: piece 8b + j of this column.
                    let s = unsafe {
                        let q = x.q.as_ptr().add(((8 * b + j) * n + c) * PIECE);
                        if FIFTH { dot::<4>(&w, q, scale) } else { dot::<8>(&w, q, scale) }
                    };
                    if ONE {
                        one = _mm256_add_epi32(one, s);
                    } else {
                        // SAFETY: c < n, at most CHUNK.
                        let sum = unsafe { sums.get_unchecked_mut(c) };
                        *sum = if j == 0 { s } else { _mm256_add_epi32(*sum, s) };
                    }
                }
            }
            for c in 0..n {
                let at = b * n + c;
                // SAFETY: a scale and four words of sums for every block and column; c is at most CHUNK.
                let (dx, words, s) =
                    unsafe { (*x.scale.get_unchecked(at), x.sum.as_ptr().add(4 * at), if ONE { one } else { *sums.get_unchecked(c) }) };
                let mut m = _mm256_setzero_si256();
                for (j, &mins) in mins.iter().enumerate() {
                    // SAFETY: word j of four.
                    let pair = _mm256_set1_epi32(unsafe { *words.add(j) });
                    m = _mm256_add_epi32(m, _mm256_madd_epi16(mins, pair));
                }
                let minimum = _mm256_mul_ps(dmin, _mm256_cvtepi32_ps(m));
                let t = _mm256_fmsub_ps(d, _mm256_cvtepi32_ps(s), minimum);
                // SAFETY: c < n = acc.len(), and a half is eight of its sixteen.
                unsafe {
                    let acc = acc.as_mut_ptr().add(c).cast::<f32>().add(8 * half);
                    _mm256_storeu_ps(acc, _mm256_fmadd_ps(_mm256_set1_ps(dx), t, _mm256_loadu_ps(acc)));
                }
            }
        }
    }
}

/// Four pairs of scales and four of minima, each number in 16 bits. The reverse of `layout::pack_scales`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn pairs([a, b, c]: [__m256i; 3]) -> ([__m256i; 4], [__m256i; 4]) {
    let six = _mm256_set1_epi16(63);
    let first = |word| _mm256_and_si256(word, six);
    let second = |word| _mm256_and_si256(_mm256_srli_epi16::<6>(word), six);
    let upper = |bits| _mm256_and_si256(bits, _mm256_set1_epi16(0x30));
    let p = _mm256_or_si256(_mm256_srli_epi16::<12>(a), upper(_mm256_srli_epi16::<8>(c)));
    let q = _mm256_or_si256(_mm256_srli_epi16::<12>(b), upper(_mm256_srli_epi16::<10>(c)));
    ([first(a), second(a), first(b), second(b)], [first(c), second(c), p, q])
}

/// The lower (0) or upper (1) 16 bits of each word, in both.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn twice(pair: __m256i, which: usize) -> __m256i {
    if which == 0 {
        _mm256_or_si256(_mm256_slli_epi32::<16>(pair), _mm256_and_si256(pair, _mm256_set1_epi32(0xffff)))
    } else {
        _mm256_or_si256(_mm256_srli_epi32::<16>(pair), _mm256_and_si256(pair, _mm256_set1_epi32(-0x1_0000)))
    }
}

/// One tile of Q6_K times a chunk; `ONE` if that is a single column.
///
/// # Safety
/// All lengths are those of the layout, whose format is Q6_K.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn tile_6<const ONE: bool>(layout: &Layout, tile: &[u8], x: &Chunk<'_>, acc: &mut [[f32; ROWS]]) {
    let n = if ONE { 1 } else { x.n };
    let mut sums: Sums = [_mm256_setzero_si256(); CHUNK];
    acc.fill([0.0; ROWS]);
    for b in 0..layout.blocks {
        let place = layout.place(b);
        // SAFETY: the layout's places are in the tile.
        let (head, lines) = unsafe { (tile.as_ptr().add(place.scales), tile.as_ptr().add(place.lines)) };
        if n <= PREFETCH_COLUMNS {
            for i in 0..53 {
                prefetch(lines.wrapping_add(i * LINE));
            }
        }
        for half in 0..2 {
            // SAFETY: four lines of scales, then three lines for each of the 16 sub-blocks.
            let (d, scales, lines) = unsafe {
                let word = |i: usize| half_line(lines.add(i * LINE + 32 * half));
                (singles(head.add(16 * half)), [word(0), word(1), word(2), word(3)], lines.add(4 * LINE + 32 * half))
            };
            let mut one = _mm256_setzero_si256();
            for j in 0..8 {
                let (first, second) = (spread(scales[j / 2], 2 * (j % 2)), spread(scales[j / 2], 2 * (j % 2) + 1));
                let mut w = [_mm256_setzero_si256(); 8];
                // SAFETY: sub-blocks 2j and 2j + 1 of sixteen.
                unsafe {
                    unpack_sixteen(lines.add(6 * j * LINE), &mut w[..4]);
                    unpack_sixteen(lines.add((6 * j + 3) * LINE), &mut w[4..]);
                }
                for c in 0..n {
                    // SAFETY: piece 8b + j of this column.
                    let s = unsafe {
                        let q = x.q.as_ptr().add(((8 * b + j) * n + c) * PIECE);
                        _mm256_add_epi32(dot::<2>(&w[..4], q, first), dot::<2>(&w[4..], q.add(16), second))
                    };
                    if ONE {
                        one = _mm256_add_epi32(one, s);
                    } else {
                        // SAFETY: c < n, at most CHUNK.
                        let sum = unsafe { sums.get_unchecked_mut(c) };
                        *sum = if j == 0 { s } else { _mm256_add_epi32(*sum, s) };
                    }
                }
            }
            for c in 0..n {
                let at = b * n + c;
                // SAFETY: a scale and eight words of sums for every block and column; c is at most CHUNK.
                let (dx, words, s) =
                    unsafe { (*x.scale.get_unchecked(at), x.sum.as_ptr().add(8 * at), if ONE { one } else { *sums.get_unchecked(c) }) };
                let mut offset = _mm256_setzero_si256();
                for (i, &four) in scales.iter().enumerate() {
                    // Of four bytes, the even ones and the odd ones, as 16 bits with a sign.
                    let even = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(four));
                    let odd = _mm256_srai_epi16::<8>(four);
                    // SAFETY: words 2i and 2i + 1 of eight.
                    let (even_sums, odd_sums) = unsafe { (_mm256_set1_epi32(*words.add(2 * i)), _mm256_set1_epi32(*words.add(2 * i + 1))) };
                    offset = _mm256_add_epi32(offset, _mm256_madd_epi16(even, even_sums));
                    offset = _mm256_add_epi32(offset, _mm256_madd_epi16(odd, odd_sums));
                }
                let s = _mm256_cvtepi32_ps(_mm256_sub_epi32(s, _mm256_slli_epi32::<5>(offset)));
                // SAFETY: c < n = acc.len(), and a half is eight of its sixteen.
                unsafe {
                    let acc = acc.as_mut_ptr().add(c).cast::<f32>().add(8 * half);
                    _mm256_storeu_ps(acc, _mm256_fmadd_ps(_mm256_mul_ps(_mm256_set1_ps(dx), d), s, _mm256_loadu_ps(acc)));
                }
            }
        }
    }
}

/// Byte `which` of each word, with its sign, as 16 bits in both halves.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn spread(words: __m256i, which: usize) -> __m256i {
    // The byte goes to the upper half of each 16 bits; a negative index gives zero.
    let mask = _mm256_set1_epi32(which as i32 * 0x0100_0100 + 0x0080_0080);
    let lane = _mm256_setr_epi32(0, 0x0400_0400, 0x0800_0800, 0x0c00_0c00, 0, 0x0400_0400, 0x0800_0800, 0x0c00_0c00);
    _mm256_srai_epi16::<8>(_mm256_shuffle_epi8(words, _mm256_add_epi32(mask, lane)))
}

/// Sixteen of k with six bits each.
///
/// # Safety
/// `at` points to half of a sub-block's first line of three.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack_sixteen(at: *const u8, w: &mut [__m256i]) {
    // SAFETY: two nibble lines and a line of upper bits.
    let bits = unsafe {
        unpack_nibbles(at, 2, w);
        half_line(at.add(2 * LINE))
    };
    let upper = _mm256_set1_epi8(0x30);
    let mut add = |g: usize, moved: __m256i| w[g] = _mm256_or_si256(w[g], _mm256_and_si256(moved, upper));
    add(0, _mm256_slli_epi16::<4>(bits));
    add(1, _mm256_slli_epi16::<2>(bits));
    add(2, bits);
    add(3, _mm256_srli_epi16::<2>(bits));
}
