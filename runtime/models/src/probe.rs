//! The numerics class of this machine (N1): a hash of the bits that its kernels give for a fixed probe.
//!
//! Two nodes of one class give the same bits for the same model, plan and ids. That is measured, not assumed: a new
//! instruction set, compiler or device that rounds anything differently shows here as another class, and no promise of
//! equal bits is made across classes. Covered: each storage format of matrices at 1 and 7 rows, attention with both
//! cache types, norm, activation, rotary embedding and the sampler; with one and with all threads; with ordinary numbers,
//! large ones and denormals. NaNs count as one value, since their payload is no result.

use candle_core::{Result, Tensor};
use mesh_core::generation::Sampling;
use mesh_core::model::Layers;
use mesh_core::plan::KvType;
use mesh_core::ports::SampleHow;

use crate::attend::{Attention, Span, attend};
use crate::compute::Compute;
use crate::format::Format;
use crate::kv::KvCache;
use crate::linear::Linear;
use crate::math;
use crate::ops::{add, rms_norm, silu_mul};
use crate::rope::{Pairing, Rope, RopeShape, Scaling};
use crate::sampler::choose;

/// Changes whenever the probe or a canonical order changes, so that releases that differ are two classes.
const EDITION: u64 = 1;

/// Formats in the order probed.
const FORMATS: [Format; 11] = [
    Format::F32,
    Format::F16,
    Format::BF16,
    Format::Q4_0,
    Format::Q4_1,
    Format::Q5_0,
    Format::Q5_1,
    Format::Q8_0,
    Format::Q4_K,
    Format::Q5_K,
    Format::Q6_K,
];

/// The class of `cx`: its device, level and threads. Some ten milliseconds.
#[must_use]
pub fn numerics_class(cx: &Compute) -> u64 {
    let alone = Compute::with_level(1, cx.level());
    let mut hash = Hash::new();
    // Within one machine threads must not show. Were they to, one thread and all would hash to a class of its own.
    let computes: &[&Compute] = if cx.device().is_cpu() { &[&alone, cx] } else { &[cx] };
    for cx in computes {
        let done = linears(cx, &mut hash).and_then(|()| attention(cx, &mut hash)).and_then(|()| small_parts(cx, &mut hash));
        if let Err(error) = done {
            // A device that cannot do a part is in a class with those that fail alike.
            tracing::warn!(%error, "the numerics probe could not run to its end");
            hash.word(u32::MAX);
        }
    }
    sampler(&mut hash);
    hash.finish()
}

/// Each format, 40 rows of 512, at 1 and 7 activation rows.
fn linears(cx: &Compute, hash: &mut Hash) -> Result<()> {
    let (rows, cols) = (40, 512);
    for (index, format) in FORMATS.into_iter().enumerate() {
        let Some(len) = format.bytes_of(rows, cols) else { continue };
        let weights = weights(format, len as usize, index as u32);
        let Ok(linear) = Linear::from_file_bytes(cx, format, rows, cols, &weights, None) else {
            hash.word(index as u32);
            continue;
        };
        for count in [1, 7] {
            for scale in SCALES {
                let x = tensor(cx, noise(count * cols, 100 + count as u32, scale), &[count, cols])?;
                hash.tensor(&linear.forward(cx, &x)?)?;
            }
        }
        hash.tensor(&linear.lookup(cx, &[0, 39])?)?;
    }
    Ok(())
}

