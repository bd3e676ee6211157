//! Attention on a GPU with candle's kernels, in straightforward form.

use candle_core::{DType, Device, Result, Tensor};

use super::{Attention, Span};
use crate::kv::KvCache;

/// Positions at once, so that the score matrix of a long prompt stays small.
const POSITIONS_AT_ONCE: usize = 256;

/// As [`super::attend`]; shapes are checked.
pub(super) fn attend(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    caches: &mut [&mut KvCache],
    layer: u16,
    spans: &[Span],
    how: &Attention,
) -> Result<Tensor> {
    let mut outs = Vec::new();
    let mut row = 0;
    for (cache, span) in caches.iter_mut().zip(spans).filter(|(_, span)| span.count > 0) {
        let count = span.count as usize;
        cache.append_tensors(layer, &k.narrow(0, row, count)?, &v.narrow(0, row, count)?)?;
        let (keys, values) = cache.tensors(layer)?;
        outs.push(attend_span(&q.narrow(0, row, count)?, &keys, &values, span.first, how)?);
        row += count;
    }
    if outs.is_empty() {
        let (_, heads, dim) = q.dims3()?;
        return Tensor::zeros((0, heads * dim), DType::F32, q.device());
    }
    Tensor::cat(&outs, 0)
}

/// One stream: q (count, heads, dim) at positions from `first`, keys and values (positions, kv heads, dim).
fn attend_span(q: &Tensor, keys: &Tensor, values: &Tensor, first: u32, how: &Attention) -> Result<Tensor> {
    let (count, heads, dim) = q.dims3()?;
    let (positions, kv_heads, _) = keys.dims3()?;
    let keys = keys.permute((1, 2, 0))?.contiguous()?; // (kv_heads, dim, positions)
    let values = values.transpose(0, 1)?.contiguous()?; // (kv_heads, positions, dim)
    let mut outs = Vec::new();
    for from in (0..count).step_by(POSITIONS_AT_ONCE) {
        let rows = POSITIONS_AT_ONCE.min(count - from);
        let q = q.narrow(0, from, rows)?.transpose(0, 1)?.contiguous()?.reshape((kv_heads, heads / kv_heads * rows, dim))?;
        let scores = (q.matmul(&keys)? * f64::from(how.scale))?.reshape((heads, rows, positions))?;
        let mask = mask(first as usize + from, rows, positions, how.window, q.device())?;
        let mut scores = scores.broadcast_add(&mask)?;
        if let Some(sinks) = &how.sinks {
            let sinks = Tensor::from_slice(sinks, (heads, 1, 1), q.device())?.broadcast_as((heads, rows, 1))?;
            scores = Tensor::cat(&[&scores, &sinks.contiguous()?], 2)?;
        }
        let weights = candle_nn::ops::softmax_last_dim(&scores)?.narrow(2, 0, positions)?.contiguous()?;
        let out = weights.reshape((kv_heads, heads / kv_heads * rows, positions))?.matmul(&values)?;
        outs.push(out.reshape((heads, rows, dim))?.transpose(0, 1)?.contiguous()?.reshape((rows, heads * dim))?);
    }
    Tensor::cat(&outs, 0)
}

/// 0 where row r at position `first + r` sees a key, else minus infinity; (1, rows, positions).
fn mask(first: usize, rows: usize, positions: usize, window: Option<u32>, device: &Device) -> Result<Tensor> {
    let values: Vec<f32> = (first..first + rows)
        .flat_map(|i| {
            (0..positions).map(move |j| {
                let seen = j <= i && window.is_none_or(|window| i - j < window as usize);
                if seen { 0.0 } else { f32::NEG_INFINITY }
            })
        })
        .collect();
    Tensor::from_vec(values, (1, rows, positions), device)
}

#[cfg(test)]
pub(super) fn attend_span_for_tests(q: &Tensor, keys: &Tensor, values: &Tensor, first: u32, how: &Attention) -> Result<Tensor> {
    attend_span(q, keys, values, first, how)
}
