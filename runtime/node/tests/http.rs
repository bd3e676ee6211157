//! The HTTP API as clients of the field use it and misuse it, against one real node with the built-in model.

use serde_json::{Value, json};

mod common;
use common::{OpenStream, content, endless, golden, nodes, program, raw, robot};

fn post(address: &str, path: &str, body: &str) -> (u16, Value) {
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let (status, body) = raw(address, request.as_bytes());
    (status, serde_json::from_str(&body).unwrap_or(Value::Null))
}

fn get(address: &str, path: &str, headers: &str) -> (u16, String) {
    raw(address, format!("GET {path} HTTP/1.1\r\n{headers}connection: close\r\n\r\n").as_bytes())
}

#[test]
fn the_api_does_what_its_clients_expect() {
    let mut nodes = nodes(1);
    let client = nodes.client(0).expect("up");
    let address = client.url().trim_start_matches("http://").to_owned();

    // Before anything is deployed: alive, ready for nothing, and a model that is not there is a 404 with the list.
    assert_eq!(get(&address, "/health", "host: localhost\r\n").0, 200);
    assert_eq!(post(&address, "/v1/chat/completions", &robot().to_string()).0, 404);
    a_deployment_that_cannot_start(&client);
    nodes.deploy("builtin:story", 1, |_| {}).expect("ready");
    the_command_line_ends_cleanly(&client);
    assert_eq!(get(&address, "/ready", "host: localhost\r\n").0, 200);

    chat_and_completions(&client);
    streams(&client);
    bad_requests(&address);
    hostile_callers(&address);

    // And after all that it still answers.
    assert_eq!(content(&client.post("/v1/chat/completions", &robot()).expect("an answer")), golden());
    an_answer_whose_model_is_undeployed_says_so(&client);
}

/// The `mesh` command against this node.
fn mesh(client: &mesh_runtime::client::Client, arguments: &[&str]) -> std::process::Command {
    let mut command = std::process::Command::new(program());
    command.args(arguments).args(["--api", client.url()]).env_remove("MESH_API").env_remove("MESH_API_KEY");
    command
}

/// Exit status and what was said as JSON: programs act on them.
fn a_deployment_that_cannot_start(client: &mesh_runtime::client::Client) {
    let told = |arguments: &[&str]| {
        let output = mesh(client, arguments).output().expect("runs");
        let said: Value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        (output.status.code(), said)
    };
    let (code, said) = told(&["deploy", "builtin:story", "--split", "2", "--wait", "--timeout-s", "1", "--json"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said["error"]["message"].as_str().is_some_and(|why| why.contains("2 stages")), "{said}");
    assert!(said["status"]["waiting"].is_object() && said["id"].is_string(), "{said}");
    let (code, said) = told(&["deploy", "nothing-of-that-name", "--json"]);
    assert_eq!(code, Some(1));
    assert!(said["error"]["message"].as_str().is_some_and(|why| why.contains("nothing-of-that-name")), "{said}");
    client.delete("/mesh/v1/deployments/builtin:story").expect("undeployed");
}

/// A full disk, and a reader that has gone.
fn the_command_line_ends_cleanly(client: &mesh_runtime::client::Client) {
    for arguments in [
        &["status"][..],
        &["status", "--json"],
        &["models"],
        &["plan", "builtin:story"],
        &["run", "builtin:story", "Hello", "--max-tokens", "4"],
    ] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a full device");
        let output = mesh(client, arguments).stdout(full).output().expect("runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && said.starts_with("error: cannot write the output"), "{arguments:?}: {said}");

        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = mesh(client, arguments).stdout(writer).output().expect("runs");
        assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(141), ""), "{arguments:?}");
    }
}

fn an_answer_whose_model_is_undeployed_says_so(client: &mesh_runtime::client::Client) {
    let mut stream = OpenStream::start(client.url(), "/v1/completions", &endless(1900));
    client.delete("/mesh/v1/deployments/builtin:story").expect("undeployed");
    let error = loop {
        match stream.next() {
            Some(event) if event["error"].is_object() => break event,
            Some(_) => {}
            None => panic!("the answer ended without an error"),
        }
    };
    assert!(error["error"]["message"].as_str().is_some_and(|message| message.contains("undeployed")), "{error}");
}

