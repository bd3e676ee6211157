//! `mesh sim`: worlds that fail on purpose. Runs one, many, or takes one that fails apart.

use std::io::Write as _;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use mesh_simulations::report::{html, page::Page};
use mesh_simulations::{Options, Outcome, Scenario, Seed, explore, run, shrink};
use serde_json::json;

/// Failing seeds whose command is printed at most.
const SHOWN_MAX: usize = 20;
/// A file that is no scenario, or flags that make no sense.
const EXIT_USAGE: u8 = 2;

/// Flags of `mesh sim`.
#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 every promise was kept; 1 a promise was broken; 2 the file is no scenario; 3 no progress after \
                        everything was healed.\nScenarios to start from are in configs/simulations; docs/simulator.md teaches to write one.")]
pub struct Sim {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run one world
    Run(RunOne),
    /// Run many seeds of a world and sum up
    Explore(Explore),
    /// Take faults out of a failing world, one by one, while it still fails; prints the rest as a scenario
    Shrink(Shrink),
}

#[derive(Debug, Args)]
struct RunOne {
    /// The scenario
    file: PathBuf,
    /// What everything is drawn from: a number, also in hexadecimal (0x2a)
    #[arg(long, default_value = "0", value_parser = number)]
    seed: u64,
    /// Write everything that happened, a line each
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write a page with pictures of what happened, for a browser
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Explore {
    /// The scenarios
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Seeds, first and last: 0..99 are a hundred
    #[arg(long, default_value = "0..99", value_parser = seeds)]
    seeds: RangeInclusive<u64>,
    /// Worlds side by side [default: one for each core]
    #[arg(long)]
    jobs: Option<usize>,
    /// Stop at the first world that fails
    #[arg(long)]
    first: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Shrink {
    /// The scenario
    file: PathBuf,
    /// The seed that fails
    #[arg(long, value_parser = number)]
    seed: u64,
    /// Write the smaller scenario here instead of printing it
    #[arg(long, value_name = "FILE.toml")]
    out: Option<PathBuf>,
}

/// A number as people write seeds.
fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hexadecimal) => u64::from_str_radix(hexadecimal, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("{text} is no seed: write a number such as 42 or 0x2a"))
}

fn seeds(text: &str) -> Result<RangeInclusive<u64>, String> {
    let wrong = || format!("{text} is no range of seeds: write first and last, as in 0..99");
    let (first, last) = text.split_once("..").ok_or_else(wrong)?;
    let (first, last) = (number(first)?, number(last.trim_start_matches('='))?);
    if first > last || last == u64::MAX { Err(wrong()) } else { Ok(first..=last) }
}

impl Sim {
    /// Runs the command.
    ///
    /// # Errors
    /// A file cannot be written. That a file is no scenario is said and gives exit code 2.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Run(one) => one.run(),
            Command::Explore(explore) => explore.run(),
            Command::Shrink(shrink) => shrink.run(),
        }
    }
}

/// The scenario in a file; if it is none, why not, on standard error.
fn read(file: &Path) -> Option<Scenario> {
    match Scenario::read(file) {
        Ok(scenario) => Some(scenario),
        Err(error) => {
            super::out::aside(format_args!("error: {error}"));
            None
        }
    }
}

/// The command that runs a world again.
fn command(file: &Path, seed: u64) -> String {
    let file = file.display().to_string();
    let plain = file.chars().all(|letter| letter.is_alphanumeric() || "/._-".contains(letter));
    let file = if plain { file } else { format!("'{}'", file.replace('\'', "'\\''")) };
    format!("mesh sim run {file} --seed {seed:#x}")
}

impl RunOne {
    fn run(self) -> anyhow::Result<ExitCode> {
        let Some(scenario) = read(&self.file) else { return Ok(ExitCode::from(EXIT_USAGE)) };
        let outcome = run(&scenario, Seed(self.seed), Options { trace: self.trace.is_some() });
        if let (Some(path), Some(trace)) = (&self.trace, &outcome.trace) {
            std::fs::write(path, trace).with_context(|| format!("cannot write {}", path.display()))?;
        }
        let page = Page::of(&scenario, &outcome, command(&self.file, self.seed));
        if let Some(path) = &self.report {
            std::fs::write(path, html(&page)).with_context(|| format!("cannot write {}", path.display()))?;
        }
        let mut out = std::io::stdout().lock();
        if self.json {
            writeln!(out, "{}", serde_json::to_string_pretty(&outcome)?)?;
        } else {
            writeln!(out, "{}  seed {:#x}", scenario.title, self.seed)?;
            for figure in &page.figures {
                writeln!(out, "  {:<32}{}", figure.name, figure.value)?;
            }
            writeln!(out, "  {:<32}{}", "trace", outcome.trace_hash)?;
            outcome.violations.iter().try_for_each(|violation| writeln!(out, "BROKEN  {violation}"))?;
            if outcome.is_green() {
                writeln!(out, "every promise was kept")?;
            } else {
                writeln!(out, "fewer faults that still do it: mesh sim shrink {} --seed {:#x}", self.file.display(), self.seed)?;
            }
        }
        Ok(ExitCode::from(outcome.exit_code()))
    }
}

/// What one scenario's seeds gave.
struct Sum {
    file: PathBuf,
    title: String,
    green: u64,
    failed: Vec<Outcome>,
    seconds: f64,
    virtual_seconds: f64,
}

