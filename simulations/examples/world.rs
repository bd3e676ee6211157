//! Runs worlds: `world FILE SEED [trace]`, `world FILE FIRST..END` (explores), `world FILE SEED shrink`.
#![expect(clippy::print_stdout, reason = "an example speaks")]

use mesh_simulations::{Options, Outcome, Scenario, Seed, explore, run, shrink};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (file, seeds) = (words.first().cloned().unwrap_or_default(), words.get(1).cloned().unwrap_or_default());
    let scenario = Scenario::read(file).unwrap_or_else(|error| {
        println!("{error}");
        std::process::exit(2);
    });
    if let Some((first, end)) = seeds.split_once("..") {
        let range = first.parse().unwrap_or(0)..end.parse().unwrap_or(0);
        let explored = explore(&scenario, range, 2, |_| true);
        explored.failed.iter().for_each(tell);
        println!("{} green, {} not", explored.green, explored.failed.len());
        std::process::exit(i32::from(!explored.failed.is_empty()));
    }
    let seed = Seed(seeds.parse().unwrap_or(1));
    let how = words.get(2).map(String::as_str);
    if how == Some("shrink") {
        return println!("{}", shrink(&scenario, seed).to_toml());
    }
    let outcome = run(&scenario, seed, Options { trace: how == Some("trace") });
    if let Some(trace) = &outcome.trace {
        println!("{trace}");
    }
    tell(&outcome);
    outcome.metrics.iter().for_each(|(name, value)| println!("{name} {value}"));
    println!("trace {}", outcome.trace_hash);
    std::process::exit(outcome.exit_code().into());
}

fn tell(outcome: &Outcome) {
    outcome.violations.iter().for_each(|violation| println!("seed {}: {violation}", outcome.seed));
}
