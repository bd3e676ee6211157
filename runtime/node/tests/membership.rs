//! Who is there, as real processes on loopback see it while others die, freeze, return, join and leave.
//!
//! `MESH_TEST_CHANGES` sets how many random changes the long test makes (50 = the acceptance of the issue that asked for
//! it), `MESH_TEST_SEED` which ones.

#![expect(clippy::print_stdout, reason = "the long test prints what it measured")]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mesh_runtime::client::{Client, text};
use mesh_runtime::processes::Nodes;
use serde_json::{Value, json};

mod common;
use common::{OpenStream, content, endless, eventually, golden, health, node, nodes, program, robot, signal};

/// Every node's status must equal the live set so long after a change. The budget is 2 s; a busy machine gets more.
const KNOWN: Duration = Duration::from_secs(6);
const CHANGES: usize = 10;

fn members(client: &Client) -> Vec<Value> {
    client.get("/mesh/v1/status").expect("a status")["nodes"].as_array().cloned().unwrap_or_default()
}

/// What the test did to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Runs,
    Stopped,
    Dead,
}

/// What a node says of all: (name, health).
fn view(client: &Client) -> Vec<(String, String)> {
    let mut seen: Vec<_> = members(client).iter().map(|node| (text(&node["record"]["name"]), text(&node["health"]))).collect();
    seen.sort();
    seen
}

/// A node that was away when this one started was never met by it: as good as down.
fn without_strangers(mut view: Vec<(String, String)>) -> Vec<(String, String)> {
    view.iter_mut().filter(|(_, health)| health == "unmet").for_each(|(_, health)| *health = "down".to_owned());
    view
}

/// The view of so many nodes that all run.
fn all_up(count: u16) -> Vec<(String, String)> {
    (1..=count).map(|number| (format!("node-{number}"), "up".to_owned())).collect()
}

/// Small and repeatable (Steele, Lea, Flood 2014).
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Makes one change that leaves at least two nodes running; says which.
fn change(nodes: &mut Nodes, fates: &mut [Fate; 5], random: &mut u64) -> String {
    loop {
        let index = usize::try_from(splitmix(random) % 5).expect("less than five");
        let (number, name) = (u16::try_from(index).expect("small"), format!("node-{}", index + 1));
        let running = fates.iter().filter(|fate| **fate == Fate::Runs).count();
        match (fates[index], splitmix(random) % 2) {
            (Fate::Runs, _) if running <= 2 => {}
            (Fate::Runs, 0) => {
                nodes.kill(number).expect("killed");
                fates[index] = Fate::Dead;
                return format!("{name} killed");
            }
            (Fate::Runs, _) => {
                signal(nodes.pid(number), "STOP");
                fates[index] = Fate::Stopped;
                return format!("{name} stopped");
            }
            (Fate::Stopped, _) => {
                signal(nodes.pid(number), "CONT");
                fates[index] = Fate::Runs;
                return format!("{name} goes on");
            }
            (Fate::Dead, _) => {
                nodes.restart(number).expect("starts again");
                fates[index] = Fate::Runs;
                return format!("{name} restarted");
            }
        }
    }
}

