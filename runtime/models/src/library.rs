//! The models that this node can read: the `Models` port over model directories, paths, and the binary.
//!
//! Looking costs names and headers only; what was seen is remembered until a file's size or time changes. A model is
//! known to other nodes by its digest, so any copy of it here will do, whatever it is called.

mod cache;
mod contents;
mod defaults;
mod pace;
mod place;
mod reader;
mod shelf;
mod shelves;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use mesh_core::ids::Digest;
use mesh_core::model::{Contents, HeldModel, Layers, ModelSheet};
use mesh_core::ports::{Engine, EngineOptions, ModelError, Models, Progress};

use crate::builtin;
use crate::compute::Compute;
use crate::engine::LayerEngine;
use crate::model_files::ModelFiles;
use crate::probe;
use crate::sheet::sheet_of;
use crate::text::TextModel;

pub use defaults::GenerationDefaults;
use reader::Reader;
use shelves::Shelves;

/// Models in some directories, and in the binary. Share it behind an `Arc`.
#[derive(Debug)]
pub struct Library {
    compute_threads: usize,
    numerics_class: OnceLock<u64>,
    shelves: Arc<Shelves>,
    reader: Reader,
}

impl Library {
    /// The models of these directories. `compute_threads` is what engines will typically have: the numerics class is
    /// measured with as many.
    #[must_use]
    pub fn new(model_dirs: Vec<PathBuf>, compute_threads: usize) -> Self {
        Self { compute_threads, numerics_class: OnceLock::new(), shelves: Arc::new(Shelves::new(model_dirs)), reader: Reader::new(None) }
    }

    /// Keeps the hashes of files that were read whole in this file, so that they are read once and not at each start.
    #[must_use]
    pub fn with_contents_in(self, file: PathBuf) -> Self {
        Self { reader: Reader::new(Some(file)), ..self }
    }

    /// Ends reading in the background, for good. Returns at once; the thread ends within a tenth of a second.
    pub fn stop_reading(&self) {
        self.reader.stop();
    }

    /// Tokenizer, chat template and end tokens of a model, by the names that [`Models::sheet`] takes.
    ///
    /// # Errors
    /// No such model, or its text files are missing, damaged or unknown.
    pub fn text(&self, name: &str) -> Result<Arc<TextModel>, ModelError> {
        Ok(self.shelves.text_at(&self.shelves.origin_of(name)?)?.0)
    }

    /// The same, of the model with this digest; and how it wants its tokens chosen when the client does not say (models
    /// that say nothing get [`GenerationDefaults::default`]). From memory, but for a look at the files' times.
    ///
    /// # Errors
    /// As [`Library::text`].
    pub fn text_of(&self, digest: Digest) -> Result<(Arc<TextModel>, GenerationDefaults), ModelError> {
        self.shelves.text_at(&self.shelves.find(digest)?)
    }
}

impl Models for Library {
    fn list(&self) -> Vec<HeldModel> {
        self.shelves.list()
    }

    fn sheet(&self, name: &str) -> Result<ModelSheet, ModelError> {
        self.shelves.sheet_at(&self.shelves.origin_of(name)?)
    }

    fn contents(&self, digest: Digest) -> Result<Option<Contents>, ModelError> {
        self.reader.contents(&self.shelves, digest)
    }

    fn load(&self, digest: Digest, layers: Layers, options: EngineOptions, progress: &dyn Progress) -> Result<Box<dyn Engine>, ModelError> {
        let origin = self.shelves.find(digest)?;
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
