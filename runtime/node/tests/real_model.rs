//! SmolLM2-135M-Instruct over three real processes, asked at each; and the `openai` Python package against one.
//!
//! `cargo xtask model` fetches both into `target/`. Without them these tests say loudly that they were skipped.

use std::path::{Path, PathBuf};

use serde_json::json;

mod common;
use common::{content, nodes_with};

const QUESTION: &str = "What is the capital of France?";
const ANSWER: &str = "The capital of France is Paris.";
const MODEL: &str = "SmolLM2-135M-Instruct.Q4_1";

fn target() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target")
}

fn model_dir() -> Option<PathBuf> {
    let dir = target().join("models");
    if dir.join(format!("{MODEL}.gguf")).exists() {
        return Some(dir);
    }
    common::skipped(&format!("the real model is not in {}; run `cargo xtask model`", dir.display()));
    None
}

#[test]
fn the_capital_of_france_is_paris_whichever_node_is_asked() {
    let Some(dir) = model_dir() else { return };
    let mut nodes = nodes_with(3, &[dir]);
    let (model, _) = nodes.deploy(MODEL, 3, |_| {}).expect("ready");
    let body = json!({
        "model": model, "temperature": 0, "max_tokens": 32,
        "messages": [{ "role": "system", "content": "You are a helpful assistant." }, { "role": "user", "content": QUESTION }],
    });
    for index in 0..3 {
        let client = nodes.client(index).expect("up");
        assert_eq!(content(&client.post("/v1/chat/completions", &body).expect("an answer")), ANSWER);
    }
    openai_package(nodes.client(1).expect("up").url(), &model);
}

fn openai_package(url: &str, model: &str) {
    let python = target().join("venv/bin/python");
    if !python.exists() {
        common::skipped(&format!("the openai package is not in {}; run `cargo xtask model`", python.display()));
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/openai_client.py");
    let output = std::process::Command::new(python).arg(script).args([url, model, QUESTION, ANSWER]).output().expect("python runs");
    assert!(output.status.success(), "{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_real_model_writes_the_same_over_one_two_and_three_processes() {
    let Some(dir) = model_dir() else { return };
    let questions = ["Write one sentence about the sea.", "Name three colours.", "Why is the sky blue?"];
    let mut texts: Vec<Vec<String>> = Vec::new();
    for count in 1..=3 {
        let mut nodes = nodes_with(count, std::slice::from_ref(&dir));
        let (model, _) = nodes.deploy(MODEL, count, |_| {}).expect("ready");
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
