//! Sixteen floats in two AVX2 registers.
#![expect(unsafe_code, reason = "vector intrinsics; `run` is the only way in and asks the processor first")]

use std::arch::x86_64::*;
use std::mem::transmute;

use super::lanes::{Kernel, LANES, Lanes, Portable, Real};

/// Runs a kernel on AVX2 registers if this processor has them, else as portable code.
#[inline]
pub(super) fn run<K: Kernel>(kernel: K) -> K::Out {
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
        // SAFETY: the processor has each feature that `on_registers` is compiled for.
        unsafe { on_registers(kernel) }
    } else {
        kernel.run::<Portable>()
    }
}

/// The kernel, inlined into code that may use the registers.
#[target_feature(enable = "avx2,fma,f16c")]
fn on_registers<K: Kernel>(kernel: K) -> K::Out {
    kernel.run::<Avx2>()
}

/// Lanes 0..8 and 8..16. The type is private to this file: values of it exist only in what `on_registers` runs, so its
/// methods may rely on the features that `run` found. That is the SAFETY of each block below.
#[derive(Clone, Copy)]
struct Avx2(__m256, __m256);

/// Two calls of an intrinsic, one for each half.
macro_rules! halves {
    ($operation:ident($($of:expr),*)) => {
        // SAFETY: see `Avx2`.
        Avx2(unsafe { $operation($($of.0),*) }, unsafe { $operation($($of.1),*) })
    };
}

impl Real for Avx2 {
    #[inline(always)]
    fn splat(x: f32) -> Self {
        // SAFETY: see `Avx2`.
        let all = unsafe { _mm256_set1_ps(x) };
        Self(all, all)
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        halves!(_mm256_add_ps(self, other))
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        halves!(_mm256_sub_ps(self, other))
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        halves!(_mm256_mul_ps(self, other))
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        halves!(_mm256_div_ps(self, other))
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        halves!(_mm256_fmadd_ps(self, b, c))
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        halves!(_mm256_max_ps(self, other))
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        halves!(_mm256_min_ps(self, other))
    }
    #[inline(always)]
    fn abs(self) -> Self {
        halves!(_mm256_andnot_ps(Self::splat(-0.0), self))
    }
    #[inline(always)]
    fn with_sign_of(self, other: Self) -> Self {
        let sign = halves!(_mm256_and_ps(Self::splat(-0.0), other));
        halves!(_mm256_or_ps(self, sign))
    }
    #[inline(always)]
    fn where_less(a: Self, b: Self, yes: Self, no: Self) -> Self {
        // SAFETY: see `Avx2`.
        let less = Self(unsafe { _mm256_cmp_ps::<_CMP_LT_OQ>(a.0, b.0) }, unsafe { _mm256_cmp_ps::<_CMP_LT_OQ>(a.1, b.1) });
        halves!(_mm256_blendv_ps(no, yes, less))
    }
    #[inline(always)]
    fn times_power_of_two(self, shifted: Self) -> Self {
        Self(times_power_of_two(self.0, shifted.0), times_power_of_two(self.1, shifted.1))
    }
}

impl Lanes for Avx2 {
    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Self {
        // SAFETY: any bits are floats. Not `_mm256_loadu_ps`, which checks its pointer in builds with assertions.
        let [low, high] = unsafe { transmute::<[f32; LANES], [__m256; 2]>(*from) };
        Self(low, high)
    }
    #[inline(always)]
    fn load_f16(from: &[u16; LANES]) -> Self {
        // SAFETY: any bits are integers.
        let [low, high] = unsafe { transmute::<[u16; LANES], [__m128i; 2]>(*from) };
        // SAFETY: see `Avx2`.
        Self(unsafe { _mm256_cvtph_ps(low) }, unsafe { _mm256_cvtph_ps(high) })
    }
    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        // SAFETY: any bits are floats.
        *to = unsafe { transmute::<[__m256; 2], [f32; LANES]>([self.0, self.1]) };
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: see `Avx2`.
        unsafe {
            let eight = _mm256_add_ps(self.0, self.1);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
    #[inline(always)]
    fn greatest(self) -> f32 {
        // SAFETY: see `Avx2`.
        unsafe {
            let eight = _mm256_max_ps(self.0, self.1);
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
}

/// x * 2^n by two factors whose exponents are the halves of n.
#[inline(always)]
fn times_power_of_two(x: __m256, shifted: __m256) -> __m256 {
    // SAFETY: see `Avx2`.
    unsafe {
        let n = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(super::ROUNDER.to_bits() as i32));
        let half = _mm256_srai_epi32::<1>(n);
        let bias = _mm256_set1_epi32(127);
        let low = _mm256_slli_epi32::<23>(_mm256_add_epi32(half, bias));
        let high = _mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_sub_epi32(n, half), bias));
        _mm256_mul_ps(_mm256_mul_ps(x, _mm256_castsi256_ps(low)), _mm256_castsi256_ps(high))
    }
}
