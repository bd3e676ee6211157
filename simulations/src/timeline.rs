//! A world as lanes: what a report draws. Made from what happened, and nothing else.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::happening::{End, Happening, Moment, View};
use crate::scenario::FaultLine;

/// All lanes. Times are milliseconds since the world began.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Timeline {
    /// When the world ended.
    pub end_ms: f64,
    /// When everything was mended.
    pub healed_ms: Option<f64>,
    /// One for each machine, in the order of the scenario.
    pub nodes: Vec<NodeLane>,
    /// One for each deployment, in the order of the scenario.
    pub deployments: Vec<DeploymentLane>,
    /// One for each question.
    pub requests: Vec<RequestLane>,
    /// What broke.
    pub faults: Vec<FaultMark>,
    /// Tensor lanes between nodes.
    pub lanes: Vec<TensorLane>,
}

/// A machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NodeLane {
    /// Its name.
    pub name: String,
    /// What its process did: `running`, `frozen`. Nothing = it was not there.
    pub states: Vec<Span>,
    /// When others suspected it or held it dead: the label is `suspected by b`, `dead to b`.
    pub seen: Vec<Span>,
    /// What its shards did: the label is `0..12 loading`.
    pub shards: Vec<Span>,
    /// What it told its operator, and starts and ends in words.
    pub notes: Vec<Note>,
}

/// From here to there.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Span {
    /// Begin.
    pub from_ms: f64,
    /// End.
    pub to_ms: f64,
    /// What.
    pub label: String,
}

/// At one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Note {
    /// When.
    pub at_ms: f64,
    /// What.
    pub text: String,
}

/// A deployment: what its newest record said.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DeploymentLane {
    /// The label is `ready`, `loading`, … with the plan: `ready, term 1 epoch 2: a 0..12, b 12..24`.
    pub states: Vec<Span>,
}

/// A question.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RequestLane {
    /// Counts them from 0.
    pub request: usize,
    /// Whom the client asked, each time it did.
    pub asked: Vec<Note>,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens wanted at most.
    pub answer_max: u32,
    /// When each token came.
    pub tokens: Vec<f64>,
    /// When it was over.
    pub end_ms: Option<f64>,
    /// How, in words.
    pub end: String,
    /// Whether it was whole.
    pub whole: bool,
}

/// A fault.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FaultMark {
    /// In words: `crash b for 3000 ms`.
    pub what: String,
    /// Begin.
    pub from_ms: f64,
    /// End; that of the world if it never did.
    pub to_ms: f64,
    /// Names of the nodes that it is about.
    pub nodes: Vec<String>,
}

/// Tensor lanes from one node to another.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TensorLane {
    /// The sender's name.
    pub from: String,
    /// The receiver's name.
    pub to: String,
    /// When one was up; the label is its kind.
    pub up: Vec<Span>,
    /// Why they ended.
    pub breaks: Vec<Note>,
}

#[expect(clippy::cast_precision_loss, reason = "a week in nanoseconds is exact enough")]
pub(crate) fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// Spans that are open, by what they are about.
#[derive(Default)]
struct Open<K: Ord>(BTreeMap<K, (f64, String)>);

impl<K: Ord> Open<K> {
    /// What lasted until now is over; something else begins, if `label` says so.
    fn turn(&mut self, spans: &mut Vec<Span>, key: K, at_ms: f64, label: Option<String>) {
        if let Some((from_ms, old)) = self.0.remove(&key) {
            if label.as_ref() == Some(&old) {
                self.0.insert(key, (from_ms, old));
                return;
            }
            spans.push(Span { from_ms, to_ms: at_ms, label: old });
        }
        if let Some(label) = label {
            self.0.insert(key, (at_ms, label));
        }
    }
}

