//! What can go wrong with text, and whose turn it is then.

/// Why text could not be made into ids, or messages into a prompt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The tokenizer's files are missing or damaged. Names the file and the cause: fetch the model again.
    #[error("{0}")]
    Damaged(String),
    /// A kind of tokenizer, decoder or setting that this version does not know. Names it and what is known.
    #[error("{0}")]
    Unsupported(String),
    /// The model has no chat template: use plain completions, or put a `chat_template.jinja` beside the weights.
    #[error(
        "this model has no chat template, so it cannot answer chat messages: use /v1/completions, or put a chat_template.jinja beside its files"
    )]
    NoChatTemplate,
    /// The chat template refused the messages, in its own words (F96). The client's to change (HTTP 400).
    #[error("{0}")]
    Refused(String),
    /// A field of the request is not what it may be: messages, tools, chat_template_kwargs. The client's to change (HTTP 400).
    #[error("{0}")]
    Messages(String),
    /// The chat template itself fails: with its line and the cause.
    #[error("the model's chat template failed: {0}")]
    Template(String),
    /// The text could not be encoded: longer than [`super::TEXT_BYTES_MAX`], or the tokenizer gave up on it.
    #[error("{0}")]
    Encode(String),
}

impl TextError {
    /// Whether the client can help it by asking differently (HTTP 400), rather than whoever looks after the model (500).
    #[must_use]
    pub const fn is_clients(&self) -> bool {
        matches!(self, Self::NoChatTemplate | Self::Refused(_) | Self::Messages(_) | Self::Encode(_))
    }
}
