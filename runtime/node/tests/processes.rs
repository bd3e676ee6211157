//! Real node processes on loopback: the same story however it is split, and what happens when one of them dies.

use std::time::{Duration, Instant};

use mesh_runtime::client::text;
use mesh_runtime::processes::Nodes;
use serde_json::{Value, json};

mod common;
use common::{OpenStream, content, endless, eventually, golden, health, node, nodes, robot, signal};

/// A dead node must be known, and its answers ended, in this time.
const DEAD: Duration = Duration::from_secs(5);

#[test]
fn the_story_is_the_same_over_one_two_and_three_processes_from_whichever_is_asked() {
    let seeded = json!({ "model": "builtin:story", "temperature": 1.0, "top_p": 0.95, "seed": 42, "max_tokens": 80, "messages": [{ "role": "user", "content": "Tell me a story about a fox." }] });
    let mut seeded_texts = Vec::new();
    for count in 1..=3 {
        let mut nodes = nodes(count);
        nodes.deploy("builtin:story", count, |_| {}).expect("ready");
        for index in 0..count {
            let client = nodes.client(index).expect("up");
            assert_eq!(
                content(&client.post("/v1/chat/completions", &robot()).expect("an answer")),
                golden(),
                "{count} processes, node {index} asked"
            );
            seeded_texts.push(content(&client.post("/v1/chat/completions", &seeded).expect("an answer")));
        }
    }
    assert!(seeded_texts.iter().all(|text| *text == seeded_texts[0] && !text.is_empty()), "{seeded_texts:?}");
}

#[test]
fn however_the_layers_are_placed_the_text_is_that_of_one_stage() {
    let mut nodes = nodes(3);
    let seeded = json!({ "model": "builtin:story", "temperature": 1.0, "top_p": 0.95, "seed": 11, "max_tokens": 60, "messages": [{ "role": "user", "content": "Tell me a story about a bear." }] });
    let mut first = None;
    // Two cuts of one stage, five of two stages, four of three: early, late, backwards.
    for place in [
        "1:0..8",
        "3:0..8",
        "1:0..1 2:1..8",
        "2:0..3 1:3..8",
        "3:0..4 2:4..8",
        "1:0..6 3:6..8",
        "2:0..7 3:7..8",
        "1:0..1 2:1..2 3:2..8",
        "3:0..3 2:3..5 1:5..8",
        "2:0..2 3:2..7 1:7..8",
        "1:0..6 3:6..7 2:7..8",
    ] {
        let stage = |text: &str| {
            let (node, layers) = text.split_once(':').expect("node:layers");
            let (first, end) = layers.split_once("..").expect("a range");
            let number = |text: &str| text.parse::<u16>().expect("a number");
            json!({ "node": format!("node-{node}"), "layers": { "first": number(first), "end": number(end) } })
        };
        let place_json: Vec<Value> = place.split(' ').map(stage).collect();
        let request = json!({ "model": "builtin:story", "place": place_json, "streams": 2, "context": 512 });
        let (_, seen) = nodes.deploy_as(&request, |_| {}).expect("ready");
        let status = nodes.client(0).and_then(|client| client.get("/mesh/v1/status")).expect("a status");
        let stages = seen["record"]["plan"]["stages"].as_array().expect("stages");
        let got: Vec<String> = stages
            .iter()
            .map(|stage| format!("{}:{}..{}", index_of(&status, &stage["node"]) + 1, stage["layers"]["first"], stage["layers"]["end"]))
            .collect();
        assert_eq!(got.join(" "), place);
        let client = nodes.client(1).expect("up");
        let texts = [robot(), seeded.clone()].map(|body| content(&client.post("/v1/chat/completions", &body).expect("an answer")));
        assert_eq!(texts[0], golden(), "{place}");
        assert_eq!(first.get_or_insert(texts[1].clone()), &texts[1], "{place}");
    }
    let client = nodes.client(0).expect("up");
    for (place, named) in [
        (json!([{ "node": "nobody", "layers": { "first": 0, "end": 8 } }]), "nobody"),
        (json!([{ "node": "node-1", "layers": { "first": 0, "end": 7 } }]), "layer 7"),
    ] {
        let error =
            client.post("/mesh/v1/deployments", &json!({ "model": "builtin:story", "place": place })).expect_err("refused").to_string();
        assert!(error.contains(named), "{error}");
    }
}

