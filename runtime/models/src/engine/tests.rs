//! What belongs to the engine itself, on the built-in model. Numbers against references are in `tests/`.

use std::sync::atomic::AtomicBool;

use mesh_core::generation::Sampling;
use mesh_core::plan::{KvType, Numerics};
use mesh_core::ports::SampleHow;

use super::*;
use crate::compute::Level;

struct Watch {
    bytes: std::sync::atomic::AtomicU64,
    give_up_after: u64,
}

impl Watch {
    fn new(give_up_after: u64) -> Self {
        Self { bytes: 0.into(), give_up_after }
    }
    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Progress for Watch {
    fn loaded(&self, done: u64, all: u64) {
        assert!(done <= all);
        self.bytes.store(done, Ordering::Relaxed);
    }
    fn give_up(&self) -> bool {
        self.bytes() >= self.give_up_after
    }
}

fn options() -> EngineOptions {
    EngineOptions { threads: 1, numerics: Numerics { kv: KvType::F32 }, context: 512, kv_bytes_max: 64 << 20 }
}

fn load_with(layers: Layers, options: EngineOptions, watch: &Watch) -> Result<(LayerEngine, u64), ModelError> {
    let files = ModelFiles::open(&Origin::Builtin)?;
    let sheet = sheet_of(&files)?;
    let engine = LayerEngine::load(Compute::with_level(1, Level::Avx2), &files, sheet, layers, options, watch)?;
    Ok((engine, files.weights.bytes_read()))
}

fn load(first: u16, end: u16) -> LayerEngine {
    load_with(Layers::new(first, end), options(), &Watch::new(u64::MAX)).unwrap().0
}

fn row(stream: u128, first: u32, count: u32) -> StepRow<'static> {
    StepRow { stream: StreamId(stream), first, count, sample: None }
}

