//! The weights of a run of layers: loaded, kept and dropped piece by piece.

use std::sync::Arc;

use mesh_core::model::{Layers, ModelSheet};
use mesh_core::ports::ModelError;

use crate::arch::{Block, Head, Loader, embedding, load_block};
use crate::config::Config;
use crate::linear::Linear;

/// Blocks in order; the embedding with the first, the head with the last.
pub(super) struct Stack {
    pub(super) layers: Layers,
    pub(super) blocks: Vec<Box<dyn Block>>,
    pub(super) embed: Option<Arc<Linear>>,
    pub(super) head: Option<Head>,
}

impl Default for Stack {
    fn default() -> Self {
        Self { layers: Layers::new(0, 0), blocks: Vec::new(), embed: None, head: None }
    }
}

impl Stack {
    /// Whether exactly `layers` are here, with the ends that belong to them. A load that failed may have left less.
    pub(super) fn is_whole(&self, layers: Layers, config: &Config) -> bool {
        let ends = (self.embed.is_some(), self.head.is_some()) == (layers.first == 0, layers.end == config.layers);
        self.layers == layers && ends
    }

    /// Drops everything that is not in `layers`.
    pub(super) fn keep(&mut self, layers: Layers, config: &Config) {
        let first = self.layers.first.max(layers.first);
        let end = self.layers.end.min(layers.end);
        if first >= end {
            self.blocks.clear();
            self.layers = Layers::new(layers.first, layers.first);
        } else {
            self.blocks.truncate(usize::from(end - self.layers.first));
            self.blocks.drain(..usize::from(first - self.layers.first));
            self.layers = Layers::new(first, end);
        }
        // One matrix serves as embedding and tied head: it stays while either end is wanted.
        let (is_first, is_last) = (layers.first == 0, layers.end == config.layers);
        if !is_last && is_first && config.tied && self.embed.is_none() {
            self.embed = self.head.as_ref().map(|head| Arc::clone(head.lm_head()));
        }
        if !(is_first || is_last && config.tied && self.head.is_none()) {
            self.embed = None;
        }
        if !is_last {
            self.head = None;
        }
    }

    /// Bytes of files that [`Stack::fill`] would read.
    pub(super) fn missing_bytes(&self, layers: Layers, sheet: &ModelSheet) -> u64 {
        let fresh = layers.indices().filter(|layer| !self.layers.indices().contains(layer));
        let blocks: u64 = fresh.filter_map(|layer| sheet.layers.get(layer)).map(|layer| layer.weight_bytes).sum();
        let (is_first, is_last) = (layers.first == 0, layers.end == sheet.layer_count());
        let has_matrix = sheet.tied && (self.embed.is_some() || self.head.is_some());
        let embed = if is_first && self.embed.is_none() && !has_matrix { sheet.embed_bytes } else { 0 };
        let head = if is_last && self.head.is_none() && !(sheet.tied && (has_matrix || is_first)) { sheet.head_bytes } else { 0 };
        blocks + embed + head
    }

    /// Loads what is missing of `layers`, of which [`Stack::keep`] has left a run. If it fails, what was loaded before
    /// and still makes a run stays.
    pub(super) fn fill(&mut self, layers: Layers, config: &Config, loader: &mut Loader<'_>) -> Result<(), ModelError> {
        let mut before = Vec::new();
        for layer in layers.first..self.layers.first {
            before.push(load_block(loader, config, layer)?);
        }
        self.blocks.splice(0..0, before);
        self.layers.first = layers.first;
        while self.layers.end < layers.end {
            let block = load_block(loader, config, self.layers.end)?;
            self.blocks.push(block);
            self.layers.end += 1;
        }
        self.fill_ends(layers, config, loader)
    }

    fn fill_ends(&mut self, layers: Layers, config: &Config, loader: &mut Loader<'_>) -> Result<(), ModelError> {
        let (is_first, is_last) = (layers.first == 0, layers.end == config.layers);
        if is_first && self.embed.is_none() {
            self.embed = Some(embedding(loader, config, self.head.as_ref().map(Head::lm_head))?);
        }
        if is_last && self.head.is_none() {
            self.head = Some(Head::load(loader, config, self.embed.as_ref())?);
        }
        if !is_first {
            self.embed = None;
        }
        Ok(())
    }
}
