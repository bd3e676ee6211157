//! Models on candle: weight files, architectures, KV cache, kernels, sampler, tokenizers and text.
//!
//! This room knows tensors, files and text. It must not know nodes, links or plans beyond the shared types of
//! `mesh-core`, whose ports `Engine` and `Models` it fills.

pub mod compute;
pub mod pool;