#[derive(Default)]
struct Lanes {
    timeline: Timeline,
    names: Vec<String>,
    states: Open<usize>,
    seen: Open<(usize, usize)>,
    shards: Open<(usize, usize)>,
    deployments: Open<usize>,
    versions: BTreeMap<usize, [u64; 3]>,
    tensors: Open<(usize, usize)>,
    places: BTreeMap<(usize, usize), usize>,
}

impl Timeline {
    /// Of a world with nodes of these names.
    #[must_use]
    pub fn of(names: &[String], faults: &[FaultLine], moments: &[Moment], end_ns: u64) -> Self {
        let nodes = names.iter().map(|name| NodeLane { name: name.clone(), ..NodeLane::default() }).collect();
        let timeline = Self { end_ms: ms(end_ns), nodes, ..Self::default() };
        let mut lanes = Lanes { timeline, names: names.to_vec(), ..Lanes::default() };
        moments.iter().for_each(|moment| lanes.take(ms(moment.at_ns), &moment.what, faults));
        lanes.close(ms(end_ns));
        lanes.timeline
    }
}

impl Lanes {
    fn take(&mut self, at_ms: f64, what: &Happening, faults: &[FaultLine]) {
        match what {
            Happening::FaultBegins { index, what } => {
                let nodes = faults.get(*index).map(|fault| fault.kinds().into_iter().flat_map(|(_, nodes)| nodes).collect());
                let mark = FaultMark { what: what.clone(), from_ms: at_ms, to_ms: self.timeline.end_ms, nodes: nodes.unwrap_or_default() };
                self.timeline.faults.push(mark);
            }
            Happening::FaultEnds { index } => {
                let what = faults.get(*index).map(FaultLine::in_words);
                let open = self.timeline.faults.iter_mut().rev();
                if let Some(mark) = open.into_iter().find(|mark| Some(&mark.what) == what.as_ref()) {
                    mark.to_ms = at_ms;
                }
            }
            Happening::Healed => self.timeline.healed_ms = Some(at_ms),
            Happening::Started { node, incarnation, .. } => {
                self.state(*node, at_ms, Some("running"));
                self.note(*node, at_ms, format!("starts, incarnation {incarnation}"));
            }
            Happening::Ended { node, why, .. } => {
                self.state(*node, at_ms, None);
                self.note(*node, at_ms, why.clone());
                self.forget(*node, at_ms);
            }
            Happening::Frozen { node } => self.state(*node, at_ms, Some("frozen")),
            Happening::Thawed { node } => self.state(*node, at_ms, Some("running")),
            Happening::Saw { by, node, view, .. } => self.saw(*by, *node, *view, at_ms),
            Happening::Told { by, text } => self.note(*by, at_ms, text.clone()),
            Happening::Shard { node, deployment, first, end, state } => {
                let label = (first < end || state != "gone").then(|| format!("{first}..{end} {state}"));
                let label = label.filter(|_| state != "gone");
                if let Some(lane) = self.timeline.nodes.get_mut(*node) {
                    self.shards.turn(&mut lane.shards, (*node, *deployment), at_ms, label);
                }
            }
            Happening::Saved { deployment, version, status, plan, author: true, .. } => {
                let newer = self.versions.get(deployment).is_none_or(|known| known < version);
                if newer {
                    self.versions.insert(*deployment, *version);
                    let [term, epoch, _] = version;
                    let plan = if plan.is_empty() { String::new() } else { format!(": {plan}") };
                    let label = format!("{status}, term {term} epoch {epoch}{plan}");
                    let lanes = &mut self.timeline.deployments;
                    lanes.resize(lanes.len().max(deployment + 1), DeploymentLane::default());
                    self.deployments.turn(&mut lanes[*deployment].states, *deployment, at_ms, Some(label));
                }
            }
            Happening::Asked { request, on, prompt, answer_max, .. } => {
                let requests = &mut self.timeline.requests;
                if requests.len() <= *request {
                    requests.resize(request + 1, RequestLane::default());
                }
                let lane = &mut requests[*request];
                (lane.request, lane.prompt, lane.answer_max) = (*request, *prompt, *answer_max);
                lane.asked.push(Note { at_ms, text: self.names.get(*on).cloned().unwrap_or_default() });
            }
            Happening::Token { request, .. } => {
                if let Some(lane) = self.timeline.requests.get_mut(*request) {
                    lane.tokens.push(at_ms);
                }
            }
            Happening::Answered { request, end } => {
                if let Some(lane) = self.timeline.requests.get_mut(*request) {
                    (lane.end_ms, lane.whole) = (Some(at_ms), matches!(end, End::Finished(_)));
                    lane.end = match end {
                        End::Finished(why) => format!("finished: {why}"),
                        End::Failed(why) => format!("failed: {why}"),
                        End::Lost(why) => format!("lost: {why}"),
                        End::HungUp => "the client hung up".to_owned(),
                        End::GaveUp => "the client gave up waiting".to_owned(),
                    };
                }
            }
            Happening::LaneUp { from, to, kind } => self.lane(*from, *to, at_ms, Some(kind.clone()), None),
            Happening::LaneDown { from, to, why } => self.lane(*from, *to, at_ms, None, Some(why)),
            _ => {}
        }
    }

