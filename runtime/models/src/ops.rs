//! The small operations between the matrix products. On the CPU in canonical order (N2); elsewhere candle's own.

use candle_core::{Result, Tensor};

use crate::compute::Compute;
use crate::math::{Kernel, LANES, Lanes, dispatch, silu_of};
use crate::values::{share_rows, tensor, with_values};

/// x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich 2019).
///
/// Order: sixteen lanes by index modulo 16, each a chain of fused multiply-adds in order of index, zeros at the tail;
/// lanes added 8, 4, 2, 1 apart; divided by the count; eps added; 1 / sqrt of it; then (x * that) * weight.
///
/// # Errors
/// A weight whose length is not that of the last dimension, or tensors that are not f32 on the device of `cx`.
pub fn rms_norm(cx: &Compute, x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
    let width = last_dim(x)?;
    if weight.elem_count() != width || width == 0 {
        candle_core::bail!("the norm has {} weights for {width} values", weight.elem_count());
    }
    if !cx.device().is_cpu() {
        return candle_nn::ops::rms_norm(&x.contiguous()?, weight, eps);
    }
    let out = with_values(x, |x| {
        with_values(weight, |weight| {
            let mut out = vec![0.0; x.len()];
            share_rows(cx, &mut out, width, &|first, out| {
                let x = &x[first * width..][..out.len()];
                dispatch(cx.level(), RmsNorm { x, weight, eps, out });
            });
            Ok(out)
        })
    })?;
    tensor(out, x.shape())
}

/// silu(gate) * up, value by value.
///
/// # Errors
/// Two shapes, or tensors that are not f32 on the device of `cx`.
pub fn silu_mul(cx: &Compute, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    if !cx.device().is_cpu() {
        return candle_nn::ops::silu(gate)?.mul(up);
    }
    pairwise(cx, gate, up, Pairwise::SiluMul)
}

/// a + b, value by value, of one shape.
///
/// # Errors
/// Two shapes, or tensors that are not f32 on the device of `cx`.
pub fn add(cx: &Compute, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if !cx.device().is_cpu() {
        return a.add(b);
    }
    pairwise(cx, a, b, Pairwise::Add)
}

#[derive(Clone, Copy)]
enum Pairwise {
    SiluMul,
    Add,
}

fn pairwise(cx: &Compute, a: &Tensor, b: &Tensor, of: Pairwise) -> Result<Tensor> {
    if a.dims() != b.dims() {
        candle_core::bail!("shapes differ: {:?} and {:?}", a.dims(), b.dims());
    }
    let out = with_values(a, |a| {
        with_values(b, |b| {
            let mut out = vec![0.0; a.len()];
            share_rows(cx, &mut out, 1, &|first, out| {
                let (a, b) = (&a[first..][..out.len()], &b[first..][..out.len()]);
                dispatch(cx.level(), Pairs { a, b, of, out });
            });
            Ok(out)
        })
    })?;
    tensor(out, a.shape())
}

fn last_dim(x: &Tensor) -> Result<usize> {
    x.dim(candle_core::D::Minus1)
}

/// Rows of `weight.len()` values.
struct RmsNorm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for RmsNorm<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let width = self.weight.len();
        for (x, out) in self.x.chunks_exact(width).zip(self.out.chunks_exact_mut(width)) {
            let mut squares = V::splat(0.0);
            let (lines, tail) = x.as_chunks::<LANES>();
            for line in lines {
                let line = V::load(line);
                squares = line.fma(line, squares);
            }
            if !tail.is_empty() {
                let mut line = [0.0; LANES];
                line[..tail.len()].copy_from_slice(tail);
                let line = V::load(&line);
                squares = line.fma(line, squares);
            }
            let inverse = 1.0 / (squares.sum() / width as f32 + self.eps).sqrt();
            for ((out, x), weight) in out.iter_mut().zip(x).zip(self.weight) {
                *out = x * inverse * weight;
            }
        }
    }
}

/// Two slices into one.
struct Pairs<'a> {
    a: &'a [f32],
    b: &'a [f32],
    of: Pairwise,
    out: &'a mut [f32],
}

