//! Ways between candle's tensors and plain slices, and rows of work shared out to threads.

use std::sync::Mutex;

use candle_core::{CpuStorage, Device, Result, Shape, Storage, Tensor};

use crate::compute::Compute;

/// Shows `f` the numbers of an f32 tensor in main memory, in order. A strided view is copied first.
pub(crate) fn with_values<R>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> Result<R>) -> Result<R> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(CpuStorage::F32(all)) = &*storage else {
        candle_core::bail!("expected f32 in main memory, found {:?} on {:?}", tensor.dtype(), tensor.device().location());
    };
    match layout.contiguous_offsets() {
        Some((from, to)) => f(&all[from..to]),
        None => candle_core::bail!("expected numbers in order"),
    }
}

/// A tensor in main memory.
pub(crate) fn tensor(values: Vec<f32>, shape: impl Into<Shape>) -> Result<Tensor> {
    Tensor::from_vec(values, shape.into(), &Device::Cpu)
}

/// Calls `work(first row, rows)` on pieces of `out`, rows of `width` each, on as many threads as the amount deserves.
/// What a row gets must not depend on the rows beside it: then neither pieces nor threads show in the result.
pub(crate) fn share_rows(cx: &Compute, out: &mut [f32], width: usize, work: &(dyn Fn(usize, &mut [f32]) + Sync)) {
    let rows = out.len() / width.max(1);
    let rows_each = TASK_VALUES.div_ceil(width.max(1));
    if rows <= rows_each {
        return work(0, out);
    }
    let pieces: Vec<Mutex<&mut [f32]>> = out.chunks_mut(rows_each * width).map(Mutex::new).collect();
    cx.pool().run(pieces.len(), &|index| {
        // Each piece is taken by one task only: the lock is never contended, and poison means the pool panics anyway.
        if let Ok(mut piece) = pieces[index].lock() {
            work(index * rows_each, &mut piece);
        }
    });
}

/// Numbers that are worth handing to another thread: some ten microseconds of elementwise work (estimate).
const TASK_VALUES: usize = 16 * 1024;
