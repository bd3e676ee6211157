//! Runs one world: `world FILE [SEED] [trace]`.
#![expect(clippy::print_stdout, reason = "an example speaks")]

use mesh_simulations::{Options, Scenario, Seed, run};

fn main() {
    let mut words = std::env::args().skip(1);
    let scenario = match Scenario::read(words.next().unwrap_or_default()) {
        Ok(scenario) => scenario,
        Err(error) => {
            println!("{error}");
            std::process::exit(2);
        }
    };
    let seed = words.next().and_then(|word| word.parse().ok()).unwrap_or(1);
    let outcome = run(&scenario, Seed(seed), Options { trace: words.next().is_some() });
    if let Some(trace) = &outcome.trace {
        println!("{trace}");
    }
    outcome.violations.iter().for_each(|violation| println!("{violation}"));
    outcome.metrics.iter().for_each(|(name, value)| println!("{name} {value}"));
    println!("trace {}", outcome.trace_hash);
    std::process::exit(outcome.exit_code().into());
}
