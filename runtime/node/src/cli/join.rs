//! `mesh join`: one node, in the foreground.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use mesh_runtime::Mesh;
use mesh_runtime::api;
use mesh_runtime::settings::{Api, Settings};
use mesh_runtime::state::{ApiPlace, StateDir};

use super::status::Watcher;
use super::{LogFormat, directory, logs, out, settings_from, size};

/// Flags of `mesh join`. Each beats its environment variable, which beats the file.
#[derive(Debug, Args)]
pub struct Join {
    /// Invitation from `mesh token` on a member; without it this node goes back to its mesh, or makes a new one
    #[arg(env = "MESH_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// This node's name, for people [default: the host's name]
    #[arg(long, env = "MESH_NAME")]
    name: Option<String>,
    /// Name of the mesh, when a new one is made [default: home]
    #[arg(long, env = "MESH_MESH", value_name = "NAME")]
    mesh: Option<String>,
    /// Another node's address (IP:PORT or multiaddress); repeatable; tried until it answers
    #[arg(long, value_name = "ADDR")]
    peer: Vec<String>,
    /// Where to listen for other nodes; repeatable [default: 0.0.0.0:0]
    #[arg(long, value_name = "ADDR")]
    listen: Vec<String>,
    /// Where to serve HTTP, or `off` [default: 127.0.0.1:8477, or the next free port]
    #[arg(long, value_name = "ADDR", env = "MESH_API_LISTEN")]
    api: Option<String>,
    /// Key that HTTP clients must show; needed by any address but loopback
    #[arg(long, env = "MESH_API_KEY", value_name = "KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Where key, secret and records live
    #[arg(long, env = "MESH_STATE_DIR", value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Directory with models; repeatable
    #[arg(long, value_name = "DIR", value_parser = directory)]
    model_dir: Vec<PathBuf>,
    /// Memory lent to models, for instance 48G [default: what is free]
    #[arg(long, value_name = "SIZE", value_parser = size, env = "MESH_MEMORY")]
    memory: Option<u64>,
    /// Compute threads [default: the cores this process may use]
    #[arg(long, env = "MESH_THREADS", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Neither find nor be found by multicast DNS
    #[arg(long)]
    no_mdns: bool,
    /// Settings from a file; see configs/node.toml
    #[arg(long, value_name = "FILE", env = "MESH_CONFIG")]
    config: Option<PathBuf>,
    /// How log lines look
    #[arg(long, value_enum, default_value = "text", env = "MESH_LOG_FORMAT")]
    log_format: LogFormat,
    /// error, warn, info, debug or trace
    #[arg(long, default_value = "warn", env = "MESH_LOG")]
    log_level: String,
    /// Leave when standard input closes: for programs that start nodes
    #[arg(long)]
    until_stdin_closes: bool,
}

impl Join {
    fn settings(&self) -> anyhow::Result<Settings> {
        let mut settings = settings_from(self.config.as_ref())?;
        settings.token = self.token.clone().or(settings.token);
        if let Some(name) = &self.name {
            settings.name.clone_from(name);
        }
        if let Some(mesh) = &self.mesh {
            settings.mesh.clone_from(mesh);
        }
        settings.peers.extend(self.peer.iter().cloned());
        if !self.listen.is_empty() {
            settings.listen.clone_from(&self.listen);
        }
        if let Some(dir) = &self.state_dir {
            settings.state_dir.clone_from(dir);
        }
        settings.model_dirs.extend(self.model_dir.iter().cloned());
        settings.memory_bytes = self.memory.or(settings.memory_bytes);
        settings.threads = self.threads.or(settings.threads);
        settings.mdns &= !self.no_mdns;
        match self.api.as_deref() {
            Some("off") => settings.api = None,
            Some(address) => {
                let address: SocketAddr = address
                    .parse()
                    .with_context(|| format!("--api {address}: write an address and a port, for instance 127.0.0.1:8477, or `off`"))?;
                let api = settings.api.get_or_insert_with(Api::default);
                (api.address, api.explicit) = (address, true);
            }
            None => {}
        }
        if let (Some(key), Some(api)) = (&self.api_key, &mut settings.api) {
            api.key = Some(key.clone());
        }
        settings.check()?;
        Ok(settings)
    }

    /// Runs the node until it is told to stop.
    ///
    /// # Errors
    /// It could not start.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let settings = self.settings()?;
        logs::install(self.log_format, &self.log_level);
        // Bound before anything else starts, so that a taken port costs nothing.
        let listener = settings.api.as_ref().map(api::bind).transpose().map_err(anyhow::Error::msg)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mesh = Mesh::join(settings.clone()).await?;
            let state = StateDir::peek(&settings.state_dir);
            let server = match (&settings.api, listener) {
                (Some(api), Some(listener)) => {
                    let server = api::serve(mesh.clone(), api, listener)?;
                    let url = format!("http://{}", server.address);
                    state.write_api(&ApiPlace { url, pid: std::process::id(), key: api.key.clone() })?;
                    Some(server)
                }
                _ => None,
            };
            self.greet(&settings, &mesh, server.as_ref().map(|server| server.address));
            let watcher = Watcher::new(mesh.clone(), self.log_format == LogFormat::Text);
            tokio::select! {
                () = watcher.run() => {}
                signal = stop_signal(self.until_stdin_closes) => say(&format!("{signal}: leaving (again to stop at once)")),
            }
            tokio::spawn(async {
                stop_signal(false).await;
                std::process::exit(130);
            });
            state.remove_api();
            mesh.leave().await;
            if let Some(server) = server {
                tokio::task::spawn_blocking(move || server.stop()).await?;
            }
            Ok(ExitCode::SUCCESS)
        })
    }

    fn greet(&self, settings: &Settings, mesh: &Mesh, api: Option<SocketAddr>) {
        if self.log_format == LogFormat::Json {
            tracing::info!(node = %mesh.id(), incarnation = mesh.incarnation(), addresses = ?mesh.addresses(), api = ?api, "joined");
            return;
        }
        say(&format!("node {} ({}), start number {}", settings.name, mesh.id().short(), mesh.incarnation()));
        for address in mesh.addresses() {
            say(&format!("  listening on {address}"));
        }
        match api {
            Some(address) => say(&format!("  HTTP on http://{address} (OpenAI's routes under /v1)")),
            None => say("  HTTP is off"),
        }
        say(&format!("  invite another machine with: mesh join {}", mesh.token()));
    }
}

fn say(text: &str) {
    out::perhaps(text);
}

/// Waits for Ctrl-C, SIGTERM, or the end of standard input.
pub(super) async fn stop_signal(stdin: bool) -> &'static str {
    use tokio::signal::unix::{SignalKind, signal};
    let terminate = async {
        match signal(SignalKind::terminate()) {
            Ok(mut terminate) => {
                terminate.recv().await;
            }
            Err(_) => std::future::pending().await,
        }
    };
    let closed = async {
        if !stdin {
            return std::future::pending().await;
        }
        // A plain thread: a blocking read in the runtime's pool would hold up its end.
        let (done, over) = tokio::sync::oneshot::channel::<()>();
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            drop(done);
        });
        let _ = over.await;
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => "Ctrl-C",
        () = terminate => "SIGTERM",
        () = closed => "standard input closed",
    }
}

/// How often the watcher looks.
pub const WATCH_EVERY: Duration = Duration::from_millis(250);
