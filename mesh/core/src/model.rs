//! What the planner must know of a model: names, sizes and costs by layer, and no weights.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::ids::Digest;

/// Layers `first..end`, half-open. Never empty in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Layers {
    /// The first layer.
    pub first: u16,
    /// One past the last layer.
    pub end: u16,
}

impl Layers {
    /// Layers `first..end`.
    #[must_use]
    pub const fn new(first: u16, end: u16) -> Self {
        Self { first, end }
    }
    /// How many layers.
    #[must_use]
    pub const fn count(self) -> u16 {
        self.end.saturating_sub(self.first)
    }
    /// As indices into a layer table.
    #[must_use]
    pub const fn indices(self) -> Range<usize> {
        self.first as usize..self.end as usize
    }
    /// Whether `layer` is one of these.
    #[must_use]
    pub const fn contains(self, layer: u16) -> bool {
        self.first <= layer && layer < self.end
    }
}

/// What one layer costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerCost {
    /// Bytes of its weights as stored on disk, which is what they take in memory.
    pub weight_bytes: u64,
    /// Floating-point operations for one token (2 per weight of every matrix that it meets).
    pub flops: u64,
    /// Bytes that its cache grows by for each position.
    pub kv_bytes: u32,
}

/// A model's table of contents: everything a node can say about it from headers and sizes alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelSheet {
    /// The name as users write it: `builtin:story`, or the directory's or file's name without `.gguf`.
    pub name: String,
    /// blake3 over headers, sizes and a few bytes of each tensor: two nodes with the same digest hold the same weights, and not
    /// a fine-tune of them. Tokenizer and template are not part of it.
    pub digest: Digest,
    /// `llama`, `qwen3`.
    pub architecture: String,
    /// How the weights are stored, for people: `bf16`, `Q4_K_M`.
    pub storage: String,
    /// Every layer's cost, first to last.
    pub layers: Vec<LayerCost>,
    /// Bytes of the embedding, held by the first stage.
    pub embed_bytes: u64,
    /// Bytes of final norm and head, held by the last stage. Equals the embedding's where the head is tied:
    /// a last stage that is not also the first holds its own copy.
    pub head_bytes: u64,
    /// FLOPs of the head for one token.
    pub head_flops: u64,
    /// Whether the head is the embedding (one copy where one stage is both first and last).
    pub tied: bool,
    /// Width of the hidden state, in values.
    pub hidden_width: u32,
    /// Number of token ids.
    pub vocabulary: u32,
    /// Longest sequence the model was made for, in tokens.
    pub context_max: u32,
}

impl ModelSheet {
    /// Number of layers.
    #[must_use]
    pub fn layer_count(&self) -> u16 {
        u16::try_from(self.layers.len()).expect("loaders refuse more than 65,535 layers")
    }

    /// Bytes of weights that a stage with `layers` holds, embedding and head included where they belong.
    #[must_use]
    pub fn weight_bytes(&self, layers: Layers) -> u64 {
        let first = layers.first == 0;
        let last = layers.end == self.layer_count();
        let blocks: u64 = self.layers[layers.indices()].iter().map(|layer| layer.weight_bytes).sum();
        let embed = if first { self.embed_bytes } else { 0 };
        let head = match (last, first && self.tied) {
            (false, _) | (true, true) => 0,
            (true, false) => self.head_bytes,
        };
        blocks + embed + head
    }

    /// Bytes of cache that `layers` need for `positions` positions.
    #[must_use]
    pub fn kv_bytes(&self, layers: Layers, positions: u64) -> u64 {
        self.layers[layers.indices()].iter().map(|layer| u64::from(layer.kv_bytes) * positions).sum()
    }
}

/// A model found on a node's disk (or inside its binary).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldModel {
    /// [`ModelSheet::name`].
    pub name: String,
    /// [`ModelSheet::digest`].
    pub digest: Digest,
    /// Which of the model's layers its files cover; embedding and head count with the first and last layer.
    pub layers: Layers,
    /// What the files hold, once all of them were read. `None` = not yet: only models that are deployed are looked at.
    pub contents: Option<Contents>,
}