/// Two streams, one in two steps, with and without window and sinks.
fn attention(cx: &Compute, hash: &mut Hash) -> Result<()> {
    let (heads, kv_heads, dim) = (6, 2, 40);
    let rope = Rope::new(&RopeShape {
        dims: 32,
        base: 10_000.0,
        scaling: Scaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 128.0 },
        divisors: None,
        pairing: Pairing::Halves,
        context: 512,
    })
    .map_err(candle_core::Error::wrap)?;
    let full = Attention::full(0.158);
    let narrow = Attention { window: Some(50), sinks: Some(noise(heads, 3, 1.0)), ..full.clone() };
    for (kind, how, scale) in [(KvType::F32, &full, 1.0), (KvType::F16, &narrow, 1.0), (KvType::F32, &narrow, 1e-30)] {
        let cache = || KvCache::on_device(Layers::new(0, 1), kv_heads, dim, kind, cx.device());
        let (mut first, mut second) = (cache(), cache());
        for (from, counts) in [([0, 0], [70, 130]), ([70, 130], [1, 1])] {
            let rows = counts[0] + counts[1];
            let positions: Vec<u32> = (from[0]..from[0] + counts[0]).chain(from[1]..from[1] + counts[1]).collect();
            let make = |heads: usize, seed: u32| tensor(cx, noise(rows as usize * heads * dim, seed, scale), &[rows as usize, heads, dim]);
            let q = rope.apply(cx, &make(heads, 4)?, &positions)?;
            let k = rope.apply(cx, &make(kv_heads, 5)?, &positions)?;
            let v = make(kv_heads, 6)?;
            let spans = [Span { first: from[0], count: counts[0] }, Span { first: from[1], count: counts[1] }];
            hash.tensor(&attend(cx, &q, &k, &v, &mut [&mut first, &mut second], 0, &spans, how)?)?;
        }
    }
    Ok(())
}

/// Norm, activation, sum, and the functions under them over the whole range of floats.
fn small_parts(cx: &Compute, hash: &mut Hash) -> Result<()> {
    let width = 77;
    for scale in SCALES {
        let x = tensor(cx, noise(7 * width, 7, scale), &[7, width])?;
        let y = tensor(cx, noise(7 * width, 8, 1.0), &[7, width])?;
        let weight = tensor(cx, noise(width, 9, 1.0), &[width])?;
        hash.tensor(&rms_norm(cx, &x, &weight, 1e-6)?)?;
        hash.tensor(&silu_mul(cx, &x, &y)?)?;
        hash.tensor(&add(cx, &x, &y)?)?;
    }
    if cx.device().is_cpu() {
        let all: Vec<f32> = (0..=0xffff_u32).step_by(7).map(|high| f32::from_bits(high << 16 | 0x1234)).collect();
        for function in [math::exp_all, math::silu_all, math::tanh_all] {
            let mut values = all.clone();
            function(cx.level(), &mut values);
            values.iter().for_each(|&x| hash.float(x));
        }
    }
    Ok(())
}

/// Draws, ties and log-probabilities.
fn sampler(hash: &mut Hash) {
    let mut logits = noise(3000, 10, 6.0);
    logits[17] = f32::NAN;
    logits[1000] = logits[2000];
    let base = Sampling { temperature: 0.9, seed: 1, logprobs: Some(20), ..Sampling::default() };
    let ways = [
        Sampling::default(),
        Sampling { repetition_penalty: 1.3, presence_penalty: 0.1, frequency_penalty: 0.2, ..base.clone() },
        Sampling { top_k: 40, top_p: 0.9, ..base.clone() },
        Sampling { top_p: 0.95, min_p: 0.05, ..base.clone() },
        base,
    ];
    for sampling in &ways {
        for position in 0..4 {
            let (token, logprobs) = choose(&logits, &SampleHow { sampling, ids: &[1, 2, 3, 2], prompt_len: 1 }, position);
            hash.word(token);
            for logprob in logprobs.iter().flat_map(|all| all.top.iter().map(|&(_, x)| x).chain([all.chosen])) {
                hash.float(logprob);
            }
        }
    }
}

/// Ordinary activations, large ones, and such that products with weights are denormal.
const SCALES: [f32; 3] = [1.0, 1e4, 1e-36];

fn tensor(cx: &Compute, values: Vec<f32>, shape: &[usize]) -> Result<Tensor> {
    Tensor::from_vec(values, shape, cx.device())
}

