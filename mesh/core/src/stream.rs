//! The owner's side of one generation.

/// Bounds and deadlines of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Every stage answers an `Open` within this.
    pub open_ms: u64,
    /// A token comes within this after the last one (or a grant that ended a pause).
    pub token_ms: u64,
    /// What each prompt token adds to the first one's deadline.
    pub prompt_token_ms: u64,
    /// Positions beyond what the client took that stages may compute (R5).
    pub grant: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { open_ms: 3_000, token_ms: 30_000, prompt_token_ms: 50, grant: 32 }
    }
}
