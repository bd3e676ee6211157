//! Layers in memory, and the caches of the streams that pass through them: the `Engine` port.
//!
//! A step gathers the rows of many streams into one (rows, hidden) tensor, sends it through the blocks, and at the last
//! layer makes logits only of the rows that are to be sampled. The parts below compute each row by itself, so neither the
//! batch nor the chunks show in the numbers (P2). Hidden states are f32 at every boundary (N3).

mod caches;
mod room;
mod stack;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use candle_core::{Device, Tensor};
use mesh_core::ids::StreamId;
use mesh_core::model::{Layers, ModelSheet};
use mesh_core::ports::{CacheFull, Engine, EngineOptions, ModelError, Progress, Sampled, Step, StepError, StepInput, StepRow};

use crate::arch::{Loader, Pass, divisors};
use crate::attend::Span;
use crate::compute::Compute;
use crate::config::Config;
use crate::kv::KvCache;
use crate::model_files::{ModelFiles, Origin};
use crate::rope::{Rope, RopeShape};
use crate::sampler;
use crate::sheet::sheet_of;
use crate::values::with_values;

use caches::{Caches, Held};
use room::available_bytes;
use stack::Stack;

/// A run of layers of one model.
pub struct LayerEngine {
    cx: Compute,
    origin: Origin,
    sheet: ModelSheet,
    config: Config,
    rope: Rope,
    stack: Stack,
    caches: Caches,
}

impl LayerEngine {
    /// Loads `layers` of a model whose sheet was made from the same files.
    ///
    /// # Errors
    /// Layers that the model does not have, not enough memory (with numbers), damaged files, or told to give up.
    pub fn load(
        cx: Compute,
        files: &ModelFiles,
        sheet: ModelSheet,
        layers: Layers,
        options: EngineOptions,
        progress: &dyn Progress,
    ) -> Result<Self, ModelError> {
        let config = files.config.clone();
        let mut loader = Loader::new(&cx, &files.weights, progress, 0);
        let shape = RopeShape { divisors: divisors(&mut loader, &config)?, context: options.context, ..config.rope.clone() };
        let rope = Rope::new(&shape).map_err(|error| ModelError::Damaged(format!("{}: {error}", files.weights.name())))?;
        let caches = Caches::new(&config, options, cx.device().clone());
        let mut engine = Self { cx, origin: files.origin.clone(), sheet, config, rope, stack: Stack::default(), caches };
        engine.check_layers(layers)?;
        engine.fill(files, layers, progress)?;
        engine.caches.reshape(layers);
        Ok(engine)
    }

    /// Loads what is missing of `layers` and drops the rest.
    fn fill(&mut self, files: &ModelFiles, layers: Layers, progress: &dyn Progress) -> Result<(), ModelError> {
        self.stack.keep(layers, &self.config);
        let need = self.stack.missing_bytes(layers, &self.sheet);
        if let Some(free) = available_bytes().filter(|free| *free < need) {
            let (name, Layers { first, end }) = (&self.sheet.name, layers);
            return Err(ModelError::Memory(format!(
                "layers {first}..{end} of {name} need {need} bytes of memory, but only {free} are available now: end other programs, or lend less memory so that this node gets fewer layers"
            )));
        }
        let mut loader = Loader::new(&self.cx, &files.weights, progress, need);
        self.stack.fill(layers, &self.config, &mut loader)
    }

    fn check_layers(&self, layers: Layers) -> Result<(), ModelError> {
        let count = self.sheet.layer_count();
        if layers.count() == 0 || layers.end > count {
            let (name, Layers { first, end }) = (&self.sheet.name, layers);
            return Err(ModelError::NotFound(format!("{name} has layers 0..{count}, and not {first}..{end}: plan it again")));
        }
        Ok(())
    }

