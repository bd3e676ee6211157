//! All tensors of one model, whatever files they lie in.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use mesh_core::ports::ModelError;

use super::gguf::{Gguf, Value};
use super::{Fault, Source, safetensors};
use crate::format::Format;

/// Longest index, and longest JSON file beside weights, that is read.
const JSON_BYTES_MAX: u64 = 64 << 20;
/// Files of one model at most. The largest models of the field have some 200.
const FILES_MAX: usize = 10_000;
/// Bytes of a tensor that show whether two files of one shape have the same numbers.
const SAMPLE_BYTES: u64 = 64;
/// The one file of a small directory.
const SINGLE: &str = "model.safetensors";
/// Names the files of a large one.
const INDEX: &str = "model.safetensors.index.json";

/// How a tensor is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    /// In a way that can be computed with.
    Usable(Format),
    /// In another way, by its file's name for it.
    Unusable(String),
}

impl Stored {
    /// For people and digests.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Usable(format) => format.name(),
            Self::Unusable(name) => name,
        }
    }
}

/// Where a tensor lies, and what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorEntry {
    /// Outermost dimension first: (rows, cols) for a matrix.
    pub shape: Vec<u64>,
    /// How its numbers are stored.
    pub stored: Stored,
    /// Which of the model's files it is in.
    pub source: usize,
    /// Where it begins there.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
}

/// The kind of files, which fixes the names of tensors.
#[derive(Debug)]
pub enum Kind {
    /// Names as on the Hub.
    Safetensors,
    /// Names as in llama.cpp, and the metadata.
    Gguf(BTreeMap<String, Value>),
}

/// The tensors of a model. Only headers were read so far; tensors are read when asked for.
#[derive(Debug)]
pub struct Weights {
    sources: Vec<Source>,
    tensors: BTreeMap<String, TensorEntry>,
    kind: Kind,
    bytes_read: AtomicU64,
}

impl Weights {
    /// The model of a directory as on the Hub: one safetensors file, or an index and its files.
    ///
    /// # Errors
    /// Files that are missing, damaged or unreadable, by name. A file that the index names and that is not there is found
    /// before any tensor is read.
    pub fn from_directory(directory: &Path) -> Result<Self, ModelError> {
        let index = directory.join(INDEX);
        let names = if index.is_file() { indexed(&index)? } else { vec![SINGLE.to_owned()] };
        let mut sources = Vec::new();
        for name in &names {
            let path = directory.join(name);
            let source = Source::file(&path).map_err(|fault| match path.exists() {
                true => fault.of(path.display()),
                false => incomplete(directory, name, names.len(), index.is_file()),
            })?;
            sources.push(source);
        }
        Self::from_safetensors(sources)
    }

    /// The model of safetensors files.
    ///
    /// # Errors
    /// Damaged files, or a tensor that two of them have.
    pub fn from_safetensors(sources: Vec<Source>) -> Result<Self, ModelError> {
        let mut tensors = BTreeMap::new();
        for (index, source) in sources.iter().enumerate() {
            for (name, entry) in safetensors::read(source, index).map_err(|fault| fault.of(source.name()))? {
                if let Some(TensorEntry { source: other, .. }) = tensors.insert(name.clone(), entry) {
                    let cause = format!("it has tensor {name:?}, which is also in {}", sources[other].name());
                    return Err(Fault::Damaged(cause).of(source.name()));
                }
            }
        }
        Ok(Self { sources, tensors, kind: Kind::Safetensors, bytes_read: AtomicU64::new(0) })
    }

    /// The model of a GGUF file, and of the files that follow it if it is the first of several.
    ///
    /// # Errors
    /// Damaged, missing or unreadable files, by name.
    pub fn from_gguf(path: &Path) -> Result<Self, ModelError> {
        let mut sources = Vec::new();
        let mut tensors = BTreeMap::new();
        let first = add_gguf(path, &mut sources, &mut tensors)?;
        for next in parts_after(path, &first)? {
            add_gguf(&next, &mut sources, &mut tensors)?;
        }
        Ok(Self { sources, tensors, kind: Kind::Gguf(first), bytes_read: AtomicU64::new(0) })
    }

    /// The kind of files.
    #[must_use]
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// Every tensor by name, in order of names.
    #[must_use]
    pub fn tensors(&self) -> &BTreeMap<String, TensorEntry> {
        &self.tensors
    }

    /// Files and their sizes.
    pub fn files(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter()
    }

    /// The name of the file that a tensor is in.
    #[must_use]
    pub fn file_of(&self, entry: &TensorEntry) -> &str {
        self.sources.get(entry.source).map_or("?", Source::name)
    }

    /// For errors about no file in particular: the first one.
    #[must_use]
    pub fn name(&self) -> &str {
        self.sources.first().map_or("an empty model", Source::name)
    }

