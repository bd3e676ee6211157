//! Rotary position embedding (Su et al. 2021): each pair of values turns by an angle that grows with the position.
//!
//! Angles are f64 products of position and frequency; their sines and cosines come from `libm`, the same on every
//! system, and are rounded to f32. A rotation is four products and two sums, each rounded, so no instruction set can
//! differ. Tables are made for [`CHUNK`] positions when one of them is first used.

use std::sync::OnceLock;

use candle_core::{Device, Result, Tensor};

use crate::compute::Compute;
use crate::values::{share_rows, tensor, with_values};

/// Which values of a head form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// i and i + dims/2: checkpoints from the Hub ("rotate half"), and most of GGUF.
    Halves,
    /// 2i and 2i + 1: GGUF files of architecture `llama`, whose query and key rows were permuted for it.
    Interleaved,
}

/// How frequencies are stretched to contexts longer than those trained on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scaling {
    /// Not at all.
    None,
    /// Each frequency divided by `factor`.
    Linear {
        /// At least 1.
        factor: f64,
    },
    /// Llama 3.1: long waves divided by `factor`, short ones kept, a linear blend between.
    Llama3 {
        /// Divides the lowest frequencies.
        factor: f64,
        /// Waves longer than `original_context / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Waves shorter than `original_context / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context that the model was trained on before the stretch.
        original_context: f64,
    },
}

/// Everything that fixes the angles.
#[derive(Clone, Debug)]
pub struct RopeShape {
    /// Leading values of a head that turn; even. The rest stays as it is.
    pub dims: usize,
    /// The base of the frequencies, often 10000 or 500000.
    pub base: f64,
    /// Stretching by formula.
    pub scaling: Scaling,
    /// Stretching by table: frequency i is divided by entry i (`rope_freqs.weight` of GGUF files), `dims / 2` of them.
    pub divisors: Option<Vec<f32>>,
    /// Pairs.
    pub pairing: Pairing,
    /// Positions at most.
    pub context: u32,
}

/// Why there can be no such embedding. A file's numbers are at fault.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RopeError {
    /// Odd or no dimensions.
    #[error("rotary dimensions must be an even number above 0, not {0}: the model's configuration is damaged")]
    Dims(usize),
    /// A table of another length.
    #[error("{got} frequency divisors for {want} frequencies: the model file is damaged")]
    Divisors {
        /// Entries there are.
        got: usize,
        /// Entries there should be.
        want: usize,
    },
    /// A base, factor or divisor that gives no finite frequency.
    #[error("rotary base, scaling or divisors give the frequency {0}: the model's configuration is damaged")]
    Frequency(f64),
}

/// Rotary embedding of one model.
#[derive(Debug)]
pub struct Rope {
    dims: usize,
    pairing: Pairing,
    context: u32,
    /// Radians a position, for each pair.
    frequencies: Vec<f64>,
    /// For each position of a chunk: the cosines of all pairs, then the sines.
    chunks: Vec<OnceLock<Box<[f32]>>>,
}

/// Positions of one table.
const CHUNK: u32 = 256;

/// Positions that a table is kept for at most, whatever context a file claims: 16 Mi, of which the empty list of tables
/// takes 1.5 MiB.
const CONTEXT_MAX: u32 = 1 << 24;