#[test]
fn a_copy_with_other_contents_is_named_and_takes_no_part() {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let story = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/assets/story");
    for node in 1..=3 {
        let dir = scratch.path().join(node.to_string()).join("tale");
        std::fs::create_dir_all(&dir).expect("made");
        for name in ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
            let mut bytes = std::fs::read(story.join(name)).expect("read");
            match name {
                // Another model than the one inside the program.
                "config.json" => {
                    let mut config: Value = serde_json::from_slice(&bytes).expect("JSON");
                    config["rms_norm_eps"] = json!(2e-5);
                    bytes = config.to_string().into_bytes();
                }
                // One bit, at the end: headers, sizes and samples are the same.
                "model.safetensors" if node == 2 => *bytes.last_mut().expect("not empty") ^= 1,
                _ => {}
            }
            std::fs::write(dir.join(name), bytes).expect("written");
        }
    }
    let mut nodes = common::nodes_with(3, &[scratch.path().join("{node}")]);
    nodes.deploy("tale", 2, |_| {}).expect("ready");
    let client = nodes.client(2).expect("up");
    let look = || client.get("/mesh/v1/status").expect("a status");
    let seen = eventually("the other copy is named and moved away from", Duration::from_secs(30), || {
        let status = look();
        let seen = status["deployments"][0].clone();
        let stages = seen["record"]["plan"]["stages"].as_array().cloned().unwrap_or_default();
        let away = stages.len() == 2 && stages.iter().all(|stage| index_of(&status, &stage["node"]) != 1);
        (away && seen["record"]["status"] == "ready" && !seen["other_copies"][0].is_null()).then_some(seen)
    });
    let why = text(&seen["other_copies"][0][1]);
    assert!(why.contains("node-2's copy of tale") && why.contains("model.safetensors"), "{why}");
    let plan = client.post("/mesh/v1/plan", &json!({ "model": "tale", "split": 3 })).expect("an answer");
    assert!(text(&plan["outcome"]["Err"]["why"]).contains("node-2's copy of tale"), "{plan}");
}

/// Index of the node in the process list, from its name `node-N`.
fn index_of(status: &Value, node: &Value) -> u16 {
    let nodes = status["nodes"].as_array().expect("nodes");
    let found = nodes.iter().find(|seen| seen["record"]["node"] == *node).expect("known");
    text(&found["record"]["name"]).strip_prefix("node-").and_then(|number| number.parse::<u16>().ok()).expect("a number") - 1
}

/// Kills the node with this index in mid-answer; the node with the index `asked` holds the client.
fn kill_in_mid_answer(nodes: &mut Nodes, killed: u16, asked: u16) {
    let client = nodes.client(asked).expect("up");
    let url = client.url().to_owned();
    let survivor = 3 - killed - asked;
    let before: Vec<(u32, Value)> = [asked, survivor]
        .iter()
        .map(|index| (nodes.pid(*index), node(&client, &format!("node-{}", index + 1))["record"]["incarnation"].clone()))
        .collect();
    let name = format!("node-{}", killed + 1);
    let incarnation = node(&client, &name)["record"]["incarnation"].as_u64().expect("a number");
    let id = node(&client, &name)["record"]["node"].clone();

    let mut stream = OpenStream::start(&url, "/v1/completions", &endless(1900));
    nodes.kill(killed).expect("killed");
    let start = Instant::now();
    let error = loop {
        match stream.next() {
            Some(event) if event["error"].is_object() => break event,
            Some(_) => {}
            None => panic!("the answer ended without an error"),
        }
    };
    assert!(start.elapsed() < DEAD, "the error came after {:?}", start.elapsed());
    assert!(error["error"]["message"].as_str().is_some_and(|message| !message.is_empty()), "{error}");

    // The two others answer the next request by themselves.
    let answer = eventually("the rest answers", Duration::from_secs(20), || client.post("/v1/chat/completions", &robot()).ok());
    assert_eq!(content(&answer), golden());
    assert_eq!(health(&client, &name), "down");
    let after: Vec<(u32, Value)> = [asked, survivor]
        .iter()
        .map(|index| (nodes.pid(*index), node(&client, &format!("node-{}", index + 1))["record"]["incarnation"].clone()))
        .collect();
    assert_eq!(before, after, "nobody else restarted");

    // The dead one comes back under its id, in a later life.
    nodes.restart(killed).expect("starts again");
    eventually("it is back", Duration::from_secs(10), || (health(&client, &name) == "up").then_some(()));
    let back = node(&client, &name);
    assert_eq!(back["record"]["node"], id);
    assert!(back["record"]["incarnation"].as_u64().expect("a number") > incarnation);
}

#[test]
fn a_killed_node_costs_its_answers_and_nothing_else() {
    let mut nodes = nodes(3);
    let (_, seen) = nodes.deploy("builtin:story", 3, |_| {}).expect("ready");
    let status = nodes.client(0).and_then(|client| client.get("/mesh/v1/status")).expect("a status");
    // The coordinator is the node that was asked to deploy; it is killed too, and another node holds the client then.
    let coordinator = index_of(&status, &seen["record"]["version"]["coordinator"]);
    let other = (coordinator + 1) % 3;
    kill_in_mid_answer(&mut nodes, coordinator, other);
    for killed in [coordinator, 3 - coordinator - other] {
        // Spread it over three again, so that the node to be killed holds layers.
        let client = nodes.client(other).expect("up");
        client.delete("/mesh/v1/deployments/builtin:story").expect("undeployed");
        let answer = client
            .post("/mesh/v1/deployments", &json!({ "model": "builtin:story", "split": 3, "streams": 4, "context": 2048 }))
            .expect("deployed");
        client.wait_ready(&text(&answer["id"]), Duration::from_secs(60), |_| {}).expect("ready");
        kill_in_mid_answer(&mut nodes, killed, other);
    }
}

