//! `mesh deploy` and `mesh undeploy`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use mesh_runtime::client::{Client, NotReady, segment, state_of, text};
use serde_json::{Value, json};

use super::wish::WishFlags;
use super::{Target, human, out};

/// Flags of `mesh deploy`.
#[derive(Debug, Args)]
pub struct Deploy {
    #[command(flatten)]
    wish: WishFlags,
    /// Wait until a token came out
    #[arg(long)]
    wait: bool,
    /// Give up waiting after so many seconds
    #[arg(long, value_name = "S", default_value = "600")]
    timeout_s: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    target: Target,
}

/// Flags of `mesh undeploy`.
#[derive(Debug, Args)]
pub struct Undeploy {
    /// The model's name or the deployment's id
    model: String,
    #[command(flatten)]
    target: Target,
}

impl Deploy {
    /// Runs the command. Exit status 1 = refused or failed, 2 = not ready in time; it goes on being tried then.
    ///
    /// # Errors
    /// The node refused, or does not answer.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let client = self.target.client()?;
        let answer = client.post("/mesh/v1/deployments", &self.wish.body())?;
        let (id, name) = (text(&answer["id"]), text(&answer["model"]));
        let outcome = if self.wait { self.until_ready(&client, &id) } else { Ok(()) };
        let not_ready = match outcome {
            Ok(()) => None,
            Err(error) => Some(error.downcast::<NotReady>()?), // anything else is told as it is
        };
        if self.json {
            let seen = client.deployment(&id)?;
            let mut report = json!({ "id": id, "model": name, "status": seen["record"]["status"], "plan": seen["record"]["plan"] });
            if let Some(error) = &not_ready {
                report["error"] = json!({ "message": error.to_string() });
            }
            out::line(report)?;
        }
        match not_ready {
            Some(error) => {
                out::aside(format_args!("error: {name}: {error}"));
                return Ok(ExitCode::from(if matches!(error, NotReady::Late { .. }) { EXIT_LATE } else { 1 }));
            }
            None if self.json => {}
            None if self.wait => out::line(format_args!("{name} is ready"))?,
            None => out::line(format_args!("{name} is being placed; see `mesh status`"))?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn until_ready(&self, client: &Client, id: &str) -> anyhow::Result<()> {
        let bar = Bar::new(!self.json);
        let mut told = String::new();
        client.wait_ready(id, Duration::from_secs(self.timeout_s), |seen| {
            bar.show(seen);
            // Said once, also where no bar can be seen: waiting may be for a person to act.
            let why = text(&state_of(&seen["record"]["status"]).1["why"]);
            if !why.is_empty() && why != told {
                bar.say(&format!("waiting: {why}"));
                told = why;
            }
        })?;
        Ok(())
    }
}

/// Exit status: not ready in time.
const EXIT_LATE: u8 = 2;

impl Undeploy {
    /// Runs the command.
    ///
    /// # Errors
    /// Nothing by this name.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        self.target.client()?.delete(&format!("/mesh/v1/deployments/{}", segment(&self.model)))?;
        out::line(format_args!("{} is gone", self.model))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// A bar while layers load; gone when dropped.
pub struct Bar(ProgressBar);

impl Bar {
    /// A bar on standard error, or none.
    #[must_use]
    pub fn new(visible: bool) -> Self {
        let bar = if visible { ProgressBar::new(0) } else { ProgressBar::hidden() };
        bar.set_style(
            ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes}").unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        Self(bar)
    }

    /// A line above the bar, on standard error.
    fn say(&self, line: &str) {
        self.0.suspend(|| out::aside(line));
    }

    /// Shows a deployment as the status has it.
    pub fn show(&self, seen: &Value) {
        let (state, details) = state_of(&seen["record"]["status"]);
        let loading = seen["loading"].as_array().cloned().unwrap_or_default();
        let sum = |index: usize| -> u64 { loading.iter().filter_map(|entry| entry[index].as_u64()).sum() };
        self.0.set_length(sum(2));
        self.0.set_position(sum(1));
        match details["missing_bytes"].as_u64() {
            Some(missing) if missing > 0 => self.0.set_message(format!("waiting: {} are missing", human(missing))),
            _ => self.0.set_message(state),
        }
        self.0.tick();
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
