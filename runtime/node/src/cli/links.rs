//! `mesh links`: every path to another node, how it is, and which one is used.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Args;
use mesh_runtime::client::text;
use serde_json::Value;

use super::{Target, human, out};

/// Flags of `mesh links`.
#[derive(Debug, Args)]
pub struct Links {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    target: Target,
}

impl Links {
    /// Runs the command.
    ///
    /// # Errors
    /// No node answers.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let client = self.target.client()?;
        if self.json {
            out::json(&client.get("/mesh/v1/links")?)?;
        } else {
            out::part(table(&client.get("/mesh/v1/status")?, true))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The links of a status as text; `all`, or only those that are up and the first of each peer. Empty if there are none.
#[must_use]
pub fn table(status: &Value, all: bool) -> String {
    let nodes = status["nodes"].as_array().cloned().unwrap_or_default();
    let names: BTreeMap<String, String> = nodes.iter().map(|node| (text(&node["record"]["node"]), text(&node["record"]["name"]))).collect();
    let links = status["links"].as_array().cloned().unwrap_or_default();
    let mut out = String::new();
    for link in links.iter().filter(|link| all || link["state"] == "up" || link["place"] == 0) {
        if out.is_empty() {
            out = format!("  {:<20}{:<22}{:<12}{:<9}{:<10}{:<13}USED\n", "PEER", "HERE - THERE", "KIND", "STATE", "DELAY", "RATE");
        }
        out += &line(link, &names);
    }
    if out.is_empty() && all {
        "no links: no other node is up\n".clone_into(&mut out);
    }
    out
}

fn line(link: &Value, names: &BTreeMap<String, String>) -> String {
    let peer = text(&link["peer"]);
    let name = names.get(&peer).cloned().unwrap_or(peer);
    let ends = format!("{} - {}", text(&link["mine"]["interface"]), text(&link["theirs"]["interface"]));
    let (state, why) = match &link["state"] {
        Value::String(state) => (state.clone(), None),
        other => ("down".to_owned(), other["down"].as_str()),
    };
    let measured = &link["measured"];
    let delay = measured["delay_us"].as_u64().map_or("-".to_owned(), delay);
    let rate = measured["bytes_per_s"].as_u64().filter(|&rate| rate > 0).map_or("-".to_owned(), |rate| format!("{}/s", human(rate)));
    let mark = if link["place"] == 0 && state == "up" { "*" } else { " " };
    let kind = if link["reach"] == "routed" { format!("{}, routed", text(&link["kind"])) } else { text(&link["kind"]) };
    let note = text(&link["note"]);
    let used = match link["lanes"].as_array().map_or(0, Vec::len) {
        0 => String::new(),
        1 => "1 lane; ".to_owned(),
        many => format!("{many} lanes; "),
    };
    let said = if note.is_empty() { why.unwrap_or_default() } else { &note };
    let used = format!("{used}{said}");
    format!("{mark} {:<20}{ends:<22}{kind:<12}{state:<9}{delay:<10}{rate:<13}{}\n", cut(&name, 19), used.trim_end_matches("; "))
}

/// Microseconds for people.
fn delay(us: u64) -> String {
    if us < 1_000 { format!("{us} us") } else { format!("{:.1} ms", us as f64 / 1_000.0) }
}

fn cut(text: &str, width: usize) -> String {
    text.chars().take(width).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn links_are_shown_with_what_is_known() {
        let up = json!({
            "peer": "bb", "link": { "low": "en5", "high": "en0" }, "mine": { "interface": "en5" }, "theirs": { "interface": "en0" },
            "kind": "thunderbolt", "reach": "direct", "state": "up", "measured": { "delay_us": 42, "bytes_per_s": 2_000_000_000_u64 },
            "place": 0, "lanes": [{}, {}], "note": ""
        });
        let down = json!({ "peer": "bb", "mine": { "interface": "lan" }, "theirs": { "interface": "lan" }, "state": { "down": "no answer" }, "place": 1, "note": "" });
        let status = json!({ "nodes": [{ "record": { "node": "bb", "name": "studio" } }], "links": [up, down] });
        let text = table(&status, true);
        assert!(text.contains("* studio") && text.contains("en5 - en0") && text.contains("42 us") && text.contains("1.9 GiB/s"), "{text}");
        assert!(text.contains("2 lanes\n") && text.contains("no answer"), "{text}");
        assert!(!table(&status, false).contains("no answer"), "a status shows what works");
        assert_eq!(table(&json!({}), false), "");
        assert!(table(&json!({}), true).contains("no links"));
        assert!(table(&json!({ "links": [{}, 3, null] }), true).contains("HERE"), "an odd answer is shown as far as it goes");
    }
}
