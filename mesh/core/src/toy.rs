//! A model for tests and the simulator whose tokens depend on everything (DESIGN, section 14).
//!
//! A layer's state at a position is a hash of its state at the position before, of its input and of its number; the hidden
//! state between layers carries that hash in exact small integers. The token is a hash of the last layer's output, of all
//! ids before it and of the seed. So one lost, doubled or reordered activation anywhere changes the text from there on.
//! Compiled for tests and with the feature `testing` only.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::generation::{FinishReason, GenerationRequest, TokenLogprobs};
use crate::ids::{Digest, PrefixHash, StreamId};
use crate::model::{Contents, FileContents, HeldModel, LayerCost, Layers, ModelSheet};
use crate::ports::{
    CacheFull, Engine, EngineOptions, ModelError, Models, Progress, SampleHow, Sampled, Step, StepError, StepInput, StepRow,
};

/// Values that carry a state: 16 bits each.
const CARRIERS: usize = 4;

/// Bytes that a layer's cache takes for a position.
const KV_BYTES: u32 = 8;

/// Bytes that a layer's weights pretend to have.
const LAYER_BYTES: u64 = 1_000;

/// Called at the beginning of each step with its rows: may look, block or panic.
pub type Hook = Arc<dyn Fn(&[StepRow<'_>]) + Send + Sync>;

/// Called for each layer that is loaded: may block.
pub type LoadHook = Arc<dyn Fn(u16) + Send + Sync>;

/// The table of contents of a toy with so many layers, `width` values a position (at least 4) and `vocabulary` ids.
///
/// # Panics
/// If `width` is less than 4 or there is no layer.
#[must_use]
pub fn sheet(layers: u16, width: u32, vocabulary: u32, context: u32) -> ModelSheet {
    assert!(width as usize >= CARRIERS && layers > 0, "a toy needs four values and a layer");
    let name = format!("toy:{layers}x{width}");
    ModelSheet {
        digest: Digest({
            let mut bytes = [7; 32];
            bytes[..8].copy_from_slice(&xxh3_64(format!("{name} {vocabulary}").as_bytes()).to_le_bytes());
            bytes
        }),
        name,
        architecture: "toy".to_owned(),
        storage: "none".to_owned(),
        layers: vec![LayerCost { weight_bytes: LAYER_BYTES, flops: 1_000, kv_bytes: KV_BYTES }; usize::from(layers)],
        embed_bytes: LAYER_BYTES,
        head_bytes: LAYER_BYTES,
        head_flops: 1_000,
        tied: false,
        hidden_width: width,
        vocabulary,
        context_max: context,
    }
}

/// What the toy of `sheet` answers when nothing disturbs it: one engine, one position at a time.
#[must_use]
pub fn reference(sheet: &ModelSheet, request: &GenerationRequest, context: u32) -> (Vec<u32>, FinishReason) {
    let mut states = vec![0_u64; sheet.layers.len()];
    let (mut ids, mut next) = (request.prompt.clone(), 0);
    let mut output = 0;
    let mut tokens = Vec::new();
    loop {
        for &id in &ids[next..] {
            output = embed(id);
            for (layer, state) in states.iter_mut().enumerate() {
                *state = advance(*state, output, u16::try_from(layer).expect("few layers"));
                output = leave(*state);
            }
        }
        next = ids.len();
        let how =
            SampleHow { sampling: &request.sampling, ids: &ids, prompt_len: u32::try_from(request.prompt.len()).expect("a short prompt") };
        let token = choose(output, how, sheet.vocabulary);
        ids.push(token);
        tokens.push(token);
        if request.end_ids.contains(&token) {
            return (tokens, FinishReason::EndToken);
        }
        if tokens.len() >= request.max_tokens as usize || ids.len() >= context as usize {
            return (tokens, FinishReason::Length);
        }
    }
}

fn embed(id: u32) -> u64 {
    xxh3_64_with_seed(&id.to_le_bytes(), 0xe3bd)
}

fn advance(state: u64, input: u64, layer: u16) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&state.to_le_bytes());
    bytes[8..].copy_from_slice(&input.to_le_bytes());
    xxh3_64_with_seed(&bytes, u64::from(layer))
}

fn leave(state: u64) -> u64 {
    xxh3_64_with_seed(&state.to_le_bytes(), 0x1ea7e)
}

fn choose(output: u64, how: SampleHow<'_>, vocabulary: u32) -> u32 {
    let mut bytes = [0; 28];
    bytes[..8].copy_from_slice(&output.to_le_bytes());
    bytes[8..16].copy_from_slice(&how.sampling.seed.to_le_bytes());
    bytes[16..24].copy_from_slice(&PrefixHash::EMPTY.over(how.ids).0.to_le_bytes());
    bytes[24..].copy_from_slice(&how.prompt_len.to_le_bytes());
    u32::try_from(xxh3_64(&bytes) % u64::from(vocabulary)).expect("less than the vocabulary")
}

