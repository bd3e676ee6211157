//! Decode speed of this engine against candle's own quantised llama, on the same GGUF file and with as many threads:
//!
//! ```text
//! cargo run --release -p mesh-models --example compare_candle -- SmolLM2-135M-Instruct.Q4_1.gguf [THREADS]
//! ```
//! Prints tokens a second of both and the ratio; runs alternate, and the best of each counts, since machines are shared.

#![expect(clippy::print_stdout, reason = "a program that reports to people")]

use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use candle_core::quantized::gguf_file;
use candle_core::{Device, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;
use mesh_core::generation::Sampling;
use mesh_core::ids::StreamId;
use mesh_core::model::Layers;
use mesh_core::plan::Numerics;
use mesh_core::ports::{Engine, EngineOptions, Progress, SampleHow, Step, StepInput, StepRow};
use mesh_models::compute::Compute;
use mesh_models::engine::LayerEngine;
use mesh_models::model_files::{ModelFiles, Origin};
use mesh_models::sheet::sheet_of;

/// Tokens of the prompt, and tokens generated.
const PROMPT: usize = 32;
const TOKENS: usize = 128;
const ROUNDS: usize = 5;
/// candle's products run on rayon's global pool, whose size is set by this before it starts.
const RAYON: &str = "RAYON_NUM_THREADS";

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().context("name a GGUF file of architecture llama")?;
    let threads: usize = arguments.next().map_or(Ok(1), |threads| threads.parse()).context("the second argument is a number of threads")?;
    if std::env::var(RAYON).as_deref() != Ok(&threads.to_string()) {
        let again = Command::new(std::env::current_exe()?).args(std::env::args().skip(1)).env(RAYON, threads.to_string()).status()?;
        ensure!(again.success(), "the comparison failed");
        return Ok(());
    }
    let prompt: Vec<u32> = (0..PROMPT as u32).map(|i| 100 + i * 7).collect();
    let mut ours = Ours::load(Path::new(&path), threads)?;
    let mut theirs = Theirs::load(Path::new(&path))?;
    let (mut best_ours, mut best_theirs) = (Rates::default(), Rates::default());
    let mut same = 0;
    for _ in 0..ROUNDS {
        let (tokens, rates) = ours.run(&prompt)?;
        best_ours.take(rates);
        let (others, rates) = theirs.run(&prompt)?;
        best_theirs.take(rates);
        same = tokens.iter().zip(&others).take_while(|(a, b)| a == b).count();
    }
    println!("{path}, {threads} thread(s), best of {ROUNDS} rounds, tokens a second");
    println!("          prefill {PROMPT}  decode {TOKENS}");
    println!("mesh      {:>10.1}  {:>10.1}", best_ours.prefill, best_ours.decode);
    println!("candle    {:>10.1}  {:>10.1}", best_theirs.prefill, best_theirs.decode);
    println!("ratio     {:>10.2}  {:>10.2}", best_ours.prefill / best_theirs.prefill, best_ours.decode / best_theirs.decode);
    println!("the first {same} of {TOKENS} greedy tokens are the same (rounding of activations differs)");
    Ok(())
}

/// Tokens a second.
#[derive(Default)]
struct Rates {
    prefill: f64,
    decode: f64,
}

impl Rates {
    fn of(start: Instant, first: Instant) -> Self {
        let (prefill, decode) = ((first - start).as_secs_f64(), first.elapsed().as_secs_f64());
        Self { prefill: PROMPT as f64 / prefill, decode: (TOKENS - 1) as f64 / decode }
    }

    fn take(&mut self, other: Self) {
        self.prefill = self.prefill.max(other.prefill);
        self.decode = self.decode.max(other.decode);
    }
}

struct Ours(LayerEngine);

struct Quiet;

impl Progress for Quiet {
    fn loaded(&self, _: u64, _: u64) {}
    fn give_up(&self) -> bool {
        false
    }
}

impl Ours {
    fn load(path: &Path, threads: usize) -> Result<Self> {
        let files = ModelFiles::open(&Origin::Gguf(path.to_owned()))?;
        let sheet = sheet_of(&files)?;
        let layers = Layers::new(0, sheet.layer_count());
        let options = EngineOptions { threads: threads as u16, numerics: Numerics::default(), context: 1024, kv_bytes_max: 1 << 40 };
        Ok(Self(LayerEngine::load(Compute::cpu(threads), &files, sheet, layers, options, &Quiet)?))
    }

    fn run(&mut self, prompt: &[u32]) -> Result<(Vec<u32>, Rates)> {
        let (stream, sampling, give_up) = (StreamId(1), Sampling::default(), AtomicBool::new(false));
        self.0.close(stream);
        self.0.open(stream, 0, 1024)?;
        let mut ids = prompt.to_vec();
        let (mut done, start) = (0, Instant::now());
        let mut first = start;
        for index in 0..TOKENS {
            let sample = Some(SampleHow { sampling: &sampling, ids: &ids, prompt_len: PROMPT as u32 });
            let rows = [StepRow { stream, first: done as u32, count: (ids.len() - done) as u32, sample }];
            let sampled = self.0.step(Step { rows: &rows, input: StepInput::Tokens(&ids[done..]), output: &mut [], give_up: &give_up })?;
            done = ids.len();
            ids.push(sampled[0].token);
            if index == 0 {
                first = Instant::now();
            }
        }
        Ok((ids.split_off(PROMPT), Rates::of(start, first)))
    }
}

struct Theirs(ModelWeights);

impl Theirs {
    fn load(path: &Path) -> Result<Self> {
        let mut file = std::fs::File::open(path)?;
        let content = gguf_file::Content::read(&mut file)?;
        Ok(Self(ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?))
    }

    fn run(&mut self, prompt: &[u32]) -> Result<(Vec<u32>, Rates)> {
        self.0.clear_kv_cache();
        let mut ids = prompt.to_vec();
        let (mut done, start) = (0, Instant::now());
        let mut first = start;
        for index in 0..TOKENS {
            let x = Tensor::new(&ids[done..], &Device::Cpu)?.unsqueeze(0)?;
            let token = self.0.forward(&x, done)?.squeeze(0)?.argmax(0)?.to_scalar::<u32>()?;
            done = ids.len();
            ids.push(token);
            if index == 0 {
                first = Instant::now();
            }
        }
        Ok((ids.split_off(PROMPT), Rates::of(start, first)))
    }
}
