//! The judges: they see what was asked and what came, what nodes said and wrote, what was loaded; nothing of the inside.
//!
//! P1 and what concerns the end (P4, convergence, ghosts, resurrection) are judged as the world runs, by the clients, the
//! observer and the closing; the rest here, from what was written down.

use std::collections::BTreeMap;

use mesh_core::generation::{GenerationRequest, Sampling};
use mesh_core::model::ModelSheet;
use mesh_core::toy;

use crate::happening::{End, Happening, Moment, View};
use crate::outcome::{Demand, Kind, Metrics, Violation};
use crate::outside::Request;
use crate::scenario::{EngineKind, Promise, Scenario};
use crate::timeline::ms;

const MS: u64 = 1_000_000;
/// Why a life ends that nobody ended.
pub(crate) const OVER: &str = "the world is over";
/// Beyond a stream's own deadlines: what its messages and timers may take. (Guess.)
const SLACK_MS: u64 = 3_000;

/// Everything that a judge may look at.
pub(crate) struct Evidence<'a> {
    pub scenario: &'a Scenario,
    pub sheet: &'a ModelSheet,
    pub names: &'a [String],
    pub moments: &'a [Moment],
    pub requests: &'a [Request],
    /// By machine: from when to when it was frozen or its clock jumped, if ever.
    pub disturbed: &'a [Option<(u64, u64)>],
    pub end_ns: u64,
    /// What the answers should have been, of the real model: by request.
    pub expected: &'a dyn Fn(&GenerationRequest) -> Vec<u32>,
}

/// What is broken.
pub(crate) fn judge(evidence: &Evidence<'_>, metrics: &Metrics) -> Vec<Violation> {
    let mut broken = Vec::new();
    answers(evidence, &mut broken);
    silences(evidence, &mut broken);
    weights(evidence, &mut broken);
    readiness(evidence, &mut broken);
    obedience(evidence, &mut broken);
    for demand in &evidence.scenario.asserts {
        let judged = demand.parse::<Demand>().and_then(|demand| demand.judge(metrics));
        if let Err(why) = judged {
            let text = format!("{demand} does not hold: {why}");
            broken.push(Violation { kind: Kind::Safety, check: "assert", at_ms: evidence.end_ns / MS, text });
        }
    }
    broken
}

/// P2: what came is a beginning of what an undisturbed run gives; a whole answer is all of it. And the scenario's promise.
fn answers(evidence: &Evidence<'_>, broken: &mut Vec<Violation>) {
    for (index, request) in evidence.requests.iter().enumerate() {
        let at_ms = request.signs.last().copied().unwrap_or(0) / MS;
        let mut wrong = |check, text: String| broken.push(Violation { kind: Kind::Safety, check, at_ms, text });
        let asked = GenerationRequest {
            prompt: request.prompt.clone(),
            sampling: Sampling { seed: request.seed, ..Sampling::default() },
            end_ids: Vec::new(),
            max_tokens: request.answer_max,
        };
        if !request.tokens.is_empty() {
            let due = match evidence.scenario.world.engine {
                EngineKind::Toy => toy::reference(evidence.sheet, &asked, evidence.scenario.model.context).0,
                EngineKind::Story => (evidence.expected)(&asked),
            };
            if let Some(place) = request.tokens.iter().zip(&due).position(|(came, due)| came != due) {
                let (came, due) = (request.tokens[place], due[place]);
                wrong("P2", format!("request {index}: token {place} is {came}, an undisturbed run gives {due}"));
            } else if request.tokens.len() > due.len() {
                wrong("P2", format!("request {index}: {} tokens, an undisturbed run gives {}", request.tokens.len(), due.len()));
            } else if matches!(request.end, Some(End::Finished(_))) && request.tokens.len() != due.len() {
                wrong("P2", format!("request {index} is finished with {} tokens of {}", request.tokens.len(), due.len()));
            }
        }
        match &request.end {
            Some(End::Failed(why)) if why.is_empty() => wrong("P4", format!("request {index} failed without a word")),
            Some(End::Failed(why)) if request.began && evidence.scenario.promise == Promise::Survive => {
                wrong("survive", format!("request {index} began and failed, though its owner lives: {why}"));
            }
            _ => {}
        }
    }
}