impl Rope {
    /// The embedding of a model. Cheap: tables come later.
    ///
    /// # Errors
    /// Numbers that make no embedding.
    pub fn new(shape: &RopeShape) -> std::result::Result<Self, RopeError> {
        if shape.dims == 0 || !shape.dims.is_multiple_of(2) {
            return Err(RopeError::Dims(shape.dims));
        }
        let half = shape.dims / 2;
        if let Some(divisors) = shape.divisors.as_ref().filter(|divisors| divisors.len() != half) {
            return Err(RopeError::Divisors { got: divisors.len(), want: half });
        }
        let frequencies: Vec<f64> = (0..half)
            .map(|pair| {
                let plain = 1.0 / libm::pow(shape.base, (2 * pair) as f64 / shape.dims as f64);
                let divisor = shape.divisors.as_ref().map_or(1.0, |divisors| f64::from(divisors[pair]));
                shape.scaling.apply(plain) / divisor
            })
            .collect();
        if let Some(bad) = frequencies.iter().find(|frequency| !frequency.is_finite()) {
            return Err(RopeError::Frequency(*bad));
        }
        let context = shape.context.min(CONTEXT_MAX);
        let chunks = (0..context.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect();
        Ok(Self { dims: shape.dims, pairing: shape.pairing, context, frequencies, chunks })
    }

    /// Turns x, (positions, heads, head dim), row r by position `positions[r]`.
    ///
    /// # Errors
    /// Shapes that do not fit, a position at or past the context, or a tensor that is not f32 on the device of `cx`.
    pub fn apply(&self, cx: &Compute, x: &Tensor, positions: &[u32]) -> Result<Tensor> {
        let (rows, heads, dim) = x.dims3()?;
        if rows != positions.len() || dim < self.dims {
            candle_core::bail!("{} positions and {} rotary values for {:?}", positions.len(), self.dims, x.dims());
        }
        if let Some(position) = positions.iter().find(|&&position| position >= self.context) {
            candle_core::bail!("position {position} is past the context of {}", self.context);
        }
        if !cx.device().is_cpu() {
            return self.on_device(x, positions, cx.device());
        }
        let out = with_values(x, |x| {
            let mut out = x.to_vec();
            share_rows(cx, &mut out, heads * dim, &|first, out| {
                for (row, &position) in out.chunks_exact_mut(heads * dim).zip(&positions[first..]) {
                    let (cos, sin) = self.table(position);
                    for head in row.chunks_exact_mut(dim) {
                        turn(self.pairing, &mut head[..self.dims], cos, sin);
                    }
                }
            });
            Ok(out)
        })?;
        tensor(out, x.shape())
    }

    /// Cosines and sines of one position, which must be below the context.
    fn table(&self, position: u32) -> (&[f32], &[f32]) {
        let chunk = self.chunks[(position / CHUNK) as usize].get_or_init(|| self.chunk(position - position % CHUNK));
        let at = (position % CHUNK) as usize * self.dims;
        chunk[at..at + self.dims].split_at(self.dims / 2)
    }

    fn chunk(&self, first: u32) -> Box<[f32]> {
        let mut values = Vec::with_capacity(CHUNK as usize * self.dims);
        for position in first..first + CHUNK {
            let angles = || self.frequencies.iter().map(|frequency| f64::from(position) * frequency);
            values.extend(angles().map(|angle| libm::cos(angle) as f32));
            values.extend(angles().map(|angle| libm::sin(angle) as f32));
        }
        values.into_boxed_slice()
    }

    /// The same with candle's kernels.
    fn on_device(&self, x: &Tensor, positions: &[u32], device: &Device) -> Result<Tensor> {
        let half = self.dims / 2;
        let table = |side: usize| {
            let sides = positions.iter().map(|&position| <[&[f32]; 2]>::from(self.table(position))[side]);
            Tensor::from_vec(sides.flatten().copied().collect::<Vec<f32>>(), (positions.len(), half), device)
        };
        let (cos, sin) = (table(0)?, table(1)?);
        // candle wants (batch, heads, positions, dims).
        let turning = x.narrow(2, 0, self.dims)?.transpose(0, 1)?.unsqueeze(0)?.contiguous()?;
        let turned = match self.pairing {
            Pairing::Halves => candle_nn::rotary_emb::rope(&turning, &cos, &sin)?,
            Pairing::Interleaved => candle_nn::rotary_emb::rope_i(&turning, &cos, &sin)?,
        };
        let turned = turned.squeeze(0)?.transpose(0, 1)?.contiguous()?;
        match x.dim(2)? - self.dims {
            0 => Ok(turned),
            rest => Tensor::cat(&[&turned, &x.narrow(2, self.dims, rest)?], 2),
        }
    }
}

impl Scaling {
    /// The stretched frequency, in radians a position.
    fn apply(self, frequency: f64) -> f64 {
        match self {
            Self::None => frequency,
            Self::Linear { factor } => frequency / factor,
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                let wave = 2.0 * std::f64::consts::PI / frequency;
                if wave < original_context / high_freq_factor {
                    frequency
                } else if wave > original_context / low_freq_factor {
                    frequency / factor
                } else {
                    let kept = (original_context / wave - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    (1.0 - kept) * frequency / factor + kept * frequency
                }
            }
        }
    }
}

/// Turns the pairs of one head.
fn turn(pairing: Pairing, head: &mut [f32], cos: &[f32], sin: &[f32]) {
    match pairing {
        Pairing::Halves => {
            let (first, second) = head.split_at_mut(cos.len());
            for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
            }
        }
        Pairing::Interleaved => {
            for (([a, b], cos), sin) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
                (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
            }
        }
    }
}

#[cfg(test)]
mod tests;
