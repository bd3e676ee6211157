//! HTTP to a running node, blocking: for command lines, benches and tests, which have one thing to do at a time.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::state::StateDir;

/// A node's HTTP address and key.
#[derive(Clone, Debug)]
pub struct Client {
    url: String,
    key: Option<String>,
    agent: ureq::Agent,
}

/// A deployment that was waited for did not become ready.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// It was given up.
    #[error("it failed: {why}")]
    Failed {
        /// The node's own words.
        why: String,
    },
    /// It is no longer there.
    #[error("the deployment is gone: somebody undeployed it")]
    Gone,
    /// It may yet become ready.
    #[error("not ready after {seconds} s: {why}")]
    Late {
        /// How long it was waited for.
        seconds: u64,
        /// What it is waiting for.
        why: String,
    },
}

/// Longest silence of a node before the command gives up: the first token of a long prompt may take a while.
const SILENCE: Duration = Duration::from_secs(120);
/// The same for what a node answers from memory: one that is frozen is said to be so soon.
const SILENCE_OF_VIEWS: Duration = Duration::from_secs(10);

impl Client {
    /// The node that runs on a state directory.
    ///
    /// # Errors
    /// No node runs there.
    pub fn of_state_dir(dir: &Path, key: Option<String>) -> anyhow::Result<Self> {
        let place = StateDir::peek(dir).api().with_context(|| {
            format!("no node runs on {}: start one with `mesh join`, or name one with --api URL or --state-dir DIR", dir.display())
        })?;
        Ok(Self::at(place.url, key.or(place.key)))
    }

    /// A node at an address.
    #[must_use]
    pub fn at(url: String, key: Option<String>) -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(Duration::from_secs(5)))
            .timeout_recv_response(Some(SILENCE))
            .build();
        Self { url, key, agent: config.into() }
    }

    /// `http://ADDRESS`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// GET.
    ///
    /// # Errors
    /// No answer, or the node's own error text.
    pub fn get(&self, path: &str) -> anyhow::Result<Value> {
        let mut request = self.agent.get(format!("{}{path}", self.url)).config().timeout_recv_response(Some(SILENCE_OF_VIEWS)).build();
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        body_of(request.call().with_context(|| self.silent())?)
    }

    /// DELETE.
    ///
    /// # Errors
    /// No answer, or the node's own error text.
    pub fn delete(&self, path: &str) -> anyhow::Result<Value> {
        let mut request = self.agent.delete(format!("{}{path}", self.url));
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        body_of(request.call().with_context(|| self.silent())?)
    }

    /// POST of JSON.
    ///
    /// # Errors
    /// No answer, or the node's own error text.
    pub fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        body_of(self.send(path, body)?)
    }

    /// POST of JSON whose answer is server-sent events; calls `each` with the data of every event. An error of `each` ends
    /// the answer, on the node too.
    ///
    /// # Errors
    /// No answer, the node's own error text, an error event, a broken connection, or that of `each`.
    pub fn events(&self, path: &str, body: &Value, mut each: impl FnMut(&Value) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let response = self.send(path, body)?;
        if !response.status().is_success() {
            body_of(response)?;
            bail!("the node refused");
        }
        let reader = BufReader::new(response.into_body().into_reader());
        for line in reader.lines() {
            let line = line.context("the connection to the node broke off")?;
            let Some(data) = line.strip_prefix("data: ") else { continue };
            if data == "[DONE]" {
                return Ok(());
            }
            let event: Value = serde_json::from_str(data).context("the node sent something that is no event")?;
            if let Some(message) = error_text(&event) {
                bail!("{message}");
            }
            each(&event)?;
        }
        bail!("the connection to the node ended before the answer was whole")
    }

    /// A deployment as the node sees it; null if it is gone.
    ///
    /// # Errors
    /// No answer.
    pub fn deployment(&self, id: &str) -> anyhow::Result<Value> {
        let status = self.get("/mesh/v1/status")?;
        let all = status["deployments"].as_array().cloned().unwrap_or_default();
        Ok(all.into_iter().find(|seen| seen["record"]["id"] == id).unwrap_or(Value::Null))
    }

    /// Where this node listens for others; nothing if it does not answer.
    #[must_use]
    pub fn own_addresses(&self) -> Vec<String> {
        let status = self.get("/mesh/v1/status").unwrap_or(Value::Null);
        let mut nodes = status["nodes"].as_array().into_iter().flatten();
        let me = nodes.find(|node| node["record"]["node"] == status["me"]).unwrap_or(&Value::Null);
        me["record"]["addresses"].as_array().into_iter().flatten().map(text).collect()
    }

    /// Waits until a deployment is ready; calls `each` with every look at it.
    ///
    /// # Errors
    /// [`NotReady`], or no answer.
    pub fn wait_ready(&self, id: &str, within: Duration, mut each: impl FnMut(&Value)) -> anyhow::Result<Value> {
        let start = Instant::now();
        loop {
            let seen = self.deployment(id)?;
            let (state, details) = state_of(&seen["record"]["status"]);
            match state.as_str() {
                "ready" => return Ok(seen),
                "failed" => return Err(NotReady::Failed { why: text(&details["why"]) }.into()),
                "" => return Err(NotReady::Gone.into()),
                _ => each(&seen),
            }
            if start.elapsed() > within {
                let why = details["why"].as_str().map_or_else(|| format!("it is still {state}"), str::to_owned);
                return Err(NotReady::Late { seconds: within.as_secs(), why }.into());
            }
            std::thread::sleep(Duration::from_millis(25));
        }
    }

    fn send(&self, path: &str, body: &Value) -> anyhow::Result<ureq::http::Response<ureq::Body>> {
        let mut request = self.agent.post(format!("{}{path}", self.url));
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        request.send_json(body).with_context(|| self.silent())
    }

    fn silent(&self) -> String {
        format!("no answer from the node at {}; is it running, or frozen? (`mesh join` starts one)", self.url)
    }
}

fn body_of(mut response: ureq::http::Response<ureq::Body>) -> anyhow::Result<Value> {
    let status = response.status();
    let text = response.body_mut().with_config().limit(64 << 20).read_to_string().context("the node's answer broke off")?;
    let value: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
    if let Some(message) = error_text(&value) {
        bail!("{message}");
    }
    // A 503 of /ready is an answer, not an error.
    if !status.is_success() && value.is_null() {
        bail!("the node answered {status}");
    }
    Ok(value)
}

fn error_text(value: &Value) -> Option<&str> {
    value.get("error")?.get("message")?.as_str()
}

/// Percent-encodes a path segment.
#[must_use]
pub fn segment(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b':' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

/// A deployment's status in JSON: its name, and what belongs to it. Empty if there is none.
#[must_use]
pub fn state_of(status: &Value) -> (String, Value) {
    match status {
        Value::String(name) => (name.clone(), Value::Null),
        Value::Object(named) => named.iter().next().map(|(name, details)| (name.clone(), details.clone())).unwrap_or_default(),
        _ => (String::new(), Value::Null),
    }
}

/// A JSON text without its quotes; empty if it is none.
#[must_use]
pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
