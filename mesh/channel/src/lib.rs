//! Tensor channels: arenas, slots, credits, generations; in-process and sealed TCP.
