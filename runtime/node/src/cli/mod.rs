//! Flags and subcommands. Each subcommand is a file; all but `join` and `demo` talk to a running node over HTTP.
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use mesh_runtime::client::Client;
use mesh_runtime::settings::{Settings, bytes_of, state_dir_default};
use out::OutError;

mod bench;
mod demo;
mod deploy;
mod forget;
mod join;
mod links;
mod logs;
mod out;
mod run;
mod show;
mod sim;
mod status;
mod wish;

/// Runs one large language model over many machines and keeps answering while they leave, crash and reboot.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 110, after_help = "Start with `mesh demo`, then `mesh join` on each machine and `mesh deploy MODEL`.")]
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
    /// Show the links to other nodes: which interfaces, how quick, which are used and why
    Links(links::Links),
    /// Forget a node that is gone for good
    Forget(forget::Forget),
    /// Show models on the node's disk
    Models(show::Models),
    /// Show where a model would be placed, and why; changes nothing
    Plan(show::Plan),
    /// Print the invitation into this node's mesh: whoever has it is a member
    Token(show::Token),
    /// Simulate: run worlds of nodes in which things break, on virtual time
    Sim(sim::Sim),
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
        Command::Links(links) => links.run(),
        Command::Forget(forget) => forget.run(),
        Command::Models(models) => models.run(),
        Command::Plan(plan) => plan.run(),
        Command::Token(token) => token.run(),
        Command::Sim(sim) => sim.run(),
        Command::Bench(bench) => bench.run(),
    }
}

/// What became of a command that did not end well: the exit status, after whoever should know was told. With `--json` that
/// is a program, which reads an object with `error` on standard output.
pub fn fail(error: &anyhow::Error, json: bool) -> ExitCode {
    match error.downcast_ref::<OutError>() {
        Some(OutError::Closed) => return ExitCode::from(EXIT_CLOSED),
        Some(OutError::Failed(_)) => {}
        None if json => {
            let _ = out::json(&serde_json::json!({ "error": { "message": format!("{error:#}") } }));
        }
        None => {}
    }
    out::aside(format_args!("error: {error:#}"));
    ExitCode::FAILURE
}

/// The exit status of programs whose reader has gone: 128 + SIGPIPE.
const EXIT_CLOSED: u8 = 141;

impl Arguments {
    /// Whether the command was asked for JSON.
    #[must_use]
    pub fn json(&self) -> bool {
        match &self.command {
            Command::Demo(demo) => demo.json,
            Command::Deploy(deploy) => deploy.json,
            Command::Run(run) => run.json,
            Command::Status(status) => status.json,
            Command::Links(links) => links.json,
            Command::Models(models) => models.json,
            Command::Plan(plan) => plan.json,
            Command::Join(_) | Command::Undeploy(_) | Command::Forget(_) | Command::Token(_) | Command::Sim(_) | Command::Bench(_) => false,
        }
    }
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
    match bytes_of(text)? {
        0 => Err("nothing can be lent out of 0 bytes: leave it out to lend what is free".to_owned()),
        bytes => Ok(bytes),
    }
}

/// A directory that is there, for clap.
fn directory(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match std::fs::metadata(&path) {
        Ok(about) if about.is_dir() => Ok(path),
        Ok(_) => Err(format!("{text} is no directory: name the directory that the model's file or directory lies in")),
        Err(error) => Err(format!("{text}: {error}")),
    }
}

/// A temperature, for clap.
fn temperature(text: &str) -> Result<f32, String> {
    let number = text.parse::<f32>().ok().filter(|number| (0.0..=100.0).contains(number));
    number.ok_or_else(|| format!("`{text}` is no temperature: write a number from 0 (greedy) to 100; most models are made for 0.6 to 1"))
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
    fn what_makes_no_sense_is_refused_where_it_is_written() {
        let parsed = |line: &str| Arguments::try_parse_from(line.split(' ')).map(drop).map_err(|error| error.to_string());
        for good in [
            "mesh run m x --temperature 0",
            "mesh deploy m --streams 1",
            "mesh join --memory 1G --model-dir /",
            "mesh plan m --place a=0..3,b=3..8",
        ] {
            assert_eq!(parsed(good), Ok(()), "{good}");
        }
        for (bad, said) in [
            ("mesh run m x --temperature nan", "no temperature"),
            ("mesh run m x --temperature -1", "-1"),
            ("mesh run m x --max-tokens 0", "0"),
            ("mesh deploy m --streams 0", "0"),
            ("mesh deploy m --split 0", "0"),
            ("mesh deploy m --context 0", "0"),
            ("mesh deploy m --place a=3..1", "places nothing"),
            ("mesh join --memory 0", "0 bytes"),
            ("mesh join --threads 0", "0"),
            ("mesh join --model-dir /no/such/directory", "/no/such/directory"),
        ] {
            let error = parsed(bad).expect_err(bad);
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn help_speaks_to_users() {
        let help = Arguments::command().render_help().to_string();
        assert!(help.starts_with("Runs one large language model over many machines") && !help.contains("facade"), "{help}");
    }

    #[test]
    fn sizes_are_shown_as_people_read_them() {
        assert_eq!((human(17), human(3 << 29), human(1 << 20)), ("17 B".to_owned(), "1.5 GiB".to_owned(), "1.0 MiB".to_owned()));
    }
}
