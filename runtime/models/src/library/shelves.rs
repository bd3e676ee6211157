//! The directories and what is known of the models in them: shared by the library and the thread that reads contents.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mesh_core::ids::Digest;
use mesh_core::model::{HeldModel, Layers, ModelSheet};
use mesh_core::ports::ModelError;

use super::defaults::{self, GenerationDefaults};
use super::place::{self, here, resolve};
use super::shelf::Shelf;
use crate::model_files::{ModelFiles, Origin};
use crate::sheet::sheet_of;
use crate::text::TextModel;

/// Model directories, and what was learnt of the models in them.
#[derive(Debug)]
pub(super) struct Shelves {
    model_dirs: Vec<PathBuf>,
    shelf: Mutex<Shelf>,
}

impl Shelves {
    pub fn new(model_dirs: Vec<PathBuf>) -> Self {
        Self { model_dirs, shelf: Mutex::default() }
    }

    /// Every model that can be used. What is known already of their contents is for others to add.
    pub fn list(&self) -> Vec<HeldModel> {
        let mut models = Vec::new();
        for origin in here(&self.model_dirs) {
            match self.sheet_at(&origin) {
                Ok(sheet) => {
                    let layers = Layers::new(0, sheet.layer_count());
                    models.push(HeldModel { name: sheet.name, digest: sheet.digest, layers, contents: None });
                }
                Err(error) => tracing::debug!(%error, "a model is left out"),
            }
        }
        models
    }

    /// Where the model of this name is.
    pub fn origin_of(&self, name: &str) -> Result<Origin, ModelError> {
        resolve(name, &self.model_dirs).map_err(|why| match why {
            Some(why) => ModelError::NotFound(why),
            None => self.not_found(&format!("there is no model {name:?} here")),
        })
    }

    /// A model with this digest: one that was looked at, or one that lies in the directories.
    pub fn find(&self, digest: Digest) -> Result<Origin, ModelError> {
        let known = self.shelf().origin_of(digest);
        let known = known.filter(|origin| self.sheet_at(origin).is_ok_and(|sheet| sheet.digest == digest));
        let found = known
            .or_else(|| here(&self.model_dirs).into_iter().find(|origin| self.sheet_at(origin).is_ok_and(|sheet| sheet.digest == digest)));
        found.ok_or_else(|| self.not_found(&format!("no model here has the digest {digest:?}: copy the same model's files to this node")))
    }

    /// The sheet of a model whose place is known; from memory if its files have not changed.
    pub fn sheet_at(&self, origin: &Origin) -> Result<ModelSheet, ModelError> {
        let stamp = place::stamp(origin);
        if let Some(seen) = self.shelf().seen(origin, &stamp) {
            return seen;
        }
        let sheet = ModelFiles::open(origin).and_then(|files| sheet_of(&files));
        self.shelf().put(origin.clone(), stamp, sheet.clone());
        sheet
    }

    /// Tokenizer, template and defaults of a model whose place is known; from memory if its files have not changed.
    pub fn text_at(&self, origin: &Origin) -> Result<(Arc<TextModel>, GenerationDefaults), ModelError> {
        let stamp = place::stamp(origin);
        if let Some(text) = self.shelf().text(origin, &stamp) {
            return Ok(text);
        }
        // A model may say nothing about its defaults; a file that is damaged says nothing that can be trusted.
        let defaults =
            defaults::generation_config(origin).map_or_else(|_| GenerationDefaults::default(), |json| GenerationDefaults::of(&json));
        let text = (Arc::new(origin.text()?), defaults);
        self.shelf().put_text(origin.clone(), stamp, text.clone());
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
