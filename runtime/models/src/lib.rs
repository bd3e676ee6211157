//! Models on candle: weight files, architectures, KV cache, kernels, sampler, tokenizers and text.
//!
//! This room knows tensors, files and text. It must not know nodes, links or plans beyond the shared types of
//! `mesh-core`, whose ports `Engine` and `Models` it fills.

mod arch;
pub mod attend;
pub mod builtin;
pub mod compute;
pub mod config;
pub mod engine;
pub mod files;
pub mod format;
mod kernels;
pub mod kv;
pub mod library;
pub mod linear;
pub mod math;
pub mod model_files;
pub mod ops;
pub mod pool;
pub mod probe;
pub mod rope;
pub mod sampler;
pub mod sheet;
pub mod text;
mod values;
