//! Attention of one layer, and sampling: what a step pays besides the matrix products.
//!
//! Attention has the shape of a small llama: 9 query heads on 3 kv heads of 64. Prefill of 512 is 0.3 GFLOP a layer;
//! decode at position 512 reads 0.8 MB of cache a layer.

use std::hint::black_box;

use candle_core::{Device, Tensor};
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use mesh_core::generation::Sampling;
use mesh_core::model::Layers;
use mesh_core::plan::KvType;
use mesh_core::ports::SampleHow;
use mesh_models::attend::{Attention, Span, attend};
use mesh_models::compute::Compute;
use mesh_models::kv::KvCache;
use mesh_models::sampler::choose;

const HEADS: usize = 9;
const KV_HEADS: usize = 3;
const DIM: usize = 64;

fn noise(rows: usize, heads: usize) -> Tensor {
    let values: Vec<f32> = (0..rows * heads * DIM).map(|i| ((i * 7919 % 1009) as f32 - 504.0) / 252.0).collect();
    Tensor::from_vec(values, (rows, heads, DIM), &Device::Cpu).expect("a tensor of noise")
}

fn cache(kind: KvType) -> KvCache {
    KvCache::new(Layers::new(0, 1), KV_HEADS, DIM, kind)
}

fn pass(cx: &Compute, cache: &mut KvCache, inputs: &[Tensor; 3], count: u32) -> Tensor {
    let span = Span { first: cache.positions(), count };
    let [q, k, v] = inputs;
    attend(cx, q, k, v, &mut [cache], 0, &[span], &Attention::full(0.125)).expect("attention")
}

fn inputs(rows: usize) -> [Tensor; 3] {
    [noise(rows, HEADS), noise(rows, KV_HEADS), noise(rows, KV_HEADS)]
}

fn attention(c: &mut Criterion) {
    for threads in [1, 2] {
        let cx = Compute::cpu(threads);
        for (kind, name) in [(KvType::F32, "f32"), (KvType::F16, "f16")] {
            let prompt = inputs(512);
            c.bench_function(&format!("prefill 512, {name}, {threads} threads"), |b| {
                b.iter_batched_ref(|| cache(kind), |cache| pass(&cx, cache, &prompt, 512), BatchSize::LargeInput);
            });
            let mut filled = cache(kind);
            pass(&cx, &mut filled, &prompt, 512);
            let one = inputs(1);
            c.bench_function(&format!("decode at 512, {name}, {threads} threads"), |b| {
                b.iter(|| {
                    filled.truncate(512);
                    pass(&cx, &mut filled, &one, 1)
                });
            });
        }
    }
}

fn sampling(c: &mut Criterion) {
    let logits: Vec<f32> = (0..151_936_u64).map(|i| (i * 2_654_435_761 % 1_000_003) as f32 / 50_000.0 - 10.0).collect();
    let warm = Sampling { temperature: 0.8, ..Sampling::default() };
    let ways = [
        ("greedy", Sampling::default()),
        ("temperature", warm.clone()),
        ("top-k 40, top-p 0.9", Sampling { top_k: 40, top_p: 0.9, ..warm.clone() }),
        ("top-p 0.9", Sampling { top_p: 0.9, ..warm.clone() }),
        ("logprobs", Sampling { logprobs: Some(5), ..Sampling::default() }),
        ("penalties", Sampling { repetition_penalty: 1.1, frequency_penalty: 0.1, ..Sampling::default() }),
    ];
    for (name, sampling) in ways {
        let how = SampleHow { sampling: &sampling, ids: &[1, 2, 3], prompt_len: 1 };
        c.bench_function(&format!("sample of 152k: {name}"), |b| b.iter(|| choose(black_box(&logits), &how, 9)));
    }
}

criterion_group!(benches, attention, sampling);
criterion_main!(benches);
