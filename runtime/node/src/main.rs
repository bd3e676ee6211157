//! The `mesh` command.

use std::process::ExitCode;

use clap::Parser;

mod cli;

fn main() -> ExitCode {
    let arguments = cli::Arguments::parse();
    let json = arguments.json();
    cli::run(arguments).unwrap_or_else(|error| cli::fail(&error, json))
}
