//! SmolLM2-135M-Instruct over three real processes, asked at each; and the `openai` Python package against one.
//!
//! `cargo xtask model` fetches both into `target/`. Without them these tests say loudly that they were skipped.

use std::path::Path;

use serde_json::json;

mod common;
use common::{ANSWER, QUESTION, SMOLLM2, content, nodes_with, openai_script, python, real_model};

#[test]
fn the_capital_of_france_is_paris_whichever_node_is_asked() {
    let Some(dir) = real_model() else { return };
    let mut nodes = nodes_with(3, &[dir]);
    let (model, _) = nodes.deploy(SMOLLM2, 3, |_| {}).expect("ready");
    let body = json!({
        "model": model, "temperature": 0, "max_tokens": 32,
        "messages": [{ "role": "system", "content": "You are a helpful assistant." }, { "role": "user", "content": QUESTION }],
    });
    for index in 0..3 {
        let client = nodes.client(index).expect("up");
        assert_eq!(content(&client.post("/v1/chat/completions", &body).expect("an answer")), ANSWER);
    }
    if let Some(python) = python() {
        openai_package(&python, nodes.client(1).expect("up").url(), &model);
    }
}

fn openai_package(python: &Path, url: &str, model: &str) {
    let output =
        std::process::Command::new(python).arg(openai_script()).args([url, model, QUESTION, ANSWER]).output().expect("python runs");
    assert!(output.status.success(), "{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_real_model_writes_the_same_over_one_two_and_three_processes() {
    let Some(dir) = real_model() else { return };
    let questions = ["Write one sentence about the sea.", "Name three colours.", "Why is the sky blue?"];
    let mut texts: Vec<Vec<String>> = Vec::new();
    for count in 1..=3 {
        let mut nodes = nodes_with(count, std::slice::from_ref(&dir));
        let (model, _) = nodes.deploy(SMOLLM2, count, |_| {}).expect("ready");
        let client = nodes.client(count - 1).expect("up");
        let ask = |question: &str, temperature: f32| {
            let body = json!({ "model": model, "temperature": temperature, "seed": 7, "max_tokens": 48, "messages": [{ "role": "user", "content": question }] });
            content(&client.post("/v1/chat/completions", &body).expect("an answer"))
        };
        texts.push(questions.iter().flat_map(|question| [ask(question, 0.0), ask(question, 0.8)]).collect());
    }
    assert_eq!(texts[0], texts[1]);
    assert_eq!(texts[0], texts[2]);
    assert!(texts[0].iter().all(|text| text.len() > 10), "{:?}", texts[0]);
}