#[test]
fn the_status_equals_the_live_set_after_every_change() {
    let mut nodes = nodes(5);
    let mut fates = [Fate::Runs; 5];
    let mut random = number("MESH_TEST_SEED", 42);
    let (mut slowest, mut log) = (Duration::ZERO, Vec::new());
    for _ in 0..number("MESH_TEST_CHANGES", CHANGES as u64) {
        let what = change(&mut nodes, &mut fates, &mut random);
        let health = |fate: &Fate| if *fate == Fate::Runs { "up" } else { "down" }.to_owned();
        let expected: Vec<(String, String)> =
            fates.iter().enumerate().map(|(index, fate)| (format!("node-{}", index + 1), health(fate))).collect();
        let start = Instant::now();
        for index in (0..5).filter(|index| fates[*index] == Fate::Runs) {
            let client = nodes.client(u16::try_from(index).expect("small")).expect("up");
            while without_strangers(view(&client)) != expected {
                let late = start.elapsed() > KNOWN;
                assert!(!late, "{KNOWN:?} after {what}, node-{} sees {:?}\nbefore: {log:#?}", index + 1, view(&client));
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        slowest = slowest.max(start.elapsed());
        log.push(format!("{what}: known by all after {} ms", start.elapsed().as_millis()));
    }
    println!("{}\nslowest {} ms", log.join("\n"), slowest.as_millis());
    // Stopped processes do not hear that they shall end.
    for index in (0..5).filter(|index| fates[*index] == Fate::Stopped) {
        signal(nodes.pid(u16::try_from(index).expect("small")), "CONT");
    }
}

#[test]
fn a_node_that_restarts_again_and_again_is_one_node() {
    let mut nodes = nodes(3);
    let client = nodes.client(0).expect("up");
    let id = node(&client, "node-3")["record"]["node"].clone();
    let mut incarnation = node(&client, "node-3")["record"]["incarnation"].as_u64().expect("a number");
    for _ in 0..5 {
        nodes.kill(2).expect("killed");
        nodes.restart(2).expect("starts again");
        let risen = |node: &Value| node["record"]["incarnation"].as_u64().filter(|now| *now > incarnation && node["health"] == "up");
        incarnation = eventually("it is back in a later life", KNOWN, || risen(&node(&client, "node-3")));
        assert_eq!(node(&client, "node-3")["record"]["node"], id);
        assert_eq!(members(&client).len(), 3);
    }
    let status = client.get("/mesh/v1/status").expect("a status");
    let taken_for_a_copy = status["notices"].as_array().into_iter().flatten().any(|notice| text(notice).contains("copy"));
    assert!(!taken_for_a_copy, "{status}");
}

#[test]
fn a_copied_state_directory_is_told_so_and_never_becomes_one_node_with_the_first() {
    let mut nodes = nodes(2);
    let client = nodes.client(0).expect("up");
    let copy = tempfile::tempdir().expect("a directory");
    let copied = Command::new("cp").arg("-r").arg(nodes.state_dir(1)).arg(copy.path().join("state")).status().expect("cp runs");
    assert!(copied.success());
    let log = std::fs::File::create(copy.path().join("log")).expect("a file");
    let mut clone = Command::new(program())
        .args(["join", "--name", "copy", "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0", "--no-mdns", "--state-dir"])
        .arg(copy.path().join("state"))
        .args(["--peer", &text(&node(&client, "node-1")["record"]["addresses"][0])])
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a second handle"))
        .stderr(log)
        .spawn()
        .expect("it starts");
    let told = || {
        let log = std::fs::read_to_string(copy.path().join("log")).unwrap_or_default();
        // The cause, and what helps.
        (log.contains("copy") && log.contains("node.key")).then_some(())
    };
    eventually("the copy is told", Duration::from_secs(8), told);
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        assert_eq!(view(&client), all_up(2), "no flapping");
        std::thread::sleep(Duration::from_millis(50));
    }
    clone.kill().expect("killed");
    clone.wait().expect("it ended");
}

#[test]
fn a_node_that_slept_comes_back_as_itself() {
    let mut nodes = nodes(3);
    let client = nodes.client(0).expect("up");
    let before = node(&client, "node-3");
    signal(nodes.pid(2), "STOP");
    eventually("it is held dead", KNOWN, || (health(&client, "node-3") == "down").then_some(()));
    std::thread::sleep(Duration::from_secs(number("MESH_TEST_SLEEP_S", 5)));
    signal(nodes.pid(2), "CONT");
    eventually("it is a member again", Duration::from_secs(10), || (health(&client, "node-3") == "up").then_some(()));
    let after = node(&client, "node-3");
    assert_eq!(before["record"]["incarnation"], after["record"]["incarnation"], "it was not restarted");
    for index in 0..3 {
        let client = nodes.client(index).expect("up");
        eventually("everybody sees everybody, once", KNOWN, || (view(&client) == all_up(3)).then_some(()));
    }
}

#[test]
fn a_node_that_joins_changes_nothing_for_a_running_answer() {
    let mut nodes = nodes(2);
    nodes.deploy("builtin:story", 2, |_| {}).expect("ready");
    let client = nodes.client(0).expect("up");
    let undisturbed = content(&client.post("/v1/completions", &with(endless(1500), "stream", json!(false))).expect("an answer"));
    let mut stream = OpenStream::start(client.url(), "/v1/completions", &endless(1500));
    let third = nodes.add().expect("it joins");
    let late = nodes.client(third).expect("up");
    eventually("the newcomer sees all", KNOWN, || (view(&late) == all_up(3)).then_some(()));
    let mut ended = false;
    while let Some(event) = stream.next() {
        assert!(!event["error"].is_object(), "{event}");
        ended |= event["choices"][0]["finish_reason"].is_string();
    }
    assert!(ended);
    // And the newcomer answers with the same text.
    assert_eq!(content(&late.post("/v1/completions", &with(endless(1500), "stream", json!(false))).expect("an answer")), undisturbed);
}

fn with(mut body: Value, field: &str, value: Value) -> Value {
    body[field] = value;
    body
}

#[test]
fn a_node_that_is_told_to_stop_is_seen_to_leave_and_the_rest_answers() {
    let mut nodes = nodes(3);
    nodes.deploy("builtin:story", 3, |_| {}).expect("ready");
    let client = nodes.client(0).expect("up");
    let mut stream = OpenStream::start(client.url(), "/v1/completions", &endless(1900));
    signal(nodes.pid(2), "TERM");
    let start = Instant::now();
    // Finished, handed over or told: never a hang.
    while stream.next().is_some_and(|event| !event["error"].is_object()) {}
    assert!(start.elapsed() < Duration::from_secs(10));
    for index in [0, 1] {
        let client = nodes.client(index).expect("up");
        eventually("it is seen to have left", KNOWN, || (health(&client, "node-3") == "left").then_some(()));
    }
    let answer = eventually("the rest answers", Duration::from_secs(20), || client.post("/v1/chat/completions", &robot()).ok());
    assert_eq!(content(&answer), golden());
}

#[test]
fn of_two_nodes_the_survivor_keeps_serving() {
    for killed in [0, 1] {
        let mut nodes = nodes(2);
        nodes.deploy("builtin:story", 2, |_| {}).expect("ready");
        let survivor = nodes.client(1 - killed).expect("up");
        nodes.kill(killed).expect("killed");
        let answer = eventually("it answers alone", Duration::from_secs(20), || survivor.post("/v1/chat/completions", &robot()).ok());
        assert_eq!(content(&answer), golden());
        // It also takes new orders: there is no quorum to be locked out by.
        survivor.delete("/mesh/v1/deployments/builtin:story").expect("undeployed");
        let again = survivor.post("/mesh/v1/deployments", &json!({ "model": "builtin:story" })).expect("deployed");
        survivor.wait_ready(&text(&again["id"]), Duration::from_secs(30), |_| {}).expect("ready");
    }
}

#[test]
fn a_node_that_is_gone_for_good_is_forgotten_by_all_and_welcome_when_it_starts_again() {
    let mut nodes = nodes(3);
    let client = nodes.client(0).expect("up");
    let refused = client.delete("/mesh/v1/nodes/node-3").expect_err("it is up").to_string();
    assert!(refused.contains("stop it first"), "{refused}");
    let unknown = client.delete("/mesh/v1/nodes/nobody").expect_err("there is none").to_string();
    assert!(unknown.contains("node-3"), "{unknown}");
    nodes.kill(2).expect("killed");
    eventually("it is down", Duration::from_secs(10), || (health(&client, "node-3") == "down").then_some(()));
    client.delete("/mesh/v1/nodes/node-3").expect("forgotten");
    let clients: Vec<_> = (0..2).map(|index| nodes.client(index).expect("up")).collect();
    for client in &clients {
        eventually("it is on no list", Duration::from_secs(10), || (view(client) == all_up(2)).then_some(()));
    }
    nodes.restart(2).expect("starts again");
    for client in &clients {
        eventually("it is welcome", Duration::from_secs(10), || (view(client) == all_up(3)).then_some(()));
    }
}
