//! The parts of the canonical order that every level shares: constants, and the last steps of each sum.

use super::layout::{FLOAT_BLOCK, ROWS};

/// Largest magnitude of a quantised activation.
pub(super) const Q_MAX: f32 = 127.0;

/// A block of activations whose largest magnitude is below this is taken as zeros. 127 / 2^-119 is still finite.
pub(super) const TINY: f32 = f32::from_bits((127 - 119) << 23);

/// The bits of infinity; a magnitude's bits at or above them are infinity or NaN.
pub(super) const INFINITE: u32 = 0x7f80_0000;

/// What is done with a block of activations, given the bits of its largest magnitude (as an integer, so that NaN counts as
/// the largest of all).
pub(super) enum Scale {
    /// The numbers are 0 and so is the scale.
    Zero,
    /// The numbers are 0 and the scale is NaN, so that it shows in every output.
    NotFinite,
    /// Numbers are multiplied by `inverse` and rounded to even.
    By { inverse: f32, scale: f32 },
}

impl Scale {
    #[inline]
    pub fn of(largest_bits: u32) -> Self {
        let largest = f32::from_bits(largest_bits);
        if largest_bits >= INFINITE {
            Self::NotFinite
        } else if largest < TINY {
            Self::Zero
        } else {
            Self::By { inverse: Q_MAX / largest, scale: largest / Q_MAX }
        }
    }
}

/// Two sums in one word, the first one lower.
#[inline]
pub(super) fn pair(first: i32, second: i32) -> i32 {
    first & 0xffff | second << 16
}

/// The halves of a word that [`pair`] made.
#[inline]
pub(super) fn unpair(word: i32) -> (i32, i32) {
    (i32::from(word as i16), word >> 16)
}

/// Folds sixteen lanes: i and i + 8, then 4, 2 and 1 apart.
#[inline]
pub(super) fn fold(mut lanes: [f32; ROWS]) -> f32 {
    for apart in [8, 4, 2, 1] {
        for i in 0..apart {
            lanes[i] += lanes[i + apart];
        }
    }
    lanes[0]
}

/// Puts up to 32 numbers into the order of float tiles: odd ones first. What is missing stays as it is in `to`: zeros.
#[inline]
pub(super) fn odd_first(from: &[f32], to: &mut [f32]) {
    if let (Ok(from), Ok(to)) = (<&[f32; FLOAT_BLOCK]>::try_from(from), <&mut [f32; FLOAT_BLOCK]>::try_from(&mut *to)) {
        for l in 0..FLOAT_BLOCK / 2 {
            to[l] = from[2 * l + 1];
            to[FLOAT_BLOCK / 2 + l] = from[2 * l];
        }
        return;
    }
    for (k, &value) in from.iter().enumerate() {
        to[if k % 2 == 1 { k / 2 } else { FLOAT_BLOCK / 2 + k / 2 }] = value;
    }
}
