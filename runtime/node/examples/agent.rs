//! A small agent: asks a deployed model, and lets the answer decide whether to look at the clock before asking again.
//!
//! `cargo run --release --example agent`
#![expect(clippy::print_stdout, reason = "it shows its work")]

use futures::StreamExt;
use mesh_runtime::{AnswerEvent, GenerateOptions, Mesh, Prompt, Settings};
use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let state = std::env::temp_dir().join(format!("mesh-agent-{}", std::process::id()));
    let mesh = Mesh::join(Settings { name: "agent".into(), state_dir: state.clone(), mdns: false, ..Settings::default() }).await?;
    let (id, model) = mesh.deploy("builtin:story", Mesh::any_split()).await?;
    mesh.ready(id, Duration::from_secs(60)).await?;

    let mut messages = vec![serde_json::json!({ "role": "user", "content": "Tell me a story about a fox." })];
    for turn in 0..3 {
        let prompt = Prompt::Chat { messages: messages.clone().into(), tools: None, extra: Default::default() };
        let options = GenerateOptions { max_tokens: Some(60), seed: Some(turn), ..GenerateOptions::default() };
        let (mut answer, mut text) = (mesh.generate(&model, prompt, options).await?, String::new());
        while let Some(event) = answer.next().await {
            if let AnswerEvent::Text { text: more, .. } = event? {
                text.push_str(&more);
            }
        }
        println!("turn {turn}: {text}\n");
        let next = if text.contains("lost") { "Was it found again?" } else { "And then?" };
        messages.push(serde_json::json!({ "role": "assistant", "content": text }));
        messages.push(serde_json::json!({ "role": "user", "content": next }));
    }
    mesh.leave().await;
    Ok(std::fs::remove_dir_all(state)?)
}
