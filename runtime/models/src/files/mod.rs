//! Weight files: GGUF, and safetensors with or without an index.
//!
//! Headers are parsed with every count and length held against the file's size first, so that a damaged or hostile file
//! costs an error and never memory. Tensors are read one at a time, only those that are asked for, and the bytes read are
//! counted (a stage must not read the layers of others). Files are read, not mapped: one that is cut while we read it is
//! then an error and not a signal, and its pages do not count as our memory.

mod fault;
pub mod gguf;
mod safetensors;
mod source;
mod weights;

pub use fault::Fault;
pub use source::Source;
pub(crate) use weights::read_json;
pub use weights::{Kind, Stored, TensorEntry, Weights};
