//! `mesh demo`: the main job in one command, on this machine, with nothing to download.

use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use serde_json::{Value, json};

use mesh_runtime::client::text;
use mesh_runtime::processes::{Nodes, Start};

use super::deploy::Bar;
use super::out;

/// Flags of `mesh demo`.
#[derive(Debug, Args)]
pub struct Demo {
    /// Node processes to start: the built-in model has 8 layers
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u16).range(1..=8))]
    nodes: u16,
    /// What the story is asked for with
    #[arg(long, value_name = "TEXT", default_value = "Tell me a story about a robot.")]
    prompt: String,
    /// Print one JSON object at the end instead
    #[arg(long)]
    pub json: bool,
}

/// Tries to remove the nodes' directories while the nodes are still ending.
const CLEAN_UP_TRIES: u32 = 40;

/// On Ctrl-C or SIGTERM: ends this process, and with it the nodes, whose standard input closes; then their directories go.
fn clean_up_when_stopped() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot wait for signals")?;
    std::thread::Builder::new().name("mesh-signals".to_owned()).spawn(move || {
        let signal = runtime.block_on(super::join::stop_signal(false));
        out::perhaps(format!("stopped by {signal}: the nodes end, and their directories are removed"));
        Nodes::abandon(CLEAN_UP_TRIES);
        std::process::exit(if signal == "Ctrl-C" { 130 } else { 143 });
    })?;
    Ok(())
}

impl Demo {
    /// Runs the demo.
    ///
    /// # Errors
    /// A node did not start, or the story broke off.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if !self.json {
            out::line(format_args!("starting {} node processes on loopback …", self.nodes))?;
        }
        clean_up_when_stopped()?;
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut nodes = Nodes::start(&Start { program: &program, count: self.nodes, threads: 1, model_dirs: &[] })?;
        let bar = Bar::new(!self.json);
        let (model, seen) = nodes.deploy("builtin:story", self.nodes, |seen| bar.show(seen))?;
        drop(bar);
        let stages = self.stages(&mut nodes, &seen)?;
        if !self.json {
            for stage in &stages {
                out::line(format_args!("  layers {:>6} on {} (process {})", text(&stage["layers"]), text(&stage["node"]), stage["pid"]))?;
            }
            out::line(format_args!("\n> {}\n", self.prompt))?;
        }
        let story = self.story(&mut nodes, &model)?;
        drop(nodes);
        self.report(&stages, &story)?;
        Ok(ExitCode::SUCCESS)
    }

    fn stages(&self, nodes: &mut Nodes, seen: &Value) -> anyhow::Result<Vec<Value>> {
        let status = nodes.client(0)?.get("/mesh/v1/status")?;
        let all = status["nodes"].as_array().cloned().unwrap_or_default();
        let stages = seen["record"]["plan"]["stages"].as_array().context("the deployment has no plan")?;
        let described = stages.iter().map(|stage| {
            let node = all.iter().find(|node| node["record"]["node"] == stage["node"]);
            let name = node.map(|node| text(&node["record"]["name"])).unwrap_or_default();
            let index: u16 = name.strip_prefix("node-").and_then(|number| number.parse().ok()).unwrap_or(1);
            let layers = format!("{}..{}", stage["layers"]["first"], stage["layers"]["end"]);
            json!({ "layers": layers, "node": name, "pid": nodes.pid(index - 1) })
        });
        Ok(described.collect())
    }

    fn story(&self, nodes: &mut Nodes, model: &str) -> anyhow::Result<Story> {
        // Asked at the last node: any node will do.
        let client = nodes.client(self.nodes - 1)?;
        let body = json!({
            "model": model, "stream": true, "temperature": 0, "stream_options": { "include_usage": true },
            "messages": [{ "role": "user", "content": self.prompt }],
        });
        let start = std::time::Instant::now();
        let (mut story, mut first, mut last) = (Story::default(), None, start);
        client.events("/v1/chat/completions", &body, |event| {
            if let Some(more) = event["choices"][0]["delta"]["content"].as_str().filter(|more| !more.is_empty()) {
                last = std::time::Instant::now();
                first.get_or_insert(last);
                story.text.push_str(more);
                if !self.json {
                    out::part(more)?;
                }
            }
            if let Some(usage) = event.get("usage").filter(|usage| usage.is_object()) {
                story.prompt_tokens = usage["prompt_tokens"].as_u64().unwrap_or(0);
                story.generated_tokens = usage["completion_tokens"].as_u64().unwrap_or(0);
            }
            Ok(())
        })?;
        let first = first.context("the story is empty")?;
        story.prefill_s = (first - start).as_secs_f64();
        story.decode_s = (last - first).as_secs_f64();
        Ok(story)
    }

    fn report(&self, stages: &[Value], story: &Story) -> anyhow::Result<()> {
        if story.text.trim().is_empty() {
            bail!("the story is empty");
        }
        let (prefill, decode) = (
            story.prompt_tokens as f64 / story.prefill_s.max(1e-9),
            story.generated_tokens.saturating_sub(1) as f64 / story.decode_s.max(1e-9),
        );
        if self.json {
            let report = json!({
                "prompt": self.prompt, "text": story.text, "stages": stages,
                "prompt_tokens": story.prompt_tokens, "generated_tokens": story.generated_tokens,
                "prefill_tokens_per_s": prefill, "decode_tokens_per_s": decode, "first_token_s": story.prefill_s,
            });
            out::json(&report)?;
            return Ok(());
        }
        out::line(format_args!(
            "\n\nprefill {} tokens, {prefill:.0}/s (first token after {:.0} ms); decode {} tokens, {decode:.0}/s; over {} processes",
            story.prompt_tokens,
            story.prefill_s * 1e3,
            story.generated_tokens,
            stages.len()
        ))?;
        out::line("all nodes have left and their files are gone. Next: `mesh join` on each machine, see the README.")?;
        Ok(())
    }
}

#[derive(Default)]
struct Story {
    text: String,
    prompt_tokens: u64,
    generated_tokens: u64,
    prefill_s: f64,
    decode_s: f64,
}
