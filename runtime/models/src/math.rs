//! Elementary functions in the canonical order (N2): the same bits on every instruction set, batch and thread count.
//!
//! A formula is written once, over [`Real`], and instantiated for one scalar, for sixteen plain floats and for two AVX2
//! registers. Each of its operations is an IEEE one with a single rounding (a fused multiply-add included), so all
//! instances agree bit for bit; only the payload of a NaN is not promised. The platform's `expf` and `tanhf` are not
//! used: they differ between systems and cannot be vectorised. Polynomials are those of Moshier's Cephes library.

mod lanes;

#[cfg(target_arch = "x86_64")]
mod avx2;

pub(crate) use lanes::{Kernel, LANES, Lanes, Line, Real, dispatch};

use crate::compute::Level;

/// e^x, within 1.1 units in the last place. 0 below -104, infinite above 88.73, denormal results included.
#[inline(always)]
#[must_use]
pub(crate) fn exp_of<R: Real>(x: R) -> R {
    // Either comparison is false for NaN, which then passes through. The bounds keep n in an i32's reach.
    let x = R::splat(-104.0).max(x);
    let x = R::splat(89.0).min(x);
    // n = round(x / ln 2), to even: adding 1.5 * 2^23 leaves n in the low bits of the sum.
    let shifted = x.fma(R::splat(std::f32::consts::LOG2_E), R::splat(ROUNDER));
    let n = shifted.sub(R::splat(ROUNDER));
    // r = x - n ln 2 with ln 2 in two parts: the first has few enough bits that n times it is exact.
    let r = n.fma(R::splat(-0.693_359_4), x);
    let r = n.fma(R::splat(2.121_944_4e-4), r);
    let mut p = R::splat(1.987_569_1e-4);
    for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = p.fma(r, R::splat(c));
    }
    let p = p.fma(r.mul(r), r).add(R::splat(1.0));
    p.times_power_of_two(shifted)
}

/// x / (1 + e^-x).
#[inline(always)]
#[must_use]
pub(crate) fn silu_of<R: Real>(x: R) -> R {
    x.div(R::splat(1.0).add(exp_of(R::splat(0.0).sub(x))))
}

/// Hyperbolic tangent, within 2 units in the last place.
#[inline(always)]
#[must_use]
pub(crate) fn tanh_of<R: Real>(x: R) -> R {
    let size = x.abs();
    // Near zero an odd polynomial, because 1 - 2/(e^2x + 1) cancels there.
    let z = size.mul(size);
    let mut p = R::splat(-5.704_988_7e-3);
    for c in [2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1] {
        p = p.fma(z, R::splat(c));
    }
    let small = p.mul(z).fma(size, size);
    let two = R::splat(2.0);
    let large = R::splat(1.0).sub(two.div(exp_of(size.mul(two)).add(R::splat(1.0))));
    R::where_less(size, R::splat(0.625), small, large).with_sign_of(x)
}

/// e^x, within 1.1 units in the last place.
#[must_use]
pub fn exp(x: f32) -> f32 {
    exp_of(x)
}

/// x / (1 + e^-x): the activation of llama and its kin.
#[must_use]
pub fn silu(x: f32) -> f32 {
    silu_of(x)
}

/// Hyperbolic tangent, within 2 units in the last place.
#[must_use]
pub fn tanh(x: f32) -> f32 {
    tanh_of(x)
}

/// Replaces each value by e to its power.
pub fn exp_all(level: Level, values: &mut [f32]) {
    dispatch(level, Each { values, of: Function::Exp });
}

/// Replaces each value by its silu.
pub fn silu_all(level: Level, values: &mut [f32]) {
    dispatch(level, Each { values, of: Function::Silu });
}

/// Replaces each value by its hyperbolic tangent.
pub fn tanh_all(level: Level, values: &mut [f32]) {
    dispatch(level, Each { values, of: Function::Tanh });
}

/// 1.5 * 2^23: a float of this size has units of 1, so adding it rounds to an integer.
const ROUNDER: f32 = 12_582_912.0;

/// One function over a slice.
struct Each<'a> {
    values: &'a mut [f32],
    of: Function,
}

