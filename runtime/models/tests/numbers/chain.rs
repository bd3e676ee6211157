//! A model cut into stages, driven as shard threads drive it, without the network between.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use mesh_core::generation::Sampling;
use mesh_core::ids::StreamId;
use mesh_core::model::{Layers, ModelSheet};
use mesh_core::plan::{KvType, Numerics};
use mesh_core::ports::{Engine, EngineOptions, Progress, SampleHow, Sampled, Step, StepInput, StepRow};
use mesh_models::compute::Compute;
use mesh_models::engine::LayerEngine;
use mesh_models::model_files::{ModelFiles, Origin};
use mesh_models::sheet::sheet_of;

/// A fixture's directory.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// A directory's model, or a GGUF file's.
pub fn origin(name: &str) -> Origin {
    Origin::at(&fixture(name)).unwrap_or_else(|| panic!("no model at {name}"))
}

/// A fixture's JSON file.
pub fn json(name: &str) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(fixture(name)).unwrap()).unwrap()
}

/// The numbers of a JSON list.
pub fn floats(value: &serde_json::Value) -> Vec<f32> {
    value.as_array().expect("a list").iter().map(|n| n.as_f64().expect("a number") as f32).collect()
}

/// The ids of a JSON list.
pub fn ids(value: &serde_json::Value) -> Vec<u32> {
    value.as_array().expect("a list").iter().map(|n| n.as_u64().expect("an id") as u32).collect()
}

pub struct Quiet;

impl Progress for Quiet {
    fn loaded(&self, _: u64, _: u64) {}
    fn give_up(&self) -> bool {
        false
    }
}

/// One stream's part of a step: its number, its first position, and its ids from there.
pub struct Part<'a> {
    pub stream: u128,
    pub first: u32,
    pub ids: &'a [u32],
}

/// Stages of one model.
pub struct Chain {
    pub sheet: ModelSheet,
    pub stages: Vec<LayerEngine>,
}

/// Longest sequence in these tests.
pub const CONTEXT: u32 = 300;

impl Chain {
    /// The model cut before each of `cuts`.
    pub fn load(origin: &Origin, cuts: &[u16], cx: impl Fn() -> Compute) -> Self {
        Self::with_kv(KvType::F32, origin, cuts, cx)
    }

    /// The same, with this type of caches.
    pub fn with_kv(kv: KvType, origin: &Origin, cuts: &[u16], cx: impl Fn() -> Compute) -> Self {
        let files = ModelFiles::open(origin).unwrap();
        let sheet = sheet_of(&files).unwrap();
        let options = EngineOptions { threads: 1, numerics: Numerics { kv }, context: CONTEXT, kv_bytes_max: 1 << 40 };
        let mut bounds = vec![0];
        bounds.extend(cuts);
        bounds.push(sheet.layer_count());
        let load = |pair: &[u16]| LayerEngine::load(cx(), &files, sheet.clone(), Layers::new(pair[0], pair[1]), options, &Quiet).unwrap();
        let stages = bounds.windows(2).map(load).collect();
        Self { sheet, stages }
    }

    /// In one piece, with one thread.
    pub fn whole(origin: &Origin) -> Self {
        Self::load(origin, &[], || Compute::cpu(1))
    }

    /// Opens a stream on every stage, empty.
    pub fn open(&mut self, stream: u128) {
        for stage in &mut self.stages {
            assert_eq!(stage.open(StreamId(stream), 0, CONTEXT), Ok(0));
        }
    }

    pub fn close(&mut self, stream: u128) {
        self.stages.iter_mut().for_each(|stage| stage.close(StreamId(stream)));
    }

