//! Against a plain f64 softmax, and the bits against every way to run the same sequence.

use mesh_core::model::Layers;
use mesh_core::plan::KvType;
use proptest::prelude::*;

use super::*;
use crate::compute::Level;

const LAYER: u16 = 5;

/// One stream's queries, keys and values.
#[derive(Clone, Debug)]
struct Sequence {
    heads: usize,
    kv_heads: usize,
    dim: usize,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Sequence {
    fn new(positions: usize, heads: usize, kv_heads: usize, dim: usize, seed: u64) -> Self {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        let mut noise = |len: usize| (0..len).map(|_| next() * 2.0).collect();
        let (wide, narrow) = (positions * heads * dim, positions * kv_heads * dim);
        Self { heads, kv_heads, dim, q: noise(wide), k: noise(narrow), v: noise(narrow) }
    }

    fn positions(&self) -> usize {
        self.q.len() / (self.heads * self.dim)
    }

    fn cache(&self, kind: KvType) -> KvCache {
        KvCache::new(Layers::new(LAYER, LAYER + 1), self.kv_heads, self.dim, kind)
    }

    /// Positions `from..to` of (positions, heads, dim).
    fn cut(values: &[f32], width: usize, from: usize, to: usize) -> &[f32] {
        &values[from * width..to * width]
    }
}

fn attention(sequence: &Sequence, window: Option<u32>, sinks: bool) -> Attention {
    let sinks = sinks.then(|| (0..sequence.heads).map(|head| head as f32 * 0.7 - 1.0).collect());
    Attention { scale: 1.0 / (sequence.dim as f32).sqrt(), window, sinks }
}

/// Steps: for each, how many positions each stream goes on by. Gives each stream's outputs as bits.
fn run(cx: &Compute, streams: &[&Sequence], caches: &mut [KvCache], steps: &[Vec<usize>], how: &Attention) -> Vec<Vec<u32>> {
    let mut outs = vec![Vec::new(); streams.len()];
    for step in steps {
        let mut spans = Vec::new();
        let (mut q, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
        for ((stream, cache), &count) in streams.iter().zip(caches.iter()).zip(step) {
            let first = cache.positions() as usize;
            let (wide, narrow) = (stream.heads * stream.dim, stream.kv_heads * stream.dim);
            q.extend_from_slice(Sequence::cut(&stream.q, wide, first, first + count));
            k.extend_from_slice(Sequence::cut(&stream.k, narrow, first, first + count));
            v.extend_from_slice(Sequence::cut(&stream.v, narrow, first, first + count));
            spans.push(Span { first: first as u32, count: count as u32 });
        }
        let Sequence { heads, kv_heads, dim, .. } = *streams[0];
        let rows = step.iter().sum::<usize>();
        let q = tensor(q, (rows, heads, dim)).unwrap();
        let k = tensor(k, (rows, kv_heads, dim)).unwrap();
        let v = tensor(v, (rows, kv_heads, dim)).unwrap();
        let mut borrowed: Vec<&mut KvCache> = caches.iter_mut().collect();
        let out = attend(cx, &q, &k, &v, &mut borrowed, LAYER, &spans, how).unwrap();
        let mut values = out.flatten_all().unwrap().to_vec1::<f32>().unwrap().into_iter();
        for (out, &count) in outs.iter_mut().zip(step) {
            out.extend(values.by_ref().take(count * heads * dim).map(f32::to_bits));
        }
    }
    outs
}

/// The whole sequence, alone, in one step, by one thread, in portable code.
fn reference_bits(sequence: &Sequence, kind: KvType, how: &Attention) -> Vec<u32> {
    let mut caches = [sequence.cache(kind)];
    let cx = Compute::with_level(1, Level::Portable);
    run(&cx, &[sequence], &mut caches, &[vec![sequence.positions()]], how).remove(0)
}

/// Softmax attention as the textbook writes it.
fn textbook(s: &Sequence, how: &Attention) -> Vec<f64> {
    let group = s.heads / s.kv_heads;
    let mut out = Vec::new();
    for i in 0..s.positions() {
        for head in 0..s.heads {
            let first = how.window.map_or(0, |w| (i + 1).saturating_sub(w as usize));
            let query = &s.q[(i * s.heads + head) * s.dim..][..s.dim];
            let of = |values: &[f32], j: usize, d: usize| f64::from(values[(j * s.kv_heads + head / group) * s.dim + d]);
            let scores: Vec<f64> =
                (first..=i).map(|j| (0..s.dim).map(|d| f64::from(query[d]) * of(&s.k, j, d)).sum::<f64>() * f64::from(how.scale)).collect();
            let sink = how.sinks.as_ref().map(|sinks| f64::from(sinks[head]));
            let greatest = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = scores.iter().chain(sink.iter()).map(|score| (score - greatest).exp()).sum();
            out.extend(
                (0..s.dim)
                    .map(|d| scores.iter().zip(first..).map(|(score, j)| (score - greatest).exp() / total * of(&s.v, j, d)).sum::<f64>()),
            );
        }
    }
    out
}

#[test]
fn it_is_softmax_attention() {
    for (heads, kv_heads, dim) in [(3, 1, 16), (4, 4, 24), (6, 2, 64), (8, 1, 5), (2, 1, 128)] {
        for (window, sinks) in [(None, false), (Some(1), false), (Some(50), true), (Some(130), false), (None, true)] {
            let sequence = Sequence::new(200, heads, kv_heads, dim, 1);
            let how = attention(&sequence, window, sinks);
            let want = textbook(&sequence, &how);
            let got = reference_bits(&sequence, KvType::F32, &how);
            assert_eq!(got.len(), want.len());
            for (got, want) in got.iter().zip(&want) {
                assert!((f64::from(f32::from_bits(*got)) - want).abs() < 4e-6, "{how:?} {dim}: {} {want}", f32::from_bits(*got));
            }
        }
    }
}

#[test]
fn sixteen_bit_caches_round_keys_and_values_only() {
    let mut sequence = Sequence::new(150, 4, 2, 24, 3);
    let how = attention(&sequence, None, false);
    let half = reference_bits(&sequence, KvType::F16, &how);
    let round = |values: &mut Vec<f32>| values.iter_mut().for_each(|x| *x = half::f16::from_f32(*x).to_f32());
    assert_ne!(half, reference_bits(&sequence, KvType::F32, &how));
    round(&mut sequence.k);
    round(&mut sequence.v);
    assert_eq!(half, reference_bits(&sequence, KvType::F32, &how));
}

#[test]
fn the_way_through_candle_agrees() {
    let sequence = Sequence::new(90, 6, 2, 16, 4);
    for (window, sinks) in [(None, false), (Some(20), true)] {
        let how = attention(&sequence, window, sinks);
        let want = reference_bits(&sequence, KvType::F32, &how);
        let first = 30;
        let q = tensor(sequence.q[first * 96..].to_vec(), (60, 6, 16)).unwrap();
        let keys = tensor(sequence.k.clone(), (90, 2, 16)).unwrap();
        let values = tensor(sequence.v.clone(), (90, 2, 16)).unwrap();
        let got = device::attend_span_for_tests(&q, &keys, &values, first as u32, &how).unwrap();
        let got = got.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert!(got.iter().zip(&want[first * 96..]).all(|(a, b)| (a - f32::from_bits(*b)).abs() < 4e-6));
    }
}

#[test]
fn decode_over_many_blocks_is_shared_out_and_folded_in_order() {
    let sequence = Sequence::new(700, 4, 1, 64, 5);
    // A step from 600 on, or its window of 300, is worth the threads.
    const { assert!(2 * 4 * 64 * 300 * 2 > tiles::PRODUCTS_OF_THREADS) };
    for window in [None, Some(300)] {
        let how = attention(&sequence, window, true);
        let want = reference_bits(&sequence, KvType::F32, &how);
        for threads in [2, 3, 4] {
            let mut caches = [sequence.cache(KvType::F32)];
            let steps: Vec<Vec<usize>> = [vec![vec![620]], vec![vec![1]; 80]].concat();
            let got = run(&Compute::with_level(threads, Level::Avx2), &[&sequence], &mut caches, &steps, &how);
            assert_eq!(got[0], want);
        }
    }
}

#[test]
fn infinities_of_unseen_positions_do_not_leak() {
    // Values behind a position in the same block, or that were cut off, may be anything.
    let mut sequence = Sequence::new(100, 2, 1, 16, 6);
    let how = attention(&sequence, Some(40), false);
    let want = reference_bits(&sequence, KvType::F32, &how);
    let at = 80 * 16;
    sequence.v[at..at + 16].fill(f32::INFINITY);
    sequence.k[at..at + 16].fill(f32::NAN);
    let mut caches = [sequence.cache(KvType::F32)];
    let got = run(&Compute::with_level(2, Level::Avx2), &[&sequence], &mut caches, &[vec![100]], &how);
    assert_eq!(got[0][..80 * 32], want[..80 * 32]);
    assert!(got[0][80 * 32..].iter().any(|bits| f32::from_bits(*bits).is_nan()));
    // Cut them off, put finite ones in their place: no trace is left.
    let clean = Sequence::new(100, 2, 1, 16, 6);
    caches[0].truncate(75);
    let got = run(&Compute::with_level(1, Level::Avx2), &[&clean], &mut caches, &[vec![25]], &how);
    assert_eq!(got[0], want[75 * 32..]);
}

#[test]
fn contradictions_are_errors_and_leave_the_caches_alone() {
    let cx = Compute::with_level(1, Level::Portable);
    let zeros = |dims: (usize, usize, usize)| tensor(vec![0.0; dims.0 * dims.1 * dims.2], dims).unwrap();
    let mut cache = KvCache::new(Layers::new(0, 1), 2, 8, KvType::F32);
    let how = Attention::full(1.0);
    let ok = Span { first: 0, count: 3 };
    let mut tried = |q, k, v, layer, spans: &[Span], how: &Attention| {
        let failed = attend(&cx, &zeros(q), &zeros(k), &zeros(v), &mut [&mut cache], layer, spans, how).is_err();
        failed && cache.positions() == 0 && cache.bytes() == 0
    };
    let (q, k) = ((3, 4, 8), (3, 2, 8));
    assert!(tried((3, 5, 8), k, k, 0, &[ok], &how));
    assert!(tried(q, k, (3, 2, 7), 0, &[ok], &how));
    assert!(tried(q, (2, 2, 8), (2, 2, 8), 0, &[ok], &how));
    assert!(tried((3, 4, 4), (3, 2, 4), (3, 2, 4), 0, &[ok], &how));
    assert!(tried(q, k, k, 1, &[ok], &how));
    assert!(tried(q, k, k, 0, &[Span { first: 1, count: 3 }], &how));
    assert!(tried(q, k, k, 0, &[Span { first: 0, count: 2 }], &how));
    assert!(tried(q, k, k, 0, &[ok, ok], &how));
    assert!(tried(q, k, k, 0, &[ok], &Attention { window: Some(0), ..how.clone() }));
    assert!(tried(q, k, k, 0, &[ok], &Attention { sinks: Some(vec![0.0; 3]), ..how.clone() }));
    assert!(!tried(q, k, k, 0, &[ok], &how));
}

#[derive(Clone, Debug)]
struct Case {
    shape: (usize, usize, usize),
    kind: KvType,
    how: (Option<u32>, bool),
    /// For each step, how many positions each of three streams goes on by.
    steps: Vec<[usize; 3]>,
    cut: usize,
}

fn cases() -> impl Strategy<Value = Case> {
    let shape = prop_oneof![Just((3, 1, 16)), Just((9, 3, 24)), Just((4, 4, 32)), Just((14, 2, 10)), Just((5, 1, 64)), Just((7, 1, 80))];
    let kind = prop_oneof![Just(KvType::F32), Just(KvType::F16)];
    let how = (proptest::option::of(1_u32..200), any::<bool>());
    let step = prop_oneof![[0_usize..60, 0..4, 0..20], [0_usize..2, 0..2, 0..2], [1_usize..150, 0..1, 0..90]];
    (shape, kind, how, proptest::collection::vec(step, 1..6), 0_usize..400).prop_map(|(shape, kind, how, steps, cut)| Case {
        shape,
        kind,
        how,
        steps,
        cut,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn a_position_has_its_bits_however_it_is_run(case in cases()) {
        let (heads, kv_heads, dim) = case.shape;
        let totals: Vec<usize> = (0..3).map(|i| case.steps.iter().map(|step| step[i]).sum()).collect();
        let streams: Vec<Sequence> =
            totals.iter().zip(1..).map(|(&total, seed)| Sequence::new(total, heads, kv_heads, dim, seed)).collect();
        let how = attention(&streams[0], case.how.0, case.how.1);
        let want: Vec<Vec<u32>> = streams.iter().map(|stream| reference_bits(stream, case.kind, &how)).collect();
        let borrowed: Vec<&Sequence> = streams.iter().collect();
        let steps: Vec<Vec<usize>> = case.steps.iter().map(|step| step.to_vec()).collect();
        for (threads, level) in [(1, Level::Avx2), (2, Level::Avx2), (3, Level::Avx2), (2, Level::Portable)] {
            let cx = Compute::with_level(threads, level);
            let mut caches: Vec<KvCache> = streams.iter().map(|stream| stream.cache(case.kind)).collect();
            prop_assert_eq!(&run(&cx, &borrowed, &mut caches, &steps, &how), &want);
            // Cut the first stream, carry it to a new cache, and go on from there.
            let cut = case.cut.min(totals[0]);
            caches[0].truncate(cut as u32);
            let mut carried = [streams[0].cache(case.kind)];
            carried[0].import(LAYER, 0, &caches[0].export(LAYER, 0, cut as u32).unwrap()).unwrap();
            for cache in [&mut caches[..1], &mut carried[..]] {
                let again = run(&cx, &borrowed[..1], cache, &[vec![totals[0] - cut]], &how);
                prop_assert_eq!(&again[0][..], &want[0][cut * heads * dim..]);
            }
        }
    }
}