fn step<'a>(rows: &'a [StepRow<'a>], ids: &'a [u32], give_up: &'a AtomicBool) -> Step<'a> {
    Step { rows, input: StepInput::Tokens(ids), output: &mut [], give_up }
}

static GO_ON: AtomicBool = AtomicBool::new(false);

/// Hidden states of ids 1, 2, 3 through these engines, one after the other.
fn through(engines: &mut [&mut LayerEngine]) -> Vec<f32> {
    let rows = [row(1, 0, 3)];
    let mut hidden = Vec::new();
    for engine in engines {
        engine.open(StreamId(1), 0, 10).unwrap();
        let segments = [hidden.as_slice()];
        let input = if engine.layers().first == 0 { StepInput::Tokens(&[1, 2, 3]) } else { StepInput::Hidden(&segments) };
        hidden = engine.hidden(&rows, &input).unwrap();
    }
    hidden
}

#[test]
fn a_range_reads_its_own_tensors_and_no_others() {
    let sheet = sheet_of(&ModelFiles::open(&Origin::Builtin).unwrap()).unwrap();
    for (first, end) in [(0, 8), (0, 3), (3, 5), (5, 8), (7, 8)] {
        let (layers, watch) = (Layers::new(first, end), Watch::new(u64::MAX));
        let (_, read) = load_with(layers, options(), &watch).unwrap();
        let norm = if layers == Layers::new(0, 8) { 256 } else { 0 }; // the final norm, which a tied sheet leaves out
        assert_eq!(read, sheet.weight_bytes(layers) + norm, "{layers:?}");
        assert_eq!(watch.bytes(), read);
    }
}

#[test]
fn a_load_gives_up_when_told_to() {
    let gave_up = load_with(Layers::new(0, 8), options(), &Watch::new(1000));
    assert_eq!(gave_up.err(), Some(ModelError::GivenUp));
    for layers in [Layers::new(3, 3), Layers::new(0, 9)] {
        assert!(matches!(load_with(layers, options(), &Watch::new(u64::MAX)), Err(ModelError::NotFound(_))));
    }
}

#[test]
fn a_reshaped_engine_computes_like_a_fresh_one_and_reads_only_what_is_new() {
    let want = through(&mut [&mut load(0, 8)]);
    let sheet = sheet_of(&ModelFiles::open(&Origin::Builtin).unwrap()).unwrap();
    let mut engine = load(0, 3);
    let walk = [(0, 5), (2, 8), (5, 8), (0, 8), (0, 1), (6, 7), (0, 8), (0, 8)];
    for (first, end) in walk {
        let (layers, held) = (Layers::new(first, end), engine.layers());
        let watch = Watch::new(u64::MAX);
        engine.reshape(layers, &watch).unwrap();
        assert_eq!(engine.layers(), layers);
        let fresh: u64 =
            layers.indices().filter(|layer| !held.indices().contains(layer)).map(|layer| sheet.layers[layer].weight_bytes).sum();
        assert!(watch.bytes() <= fresh + sheet.head_bytes, "{layers:?} after {held:?} read {}", watch.bytes());
        let (mut before, mut after) = ((first > 0).then(|| load(0, first)), (end < 8).then(|| load(end, 8)));
        let mut chain: Vec<&mut LayerEngine> = before.iter_mut().collect();
        chain.push(&mut engine);
        chain.extend(after.iter_mut());
        assert_eq!(through(&mut chain), want, "{layers:?} after {held:?}");
    }
    engine.reshape(Layers::new(4, 8), &Watch::new(0)).unwrap();
    assert_eq!(engine.reshape(Layers::new(2, 6), &Watch::new(0)), Err(ModelError::GivenUp));
    assert_eq!(engine.layers(), Layers::new(4, 6), "what both ranges had in common");
    engine.reshape(Layers::new(0, 8), &Watch::new(u64::MAX)).unwrap();
    assert_eq!(through(&mut [&mut engine]), want);
}

#[test]
fn a_cache_keeps_its_positions_in_layers_that_stay() {
    let mut engine = load(0, 4);
    engine.open(StreamId(1), 0, 100).unwrap();
    engine.hidden(&[row(1, 0, 3)], &StepInput::Tokens(&[1, 2, 3])).unwrap();
    engine.reshape(Layers::new(0, 2), &Watch::new(u64::MAX)).unwrap();
    assert_eq!(engine.open(StreamId(1), 3, 100), Ok(3));
    engine.reshape(Layers::new(0, 3), &Watch::new(u64::MAX)).unwrap();
    assert_eq!(engine.open(StreamId(1), 3, 100), Ok(0), "layer 2 has none of them");
}

#[test]
fn the_budget_is_kept_for_the_longest_that_streams_may_get() {
    let position = 2 * 2 * 32 * 4 * 8; // keys and values, heads, values, bytes, layers
    let options = EngineOptions { context: 300, kv_bytes_max: 2 * 300 * position, ..options() };
    let (mut engine, _) = load_with(Layers::new(0, 8), options, &Watch::new(u64::MAX)).unwrap();
    assert_eq!(engine.open(StreamId(1), 0, 300), Ok(0));
    assert_eq!(engine.open(StreamId(2), 0, 1000), Ok(0), "no stream is longer than the context");
    let full = CacheFull { need_bytes: 256 * position, free_bytes: 0 };
    assert_eq!(engine.open(StreamId(3), 0, 1), Err(full), "a short stream takes a slab");
    assert_eq!(engine.open(StreamId(2), 0, 20), Ok(0), "a stream may shrink");
    assert_eq!(engine.open(StreamId(3), 0, 1), Err(CacheFull { free_bytes: 44 * position, ..full }));
    engine.close(StreamId(1));
    engine.close(StreamId(1));
    assert_eq!(engine.open(StreamId(3), 0, 1), Ok(0));
    engine.limit_kv_bytes(0);
    assert_eq!(engine.open(StreamId(4), 0, 1), Err(CacheFull { free_bytes: 0, ..full }));
    assert_eq!(engine.kv_bytes(), 0, "memory is taken as streams grow");
    engine.hidden(&[row(3, 0, 1)], &StepInput::Tokens(&[1])).unwrap();
    assert_eq!(engine.kv_bytes(), 256 * position);
}

#[test]
fn steps_that_make_no_sense_change_nothing() {
    let mut engine = load(0, 8);
    engine.open(StreamId(1), 0, 4).unwrap();
    let mut failed = |rows: &[StepRow<'_>], ids: &[u32]| match engine.step(step(rows, ids, &GO_ON)) {
        Err(StepError::Failed(why)) => why,
        other => panic!("{other:?}"),
    };
    assert!(failed(&[row(1, 1, 1)], &[5]).contains("its cache has 0"));
    assert!(failed(&[row(2, 0, 1)], &[5]).contains("not open"));
    assert!(failed(&[row(1, 0, 1), row(1, 0, 1)], &[5, 6]).contains("twice"));
    assert!(failed(&[row(1, 0, 2)], &[5]).contains("input for 1"));
    assert!(failed(&[row(1, 0, 5)], &[5; 5]).contains("opened for 4"));
    assert!(failed(&[row(1, 0, 1)], &[900_000]).contains("900000"));
    assert!(failed(&[], &[]).contains("0 positions"));
    let hidden = [0.0; 128];
    let wrong = Step { rows: &[row(1, 0, 1)], input: StepInput::Hidden(&[&hidden]), output: &mut [], give_up: &GO_ON };
    assert!(matches!(engine.step(wrong), Err(StepError::Failed(why)) if why.contains("wrong kind")));
    let mut output = [0.0; 128];
    let wrong = Step { rows: &[row(1, 0, 1)], input: StepInput::Tokens(&[1]), output: &mut output, give_up: &GO_ON };
    assert!(matches!(engine.step(wrong), Err(StepError::Failed(why)) if why.contains("output")));
    assert_eq!(engine.open(StreamId(1), 9, 4), Ok(0));
    assert_eq!(engine.step(step(&[row(1, 0, 4)], &[1, 2, 3, 4], &GO_ON)), Ok(Vec::new()));
}

#[test]
fn a_step_that_is_given_up_leaves_the_caches_as_they_were() {
    let mut engine = load(0, 8);
    engine.open(StreamId(1), 0, 10).unwrap();
    engine.step(step(&[row(1, 0, 2)], &[1, 2], &GO_ON)).unwrap();
    assert_eq!(engine.step(step(&[row(1, 2, 2)], &[3, 4], &AtomicBool::new(true))), Err(StepError::GivenUp));
    let (sampling, ids) = (Sampling::default(), [1, 2, 3]);
    let sample = Some(SampleHow { sampling: &sampling, ids: &ids, prompt_len: 3 });
    let sampled = engine.step(step(&[StepRow { sample, ..row(1, 2, 1) }], &[3], &GO_ON)).unwrap();
    assert_eq!((sampled.len(), sampled[0].position), (1, 3));
}

/// A block that appends nothing and panics, or fails, half-way through the layers.
struct Broken {
    panics: bool,
}

impl crate::arch::Block for Broken {
    fn forward(&self, _: &Compute, _: &Tensor, _: &mut Pass<'_, '_>) -> candle_core::Result<Tensor> {
        assert!(!self.panics, "on purpose");
        candle_core::bail!("also on purpose")
    }
}

#[test]
fn a_panic_drops_the_caches_of_its_streams_and_nothing_else() {
    let mut engine = load(0, 8);
    for stream in 1..=3 {
        engine.open(StreamId(stream), 0, 10).unwrap();
        engine.step(step(&[row(stream, 0, 1)], &[1], &GO_ON)).unwrap();
    }
    let sound = std::mem::replace(&mut engine.stack.blocks[4], Box::new(Broken { panics: true }));
    let why = engine.step(step(&[row(1, 1, 1)], &[2], &GO_ON));
    assert_eq!(why, Err(StepError::Failed("the engine panicked: on purpose".into())));
    engine.stack.blocks[4] = Box::new(Broken { panics: false });
    let why = engine.step(step(&[row(2, 1, 1)], &[2], &GO_ON));
    assert!(matches!(why, Err(StepError::Failed(why)) if why.contains("also on purpose")));
    engine.stack.blocks[4] = sound;
    assert_eq!(engine.open(StreamId(1), 1, 10), Ok(0), "dropped");
    assert_eq!(engine.open(StreamId(2), 1, 10), Ok(1), "as it was");
    assert_eq!(engine.open(StreamId(3), 1, 10), Ok(1), "not concerned");
    engine.step(step(&[row(2, 1, 1), row(3, 1, 1)], &[2, 2], &GO_ON)).unwrap();
}