/// P3: no silence is longer than it may be, as long as the owner could act.
fn silences(evidence: &Evidence<'_>, broken: &mut Vec<Violation>) {
    let world = &evidence.scenario.world;
    for (index, request) in evidence.requests.iter().enumerate() {
        if !request.began || matches!(request.end, Some(End::Lost(_))) || disturbed(evidence, request) {
            continue;
        }
        let prompt_ms = 50 * request.prompt.len() as u64;
        let bound_ms = world.gap_ms_max.unwrap_or(world.token_ms + prompt_ms + 3_000 + SLACK_MS);
        // A client that hung up or gave up may have been in the middle of a silence that was still allowed.
        let (gap, at) = longest_gap(&request.signs);
        if gap > bound_ms * MS {
            let text = format!("request {index} was silent for {} ms, {bound_ms} are allowed", gap / MS);
            broken.push(Violation { kind: Kind::Liveness, check: "P3", at_ms: at / MS, text });
        }
    }
}

/// Whether the owner was frozen, or its clock jumped, while it answered: then its deadlines moved (R8).
fn disturbed(evidence: &Evidence<'_>, request: &Request) -> bool {
    let (Some((place, _)), Some(first), Some(last)) = (request.owner, request.signs.first(), request.signs.last()) else { return false };
    evidence.disturbed[place].is_some_and(|(from, until)| from <= *last && *first <= until)
}

/// The longest silence between two signs, and when it ended.
fn longest_gap(signs: &[u64]) -> (u64, u64) {
    signs.windows(2).map(|pair| (pair[1] - pair[0], pair[1])).max().unwrap_or((0, 0))
}

/// P5: no process reads a weight again that it holds.
fn weights(evidence: &Evidence<'_>, broken: &mut Vec<Violation>) {
    for moment in evidence.moments {
        match &moment.what {
            Happening::Loaded { node, first, end, again_bytes, .. } if *again_bytes > 0 => {
                let text = format!("{} read {again_bytes} bytes of {first}..{end} again that it held", evidence.names[*node]);
                broken.push(Violation { kind: Kind::Safety, check: "P5", at_ms: moment.at_ns / MS, text });
            }
            // Noted where it was seen; told here.
            Happening::Violated { check: "memory", text } => {
                let text = text.clone();
                broken.push(Violation { kind: Kind::Safety, check: "memory", at_ms: moment.at_ns / MS, text });
            }
            _ => {}
        }
    }
}

/// P6: whoever writes "ready" for a plan first has a last stage that chose a token since its layers were loaded. (A successor
/// re-issues a plan that was ready, and then plans anew if it has to: R10.)
fn readiness(evidence: &Evidence<'_>, broken: &mut Vec<Violation>) {
    let mut spoke = vec![false; evidence.names.len()];
    let mut proven = std::collections::BTreeSet::new();
    for moment in evidence.moments {
        match &moment.what {
            Happening::Started { node, .. } | Happening::Ended { node, .. } => spoke[*node] = false,
            Happening::Loaded { node, error, .. } if error.is_empty() => spoke[*node] = false,
            Happening::FirstToken { node } => spoke[*node] = true,
            Happening::Saved { node, status, plan, author: true, .. } if status == "ready" => {
                let last = plan.rsplit(", ").next().and_then(|stage| stage.split(' ').next());
                let last = last.and_then(|name| evidence.names.iter().position(|other| other == name));
                if !proven.insert(plan) {
                    continue;
                }
                if last.is_some_and(|last| !spoke[last]) {
                    let text = format!("{} says ready, and no token has come out of [{plan}]", evidence.names[*node]);
                    broken.push(Violation { kind: Kind::Safety, check: "P6", at_ms: moment.at_ns / MS, text });
                }
            }
            _ => {}
        }
    }
}

/// R9: nobody reads weights for a plan that came after its author was held dead.
fn obedience(evidence: &Evidence<'_>, broken: &mut Vec<Violation>) {
    if evidence.scenario.deployments.len() != 1 {
        return; // which deployment a load is for does not show
    }
    let mut dead: BTreeMap<(usize, usize), bool> = BTreeMap::new();
    let mut newest: BTreeMap<usize, ([u64; 3], Option<usize>)> = BTreeMap::new();
    for moment in evidence.moments {
        match &moment.what {
            Happening::Started { node, .. } => {
                newest.remove(node);
                dead.retain(|key, _| key.0 != *node);
            }
            Happening::Saw { by, node, view, .. } => {
                dead.insert((*by, *node), *view == View::Down);
                // An author that is met again may be obeyed.
                if *view != View::Down
                    && let Some((_, author)) = newest.get_mut(by).filter(|newest| newest.1 == Some(*node))
                {
                    *author = None;
                }
            }
            Happening::Saved { node, version, by, author, .. } => {
                let from_the_dead = by.filter(|by| !author && dead.get(&(*node, *by)) == Some(&true));
                if newest.get(node).is_none_or(|known| known.0 < *version) {
                    newest.insert(*node, (*version, from_the_dead));
                }
            }
            Happening::Loading { node, .. } => {
                if let Some((_, Some(author))) = newest.get(node) {
                    let text = format!(
                        "{} loads for a plan of {}, which it held dead when it heard of it",
                        evidence.names[*node], evidence.names[*author]
                    );
                    broken.push(Violation { kind: Kind::Safety, check: "R9", at_ms: moment.at_ns / MS, text });
                }
            }
            _ => {}
        }
    }
}

