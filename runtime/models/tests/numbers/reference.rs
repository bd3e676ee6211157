//! Against transformers in f32 (`tests/fixtures`, made by its `make_fixtures.py`): logits, every layer, greedy tokens.

use std::fs;

use mesh_core::generation::Sampling;
use mesh_models::compute::Compute;
use mesh_models::model_files::{ModelFiles, Origin};
use mesh_models::sheet::sheet_of;
use serde_json::Value;

use crate::chain::{Chain, Part, apart, bits, cosine, fixture, floats, ids, json, length, origin};

/// Ask of f32 maths on the same weights: the reference's own rounding is about 1e-5 here.
const CLOSE: f32 = 2e-3;

/// All 32 greedy tokens and the logits at both ends of one case.
fn check_case(chain: &mut Chain, case: &Value) {
    let name = case["name"].as_str().unwrap();
    let prompt = ids(&case["ids"]);
    let logits = chain.logits(&prompt);
    let off = apart(logits.last().unwrap(), &floats(&case["logits_last"]));
    assert!(off < CLOSE, "{} {name}: logits are off by {off}", chain.sheet.name);
    let greedy = ids(&case["greedy"]["ids"]);
    assert_eq!(chain.generate(&prompt, greedy.len(), &Sampling::default()), greedy, "{} {name}", chain.sheet.name);
    let all = [prompt.as_slice(), &greedy[..greedy.len() - 1]].concat();
    let off = apart(chain.logits(&all).last().unwrap(), &floats(&case["greedy"]["logits_last_step"]));
    assert!(off < CLOSE, "{} {name}: logits of the last step are off by {off}", chain.sheet.name);
}

/// Every layer's output, by its length over the last and over all positions.
fn check_layers(origin: &Origin, case: &Value) {
    let layers = case["layers"].as_array().unwrap();
    let cuts: Vec<u16> = (1..layers.len() as u16 - 1).collect();
    let mut chain = Chain::load(origin, &cuts, || Compute::cpu(1));
    let prompt = ids(&case["ids"]);
    chain.open(1);
    let states = chain.hidden_after_each(&[Part { stream: 1, first: 0, ids: &prompt }]);
    let width = chain.sheet.hidden_width as usize;
    for (state, want) in states.iter().zip(&layers[1..]) {
        let last = &state[state.len() - width..];
        for (got, want) in [(length(last), &want["l2"]), (length(state), &want["l2_all_positions"])] {
            let want = want.as_f64().unwrap();
            assert!((got - want).abs() <= 1e-4 * want, "{}: {got} for {want}", chain.sheet.name);
        }
        assert!(apart(&last[..8], &floats(&want["first8"])) < CLOSE);
    }
}

/// Prefill in the reference's own pieces gives the bits of one piece.
fn check_chunks(chain: &mut Chain, case: &Value) {
    let prompt = ids(&case["ids"]);
    let whole = chain.logits(&prompt);
    chain.open(1);
    let (mut done, mut last) = (0, Vec::new());
    for count in ids(&case["incremental"]["chunks"]) {
        let ids = &prompt[done as usize..(done + count) as usize];
        last = chain.hidden(&[Part { stream: 1, first: done, ids }]);
        done += count;
    }
    chain.close(1);
    assert_eq!(done as usize, prompt.len());
    let logits = chain.logits_of(&last);
    assert_eq!(bits(logits.last().unwrap()), bits(whole.last().unwrap()));
    assert!(apart(logits.last().unwrap(), &floats(&case["incremental"]["logits_last"])) < CLOSE);
}

#[test]
fn directories_give_the_numbers_of_transformers() {
    for name in ["llama", "qwen3"] {
        let expected = json(&format!("{name}/expected.json"));
        let mut chain = Chain::whole(&origin(name));
        for case in expected["cases"].as_array().unwrap() {
            check_case(&mut chain, case);
            check_chunks(&mut chain, case);
            check_layers(&origin(name), case);
        }
    }
}

