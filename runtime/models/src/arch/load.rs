//! Brings tensors into memory, one at a time, asking in between whether to give up.

use candle_core::Tensor;
use mesh_core::ports::{ModelError, Progress};

use super::{Part, Place, tensor_name};
use crate::compute::Compute;
use crate::files::{Fault, Stored, TensorEntry, Weights};
use crate::format::Format;
use crate::linear::Linear;

/// Loads parts of one model and reports how far it is.
pub(crate) struct Loader<'a> {
    cx: &'a Compute,
    weights: &'a Weights,
    progress: &'a dyn Progress,
    done_bytes: u64,
    all_bytes: u64,
}

/// Loads the parts of one block.
pub(crate) struct BlockLoader<'l, 'a> {
    loader: &'l mut Loader<'a>,
    layer: u16,
    parts: Vec<Part>,
}

impl<'a> Loader<'a> {
    /// A loader that will read `all_bytes` bytes, as far as it is known.
    pub(crate) fn new(cx: &'a Compute, weights: &'a Weights, progress: &'a dyn Progress, all_bytes: u64) -> Self {
        Self { cx, weights, progress, done_bytes: 0, all_bytes }
    }

    /// The parts of a layer, by name.
    pub(super) fn block(&mut self, layer: u16, parts: Vec<Part>) -> BlockLoader<'_, 'a> {
        BlockLoader { loader: self, layer, parts }
    }

    /// A matrix with its bias.
    pub(crate) fn matrix(&mut self, place: Place, part: Part) -> Result<Linear, ModelError> {
        let Part::Matrix { name, rows, cols, bias } = part else { unreachable!("{part:?} is asked for as a matrix") };
        let bias = if bias { Some(self.floats(place, name, "bias", &[rows as u64])?) } else { None };
        let entry = self.entry(place, name, "weight", &[rows as u64, cols as u64])?;
        let format = usable(self.weights, &tensor_name(self.weights.kind(), place, name, "weight"), entry)?;
        let bytes = self.read(entry)?;
        Linear::from_file_bytes(self.cx, format, rows, cols, &bytes, bias).map_err(|error| at(self.weights.file_of(entry), name, error))
    }

    /// A vector, as singles on the device.
    pub(crate) fn vector(&mut self, place: Place, part: Part) -> Result<Tensor, ModelError> {
        let Part::Vector { name, len } = part else { unreachable!("{part:?} is asked for as a vector") };
        let values = self.floats(place, name, "weight", &[len as u64])?;
        let on_device = |error: candle_core::Error| ModelError::System(format!("the device did not take {name:?}: {error}"));
        Tensor::from_vec(values, len, self.cx.device()).map_err(on_device)
    }

    /// Numbers of a tensor that is stored as floats.
    pub(super) fn floats(&mut self, place: Place, name: &str, field: &str, shape: &[u64]) -> Result<Vec<f32>, ModelError> {
        let entry = self.entry(place, name, field, shape)?;
        let full_name = tensor_name(self.weights.kind(), place, name, field);
        let format = usable(self.weights, &full_name, entry)?;
        let bytes = self.read(entry)?;
        match format {
            Format::F32 => Ok(bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect()),
            Format::F16 => Ok(bytes.as_chunks().0.iter().map(|two| half::f16::from_le_bytes(*two).to_f32()).collect()),
            Format::BF16 => Ok(bytes.as_chunks().0.iter().map(|two| half::bf16::from_le_bytes(*two).to_f32()).collect()),
            other => {
                let cause = format!("tensor {full_name:?} is stored as {other}, but vectors must be F32, F16 or BF16");
                Err(Fault::Unsupported(cause).of(self.weights.file_of(entry)))
            }
        }
    }

    /// Whether the files have a tensor.
    pub(super) fn has(&self, place: Place, name: &str, field: &str) -> bool {
        self.weights.tensors().contains_key(&tensor_name(self.weights.kind(), place, name, field))
    }

    fn entry(&self, place: Place, name: &str, field: &str, shape: &[u64]) -> Result<&'a TensorEntry, ModelError> {
        find(self.weights, &tensor_name(self.weights.kind(), place, name, field), shape)
    }

    fn read(&mut self, entry: &TensorEntry) -> Result<std::borrow::Cow<'a, [u8]>, ModelError> {
        if self.progress.give_up() {
            return Err(ModelError::GivenUp);
        }
        let bytes = self.weights.read(entry)?;
        self.done_bytes += entry.bytes;
        self.progress.loaded(self.done_bytes, self.all_bytes.max(self.done_bytes));
        Ok(bytes)
    }
}

impl BlockLoader<'_, '_> {
    pub(super) fn matrix(&mut self, name: &str) -> Result<Linear, ModelError> {
        self.loader.matrix(Place::Layer(self.layer), self.part(name))
    }

    pub(super) fn vector(&mut self, name: &str) -> Result<Tensor, ModelError> {
        self.loader.vector(Place::Layer(self.layer), self.part(name))
    }

    fn part(&self, name: &str) -> Part {
        let part = self.parts.iter().find(|part| part.name() == name);
        *part.unwrap_or_else(|| unreachable!("{name:?} is not among the parts that its architecture lists"))
    }
}

/// A tensor that must be there, with this shape.
pub(crate) fn find<'w>(weights: &'w Weights, name: &str, shape: &[u64]) -> Result<&'w TensorEntry, ModelError> {
    let Some(entry) = weights.tensors().get(name) else {
        return Err(Fault::Damaged(format!("there is no tensor {name:?}")).of(weights.name()));
    };
    if entry.shape != shape {
        let cause = format!("tensor {name:?} has the shape {:?}, but the configuration asks for {shape:?}", entry.shape);
        return Err(Fault::Damaged(cause).of(weights.file_of(entry)));
    }
    Ok(entry)
}

/// The format of a tensor, if it is one that can be computed with.
pub(crate) fn usable(weights: &Weights, name: &str, entry: &TensorEntry) -> Result<Format, ModelError> {
    match &entry.stored {
        Stored::Usable(format) => Ok(*format),
        Stored::Unusable(other) => {
            let usable = Format::ALL.map(Format::name).join(", ");
            let cause = format!("tensor {name:?} is stored as {other}, which this version cannot compute with. Usable are {usable}");
            Err(Fault::Unsupported(cause).of(weights.file_of(entry)))
        }
    }
}

/// The same error, saying where.
fn at(file: &str, name: &str, error: ModelError) -> ModelError {
    let with = |cause: String| format!("{file}, {name}: {cause}");
    match error {
        ModelError::NotFound(cause) => ModelError::NotFound(with(cause)),
        ModelError::Damaged(cause) => ModelError::Damaged(with(cause)),
        ModelError::Unsupported(cause) => ModelError::Unsupported(with(cause)),
        ModelError::Memory(cause) => ModelError::Memory(with(cause)),
        ModelError::System(cause) => ModelError::System(with(cause)),
        ModelError::GivenUp => ModelError::GivenUp,
    }
}
