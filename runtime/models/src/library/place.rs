//! Where models are: what a name means, what lies in the directories, whether it has changed.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::{STORY, is_path};
use crate::model_files::Origin;

/// Names, sizes and times of a model's files.
pub(super) type Stamp = Vec<(PathBuf, u64, Option<SystemTime>)>;

/// Entries of a directory that are looked at. A model directory is no place for more; a home directory named by mistake
/// must not stall a node.
const ENTRIES_MAX: usize = 10_000;

/// Everything in these directories, the built-in model first. A directory may itself be a model; models may lie one level
/// deeper. Unreadable directories are passed over.
pub(super) fn here(dirs: &[PathBuf]) -> Vec<Origin> {
    let mut found = vec![Origin::Builtin];
    for dir in dirs {
        found.extend(in_directory(dir));
        for entry in entries(dir) {
            if entry.is_dir() {
                found.extend(in_directory(&entry));
            }
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    found.retain(|origin| seen.insert(origin.clone()));
    found
}

/// The models of one directory: the one it is, and the GGUF files in it.
fn in_directory(dir: &Path) -> Vec<Origin> {
    let mut found = Vec::new();
    let weights = ["model.safetensors", "model.safetensors.index.json"].iter().any(|name| dir.join(name).is_file());
    if weights && dir.join("config.json").is_file() {
        found.push(Origin::Directory(dir.to_owned()));
    }
    found.extend(entries(dir).iter().filter(|path| !path.is_dir() && !is_later_part(path)).filter_map(|path| Origin::at(path)));
    found
}

/// The entries of a directory in order of names.
fn entries(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.flatten().take(ENTRIES_MAX).map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Whether this is the second or a later part of a GGUF file that was split.
fn is_later_part(path: &Path) -> bool {
    let part = || {
        let (rest, _count) = path.file_stem()?.to_str()?.rsplit_once("-of-")?;
        rest.rsplit_once('-')?.1.parse::<u32>().ok()
    };
    part().is_some_and(|part| part > 1)
}

/// The model that a name means. `Err(None)` if there is none, `Err(Some(why))` if there is something, but no model.
pub(super) fn resolve(name: &str, dirs: &[PathBuf]) -> Result<Origin, Option<String>> {
    if name == STORY {
        return Ok(Origin::Builtin);
    }
    let path = name.strip_prefix("file://").map(unescaped);
    if path.is_none() {
        let named = here(dirs).into_iter().find(|origin| origin.name() == name || file_name(origin).is_some_and(|file| file == name));
        if let Some(origin) = named {
            return Ok(origin);
        }
    }
    // A directory by a name in a model directory need not be complete: then its own error says more than "not there".
    let mut paths: Vec<PathBuf> = if is_path(name) { Vec::new() } else { dirs.iter().map(|dir| dir.join(name)).collect() };
    paths.push(PathBuf::from(path.unwrap_or_else(|| name.to_owned())));
    match paths.into_iter().find(|path| path.exists()) {
        Some(path) => at_path(&path).map_err(Some),
        None => Err(None),
    }
}

fn at_path(path: &Path) -> Result<Origin, String> {
    let in_it = if path.is_dir() { in_directory(path) } else { Vec::new() };
    match (in_it.as_slice(), Origin::at(path)) {
        // A directory on the Hub may hold the same model in several storages: the safetensors come first.
        ([first @ Origin::Directory(_), ..], _) | ([first], _) => Ok(first.clone()),
        ([], Some(origin)) => Ok(origin),
        ([], None) => Err(format!("{} is no model: neither a directory with a config.json nor a file that ends in .gguf", path.display())),
        (several, _) => {
            let names: Vec<String> = several.iter().filter_map(file_name).collect();
            Err(format!("{} holds several models: name one of {}", path.display(), names.join(", ")))
        }
    }
}

/// The name of a model's file with its ending, if it is one file.
fn file_name(origin: &Origin) -> Option<String> {
    match origin {
        Origin::Gguf(path) => Some(path.file_name()?.to_string_lossy().into_owned()),
        _ => None,
    }
}

/// The path of a `file://` address: `%20` and its like become bytes again.
fn unescaped(path: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = path.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let escaped = after.get(..2).filter(|_| first == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match escaped.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What shows that a model's files have changed.
pub(super) fn stamp(origin: &Origin) -> Stamp {
    let files = match origin {
        Origin::Builtin => Vec::new(),
        Origin::Directory(dir) => model_files(dir),
        Origin::Gguf(path) => vec![path.clone()],
    };
    let about = |path: PathBuf| {
        let about = std::fs::metadata(&path).ok();
        let time = about.as_ref().and_then(|about| about.modified().ok());
        (path, about.map_or(0, |about| about.len()), time)
    };
    files.into_iter().map(about).collect()
}

/// The files of a directory that make it a model.
pub(super) fn model_files(dir: &Path) -> Vec<PathBuf> {
    let counts = |path: &PathBuf| {
        let ending = path.extension().and_then(|ending| ending.to_str());
        matches!(ending, Some("safetensors" | "json" | "jinja")) && path.is_file()
    };
    entries(dir).into_iter().filter(counts).collect()
}
