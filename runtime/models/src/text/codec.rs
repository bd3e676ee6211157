//! Text into ids: the `tokenizers` crate for everything with merges or its own rules, our own code for GGUF's scores.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokenizers::models::ModelWrapper;
use tokenizers::{AddedToken, Tokenizer};

use super::error::TextError;
use super::spm::Spm;

/// The longest text that is encoded in one go: 16 MiB, some four million tokens, more than any context.
pub const TEXT_BYTES_MAX: usize = 16 << 20;

/// How texts become ids.
#[derive(Debug)]
pub(super) enum Codec {
    /// A `tokenizer.json`, or what was built from a GGUF file to equal one.
    Tokenizer(Box<Tokenizer>),
    /// A SentencePiece vocabulary with scores, from a GGUF file.
    Scores(Spm),
}

impl Codec {
    /// The ids of `text`. `add_special` lets the tokenizer's own post-processor put its tokens around them.
    pub(super) fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TextError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(TextError::Encode(format!(
                "a text of {} bytes is longer than the {TEXT_BYTES_MAX} that can be encoded",
                text.len()
            )));
        }
        match self {
            Self::Scores(spm) => Ok(spm.encode(text)),
            Self::Tokenizer(tokenizer) => {
                let encoding = guarded("encode", || tokenizer.encode_fast(text, add_special))
                    .map_err(|cause| TextError::Encode(format!("the tokenizer cannot encode this text: {cause}")))?;
                Ok(encoding.get_ids().to_vec())
            }
        }
    }
}

/// Reads a `tokenizer.json`. What would make encoding lossy or random is switched off: truncation, padding, dropout.
pub(super) fn read_tokenizer(json: &[u8]) -> Result<Tokenizer, TextError> {
    let mut tokenizer = guarded("read", || Tokenizer::from_bytes(json))
        .map_err(|cause| TextError::Damaged(format!("tokenizer.json cannot be read: {cause}; fetch the file again")))?;
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None).map_err(|cause| TextError::Damaged(format!("tokenizer.json: {cause}")))?;
    if let ModelWrapper::BPE(model) = tokenizer.get_model()
        && model.dropout.is_some()
    {
        let mut model = model.clone();
        model.dropout = None;
        tokenizer.with_model(model);
    }
    Ok(tokenizer)
}

/// Makes tokens be found in texts as they read. All at once, since the search structure is built anew at each call.
pub(super) fn add_tokens(tokenizer: &mut Tokenizer, tokens: Vec<AddedToken>) -> Result<(), TextError> {
    if tokens.is_empty() {
        return Ok(());
    }
    guarded("extend", || tokenizer.add_tokens(tokens))
        .map(|_| ())
        .map_err(|cause| TextError::Damaged(format!("the tokenizer's special tokens cannot be used: {cause}")))
}

/// Runs code of the `tokenizers` crate on foreign data. It panics on some damaged files (a merge that is longer than any token,
/// for one); that must not end the node.
pub(super) fn guarded<T>(what: &str, run: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("the tokenizer library gave up ({what}): its data contradicts itself")),
    }
}
