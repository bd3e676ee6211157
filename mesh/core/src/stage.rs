//! One stage.

/// Bounds and deadlines of a stage. (Guesses where nothing else is said.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Streams that are open at once.
    pub streams_max: u32,
    /// Positions in one step.
    pub step_positions_max: u32,
    /// Positions of one stream in one step.
    pub chunk_positions_max: u32,
    /// A stream that got no row, token or grant for so long is dropped (R5).
    pub lease_ms: u64,
    /// Work that waits so long for the next stage to take rows ends its streams.
    pub credit_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { streams_max: 256, step_positions_max: 256, chunk_positions_max: 128, lease_ms: 600_000, credit_ms: 20_000 }
    }
}