/// File bytes of a matrix: random, but every scale is a small finite number.
fn weights(format: Format, len: usize, seed: u32) -> Vec<u8> {
    match format {
        Format::F32 => noise(len / 4, seed, 0.1).iter().flat_map(|x| x.to_le_bytes()).collect(),
        Format::F16 => noise(len / 2, seed, 0.1).iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect(),
        Format::BF16 => noise(len / 2, seed, 0.1).iter().flat_map(|&x| half::bf16::from_f32(x).to_le_bytes()).collect(),
        _ => {
            let mut bytes: Vec<u8> = noise(len, seed, 128.0).iter().map(|&x| (x + 128.0) as u8).collect();
            let (block, scales): (usize, &[usize]) = match format {
                Format::Q4_0 => (18, &[0]),
                Format::Q4_1 => (20, &[0, 2]),
                Format::Q5_0 => (22, &[0]),
                Format::Q5_1 => (24, &[0, 2]),
                Format::Q8_0 => (34, &[0]),
                Format::Q4_K => (144, &[0, 2]),
                Format::Q5_K => (176, &[0, 2]),
                _ => (210, &[208]),
            };
            // As 16-bit floats between 2^-11 and 2^-7; every ninth is denormal, as tiny weights' scales are in real files.
            for (index, block) in bytes.chunks_exact_mut(block).enumerate() {
                for &at in scales {
                    let exponent = if index % 9 == 8 { 0 } else { 0x10 + block[at + 1] % 16 };
                    block[at + 1] = exponent | block[at + 1] & 0x80;
                }
            }
            bytes
        }
    }
}

/// Numbers between -scale and scale, the same everywhere: a linear congruence's high bits.
fn noise(len: usize, seed: u32, scale: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_891_336_453).wrapping_add(747_796_405);
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 8) as f32 / (1 << 23) as f32 - 1.0) * scale
        })
        .collect()
}

/// Collects bits.
struct Hash(blake3::Hasher);

impl Hash {
    fn new() -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&EDITION.to_le_bytes());
        Self(hasher)
    }

    fn word(&mut self, word: u32) {
        self.0.update(&word.to_le_bytes());
    }

    fn float(&mut self, x: f32) {
        self.word(if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() });
    }

    fn tensor(&mut self, tensor: &Tensor) -> Result<()> {
        let values = tensor.flatten_all()?.to_vec1::<f32>()?;
        let bytes: Vec<u8> = values.iter().flat_map(|x| if x.is_nan() { f32::NAN.to_le_bytes() } else { x.to_le_bytes() }).collect();
        self.0.update(&bytes);
        Ok(())
    }

    fn finish(&self) -> u64 {
        let mut first = [0; 8];
        first.copy_from_slice(&self.0.finalize().as_bytes()[..8]);
        u64::from_le_bytes(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::Level;

    #[test]
    fn every_level_and_thread_count_is_one_class() {
        let want = numerics_class(&Compute::with_level(1, Level::Portable));
        for level in Level::usable() {
            for threads in 1..4 {
                assert_eq!(numerics_class(&Compute::with_level(threads, level)), want, "{level:?} with {threads} threads");
            }
        }
    }

    #[test]
    fn every_part_is_really_hashed() {
        let cx = Compute::with_level(1, Level::best());
        let probe = |part: &dyn Fn(&mut Hash)| {
            let mut hash = Hash::new();
            part(&mut hash);
            hash.finish()
        };
        let empty = probe(&|_| ());
        let parts: [&dyn Fn(&mut Hash); 4] = [
            &|hash| linears(&cx, hash).unwrap(),
            &|hash| attention(&cx, hash).unwrap(),
            &|hash| small_parts(&cx, hash).unwrap(),
            &|hash| sampler(hash),
        ];
        assert!(parts.iter().all(|part| probe(part) != empty && probe(part) == probe(part)));
        // Not a swamp of NaN or zeros: most results of a product are ordinary numbers.
        for (index, format) in FORMATS.into_iter().enumerate() {
            let bytes = weights(format, format.bytes_of(8, 512).unwrap() as usize, index as u32);
            let linear = Linear::from_file_bytes(&cx, format, 8, 512, &bytes, None).unwrap();
            let x = tensor(&cx, noise(512, 1, 1.0), &[1, 512]).unwrap();
            let out = linear.forward(&cx, &x).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            assert!(out.iter().all(|x| x.is_finite() && *x != 0.0), "{format:?}: {out:?}");
        }
    }
}
