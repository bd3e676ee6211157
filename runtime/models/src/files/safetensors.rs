//! The table of contents of a safetensors file: u64 header length, JSON header, data.
//!
//! The header's length is held against the file's before anything is reserved; the JSON itself, offsets and shapes are
//! checked by the safetensors crate; that the data fill the file exactly, here again.

use safetensors::Dtype;
use safetensors::tensor::Metadata;

use super::{Fault, Source, Stored, TensorEntry};
use crate::format::Format;

/// Longest header that is read. The crate's own limit; headers of the largest models have some 10 MB.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Before the header: its length.
const LENGTH_BYTES: u64 = 8;

/// The tensors of one file, `source` being its number among the model's files.
pub(super) fn read(file: &Source, source: usize) -> Result<Vec<(String, TensorEntry)>, Fault> {
    let start = file.read(0, LENGTH_BYTES.min(file.len()))?;
    let length: [u8; 8] = start.as_ref().try_into().map_err(|_| Fault::damaged("it ends before its header"))?;
    let header = u64::from_le_bytes(length);
    let left = file.len() - LENGTH_BYTES;
    if header > left || header > HEADER_BYTES_MAX {
        return Err(Fault::damaged(format!(
            "it claims a header of {header} bytes, but only {left} bytes follow (at most {HEADER_BYTES_MAX} are read)"
        )));
    }
    let json = file.read(LENGTH_BYTES, header)?;
    let metadata: Metadata =
        serde_json::from_slice(&json).map_err(|error| Fault::damaged(format!("its header makes no sense: {error}")))?;
    let data = LENGTH_BYTES + header;
    if metadata.data_len() as u64 != file.len() - data {
        let (have, want) = (file.len() - data, metadata.data_len());
        return Err(Fault::damaged(format!("its header describes {want} bytes of tensors, but the file has {have}")));
    }
    let mut tensors = Vec::new();
    for (name, info) in metadata.tensors() {
        let (from, to) = info.data_offsets;
        let shape = info.shape.iter().map(|&dim| dim as u64).collect();
        let bytes = (to - from) as u64;
        tensors.push((name, TensorEntry { shape, stored: stored(info.dtype), source, offset: data + from as u64, bytes }));
    }
    Ok(tensors)
}

fn stored(dtype: Dtype) -> Stored {
    match dtype {
        Dtype::F32 => Stored::Usable(Format::F32),
        Dtype::F16 => Stored::Usable(Format::F16),
        Dtype::BF16 => Stored::Usable(Format::BF16),
        other => Stored::Unusable(format!("{other:?}")),
    }
}
