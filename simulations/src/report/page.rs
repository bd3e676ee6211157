//! What a report's page draws: a run as lanes over time, in the words of a reader.
//!
//! Times are virtual, in microseconds since the world began. Everything in it is bounded
//! by the world (nodes, streams, faults); a lane's spans are in order of time and do not overlap.

use serde::Serialize;

/// Microseconds of virtual time since the world began.
pub type Micros = u64;

/// One run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Page {
    /// The scenario's title.
    pub title: String,
    /// What it is about, in a sentence or two, from its file.
    pub about: String,
    /// The seed, as it is typed.
    pub seed: String,
    /// The command that repeats this run.
    pub repeat: String,
    /// When the run ended.
    pub end_us: Micros,
    /// From when on nothing was broken any more and progress was demanded.
    pub heal_us: Option<Micros>,
    /// What was found.
    pub verdict: Verdict,
    /// Figures in words, in the order of display.
    pub figures: Vec<Figure>,
    /// What happened, in sentences, in order of time.
    pub story: Vec<Moment>,
    /// What was done to the world.
    pub faults: Vec<FaultMark>,
    /// Every node that ever ran.
    pub nodes: Vec<NodeLane>,
    /// Every stream that was asked for.
    pub streams: Vec<StreamLane>,
    /// Links that were ever unwell.
    pub links: Vec<LinkLane>,
}

/// What the checkers said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// How it ended.
    pub kind: VerdictKind,
    /// What was broken, in order of time.
    pub violations: Vec<Violation>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictKind {
    /// Every promise was kept.
    #[default]
    Kept,
    /// A promise was broken.
    Broken,
    /// Nothing wrong was done, but the world did not come to rest, or made no progress, after it was healed.
    Stuck,
}

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// When it showed.
    pub at_us: Micros,
    /// Which promise or assertion: `P1`, `convergence`, `longest_gap_ms <= 1500`.
    pub promise: String,
    /// What was seen, with names and numbers.
    pub what: String,
}

/// A figure and its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Figure {
    /// Its name, for people.
    pub name: String,
    /// Its value, with unit.
    pub value: String,
}

/// A sentence of the story.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Moment {
    /// When.
    pub at_us: Micros,
    /// What kind of thing it is: colours its line.
    pub kind: MomentKind,
    /// The sentence.
    pub text: String,
}

/// Kinds of sentences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MomentKind {
    /// The world broke something.
    Fault,
    /// The world mended something.
    Heal,
    /// Nodes noticed, planned, loaded.
    Mesh,
    /// A client asked, got, lost or gave up.
    Client,
    /// A promise was broken.
    Violation,
}

/// Something that was done to the world.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FaultMark {
    /// When it began.
    pub at_us: Micros,
    /// When it ended, if it lasts.
    pub until_us: Option<Micros>,
    /// In a few words: `crash`, `partition n0,n1 | n2,n3`.
    pub what: String,
    /// Names of the nodes that it struck; empty = everybody.
    pub nodes: Vec<String>,
}

/// A node's lane.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NodeLane {
    /// Its name.
    pub name: String,
    /// What it is made of, in a few words: memory, rates.
    pub about: String,
    /// Whether its process ran.
    pub lives: Vec<Span<LifeState>>,
    /// Times in which at least one other node suspected it or held it dead.
    pub doubts: Vec<Doubt>,
    /// Its shards.
    pub shards: Vec<ShardSpan>,
    /// Times in which it was a deployment's coordinator, by its own record.
    pub coordinates: Vec<Span<String>>,
}

/// A state from one time to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Span<S> {
    /// Begin.
    pub from_us: Micros,
    /// End.
    pub to_us: Micros,
    /// The state.
    pub state: S,
}

/// How a node's process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LifeState {
    /// Runs.
    Up,
    /// Runs, far slower than it should.
    Slow,
    /// Stopped by a signal, or asleep.
    Frozen,
    /// Dead.
    Down,
}

/// Somebody doubted a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Doubt {
    /// Begin.
    pub from_us: Micros,
    /// End.
    pub to_us: Micros,
    /// Whose view.
    pub by: String,
    /// Held dead, not only suspected.
    pub dead: bool,
}

/// A shard's time on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShardSpan {
    /// Begin.
    pub from_us: Micros,
    /// End.
    pub to_us: Micros,
    /// The model's name.
    pub model: String,
    /// First layer.
    pub first: u16,
    /// One after the last layer.
    pub end: u16,
    /// The plan's term and epoch.
    pub term: u64,
    /// See above.
    pub epoch: u64,
    /// What it did.
    pub state: ShardMood,
}

/// What a shard did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ShardMood {
    /// Layers came into memory.
    Loading,
    /// In memory, lanes not connected.
    Loaded,
    /// In force, lanes connected.
    Wired,
    /// Could not.
    Failed,
}

/// A stream's lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StreamLane {
    /// Its name: counts requests.
    pub name: String,
    /// The node that was asked.
    pub asked: String,
    /// When.
    pub asked_us: Micros,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// When each token reached the client.
    pub tokens_us: Vec<Micros>,
    /// Silences that were longer than the scenario calls ordinary, each with its cause if one is known.
    pub gaps: Vec<Span<String>>,
    /// How it ended; `None` if it was still running when the run ended.
    pub ended: Option<StreamEndMark>,
}

/// The end of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StreamEndMark {
    /// When.
    pub at_us: Micros,
    /// How.
    pub how: StreamEndKind,
    /// The error's text, or the reason.
    pub why: String,
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamEndKind {
    /// Whole.
    Finished,
    /// Refused before it began.
    Refused,
    /// An error event.
    Failed,
    /// The client went away.
    Cancelled,
}

/// A link's lane.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LinkLane {
    /// Both ends: `n0 – n1`.
    pub name: String,
    /// Its kind and measure: `thunderbolt 0.01 ms 5 GB/s`.
    pub about: String,
    /// How it was; times that are not named were healthy.
    pub unwell: Vec<Span<LinkMood>>,
}

/// What is wrong with a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkMood {
    /// Carries nothing.
    Down,
    /// Carries nothing in one direction.
    OneWay,
    /// Loses, delays or mangles: what, in words.
    Impaired(String),
}
