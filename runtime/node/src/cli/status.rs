//! `mesh status`, and what a node in the foreground says when something changes.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Args;
use mesh_core::ids::NodeId;
use mesh_core::plan::Plan;
use mesh_runtime::client::state_of;
use mesh_runtime::mesh::status_in_words;
use mesh_runtime::{DeploymentStatus, Health, Mesh, NodeStatus};
use serde_json::Value;

use super::join::WATCH_EVERY;
use super::{Target, human, out};

/// Flags of `mesh status`.
#[derive(Debug, Args)]
pub struct Status {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    target: Target,
}

impl Status {
    /// Runs the command.
    ///
    /// # Errors
    /// No node answers.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let status = self.target.client()?.get("/mesh/v1/status")?;
        if self.json {
            out::json(&status)?;
        } else {
            out::part(table(&status))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The status as text. Works on the JSON, so that an older command can show a newer node.
#[must_use]
pub fn table(status: &Value) -> String {
    let mut out = String::from("NODE                 ID        STATE         START  MEMORY     SHARDS\n");
    let nodes = status["nodes"].as_array().cloned().unwrap_or_default();
    let mut names = BTreeMap::new();
    for node in &nodes {
        let record = &node["record"];
        let id = text(record, "node");
        names.insert(id.clone(), text(record, "name"));
        let mark = if status["me"] == record["node"] { "*" } else { " " };
        let state = if record["state"] == "leaving" { "leaving".to_owned() } else { text(node, "health") };
        let state = node["away_ms"].as_u64().map_or_else(|| state.clone(), |ms| format!("{state} {}", for_people(ms)));
        let memory = human(record["capacity"]["memory_bytes"].as_u64().unwrap_or(0));
        let shards: Vec<String> = record["shards"].as_array().into_iter().flatten().map(|shard| shard_text(status, &id, shard)).collect();
        out += &format!(
            "{mark}{:<20}{:<10}{:<14}{:<7}{:<11}{}\n",
            cut(&text(record, "name"), 19),
            &id[..id.len().min(8)],
            state,
            record["incarnation"].to_string(),
            memory,
            shards.join(" "),
        );
        if let Some(why) = node["why"].as_str() {
            out += &format!("    {why}\n");
        }
    }
    let links = super::links::table(status, false);
    if !links.is_empty() {
        out += &format!("\nLINKS\n{links}");
    }
    for deployment in status["deployments"].as_array().into_iter().flatten() {
        out += &deployment_text(deployment, &names);
    }
    let notices = status["notices"].as_array().cloned().unwrap_or_default();
    if !notices.is_empty() {
        out += "\nNOTICES\n";
        for notice in notices {
            out += &format!("  {}\n", notice.as_str().unwrap_or_default());
        }
    }
    out
}

/// A shard's layers; in brackets if no plan names them: superseded, freed a minute later or when their memory is needed.
fn shard_text(status: &Value, node: &str, shard: &Value) -> String {
    let deployments = status["deployments"].as_array().into_iter().flatten();
    let record = deployments.map(|seen| &seen["record"]).find(|record| record["id"] == shard["deployment"]);
    let names_it = |plan: &Value| {
        let mut stages = plan["stages"].as_array().into_iter().flatten();
        stages.any(|stage| stage["node"] == node && stage["layers"] == shard["layers"])
    };
    let in_plan = record.is_some_and(|record| names_it(&record["plan"]) || names_it(&state_of(&record["status"]).1["plan"]));
    if in_plan { layers(&shard["layers"]) } else { format!("({})", layers(&shard["layers"])) }
}

fn deployment_text(deployment: &Value, names: &BTreeMap<String, String>) -> String {
    let record = &deployment["record"];
    let version = &record["version"];
    let (state, details) = state_of(&record["status"]);
    let mut out =
        format!("\nMODEL {}  {}  (term {}, epoch {})\n", text(&record["sheet"], "name"), state, version["term"], version["epoch"]);
    if let Some(why) = details["why"].as_str() {
        out += &format!("  {why}\n");
    }
    for pair in deployment["other_copies"].as_array().into_iter().flatten() {
        out += &format!("  not used: {}\n", pair[1].as_str().unwrap_or_default());
    }
    let plan = if record["plan"].is_object() { &record["plan"] } else { &details["plan"] };
    for (index, stage) in plan["stages"].as_array().into_iter().flatten().enumerate() {
        let id = text(stage, "node");
        let name = names.get(&id).cloned().unwrap_or_else(|| id.clone());
        out += &format!("  stage {index}  layers {:<10} on {name}\n", layers(&stage["layers"]));
    }
    if let Some(wish) = unmet(record, plan, names) {
        out += &format!("  asked for: {wish}; it goes back to that when it could be had for a while\n");
    }
    out
}

/// What was wished for, if the plan is something else: a node is gone, and an answer beats a wish.
fn unmet(record: &Value, plan: &Value, names: &BTreeMap<String, String>) -> Option<String> {
    let (stages, wish) = (plan["stages"].as_array()?, &record["wish"]);
    let place = wish["place"].as_array().filter(|place| !place.is_empty());
    if let Some(place) = place.filter(|place| *place != stages) {
        let name = |stage: &Value| names.get(&text(stage, "node")).cloned().unwrap_or_else(|| text(stage, "node"));
        return Some(place.iter().map(|stage| format!("{} on {}", layers(&stage["layers"]), name(stage))).collect::<Vec<_>>().join(", "));
    }
    let split = wish["split"].as_u64().filter(|split| *split != stages.len() as u64)?;
    Some(format!("{split} stages"))
}

/// A time for people: its largest unit.
fn for_people(ms: u64) -> String {
    let seconds = ms / 1_000;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3_600),
    }
}

