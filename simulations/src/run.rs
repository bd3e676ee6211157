//! One world from its beginning to its judgement.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::checks::{Evidence, figures, float, judge};
use crate::dice::Seed;
use crate::draw::expand;
use crate::outcome::{Kind, Outcome, Violation};
use crate::scenario::Scenario;
use crate::timeline::{Timeline, ms};
use crate::world::{World, drive};

/// How a world is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Keep the trace as text: every message is a line.
    pub trace: bool,
}

/// Runs one world on this thread and judges it. Takes as long as it computes; no time passes in it otherwise.
#[must_use]
pub fn run(scenario: &Scenario, seed: Seed, options: Options) -> Outcome {
    let drawn = expand(scenario, seed);
    let mut kept = None;
    let ran = catch_unwind(AssertUnwindSafe(|| {
        drive(|| {
            let world = World::new(drawn.clone(), seed, options.trace);
            kept = Some((world.outside(), world.ground()));
            world
        });
    }));
    let (outside, ground) = kept.expect("a world is made before it runs");
    let panicked = ran.err().map(|panic| {
        let words = panic.downcast_ref::<&str>().map(|text| (*text).to_owned()).or_else(|| panic.downcast_ref::<String>().cloned());
        let text = format!("the world panicked: {}", words.unwrap_or_default());
        Violation { kind: Kind::Safety, check: "panic", at_ms: ground.now_ns() / 1_000_000, text }
    });

    let end_ns = ground.now_ns();
    let (moments, names, hash, text, bytes, false_deaths, events) = ground.with(|inner| {
        let net = &mut inner.net;
        let moments = std::mem::take(&mut net.trace.moments);
        (moments, inner.names.clone(), net.trace.hash(), net.trace.take_text(), net.control_bytes.clone(), net.false_deaths, net.queue.done)
    });
    let disturbed = outside.disturbed(end_ns);
    let sheet = outside.sheet().clone();
    let book = outside.book.borrow();
    let story = crate::story::reference(scenario);
    let evidence = Evidence {
        scenario,
        sheet: &sheet,
        names: &names,
        moments: &moments,
        requests: &book.requests,
        disturbed: &disturbed,
        end_ns,
        expected: &story,
    };
    let mut metrics = figures(&evidence);
    let measured = [
        ("first_ready_ms", book.seen().first_ready().map(ms)),
        ("longest_not_ready_ms", book.seen().first_ready().map(|_| ms(book.seen().longest_not_ready(end_ns)))),
        ("converged_ms", book.converged_after().map(ms)),
        ("false_deaths", Some(float(false_deaths))),
        ("events", Some(float(events))),
        ("control_bytes_s_max", Some(float(bytes.iter().copied().max().unwrap_or(0)) / (ms(end_ns) / 1e3).max(1e-3))),
    ];
    metrics.extend(measured.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    let mut violations: Vec<Violation> = book.violations.iter().cloned().chain(panicked).chain(judge(&evidence, &metrics)).collect();
    violations.sort_by(|a, b| (a.at_ms, a.check).cmp(&(b.at_ms, b.check)));
    Outcome {
        title: scenario.title.clone(),
        seed: seed.0,
        violations,
        metrics,
        timeline: Timeline::of(&names, &drawn.faults, &moments, end_ns),
        faults: drawn.faults,
        trace_hash: hash,
        trace: text,
    }
}
