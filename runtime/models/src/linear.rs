//! A weight matrix as architectures use it: a product with a bias, and rows by number (the embedding).
//!
//! On the CPU it is ours ([`crate::format::Format`] in tiles, see `kernels.rs`); elsewhere candle's. Either way there is
//! one copy in memory, at the density of the file, which a tied output head and embedding share.

mod device;

use std::sync::Mutex;

use candle_core::{Result, Tensor};
use mesh_core::ports::ModelError;

use crate::compute::Compute;
use crate::format::Format;
use crate::kernels::{Weight, WeightError};
use crate::values;

use device::DeviceWeight;

/// A weight (rows, cols) in memory: `rows` outputs of `cols` inputs.
#[derive(Debug)]
pub struct Linear {
    store: Store,
    bias: Option<Vec<f32>>,
}

/// Where the weight is.
#[derive(Debug)]
enum Store {
    Tiles(Weight),
    Device(DeviceWeight),
}

impl Linear {
    /// Takes over a matrix in file layout, one row after the other. Repacks it once, on the threads of `cx`; `bytes` are
    /// not needed afterwards.
    ///
    /// # Errors
    /// [`ModelError::Damaged`] if bytes or bias do not fit the shape, [`ModelError::Unsupported`] if the format cannot
    /// store rows of `cols` numbers, [`ModelError::Memory`] if there is too little, [`ModelError::System`] if a GPU refuses.
    pub fn from_file_bytes(
        cx: &Compute,
        format: Format,
        rows: usize,
        cols: usize,
        bytes: &[u8],
        bias: Option<Vec<f32>>,
    ) -> std::result::Result<Self, ModelError> {
        if let Some(bias) = bias.as_ref().filter(|bias| bias.len() != rows) {
            return Err(ModelError::Damaged(format!("a bias of {} numbers for {rows} outputs: get the model anew", bias.len())));
        }
        let weight = if cx.device().is_cpu() {
            Weight::new(cx, format, rows, cols, bytes).map(Store::Tiles)
        } else {
            match format.bytes_of(rows, cols) {
                None => Err(WeightError::Shape),
                Some(due) if due != bytes.len() as u64 => Err(WeightError::Length { due }),
                Some(_) => {
                    let refused = |error| ModelError::System(format!("the device did not take a weight: {error}"));
                    Ok(Store::Device(DeviceWeight::new(cx, format, rows, cols, bytes, bias.as_deref()).map_err(refused)?))
                }
            }
        };
        let store = weight.map_err(|error| match error {
            WeightError::Shape => ModelError::Unsupported(format!(
                "a {format} matrix of {rows} rows of {cols}: rows must be multiples of {}; use another quantisation of this model",
                format.block_len()
            )),
            WeightError::Length { due } => ModelError::Damaged(format!(
                "a {format} matrix of {rows} rows of {cols} takes {due} bytes, the file has {}: get it anew",
                bytes.len()
            )),
            WeightError::Memory { bytes } => ModelError::Memory(format!("no memory for a weight of {bytes} bytes")),
        })?;
        Ok(Self { store, bias })
    }

    /// Outputs.
    #[must_use]
    pub fn rows(&self) -> usize {
        match &self.store {
            Store::Tiles(weight) => weight.rows(),
            Store::Device(weight) => weight.rows(),
        }
    }

    /// Inputs.
    #[must_use]
    pub fn cols(&self) -> usize {
        match &self.store {
            Store::Tiles(weight) => weight.cols(),
            Store::Device(weight) => weight.cols(),
        }
    }

    /// Bytes in memory, the bias included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let bias = self.bias.as_ref().map_or(0, |bias| size_of_val(bias.as_slice()));
        bias + match &self.store {
            Store::Tiles(weight) => weight.bytes(),
            Store::Device(weight) => weight.bytes(),
        }
    }

    /// `x` (m, cols) times this: (m, rows). On the CPU a row's bits do not depend on the other rows, nor on threads.
    ///
    /// # Errors
    /// If `x` has another shape, type or device.
    pub fn forward(&self, cx: &Compute, x: &Tensor) -> Result<Tensor> {
        let (columns, cols) = x.dims2()?;
        if cols != self.cols() {
            candle_core::bail!("a product of {cols} inputs with a weight that takes {}", self.cols());
        }
        match &self.store {
            Store::Device(weight) => weight.forward(x),
            Store::Tiles(weight) => {
                let mut out = vec![0.0; columns * self.rows()];
                values::with_values(x, |x| {
                    weight.multiply(cx, x, columns, self.bias.as_deref(), &mut out);
                    Ok(())
                })?;
                values::tensor(out, (columns, self.rows()))
            }
        }
    }

    /// Rows by number, as singles: (ids, cols). The bias has no part in it.
    ///
    /// # Errors
    /// If there is no such row.
    pub fn lookup(&self, cx: &Compute, ids: &[u32]) -> Result<Tensor> {
        let (rows, cols) = (self.rows(), self.cols());
        if let Some(id) = ids.iter().find(|&&id| id as usize >= rows) {
            candle_core::bail!("id {id} in a table of {rows}");
        }
        match &self.store {
            Store::Device(weight) => weight.lookup(cx, ids),
            Store::Tiles(weight) => {
                let mut out = vec![0.0; ids.len() * cols];
                if ids.len() < LOOKUP_PARALLEL || cols == 0 {
                    out.chunks_exact_mut(cols.max(1)).zip(ids).for_each(|(out, &id)| weight.row(id as usize, out));
                } else {
                    let each = ids.len().div_ceil(4 * cx.pool().threads());
                    let pieces: Vec<_> = out.chunks_mut(each * cols).zip(ids.chunks(each)).map(Mutex::new).collect();
                    cx.pool().run(pieces.len(), &|i| {
                        // A task has its piece to itself: the lock is free and not poisoned.
                        let Ok(mut piece) = pieces[i].lock() else { return };
                        let (out, ids) = &mut *piece;
                        out.chunks_exact_mut(cols).zip(ids.iter()).for_each(|(out, &id)| weight.row(id as usize, out));
                    });
                }
                values::tensor(out, (ids.len(), cols))
            }
        }
    }
}

/// Ids from which a lookup is shared out: about ten microseconds' work (estimate).
const LOOKUP_PARALLEL: usize = 8;
