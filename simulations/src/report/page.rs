//! What a report's page draws: a run as lanes over time and as a story in sentences, in the words of a reader.
//!
//! Made from an [`Outcome`], whose timeline has the lanes; what is added here is what a person asks first: how it ended,
//! which figures matter, what happened in which order. All times are milliseconds of virtual time.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::outcome::{Kind, Outcome};
use crate::scenario::Scenario;
use crate::timeline::{FaultMark, NodeLane, RequestLane, Span, Timeline};

/// Sentences in a story at most: a world of an hour has more than anybody reads.
const STORY_MAX: usize = 2_000;

/// The page's data.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Page {
    /// The scenario's title.
    pub title: String,
    /// What it is about.
    pub about: String,
    /// The seed, as it is typed.
    pub seed: String,
    /// The command that repeats this run.
    pub repeat: String,
    /// How it ended.
    pub verdict: Verdict,
    /// What was broken, in order of time.
    pub violations: Vec<Broken>,
    /// Figures in words, in the order of display.
    pub figures: Vec<Figure>,
    /// What happened, in sentences, in order of time.
    pub story: Vec<Sentence>,
    /// The lanes.
    pub timeline: Timeline,
    /// Every machine's make, in the timeline's order.
    pub machines: Vec<String>,
    /// Silences longer than this are drawn as gaps.
    pub gap_ms: f64,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Every promise was kept.
    #[default]
    Kept,
    /// A promise was broken.
    Broken,
    /// Nothing wrong was done, but the world did not come to rest, or made no progress, after it was healed.
    Stuck,
}

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Broken {
    /// When it showed.
    pub at_ms: f64,
    /// Which: `P1`, `convergence`, `assert`.
    pub promise: String,
    /// What was seen, with names and numbers.
    pub what: String,
}

/// A figure and its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Figure {
    /// Its name, for people.
    pub name: &'static str,
    /// Its value, with unit.
    pub value: String,
}

/// A sentence of the story.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sentence {
    /// When.
    pub at_ms: f64,
    /// What it is about: colours its line.
    pub kind: SentenceKind,
    /// The sentence.
    pub text: String,
}

/// What a sentence is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SentenceKind {
    /// The world broke something.
    Fault,
    /// The world mended something.
    Heal,
    /// Nodes started, noticed, planned.
    Mesh,
    /// A client's answer broke off, or it gave up.
    Client,
    /// A promise was broken.
    Violation,
}

