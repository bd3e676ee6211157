//! A position's numbers do not depend on the batch, the chunks, the threads, or the CPU level (P2, N2).

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock};

use mesh_core::plan::KvType;
use mesh_models::compute::{Compute, Level};
use mesh_models::model_files::Origin;
use proptest::prelude::*;

use crate::chain::{Chain, Part, bits, origin};

/// Models of every kind of product: bf16, f16, 8-bit, K-quants; both architectures, tied and not.
const MODELS: [&str; 6] = ["", "llama", "qwen3", "gguf_llama/model-F16.gguf", "gguf_qwen3/model-Q8_0.gguf", "gguf_llama/model-Q4_K_M.gguf"];

fn model(name: &str) -> Origin {
    if name.is_empty() { Origin::Builtin } else { origin(name) }
}

/// A stream's ids: a function of its number and length.
fn ids_of(stream: u32, len: usize, vocabulary: u32) -> Vec<u32> {
    (0..len as u32).map(|i| (stream * 101 + i * i * 13 + i * 5) % vocabulary).collect()
}

/// Bits of all hidden states and last logits of a stream alone, in one piece, one thread, portable.
fn alone(kv: KvType, name: &'static str, stream: u32, len: usize) -> Vec<u32> {
    type Seen = BTreeMap<(KvType, &'static str, u32, usize), Vec<u32>>;
    static SEEN: OnceLock<Mutex<Seen>> = OnceLock::new();
    let seen = SEEN.get_or_init(Mutex::default);
    if let Some(bits) = seen.lock().unwrap().get(&(kv, name, stream, len)) {
        return bits.clone();
    }
    let mut chain = Chain::with_kv(kv, &model(name), &[], || Compute::with_level(1, Level::Portable));
    let ids = ids_of(stream, len, chain.sheet.vocabulary);
    chain.open(1);
    let hidden = chain.hidden(&[Part { stream: 1, first: 0, ids: &ids }]);
    let logits = chain.logits_of(&hidden).concat();
    let bits = bits(&[hidden, logits].concat());
    seen.lock().unwrap().insert((kv, name, stream, len), bits.clone());
    bits
}

/// Runs streams of these lengths together; `draws` decides who has how many positions in each step.
fn together(chain: &mut Chain, lens: &[usize], mut draws: impl Iterator<Item = u32>) -> Vec<Vec<u32>> {
    let vocabulary = chain.sheet.vocabulary;
    let width = chain.sheet.hidden_width as usize;
    let ids: Vec<Vec<u32>> = lens.iter().enumerate().map(|(stream, &len)| ids_of(stream as u32, len, vocabulary)).collect();
    let mut hidden: Vec<Vec<f32>> = vec![Vec::new(); lens.len()];
    for stream in 0..lens.len() {
        chain.open(stream as u128);
    }
    while hidden.iter().zip(lens).any(|(hidden, len)| hidden.len() < len * width) {
        let mut parts = Vec::new();
        for (stream, ids) in ids.iter().enumerate() {
            let done = hidden[stream].len() / width;
            let left = ids.len() - done;
            // Nothing, one position (as in decode), or a chunk.
            let count = match draws.next().unwrap() {
                draw if draw % 4 == 0 => 0,
                draw if draw % 4 == 1 => left.min(1),
                draw => left.min(1 + (draw / 4) as usize % 40),
            };
            if count > 0 {
                parts.push(Part { stream: stream as u128, first: done as u32, ids: &ids[done..done + count] });
            }
        }
        if parts.is_empty() {
            continue;
        }
        let states = chain.hidden(&parts);
        let mut rest = states.as_slice();
        for part in &parts {
            let (own, after) = rest.split_at(part.ids.len() * width);
            hidden[part.stream as usize].extend_from_slice(own);
            rest = after;
        }
    }
    let of_stream = |hidden: &Vec<f32>| bits(&[hidden.clone(), chain.logits_of(hidden).concat()].concat());
    hidden.iter().map(of_stream).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(18))]
    #[test]
    fn chunks_batches_threads_and_levels_do_not_show(
        model_index in 0..MODELS.len(),
        lens in proptest::collection::vec(1_usize..90, 1..5),
        threads in 1_usize..4,
        fast in any::<bool>(),
        half in any::<bool>(),
        seed in any::<u32>(),
    ) {
        let name = MODELS[model_index];
        let level = if fast { *Level::usable().last().unwrap() } else { Level::Portable };
        let kv = if half { KvType::F16 } else { KvType::F32 };
        let mut chain = Chain::with_kv(kv, &model(name), &[1], || Compute::with_level(threads, level));
        let mut state = seed | 1;
        let draws = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state >> 8
        });
        let got = together(&mut chain, &lens, draws);
        for (stream, (len, got)) in lens.iter().zip(got).enumerate() {
            prop_assert!(got == alone(kv, name, stream as u32, *len), "{name:?}, {kv:?}: stream {stream} of {lens:?} differs");
        }
    }
}
