//! Every checker can fail: with a mistake in the shipped cores, made on purpose, it does.
//!
//! `cargo test -p mesh-simulations --features mutations --test mutations`
#![cfg(feature = "mutations")]

use mesh_core::mutation::{Mutation, make};
use mesh_simulations::{Options, Scenario, Seed, run};

/// The checks that break under a mistake, of the first seed where one does; and that none does without it.
fn caught(text: &str, mutation: Mutation) -> Vec<&'static str> {
    let scenario = Scenario::parse(text).expect("a scenario");
    for seed in 1..=8 {
        make(None);
        let clean = run(&scenario, Seed(seed), Options::default());
        assert!(clean.is_green(), "seed {seed} without a mistake: {:#?}", clean.violations);
        make(Some(mutation));
        let outcome = run(&scenario, Seed(seed), Options::default());
        make(None);
        if !outcome.is_green() {
            return outcome.violations.iter().map(|violation| violation.check).collect();
        }
    }
    Vec::new()
}

const LYING: &str = r#"
title = "lanes that double and lose"
world = { run_s = 20, heal_s = 60, token_ms = 5000, credit_ms = 4000, lease_ms = 100000 }
traffic = { per_s = 3, patience_ms = 40000, ask = ["n1"] }
deployments = [{ split = 3 }]
[[nodes]]
name = "n"
count = 3
"#;

#[test]
fn rows_taken_as_they_come_give_wrong_tokens() {
    let spell = r#"
    [[faults]]
    at_ms = 4000
    tensors = ["n1", "n2"]
    duplicate = 0.2
    raw = true
    for_ms = 10000
    [[faults]]
    at_ms = 4000
    tensors = ["n2", "n3"]
    duplicate = 0.2
    raw = true
    for_ms = 10000
    [[faults]]
    at_ms = 4000
    tensors = ["n1", "n3"]
    duplicate = 0.2
    raw = true
    for_ms = 10000
    "#;
    let checks = caught(&format!("{LYING}{spell}"), Mutation::SkipFencing);
    assert!(checks.contains(&"P2"), "{checks:?}");
}

#[test]
fn a_forgotten_deadline_is_a_silence() {
    let spell = r#"
    [[faults]]
    at_ms = 4000
    tensors = ["n1", "n2"]
    drop = 0.05
    raw = true
    for_ms = 10000
    [[faults]]
    at_ms = 4000
    tensors = ["n2", "n3"]
    drop = 0.05
    raw = true
    for_ms = 10000
    [[faults]]
    at_ms = 4000
    tensors = ["n1", "n3"]
    drop = 0.05
    raw = true
    for_ms = 10000
    "#;
    let checks = caught(&format!("{LYING}{spell}"), Mutation::ForgetDeadline);
    assert!(checks.iter().any(|check| ["P3", "P4"].contains(check)), "{checks:?}");
}

#[test]
fn a_doubled_token_is_seen_by_the_client() {
    let checks = caught(LYING, Mutation::DoubleToken);
    assert!(checks.contains(&"P1"), "{checks:?}");
}

#[test]
fn two_plans_of_the_same_numbers_never_agree() {
    let text = r#"
    title = "the coordinator dies as its mesh falls in halves"
    world = { run_s = 20, heal_s = 20 }
    traffic.per_s = 0
    deployments = [{ split = 2, on = "n1" }]
    [[nodes]]
    name = "n"
    count = 5
    [[faults]]
    at_ms = 5000
    power = "n1"
    for_good = true
    [[faults]]
    at_ms = 5000
    partition = [["n2", "n3"], ["n4", "n5"]]
    for_ms = 10000
    "#;
    let checks = caught(text, Mutation::NumbersForHash);
    assert!(checks.contains(&"convergence"), "{checks:?}");
}

#[test]
fn a_deletion_that_numbers_can_undo_is_undone() {
    let text = r#"
    title = "deleted on one side, taken over twice on the other"
    world = { run_s = 40, heal_s = 30 }
    traffic.per_s = 0
    deployments = [{ split = 1, on = "n1" }, { at_ms = 2000, on = "n2", split = 1, streams = 2, delete_at_ms = 8000 }]
    [[nodes]]
    name = "n"
    count = 5
    [[faults]]
    at_ms = 6000
    partition = [["n2"], ["n1", "n3", "n4", "n5"]]
    for_ms = 30000
    [[faults]]
    at_ms = 12000
    crash = "n1"
    for_good = true
    [[faults]]
    at_ms = 20000
    crash = "n3"
    for_ms = 4000
    [[faults]]
    at_ms = 26000
    crash = "n4"
    for_ms = 4000
    [[faults]]
    at_ms = 32000
    crash = "n5"
    for_ms = 2000
    "#;
    let checks = caught(text, Mutation::ResurrectTombstone);
    assert!(checks.iter().any(|check| ["resurrection", "convergence"].contains(check)), "{checks:?}");
}

#[test]
fn a_plan_of_the_dead_is_not_obeyed() {
    // n1 plans anew and dies; n3, frozen, has its record unread. n2 holds n1 dead, cannot write a plan of its own for the
    // moment, and hears the dead one's from n3.
    let text = r#"
    title = "the last will of a coordinator"
    world = { run_s = 20, heal_s = 30 }
    traffic.per_s = 0
    deployments = [{ split = 3, on = "n1" }]
    [[nodes]]
    name = "n"
    count = 4
    [[faults]]
    at_ms = 5900
    full_disk = "n2"
    for_ms = 1900
    [[faults]]
    at_ms = 5950
    freeze = "n3"
    for_ms = 1900
    [[faults]]
    at_ms = 5990
    one_way = ["n1", "n2"]
    for_ms = 5000
    [[faults]]
    at_ms = 6000
    crash = "n4"
    for_ms = 6000
    [[faults]]
    at_ms = 6020
    power = "n1"
    for_good = true
    "#;
    let checks = caught(text, Mutation::ObeyTheDead);
    assert!(checks.contains(&"R9"), "{checks:?}");
}
