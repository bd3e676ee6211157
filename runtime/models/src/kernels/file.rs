//! What the bytes of a weight file mean: one block of a row, taken apart.
//!
//! The layouts are those of ggml's `ggml-common.h` and `ggml-quants.c`, which is all the specification that they have.
//! Halves and words are little-endian.

use half::f16;

use crate::format::Format;

/// Numbers in the longest block.
pub(super) const BLOCK_MAX: usize = 256;

/// A quantised block in plain parts. A number is `d * scale * (q - offset) - m * min` with the scale and the minimum of
/// its sub-block; formats without sub-blocks have one scale of 1, and their `m` is added: `d * q + m`.
pub(super) struct Block {
    /// Scale of the block, as stored.
    pub d: u16,
    /// Minimum of the block, as stored; 0 where the format has none.
    pub m: u16,
    /// Scales of sub-blocks: 8 of 32 numbers (Q4_K, Q5_K), 16 of 16 (Q6_K).
    pub scales: [i8; 16],
    /// Minima of the 8 sub-blocks of 32 (Q4_K, Q5_K).
    pub mins: [i8; 8],
    /// The numbers as stored, before any offset is taken off. Q8_0 has them with a sign, as an `i8`'s bits.
    pub q: [u8; BLOCK_MAX],
}

impl Block {
    /// Room for a block.
    pub fn new() -> Self {
        Self { d: 0, m: 0, scales: [0; 16], mins: [0; 8], q: [0; BLOCK_MAX] }
    }

    /// Takes a block of a file apart.
    ///
    /// # Panics
    /// If `bytes` is not a block of this format, or the format is one of floats: the caller cut it.
    pub fn read(&mut self, format: Format, bytes: &[u8]) {
        assert_eq!(bytes.len(), format.block_bytes(), "a block of {format}");
        self.d = half_at(bytes, if format == Format::Q6_K { 208 } else { 0 });
        match format {
            Format::F32 | Format::F16 | Format::BF16 => unreachable!("floats have no blocks"),
            Format::Q4_0 => nibbles(&bytes[2..18], &mut self.q),
            Format::Q4_1 => {
                self.m = half_at(bytes, 2);
                nibbles(&bytes[4..20], &mut self.q);
            }
            Format::Q5_0 => {
                nibbles(&bytes[6..22], &mut self.q);
                fifth_bits(word_at(bytes, 2), &mut self.q);
            }
            Format::Q5_1 => {
                self.m = half_at(bytes, 2);
                nibbles(&bytes[8..24], &mut self.q);
                fifth_bits(word_at(bytes, 4), &mut self.q);
            }
            Format::Q8_0 => self.q[..32].copy_from_slice(&bytes[2..34]),
            Format::Q4_K => {
                self.m = half_at(bytes, 2);
                self.six_bit_scales(&bytes[4..16]);
                for (pair, low) in bytes[16..144].chunks_exact(32).enumerate() {
                    for (i, byte) in low.iter().enumerate() {
                        self.q[64 * pair + i] = byte & 15;
                        self.q[64 * pair + 32 + i] = byte >> 4;
                    }
                }
            }
            Format::Q5_K => {
                self.m = half_at(bytes, 2);
                self.six_bit_scales(&bytes[4..16]);
                let high = &bytes[16..48];
                for (pair, low) in bytes[48..176].chunks_exact(32).enumerate() {
                    for (i, byte) in low.iter().enumerate() {
                        self.q[64 * pair + i] = byte & 15 | (high[i] >> (2 * pair) & 1) << 4;
                        self.q[64 * pair + 32 + i] = byte >> 4 | (high[i] >> (2 * pair + 1) & 1) << 4;
                    }
                }
            }
            Format::Q6_K => {
                for half in 0..2 {
                    let (low, high) = (&bytes[64 * half..][..64], &bytes[128 + 32 * half..][..32]);
                    for i in 0..32 {
                        let q = &mut self.q[128 * half..];
                        q[i] = low[i] & 15 | (high[i] & 3) << 4;
                        q[i + 32] = low[i + 32] & 15 | (high[i] >> 2 & 3) << 4;
                        q[i + 64] = low[i] >> 4 | (high[i] >> 4 & 3) << 4;
                        q[i + 96] = low[i + 32] >> 4 | (high[i] >> 6) << 4;
                    }
                }
                for (scale, &byte) in self.scales.iter_mut().zip(&bytes[192..208]) {
                    *scale = byte.cast_signed();
                }
            }
        }
    }

    /// Eight scales and eight minima of 6 bits in 12 bytes.
    fn six_bit_scales(&mut self, bytes: &[u8]) {
        for j in 0..4 {
            let (a, b, c) = (bytes[j], bytes[j + 4], bytes[j + 8]);
            self.scales[j] = (a & 63).cast_signed();
            self.mins[j] = (b & 63).cast_signed();
            self.scales[j + 4] = (c & 15 | a >> 6 << 4).cast_signed();
            self.mins[j + 4] = (c >> 4 | b >> 6 << 4).cast_signed();
        }
    }
}

/// What is taken off a stored number.
pub(super) fn offset(format: Format) -> i32 {
    match format {
        Format::Q4_0 => 8,
        Format::Q5_0 => 16,
        Format::Q6_K => 32,
        _ => 0,
    }
}

/// A half as a single: exact.
pub(super) fn single(half: u16) -> f32 {
    f16::from_bits(half).to_f32()
}

fn half_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn word_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Low nibbles are numbers 0 to 15, high ones 16 to 31.
fn nibbles(bytes: &[u8], q: &mut [u8; BLOCK_MAX]) {
    for (i, byte) in bytes.iter().enumerate() {
        q[i] = byte & 15;
        q[i + 16] = byte >> 4;
    }
}

/// Bit i of the word is the fifth bit of number i.
fn fifth_bits(word: u32, q: &mut [u8; BLOCK_MAX]) {
    for (i, q) in q[..32].iter_mut().enumerate() {
        *q |= ((word >> i & 1) << 4) as u8;
    }
}