#[test]
fn a_stage_continues_from_the_hidden_states_of_the_reference() {
    for name in ["llama", "qwen3"] {
        let bytes = fs::read(fixture(name).join("hidden.safetensors")).unwrap();
        let hidden = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let of = |name: &str| -> Vec<f32> {
            hidden.tensor(name).unwrap().data().as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect()
        };
        let prompt = ids(&json(&format!("{name}/expected.json"))["cases"][0]["ids"]);
        let layers = Chain::whole(&origin(name)).sheet.layer_count();
        for first in 1..layers {
            let mut chain = Chain::load(&origin(name), &[first], || Compute::cpu(1));
            let state = of(&format!("layer.{}", first - 1));
            chain.stages.remove(0);
            chain.open(1);
            let row = mesh_core::ports::StepRow { stream: mesh_core::ids::StreamId(1), first: 0, count: prompt.len() as u32, sample: None };
            let after = chain.stages[0].hidden(&[row], &mesh_core::ports::StepInput::Hidden(&[&state])).unwrap();
            let logits = chain.stages[0].logits(&after).unwrap();
            assert!(apart(&logits, &of("logits")) < CLOSE, "{name} from layer {first}");
            let last = of(&format!("layer.{}", layers - 1));
            assert!(apart(&after, &last) < CLOSE * length(&last) as f32);
        }
    }
}

#[test]
fn both_spellings_of_the_configuration_are_the_same_model() {
    for name in ["llama", "qwen3"] {
        let copy = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(fixture(name)).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
        }
        fs::rename(copy.path().join("config.v5style.json"), copy.path().join("config.json")).unwrap();
        let other = Origin::at(copy.path()).unwrap();
        let digest = |origin: &Origin| sheet_of(&ModelFiles::open(origin).unwrap()).unwrap().digest;
        assert_eq!(digest(&other), digest(&origin(name)));
        check_case(&mut Chain::whole(&other), &json(&format!("{name}/expected.json"))["cases"][1]);
    }
}

#[test]
fn gguf_files_give_the_numbers_of_their_weights() {
    for name in ["gguf_llama", "gguf_qwen3"] {
        let expected = json(&format!("{name}/expected.json"));
        let cases = |file: &str| expected["files"][file]["cases"].as_array().unwrap().clone();
        let mut chain = Chain::whole(&origin(&format!("{name}/model-F16.gguf")));
        for case in cases("model-F16.gguf") {
            check_case(&mut chain, &case);
            check_layers(&origin(&format!("{name}/model-F16.gguf")), &case);
        }
        // The reference does not round activations to 8 bits, as these formats' products do.
        for file in ["model-Q8_0.gguf", "model-Q4_K_M.gguf"] {
            let mut chain = Chain::whole(&origin(&format!("{name}/{file}")));
            for case in cases(file) {
                let want = floats(&case["logits_last"]);
                let got = chain.logits(&ids(&case["ids"])).pop().unwrap();
                let (cosine, off) = (cosine(&got, &want), apart(&got, &want));
                assert!(cosine >= 0.995 && off <= 1.0, "{name} {file}: cosine {cosine}, off by {off}");
            }
        }
    }
}

#[test]
fn sheets_tell_sizes_as_on_disk() {
    for (name, storage, tied, layers) in [
        ("llama", "bf16", false, 6),
        ("qwen3", "bf16", true, 4),
        ("gguf_llama/model-Q4_K_M.gguf", "Q4_K_M", false, 2),
        ("gguf_qwen3/model-F16.gguf", "F16", true, 2),
    ] {
        let files = ModelFiles::open(&origin(name)).unwrap();
        let sheet = sheet_of(&files).unwrap();
        assert_eq!((sheet.storage.as_str(), sheet.tied, sheet.layer_count()), (storage, tied, layers), "{name}");
        let all: u64 = files.weights.tensors().values().map(|tensor| tensor.bytes).sum();
        let counted: u64 = sheet.layers.iter().map(|layer| layer.weight_bytes).sum::<u64>() + sheet.embed_bytes;
        let rest = all - counted - if tied { 0 } else { sheet.head_bytes };
        assert!(rest <= 2048, "{name}: {rest} bytes of tensors belong nowhere (norm and rope_freqs may)");
    }
}
