//! How fast worlds are: scenario-seconds in a minute of one core, four nodes with the toy. The budget is 10,000.
//!
//! `cargo bench -p mesh-simulations --no-default-features`
#![expect(clippy::print_stdout, reason = "a bench speaks")]

use std::time::Instant;

use mesh_simulations::{Options, Scenario, Seed, run};

const QUIET: &str = r#"
title = "four nodes"
world = { run_s = 300 }
deployments = [{ split = 3 }]
traffic.per_s = 0.5
[[nodes]]
name = "n"
count = 4
"#;

const FAULTS: &str = r"
[random_faults]
crashes_per_min = 2
freezes_per_min = 2
cuts_per_min = 2
partitions_per_min = 1
lane_errors_per_min = 2
";

fn main() {
    for (name, text) in [("quiet", QUIET.to_owned()), ("with faults", format!("{QUIET}{FAULTS}"))] {
        let scenario = Scenario::parse(&text).expect("a scenario");
        let began = Instant::now();
        let (mut seconds, mut events) = (0.0, 0.0);
        for seed in 0..3 {
            let outcome = run(&scenario, Seed(seed), Options::default());
            seconds += outcome.timeline.end_ms / 1e3;
            events += outcome.metrics["events"];
        }
        let took = began.elapsed().as_secs_f64();
        println!(
            "{name}: {:.0} scenario-seconds a minute of one core ({seconds:.0} s in {took:.2} s, {:.1} us an event); budget 10000",
            seconds / took * 60.0,
            took / events * 1e6
        );
    }
}