fn chat_and_completions(client: &mesh_runtime::client::Client) {
    let answer = client.post("/v1/chat/completions", &robot()).expect("an answer");
    assert_eq!(content(&answer), golden());
    assert_eq!((answer["object"].as_str(), answer["choices"][0]["finish_reason"].as_str()), (Some("chat.completion"), Some("stop")));
    assert_eq!(answer["usage"]["total_tokens"].as_u64(), Some(12 + answer["usage"]["completion_tokens"].as_u64().expect("a number")));

    // A stop string ends the text before itself (F90); max_tokens ends it with `length`.
    let mut stopped = robot();
    stopped["stop"] = json!(["called Luna"]);
    let answer = client.post("/v1/chat/completions", &stopped).expect("an answer");
    assert_eq!(
        (content(&answer).as_str(), answer["choices"][0]["finish_reason"].as_str()),
        ("There once lived a small robot", Some("stop"))
    );
    let answer = client
        .post("/v1/completions", &json!({ "model": "builtin:story", "prompt": "Once", "max_tokens": 3, "temperature": 0, "logprobs": 2 }))
        .expect("an answer");
    assert_eq!((answer["choices"][0]["finish_reason"].as_str(), answer["usage"]["completion_tokens"].as_u64()), (Some("length"), Some(3)));
    let logprobs = &answer["choices"][0]["logprobs"];
    assert_eq!(
        (logprobs["tokens"].as_array().map(Vec::len), logprobs["top_logprobs"][0].as_object().map(serde_json::Map::len)),
        (Some(3), Some(2))
    );

    // Log-probabilities: the chosen token of a greedy answer is the likeliest, with its bytes (F110).
    let mut logged = robot();
    (logged["logprobs"], logged["top_logprobs"], logged["max_tokens"]) = (json!(true), json!(5), json!(4));
    let answer = client.post("/v1/chat/completions", &logged).expect("an answer");
    let content = answer["choices"][0]["logprobs"]["content"].as_array().expect("a list");
    assert_eq!(content.len(), 4);
    for token in content {
        assert_eq!(token["token"], token["top_logprobs"][0]["token"]);
        assert_eq!((token["top_logprobs"].as_array().map(Vec::len), token["bytes"].is_array()), (Some(5), true));
    }
    let models = client.get("/v1/models").expect("models");
    assert_eq!((models["data"][0]["id"].as_str(), models["data"][0]["ready"].as_bool()), (Some("builtin:story"), Some(true)));
}

fn streams(client: &mesh_runtime::client::Client) {
    for (options, usage_chunks) in [(Value::Null, 0), (json!({ "include_usage": false }), 0), (json!({ "include_usage": true }), 1)] {
        let mut body = robot();
        (body["stream"], body["stream_options"]) = (json!(true), options);
        let (mut text, mut reasons, mut usage) = (String::new(), 0, 0);
        client
            .events("/v1/chat/completions", &body, |event| {
                assert!(event["choices"][0].get("message").is_none(), "a stream has deltas only");
                text += event["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
                reasons += u32::from(event["choices"][0]["finish_reason"].is_string());
                usage += u32::from(event["usage"].is_object() && event["choices"].as_array().is_some_and(Vec::is_empty));
                Ok(())
            })
            .expect("a whole stream");
        assert_eq!((text.trim(), reasons, usage), (golden().as_str(), 1, usage_chunks));
    }
}

fn bad_requests(address: &str) {
    let chat = "/v1/chat/completions";
    let long = json!({ "model": "builtin:story", "messages": [{ "role": "user", "content": "a fox and a dog ".repeat(3000) }] });
    for (body, status, code) in [
        ("{:".to_owned(), 400, None),
        (json!({ "model": "builtin:story", "messages": "x" }).to_string(), 400, None),
        (json!({ "model": "builtin:story", "messages": [] }).to_string(), 400, None),
        (json!({ "model": "builtin:story", "messages": [{ "role": "user", "content": "x" }], "n": 2 }).to_string(), 400, None),
        (json!({ "model": "nobody", "messages": [{ "role": "user", "content": "x" }] }).to_string(), 404, Some("model_not_found")),
        (long.to_string(), 400, Some("context_length_exceeded")),
    ] {
        let (got, answer) = post(address, chat, &body);
        assert_eq!(got, status, "{answer}");
        assert!(answer["error"]["message"].as_str().is_some_and(|message| !message.is_empty()), "{answer}");
        assert_eq!(answer["error"]["code"].as_str(), code, "{answer}");
    }
    let typo = json!({ "model": "builtin:story", "messages": [{ "role": "user", "content": "x" }], "max_tokens": "many" });
    assert_eq!(post(address, chat, &typo.to_string()).1["error"]["param"], "max_tokens");
    let zero = json!({ "model": "builtin:story", "streams": 0 });
    assert_eq!(post(address, "/mesh/v1/deployments", &zero.to_string()).0, 400);
    // A text that no context can hold is refused before it is encoded; one that might is encoded beside the others.
    let endless = json!({ "model": "builtin:story", "messages": [{ "role": "user", "content": "a b".repeat(2_600_000) }] });
    let (got, answer) = post(address, chat, &endless.to_string());
    assert_eq!((got, answer["error"]["code"].as_str()), (400, Some("context_length_exceeded")), "{answer}");
    // Fifty kilobytes and five megabytes of unknown field are fine; beyond the limit is a 413 before it is read (F120).
    for (bytes, status) in [(50 << 10, 200), (5 << 20, 200)] {
        let mut body = robot();
        body["padding"] = json!("x".repeat(bytes));
        assert_eq!(post(address, chat, &body.to_string()).0, status);
    }
    let huge = format!(
        "POST {chat} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        17 << 20
    );
    assert_eq!(raw(address, huge.as_bytes()).0, 413);
    assert_eq!(raw(address, b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\n{}").0, 415);
    assert_eq!(get(address, "/v1/nowhere", "host: localhost\r\n").0, 404);
    assert_eq!(get(address, chat, "host: localhost\r\n").0, 405);
    assert_eq!(raw(address, b"\x16\x03\x01garbage\xff\xfe\r\n\r\n").0 / 100, 4);
}

fn hostile_callers(address: &str) {
    // A page that rebinds its name to loopback, and a page of another origin.
    assert_eq!(get(address, "/v1/models", "host: evil.example\r\n").0, 403);
    let (status, text) = get(address, "/v1/models", "host: localhost\r\norigin: https://evil.example\r\n");
    assert!(status == 403 && !text.contains("allow-origin"), "{text}");
}
