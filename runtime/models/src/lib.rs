//! Models on candle: weight files, architectures, KV cache, kernels, sampler, tokenizers and text.
//!
//! This room knows tensors, files and text. It must not know nodes, links or plans beyond the shared types of
//! `mesh-core`, whose ports `Engine` and `Models` it fills.

pub mod attend;
pub mod compute;
pub mod files;
pub mod kv;
pub mod math;
pub mod ops;
pub mod pool;
pub mod rope;
pub mod sampler;
pub mod text;
mod values;
