//! A model cut anywhere into two or three stages gives the bits and tokens of one in one piece (P2), tied heads included.

use mesh_core::generation::Sampling;
use mesh_models::compute::Compute;
use mesh_models::model_files::Origin;

use crate::chain::{Chain, Part, bits, origin};

/// Every way to cut `layers` layers into two or three stages.
fn all_cuts(layers: u16) -> Vec<Vec<u16>> {
    let two = (1..layers).map(|cut| vec![cut]);
    let three = (1..layers).flat_map(|first| (first + 1..layers).map(move |second| vec![first, second]));
    two.chain(three).collect()
}

/// Prompts of several lengths over a vocabulary.
pub fn prompts(vocabulary: u32) -> Vec<Vec<u32>> {
    let prompt = |seed: u32, len: u32| (0..len).map(|i| (seed + i * i * 31 + i * 7) % vocabulary).collect();
    vec![prompt(3, 1), prompt(17, 23), prompt(40, 45)]
}

/// Greedy, and drawn with everything on.
pub fn samplings() -> [Sampling; 2] {
    let drawn = Sampling {
        temperature: 0.9,
        top_p: 0.95,
        top_k: 200,
        repetition_penalty: 1.1,
        frequency_penalty: 0.2,
        seed: 0x5eed,
        ..Sampling::default()
    };
    [Sampling::default(), drawn]
}

fn check(origin: &Origin) {
    let mut whole = Chain::whole(origin);
    let prompts = prompts(whole.sheet.vocabulary);
    let outcome = |chain: &mut Chain| -> Vec<(Vec<u32>, Vec<Vec<u32>>)> {
        let of_prompt = |chain: &mut Chain, prompt: &[u32]| {
            chain.open(1);
            let hidden = chain.hidden(&[Part { stream: 1, first: 0, ids: prompt }]);
            chain.close(1);
            let logits = chain.logits_of(&hidden).concat();
            let tokens = samplings().iter().map(|sampling| chain.generate(prompt, 8, sampling)).collect();
            (bits(&[hidden, logits].concat()), tokens)
        };
        prompts.iter().map(|prompt| of_prompt(chain, prompt)).collect()
    };
    let want = outcome(&mut whole);
    for cuts in all_cuts(whole.sheet.layer_count()) {
        let mut chain = Chain::load(origin, &cuts, || Compute::cpu(1));
        assert!(outcome(&mut chain) == want, "{} cut at {cuts:?}", whole.sheet.name);
    }
}

#[test]
fn every_cut_of_the_built_in_model_gives_the_same_bits() {
    check(&Origin::Builtin);
}

#[test]
fn every_cut_of_the_fixtures_gives_the_same_bits() {
    for name in [
        "llama",
        "qwen3",
        "gguf_llama/model-Q4_K_M.gguf",
        "gguf_qwen3/model-Q4_K_M.gguf",
        "gguf_qwen3/model-Q8_0.gguf",
        "gguf_llama/model-F16.gguf",
    ] {
        check(&origin(name));
    }
}
