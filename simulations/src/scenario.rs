//! A scenario: what a world is drawn from, besides the seed. Written as TOML, read strictly.
//!
//! Every unknown key is refused, every unit stands in its name, and an error names the line. What is left out has a default
//! that fits a few machines on a desk. `docs/simulator.md` and the files in `configs/simulations` teach it by example.

mod check;
mod fault;

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub use fault::{FaultLine, RandomFaults, Side};

/// Nodes of one world at most. (Guess: the planner and a full mesh of connections are fine with so many.)
pub const NODES_MAX: usize = 256;
/// Milliseconds that a world may last at most: a week.
pub const WORLD_MS_MAX: u64 = 7 * 24 * 3_600_000;

/// What a world is drawn from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The name, for people.
    pub title: String,
    /// The story, for people.
    #[serde(default)]
    pub about: String,
    /// What is demanded of answers that run when something breaks.
    #[serde(default)]
    pub promise: Promise,
    /// Own demands, each `metric < | <= | == | >= | > | != number`: see [`crate::outcome::Metrics`].
    #[serde(default, rename = "assert", skip_serializing_if = "Vec::is_empty")]
    pub asserts: Vec<String>,
    /// Times, engine, how nodes find each other.
    #[serde(default)]
    pub world: WorldLine,
    /// The model that is deployed.
    #[serde(default)]
    pub model: ModelLine,
    /// The machines.
    pub nodes: Vec<NodeLine>,
    /// Between any two nodes that no line of `[[cables]]` is about.
    #[serde(default)]
    pub links: LinkLine,
    /// Links between two named nodes. Several lines about one pair are several links.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cables: Vec<CableLine>,
    /// What the operator deploys.
    #[serde(default = "one_deployment")]
    pub deployments: Vec<DeployLine>,
    /// What clients ask.
    #[serde(default)]
    pub traffic: TrafficLine,
    /// What breaks, and when.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<FaultLine>,
    /// What breaks by chance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub random_faults: Option<RandomFaults>,
}

/// What is demanded of answers that run when something breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Promise {
    /// They end in time, with an error that says why; no wrong token came before.
    #[default]
    CleanError,
    /// They go on as long as their owner lives: a node's death is a gap, no error.
    Survive,
}

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// A token depends on a hash of every earlier input of every layer.
    #[default]
    Toy,
    /// The real built-in model.
    Story,
}

/// How nodes learn of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Discovery {
    /// Everybody hears of everybody who runs, as by multicast.
    #[default]
    All,
    /// Only the addresses in `seeds` are known at the start; the rest is learned from others.
    Seeds,
}

/// Times, engine, discovery.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorldLine {
    /// Traffic and faults happen within this.
    pub run_s: f64,
    /// After everything is healed: so long until the world has to agree and answer.
    pub heal_s: f64,
    /// What computes.
    pub engine: EngineKind,
    /// How nodes learn of each other.
    pub discovery: Discovery,
    /// With `discovery = "seeds"`: whose addresses everybody knows.
    pub seeds: Vec<String>,
    /// Longest silence of an answer that is demanded, from the question to its end (P3). Absent = what the stream's own
    /// deadlines allow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gap_ms_max: Option<u64>,
    /// A stream's deadline for a token, in milliseconds.
    pub token_ms: u64,
    /// A stage waits so long for the next one to take rows, in milliseconds. Below `token_ms`.
    pub credit_ms: u64,
    /// A stage drops a stream that it hears nothing of for so long, in milliseconds (R5). Ten minutes live; shorter here, so
    /// that a world sees it happen.
    pub lease_ms: u64,
    /// How often the observer looks at each node, in milliseconds.
    pub look_ms: u64,
}

impl Default for WorldLine {
    fn default() -> Self {
        Self {
            run_s: 30.0,
            heal_s: 60.0,
            engine: EngineKind::Toy,
            discovery: Discovery::All,
            seeds: Vec::new(),
            gap_ms_max: None,
            token_ms: 30_000,
            credit_ms: 25_000,
            lease_ms: 60_000,
            look_ms: 500,
        }
    }
}