fn write_state(state: u64, values: &mut [f32]) {
    values.fill(0.0);
    for (index, value) in values.iter_mut().take(CARRIERS).enumerate() {
        *value = f32::from(u16::try_from(state >> (16 * index) & 0xffff).expect("sixteen bits"));
    }
}

/// A state from values, or `None` if no toy wrote them.
fn read_state(values: &[f32]) -> Option<u64> {
    let mut state = 0;
    for (index, &value) in values.iter().take(CARRIERS).enumerate() {
        if !(0.0..=65_535.0).contains(&value) || value.fract() != 0.0 {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked just above")]
        let bits = value as u64;
        state |= bits << (16 * index);
    }
    Some(state)
}

/// The toy in memory.
pub struct ToyEngine {
    sheet: ModelSheet,
    layers: Layers,
    kv_bytes_max: u64,
    caches: BTreeMap<StreamId, Cache>,
    hook: Option<Hook>,
}

struct Cache {
    positions_max: u32,
    /// By position, the state of every held layer.
    states: Vec<Vec<u64>>,
}

impl ToyEngine {
    /// Layers of the toy of `sheet`, with room for so many bytes of caches.
    #[must_use]
    pub fn new(sheet: &ModelSheet, layers: Layers, kv_bytes_max: u64) -> Self {
        Self { sheet: sheet.clone(), layers, kv_bytes_max, caches: BTreeMap::new(), hook: None }
    }

    /// Calls `hook` at the beginning of each step.
    #[must_use]
    pub fn with_hook(mut self, hook: Option<Hook>) -> Self {
        self.hook = hook;
        self
    }

    /// Streams that have a cache.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.caches.len()
    }

    fn reserved(&self) -> u64 {
        self.caches.values().map(|cache| self.bytes(cache.positions_max)).sum()
    }
    fn bytes(&self, positions: u32) -> u64 {
        self.sheet.kv_bytes(self.layers, u64::from(positions))
    }

    /// One position of one stream: the state that leaves the last held layer.
    fn forward(&mut self, stream: StreamId, input: u64) -> u64 {
        let layers = self.layers;
        let cache = self.caches.get_mut(&stream).expect("checked before the step began");
        let before = cache.states.last();
        let mut states = Vec::with_capacity(usize::from(layers.count()));
        let mut value = input;
        for (index, layer) in (layers.first..layers.end).enumerate() {
            let state = advance(before.map_or(0, |before| before[index]), value, layer);
            states.push(state);
            value = leave(state);
        }
        cache.states.push(states);
        value
    }

    fn inputs(&self, input: &StepInput<'_>) -> Result<Vec<u64>, StepError> {
        let failed = |what: &str| StepError::Failed(what.to_owned());
        match input {
            StepInput::Tokens(ids) if self.layers.first == 0 => ids
                .iter()
                .map(|&id| if id < self.sheet.vocabulary { Ok(embed(id)) } else { Err(failed("an id is not in the vocabulary")) })
                .collect(),
            StepInput::Hidden(segments) if self.layers.first > 0 => {
                let width = self.sheet.hidden_width as usize;
                let mut inputs = Vec::new();
                for segment in *segments {
                    if segment.len() % width != 0 {
                        return Err(failed("a segment is no multiple of the width"));
                    }
                    for values in segment.chunks_exact(width) {
                        inputs.push(read_state(values).ok_or_else(|| failed("the input is no toy's output"))?);
                    }
                }
                Ok(inputs)
            }
            _ => Err(failed("ids go into the first layer, hidden states into the others")),
        }
    }
}

impl Engine for ToyEngine {
    fn layers(&self) -> Layers {
        self.layers
    }

    fn reshape(&mut self, layers: Layers, progress: &dyn Progress) -> Result<(), ModelError> {
        self.caches.clear();
        let fresh: Vec<u16> = (layers.first..layers.end).filter(|layer| !self.layers.contains(*layer)).collect();
        let all = fresh.iter().map(|&layer| self.sheet.layers[usize::from(layer)].weight_bytes).sum();
        let mut done = 0;
        for layer in fresh {
            if progress.give_up() {
                return Err(ModelError::GivenUp);
            }
            done += self.sheet.layers[usize::from(layer)].weight_bytes;
            progress.loaded(done, all);
        }
        self.layers = layers;
        Ok(())
    }

    fn open(&mut self, stream: StreamId, keep: u32, positions_max: u32) -> Result<u32, CacheFull> {
        let old = self.caches.remove(&stream);
        let (need_bytes, free_bytes) = (self.bytes(positions_max), self.kv_bytes_max.saturating_sub(self.reserved()));
        if need_bytes > free_bytes {
            return Err(CacheFull { need_bytes, free_bytes });
        }
        let mut states = old.map(|old| old.states).unwrap_or_default();
        states.truncate(keep as usize);
        let kept = u32::try_from(states.len()).expect("at most `keep`");
        self.caches.insert(stream, Cache { positions_max, states });
        Ok(kept)
    }

    fn close(&mut self, stream: StreamId) {
        self.caches.remove(&stream);
    }

    fn kv_bytes(&self) -> u64 {
        self.reserved()
    }