/// Figures.
pub(crate) fn figures(evidence: &Evidence<'_>) -> Metrics {
    let mut metrics = Metrics::new();
    let requests = evidence.requests;
    let count = |which: &dyn Fn(&Request) -> bool| float(requests.iter().filter(|request| which(request)).count() as u64);
    metrics.insert("requests".to_owned(), float(requests.len() as u64));
    metrics.insert("finished_requests".to_owned(), count(&|request| matches!(request.end, Some(End::Finished(_)))));
    metrics
        .insert("failed_requests".to_owned(), count(&|request| matches!(request.end, Some(End::Failed(_) | End::Lost(_) | End::GaveUp))));
    metrics.insert("hung_up_requests".to_owned(), count(&|request| request.end == Some(End::HungUp)));
    metrics.insert("tokens".to_owned(), float(requests.iter().map(|request| request.tokens.len() as u64).sum()));
    let whole = requests.iter().filter(|request| request.began);
    let gap =
        whole.clone().filter(|request| matches!(request.end, Some(End::Finished(_)))).map(|request| longest_gap(&request.signs).0).max();
    if let Some(gap) = gap {
        metrics.insert("longest_gap_ms".to_owned(), ms(gap));
    }
    let failed = whole.filter(|request| matches!(request.end, Some(End::Failed(_)))).filter_map(|request| {
        let [.., before, last] = request.signs[..] else { return None };
        Some(last - before)
    });
    if let Some(failure) = failed.max() {
        metrics.insert("longest_failure_ms".to_owned(), ms(failure));
    }
    deaths(evidence, &mut metrics);
    let mut loaded = (0, 0, 0);
    for moment in evidence.moments {
        match &moment.what {
            Happening::Loaded { bytes, again_bytes, .. } => (loaded.0, loaded.1) = (loaded.0 + bytes, loaded.1 + again_bytes),
            Happening::Saved { author: true, status, .. } if status == "starting" => loaded.2 += 1,
            _ => {}
        }
    }
    metrics.insert("loaded_mb".to_owned(), float(loaded.0) / 1e6);
    metrics.insert("reloaded_mb".to_owned(), float(loaded.1) / 1e6);
    metrics.insert("plans".to_owned(), float(loaded.2));
    metrics
}

/// How long it took until everybody who could know, knew of a death.
fn deaths(evidence: &Evidence<'_>, metrics: &mut Metrics) {
    let mut sees: BTreeMap<(usize, usize), bool> = BTreeMap::new();
    let mut dead: BTreeMap<usize, u64> = BTreeMap::new();
    let mut awaited: BTreeMap<(usize, usize), u64> = BTreeMap::new();
    let (mut count, mut longest) = (0_u64, None);
    for moment in evidence.moments {
        match &moment.what {
            Happening::Ended { node, why, .. } if why != OVER => {
                awaited.retain(|key, _| key.0 != *node);
                sees.retain(|key, _| key.0 != *node);
                dead.insert(*node, moment.at_ns);
                count += 1;
                let by: Vec<(usize, usize)> = sees.iter().filter(|(key, up)| key.1 == *node && **up).map(|(key, _)| *key).collect();
                awaited.extend(by.into_iter().map(|key| (key, moment.at_ns)));
            }
            Happening::Started { node, .. } => drop(dead.remove(node)),
            Happening::Frozen { node } => awaited.retain(|key, _| key.0 != *node),
            Happening::Saw { by, node, view, .. } => {
                sees.insert((*by, *node), !matches!(view, View::Down));
                if *view == View::Down
                    && let Some(since) = awaited.remove(&(*by, *node))
                {
                    longest = longest.max(Some(moment.at_ns - since));
                }
            }
            _ => {}
        }
    }
    metrics.insert("deaths".to_owned(), float(count));
    if let Some(longest) = longest {
        metrics.insert("death_known_ms_max".to_owned(), ms(longest));
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts are small")]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}
