//! `mesh forget`.

use std::process::ExitCode;

use clap::Args;
use mesh_runtime::client::segment;

use super::{Target, out};

/// Flags of `mesh forget`.
#[derive(Debug, Args)]
pub struct Forget {
    /// The node's name, or the start of its id
    node: String,
    #[command(flatten)]
    target: Target,
}

impl Forget {
    /// Runs the command.
    ///
    /// # Errors
    /// Nobody or more than one is meant, or the node is up.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        self.target.client()?.delete(&format!("/mesh/v1/nodes/{}", segment(&self.node)))?;
        out::line(format_args!("{} is forgotten on every node; if it starts again, it is welcome", self.node))?;
        Ok(ExitCode::SUCCESS)
    }
}