    fn limit_kv_bytes(&mut self, kv_bytes_max: u64) {
        self.kv_bytes_max = kv_bytes_max;
    }

    fn step(&mut self, step: Step<'_>) -> Result<Vec<Sampled>, StepError> {
        if let Some(hook) = &self.hook {
            hook(step.rows);
        }
        if step.give_up.load(Ordering::Acquire) {
            return Err(StepError::GivenUp);
        }
        let inputs = self.inputs(&step.input)?;
        let positions: usize = step.rows.iter().map(|row| row.count as usize).sum();
        if positions != inputs.len() || positions == 0 {
            return Err(StepError::Failed(format!("rows of {positions} positions, input of {}", inputs.len())));
        }
        for row in step.rows {
            let held = self.caches.get(&row.stream).map(|cache| cache.states.len());
            if held != Some(row.first as usize) {
                return Err(StepError::Failed(format!("position {} of {:?}, but its cache has {held:?}", row.first, row.stream)));
            }
        }
        let last = usize::from(self.layers.end) == self.sheet.layers.len();
        let width = self.sheet.hidden_width as usize;
        let mut outputs = step.output.chunks_exact_mut(width);
        let mut inputs = inputs.into_iter();
        let mut sampled = Vec::new();
        for row in step.rows {
            let mut value = 0;
            for input in inputs.by_ref().take(row.count as usize) {
                value = self.forward(row.stream, input);
                if !last {
                    write_state(value, outputs.next().ok_or_else(|| StepError::Failed("the output is too short".to_owned()))?);
                }
            }
            if let Some(how) = row.sample.filter(|_| last) {
                let token = choose(value, how, self.sheet.vocabulary);
                let logprobs = how.sampling.logprobs.map(|_| TokenLogprobs { chosen: -1.0, top: vec![(token, -1.0)] });
                sampled.push(Sampled { stream: row.stream, position: row.first + row.count, token, logprobs });
            }
        }
        Ok(sampled)
    }
}

/// The toys that a node can read.
#[derive(Clone, Default)]
pub struct ToyModels {
    sheets: Vec<ModelSheet>,
    copy: u8,
    hook: Option<Hook>,
    load_hook: Option<LoadHook>,
}

impl ToyModels {
    /// These and no others.
    #[must_use]
    pub fn new(sheets: Vec<ModelSheet>) -> Self {
        Self { sheets, ..Self::default() }
    }
    /// Makes their files hold something else than those of other copies have, while the sheets stay the same.
    #[must_use]
    pub fn with_copy(mut self, copy: u8) -> Self {
        self.copy = copy;
        self
    }
    /// Engines that are loaded from here call `hook` at each step.
    #[must_use]
    pub fn with_hook(mut self, hook: Hook) -> Self {
        self.hook = Some(hook);
        self
    }
    /// Calls `hook` before each layer that is loaded.
    #[must_use]
    pub fn with_load_hook(mut self, hook: LoadHook) -> Self {
        self.load_hook = Some(hook);
        self
    }
}

impl Models for ToyModels {
    fn list(&self) -> Vec<HeldModel> {
        let held = |sheet: &ModelSheet| HeldModel {
            name: sheet.name.clone(),
            digest: sheet.digest,
            layers: Layers::new(0, sheet.layer_count()),
            contents: None,
        };
        self.sheets.iter().map(held).collect()
    }

    fn sheet(&self, name: &str) -> Result<ModelSheet, ModelError> {
        self.sheets
            .iter()
            .find(|sheet| sheet.name == name)
            .cloned()
            .ok_or_else(|| ModelError::NotFound(format!("no toy by the name {name}")))
    }

    fn load(&self, digest: Digest, layers: Layers, options: EngineOptions, progress: &dyn Progress) -> Result<Box<dyn Engine>, ModelError> {
        let sheet =
            self.sheets.iter().find(|sheet| sheet.digest == digest).ok_or_else(|| ModelError::NotFound(format!("no toy {digest:?}")))?;
        let bytes = |layer: u16| sheet.layers[usize::from(layer)].weight_bytes;
        let all_bytes = (layers.first..layers.end).map(bytes).sum();
        let mut done_bytes = 0;
        for layer in layers.first..layers.end {
            if let Some(hook) = &self.load_hook {
                hook(layer);
            }
            if progress.give_up() {
                return Err(ModelError::GivenUp);
            }
            done_bytes += bytes(layer);
            progress.loaded(done_bytes, all_bytes);
        }
        Ok(Box::new(ToyEngine::new(sheet, layers, options.kv_bytes_max).with_hook(self.hook.clone())))
    }

    fn contents(&self, digest: Digest) -> Result<Option<Contents>, ModelError> {
        let told = Contents::new(Digest([self.copy; 32]), vec![FileContents { name: "toy".to_owned(), hash: self.copy.into() }]);
        let here = self.sheets.iter().any(|sheet| sheet.digest == digest);
        here.then_some(Some(told)).ok_or_else(|| ModelError::NotFound(format!("no toy {digest:?}")))
    }

    fn numerics_class(&self) -> u64 {
        0x70f
    }
}
