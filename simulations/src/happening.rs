//! What happens in a world, one by one: the trace is these as text, the timeline and the checks are folds over them.

use std::fmt::{self, Write as _};

use serde::Serialize;

/// How a node looks to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum View {
    /// Greeted.
    Up,
    /// Echoes are overdue.
    Suspect,
    /// Echoed again.
    Trusted,
    /// Held dead.
    Down,
}

/// How a question ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "how", content = "why")]
pub enum End {
    /// The whole answer came.
    Finished(String),
    /// An error came.
    Failed(String),
    /// The node that was asked is gone, and with it the connection to it.
    Lost(String),
    /// The client hung up on purpose.
    HungUp,
    /// The client had no more patience.
    GaveUp,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
#[expect(missing_docs, reason = "each field is what its name says; the variant says what happened")]
pub enum Happening {
    /// A fault begins. `index` counts the faults of the world.
    FaultBegins { index: usize, what: String },
    /// A fault is over.
    FaultEnds { index: usize },
    /// Everything was mended: from here on progress is demanded.
    Healed,
    /// A node's process started.
    Started { node: usize, life: usize, incarnation: u64, protocol: u32 },
    /// It is gone: killed, without power, or left.
    Ended { node: usize, life: usize, why: String },
    /// It was stopped.
    Frozen { node: usize },
    /// It goes on.
    Thawed { node: usize },
    /// A node's view of another changed.
    Saw { by: usize, node: usize, view: View, why: String },
    /// A node told its operator something.
    Told { by: usize, text: String },
    /// A deployment record was written to a node's disk. `author` says whether it is the node's own.
    /// `by` is the machine of its author.
    Saved { node: usize, deployment: usize, version: [u64; 3], status: String, plan: String, author: bool, by: Option<usize> },
    /// A record could not be written.
    NotSaved { node: usize },
    /// A node began to read weights.
    Loading { node: usize, bytes: u64 },
    /// They are in memory, or not.
    Loaded { node: usize, first: u16, end: u16, bytes: u64, again_bytes: u64, error: String },
    /// Layers were dropped.
    Dropped { node: usize, first: u16, end: u16 },
    /// The first token that a node's engine chose since its layers were loaded.
    FirstToken { node: usize },
    /// A shard's state, as its node says.
    Shard { node: usize, deployment: usize, first: u16, end: u16, state: String },
    /// The operator deployed.
    Deployed { on: usize, deployment: usize },
    /// The operator deleted.
    Deleted { on: usize, deployment: usize },
    /// A client asked. `again` counts its tries.
    Asked { request: usize, on: usize, prompt: usize, answer_max: u32, again: u32 },
    /// The node took the question.
    Began { request: usize },
    /// A token came.
    Token { request: usize, index: u32, token: u32 },
    /// A question is over.
    Answered { request: usize, end: End },
    /// A tensor lane came up.
    LaneUp { from: usize, to: usize, kind: String },
    /// A tensor lane ended.
    LaneDown { from: usize, to: usize, why: String },
    /// A control connection came up.
    Connected { from: usize, to: usize },
    /// A control connection ended at this end.
    Broken { at: usize, of: usize, why: String },
    /// A control message was handed to a node.
    Message { from: usize, to: usize, what: &'static str, bytes: usize },
    /// Something was checked and found broken.
    Violated { check: &'static str, text: String },
}

/// Something and when.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Moment {
    /// Nanoseconds since the world began.
    pub at_ns: u64,
    /// What.
    pub what: Happening,
}

/// Everything that happened so far, its text if that is wanted, and a hash of it.
pub struct Trace {
    names: Vec<String>,
    /// What the timeline and the checks need; messages are not kept.
    pub moments: Vec<Moment>,
    text: Option<String>,
    line: String,
    hash: xxhash_rust::xxh3::Xxh3,
}

impl Trace {
    /// Of a world with nodes of these names. With `text`, every line is kept, messages too.
    #[must_use]
    pub fn new(names: Vec<String>, text: bool) -> Self {
        Self { names, moments: Vec::new(), text: text.then(String::new), line: String::new(), hash: xxhash_rust::xxh3::Xxh3::new() }
    }