/// What a copy of a model holds, as told by every byte that counts. [`ModelSheet::digest`] is there at once and sees little
/// of the numbers; this takes a reading of all files, and tells a damaged or requantised copy, or another template, for
/// certain. It finds accidents and mix-ups; it is no proof against a member who forges it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contents {
    /// Over every tensor and the files that tokenizer, template and defaults are read from. The same tensors cut into
    /// other weight files, or under other file names, have the same.
    pub digest: Digest,
    /// File by file, in order of names, to name what differs. Bounded by [`Contents::new`]; perhaps not all.
    pub files: Vec<FileContents>,
}

/// What one file holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileContents {
    /// Its name, without directories.
    pub name: String,
    /// Eight bytes of the digest of what counts in it.
    pub hash: u64,
}

/// Bytes that the files of one [`Contents`] may take in a record: about 200 files of a large model.
pub const CONTENTS_BYTES_MAX: usize = 8 << 10;
/// Names of files in a sentence; beyond it they are counted.
const NAMED_MAX: usize = 4;

impl Contents {
    /// Contents with as many of the files as a record has room for.
    #[must_use]
    pub fn new(digest: Digest, mut files: Vec<FileContents>) -> Self {
        files.sort();
        let mut room = CONTENTS_BYTES_MAX;
        let fits = files.iter().take_while(|file| {
            let bytes = file.name.len() + size_of::<u64>() + 4;
            room.checked_sub(bytes).map(|left| room = left).is_some()
        });
        let count = fits.count();
        files.truncate(count);
        Self { digest, files }
    }

    /// Which files this copy and another differ in, in words: `a.safetensors and b.safetensors`.
    #[must_use]
    pub fn differing_from(&self, other: &Self) -> String {
        let of = |contents: &Self| contents.files.iter().cloned().collect::<std::collections::BTreeSet<_>>();
        let (ours, theirs) = (of(self), of(other));
        let mut names: Vec<&str> = ours.symmetric_difference(&theirs).map(|file| file.name.as_str()).collect();
        names.dedup();
        match names.as_slice() {
            [] => "a file beyond those that are told".to_owned(),
            [one] => (*one).to_owned(),
            [most @ .., last] if names.len() <= NAMED_MAX => format!("{} and {last}", most.join(", ")),
            many => format!("{} and {} more files", many[..NAMED_MAX].join(", "), many.len() - NAMED_MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(digest: u8, files: &[(&str, u64)]) -> Contents {
        let file = |&(name, hash): &(&str, u64)| FileContents { name: name.to_owned(), hash };
        Contents::new(Digest([digest; 32]), files.iter().map(file).collect())
    }

    #[test]
    fn what_differs_between_two_copies_is_named_by_file() {
        let ours = contents(1, &[("a", 1), ("b", 2), ("c", 3)]);
        assert_eq!(ours.differing_from(&contents(2, &[("c", 3), ("b", 9), ("a", 1)])), "b");
        assert_eq!(ours.differing_from(&contents(2, &[("a", 7), ("b", 2)])), "a and c");
        assert_eq!(ours.differing_from(&contents(2, &[("1", 7), ("2", 7), ("3", 7)])), "1, 2, 3, a and 2 more files");
        assert_eq!(ours.differing_from(&contents(2, &[("a", 1), ("b", 2), ("c", 3)])), "a file beyond those that are told");
    }

    #[test]
    fn the_files_of_the_largest_model_leave_room_in_a_record() {
        let files = (0..10_000).map(|index| FileContents { name: format!("model-{index:05}-of-10000.safetensors"), hash: index }).collect();
        let told = Contents::new(Digest([1; 32]), files).files;
        assert!(told.len() > 150 && told.iter().map(|file| file.name.len() + 12).sum::<usize>() <= CONTENTS_BYTES_MAX);
    }
}
