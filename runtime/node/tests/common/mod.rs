//! What the tests with real processes share.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mesh_runtime::client::Client;
use mesh_runtime::processes::{Nodes, Start};
use serde_json::{Value, json};

/// Says loudly that a test was skipped: past the test runner, which swallows what passing tests print.
pub fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "!! SKIPPED: {why}");
}

/// Where `cargo xtask model` puts what it fetches; `MESH_TEST_TARGET` names another place.
pub fn fetched() -> PathBuf {
    std::env::var_os("MESH_TEST_TARGET").map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"), PathBuf::from)
}

/// The real model's name.
pub const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1";
/// What it is asked, and what it answers greedily as a helpful assistant.
pub const QUESTION: &str = "What is the capital of France?";
/// See [`QUESTION`].
pub const ANSWER: &str = "The capital of France is Paris.";

/// The directory of the real model, or a loud line and nothing.
pub fn real_model() -> Option<PathBuf> {
    let dir = fetched().join("models");
    if dir.join(format!("{SMOLLM2}.gguf")).exists() {
        return Some(dir);
    }
    skipped(&format!("the real model is not in {}; run `cargo xtask model`", dir.display()));
    None
}

/// A Python that has the `openai` package, or a loud line and nothing.
pub fn python() -> Option<PathBuf> {
    let python = fetched().join("venv/bin/python");
    if python.exists() {
        return Some(python);
    }
    skipped(&format!("the openai package is not in {}; run `cargo xtask model`", python.display()));
    None
}

/// The script that uses the `openai` package against a node. Arguments: URL, model, question, answer.
pub fn openai_script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/openai_client.py")
}

/// The `mesh` program of this build.
pub fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_mesh"))
}

/// Nodes with one thread each.
pub fn nodes(count: u16) -> Nodes {
    nodes_with(count, &[])
}

/// Nodes that look for models in these directories.
pub fn nodes_with(count: u16, model_dirs: &[PathBuf]) -> Nodes {
    Nodes::start(&Start { program: program(), count, threads: 1, model_dirs }).expect("the nodes start")
}

/// The story that the built-in model tells greedily about a robot.
pub fn golden() -> String {
    include_str!("../golden/robot.txt").trim().to_owned()
}

/// A greedy question to the built-in model.
pub fn robot() -> Value {
    json!({ "model": "builtin:story", "temperature": 0, "messages": [{ "role": "user", "content": "Tell me a story about a robot." }] })
}

/// A long answer: the end token is made impossible, so it runs to `max_tokens`.
pub fn endless(tokens: u32) -> Value {
    json!({ "model": "builtin:story", "prompt": "Once upon a time", "temperature": 0, "max_tokens": tokens, "logit_bias": { "1": -100 }, "stream": true })
}

/// The answer's text.
pub fn content(answer: &Value) -> String {
    let choice = &answer["choices"][0];
    choice["message"]["content"].as_str().or_else(|| choice["text"].as_str()).unwrap_or_default().trim().to_owned()
}

/// Waits until `look` gives something.
pub fn eventually<T>(what: &str, within: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < within, "{what}: not within {within:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends a signal to a process that a test started.
pub fn signal(pid: u32, name: &str) {
    let status = std::process::Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().expect("kill runs");
    assert!(status.success());
}

/// What a node says of another one's health; empty if it does not know it.
pub fn health(client: &Client, name: &str) -> String {
    node(client, name)["health"].as_str().unwrap_or_default().to_owned()
}

/// What a node says of another one.
pub fn node(client: &Client, name: &str) -> Value {
    let status = client.get("/mesh/v1/status").expect("a status");
    let nodes = status["nodes"].as_array().cloned().unwrap_or_default();
    nodes.into_iter().find(|node| node["record"]["name"] == name).unwrap_or(Value::Null)
}

/// A request by hand over a plain socket: status code and body. For what a well-behaved client cannot send.
pub fn raw(address: &str, request: &[u8]) -> (u16, String) {
    let mut socket = TcpStream::connect(address).expect("connects");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    socket.write_all(request).expect("written");
    let mut text = Vec::new();
    let _ = socket.read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text).into_owned();
    let status = text.split_whitespace().nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    let body = text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default();
    (status, body)
}

/// An open streamed answer over a plain socket. Dropping it is a client that goes away.
pub struct OpenStream {
    lines: BufReader<TcpStream>,
}

impl OpenStream {
    /// Asks, and reads until the first text arrived.
    pub fn start(url: &str, path: &str, body: &Value) -> Self {
        let address = url.strip_prefix("http://").expect("a plain address");
        let body = body.to_string();
        let mut socket = TcpStream::connect(address).expect("connects");
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
        let head =
            format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
        socket.write_all(head.as_bytes()).and_then(|()| socket.write_all(body.as_bytes())).expect("written");
        let mut stream = Self { lines: BufReader::new(socket) };
        loop {
            let event = stream.next().expect("an answer");
            if event["choices"][0]["text"]
                .as_str()
                .or(event["choices"][0]["delta"]["content"].as_str())
                .is_some_and(|text| !text.is_empty())
            {
                return stream;
            }
        }
    }

    /// The next event; none at the end.
    pub fn next(&mut self) -> Option<Value> {
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let Some(data) = line.trim_end().strip_prefix("data: ") else { continue };
            if data == "[DONE]" {
                return None;
            }
            return serde_json::from_str(data).ok();
        }
    }
}

/// A node of another mesh that is told to dial these addresses.
pub fn stranger(peers: &[String]) -> Nodes {
    Nodes::start_with_peers(&Start { program: program(), count: 1, threads: 1, model_dirs: &[] }, peers).expect("the node starts")
}