    /// Hidden states after the last layer, of all positions.
    pub fn hidden(&mut self, parts: &[Part<'_>]) -> Vec<f32> {
        self.hidden_after_each(parts).pop().unwrap()
    }

    /// Hidden states after each stage.
    pub fn hidden_after_each(&mut self, parts: &[Part<'_>]) -> Vec<Vec<f32>> {
        let rows: Vec<StepRow<'_>> = parts.iter().map(|part| row(part, None)).collect();
        let tokens = parts.iter().flat_map(|part| part.ids).copied().collect::<Vec<_>>();
        let mut states: Vec<Vec<f32>> = Vec::new();
        for stage in &mut self.stages {
            let after = match states.last() {
                None => stage.hidden(&rows, &StepInput::Tokens(&tokens)),
                Some(before) => stage.hidden(&rows, &StepInput::Hidden(&[before])),
            };
            states.push(after.unwrap());
        }
        states
    }

    /// Logits of every position of one fresh stream: one list each.
    pub fn logits(&mut self, ids: &[u32]) -> Vec<Vec<f32>> {
        self.open(u128::MAX);
        let hidden = self.hidden(&[Part { stream: u128::MAX, first: 0, ids }]);
        self.close(u128::MAX);
        self.logits_of(&hidden)
    }

    /// Logits of hidden states after the last layer: one list each.
    pub fn logits_of(&self, hidden: &[f32]) -> Vec<Vec<f32>> {
        let logits = self.stages.last().unwrap().logits(hidden).unwrap();
        logits.chunks(self.sheet.vocabulary as usize).map(<[f32]>::to_vec).collect()
    }

    /// One step as the runtime does it: the last stage samples after each part's last id. `all` are all of its ids.
    pub fn step(&mut self, parts: &[Part<'_>], all: &[&[u32]], sampling: &Sampling) -> Vec<Sampled> {
        let how = |ids| SampleHow { sampling, ids, prompt_len: ids.len() as u32 };
        let rows: Vec<StepRow<'_>> = parts.iter().zip(all).map(|(part, ids)| row(part, Some(how(ids)))).collect();
        let tokens = parts.iter().flat_map(|part| part.ids).copied().collect::<Vec<_>>();
        let (width, last) = (self.sheet.hidden_width as usize, self.stages.len() - 1);
        let mut before: Vec<f32> = Vec::new();
        for (index, stage) in self.stages.iter_mut().enumerate() {
            let mut output = vec![0.0; if index == last { 0 } else { tokens.len() * width }];
            // As slots of a lane would hold them: one segment for each stream.
            let mut rest = before.as_slice();
            let mut segments = Vec::new();
            if index > 0 {
                for part in parts {
                    let (segment, after) = rest.split_at(part.ids.len() * width);
                    segments.push(segment);
                    rest = after;
                }
            }
            let input = if index == 0 { StepInput::Tokens(&tokens) } else { StepInput::Hidden(&segments) };
            let sampled = stage.step(Step { rows: &rows, input, output: &mut output, give_up: &AtomicBool::new(false) }).unwrap();
            if index == last {
                return sampled;
            }
            assert!(sampled.is_empty());
            before = output;
        }
        unreachable!("a chain has a last stage")
    }

    /// `count` tokens after `prompt`, one stream alone.
    pub fn generate(&mut self, prompt: &[u32], count: usize, sampling: &Sampling) -> Vec<u32> {
        self.open(u128::MAX);
        let mut ids = prompt.to_vec();
        let mut done = 0;
        for _ in 0..count {
            let part = Part { stream: u128::MAX, first: done as u32, ids: &ids[done..] };
            let sampled = self.step(&[part], &[&ids], sampling);
            assert_eq!(sampled[0].position as usize, ids.len());
            done = ids.len();
            ids.push(sampled[0].token);
        }
        self.close(u128::MAX);
        ids.split_off(prompt.len())
    }
}

fn row<'a>(part: &Part<'_>, sample: Option<SampleHow<'a>>) -> StepRow<'a> {
    StepRow { stream: StreamId(part.stream), first: part.first, count: part.ids.len() as u32, sample }
}

/// The greatest difference of two lists.
pub fn apart(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, |most, n| if n.is_nan() { f32::INFINITY } else { most.max(n) })
}

/// Bits, to be compared.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The square root of the sum of squares.
pub fn length(values: &[f32]) -> f64 {
    values.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt()
}

/// The cosine of the angle between two lists.
pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot: f64 = a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
    dot / (length(a) * length(b))
}