impl Page {
    /// Of a run; `repeat` is the command that runs it again.
    #[must_use]
    pub fn of(scenario: &Scenario, outcome: &Outcome, repeat: String) -> Self {
        let verdict = match outcome.violations.iter().map(|violation| violation.kind).min() {
            None => Verdict::Kept,
            Some(Kind::Safety) => Verdict::Broken,
            Some(Kind::Liveness) => Verdict::Stuck,
        };
        let violations = outcome.violations.iter().map(|violation| Broken {
            at_ms: float(violation.at_ms),
            promise: violation.check.to_owned(),
            what: violation.text.clone(),
        });
        let violations: Vec<Broken> = violations.collect();
        let machines = scenario.machines().into_iter().map(|machine| {
            let line = machine.line;
            let (memory, bandwidth, compute, disk) = (line.memory_gb, line.bandwidth_gb_s, line.gflops, line.disk_mb_s);
            format!("{}: {memory} GB for models, reads memory at {bandwidth} GB/s and disk at {disk} MB/s, {compute} GFLOP/s", machine.name)
        });
        Self {
            title: scenario.title.clone(),
            about: scenario.about.trim().to_owned(),
            seed: format!("{:#x}", outcome.seed),
            repeat,
            verdict,
            figures: figures(&outcome.metrics),
            story: story(&outcome.timeline, &violations),
            violations,
            timeline: outcome.timeline.clone(),
            machines: machines.collect(),
            gap_ms: 400.0,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "milliseconds of a week are exact enough")]
fn float(ms: u64) -> f64 {
    ms as f64
}

/// The figures that a person looks for first; one that was not measured is left out.
fn figures(metrics: &crate::outcome::Metrics) -> Vec<Figure> {
    let number = |name: &str| metrics.get(name).copied();
    let ms = |value: f64| if value >= 1e4 { format!("{:.1} s", value / 1e3) } else { format!("{value:.0} ms") };
    let count = |value: f64| format!("{value:.0}");
    let mut figures = Vec::new();
    let mut put = |name, value: Option<String>| figures.extend(value.map(|value| Figure { name, value }));
    let whole = number("finished_requests").zip(number("requests"));
    put("answers whole", whole.map(|(whole, all)| format!("{whole:.0} of {all:.0}")));
    put("answers broken off", number("failed_requests").map(count));
    put("tokens", number("tokens").map(count));
    put("longest silence", number("longest_gap_ms").map(ms));
    put("error came after", number("longest_failure_ms").map(ms));
    put("death known by all after", number("death_known_ms_max").map(ms));
    put("held dead in error", number("false_deaths").map(count));
    put("longest not ready", number("longest_not_ready_ms").map(ms));
    put("plans", number("plans").map(count));
    put("weights read again", number("reloaded_mb").map(|mb| format!("{mb:.0} MB")));
    put("agreed after the healing", number("converged_ms").map(ms));
    put("control traffic, busiest node", number("control_bytes_s_max").map(|bytes| format!("{:.1} KiB/s", bytes / 1024.0)));
    figures
}

/// The lanes as sentences.
fn story(timeline: &Timeline, violations: &[Broken]) -> Vec<Sentence> {
    let mut story = Vec::new();
    let mut say = |at_ms: f64, kind, text: String| story.push(Sentence { at_ms, kind, text });
    for FaultMark { what, from_ms, to_ms, .. } in &timeline.faults {
        say(*from_ms, SentenceKind::Fault, format!("fault: {what}"));
        if *to_ms < timeline.end_ms && to_ms > from_ms {
            say(*to_ms, SentenceKind::Heal, format!("over: {what}"));
        }
    }
    if let Some(at_ms) = timeline.healed_ms {
        say(at_ms, SentenceKind::Heal, "everything is healed: from here on progress is demanded".to_owned());
    }
    for node in &timeline.nodes {
        node.notes.iter().for_each(|note| say(note.at_ms, SentenceKind::Mesh, format!("{}: {}", node.name, note.text)));
    }
    for (at_ms, text) in views(&timeline.nodes) {
        say(at_ms, SentenceKind::Mesh, text);
    }
    for (index, deployment) in timeline.deployments.iter().enumerate() {
        let which = if timeline.deployments.len() > 1 { format!("deployment {index}") } else { "the deployment".to_owned() };
        deployment.states.iter().for_each(|span| say(span.from_ms, SentenceKind::Mesh, format!("{which} is {}", span.label)));
    }
    for (at_ms, text) in ends(&timeline.requests) {
        say(at_ms, SentenceKind::Client, text);
    }
    for violation in violations {
        say(violation.at_ms, SentenceKind::Violation, format!("{} is broken: {}", violation.promise, violation.what));
    }
    story.sort_by(|a, b| a.at_ms.total_cmp(&b.at_ms).then(a.kind.cmp(&b.kind)));
    story.truncate(STORY_MAX);
    story
}

/// Who began to doubt whom: one sentence for all that did so within the same hundred milliseconds.
fn views(nodes: &[NodeLane]) -> Vec<(f64, String)> {
    let mut said = Vec::new();
    for node in nodes {
        let mut dead: Vec<(f64, &str)> =
            node.seen.iter().filter_map(|Span { from_ms, label, .. }| Some((*from_ms, label.strip_prefix("dead to ")?))).collect();
        dead.sort_by(|a, b| a.0.total_cmp(&b.0));
        while let Some(&(at_ms, _)) = dead.first() {
            let together = dead.iter().take_while(|view| view.0 - at_ms < 100.0).count();
            let by: Vec<&str> = dead.drain(..together).map(|view| view.1).collect();
            let holds = if by.len() == 1 { "holds" } else { "hold" };
            said.push((at_ms, format!("{} {holds} {} dead", by.join(", "), node.name)));
        }
    }
    said
}

/// Answers that did not come to a good end: one sentence for all that ended alike at once.
fn ends(requests: &[RequestLane]) -> Vec<(f64, String)> {
    let mut alike = BTreeMap::<(u64, &str), Vec<String>>::new();
    for request in requests.iter().filter(|request| !request.whole) {
        if let Some(at_ms) = request.end_ms {
            alike.entry((at_ms.to_bits(), &request.end)).or_default().push(format!("r{}", request.request));
        }
    }
    alike.into_iter().map(|((at, end), names)| (f64::from_bits(at), format!("{} {end}", names.join(", ")))).collect()
}
