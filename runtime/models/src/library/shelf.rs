//! What was learnt of models, as long as their files stay as they are.

use std::collections::BTreeMap;
use std::sync::Arc;

use mesh_core::ids::Digest;
use mesh_core::model::ModelSheet;
use mesh_core::ports::ModelError;

use super::defaults::GenerationDefaults;
use super::place::Stamp;
use crate::model_files::Origin;
use crate::text::TextModel;

/// Models whose tokenizers are kept in memory at once. A large one takes some 100 MB.
const TEXTS_MAX: usize = 4;

/// Tokenizer and template, and how tokens are chosen by default.
pub(super) type Text = (Arc<TextModel>, GenerationDefaults);

/// Sheets and texts by place.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    sheets: BTreeMap<Origin, (Stamp, Result<ModelSheet, ModelError>)>,
    /// Least lately used first.
    texts: Vec<(Origin, Stamp, Text)>,
}

impl Shelf {
    /// What the same files gave before.
    pub(super) fn seen(&self, origin: &Origin, stamp: &Stamp) -> Option<Result<ModelSheet, ModelError>> {
        self.sheets.get(origin).filter(|(seen, _)| seen == stamp).map(|(_, sheet)| sheet.clone())
    }

    pub(super) fn put(&mut self, origin: Origin, stamp: Stamp, sheet: Result<ModelSheet, ModelError>) {
        if let Err(error) = &sheet {
            tracing::warn!(%error, "a model cannot be used");
        }
        // An error of the system (no permission, no memory) may be gone the next time.
        if !matches!(sheet, Err(ModelError::System(_))) {
            self.sheets.insert(origin, (stamp, sheet));
        }
    }

    /// A place where a model with this digest was seen.
    pub(super) fn origin_of(&self, digest: Digest) -> Option<Origin> {
        let is_it = |sheet: &Result<ModelSheet, ModelError>| sheet.as_ref().is_ok_and(|sheet| sheet.digest == digest);
        self.sheets.iter().find(|(_, (_, sheet))| is_it(sheet)).map(|(origin, _)| origin.clone())
    }

    pub(super) fn text(&mut self, origin: &Origin, stamp: &Stamp) -> Option<Text> {
        let index = self.texts.iter().position(|(at, seen, _)| at == origin && seen == stamp)?;
        let entry = self.texts.remove(index);
        let text = entry.2.clone();
        self.texts.push(entry);
        Some(text)
    }

    pub(super) fn put_text(&mut self, origin: Origin, stamp: Stamp, text: Text) {
        self.texts.retain(|(at, ..)| *at != origin);
        if self.texts.len() == TEXTS_MAX {
            self.texts.remove(0);
        }
        self.texts.push((origin, stamp, text));
    }
}