    /// Notes something.
    pub fn note(&mut self, at_ns: u64, what: Happening) {
        self.line.clear();
        let _ = writeln!(self.line, "{:>7}.{:06} {}", at_ns / 1_000_000, at_ns % 1_000_000, InWords { what: &what, names: &self.names });
        self.hash.update(self.line.as_bytes());
        if let Some(text) = &mut self.text {
            text.push_str(&self.line);
        }
        if !matches!(what, Happening::Message { .. } | Happening::Connected { .. } | Happening::Broken { .. }) {
            self.moments.push(Moment { at_ns, what });
        }
    }

    /// A hash over all lines.
    #[must_use]
    pub fn hash(&self) -> String {
        format!("{:032x}", self.hash.digest128())
    }

    /// The text, if it was wanted.
    pub fn take_text(&mut self) -> Option<String> {
        self.text.take()
    }
}

struct InWords<'a> {
    what: &'a Happening,
    names: &'a [String],
}

impl InWords<'_> {
    fn name(&self, node: usize) -> &str {
        self.names.get(node).map_or("?", String::as_str)
    }
}

impl fmt::Display for InWords<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |node: &usize| self.name(*node);
        match self.what {
            Happening::FaultBegins { index, what } => write!(f, "world fault {index} begins: {what}"),
            Happening::FaultEnds { index } => write!(f, "world fault {index} ends"),
            Happening::Healed => write!(f, "world healed"),
            Happening::Started { node, life, incarnation, protocol } => {
                write!(f, "{} started life {life} incarnation {incarnation} protocol {protocol}", name(node))
            }
            Happening::Ended { node, life, why } => write!(f, "{} ended life {life}: {why}", name(node)),
            Happening::Frozen { node } => write!(f, "{} frozen", name(node)),
            Happening::Thawed { node } => write!(f, "{} thawed", name(node)),
            Happening::Saw { by, node, view, why } => write!(f, "{} sees {} {view:?} {why}", name(by), name(node)),
            Happening::Told { by, text } => write!(f, "{} says: {text}", name(by)),
            Happening::Saved { node, deployment, version, status, plan, author, .. } => {
                let whose = if *author { "own" } else { "heard" };
                write!(f, "{} saved {whose} record of deployment {deployment} {version:?} {status} [{plan}]", name(node))
            }
            Happening::NotSaved { node } => write!(f, "{} could not save a record", name(node)),
            Happening::Loading { node, bytes } => write!(f, "{} reads {bytes} bytes of weights", name(node)),
            Happening::Loaded { node, first, end, bytes, again_bytes, error } => {
                write!(f, "{} loaded {first}..{end}: {bytes} bytes, {again_bytes} of them again {error}", name(node))
            }
            Happening::Dropped { node, first, end } => write!(f, "{} dropped {first}..{end}", name(node)),
            Happening::FirstToken { node } => write!(f, "{} chose its first token", name(node)),
            Happening::Shard { node, deployment, first, end, state } => {
                write!(f, "{} shard of deployment {deployment} {first}..{end} {state}", name(node))
            }
            Happening::Deployed { on, deployment } => write!(f, "operator deployed {deployment} on {}", name(on)),
            Happening::Deleted { on, deployment } => write!(f, "operator deleted {deployment} on {}", name(on)),
            Happening::Asked { request, on, prompt, answer_max, again } => {
                write!(f, "client asks {} request {request}.{again}: {prompt} tokens, at most {answer_max} back", name(on))
            }
            Happening::Began { request } => write!(f, "client request {request} began"),
            Happening::Token { request, index, token } => write!(f, "client request {request} token {index} = {token}"),
            Happening::Answered { request, end } => write!(f, "client request {request} ended: {end:?}"),
            Happening::LaneUp { from, to, kind } => write!(f, "lane {} -> {} up over {kind}", name(from), name(to)),
            Happening::LaneDown { from, to, why } => write!(f, "lane {} -> {} down: {why}", name(from), name(to)),
            Happening::Connected { from, to } => write!(f, "{} connected to {}", name(from), name(to)),
            Happening::Broken { at, of, why } => write!(f, "{} lost a connection to {}: {why}", name(at), name(of)),
            Happening::Message { from, to, what, bytes } => write!(f, "{} -> {} {what} {bytes}", name(from), name(to)),
            Happening::Violated { check, text } => write!(f, "check {check}: {text}"),
        }
    }
}
