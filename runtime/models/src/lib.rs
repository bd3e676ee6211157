//! Models on candle: weight files, architectures, KV cache, kernels, sampler, tokenizers and text.
