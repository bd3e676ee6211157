//! What commands say on standard output. A pipe whose reader has gone, or a full disk, ends the command with a clean exit
//! status: the standard macros would panic.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

/// Nothing more can be said.
#[derive(Debug, thiserror::Error)]
pub enum OutError {
    /// Whoever read the output has gone (`mesh status | head -1`): nothing is wrong, and there is nobody to tell.
    #[error("nobody reads the output any more")]
    Closed,
    /// The output cannot be written.
    #[error("cannot write the output: {0}")]
    Failed(io::Error),
}

impl From<io::Error> for OutError {
    fn from(error: io::Error) -> Self {
        if error.kind() == ErrorKind::BrokenPipe { Self::Closed } else { Self::Failed(error) }
    }
}

/// Says a line.
///
/// # Errors
/// See [`OutError`].
pub fn line(text: impl Display) -> Result<(), OutError> {
    part(format_args!("{text}\n"))
}

/// Says a part of a line, at once.
///
/// # Errors
/// See [`OutError`].
pub fn part(text: impl Display) -> Result<(), OutError> {
    let mut out = io::stdout().lock();
    write!(out, "{text}")?;
    Ok(out.flush()?)
}

/// Says a JSON value, laid out for people.
///
/// # Errors
/// See [`OutError`].
pub fn json(value: &serde_json::Value) -> Result<(), OutError> {
    line(format_args!("{value:#}"))
}

/// Says a line if anybody hears it: for a node, which does not end because its terminal did.
pub fn perhaps(text: impl Display) {
    let _ = line(text);
}

/// Says a line on standard error if anybody hears it.
pub fn aside(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}
