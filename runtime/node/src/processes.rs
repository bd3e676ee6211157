//! Real node processes on loopback, for the demo, the benches and the tests: started, watched, taken down, their directories removed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use mesh_net::{MeshSecret, Token};
use serde_json::{Value, json};

use crate::client::{Client, text};
use crate::state::StateDir;

/// Node processes that end with this value. They leave when their standard input closes, so they also end if this
/// process is killed.
pub struct Nodes {
    dir: PathBuf,
    program: PathBuf,
    secret: MeshSecret,
    threads: u16,
    model_dirs: Vec<PathBuf>,
    peers: Vec<String>,
    children: Vec<Child>,
}

/// Node processes that this process started and has not waited for: until then the system gives their ids to nobody else.
static STARTED: std::sync::Mutex<Vec<u32>> = std::sync::Mutex::new(Vec::new());

fn started() -> std::sync::MutexGuard<'static, Vec<u32>> {
    STARTED.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Waits for a process that has ended or is about to.
fn reap(child: &mut Child) -> std::io::Result<()> {
    started().retain(|pid| *pid != child.id());
    child.wait().map(drop)
}

/// How nodes are started.
pub struct Start<'a> {
    /// The `mesh` program.
    pub program: &'a Path,
    /// How many.
    pub count: u16,
    /// Compute threads of each.
    pub threads: u16,
    /// Directories with models. `{node}` in a path stands for the node's number, from 1: its own copy of a directory.
    pub model_dirs: &'a [PathBuf],
}

/// Settings of the caller's environment that are not meant for these nodes.
const FOREIGN_SETTINGS: [&str; 10] = [
    "MESH_API",
    "MESH_API_KEY",
    "MESH_API_LISTEN",
    "MESH_CONFIG",
    "MESH_NAME",
    "MESH_STATE_DIR",
    "MESH_MESH",
    "MESH_THREADS",
    "MESH_MEMORY",
    "MESH_LOG_FORMAT",
];

/// A deployment must be ready in this time.
const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// Nodes must be up in this time: a busy machine needs some of it.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Of the directories of all [`Nodes`] that this process started.
fn dir_prefix() -> String {
    format!("mesh-demo-{}-", std::process::id())
}