#[derive(Clone, Copy)]
enum Function {
    Exp,
    Silu,
    Tanh,
}

impl Kernel for Each<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        // Sixteen at a time; the last few travel in a padded line. No closure: it would not be inlined for sure.
        let (lines, tail) = self.values.as_chunks_mut::<LANES>();
        for line in lines {
            self.of.apply::<V>(line);
        }
        if !tail.is_empty() {
            let mut line = [0.0; LANES];
            line[..tail.len()].copy_from_slice(tail);
            self.of.apply::<V>(&mut line);
            tail.copy_from_slice(&line[..tail.len()]);
        }
    }
}

impl Function {
    #[inline(always)]
    fn apply<V: Lanes>(self, line: &mut [f32; LANES]) {
        let x = V::load(line);
        match self {
            Self::Exp => exp_of(x),
            Self::Silu => silu_of(x),
            Self::Tanh => tanh_of(x),
        }
        .store(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Floats that cover every exponent, both signs, and the special values.
    fn probes() -> Vec<f32> {
        let mut all: Vec<f32> = (0..=u32::MAX >> 12).map(|i| f32::from_bits(i << 12 | 0x5a5)).collect();
        all.extend([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE, 1e-45, 88.73, 88.72, -87.4, -103.9, -104.1]);
        all.extend((0..200_000_u32).map(|i| (i as f32 - 100_000.0) * 0.001_037));
        all
    }

    /// Distance in units of the last place of the true value.
    fn ulps(got: f32, want: f64) -> f64 {
        let exponent = want.abs().max(f64::from(f32::MIN_POSITIVE)).log2().floor() as i32;
        (f64::from(got) - want).abs() / 2_f64.powi(exponent - 23)
    }

    #[test]
    fn functions_are_accurate() {
        let mut worst = [0.0_f64; 3];
        for x in probes().into_iter().filter(|x| x.is_finite()) {
            let wide = f64::from(x);
            let truth = [wide.exp(), wide / (1.0 + (-wide).exp()), wide.tanh()];
            for (index, (got, want)) in [exp(x), silu(x), tanh(x)].into_iter().zip(truth).enumerate() {
                if want > f64::from(f32::MAX) {
                    assert_eq!(got, f32::INFINITY, "function {index} of {x}");
                } else if index != 1 || x > -87.0 {
                    worst[index] = worst[index].max(ulps(got, want));
                } else {
                    // Below -88.7 silu's divisor is infinite: 0 instead of about -1e-37.
                    assert!((f64::from(got) - want).abs() < 2e-36, "silu of {x}: {got}");
                }
            }
        }
        assert!(worst[0] < 1.1 && worst[1] < 3.0 && worst[2] < 2.0, "{worst:?}");
    }

    #[test]
    fn special_values() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-1e30), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan() && tanh(f32::NAN).is_nan() && silu(f32::NAN).is_nan());
        assert_eq!((tanh(f32::INFINITY), tanh(f32::NEG_INFINITY)), (1.0, -1.0));
        assert_eq!(tanh(-0.0).to_bits(), (-0.0_f32).to_bits());
    }

    #[test]
    fn every_level_and_the_scalar_give_the_same_bits() {
        let probes = probes();
        let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        type Pair = (fn(Level, &mut [f32]), fn(f32) -> f32);
        let functions: [Pair; 3] = [(exp_all, exp), (silu_all, silu), (tanh_all, tanh)];
        for (of_all, of_one) in functions {
            let mut portable = probes.clone();
            of_all(Level::Portable, &mut portable);
            let mut vector = probes.clone();
            of_all(Level::Avx2, &mut vector);
            for ((x, a), b) in probes.iter().zip(&portable).zip(&vector) {
                assert!(same(*a, *b) && same(*a, of_one(*x)), "{x}: {a} {b}");
            }
        }
    }

    #[test]
    fn short_slices_have_no_neighbours() {
        for len in 0..40 {
            let mut values: Vec<f32> = (0..len).map(|i| i as f32 * 0.3 - 4.0).collect();
            let want: Vec<f32> = values.iter().map(|&x| exp(x)).collect();
            exp_all(Level::Avx2, &mut values);
            assert_eq!(values, want);
        }
    }
}
