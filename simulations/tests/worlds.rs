//! Whole worlds: that they run, that they are repeatable, and that faults are survived as promised.

use mesh_simulations::{Options, Outcome, Scenario, Seed, expand, run};

fn scenario(text: &str) -> Scenario {
    Scenario::parse(text).expect("a scenario")
}

fn green(text: &str, seed: u64) -> Outcome {
    let outcome = run(&scenario(text), Seed(seed), Options::default());
    assert!(outcome.is_green(), "seed {seed}: {:#?}", outcome.violations);
    outcome
}

const THREE: &str = r#"
title = "three nodes, three stages"
world.run_s = 12
traffic.per_s = 2
[[nodes]]
name = "n"
count = 3
[[deployments]]
split = 3
"#;

#[test]
fn three_nodes_deploy_and_answer() {
    let outcome = green(THREE, 1);
    assert!(outcome.metrics["finished_requests"] >= 5.0, "{:?}", outcome.metrics);
    assert_eq!((outcome.metrics["failed_requests"], outcome.metrics["reloaded_mb"]), (0.0, 0.0));
    assert_eq!(outcome.metrics["loaded_mb"], 2_400.0, "every layer once");
    assert_eq!(outcome.timeline.nodes.len(), 3);
    assert!(outcome.timeline.requests.iter().any(|request| request.whole && !request.tokens.is_empty()));
}

#[test]
fn a_killed_stage_is_replaced_and_comes_back() {
    let outcome = green(&format!("{THREE}[[faults]]\nat_ms = 6000\ncrash = \"n2\"\nfor_ms = 2000\n"), 1);
    assert!(outcome.metrics["plans"] >= 2.0, "{:?}", outcome.metrics);
    assert!(outcome.metrics["death_known_ms_max"] < 200.0, "a kernel tells at once: {:?}", outcome.metrics);
}

#[test]
fn a_frozen_node_is_noticed_and_forgiven() {
    let outcome = green(&format!("{THREE}[[faults]]\nat_ms = 6000\nfreeze = \"n3\"\nfor_ms = 5000\n"), 1);
    let lane = &outcome.timeline.nodes[2];
    assert!(lane.states.iter().any(|span| span.label == "frozen" && span.to_ms - span.from_ms == 5_000.0), "{:?}", lane.states);
    assert!(lane.seen.iter().any(|span| span.label == "dead to n1"), "{:?}", lane.seen);
}

const WILD: &str = r#"
title = "everything at once"
world.run_s = 20
traffic.per_s = 2
traffic.hang_up = 0.1
traffic.tries = 2
[[nodes]]
name = "n"
count = 4
[[deployments]]
split = 3
[random_faults]
from_ms = 3000
crashes_per_min = 6
freezes_per_min = 6
cuts_per_min = 6
partitions_per_min = 3
lane_errors_per_min = 6
tensor_spells_per_min = 3
"#;

#[test]
fn the_same_seed_gives_the_same_trace() {
    let scenario = scenario(WILD);
    let run = |seed| run(&scenario, Seed(seed), Options { trace: true });
    let (first, again, other) = (run(5), run(5), run(6));
    assert!(first.trace.as_ref().is_some_and(|text| text.lines().count() > 1_000));
    assert!(first.trace == again.trace, "two runs of one seed differ");
    assert_eq!(first.trace_hash, again.trace_hash);
    assert_ne!(first.trace_hash, other.trace_hash);
}

#[test]
fn drawn_faults_are_the_same_when_they_are_written_out() {
    let drawn = expand(&scenario(WILD), Seed(5));
    assert!(drawn.faults.len() > 3 && drawn.random_faults.is_none());
    let written = Scenario::parse(&drawn.to_toml()).expect("what is written can be read");
    assert_eq!(written, drawn);
    let (by_chance, by_clock) = (run(&scenario(WILD), Seed(5), Options::default()), run(&written, Seed(5), Options::default()));
    assert_eq!(by_chance.trace_hash, by_clock.trace_hash);
}