impl Nodes {
    /// For a process that is being stopped: ends all node processes that it started, wherever their [`Nodes`] is, and
    /// removes their directories; tries so often, 50 ms apart, since the nodes write while they end.
    pub fn abandon(tries: u32) {
        for pid in started().iter() {
            let _ = Command::new("kill").args(["-TERM", &pid.to_string()]).stderr(Stdio::null()).status();
        }
        for _ in 0..tries {
            std::thread::sleep(Duration::from_millis(50));
            let entries = std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
            let left: Vec<PathBuf> =
                entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&dir_prefix())).map(|entry| entry.path()).collect();
            if left.is_empty() {
                return;
            }
            left.iter().for_each(|dir| drop(std::fs::remove_dir_all(dir)));
        }
    }

    /// Starts nodes named `node-1`… and waits until each sees all.
    ///
    /// # Errors
    /// A process could not be started, ended at once, or they did not find each other.
    pub fn start(start: &Start<'_>) -> anyhow::Result<Self> {
        Self::start_with_peers(start, &[])
    }

    /// As [`Nodes::start`], and every node dials `peers` as well.
    ///
    /// # Errors
    /// As [`Nodes::start`].
    pub fn start_with_peers(start: &Start<'_>, peers: &[String]) -> anyhow::Result<Self> {
        let dir = std::env::temp_dir().join(format!("{}{:08x}", dir_prefix(), rand::random::<u32>()));
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot make the directory {}", dir.display()))?;
        let mut nodes = Self {
            dir,
            program: start.program.to_owned(),
            secret: MeshSecret::draw(),
            threads: start.threads,
            model_dirs: start.model_dirs.to_vec(),
            peers: peers.to_vec(),
            children: Vec::new(),
        };
        for index in 0..start.count {
            // Every other running node's address: whichever is gone, the rest can be found.
            let addresses = (0..index).flat_map(|other| nodes.addresses(other)).collect();
            let child = nodes.spawn(index, addresses)?;
            nodes.children.push(child);
            if index == 0 {
                nodes.client(0)?; // the others need its address
            }
        }
        nodes.wait_complete(usize::from(start.count))?;
        Ok(nodes)
    }

    /// Starts one more node and waits until it serves HTTP. Returns its index.
    ///
    /// # Errors
    /// It could not be started, or does not come up.
    pub fn add(&mut self) -> anyhow::Result<u16> {
        let index = u16::try_from(self.children.len())?;
        let addresses = (0..index).flat_map(|other| self.addresses(other)).collect();
        let child = self.spawn(index, addresses)?;
        self.children.push(child);
        self.client(index)?;
        Ok(index)
    }

    /// Starts the node with this index again on its old state directory, after it was killed. It is told no address: it
    /// must find the others where it last met them.
    ///
    /// # Errors
    /// It could not be started, or does not come up.
    pub fn restart(&mut self, index: u16) -> anyhow::Result<Client> {
        let _ = reap(&mut self.children[usize::from(index)]);
        StateDir::peek(&self.state_dir(index)).remove_api();
        self.children[usize::from(index)] = self.spawn(index, Vec::new())?;
        self.client(index)
    }

    /// Ends a node at once, as `kill -9` does.
    ///
    /// # Errors
    /// The operating system refused.
    pub fn kill(&mut self, index: u16) -> anyhow::Result<()> {
        let child = &mut self.children[usize::from(index)];
        child.kill().context("cannot kill a node process")?;
        reap(child).context("cannot wait for a killed node process")?;
        StateDir::peek(&self.state_dir(index)).remove_api();
        Ok(())
    }

    fn spawn(&self, index: u16, addresses: Vec<String>) -> anyhow::Result<Child> {
        let token = Token { mesh: "demo".to_owned(), secret: self.secret, addresses }.to_string();
        let mut command = Command::new(&self.program);
        command
            .args([
                "join",
                "--name",
                &format!("node-{}", index + 1),
                "--listen",
                "127.0.0.1:0",
                "--api",
                "127.0.0.1:0",
                "--no-mdns",
                "--until-stdin-closes",
            ])
            .args(["--threads", &self.threads.to_string()])
            .arg("--state-dir")
            .arg(self.state_dir(index))
            .env("MESH_TOKEN", token) // not an argument: others on this machine can read those
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log_file(&self.dir, index)?);
        for name in FOREIGN_SETTINGS {
            command.env_remove(name);
        }
        for dir in &self.model_dirs {
            let own = dir.to_string_lossy().replace("{node}", &(index + 1).to_string());
            command.arg("--model-dir").arg(own);
        }
        for peer in &self.peers {
            command.arg("--peer").arg(peer);
        }
        let child = command.spawn().context("cannot start a node process")?;
        started().push(child.id());
        Ok(child)
    }

    /// Where a running node listens for others; nothing if it does not answer.
    fn addresses(&self, index: u16) -> Vec<String> {
        let place = StateDir::peek(&self.state_dir(index)).api();
        place.map(|place| Client::at(place.url, place.key).own_addresses()).unwrap_or_default()
    }

    /// Where the node with this index keeps its key and records.
    #[must_use]
    pub fn state_dir(&self, index: u16) -> PathBuf {
        self.dir.join(format!("node-{}", index + 1))
    }

    /// HTTP of the node with this index, once it serves.
    ///
    /// # Errors
    /// It ended, or does not come up in time.
    pub fn client(&mut self, index: u16) -> anyhow::Result<Client> {
        let state = StateDir::peek(&self.state_dir(index));
        let start = Instant::now();
        loop {
            if let Some(place) = state.api() {
                return Ok(Client::at(place.url, place.key));
            }
            if let Some(status) = self.children[usize::from(index)].try_wait()? {
                bail!("node-{} ended at once ({status}): {}", index + 1, self.last_words(index));
            }
            if start.elapsed() > START_TIMEOUT {
                bail!("node-{} did not come up within {} s: {}", index + 1, START_TIMEOUT.as_secs(), self.last_words(index));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn last_words(&self, index: u16) -> String {
        let log = std::fs::read_to_string(self.dir.join(format!("node-{}.log", index + 1))).unwrap_or_default();
        log.lines().rev().take(3).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join(" / ")
    }

    fn wait_complete(&mut self, count: usize) -> anyhow::Result<()> {
        let start = Instant::now();
        for index in 0..u16::try_from(count)? {
            let client = self.client(index)?;
            loop {
                let status = client.get("/mesh/v1/status")?;
                let up = status["nodes"].as_array().into_iter().flatten().filter(|node| node["health"] == "up").count();
                if up >= count {
                    break;
                }
                if start.elapsed() > START_TIMEOUT {
                    bail!("node-{} sees {up} of {count} nodes after {} s", index + 1, START_TIMEOUT.as_secs());
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    /// Process id of the node with this index.
    #[must_use]
    pub fn pid(&self, index: u16) -> u32 {
        self.children[usize::from(index)].id()
    }

    /// Deploys a model over so many stages through the first node and waits until it is ready; calls `each` with every
    /// look at it. Returns its name and the deployment as the status shows it.
    ///
    /// # Errors
    /// The node refused, or it did not become ready.
    pub fn deploy(&mut self, model: &str, split: u16, each: impl FnMut(&Value)) -> anyhow::Result<(String, Value)> {
        self.deploy_as(&json!({ "model": model, "split": split, "streams": 4, "context": 2048 }), each)
    }

    /// As [`Nodes::deploy`], with the whole body of the request: see [`crate::api::DeployRequest`].
    ///
    /// # Errors
    /// As [`Nodes::deploy`].
    pub fn deploy_as(&mut self, request: &Value, each: impl FnMut(&Value)) -> anyhow::Result<(String, Value)> {
        let client = self.client(0)?;
        let answer = client.post("/mesh/v1/deployments", request)?;
        let seen = client.wait_ready(&text(&answer["id"]), READY_TIMEOUT, each)?;
        Ok((text(&answer["model"]), seen))
    }
}

fn log_file(dir: &Path, index: u16) -> anyhow::Result<std::fs::File> {
    let path = dir.join(format!("node-{}.log", index + 1));
    std::fs::File::create(&path).with_context(|| format!("cannot write {}", path.display()))
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for child in &mut self.children {
            drop(child.stdin.take()); // the polite way: the node leaves
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        for child in &mut self.children {
            while matches!(child.try_wait(), Ok(None)) {
                if Instant::now() > deadline {
                    let _ = child.kill();
                    let _ = child.wait();
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            started().retain(|pid| *pid != child.id());
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
