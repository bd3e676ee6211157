//! The text side of a model: tokenizer, chat template, end tokens, and the pipeline from ids back to text.
//!
//! [`TextModel`] is read once from a Hugging Face directory or a GGUF file's metadata and shared. Text goes in through
//! [`TextModel::render_chat`] and [`TextModel::encode`]; ids come out through a [`TextPipeline`], the same for a stream and
//! for a whole answer, and pure, so that an answer can be made again from its ids.
//!
//! All of it runs on foreign data: files that came with weights, messages of clients. Sizes are bounded, and nothing panics.

mod chat;
mod codec;
mod dates;
mod decoder;
mod ends;
mod error;
mod from_gguf;
mod hf;
mod jinja;
mod model;
mod pipeline;
mod python;
mod splits;
mod spm;
mod stops;
mod template;
mod tokens;
mod utf8;

pub use chat::ChatRequest;
pub use codec::TEXT_BYTES_MAX;
pub use error::TextError;
pub use model::TextModel;
pub use pipeline::{Piece, Start, TextPipeline};