    /// A tensor's bytes, as they lie in its file.
    ///
    /// # Errors
    /// The file was cut since its header was read, or the operating system refused.
    pub fn read(&self, entry: &TensorEntry) -> Result<Cow<'_, [u8]>, ModelError> {
        let source = self.sources.get(entry.source).ok_or_else(|| ModelError::Damaged("a tensor lies in no file".into()))?;
        let bytes = source.read(entry.offset, entry.bytes).map_err(|fault| fault.of(source.name()))?;
        self.bytes_read.fetch_add(entry.bytes, Ordering::Relaxed);
        Ok(bytes)
    }

    /// A few bytes from the middle of a tensor.
    ///
    /// # Errors
    /// As [`Weights::read`].
    pub(crate) fn sample(&self, entry: &TensorEntry) -> Result<Cow<'_, [u8]>, ModelError> {
        let source = self.sources.get(entry.source).ok_or_else(|| ModelError::Damaged("a tensor lies in no file".into()))?;
        let bytes = entry.bytes.min(SAMPLE_BYTES);
        source.read(entry.offset + (entry.bytes - bytes) / 2, bytes).map_err(|fault| fault.of(source.name()))
    }

    /// Bytes of tensors read so far.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }
}

fn add_gguf(
    path: &Path,
    sources: &mut Vec<Source>,
    tensors: &mut BTreeMap<String, TensorEntry>,
) -> Result<BTreeMap<String, Value>, ModelError> {
    let name = path.display();
    let source = Source::file(path).map_err(|fault| fault.of(&name))?;
    let gguf = source.reader().and_then(|reader| Gguf::read(reader, source.len())).map_err(|fault| fault.of(&name))?;
    for info in gguf.tensors {
        let stored = Format::from_ggml(info.kind.id).map_or_else(|| Stored::Unusable(info.kind.name.to_owned()), Stored::Usable);
        let entry = TensorEntry { shape: info.shape, stored, source: sources.len(), offset: info.offset, bytes: info.bytes };
        if tensors.insert(info.name.clone(), entry).is_some() {
            return Err(Fault::Damaged(format!("an earlier part has the tensor {:?} too", info.name)).of(&name));
        }
    }
    sources.push(source);
    Ok(gguf.metadata)
}

/// The other files of a model that was split by llama.cpp: `name-00001-of-00003.gguf` and so on.
fn parts_after(path: &Path, metadata: &BTreeMap<String, Value>) -> Result<Vec<PathBuf>, ModelError> {
    let count = metadata.get("split.count").and_then(Value::as_u64).unwrap_or(1);
    if count <= 1 {
        return Ok(Vec::new());
    }
    let stem = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(&format!("-00001-of-{count:05}.gguf")));
    let Some(stem) = stem.filter(|_| count as usize <= FILES_MAX) else {
        let cause =
            format!("it is one of {count} parts but is not named \"…-00001-of-{count:05}.gguf\": name the first part, with its own name");
        return Err(Fault::Unsupported(cause).of(path.display()));
    };
    let parts: Vec<PathBuf> = (2..=count).map(|part| path.with_file_name(format!("{stem}-{part:05}-of-{count:05}.gguf"))).collect();
    match parts.iter().find(|part| !part.is_file()) {
        Some(missing) => Err(ModelError::Damaged(format!(
            "{} is incomplete: {} of its {count} parts is missing. Fetch or copy that file",
            path.display(),
            missing.display()
        ))),
        None => Ok(parts),
    }
}

/// Names of the files of an index, each once, in order.
fn indexed(index: &Path) -> Result<Vec<String>, ModelError> {
    let json = read_json(index)?;
    let damaged = |cause: &str| Fault::damaged(cause).of(index.display());
    let map = json.get("weight_map").and_then(|map| map.as_object()).ok_or_else(|| damaged("it has no weight_map"))?;
    let mut names = BTreeSet::new();
    for name in map.values() {
        let name = name.as_str().ok_or_else(|| damaged("its weight_map names something that is no file"))?;
        // An index must not lead out of its directory.
        if name.is_empty() || name.contains(['/', '\\']) || name == ".." {
            return Err(damaged(&format!("its weight_map names {name:?}, which is no file beside it")));
        }
        names.insert(name.to_owned());
    }
    if names.is_empty() || names.len() > FILES_MAX {
        return Err(damaged(&format!("it names {} files", names.len())));
    }
    Ok(names.into_iter().collect())
}

/// A JSON file of sensible size.
///
/// # Errors
/// Not there, not JSON, or absurdly large.
pub(crate) fn read_json(path: &Path) -> Result<serde_json::Value, ModelError> {
    let read = || {
        let source = Source::file(path)?;
        if source.len() > JSON_BYTES_MAX {
            return Err(Fault::damaged(format!("it has {} bytes, at most {JSON_BYTES_MAX} are read", source.len())));
        }
        let bytes = source.read(0, source.len())?;
        serde_json::from_slice(&bytes).map_err(|error| Fault::damaged(format!("it is not sound JSON: {error}")))
    };
    read().map_err(|fault| fault.of(path.display()))
}

fn incomplete(directory: &Path, name: &str, files: usize, indexed: bool) -> ModelError {
    let directory = directory.display();
    ModelError::Damaged(if indexed {
        format!(
            "the model in {directory} is incomplete: {name}, one of the {files} files that {INDEX} names, is missing. Fetch or copy that file"
        )
    } else {
        format!("{directory} holds no weights: neither {SINGLE} nor {INDEX} is there. Fetch the model again, or name another directory")
    })
}
