//! A weight on a GPU: candle's own storage and kernels.

use std::borrow::Cow;
use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{DType, Module, Result, Tensor};

use crate::compute::Compute;
use crate::format::Format;

/// A weight in a device's memory.
#[derive(Debug)]
pub(super) struct DeviceWeight {
    store: Store,
    bias: Option<Tensor>,
    rows: usize,
    cols: usize,
    bytes: usize,
}

#[derive(Debug)]
enum Store {
    /// Floats, (rows, cols).
    Dense(Tensor),
    Quantised {
        product: QMatMul,
        table: Arc<QTensor>,
    },
}

impl DeviceWeight {
    /// Copies a matrix in file layout to the device of `cx`. The caller checked its length.
    pub fn new(cx: &Compute, format: Format, rows: usize, cols: usize, bytes: &[u8], bias: Option<&[f32]>) -> Result<Self> {
        let device = cx.device();
        let dense = |dtype| Tensor::from_raw_buffer(bytes, dtype, &[rows, cols], device).map(Store::Dense);
        let store = match format {
            Format::F32 => dense(DType::F32)?,
            Format::F16 => dense(DType::F16)?,
            Format::BF16 => dense(DType::BF16)?,
            Format::Q4_0 => quantised(cx, GgmlDType::Q4_0, rows, cols, bytes)?,
            Format::Q4_1 => quantised(cx, GgmlDType::Q4_1, rows, cols, bytes)?,
            Format::Q5_0 => quantised(cx, GgmlDType::Q5_0, rows, cols, bytes)?,
            Format::Q5_1 => quantised(cx, GgmlDType::Q5_1, rows, cols, bytes)?,
            Format::Q8_0 => quantised(cx, GgmlDType::Q8_0, rows, cols, bytes)?,
            Format::Q4_K => quantised(cx, GgmlDType::Q4K, rows, cols, bytes)?,
            Format::Q5_K => quantised(cx, GgmlDType::Q5K, rows, cols, bytes)?,
            Format::Q6_K => quantised(cx, GgmlDType::Q6K, rows, cols, bytes)?,
        };
        let bias = bias.map(|bias| Tensor::from_slice(bias, rows, device)).transpose()?;
        Ok(Self { store, bias, rows, cols, bytes: bytes.len() })
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let out = match &self.store {
            // The product is taken in the weight's own type; what leaves is f32 again, as everywhere at boundaries.
            Store::Dense(weight) => x.to_dtype(weight.dtype())?.matmul(&weight.t()?)?.to_dtype(DType::F32)?,
            Store::Quantised { product, .. } => product.forward(x)?,
        };
        match &self.bias {
            Some(bias) => out.broadcast_add(bias),
            None => Ok(out),
        }
    }

    pub fn lookup(&self, cx: &Compute, ids: &[u32]) -> Result<Tensor> {
        let ids = Tensor::from_slice(ids, ids.len(), cx.device())?;
        match &self.store {
            Store::Dense(weight) => weight.index_select(&ids, 0)?.to_dtype(DType::F32),
            Store::Quantised { table, .. } => table.embedding(&ids),
        }
    }
}

fn quantised(cx: &Compute, dtype: GgmlDType, rows: usize, cols: usize, bytes: &[u8]) -> Result<Store> {
    let storage = QStorage::from_data(Cow::Borrowed(bytes), cx.device(), dtype)?;
    let table = Arc::new(QTensor::new(storage, (rows, cols))?);
    Ok(Store::Quantised { product: QMatMul::from_arc(Arc::clone(&table))?, table })
}