    fn state(&mut self, node: usize, at_ms: f64, label: Option<&str>) {
        if let Some(lane) = self.timeline.nodes.get_mut(node) {
            self.states.turn(&mut lane.states, node, at_ms, label.map(str::to_owned));
        }
    }

    fn note(&mut self, node: usize, at_ms: f64, text: String) {
        if let Some(lane) = self.timeline.nodes.get_mut(node) {
            lane.notes.push(Note { at_ms, text });
        }
    }

    fn saw(&mut self, by: usize, node: usize, view: View, at_ms: f64) {
        let name = self.names.get(by).cloned().unwrap_or_default();
        let label = match view {
            View::Up | View::Trusted => None,
            View::Suspect => Some(format!("suspected by {name}")),
            View::Down => Some(format!("dead to {name}")),
        };
        if let Some(lane) = self.timeline.nodes.get_mut(node) {
            self.seen.turn(&mut lane.seen, (node, by), at_ms, label);
        }
    }

    /// What a node that ended saw and held is gone with it.
    fn forget(&mut self, node: usize, at_ms: f64) {
        for other in 0..self.timeline.nodes.len() {
            self.seen.turn(&mut self.timeline.nodes[other].seen, (other, node), at_ms, None);
        }
        let held: Vec<_> = self.shards.0.keys().filter(|key| key.0 == node).copied().collect();
        held.into_iter().for_each(|key| self.shards.turn(&mut self.timeline.nodes[node].shards, key, at_ms, None));
    }

    fn lane(&mut self, from: usize, to: usize, at_ms: f64, label: Option<String>, why: Option<&String>) {
        let lanes = &mut self.timeline.lanes;
        let place = *self.places.entry((from, to)).or_insert_with(|| {
            let name = |node: usize| self.names.get(node).cloned().unwrap_or_default();
            lanes.push(TensorLane { from: name(from), to: name(to), ..TensorLane::default() });
            lanes.len() - 1
        });
        self.tensors.turn(&mut lanes[place].up, (from, to), at_ms, label);
        if let Some(why) = why {
            lanes[place].breaks.push(Note { at_ms, text: why.clone() });
        }
    }

    fn close(&mut self, end_ms: f64) {
        for node in 0..self.timeline.nodes.len() {
            self.state(node, end_ms, None);
            self.forget(node, end_ms);
        }
        for deployment in 0..self.timeline.deployments.len() {
            self.deployments.turn(&mut self.timeline.deployments[deployment].states, deployment, end_ms, None);
        }
        let open: Vec<_> = self.places.iter().map(|(key, place)| (*key, *place)).collect();
        open.into_iter().for_each(|(key, place)| self.tensors.turn(&mut self.timeline.lanes[place].up, key, end_ms, None));
    }
}
