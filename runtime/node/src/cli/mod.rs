//! Flags and subcommands. Each subcommand is a file; all but `join` and `demo` talk to a running node over HTTP.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the command line is where printing belongs")]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use mesh_runtime::client::Client;
use mesh_runtime::settings::{Settings, bytes_of, state_dir_default};

mod bench;
mod demo;
mod deploy;
mod join;
mod logs;
mod run;
mod show;
mod status;
mod wish;

/// Runs one large language model over many machines and keeps answering while they leave, crash and reboot.
#[derive(Debug, Parser)]
#[command(
    version,
    about,
    max_term_width = 110,
    after_help = "Start with `mesh demo`, then `mesh join` on each machine and `mesh deploy MODEL`."
)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start nodes on this machine, split the built-in model over them, stream a story, clean up
    Demo(demo::Demo),
    /// Run a node: join a mesh, or make a new one; runs until Ctrl-C or SIGTERM
    Join(join::Join),
    /// Keep a model answering
    Deploy(deploy::Deploy),
    /// Stop and forget a deployed model
    Undeploy(deploy::Undeploy),
    /// Ask a deployed model; the answer streams to the terminal
    Run(run::Run),
    /// Show nodes, links and deployments
    Status(status::Status),
    /// Show models on the node's disk
    Models(show::Models),
    /// Show where a model would be placed, and why; changes nothing
    Plan(show::Plan),
    /// Print the invitation into this node's mesh: whoever has it is a member
    Token(show::Token),
    /// Measure: a pipeline of processes against one process
    Bench(bench::Bench),
}

/// Runs the command.
///
/// # Errors
/// Anything a person should read.
pub fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    match arguments.command {
        Command::Demo(demo) => demo.run(),
        Command::Join(join) => join.run(),
        Command::Deploy(deploy) => deploy.run(),
        Command::Undeploy(undeploy) => undeploy.run(),
        Command::Run(run) => run.run(),
        Command::Status(status) => status.run(),
        Command::Models(models) => models.run(),
        Command::Plan(plan) => plan.run(),
        Command::Token(token) => token.run(),
        Command::Bench(bench) => bench.run(),
    }
}

/// An error, for people, on standard error.
pub fn complain(text: &str) {
    eprintln!("error: {text}");
}

/// Which running node to talk to.
#[derive(Clone, Debug, Args)]
pub struct Target {
    /// HTTP address of the node [default: the node that runs on the state directory]
    #[arg(long, env = "MESH_API", value_name = "URL")]
    api: Option<String>,
    /// Key that the node demands, if it does
    #[arg(long, env = "MESH_API_KEY", value_name = "KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// The node's state directory
    #[arg(long, env = "MESH_STATE_DIR", value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

impl Target {
    /// The node of these flags: the address given, else the one that runs on the state directory.
    fn client(&self) -> anyhow::Result<Client> {
        let Some(url) = &self.api else { return Client::of_state_dir(&self.state_dir(), self.api_key.clone()) };
        let url = if url.contains("://") { url.clone() } else { format!("http://{url}") };
        Ok(Client::at(url.trim_end_matches('/').to_owned(), self.api_key.clone()))
    }

    fn state_dir(&self) -> PathBuf {
        self.state_dir.clone().unwrap_or_else(state_dir_default)
    }
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// A size such as `8G`, for clap.
fn size(text: &str) -> Result<u64, String> {
    bytes_of(text)
}

/// Bytes for people: `1.5 GiB`.
#[must_use]
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// Settings from a file, if one was named, else the defaults.
fn settings_from(config: Option<&PathBuf>) -> anyhow::Result<Settings> {
    let mut settings = Settings::default();
    if let Some(path) = config {
        settings.read(path)?;
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_flags_make_sense() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn sizes_are_shown_as_people_read_them() {
        assert_eq!((human(17), human(3 << 29), human(1 << 20)), ("17 B".to_owned(), "1.5 GiB".to_owned(), "1.0 MiB".to_owned()));
    }
}