    /// Whether this step makes sense for what is held. Nothing is changed before this is settled. Gives the number of rows.
    fn check(&self, rows: &[StepRow<'_>], input: &StepInput<'_>) -> Result<usize, StepError> {
        let failed = |why: String| Err(StepError::Failed(why));
        let count: usize = rows.iter().map(|row| row.count as usize).sum();
        let width = self.config.hidden;
        let given = match input {
            StepInput::Tokens(ids) if self.stack.embed.is_some() => ids.len(),
            StepInput::Hidden(segments) if self.stack.embed.is_none() => {
                let values: usize = segments.iter().map(|segment| segment.len()).sum();
                if !values.is_multiple_of(width) {
                    return failed(format!("{values} values are no whole number of hidden states of {width}"));
                }
                values / width
            }
            _ => return failed(format!("layers {:?} were given the wrong kind of input", self.stack.layers)),
        };
        if count == 0 || count != given || rows.iter().any(|row| row.count == 0) {
            return failed(format!("{} streams with {count} positions, but input for {given}", rows.len()));
        }
        Ok(count)
    }

    /// Runs `compute` on the caches of these rows, which are put back afterwards: as they became, as they were if it gave
    /// up or failed, and not at all if it panicked, since they may be half-written then. The layers stay in any case.
    fn with_caches<R>(
        &mut self,
        rows: &[StepRow<'_>],
        compute: impl FnOnce(&Self, &mut [Held]) -> Result<R, Stopped>,
    ) -> Result<R, StepError> {
        let mut held = self.caches.take(rows).map_err(StepError::Failed)?;
        let outcome = catch_unwind(AssertUnwindSafe(|| compute(self, &mut held)));
        let outcome = outcome.map_err(|panic| {
            let why = panic_text(panic.as_ref());
            tracing::error!(model = self.sheet.name, layers = ?self.stack.layers, why, "a step panicked; its streams' caches are dropped");
            StepError::Failed(format!("the engine panicked: {why}"))
        })?;
        if outcome.is_err() {
            held.iter_mut().zip(rows).for_each(|(held, row)| held.cache.truncate(row.first));
        }
        self.caches.put_back(held);
        outcome.map_err(|stopped| match stopped {
            Stopped::GivenUp => StepError::GivenUp,
            Stopped::Failed(error) => StepError::Failed(error.to_string()),
        })
    }

    /// Hidden states (rows, hidden) after the last held layer. If it stops early, caches may be ahead of their streams.
    fn pass(&self, rows: &[StepRow<'_>], input: &StepInput<'_>, give_up: &AtomicBool, held: &mut [Held]) -> Result<Tensor, Stopped> {
        let positions: Vec<u32> = rows.iter().flat_map(|row| row.first..row.first + row.count).collect();
        let spans: Vec<Span> = rows.iter().map(|row| Span { first: row.first, count: row.count }).collect();
        let mut caches: Vec<&mut KvCache> = held.iter_mut().map(|held| &mut held.cache).collect();
        let mut pass = Pass { layer: 0, positions: &positions, spans: &spans, caches: &mut caches, rope: &self.rope };
        go_on(give_up)?;
        let mut x = self.input(input, positions.len())?; // (rows, hidden)
        for (layer, block) in (self.stack.layers.first..).zip(&self.stack.blocks) {
            go_on(give_up)?;
            pass.layer = layer;
            x = block.forward(&self.cx, &x, &mut pass)?;
        }
        go_on(give_up)?;
        Ok(x)
    }

    fn input(&self, input: &StepInput<'_>, rows: usize) -> candle_core::Result<Tensor> {
        match (input, &self.stack.embed) {
            (StepInput::Tokens(ids), Some(embed)) => embed.lookup(&self.cx, ids),
            (StepInput::Hidden(segments), _) => Tensor::from_vec(segments.concat(), (rows, self.config.hidden), self.cx.device()),
            (StepInput::Tokens(_), None) => candle_core::bail!("token ids, but no embedding"),
        }
    }

    /// Final norm, head and choice, for the rows that want one.
    fn sample(&self, rows: &[StepRow<'_>], x: &Tensor) -> Result<Vec<Sampled>, Stopped> {
        let mut end = 0_u32;
        let mut wanted = Vec::new();
        for row in rows {
            end += row.count;
            wanted.extend(row.sample.as_ref().map(|how| (row, how, end - 1)));
        }
        let (Some(head), false) = (&self.stack.head, wanted.is_empty()) else { return Ok(Vec::new()) };
        let indices: Vec<u32> = wanted.iter().map(|(.., index)| *index).collect();
        let last = x.index_select(&Tensor::from_vec(indices, wanted.len(), self.cx.device())?, 0)?; // (wanted, hidden)
        let logits = head.forward(&self.cx, &last)?.to_device(&Device::Cpu)?; // (wanted, vocabulary)
        let sampled = with_values(&logits, |logits| {
            let each = wanted.iter().zip(logits.chunks_exact(self.config.vocabulary));
            let chosen = each.map(|((row, how, _), logits)| {
                let position = row.first + row.count;
                let (token, logprobs) = sampler::choose(logits, how, position);
                Sampled { stream: row.stream, position, token, logprobs }
            });
            Ok(chosen.collect())
        })?;
        Ok(sampled)
    }

    /// Hidden states after the last held layer, of all rows. A running engine has [`Engine::step`]; this shows the numbers,
    /// for tests and for comparison with other implementations.
    ///
    /// # Errors
    /// As [`Engine::step`].
    pub fn hidden(&mut self, rows: &[StepRow<'_>], input: &StepInput<'_>) -> Result<Vec<f32>, StepError> {
        self.check(rows, input)?;
        self.with_caches(rows, |engine, held| {
            let x = engine.pass(rows, input, &AtomicBool::new(false), held)?;
            Ok(with_values(&x.to_device(&Device::Cpu)?, |x| Ok(x.to_vec()))?)
        })
    }

    /// Logits (rows, vocabulary) of hidden states (rows, hidden) after the last layer. As [`LayerEngine::hidden`].
    ///
    /// # Errors
    /// The last layer is not held, or these are no whole number of states.
    pub fn logits(&self, hidden: &[f32]) -> Result<Vec<f32>, StepError> {
        let failed = |error: candle_core::Error| StepError::Failed(error.to_string());
        let Some(head) = &self.stack.head else { return Err(StepError::Failed("the last layer is not held".into())) };
        let shape = (hidden.len() / self.config.hidden, self.config.hidden);
        let x = Tensor::from_slice(hidden, shape, self.cx.device()).map_err(failed)?;
        let logits = head.forward(&self.cx, &x).and_then(|logits| logits.to_device(&Device::Cpu)).map_err(failed)?;
        with_values(&logits, |logits| Ok(logits.to_vec())).map_err(failed)
    }
}

impl Engine for LayerEngine {
    fn layers(&self) -> Layers {
        self.stack.layers
    }

    fn reshape(&mut self, layers: Layers, progress: &dyn Progress) -> Result<(), ModelError> {
        self.check_layers(layers)?;
        if self.stack.is_whole(layers, &self.config) {
            return Ok(());
        }
        let files = ModelFiles::open(&self.origin)?;
        if sheet_of(&files)?.digest != self.sheet.digest {
            let cause = format!("the files of {} have changed since it was loaded: deploy the model again", self.sheet.name);
            return Err(ModelError::Damaged(cause));
        }
        let filled = self.fill(&files, layers, progress);
        self.caches.reshape(self.stack.layers);
        filled
    }

    fn open(&mut self, stream: StreamId, keep: u32, positions_max: u32) -> Result<u32, CacheFull> {
        self.caches.open(stream, keep, positions_max)
    }

    fn close(&mut self, stream: StreamId) {
        self.caches.close(stream);
    }

    fn kv_bytes(&self) -> u64 {
        self.caches.bytes()
    }

    fn limit_kv_bytes(&mut self, kv_bytes_max: u64) {
        self.caches.limit(kv_bytes_max);
    }

    fn step(&mut self, step: Step<'_>) -> Result<Vec<Sampled>, StepError> {
        let Step { rows, input, output, give_up } = step;
        let count = self.check(rows, &input)?;
        let due = if self.stack.head.is_some() { 0 } else { count * self.config.hidden };
        if output.len() != due {
            return Err(StepError::Failed(format!("room for {} values of output, {due} are due", output.len())));
        }
        self.with_caches(rows, |engine, held| {
            let x = engine.pass(rows, &input, give_up, held)?;
            if engine.stack.head.is_some() {
                return engine.sample(rows, &x);
            }
            with_values(&x.to_device(&Device::Cpu)?, |x| {
                output.copy_from_slice(x);
                Ok(())
            })?;
            Ok(Vec::new())
        })
    }
}

/// Why a pass ended early.
enum Stopped {
    GivenUp,
    Failed(candle_core::Error),
}

impl From<candle_core::Error> for Stopped {
    fn from(error: candle_core::Error) -> Self {
        Self::Failed(error)
    }
}

fn go_on(give_up: &AtomicBool) -> Result<(), Stopped> {
    if give_up.load(Ordering::Acquire) { Err(Stopped::GivenUp) } else { Ok(()) }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

#[cfg(test)]
mod tests;
