//! `mesh run`: one question, the answer as it comes.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::{Target, out, temperature};

/// Flags of `mesh run`.
#[derive(Debug, Args)]
pub struct Run {
    /// Name of a deployed model (`mesh status` lists them)
    model: String,
    /// The question
    prompt: String,
    /// A system message before it
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Continue the text as it is, without the chat template
    #[arg(long)]
    raw: bool,
    /// Tokens to generate at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
    /// 0 = greedy [default: the model's own]
    #[arg(long, value_name = "NUMBER", value_parser = temperature)]
    temperature: Option<f32>,
    /// Same seed, same text
    #[arg(long)]
    seed: Option<u64>,
    /// Print one JSON object at the end instead of streaming
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    target: Target,
}

impl Run {
    /// Runs the command.
    ///
    /// # Errors
    /// The node refused, or the answer broke off.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let client = self.target.client()?;
        let mut body = json!({ "model": self.model, "stream": true, "stream_options": { "include_usage": true } });
        let path = if self.raw {
            body["prompt"] = json!(self.prompt);
            "/v1/completions"
        } else {
            let system = self.system.iter().map(|text| json!({ "role": "system", "content": text }));
            body["messages"] = system.chain([json!({ "role": "user", "content": self.prompt })]).collect();
            "/v1/chat/completions"
        };
        for (name, value) in [
            ("max_tokens", self.max_tokens.map(Value::from)),
            ("temperature", self.temperature.map(Value::from)),
            ("seed", self.seed.map(|seed| Value::from(seed.cast_signed()))),
        ] {
            if let Some(value) = value {
                body[name] = value;
            }
        }
        let (mut text, mut last) = (String::new(), Value::Null);
        client.events(path, &body, |event| {
            let choice = &event["choices"][0];
            let more = choice["delta"]["content"].as_str().or_else(|| choice["text"].as_str()).unwrap_or_default();
            text.push_str(more);
            if !self.json {
                out::part(more)?;
            }
            if let Some(reason) = choice["finish_reason"].as_str() {
                last["finish_reason"] = json!(reason);
            }
            if event["usage"].is_object() {
                last["usage"] = event["usage"].clone();
            }
            Ok(())
        })?;
        if self.json {
            last["text"] = json!(text);
            out::line(last)?;
        } else {
            out::line("")?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
