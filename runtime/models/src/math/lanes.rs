//! Sixteen floats at a time: the width that every kernel's order of operations is written for.
//!
//! Sixteen is one AVX-512 register, two of AVX2, four of NEON. A reduction adds lane i and i + 8, then 4, 2, 1 apart, so
//! a wide register folds onto a narrow one and the bits stay the same.

use crate::compute::Level;

/// Lanes of a [`Lanes`] value.
pub(crate) const LANES: usize = 16;

/// Sixteen floats that begin at a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [f32; LANES]);

impl Line {
    /// Sixteen zeros.
    pub(crate) const ZERO: Self = Self([0.0; LANES]);
}

/// Arithmetic on one float or on many side by side, each operation with one IEEE rounding.
pub(crate) trait Real: Copy {
    /// `x` in every lane.
    fn splat(x: f32) -> Self;
    /// self + other.
    fn add(self, other: Self) -> Self;
    /// self - other.
    fn sub(self, other: Self) -> Self;
    /// self * other.
    fn mul(self, other: Self) -> Self;
    /// self / other.
    fn div(self, other: Self) -> Self;
    /// self * b + c, rounded once.
    fn fma(self, b: Self, c: Self) -> Self;
    /// self if it is greater, else other: other for NaN on either side, and for zeros of two signs.
    fn max(self, other: Self) -> Self;
    /// self if it is less, else other.
    fn min(self, other: Self) -> Self;
    /// Without its sign.
    fn abs(self) -> Self;
    /// With the sign bit of `other`; self must not be negative.
    fn with_sign_of(self, other: Self) -> Self;
    /// `yes` where a < b, else `no`.
    fn where_less(a: Self, b: Self, yes: Self, no: Self) -> Self;
    /// self * 2^n, for `shifted` = n + 1.5 * 2^23 and |n| < 200. In two steps, so that denormal results round once.
    fn times_power_of_two(self, shifted: Self) -> Self;
}

/// Sixteen floats.
pub(crate) trait Lanes: Real {
    /// From memory, aligned or not.
    fn load(from: &[f32; LANES]) -> Self;
    /// From 16-bit floats, exactly.
    fn load_f16(from: &[u16; LANES]) -> Self;
    /// To memory.
    fn store(self, to: &mut [f32; LANES]);
    /// The sum: lanes 8 apart, then 4, 2, 1.
    fn sum(self) -> f32;
    /// The greatest, by [`Real::max`] in the same tree.
    fn greatest(self) -> f32;
}

/// A computation that is compiled once for each level. Its `run`, and all it calls per value, must be `inline(always)`.
pub(crate) trait Kernel {
    /// What it gives.
    type Out;
    /// Runs it on this width.
    fn run<V: Lanes>(self) -> Self::Out;
}

/// Runs a kernel at a level. A level that this processor lacks runs as portable code: slower, the same bits.
#[inline]
pub(crate) fn dispatch<K: Kernel>(level: Level, kernel: K) -> K::Out {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => super::avx2::run(kernel),
        _ => kernel.run::<Portable>(),
    }
}

impl Real for f32 {
    #[inline(always)]
    fn splat(x: f32) -> Self {
        x
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self + other
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self - other
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self * other
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self / other
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        self.mul_add(b, c)
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        if self > other { self } else { other }
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        if self < other { self } else { other }
    }
    #[inline(always)]
    fn abs(self) -> Self {
        self.abs()
    }
    #[inline(always)]
    fn with_sign_of(self, other: Self) -> Self {
        f32::from_bits(self.to_bits() | (other.to_bits() & 0x8000_0000))
    }
    #[inline(always)]
    fn where_less(a: Self, b: Self, yes: Self, no: Self) -> Self {
        if a < b { yes } else { no }
    }
    #[inline(always)]
    fn times_power_of_two(self, shifted: Self) -> Self {
        let n = (shifted.to_bits() as i32).wrapping_sub(super::ROUNDER.to_bits() as i32);
        let half = n >> 1;
        let power = |n: i32| f32::from_bits((n.wrapping_add(127) << 23) as u32);
        self * power(half) * power(n.wrapping_sub(half))
    }
}

/// Sixteen floats in plain code, which compilers turn into whatever the target has.
///
/// On x86-64 this is the level for old processors and for tests, and a fused multiply-add is a call. So the operations
/// are calls too: inlined into every kernel they made this crate take minutes to compile.
#[derive(Clone, Copy)]
pub(crate) struct Portable([f32; LANES]);

impl Portable {
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }

    /// Lanes 8 apart, then 4, 2, 1.
    #[inline(always)]
    fn fold(self, f: impl Fn(f32, f32) -> f32) -> f32 {
        let mut lanes = self.0;
        for apart in [8, 4, 2, 1] {
            for i in 0..apart {
                lanes[i] = f(lanes[i], lanes[i + apart]);
            }
        }
        lanes[0]
    }
}