impl Kernel for Pairs<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        // Sixteen at a time; the last few travel in padded lines. No closure: it would not be inlined for sure.
        let (a_lines, a_tail) = self.a.as_chunks::<LANES>();
        let (b_lines, b_tail) = self.b.as_chunks::<LANES>();
        let (out_lines, out_tail) = self.out.as_chunks_mut::<LANES>();
        for ((a, b), out) in a_lines.iter().zip(b_lines).zip(out_lines) {
            self.of.apply::<V>(a, b, out);
        }
        if !out_tail.is_empty() {
            let (mut a, mut b, mut line) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
            a[..a_tail.len()].copy_from_slice(a_tail);
            b[..b_tail.len()].copy_from_slice(b_tail);
            self.of.apply::<V>(&a, &b, &mut line);
            let len = out_tail.len();
            out_tail.copy_from_slice(&line[..len]);
        }
    }
}

impl Pairwise {
    #[inline(always)]
    fn apply<V: Lanes>(self, a: &[f32; LANES], b: &[f32; LANES], out: &mut [f32; LANES]) {
        let (a, b) = (V::load(a), V::load(b));
        match self {
            Self::SiluMul => silu_of(a).mul(b),
            Self::Add => a.add(b),
        }
        .store(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::Level;
    use proptest::prelude::*;

    fn noise(len: usize, seed: u32) -> Vec<f32> {
        let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..len).map(|_| next() * 3.0).collect()
    }

    fn bits(tensor: &Tensor) -> Vec<u32> {
        with_values(tensor, |x| Ok(x.iter().map(|x| x.to_bits()).collect())).unwrap()
    }

    /// The three operations on (rows, width), as bits.
    fn all(cx: &Compute, rows: usize, width: usize) -> [Vec<u32>; 3] {
        let x = tensor(noise(rows * width, 1), (rows, width)).unwrap();
        let y = tensor(noise(rows * width, 2), (rows, width)).unwrap();
        let weight = tensor(noise(width, 3), width).unwrap();
        [bits(&rms_norm(cx, &x, &weight, 1e-5).unwrap()), bits(&silu_mul(cx, &x, &y).unwrap()), bits(&add(cx, &x, &y).unwrap())]
    }

    #[test]
    fn norm_is_right() {
        let cx = Compute::with_level(1, Level::Avx2);
        for width in [1, 15, 16, 17, 64, 100] {
            let (x, weight) = (noise(2 * width, 4), noise(width, 5));
            let got = rms_norm(&cx, &tensor(x.clone(), (2, width)).unwrap(), &tensor(weight.clone(), width).unwrap(), 1e-5).unwrap();
            let got = got.to_vec2::<f32>().unwrap();
            for (row, got) in x.chunks(width).zip(&got) {
                let mean = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / width as f64;
                for ((x, w), got) in row.iter().zip(&weight).zip(got) {
                    let want = f64::from(*x) / (mean + 1e-5).sqrt() * f64::from(*w);
                    assert!((f64::from(*got) - want).abs() <= 1e-6 * want.abs().max(1e-3), "{got} {want}");
                }
            }
        }
    }

    #[test]
    fn wrong_shapes_are_errors() {
        let cx = Compute::with_level(1, Level::Portable);
        let x = tensor(noise(12, 1), (2, 6)).unwrap();
        assert!(rms_norm(&cx, &x, &tensor(noise(5, 1), 5).unwrap(), 1e-5).is_err());
        assert!(silu_mul(&cx, &x, &x.t().unwrap()).is_err());
        assert!(add(&cx, &x, &x.to_dtype(candle_core::DType::F64).unwrap()).is_err());
    }

    #[test]
    fn strided_and_shifted_views_are_read_in_order() {
        let cx = Compute::with_level(1, Level::Avx2);
        let x = tensor(noise(60, 1), (6, 10)).unwrap();
        let view = x.t().unwrap().narrow(0, 3, 4).unwrap();
        let copy = view.contiguous().unwrap();
        assert_eq!(bits(&silu_mul(&cx, &view, &view).unwrap()), bits(&silu_mul(&cx, &copy, &copy).unwrap()));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn levels_threads_and_batches_do_not_show(rows in 1_usize..90, width in 1_usize..700) {
            let one = all(&Compute::with_level(1, Level::Portable), rows, width);
            for threads in 1..4 {
                prop_assert_eq!(&all(&Compute::with_level(threads, Level::Avx2), rows, width), &one);
            }
            let alone = all(&Compute::with_level(1, Level::Avx2), 1, width);
            prop_assert_eq!(&one[0][..width], &alone[0][..]);
        }
    }
}
