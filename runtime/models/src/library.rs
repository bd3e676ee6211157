//! The models that this node can read: the `Models` port over model directories, paths, and the binary.
//!
//! Looking costs names and headers only; what was seen is remembered until a file's size or time changes. A model is
//! known to other nodes by its digest, so any copy of it here will do, whatever it is called.

mod contents;
mod defaults;
mod place;
mod shelf;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use mesh_core::ids::Digest;
use mesh_core::model::{HeldModel, Layers, ModelSheet};
use mesh_core::ports::{Engine, EngineOptions, ModelError, Models, Progress};

use crate::builtin;
use crate::compute::Compute;
use crate::engine::LayerEngine;
use crate::model_files::{ModelFiles, Origin};
use crate::probe;
use crate::sheet::sheet_of;
use crate::text::TextModel;

pub use defaults::GenerationDefaults;
use place::{here, resolve};
use shelf::Shelf;

/// Models in some directories, and in the binary. Share it behind an `Arc`.
#[derive(Debug)]
pub struct Library {
    model_dirs: Vec<PathBuf>,
    compute_threads: usize,
    numerics_class: OnceLock<u64>,
    shelf: Mutex<Shelf>,
}

impl Library {
    /// The models of these directories. `compute_threads` is what engines will typically have: the numerics class is
    /// measured with as many.
    #[must_use]
    pub fn new(model_dirs: Vec<PathBuf>, compute_threads: usize) -> Self {
        Self { model_dirs, compute_threads, numerics_class: OnceLock::new(), shelf: Mutex::default() }
    }

    /// Tokenizer, chat template and end tokens of a model, by the names that [`Models::sheet`] takes.
    ///
    /// # Errors
    /// No such model, or its text files are missing, damaged or unknown.
    pub fn text(&self, name: &str) -> Result<Arc<TextModel>, ModelError> {
        self.text_at(&self.origin_of(name)?)
    }

    /// The same, of the model with this digest.
    ///
    /// # Errors
    /// As [`Library::text`].
    pub fn text_of(&self, digest: Digest) -> Result<Arc<TextModel>, ModelError> {
        self.text_at(&self.find(digest)?)
    }

    /// How a model wants its tokens chosen when the client does not say. Models that say nothing, or are not here, get
    /// [`GenerationDefaults::default`].
    #[must_use]
    pub fn generation_defaults(&self, digest: Digest) -> GenerationDefaults {
        let generation = self.find(digest).and_then(|origin| defaults::generation_config(&origin));
        generation.map_or_else(|_| GenerationDefaults::default(), |generation| GenerationDefaults::of(&generation))
    }

    /// blake3 over the whole contents of a model's files, names included, in order of names. Reads everything: minutes for
    /// a large model. `progress` counts bytes and can stop it.
    ///
    /// # Errors
    /// As [`Models::sheet`], a file that cannot be read, or told to give up.
    pub fn content_digest(&self, name: &str, progress: &dyn Progress) -> Result<Digest, ModelError> {
        contents::digest(&self.origin_of(name)?, progress)
    }

    /// Where the model of this name is.
    fn origin_of(&self, name: &str) -> Result<Origin, ModelError> {
        resolve(name, &self.model_dirs).map_err(|why| match why {
            Some(why) => ModelError::NotFound(why),
            None => self.not_found(&format!("there is no model {name:?} here")),
        })
    }

    /// A model with this digest: one that was looked at, or one that lies in the directories.
    fn find(&self, digest: Digest) -> Result<Origin, ModelError> {
        let known = self.shelf().origin_of(digest);
        let known = known.filter(|origin| self.sheet_at(origin).is_ok_and(|sheet| sheet.digest == digest));
        let found = known
            .or_else(|| here(&self.model_dirs).into_iter().find(|origin| self.sheet_at(origin).is_ok_and(|sheet| sheet.digest == digest)));
        found.ok_or_else(|| self.not_found(&format!("no model here has the digest {digest:?}: copy the same model's files to this node")))
    }

