//! Causal attention over the caches of many streams at once.
//!
//! The softmax runs online (Milakov and Gimelshein 2018; Dao et al. 2022) over key blocks of [`BLOCK_POSITIONS`] that begin
//! at multiples of it. Each block is computed by itself and folded into the row in block order, so the operations behind
//! one output depend on its absolute position only: not on the chunk, the batch, the threads, or who did which block.
//!
//! Canonical order (N2), for a query at position i, over the keys j that it sees (j <= i, and i - j < window if there is one):
//! 1. score(j) = fma chain over the dimensions in order, from 0, then times `scale`;
//! 2. of a block: m = the greatest score; p(j) = exp(score(j) - m); l = the sum of p in sixteen lanes by j modulo 16, lanes
//!    added 8, 4, 2, 1 apart; o = for each dimension an fma chain over its keys in order, from 0;
//! 3. fold of a block into (M, L, O), which begins as (-inf, 0, 0), or (sink, 1, 0) for a head with a sink: the one of M and
//!    m that is less is scaled by exp(it - the other), the other by 1; L = fma(L, a, l * b), O = fma(O, a, o * b);
//! 4. out = O * (1 / L).

mod blocks;
mod device;
mod tiles;

use candle_core::{Result, Tensor};

use crate::compute::Compute;
use crate::kv::{HeadShape, KvCache};
use crate::values::{tensor, with_values};

#[cfg(doc)]
use crate::kv::BLOCK_POSITIONS;

/// Positions `first..first + count` of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First position. The stream's cache holds exactly this many.
    pub first: u32,
    /// How many; may be 0.
    pub count: u32,
}

/// How a layer attends.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Times this are the products of queries and keys; often 1 / sqrt(head dim).
    pub scale: f32,
    /// A position sees itself and the `window - 1` positions before it; everything before it if `None`. Above 0.
    pub window: Option<u32>,
    /// For each head a logit that joins the softmax and carries no value (gpt-oss).
    pub sinks: Option<Vec<f32>>,
}

impl Attention {
    /// Over everything before a position, with this scale.
    #[must_use]
    pub fn full(scale: f32) -> Self {
        Self { scale, window: None, sinks: None }
    }
}

/// Appends keys and values of each span to its stream's cache for `layer`, then lets each position attend.
///
/// `q` is (rows, heads, dim), `k` and `v` are (rows, kv heads, dim), where the rows are those of `spans` one after the
/// other; `caches` has one entry for each span. Gives (rows, heads * dim). Query heads share a kv head in groups that
/// follow each other (Ainslie et al. 2023).
///
/// # Errors
/// Shapes that contradict each other, a cache that does not hold exactly the positions before its span, or a failed
/// device. Wrong shapes and positions are found before any cache is touched.
#[expect(clippy::too_many_arguments, reason = "the operands of attention; a struct of them would be built at one place")]
pub fn attend(
    cx: &Compute,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    caches: &mut [&mut KvCache],
    layer: u16,
    spans: &[Span],
    how: &Attention,
) -> Result<Tensor> {
    let shape = check(q, k, v, caches, layer, spans, how)?;
    if !cx.device().is_cpu() {
        return device::attend(q, k, v, caches, layer, spans, how);
    }
    let width = shape.kv.width();
    with_values(k, |k| {
        with_values(v, |v| {
            let mut row = 0;
            for (cache, span) in caches.iter_mut().zip(spans) {
                let of_span = row * width..(row + span.count as usize) * width;
                cache.append(layer, &k[of_span.clone()], &v[of_span]).map_err(candle_core::Error::wrap)?;
                row += span.count as usize;
            }
            Ok(())
        })
    })?;
    let out = with_values(q, |q| {
        let mut out = vec![0.0; q.len()];
        let streams: Vec<tiles::Stream<'_>> =
            caches.iter().zip(spans).map(|(cache, span)| tiles::Stream { slabs: cache.slabs(layer), span: *span }).collect();
        tiles::attend(cx, shape, q, &streams, how, &mut out);
        Ok(out)
    })?;
    tensor(out, (shape.rows, shape.kv.kv_heads * shape.group * shape.kv.dim))
}

/// Sizes of an attention.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Positions of all spans.
    rows: usize,
    /// Heads of keys and values.
    kv: HeadShape,
    /// Query heads of each kv head.
    group: usize,
}

fn check(q: &Tensor, k: &Tensor, v: &Tensor, caches: &[&mut KvCache], layer: u16, spans: &[Span], how: &Attention) -> Result<Shape> {
    let (rows, heads, dim) = q.dims3()?;
    let (_, kv_heads, _) = k.dims3()?;
    let kv = HeadShape { kv_heads, dim };
    if k.dims() != [rows, kv_heads, dim] || v.dims() != k.dims() || dim == 0 || kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        candle_core::bail!("queries {:?} do not fit keys {:?} and values {:?}", q.dims(), k.dims(), v.dims());
    }
    if spans.iter().map(|span| u64::from(span.count)).sum::<u64>() != rows as u64 || caches.len() != spans.len() {
        candle_core::bail!("{} spans with {} caches do not add up to {rows} rows", spans.len(), caches.len());
    }
    if how.window == Some(0) || how.sinks.as_ref().is_some_and(|sinks| sinks.len() != heads) {
        candle_core::bail!("a window of nothing, or not one sink for each of {heads} heads: {how:?}");
    }
    for (cache, span) in caches.iter().zip(spans) {
        if cache.heads() != kv || !cache.layers().contains(layer) {
            candle_core::bail!("a cache of {:?} with {:?} meets layer {layer} with {kv:?}", cache.layers(), cache.heads());
        }
        if cache.layer_positions(layer) != span.first || span.first.checked_add(span.count).is_none() {
            candle_core::bail!("{span:?} does not follow the {} positions of its cache", cache.layer_positions(layer));
        }
    }
    Ok(Shape { rows, kv, group: heads / kv_heads })
}

#[cfg(test)]
mod tests;
