//! `cargo xtask check` is every check there is: people, the README and CI call the same.
//!
//! ```text
//! check             all of the below, in this order; stops at the first that fails
//!   format          rustfmt
//!   lint            clippy, warnings are errors
//!   model           fetches the real chat model and the Python client that some tests use, into target/
//!   test            every test: unit, property, simulation, processes, namespaces
//!   mutations       mistakes made on purpose in the cores: the simulator's checkers must catch each
//!   demo            the release build's demo on three processes against the committed story
//!   simulate        every shipped scenario of the simulator, fixed seeds and a few fresh ones
//! ```
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool speaks on the terminal")]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, bail};

mod model;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.first().map(String::as_str) {
        Some("check") => check(&[
            ("format", format),
            ("lint", lint),
            ("model", model::fetch),
            ("test", test),
            ("mutations", mutations),
            ("demo", demo),
            ("simulate", simulate),
        ]),
        Some("format") => check(&[("format", format)]),
        Some("lint") => check(&[("lint", lint)]),
        Some("model") => check(&[("model", model::fetch)]),
        Some("test") => check(&[("model", model::fetch), ("test", test)]),
        Some("mutations") => check(&[("mutations", mutations)]),
        Some("demo") => check(&[("demo", demo)]),
        Some("simulate") => check(&[("simulate", simulate)]),
        _ => {
            eprintln!("usage: cargo xtask check | format | lint | model | test | mutations | demo | simulate");
            return ExitCode::FAILURE;
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nfailed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

type Step = (&'static str, fn() -> anyhow::Result<()>);

fn check(steps: &[Step]) -> anyhow::Result<()> {
    for (name, step) in steps {
        println!("== {name}");
        let start = Instant::now();
        step().with_context(|| format!("the check `{name}`"))?;
        println!("== {name}: good, {} s", start.elapsed().as_secs());
    }
    Ok(())
}

fn format() -> anyhow::Result<()> {
    cargo(&["fmt", "--all", "--check"])
}

fn lint() -> anyhow::Result<()> {
    cargo(&["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"])
}

fn test() -> anyhow::Result<()> {
    // One selection of packages everywhere: another one would build hundreds of crates again.
    let mut command = Command::new(env!("CARGO"));
    command.args(["test", "--workspace", "--lib", "--bins", "--tests", "--examples"]);
    if model::file().exists() {
        command.env("MESH_TEST_SMOLLM2", model::file()); // the engine's own tests with the real model
    }
    run(&mut command)
}

/// Without the real model, so that the second build of the cores takes a minute and no more.
fn mutations() -> anyhow::Result<()> {
    cargo(&["test", "-p", "mesh-simulations", "--no-default-features", "--features", "mutations", "--test", "mutations"])
}

/// Seeds of each scenario that are the same every time, and how many are drawn from the clock.
const FIXED_SEEDS: u64 = 6;
const FRESH_SEEDS: u64 = 3;

/// Every shipped scenario. A fresh seed that fails is a bug that was there before: the line it prints repeats it.
fn simulate() -> anyhow::Result<()> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(root().join("configs/simulations"))?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    let fresh = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |since| since.as_secs());
    for seeds in [format!("0..{}", FIXED_SEEDS - 1), format!("{fresh}..{}", fresh + FRESH_SEEDS - 1)] {
        println!("seeds {seeds}");
        let explore = ["run", "--release", "--quiet", "--bin", "mesh", "--", "sim", "explore", "--seeds", &seeds];
        run(Command::new(env!("CARGO")).args(explore).args(&files))?;
    }
    Ok(())
}

/// The README's first command, and the story it must tell.
fn demo() -> anyhow::Result<()> {
    let output = Command::new(env!("CARGO"))
        .args(["run", "--release", "--quiet", "--bin", "mesh", "--", "demo", "--json"])
        .current_dir(root())
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        bail!("the demo failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).context("the demo's report is not JSON")?;
    let golden = std::fs::read_to_string(root().join("runtime/node/tests/golden/robot.txt")).context("the golden story")?;
    if report["text"].as_str().map(str::trim) != Some(golden.trim()) {
        bail!("the demo told another story than runtime/node/tests/golden/robot.txt:\n{}", report["text"]);
    }
    println!(
        "{} processes told the golden story: {:.0} tokens/s",
        report["stages"].as_array().map_or(0, Vec::len),
        report["decode_tokens_per_s"].as_f64().unwrap_or(0.0)
    );
    Ok(())
}

fn cargo(arguments: &[&str]) -> anyhow::Result<()> {
    run(Command::new(env!("CARGO")).args(arguments))
}

/// Runs a command in the workspace root, with its output on the terminal.
fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.current_dir(root()).status().with_context(|| format!("cannot run {:?}", command.get_program()))?;
    if !status.success() {
        bail!("{:?} ended with {status}", command.get_program());
    }
    Ok(())
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_owned()
}