#[test]
fn what_stays_is_not_loaded_again() {
    let mut nodes = nodes(3);
    let (_, seen) = nodes.deploy("builtin:story", 3, |_| {}).expect("ready");
    let status = nodes.client(0).and_then(|client| client.get("/mesh/v1/status")).expect("a status");
    let stages: Vec<u16> =
        seen["record"]["plan"]["stages"].as_array().expect("stages").iter().map(|stage| index_of(&status, &stage["node"])).collect();
    let loaded = |client: &mesh_runtime::client::Client| {
        client.get("/mesh/v1/status").expect("a status")["deployments"][0]["shard"]["loaded_bytes"].as_u64().unwrap_or(0)
    };
    let survivors: Vec<_> = stages[..2].iter().map(|index| nodes.client(*index).expect("up")).collect();
    let before: u64 = survivors.iter().map(loaded).sum();
    nodes.kill(stages[2]).expect("killed");
    eventually("the rest answers", Duration::from_secs(20), || survivors[0].post("/v1/chat/completions", &robot()).ok());
    let after: u64 = survivors.iter().map(loaded).sum();
    let sheet: mesh_core::model::ModelSheet = serde_json::from_value(seen["record"]["sheet"].clone()).expect("a sheet");
    let whole = sheet.layers.iter().map(|layer| layer.weight_bytes).sum::<u64>() + sheet.embed_bytes + sheet.head_bytes;
    // The lost stage's layers and head are read; at most one boundary layer moves beside them, and the head may sit where it was.
    let lost = whole - before;
    let layer = sheet.layers[0].weight_bytes;
    assert!(after - before <= lost + layer + sheet.head_bytes, "read {} more bytes where {lost} were lost", after - before);
}

#[test]
fn a_client_that_goes_away_frees_every_stage() {
    let mut nodes = nodes(2);
    nodes.deploy("builtin:story", 2, |_| {}).expect("ready");
    let clients: Vec<_> = (0..2).map(|index| nodes.client(index).expect("up")).collect();
    let streams = |client: &mesh_runtime::client::Client| {
        client.get("/mesh/v1/status").expect("a status")["deployments"][0]["shard"]["streams"].as_u64()
    };
    for streamed in [true, false] {
        let mut body = endless(1900);
        if streamed {
            drop(OpenStream::start(clients[0].url(), "/v1/completions", &body));
        } else {
            body["stream"] = json!(false);
            let text = body.to_string();
            let mut socket = std::net::TcpStream::connect(clients[0].url().trim_start_matches("http://")).expect("connects");
            let head = format!(
                "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{text}",
                text.len()
            );
            std::io::Write::write_all(&mut socket, head.as_bytes()).expect("written");
            eventually("it runs", DEAD, || (streams(&clients[1]) == Some(1)).then_some(()));
            drop(socket);
        }
        eventually("every stage is free", Duration::from_secs(1), || clients.iter().all(|client| streams(client) == Some(0)).then_some(()));
    }
}

#[test]
fn a_frozen_node_ends_its_answers_in_time() {
    let mut nodes = nodes(3);
    let (_, seen) = nodes.deploy("builtin:story", 3, |_| {}).expect("ready");
    let status = nodes.client(0).and_then(|client| client.get("/mesh/v1/status")).expect("a status");
    let last = index_of(&status, &seen["record"]["plan"]["stages"][2]["node"]);
    let asked = (last + 1) % 3;
    let client = nodes.client(asked).expect("up");
    let mut stream = OpenStream::start(client.url(), "/v1/completions", &endless(1900));
    signal(nodes.pid(last), "STOP");
    let start = Instant::now();
    let error = loop {
        match stream.next() {
            Some(event) if event["error"].is_object() => break event,
            Some(_) => {}
            None => panic!("the answer ended without an error"),
        }
    };
    assert!(start.elapsed() < DEAD, "{error} came after {:?}", start.elapsed());
    let answer = eventually("the rest answers", Duration::from_secs(20), || client.post("/v1/chat/completions", &robot()).ok());
    assert_eq!(content(&answer), golden());
    signal(nodes.pid(last), "CONT");
    eventually("it is a member again", Duration::from_secs(10), || (health(&client, &format!("node-{}", last + 1)) == "up").then_some(()));
}

#[test]
fn two_meshes_with_other_secrets_do_not_merge() {
    let (mut one, mut two) = (nodes(1), nodes(1));
    let (a, b) = (one.client(0).expect("up"), two.client(0).expect("up"));
    // Each is given the other's address; the secret keeps them apart.
    let address = |client: &mesh_runtime::client::Client| {
        text(&client.get("/mesh/v1/status").expect("a status")["nodes"][0]["record"]["addresses"][0])
    };
    let mut third = common::stranger(&[address(&a), address(&b)]);
    let status = third.client(0).expect("up");
    std::thread::sleep(Duration::from_secs(2));
    for client in [&a, &b, &status] {
        assert_eq!(client.get("/mesh/v1/status").expect("a status")["nodes"].as_array().map(Vec::len), Some(1));
    }
}
