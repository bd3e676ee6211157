//! What comes out of a world: whether promises were kept, figures, the trace.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::dice::Seed;
use crate::scenario::FaultLine;
use crate::timeline::Timeline;

/// Which kind of promise was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Something bad happened.
    Safety,
    /// Something good did not happen in time.
    Liveness,
}

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Violation {
    /// Which kind.
    pub kind: Kind,
    /// Which promise: `P1` to `P6`, `memory`, `convergence`, `ghost`, `resurrection`, `assert`, `panic`.
    pub check: &'static str,
    /// When it showed, in milliseconds.
    pub at_ms: u64,
    /// What was seen and what should have been.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Safety => "safety",
            Kind::Liveness => "liveness",
        };
        write!(f, "{} ({kind}) at {} ms: {}", self.check, self.at_ms, self.text)
    }
}

/// Figures by name. Those that a world could not measure (no answer, no death) are absent.
///
/// | name | meaning |
/// |---|---|
/// | `requests`, `finished_requests`, `failed_requests`, `hung_up_requests` | questions, and how they ended |
/// | `tokens` | tokens that clients got |
/// | `longest_gap_ms` | longest silence of an answer: from the question to the first token, between tokens, to the end |
/// | `longest_failure_ms` | from the last sign of an answer to its error |
/// | `first_ready_ms`, `longest_not_ready_ms` | when the deployment was first ready; longest time that it was not, after that |
/// | `deaths`, `death_known_ms_max` | nodes killed for longer than it takes to notice; until the last running node knew |
/// | `false_deaths` | nodes held dead by a node that could hear them |
/// | `control_bytes_s_max` | control bytes a second that the busiest node sent |
/// | `loaded_mb`, `reloaded_mb` | weights read; weights read again by a process that held them |
/// | `plans` | plans that were published |
/// | `converged_ms` | from the healing until all agreed |
/// | `events` | what the world did, in steps |
pub type Metrics = BTreeMap<String, f64>;

/// A demand of a scenario: `longest_gap_ms <= 1500`.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    metric: String,
    relation: Relation,
    bound: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Less,
    AtMost,
    Equal,
    AtLeast,
    More,
    Other,
}

/// Names that a demand may use.
pub const METRICS: [&str; 18] = [
    "requests",
    "finished_requests",
    "failed_requests",
    "hung_up_requests",
    "tokens",
    "longest_gap_ms",
    "longest_failure_ms",
    "first_ready_ms",
    "longest_not_ready_ms",
    "deaths",
    "death_known_ms_max",
    "false_deaths",
    "control_bytes_s_max",
    "loaded_mb",
    "reloaded_mb",
    "plans",
    "converged_ms",
    "events",
];

impl FromStr for Demand {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [metric, relation, bound] = words[..] else {
            return Err(format!("{text:?} is no demand: write for instance \"longest_gap_ms <= 1500\""));
        };
        if !METRICS.contains(&metric) {
            return Err(format!("{text:?}: there is no figure {metric}: there are {}", METRICS.join(", ")));
        }
        let relation = match relation {
            "<" => Relation::Less,
            "<=" => Relation::AtMost,
            "==" => Relation::Equal,
            ">=" => Relation::AtLeast,
            ">" => Relation::More,
            "!=" => Relation::Other,
            other => return Err(format!("{text:?}: {other} is none of < <= == >= > !=")),
        };
        let bound = bound.parse().map_err(|_| format!("{text:?}: {bound} is no number"))?;
        Ok(Self { metric: metric.to_owned(), relation, bound })
    }
}

impl Demand {
    /// Whether the figures meet it; else what they are. A figure that was not measured meets no demand.
    ///
    /// # Errors
    /// It is not met, in words.
    pub fn judge(&self, metrics: &Metrics) -> Result<(), String> {
        let Some(&value) = metrics.get(&self.metric) else {
            return Err(format!("{} was not measured in this world", self.metric));
        };
        #[expect(clippy::float_cmp, reason = "counts are exact")]
        let met = match self.relation {
            Relation::Less => value < self.bound,
            Relation::AtMost => value <= self.bound,
            Relation::Equal => value == self.bound,
            Relation::AtLeast => value >= self.bound,
            Relation::More => value > self.bound,
            Relation::Other => value != self.bound,
        };
        if met { Ok(()) } else { Err(format!("{} is {value}", self.metric)) }
    }
}

/// What came out of a world.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The scenario's title.
    pub title: String,
    /// The seed.
    pub seed: u64,
    /// Promises that were broken, in order of time.
    pub violations: Vec<Violation>,
    /// Figures.
    pub metrics: Metrics,
    /// Every fault that happened, drawn ones included.
    pub faults: Vec<FaultLine>,
    /// For pictures.
    pub timeline: Timeline,
    /// A hash over everything that happened: two runs of a seed give the same.
    pub trace_hash: String,
    /// What happened, a line each, if it was asked for.
    #[serde(skip)]
    pub trace: Option<String>,
}

impl Outcome {
    /// Whether every promise was kept.
    #[must_use]
    pub fn is_green(&self) -> bool {
        self.violations.is_empty()
    }

    /// 0 green, 1 something bad happened, 3 something good did not happen. (2 is for files that are no scenarios.)
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self.violations.iter().map(|violation| violation.kind).min() {
            None => 0,
            Some(Kind::Safety) => 1,
            Some(Kind::Liveness) => 3,
        }
    }

    /// The seed.
    #[must_use]
    pub fn seed(&self) -> Seed {
        Seed(self.seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demands_are_read_and_judged() {
        let metrics = Metrics::from([("longest_gap_ms".to_owned(), 1_200.0), ("failed_requests".to_owned(), 0.0)]);
        let judge = |text: &str| text.parse::<Demand>().expect("a demand").judge(&metrics);
        assert_eq!(judge("longest_gap_ms <= 1500"), Ok(()));
        assert_eq!(judge("failed_requests == 0"), Ok(()));
        assert_eq!(judge("longest_gap_ms < 1200"), Err("longest_gap_ms is 1200".to_owned()));
        assert!(judge("tokens > 0").is_err(), "not measured");
        assert!("longest_gap <= 1".parse::<Demand>().is_err());
        assert!("tokens about 1".parse::<Demand>().is_err());
    }
}