impl Real for Portable {
    #[inline(always)]
    fn splat(x: f32) -> Self {
        Self([x; LANES])
    }
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    #[cfg_attr(not(target_arch = "x86_64"), inline(always))]
    fn add(self, other: Self) -> Self {
        self.zip(other, Real::add)
    }
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    #[cfg_attr(not(target_arch = "x86_64"), inline(always))]
    fn sub(self, other: Self) -> Self {
        self.zip(other, Real::sub)
    }
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    #[cfg_attr(not(target_arch = "x86_64"), inline(always))]
    fn mul(self, other: Self) -> Self {
        self.zip(other, Real::mul)
    }
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    #[cfg_attr(not(target_arch = "x86_64"), inline(always))]
    fn div(self, other: Self) -> Self {
        self.zip(other, Real::div)
    }
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    #[cfg_attr(not(target_arch = "x86_64"), inline(always))]
    fn fma(self, b: Self, c: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i].mul_add(b.0[i], c.0[i])))
    }
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    #[cfg_attr(not(target_arch = "x86_64"), inline(always))]
    fn max(self, other: Self) -> Self {
        self.zip(other, Real::max)
    }
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    #[cfg_attr(not(target_arch = "x86_64"), inline(always))]
    fn min(self, other: Self) -> Self {
        self.zip(other, Real::min)
    }
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    #[cfg_attr(not(target_arch = "x86_64"), inline(always))]
    fn abs(self) -> Self {
        Self(self.0.map(f32::abs))
    }
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    #[cfg_attr(not(target_arch = "x86_64"), inline(always))]
    fn with_sign_of(self, other: Self) -> Self {
        self.zip(other, Real::with_sign_of)
    }
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    #[cfg_attr(not(target_arch = "x86_64"), inline(always))]
    fn where_less(a: Self, b: Self, yes: Self, no: Self) -> Self {
        Self(std::array::from_fn(|i| f32::where_less(a.0[i], b.0[i], yes.0[i], no.0[i])))
    }
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    #[cfg_attr(not(target_arch = "x86_64"), inline(always))]
    fn times_power_of_two(self, shifted: Self) -> Self {
        self.zip(shifted, Real::times_power_of_two)
    }
}

impl Lanes for Portable {
    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Self {
        Self(*from)
    }
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    #[cfg_attr(not(target_arch = "x86_64"), inline(always))]
    fn load_f16(from: &[u16; LANES]) -> Self {
        Self(from.map(|bits| half::f16::from_bits(bits).to_f32()))
    }
    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        *to = self.0;
    }
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    #[cfg_attr(not(target_arch = "x86_64"), inline(always))]
    fn sum(self) -> f32 {
        self.fold(Real::add)
    }
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    #[cfg_attr(not(target_arch = "x86_64"), inline(always))]
    fn greatest(self) -> f32 {
        self.fold(Real::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every operation of [`Lanes`] on one pair of lines, as bits.
    struct All<'a>(&'a [f32; LANES], &'a [f32; LANES]);

    impl Kernel for All<'_> {
        type Out = Vec<u32>;
        #[inline(always)]
        fn run<V: Lanes>(self) -> Vec<u32> {
            let (a, b) = (V::load(self.0), V::load(self.1));
            let halves = self.0.map(|x| half::f16::from_f32(x).to_bits());
            let results = [
                a.add(b),
                a.sub(b),
                a.mul(b),
                a.div(b),
                a.fma(b, a),
                a.max(b),
                a.min(b),
                a.abs().with_sign_of(b),
                V::where_less(a, b, a, b),
                V::load_f16(&halves),
            ];
            let mut bits = vec![a.sum().to_bits(), a.greatest().to_bits()];
            for result in results {
                let mut line = [0.0; LANES];
                result.store(&mut line);
                bits.extend(line.iter().map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() }));
            }
            bits
        }
    }

    #[test]
    fn levels_agree_on_every_operation() {
        let special = [0.0, -0.0, 1.0, -1.5, 1e-42, -3e-45, f32::MAX, f32::MIN_POSITIVE, 1e-7, 65504.0, 70000.0, 3.0e-8];
        for shift in 0..special.len() {
            for stride in 1..5 {
                let a: [f32; LANES] = std::array::from_fn(|i| special[(i * stride + shift) % special.len()]);
                let b: [f32; LANES] = std::array::from_fn(|i| special[(i * 5 + 3 * shift) % special.len()]);
                assert_eq!(dispatch(Level::Portable, All(&a, &b)), dispatch(Level::Avx2, All(&a, &b)), "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn max_keeps_the_second_operand_when_in_doubt() {
        let a = [f32::NAN; LANES];
        let mut b = [2.0; LANES];
        b[3] = -0.0;
        let mut c = b;
        c[3] = 0.0;
        for (x, y) in [(a, b), (b, a), (b, c), (c, b)] {
            assert_eq!(dispatch(Level::Portable, All(&x, &y))[2..], dispatch(Level::Avx2, All(&x, &y))[2..]);
        }
    }
}