fn layers(value: &Value) -> String {
    format!("{}..{}", value["first"], value["end"])
}

fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or_default().to_owned()
}

fn cut(text: &str, width: usize) -> String {
    text.chars().take(width).collect()
}

/// Says what changes, for the person in front of a node in the foreground.
pub struct Watcher {
    mesh: Mesh,
    show: bool,
    nodes: BTreeMap<NodeId, (Health, u64, Option<String>)>,
    deployments: BTreeMap<String, String>,
    notices: Vec<String>,
}

impl Watcher {
    /// Watches `mesh`; prints lines if `show`, else logs them.
    #[must_use]
    pub fn new(mesh: Mesh, show: bool) -> Self {
        Self { mesh, show, nodes: BTreeMap::new(), deployments: BTreeMap::new(), notices: Vec::new() }
    }

    /// Runs until the node has stopped.
    pub async fn run(mut self) {
        while let Ok(status) = self.mesh.status().await {
            self.nodes(&status);
            self.deployments(&status);
            tokio::time::sleep(WATCH_EVERY).await;
        }
    }

    fn say(&self, line: &str) {
        if self.show {
            out::perhaps(line);
        } else {
            tracing::info!("{line}");
        }
    }

    fn nodes(&mut self, status: &NodeStatus) {
        for seen in status.nodes.iter().filter(|seen| seen.record.node != status.me && seen.health != Health::Unmet) {
            let now = (seen.health, seen.record.incarnation, seen.why.clone());
            let before = self.nodes.insert(seen.record.node, now.clone());
            if before == Some(now) {
                continue;
            }
            let what = match seen.health {
                Health::Up => "is here",
                Health::Suspect => seen.why.as_deref().unwrap_or("does not answer"),
                Health::Down => "is down",
                Health::Left => "has left",
                Health::Unmet => continue,
            };
            self.say(&format!("node {} ({}, start number {}) {what}", seen.record.name, seen.record.node.short(), seen.record.incarnation));
        }
        for notice in status.notices.iter().filter(|notice| !self.notices.contains(notice)) {
            if self.show {
                out::perhaps(notice);
            } else {
                tracing::warn!("{notice}");
            }
        }
        self.notices.clone_from(&status.notices);
    }

    fn deployments(&mut self, status: &NodeStatus) {
        let mut now = BTreeMap::new();
        for seen in &status.deployments {
            let record = &seen.record;
            let placed = record.plan.as_ref().map(|plan| places(plan, status)).unwrap_or_default();
            let line = match &record.status {
                DeploymentStatus::Ready => format!("model {} is ready: {placed}", record.sheet.name),
                other => format!("model {}: {}", record.sheet.name, status_in_words(other)),
            };
            now.insert(record.id.to_string(), line);
        }
        for (id, line) in &now {
            if self.deployments.get(id) != Some(line) {
                self.say(line);
            }
        }
        self.deployments = now;
    }
}

fn places(plan: &Plan, status: &NodeStatus) -> String {
    let name =
        |id: NodeId| status.nodes.iter().find(|seen| seen.record.node == id).map_or_else(|| id.short(), |seen| seen.record.name.clone());
    let stages: Vec<String> =
        plan.stages().iter().map(|stage| format!("{}..{} on {}", stage.layers.first, stage.layers.end, name(stage.node))).collect();
    stages.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_odd_answer_is_shown_as_far_as_it_goes() {
        assert!(table(&json!({})).starts_with("NODE"));
        let text = table(&json!({
            "me": "aa", "nodes": [{ "record": { "node": "aa", "name": "x", "incarnation": 2, "shards": [{ "deployment": "d", "layers": { "first": 0, "end": 8 } }, { "deployment": "d", "layers": { "first": 2, "end": 5 } }] }, "health": "suspect", "why": "reached only through y" }],
            "deployments": [{ "other_copies": [["bb", "y's copy is another"]], "record": { "id": "d", "plan": { "stages": [{ "node": "aa", "layers": { "first": 0, "end": 8 } }] }, "wish": { "split": 2, "place": [] }, "sheet": { "name": "m" }, "status": { "waiting": { "why": "too big" } }, "version": { "term": 1, "epoch": 2 } } }]
        }));
        let gone = table(
            &json!({ "nodes": [{ "record": { "node": "aa", "name": "x", "incarnation": 2 }, "health": "down", "away_ms": 7_300_000 }] }),
        );
        assert!(gone.contains("down 2 h"), "{gone}");
        assert!(text.contains("0..8 (2..5)") && text.contains("y's copy is another") && text.contains("asked for: 2 stages"), "{text}");
        assert!(text.contains("too big") && text.contains("epoch 2") && text.contains("only through y"), "{text}");
    }
}
