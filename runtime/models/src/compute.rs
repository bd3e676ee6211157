//! What computes: a device, the threads beside it, and which instruction set the CPU kernels use.
//!
//! Every level gives the same bits (N2 in the design: one written order of operations per output element), so a level
//! is a matter of speed alone.

use std::sync::Arc;

use candle_core::Device;

use crate::pool::Pool;

/// An instruction set that CPU kernels are written for.
///
/// Outside this crate a level other than [`Level::Portable`] comes from [`Level::best`] or [`Level::usable`] only, so
/// whoever holds one may run its instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// Plain Rust.
    Portable,
    /// x86-64 with AVX2, FMA and F16C.
    #[non_exhaustive]
    Avx2,
}

impl Level {
    /// The levels that this machine can run, slowest first.
    #[must_use]
    pub fn usable() -> Vec<Self> {
        [Self::Portable, Self::Avx2].into_iter().filter(|level| level.is_usable()).collect()
    }

    /// The fastest level here, or the one that the environment variable `MESH_CPU_LEVEL` names (`portable`, `avx2`), if
    /// this machine can run it. Another value is ignored with a warning.
    #[must_use]
    pub fn best() -> Self {
        let best = if Self::Avx2.is_usable() { Self::Avx2 } else { Self::Portable };
        match std::env::var("MESH_CPU_LEVEL") {
            Err(_) => best,
            Ok(name) => Self::usable().into_iter().find(|level| level.name() == name).unwrap_or_else(|| {
                tracing::warn!(name, using = best.name(), "MESH_CPU_LEVEL names no level that this machine can run");
                best
            }),
        }
    }

    /// For people and settings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
        }
    }

    fn is_usable(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c"),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 => false,
        }
    }
}

/// A device, the threads of one engine, and the CPU kernels' level. Cheap to clone; clones share the threads.
#[derive(Clone, Debug)]
pub struct Compute {
    device: Device,
    pool: Arc<Pool>,
    level: Level,
}

impl Compute {
    /// The CPU, with so many threads (the caller's included) and the best level.
    #[must_use]
    pub fn cpu(threads: usize) -> Self {
        Self::with_level(threads, Level::best())
    }

    /// The CPU at one level; [`Level::Portable`] if this machine cannot run it.
    #[must_use]
    pub fn with_level(threads: usize, level: Level) -> Self {
        let level = if level.is_usable() { level } else { Level::Portable };
        Self { device: Device::Cpu, pool: Arc::new(Pool::new(threads)), level }
    }

    /// Another device. The threads serve what stays on the CPU, as sampling does.
    #[must_use]
    pub fn on(device: Device, threads: usize) -> Self {
        Self { device, ..Self::cpu(threads) }
    }

    /// Where tensors live.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The engine's threads.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The CPU kernels' instruction set: one that this machine has.
    #[must_use]
    pub fn level(&self) -> Level {
        self.level
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portable_is_always_usable_and_comes_first() {
        assert_eq!(Level::usable().first(), Some(&Level::Portable));
    }

    #[test]
    fn a_compute_has_at_least_its_caller() {
        let cx = Compute::with_level(0, Level::Portable);
        assert_eq!((cx.pool().threads(), cx.level()), (1, Level::Portable));
        assert!(cx.device().is_cpu());
    }
}