impl Explore {
    fn run(self) -> anyhow::Result<ExitCode> {
        let jobs = self.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)).max(1);
        let mut sums = Vec::new();
        for file in &self.files {
            let Some(scenario) = read(file) else { return Ok(ExitCode::from(EXIT_USAGE)) };
            let sum = self.one(file, &scenario, jobs);
            let broken = !sum.failed.is_empty();
            if !self.json {
                print(&sum)?;
            }
            sums.push(sum);
            if broken && self.first {
                break;
            }
        }
        if self.json {
            let all: Vec<_> = sums.iter().map(as_json).collect();
            writeln!(std::io::stdout().lock(), "{}", serde_json::to_string_pretty(&all)?)?;
        }
        // The worst: safety before liveness.
        let codes = sums.iter().flat_map(|sum| &sum.failed).map(Outcome::exit_code);
        Ok(ExitCode::from(codes.min().unwrap_or(0)))
    }

    fn one(&self, file: &Path, scenario: &Scenario, jobs: usize) -> Sum {
        let (first, last) = (*self.seeds.start(), *self.seeds.end());
        let bar = ProgressBar::new(last - first + 1);
        let style = ProgressStyle::with_template("{msg:28!} {bar:40} {pos}/{len} {eta}").unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style);
        bar.set_message(scenario.title.clone());
        let (start, mut virtual_seconds) = (Instant::now(), 0.0);
        let explored = explore(scenario, first..last + 1, jobs, |outcome| {
            virtual_seconds += outcome.timeline.end_ms / 1e3;
            bar.inc(1);
            if !outcome.is_green() {
                bar.println(format!("failed: {}", command(file, outcome.seed)));
            }
            outcome.is_green() || !self.first
        });
        bar.finish_and_clear();
        let seconds = start.elapsed().as_secs_f64();
        Sum {
            file: file.to_owned(),
            title: scenario.title.clone(),
            green: explored.green,
            failed: explored.failed,
            seconds,
            virtual_seconds,
        }
    }
}

fn print(sum: &Sum) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let all = sum.green + sum.failed.len() as u64;
    let rate = sum.virtual_seconds / sum.seconds.max(1e-9);
    writeln!(out, "{:<44} {:>5} of {all} kept every promise   {:.1} s, {rate:.0}× real time", sum.title, sum.green, sum.seconds)?;
    for outcome in sum.failed.iter().take(SHOWN_MAX) {
        if let Some(violation) = outcome.violations.first() {
            writeln!(out, "  {violation}")?;
        }
        writeln!(out, "    {}", command(&sum.file, outcome.seed))?;
    }
    if sum.failed.len() > SHOWN_MAX {
        writeln!(out, "  and {} more", sum.failed.len() - SHOWN_MAX)?;
    }
    Ok(())
}

fn as_json(sum: &Sum) -> serde_json::Value {
    let failed =
        |outcome: &Outcome| json!({ "seed": outcome.seed, "violations": outcome.violations, "repeat": command(&sum.file, outcome.seed) });
    json!({
        "file": sum.file, "title": sum.title, "green": sum.green, "failed": sum.failed.iter().map(failed).collect::<Vec<_>>(),
        "seconds": sum.seconds, "virtual_seconds": sum.virtual_seconds,
    })
}

impl Shrink {
    fn run(self) -> anyhow::Result<ExitCode> {
        let Some(scenario) = read(&self.file) else { return Ok(ExitCode::from(EXIT_USAGE)) };
        let outcome = run(&scenario, Seed(self.seed), Options::default());
        if outcome.is_green() {
            bail!("seed {:#x} keeps every promise: there is nothing to shrink", self.seed);
        }
        let bar = ProgressBar::new_spinner().with_message(format!("{} faults; taking some out", outcome.faults.len()));
        bar.enable_steady_tick(std::time::Duration::from_millis(120));
        let smaller = shrink(&scenario, Seed(self.seed));
        bar.finish_and_clear();
        let first = outcome.violations.first().map(ToString::to_string).unwrap_or_default();
        let text = format!(
            "# {} of {} faults are left; with --seed {:#x} it still breaks:\n# {}\n{}",
            smaller.faults.len(),
            outcome.faults.len(),
            self.seed,
            first.replace('\n', "\n# "),
            smaller.to_toml()
        );
        match &self.out {
            Some(path) => std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?,
            None => write!(std::io::stdout().lock(), "{text}")?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_read_as_people_write_them() {
        assert_eq!((number("42"), number("0x2a")), (Ok(42), Ok(42)));
        assert!(number("forty").is_err());
        assert_eq!(seeds("0..99"), Ok(0..=99));
        assert_eq!(seeds("0x10..0x1f"), Ok(16..=31));
        assert_eq!(seeds("3..=3"), Ok(3..=3));
        assert!(seeds("9..3").is_err() && seeds("7").is_err() && seeds("0..18446744073709551615").is_err());
    }

    #[test]
    fn the_command_that_repeats_a_run_can_be_pasted() {
        assert_eq!(
            command(Path::new("configs/simulations/split-brain.toml"), 42),
            "mesh sim run configs/simulations/split-brain.toml --seed 0x2a"
        );
        assert_eq!(command(Path::new("it's mine.toml"), 1), "mesh sim run 'it'\\''s mine.toml' --seed 0x1");
    }
}