/// The model that is deployed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelLine {
    /// Its layers. Of the toy only: the built-in model is what it is.
    pub layers: u16,
    /// Weights of a layer.
    pub layer_mb: f64,
    /// Floating-point operations of a layer for a token, in millions.
    pub layer_mflop: f64,
    /// Cache of a layer for a position, in bytes.
    pub kv_bytes: u32,
    /// Values a position.
    pub width: u32,
    /// Tokens of a stream at most.
    pub context: u32,
}

impl Default for ModelLine {
    fn default() -> Self {
        Self { layers: 24, layer_mb: 100.0, layer_mflop: 200.0, kv_bytes: 4_096, width: 64, context: 512 }
    }
}

/// Machines of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeLine {
    /// The name; of several, the stem: `mac` and `count = 4` make `mac1` to `mac4`.
    pub name: String,
    /// How many.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub count: u32,
    /// When it starts first.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub start_ms: u64,
    /// Of several, each starts so much later than the one before.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub apart_ms: u64,
    /// Memory lent to models.
    #[serde(default = "memory_gb")]
    pub memory_gb: f64,
    /// Memory bandwidth.
    #[serde(default = "bandwidth_gb_s")]
    pub bandwidth_gb_s: f64,
    /// Compute.
    #[serde(default = "gflops")]
    pub gflops: f64,
    /// Rate at which weights are read.
    #[serde(default = "disk_mb_s")]
    pub disk_mb_s: f64,
    /// The model's files are here.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub files: bool,
    /// Files of the same name and other contents are here.
    #[serde(default, skip_serializing_if = "is_false")]
    pub other_files: bool,
    /// The first so many loads fail.
    #[serde(default, skip_serializing_if = "is_no")]
    pub failing_loads: u32,
    /// Its disk, key included, is a copy of this node's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clone_of: Option<String>,
    /// The protocol version that it speaks, if not the current one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<u32>,
}

/// What carries bytes between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkKind {
    /// A cable and a switch.
    #[default]
    Ethernet,
    /// Radio.
    Wifi,
    /// A cable between two machines.
    Thunderbolt,
    /// Queue pairs: tensors only. A lost or damaged message ends the lane; so does a link that is down for a second.
    Rdma,
}

impl LinkKind {
    /// Whether control connections can use it.
    #[must_use]
    pub fn carries_control(self) -> bool {
        self != Self::Rdma
    }
}

/// How a link is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LinkLine {
    /// What it is.
    pub kind: LinkKind,
    /// One way.
    pub delay_us: f64,
    /// Added to the delay, evenly drawn between nothing and this.
    pub jitter_us: f64,
    /// Rate, each way.
    pub mbit_s: f64,
    /// Probability that a packet of 1,460 bytes is lost. Streams send it again after 200 ms, then twice that, and so on.
    pub loss: f64,
}

impl Default for LinkLine {
    fn default() -> Self {
        Self { kind: LinkKind::Ethernet, delay_us: 100.0, jitter_us: 20.0, mbit_s: 10_000.0, loss: 0.0 }
    }
}

/// A link between two named nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CableLine {
    /// Both ends.
    pub between: [String; 2],
    /// What it is.
    #[serde(default)]
    pub kind: LinkKind,
    /// One way.
    pub delay_us: f64,
    /// Added to the delay, evenly drawn between nothing and this.
    #[serde(default)]
    pub jitter_us: f64,
    /// Rate, each way.
    pub mbit_s: f64,
    /// Probability that a packet is lost.
    #[serde(default)]
    pub loss: f64,
}

/// What the operator deploys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeployLine {
    /// When. If the node that is told is away, it is told when it is back.
    pub at_ms: u64,
    /// Which node is told. Absent = the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    /// Exactly so many stages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub split: Option<u16>,
    /// Streams of full context side by side.
    pub streams: u16,
    /// When it is deleted, on the same node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delete_at_ms: Option<u64>,
}

impl Default for DeployLine {
    fn default() -> Self {
        Self { at_ms: 1_000, on: None, split: None, streams: 8, delete_at_ms: None }
    }
}

fn one_deployment() -> Vec<DeployLine> {
    vec![DeployLine::default()]
}

