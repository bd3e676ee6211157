//! Where the families' files are.

use std::path::{Path, PathBuf};

/// The directory of a family: with its weights in `tests/fixtures` where the engine's tests have it, else in `tests/fixtures_text`.
pub fn directory(family: &str) -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let with_weights = tests.join("fixtures").join(family);
    if with_weights.is_dir() { with_weights } else { tests.join("fixtures_text").join(family) }
}
