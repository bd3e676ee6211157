//! What a model's files really hold, read whole. The sheet's digest is there at once but sees little of the numbers; this one
//! tells a damaged or requantised copy, or another template, for certain.
//!
//! Two copies must compare equal whatever their files are called and however the tensors are cut into them. So every tensor
//! is hashed with its name, and hashes are combined by exclusive or: a file's is that of its tensors, the model's that of all
//! files. Names are unique in a model, so nothing cancels out. Text files count byte for byte.

use std::io::Read;
use std::path::Path;

use mesh_core::ids::Digest;
use mesh_core::model::{Contents, FileContents};
use mesh_core::ports::ModelError;

use super::cache::{Cache, Mark};
use super::pace::Pace;
use crate::builtin;
use crate::files::gguf::Value;
use crate::files::{Fault, Kind, Source, TensorEntry, Weights};
use crate::model_files::{ModelFiles, Origin};

/// Read at once.
const CHUNK_BYTES: u64 = 1 << 20;

/// A text file longer than this is no part of a model (the same bound as the tokenizer's own).
const TEXT_BYTES_MAX: u64 = 256 << 20;

/// What tokenizer, template, end tokens and defaults are read from. `config.json` names end tokens.
const TEXT_FILES: [&str; 6] =
    ["chat_template.jinja", "config.json", "generation_config.json", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"];

/// The contents of the model at a place. Files that are as they were when the cache saw them are not read again.
///
/// # Errors
/// Unreadable or damaged files, files that change meanwhile, or told to give up.
pub(super) fn read(origin: &Origin, cache: &mut Cache, pace: &mut Pace<'_>) -> Result<Contents, ModelError> {
    let files = ModelFiles::open(origin)?;
    let mut all = Whole::default();
    weights(&mut all, &files.weights, cache, pace)?;
    match origin {
        Origin::Builtin => {
            for (name, bytes) in builtin::contents().into_iter().filter(|(name, _)| TEXT_FILES.contains(name)) {
                all.text(name, blake3::hash(bytes).into());
            }
        }
        Origin::Directory(dir) => {
            for name in TEXT_FILES {
                let path = dir.join(name);
                if path.is_file() {
                    all.text(name, text_file(&path, cache, pace)?);
                }
            }
        }
        Origin::Gguf(_) => {} // its text is in its metadata, which counted with the first file
    }
    Ok(all.contents())
}

/// What was read so far.
#[derive(Default)]
struct Whole {
    tensors: [u8; 32],
    texts: blake3::Hasher,
    files: Vec<FileContents>,
}

impl Whole {
    fn weights(&mut self, name: &str, hash: [u8; 32]) {
        combine(&mut self.tensors, &hash);
        self.file(name, hash);
    }

    /// Called in order of names.
    fn text(&mut self, name: &str, hash: [u8; 32]) {
        self.texts.update(&(name.len() as u64).to_le_bytes());
        self.texts.update(name.as_bytes());
        self.texts.update(&hash);
        self.file(name, hash);
    }

    fn file(&mut self, name: &str, hash: [u8; 32]) {
        let [a, b, c, d, e, f, g, h, ..] = hash;
        self.files.push(FileContents { name: name.to_owned(), hash: u64::from_le_bytes([a, b, c, d, e, f, g, h]) });
    }

    fn contents(self) -> Contents {
        let mut hash = blake3::Hasher::new();
        hash.update(b"mesh model contents, version 2\n");
        hash.update(&self.tensors);
        hash.update(self.texts.finalize().as_bytes());
        Contents::new(Digest(*hash.finalize().as_bytes()), self.files)
    }
}

fn combine(into: &mut [u8; 32], hash: &[u8; 32]) {
    into.iter_mut().zip(hash).for_each(|(byte, other)| *byte ^= other);
}

fn weights(all: &mut Whole, weights: &Weights, cache: &mut Cache, pace: &mut Pace<'_>) -> Result<(), ModelError> {
    for (index, source) in weights.files().enumerate() {
        let metadata = match weights.kind() {
            Kind::Gguf(metadata) if index == 0 => Some(metadata),
            _ => None,
        };
        let mut hash = || -> Result<[u8; 32], ModelError> {
            let mut tensors: Vec<(&String, &TensorEntry)> = weights.tensors().iter().filter(|(_, entry)| entry.source == index).collect();
            tensors.sort_by_key(|(_, entry)| entry.offset); // disks like one direction
            let mut hash = [0; 32];
            for (name, entry) in tensors {
                combine(&mut hash, &tensor(source, name, entry, pace)?);
            }
            if let Some(metadata) = metadata {
                combine(&mut hash, &gguf_text(metadata.iter().map(|(key, value)| (key.as_str(), value))));
            }
            Ok(hash)
        };
        let Some(path) = source.path() else {
            all.weights("model.safetensors", hash()?); // the program's own
            continue;
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        all.weights(&name, remembered(path, cache, hash)?);
    }
    Ok(())
}

/// The hash of a file as it is now: the cache's, or a fresh one.
fn remembered(path: &Path, cache: &mut Cache, hash: impl FnOnce() -> Result<[u8; 32], ModelError>) -> Result<[u8; 32], ModelError> {
    let mark = || Mark::of(path).map_err(|error| Fault::from(error).of(path.display()));
    let before = mark()?;
    if let Some(hash) = cache.get(path, &before) {
        return Ok(hash);
    }
    let hash = hash()?;
    if mark()? != before {
        return Err(ModelError::Damaged(format!("{} changes while it is read: it is looked at again when it is complete", path.display())));
    }
    cache.put(path, before, hash);
    Ok(hash)
}

fn tensor(source: &Source, name: &str, entry: &TensorEntry, pace: &mut Pace<'_>) -> Result<[u8; 32], ModelError> {
    let mut hash = blake3::Hasher::new();
    for text in [name, entry.stored.name()] {
        hash.update(&(text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    }
    for size in &entry.shape {
        hash.update(&size.to_le_bytes());
    }
    let mut done = 0;
    while done < entry.bytes {
        let bytes = CHUNK_BYTES.min(entry.bytes - done);
        let part = source.read(entry.offset + done, bytes).map_err(|fault| fault.of(source.name()))?;
        hash.update(&part);
        done += bytes;
        pace.rest()?;
    }
    Ok(hash.finalize().into())
}

fn text_file(path: &Path, cache: &mut Cache, pace: &mut Pace<'_>) -> Result<[u8; 32], ModelError> {
    let hash = || -> Result<[u8; 32], ModelError> {
        let refused = |error: std::io::Error| Fault::from(error).of(path.display());
        let mut hash = blake3::Hasher::new();
        let mut file = std::fs::File::open(path).map_err(refused)?.take(TEXT_BYTES_MAX);
        let mut chunk = vec![0; CHUNK_BYTES as usize];
        loop {
            let read = file.read(&mut chunk).map_err(refused)?;
            if read == 0 {
                return Ok(hash.finalize().into());
            }
            hash.update(&chunk[..read]);
            pace.rest()?;
        }
    };
    remembered(path, cache, hash)
}

/// Tokenizer and template of a GGUF file: every entry under `tokenizer.`, whatever else the file says of itself.
fn gguf_text<'a>(metadata: impl Iterator<Item = (&'a str, &'a Value)>) -> [u8; 32] {
    let mut hash = blake3::Hasher::new();
    for (key, value) in metadata.filter(|(key, _)| key.starts_with("tokenizer.")) {
        hash.update(&(key.len() as u64).to_le_bytes());
        hash.update(key.as_bytes());
        value.digest(&mut hash);
    }
    hash.finalize().into()
}
