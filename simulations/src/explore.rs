//! Many seeds side by side, and fewer faults for one that fails.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use crate::dice::Seed;
use crate::draw::expand;
use crate::outcome::Outcome;
use crate::run::{Options, run};
use crate::scenario::{FaultLine, Scenario};

/// What many seeds gave.
#[derive(Debug, Default)]
pub struct Explored {
    /// Seeds that kept every promise.
    pub green: u64,
    /// The others, in order of seeds.
    pub failed: Vec<Outcome>,
}

/// Runs every seed of a range, `jobs` at a time, each world on a thread of its own. `done` hears of each as it ends, in no
/// particular order, and says whether to go on.
pub fn explore(scenario: &Scenario, seeds: Range<u64>, jobs: usize, mut done: impl FnMut(&Outcome) -> bool) -> Explored {
    let next = AtomicU64::new(seeds.start);
    let mut explored = Explored::default();
    std::thread::scope(|scope| {
        let (outcomes, heard) = mpsc::sync_channel::<Outcome>(jobs.max(1));
        for _ in 0..jobs.max(1) {
            let (outcomes, next, end) = (outcomes.clone(), &next, seeds.end);
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end || outcomes.send(run(scenario, Seed(seed), Options::default())).is_err() {
                        return;
                    }
                }
            });
        }
        drop(outcomes);
        for outcome in heard {
            let goes_on = done(&outcome);
            if outcome.is_green() {
                explored.green += 1
            } else {
                explored.failed.push(outcome)
            }
            if !goes_on {
                next.store(seeds.end, Ordering::Relaxed);
            }
        }
    });
    explored.failed.sort_by_key(|outcome| outcome.seed);
    explored
}

/// Takes faults out, as long as the same promise stays broken: first halves, then single ones. The drawn faults stand in the
/// result by themselves, so that it can be written to a file and run. A scenario that does not fail comes back as it is.
#[must_use]
pub fn shrink(scenario: &Scenario, seed: Seed) -> Scenario {
    let whole = expand(scenario, seed);
    let first = run(&whole, seed, Options::default());
    let Some(check) = first.violations.first().map(|violation| violation.check) else { return scenario.clone() };
    let fails = |faults: &[FaultLine]| {
        let fewer = Scenario { faults: faults.to_vec(), ..whole.clone() };
        run(&fewer, seed, Options::default()).violations.iter().any(|violation| violation.check == check)
    };
    let mut faults = whole.faults.clone();
    let mut chunk = faults.len().div_ceil(2).max(1);
    loop {
        let mut at = 0;
        let mut shorter = false;
        while at < faults.len() {
            let rest: Vec<FaultLine> =
                faults.iter().enumerate().filter(|(index, _)| !(at..at + chunk).contains(index)).map(|(_, fault)| fault.clone()).collect();
            if fails(&rest) {
                faults = rest;
                shorter = true;
            } else {
                at += chunk;
            }
        }
        if chunk == 1 && !shorter {
            break;
        }
        chunk = (chunk / 2).max(1);
    }
    Scenario { faults, ..whole }
}