    /// The sheet of a model whose place is known; from memory if its files have not changed.
    fn sheet_at(&self, origin: &Origin) -> Result<ModelSheet, ModelError> {
        let stamp = place::stamp(origin);
        if let Some(seen) = self.shelf().seen(origin, &stamp) {
            return seen;
        }
        let sheet = ModelFiles::open(origin).and_then(|files| sheet_of(&files));
        self.shelf().put(origin.clone(), stamp, sheet.clone());
        sheet
    }

    fn text_at(&self, origin: &Origin) -> Result<Arc<TextModel>, ModelError> {
        let stamp = place::stamp(origin);
        if let Some(text) = self.shelf().text(origin, &stamp) {
            return Ok(text);
        }
        let text = Arc::new(origin.text()?);
        self.shelf().put_text(origin.clone(), stamp, Arc::clone(&text));
        Ok(text)
    }

    fn not_found(&self, what: &str) -> ModelError {
        let names: Vec<String> = self.list().into_iter().map(|model| model.name).collect();
        let dirs: Vec<String> = self.model_dirs.iter().map(|dir| dir.display().to_string()).collect();
        let looked = if dirs.is_empty() { "No model directory is set".to_owned() } else { format!("Looked in {}", dirs.join(", ")) };
        ModelError::NotFound(format!("{what}. {looked}; there are: {}", names.join(", ")))
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        // Nothing panics with the lock held; and what is remembered could only be remembered twice.
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Models for Library {
    fn list(&self) -> Vec<HeldModel> {
        let mut models = Vec::new();
        for origin in here(&self.model_dirs) {
            match self.sheet_at(&origin) {
                Ok(sheet) => {
                    let layers = Layers::new(0, sheet.layer_count());
                    models.push(HeldModel { name: sheet.name, digest: sheet.digest, layers });
                }
                Err(error) => tracing::debug!(%error, "a model is left out"),
            }
        }
        models
    }

    fn sheet(&self, name: &str) -> Result<ModelSheet, ModelError> {
        self.sheet_at(&self.origin_of(name)?)
    }

    fn load(&self, digest: Digest, layers: Layers, options: EngineOptions, progress: &dyn Progress) -> Result<Box<dyn Engine>, ModelError> {
        let origin = self.find(digest)?;
        let files = ModelFiles::open(&origin)?;
        let sheet = sheet_of(&files)?;
        if sheet.digest != digest {
            return Err(ModelError::Damaged(format!(
                "the files of {} change while they are read: try again when they are complete",
                sheet.name
            )));
        }
        let cx = compute(usize::from(options.threads));
        Ok(Box::new(LayerEngine::load(cx, &files, sheet, layers, options, progress)?))
    }

    fn numerics_class(&self) -> u64 {
        *self.numerics_class.get_or_init(|| probe::numerics_class(&compute(self.compute_threads)))
    }
}

/// The best device of this machine that this program was built for: a GPU if there is one, else the CPU.
/// The environment variable `MESH_DEVICE=cpu` asks for the CPU.
fn compute(threads: usize) -> Compute {
    #[cfg(any(feature = "cuda", feature = "metal"))]
    if std::env::var("MESH_DEVICE").as_deref() != Ok("cpu") {
        #[cfg(feature = "cuda")]
        let device = candle_core::Device::new_cuda(0);
        #[cfg(all(feature = "metal", not(feature = "cuda")))]
        let device = candle_core::Device::new_metal(0);
        match device {
            Ok(device) => return Compute::on(device, threads),
            Err(error) => tracing::warn!(%error, "no GPU can be used, so models run on the CPU"),
        }
    }
    Compute::cpu(threads)
}

/// Whether a name is a path to something, as opposed to the name of a model.
fn is_path(name: &str) -> bool {
    name.contains(std::path::is_separator) || Path::new(name).is_absolute()
}

/// The built-in model's name.
const STORY: &str = builtin::STORY;

#[cfg(test)]
mod tests;
