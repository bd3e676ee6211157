//! `mesh bench pipeline`: a pipeline of processes against one process, in one run, interleaved.
//!
//! Ratios, not seconds: the machine is shared with others, and both sides meet the same weather.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use mesh_runtime::client::Client;
use mesh_runtime::processes::{Nodes, Start};

use super::deploy::Bar;
use super::{human, out};

/// Flags of `mesh bench`.
#[derive(Debug, Args)]
pub struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Tokens a second of N node processes with one model split over them, against one node process
    Pipeline(Pipeline),
}

/// Flags of `mesh bench pipeline`.
#[derive(Debug, Args)]
struct Pipeline {
    /// `builtin:story`, or the name of a model in the model directory
    #[arg(default_value = "builtin:story")]
    model: String,
    /// Directory with models; repeatable
    #[arg(long, value_name = "DIR")]
    model_dir: Vec<PathBuf>,
    /// Processes in the pipeline
    #[arg(long, value_name = "N", default_value = "2")]
    nodes: u16,
    /// Compute threads of each process
    #[arg(long, default_value = "1")]
    threads: u16,
    /// Tokens of the prompt
    #[arg(long, value_name = "N", default_value = "256")]
    prompt_tokens: u32,
    /// Tokens to generate
    #[arg(long, value_name = "N", default_value = "64")]
    tokens: u32,
    /// Rounds; the best of each side counts
    #[arg(long, value_name = "N", default_value = "3")]
    rounds: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Bench {
    /// Runs the bench.
    ///
    /// # Errors
    /// A node did not start or answer.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.what {
            What::Pipeline(pipeline) => pipeline.run(),
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Rates {
    prefill: f64,
    decode: f64,
}

impl Pipeline {
    fn run(self) -> anyhow::Result<ExitCode> {
        let mut one = self.side(1)?;
        let mut many = self.side(self.nodes)?;
        let (mut best_one, mut best_many) = (Rates::default(), Rates::default());
        for _ in 0..self.rounds.max(1) {
            best_one = best(best_one, self.measure(&one.1, &one.2)?);
            best_many = best(best_many, self.measure(&many.1, &many.2)?);
        }
        let (prefill, decode) = (best_many.prefill / best_one.prefill, best_many.decode / best_one.decode);
        let memory: Vec<Value> = memory(&mut one.0, 1).into_iter().chain(memory(&mut many.0, self.nodes)).collect();
        if self.json {
            let side = |rates: Rates| json!({ "prefill_tokens_per_s": rates.prefill, "decode_tokens_per_s": rates.decode });
            let report = json!({ "model": self.model, "threads": self.threads, "one": side(best_one), "processes": self.nodes, "many": side(best_many),
                "prefill_ratio": prefill, "decode_ratio": decode, "memory": memory });
            out::json(&report)?;
            return Ok(ExitCode::SUCCESS);
        }
        out::line(format_args!(
            "{} with {} thread(s) a process, best of {}: prompt of {} tokens, {} generated",
            self.model, self.threads, self.rounds, self.prompt_tokens, self.tokens
        ))?;
        out::line(format_args!("  1 process     prefill {:8.1} tokens/s   decode {:8.1} tokens/s", best_one.prefill, best_one.decode))?;
        out::line(format_args!(
            "  {} processes   prefill {:8.1} tokens/s   decode {:8.1} tokens/s",
            self.nodes, best_many.prefill, best_many.decode
        ))?;
        out::line(format_args!("  ratio         prefill {prefill:8.3}            decode {decode:8.3}"))?;
        for entry in memory {
            out::line(format_args!(
                "  {} of {}: resident {}, budget {} (weights {} + cache {}, + 10 %, + 150 MB)",
                entry["node"].as_str().unwrap_or_default(),
                entry["processes"],
                human(entry["resident_bytes"].as_u64().unwrap_or(0)),
                human(entry["budget_bytes"].as_u64().unwrap_or(0)),
                human(entry["weight_bytes"].as_u64().unwrap_or(0)),
                human(entry["kv_bytes"].as_u64().unwrap_or(0)),
            ))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn side(&self, count: u16) -> anyhow::Result<(Nodes, Client, String)> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut nodes = Nodes::start(&Start { program: &program, count, threads: self.threads, model_dirs: &self.model_dir })?;
        let bar = Bar::new(!self.json);
        let (model, _) = nodes.deploy(&self.model, count, |seen| bar.show(seen))?;
        let client = nodes.client(0)?;
        Ok((nodes, client, model))
    }

    fn measure(&self, client: &Client, model: &str) -> anyhow::Result<Rates> {
        // Ids that every model has; the work does not depend on which.
        let prompt: Vec<u32> = (0..self.prompt_tokens).map(|index| 10 + index * 7 % 700).collect();
        let body = json!({ "model": model, "prompt": prompt, "max_tokens": self.tokens, "temperature": 0, "stream": true, "logprobs": 0, "stream_options": { "include_usage": true } });
        let start = std::time::Instant::now();
        let (mut first, mut last, mut count) = (None, start, 0_u32);
        client.events("/v1/completions", &body, |event| {
            if event["choices"][0]["logprobs"]["tokens"].as_array().is_some_and(|tokens| !tokens.is_empty()) {
                last = std::time::Instant::now();
                first.get_or_insert(last);
                count += 1;
            }
            Ok(())
        })?;
        let first = first.context("no token came")?;
        let decode = f64::from(count.saturating_sub(1)) / (last - first).as_secs_f64().max(1e-9);
        Ok(Rates { prefill: f64::from(self.prompt_tokens) / (first - start).as_secs_f64(), decode })
    }
}

fn best(a: Rates, b: Rates) -> Rates {
    Rates { prefill: a.prefill.max(b.prefill), decode: a.decode.max(b.decode) }
}

/// Resident memory of each process against its budget: weights as on disk + cache + 10 % + 150 MB.
fn memory(nodes: &mut Nodes, count: u16) -> Vec<Value> {
    (0..count)
        .filter_map(|index| {
            let status = nodes.client(index).ok()?.get("/mesh/v1/status").ok()?;
            let seen = &status["deployments"][0];
            let sheet: mesh_core::model::ModelSheet = serde_json::from_value(seen["record"]["sheet"].clone()).ok()?;
            let plan: mesh_core::plan::Plan = serde_json::from_value(seen["record"]["plan"].clone()).ok()?;
            let me = serde_json::from_value(status["me"].clone()).ok()?;
            let (_, stage) = plan.stage_of(me)?;
            let weights = sheet.weight_bytes(stage.layers);
            let kv = sheet.kv_bytes(stage.layers, u64::from(plan.context()) * u64::from(plan.streams()));
            let budget = (weights + kv) / 10 * 11 + (150 << 20);
            Some(json!({ "node": format!("node-{}", index + 1), "processes": count, "resident_bytes": resident(nodes.pid(index)),
                "weight_bytes": weights, "kv_bytes": kv, "budget_bytes": budget }))
        })
        .collect()
}

/// Resident bytes of a process: Linux only, else 0.
fn resident(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("VmRSS:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).unwrap_or(0) * 1024
}
