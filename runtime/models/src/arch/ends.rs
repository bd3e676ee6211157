//! What stands before and behind the blocks: the embedding, and the final norm with the head.

use std::sync::Arc;

use candle_core::{Result, Tensor};
use mesh_core::ports::ModelError;

use super::load::Loader;
use super::{Place, embedding_part, head_parts};
use crate::compute::Compute;
use crate::config::Config;
use crate::linear::Linear;
use crate::ops::rms_norm;

/// Makes logits of hidden states.
pub(crate) struct Head {
    norm: Tensor,
    lm_head: Arc<Linear>,
    eps: f32,
}

impl Head {
    /// The head; `tied` is the embedding if it is the same matrix and in memory already.
    pub(crate) fn load(loader: &mut Loader<'_>, config: &Config, tied: Option<&Arc<Linear>>) -> std::result::Result<Self, ModelError> {
        let [norm, head] = head_parts(config);
        let norm = loader.vector(Place::Ends, norm)?;
        let lm_head = match tied.filter(|_| config.tied) {
            Some(embedding) => Arc::clone(embedding),
            None => Arc::new(loader.matrix(Place::Ends, head)?),
        };
        Ok(Self { norm, lm_head, eps: config.eps })
    }

    /// Logits (rows, vocabulary) of the hidden states after the last block (rows, hidden).
    pub(crate) fn forward(&self, cx: &Compute, x: &Tensor) -> Result<Tensor> {
        self.lm_head.forward(cx, &rms_norm(cx, x, &self.norm, self.eps)?)
    }

    /// The matrix, which is the embedding's where the head is tied.
    pub(crate) fn lm_head(&self) -> &Arc<Linear> {
        &self.lm_head
    }
}

/// The embedding; `tied` is the head if it is the same matrix and in memory already.
pub(crate) fn embedding(
    loader: &mut Loader<'_>,
    config: &Config,
    tied: Option<&Arc<Linear>>,
) -> std::result::Result<Arc<Linear>, ModelError> {
    match tied.filter(|_| config.tied) {
        Some(head) => Ok(Arc::clone(head)),
        None => Ok(Arc::new(loader.matrix(Place::Ends, embedding_part(config))?)),
    }
}

/// Frequency divisors of rope, where a GGUF file brings them as a tensor.
pub(crate) fn divisors(loader: &mut Loader<'_>, config: &Config) -> std::result::Result<Option<Vec<f32>>, ModelError> {
    match loader.has(Place::Ends, "rope_freqs", "weight") {
        true => loader.floats(Place::Ends, "rope_freqs", "weight", &[(config.rope.dims / 2) as u64]).map(Some),
        false => Ok(None),
    }
}
