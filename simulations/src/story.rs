//! The real built-in model, for worlds that want it (feature `story`).

use std::sync::Arc;
#[cfg(feature = "story")]
use std::sync::atomic::AtomicBool;

use mesh_core::generation::GenerationRequest;
use mesh_core::model::ModelSheet;
use mesh_core::ports::Models;

use crate::scenario::Scenario;

/// Whether this program has it.
pub(crate) const IS_HERE: bool = cfg!(feature = "story");

/// The model and its table of contents.
#[cfg(feature = "story")]
pub(crate) fn models() -> Option<(ModelSheet, Arc<dyn Models>)> {
    let library: Arc<dyn Models> = Arc::new(mesh_models::library::Library::new(Vec::new(), 1));
    let sheet = library.sheet(mesh_models::builtin::STORY).ok()?;
    Some((sheet, library))
}

/// Not here.
#[cfg(not(feature = "story"))]
pub(crate) fn models() -> Option<(ModelSheet, Arc<dyn Models>)> {
    None
}

#[cfg(feature = "story")]
struct Whatever;

#[cfg(feature = "story")]
impl mesh_core::ports::Progress for Whatever {
    fn loaded(&self, _: u64, _: u64) {}
    fn give_up(&self) -> bool {
        false
    }
}

/// What it answers when nothing disturbs it: one engine with all layers, one token after the other.
#[cfg(feature = "story")]
pub(crate) fn reference(scenario: &Scenario) -> impl Fn(&GenerationRequest) -> Vec<u32> + use<> {
    use mesh_core::ids::StreamId;
    use mesh_core::model::Layers;
    use mesh_core::plan::Numerics;
    use mesh_core::ports::{EngineOptions, SampleHow, Step, StepInput, StepRow};

    let here = (scenario.world.engine == crate::scenario::EngineKind::Story).then(models).flatten();
    let context = scenario.model.context;
    move |request| {
        let Some((sheet, library)) = &here else { return Vec::new() };
        let options = EngineOptions { threads: 1, numerics: Numerics::default(), context, kv_bytes_max: u64::MAX / 4 };
        let layers = Layers::new(0, sheet.layer_count());
        let mut engine = library.load(sheet.digest, layers, options, &Whatever).expect("the model is part of this program");
        let stream = StreamId(1);
        engine.open(stream, 0, context).expect("there is room for one");
        let (mut ids, mut fed, mut tokens) = (request.prompt.clone(), 0, Vec::new());
        let prompt_len = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
        while tokens.len() < request.max_tokens as usize && ids.len() < context as usize {
            let how = SampleHow { sampling: &request.sampling, ids: &ids, prompt_len };
            let count = u32::try_from(ids.len() - fed).unwrap_or(u32::MAX);
            let row = StepRow { stream, first: u32::try_from(fed).unwrap_or(u32::MAX), count, sample: Some(how) };
            let give_up = AtomicBool::new(false);
            let step = Step { rows: &[row], input: StepInput::Tokens(&ids[fed..]), output: &mut [], give_up: &give_up };
            let sampled = engine.step(step).expect("nothing disturbs it");
            fed = ids.len();
            let Some(token) = sampled.first().map(|sampled| sampled.token) else { break };
            ids.push(token);
            tokens.push(token);
        }
        tokens
    }
}

/// Never asked: a scenario that wants it is refused.
#[cfg(not(feature = "story"))]
pub(crate) fn reference(_: &Scenario) -> impl Fn(&GenerationRequest) -> Vec<u32> + use<> {
    |_| Vec::new()
}
