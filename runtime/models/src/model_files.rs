//! One model where it lies: its configuration and the headers of its weights.

use std::path::{Path, PathBuf};

use mesh_core::ports::ModelError;
use serde_json::Value;

use crate::builtin;
use crate::config::Config;
use crate::files::{Kind, Weights, read_json};
use crate::text::{TextError, TextModel};

/// Where a model is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// In the binary.
    Builtin,
    /// In a directory as on the Hub.
    Directory(PathBuf),
    /// In a GGUF file, the first of several if it was split.
    Gguf(PathBuf),
}

impl Origin {
    /// What lies at a path, going by its looks: a directory with a `config.json`, or a file that ends in `.gguf`.
    #[must_use]
    pub fn at(path: &Path) -> Option<Self> {
        if path.is_dir() {
            return path.join("config.json").is_file().then(|| Self::Directory(path.to_owned()));
        }
        let gguf = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
        (gguf && path.is_file()).then(|| Self::Gguf(path.to_owned()))
    }

    /// The model's name as users write it: that of the directory, or of the file without `.gguf`.
    #[must_use]
    pub fn name(&self) -> String {
        let named = |path: &Path, name: fn(&Path) -> Option<&std::ffi::OsStr>| {
            // A path such as `.` has no name of its own.
            let name = name(path).map(ToOwned::to_owned).or_else(|| name(&path.canonicalize().ok()?).map(ToOwned::to_owned));
            name.map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
        };
        match self {
            Self::Builtin => builtin::STORY.to_owned(),
            Self::Directory(path) => named(path, Path::file_name),
            Self::Gguf(path) => named(path, Path::file_stem),
        }
    }

    /// Tokenizer, chat template and end tokens.
    ///
    /// # Errors
    /// Missing or damaged files, or a tokenizer that this version does not know.
    pub fn text(&self) -> Result<TextModel, ModelError> {
        let in_file = |path: &Path, error: TextError| match error {
            TextError::Unsupported(cause) => ModelError::Unsupported(format!("{}: {cause}", path.display())),
            other => ModelError::Damaged(format!("{}: {other}", path.display())),
        };
        match self {
            Self::Builtin => builtin::text(),
            Self::Directory(path) => TextModel::from_hf_dir(path).map_err(|error| in_file(path, error)),
            Self::Gguf(path) => {
                let gguf = crate::files::gguf::Gguf::open(path)?;
                TextModel::from_gguf(&gguf.metadata).map_err(|error| in_file(path, error))
            }
        }
    }
}

/// A model with its headers read: nothing of its tensors is in memory.
#[derive(Debug)]
pub struct ModelFiles {
    /// Where it is.
    pub origin: Origin,
    /// Sizes and settings.
    pub config: Config,
    /// Its tensors.
    pub weights: Weights,
    /// `generation_config.json`, or `Null`.
    pub generation: Value,
}

impl ModelFiles {
    /// Reads configuration and headers.
    ///
    /// # Errors
    /// What is missing, damaged or unknown, by file and cause, with the next step.
    pub fn open(origin: &Origin) -> Result<Self, ModelError> {
        let (config, weights, generation) = match origin {
            Origin::Builtin => {
                let generation = builtin::generation_config()?;
                let config = Config::from_hf(&builtin::config()?, &generation).map_err(|fault| fault.of(builtin::STORY))?;
                (config, builtin::weights()?, generation)
            }
            Origin::Directory(path) => {
                // The configuration first: an unknown architecture is refused before weights are looked at (F80).
                let file = path.join("config.json");
                let generation = optional(&path.join("generation_config.json"))?;
                let config = Config::from_hf(&read_json(&file)?, &generation).map_err(|fault| fault.of(path.display()))?;
                (config, Weights::from_directory(path)?, generation)
            }
            Origin::Gguf(path) => {
                let weights = Weights::from_gguf(path)?;
                let Kind::Gguf(metadata) = weights.kind() else { unreachable!("read as GGUF") };
                let config = Config::from_gguf(metadata, weights.tensors()).map_err(|fault| fault.of(path.display()))?;
                (config, weights, Value::Null)
            }
        };
        Ok(Self { origin: origin.clone(), config, weights, generation })
    }
}

fn optional(path: &Path) -> Result<Value, ModelError> {
    if path.exists() { read_json(path) } else { Ok(Value::Null) }
}