/// What clients ask.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrafficLine {
    /// Questions a second, at random moments.
    pub per_s: f64,
    /// The first comes after this. Absent = as soon as the deployment is ready for the first time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_ms: Option<u64>,
    /// Tokens of a prompt, least and most.
    pub prompt: [u32; 2],
    /// Tokens of an answer at most, least and most.
    pub answer: [u32; 2],
    /// Part of the clients that hang up in the middle.
    pub hang_up: f64,
    /// A client waits so long for the whole answer.
    pub patience_ms: u64,
    /// How often a client asks again after an error, each time another node.
    pub tries: u32,
    /// Nodes that are asked. Empty = all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ask: Vec<String>,
}

impl Default for TrafficLine {
    fn default() -> Self {
        Self { per_s: 0.5, from_ms: None, prompt: [4, 32], answer: [8, 64], hang_up: 0.0, patience_ms: 120_000, tries: 1, ask: Vec::new() }
    }
}

fn one() -> u32 {
    1
}
fn is_one(count: &u32) -> bool {
    *count == 1
}
fn is_no(count: &u32) -> bool {
    *count == 0
}
fn is_zero(ms: &u64) -> bool {
    *ms == 0
}
fn yes() -> bool {
    true
}
fn is_true(value: &bool) -> bool {
    *value
}
fn is_false(value: &bool) -> bool {
    !*value
}
fn memory_gb() -> f64 {
    16.0
}
fn bandwidth_gb_s() -> f64 {
    100.0
}
fn gflops() -> f64 {
    1_000.0
}
fn disk_mb_s() -> f64 {
    2_000.0
}

/// Why a text is no scenario. Names the line where there is one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {why}")]
pub struct ScenarioError {
    /// The file, or `scenario` for a text.
    pub place: String,
    /// What is wrong and what would be right, with the line where the reader knows it.
    pub why: String,
}

/// One machine of a world.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// When it starts first.
    pub start_ms: u64,
    /// The line that it comes from.
    pub line: NodeLine,
}

impl Scenario {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, is no TOML, has unknown keys, or contradicts itself.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, ScenarioError> {
        let path = path.as_ref();
        let place = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|error| ScenarioError { place: place.clone(), why: format!("cannot be read: {error}") })?;
        Self::parse(&text).map_err(|error| ScenarioError { place, ..error })
    }

    /// Reads a text.
    ///
    /// # Errors
    /// As [`Scenario::read`].
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let wrong = |why: String| ScenarioError { place: "scenario".to_owned(), why };
        let scenario: Self = toml::from_str(text).map_err(|error| wrong(error.to_string().trim_end().to_owned()))?;
        scenario.check().map_err(wrong)?;
        Ok(scenario)
    }

    /// As TOML that [`Scenario::parse`] takes.
    ///
    /// # Panics
    /// Never: every scenario can be written.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("numbers, texts and lists can be written")
    }

    /// Every machine, in order.
    #[must_use]
    pub fn machines(&self) -> Vec<Machine> {
        let of = |line: &NodeLine| -> Vec<Machine> {
            let name = |index: u32| if line.count == 1 { line.name.clone() } else { format!("{}{}", line.name, index + 1) };
            let start_ms = |index: u32| line.start_ms.saturating_add(line.apart_ms.saturating_mul(u64::from(index)));
            (0..line.count).map(|index| Machine { name: name(index), start_ms: start_ms(index), line: line.clone() }).collect()
        };
        self.nodes.iter().flat_map(of).collect()
    }

    /// Indices of machines by name.
    #[must_use]
    pub fn places(&self) -> BTreeMap<String, usize> {
        self.machines().into_iter().enumerate().map(|(index, machine)| (machine.name, index)).collect()
    }

    /// When faults end and everything is healed, in milliseconds.
    #[must_use]
    pub fn run_ms(&self) -> u64 {
        ms(self.world.run_s)
    }

    /// How long the world has after that.
    #[must_use]
    pub fn heal_ms(&self) -> u64 {
        ms(self.world.heal_s)
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be small and positive")]
fn ms(seconds: f64) -> u64 {
    (seconds * 1e3).clamp(0.0, 1e12) as u64
}

#[cfg(test)]
mod tests;
