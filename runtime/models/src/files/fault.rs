//! What is wrong with a file, before the file's name is put to it.

use std::fmt::Display;
use std::io;

use mesh_core::ports::ModelError;

/// A cause without its file. [`Fault::of`] makes the error that users see.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The contents contradict themselves or end too early.
    #[error("{0}")]
    Damaged(String),
    /// The contents are sound as far as one can tell, but of a kind that this version cannot read.
    #[error("{0}")]
    Unsupported(String),
    /// The operating system refused.
    #[error("{0}")]
    System(String),
}

impl Fault {
    /// A damaged file, for this reason.
    pub(crate) fn damaged(cause: impl Into<String>) -> Self {
        Self::Damaged(cause.into())
    }

    /// With the file's name and what to do next.
    #[must_use]
    pub fn of(self, file: impl Display) -> ModelError {
        match self {
            Self::Damaged(cause) => ModelError::Damaged(format!("{file} is damaged or incomplete: {cause}. Fetch or copy the file again")),
            Self::Unsupported(cause) => ModelError::Unsupported(format!("{file} cannot be used: {cause}")),
            Self::System(cause) => ModelError::System(format!("cannot read {file}: {cause}. Check that it is there and readable")),
        }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::damaged("it ends too early"),
            _ => Self::System(error.to_string()),
        }
    }
}
