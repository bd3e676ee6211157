//! The table of contents of a GGUF file (ggml's format, versions 2 and 3, little-endian).
//!
//! ```text
//! "GGUF"  u32 version  u64 tensors  u64 entries
//! entries:  string key, u32 kind, value         (string: u64 length, UTF-8 bytes; array: u32 kind, u64 count, values)
//! tensors:  string name, u32 dimensions, u64 each (fastest first), u32 type, u64 offset into the data
//! padding to general.alignment (32 unless stated), then the data
//! ```
//! Nothing is believed: a count is held against the bytes that are left before anything is reserved for it, and what the
//! header may take in memory has a limit of its own ([`MEMORY_MAX`]), since a list of bytes grows when it is unpacked.

mod reader;
mod value;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;

use mesh_core::ports::ModelError;

use super::{Fault, Source};
use reader::Reader;
pub use value::Value;

/// Memory that a header may take. The largest of the field (262,144 tokens with scores, types and merges) takes about 60 MiB.
pub const MEMORY_MAX: u64 = 256 << 20;
/// ggml has no tensors of more dimensions.
const DIMENSIONS_MAX: u32 = 4;
/// What ggml uses if a file does not say.
const ALIGNMENT: u64 = 32;
/// Longest alignment that is believed. Files of the field have 32; pages of 64 KiB might be wanted.
const ALIGNMENT_MAX: u64 = 1 << 20;
/// Memory reckoned for a tensor's entry besides its name.
const TENSOR_MEMORY: u64 = 160;

/// A file's table of contents.
#[derive(Clone, Debug, PartialEq)]
pub struct Gguf {
    /// Of the format: 2 or 3.
    pub version: u32,
    /// Everything that is not a tensor.
    pub metadata: BTreeMap<String, Value>,
    /// In the order of the file. Names are unique; no two overlap; all lie inside the file.
    pub tensors: Vec<TensorInfo>,
}

/// Where a tensor lies, and what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Outermost dimension first: (rows, cols) for a matrix. One to four, none of them 0.
    pub shape: Vec<u64>,
    /// How it is stored.
    pub kind: &'static GgmlType,
    /// Where it begins, in bytes from the start of the file.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
}

/// A way of ggml to store numbers. Names and sizes are known of more types than can be computed with, for better errors.
#[derive(Debug, PartialEq, Eq)]
pub struct GgmlType {
    /// As numbered in files.
    pub id: u32,
    /// As ggml calls it.
    pub name: &'static str,
    /// Values of a block.
    pub block_len: u64,
    /// Bytes of a block.
    pub block_bytes: u64,
}

impl GgmlType {
    /// The type with this number, if this version of ggml's list has it.
    #[must_use]
    pub fn from_id(id: u32) -> Option<&'static Self> {
        TYPES.iter().find(|kind| kind.id == id)
    }

    /// Bytes of a tensor, whose rows must be whole blocks. `None` if they are not, or there are too many.
    #[must_use]
    pub fn bytes_of(&self, shape: &[u64]) -> Option<u64> {
        let cols = *shape.last()?;
        if !cols.is_multiple_of(self.block_len) {
            return None;
        }
        shape[..shape.len() - 1]
            .iter()
            .try_fold((cols / self.block_len).checked_mul(self.block_bytes)?, |bytes, &dim| bytes.checked_mul(dim))
    }
}

impl Gguf {
    /// Reads the table of contents of a file.
    ///
    /// # Errors
    /// [`ModelError`] with the file's name, what is wrong with it, and what to do.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let read = || {
            let source = Source::file(path)?;
            Self::read(source.reader()?, source.len())
        };
        read().map_err(|fault| fault.of(path.display()))
    }

    /// Reads the table of contents from the start of `file_bytes` bytes.
    ///
    /// # Errors
    /// [`Fault`]: see there.
    pub fn read(from: impl Read, file_bytes: u64) -> Result<Self, Fault> {
        let mut reader = Reader::new(from, file_bytes, MEMORY_MAX);
        let (version, tensors, entries) = head(&mut reader)?;
        let metadata = read_metadata(&mut reader, entries)?;
        let mut infos = read_infos(&mut reader, tensors)?;
        let alignment = alignment(&metadata)?;
        let start = reader.position().checked_next_multiple_of(alignment).ok_or_else(|| Fault::damaged("its header has no end"))?;
        place(&mut infos, start, alignment, file_bytes)?;
        Ok(Self { version, metadata, tensors: infos })
    }

    /// The tensor of this name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}

/// Magic, version and the two counts.
fn head<R: Read>(reader: &mut Reader<R>) -> Result<(u32, u64, u64), Fault> {
    let magic = reader.bytes::<4>("its head")?;
    if magic != *b"GGUF" {
        return Err(Fault::damaged(format!("it does not begin with \"GGUF\" but with {:?}", String::from_utf8_lossy(&magic))));
    }
    let version = reader.u32("its version")?;
    match version {
        2 | 3 => {}
        1 => {
            return Err(Fault::Unsupported(
                "it has version 1 of the GGUF format, versions 2 and 3 are known: convert the model anew".into(),
            ));
        }
        _ if (1..256).contains(&version.swap_bytes()) => {
            return Err(Fault::Unsupported(
                "it is a big-endian GGUF file, only little-endian ones are known: convert the model anew".into(),
            ));
        }
        _ => return Err(Fault::Unsupported(format!("it has version {version} of the GGUF format, versions 2 and 3 are known"))),
    }
    Ok((version, reader.u64("the number of tensors")?, reader.u64("the number of metadata entries")?))
}

fn read_metadata<R: Read>(reader: &mut Reader<R>, entries: u64) -> Result<BTreeMap<String, Value>, Fault> {
    // The shortest entry: an empty key, a kind, one byte.
    reader.expect(entries, 13, "metadata entries")?;
    let mut metadata = BTreeMap::new();
    for _ in 0..entries {
        let key = reader.string("a metadata key")?;
        let kind = reader.u32(&key)?;
        let value = Value::read(reader, kind, &key)?;
        if metadata.insert(key.clone(), value).is_some() {
            return Err(Fault::damaged(format!("the metadata has {key:?} twice")));
        }
    }
    Ok(metadata)
}

/// The tensors' entries, with offsets still relative to the data.
fn read_infos<R: Read>(reader: &mut Reader<R>, tensors: u64) -> Result<Vec<TensorInfo>, Fault> {
    // The shortest entry: an empty name, no dimensions, type and offset.
    reader.expect(tensors, 24, "tensors")?;
    let mut infos = Vec::new();
    let mut names = BTreeSet::new();
    for _ in 0..tensors {
        reader.charge(TENSOR_MEMORY, "the list of tensors")?;
        let info = read_info(reader)?;
        if !names.insert(info.name.clone()) {
            return Err(Fault::damaged(format!("it has two tensors named {:?}", info.name)));
        }
        infos.push(info);
    }
    Ok(infos)
}

fn read_info<R: Read>(reader: &mut Reader<R>) -> Result<TensorInfo, Fault> {
    let name = reader.string("a tensor's name")?;
    let dimensions = reader.u32(&name)?;
    if !(1..=DIMENSIONS_MAX).contains(&dimensions) {
        return Err(Fault::damaged(format!("tensor {name:?} has {dimensions} dimensions, 1 to {DIMENSIONS_MAX} are possible")));
    }
    let mut shape = Vec::new();
    for _ in 0..dimensions {
        shape.push(reader.u64(&name)?);
    }
    shape.reverse();
    let id = reader.u32(&name)?;
    let kind = GgmlType::from_id(id).ok_or_else(|| {
        Fault::Unsupported(format!("tensor {name:?} has the storage type {id}, which is not known here: use a file in {}", usable_types()))
    })?;
    let bytes = kind.bytes_of(&shape).filter(|&bytes| bytes > 0);
    let bytes = bytes.ok_or_else(|| Fault::damaged(format!("tensor {name:?} cannot have the shape {shape:?} with type {}", kind.name)))?;
    Ok(TensorInfo { offset: reader.u64(&name)?, name, shape, kind, bytes })
}

fn alignment(metadata: &BTreeMap<String, Value>) -> Result<u64, Fault> {
    let Some(value) = metadata.get("general.alignment") else { return Ok(ALIGNMENT) };
    let alignment = value.as_u64().filter(|&alignment| alignment.is_power_of_two() && alignment <= ALIGNMENT_MAX);
    alignment.ok_or_else(|| Fault::damaged(format!("general.alignment is no power of two up to {ALIGNMENT_MAX}: {value:?}")))
}

/// Makes offsets absolute, and checks that tensors lie inside the file and apart from each other.
fn place(infos: &mut [TensorInfo], start: u64, alignment: u64, file_bytes: u64) -> Result<(), Fault> {
    for info in infos.iter_mut() {
        if !info.offset.is_multiple_of(alignment) {
            return Err(Fault::damaged(format!("tensor {:?} begins at {}, which is no multiple of {alignment}", info.name, info.offset)));
        }
        let end = info.offset.checked_add(start).and_then(|offset| offset.checked_add(info.bytes));
        if end.is_none_or(|end| end > file_bytes) {
            let (name, offset, bytes) = (&info.name, info.offset, info.bytes);
            return Err(Fault::damaged(format!(
                "tensor {name:?} wants {bytes} bytes at {offset} of the data, which begins at {start}, but the file has {file_bytes} bytes"
            )));
        }
        info.offset += start;
    }
    let mut order: Vec<&TensorInfo> = infos.iter().collect();
    order.sort_by_key(|info| info.offset);
    match order.windows(2).find(|pair| pair[0].offset + pair[0].bytes > pair[1].offset) {
        Some(pair) => Err(Fault::damaged(format!("tensors {:?} and {:?} overlap", pair[0].name, pair[1].name))),
        None => Ok(()),
    }
}

/// The types that [`crate::format::Format`] knows, for errors.
pub(crate) fn usable_types() -> &'static str {
    "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K or Q6_K"
}

/// ggml.h, enum ggml_type, and the block sizes of ggml-common.h.
#[rustfmt::skip]
const TYPES: &[GgmlType] = &[
    of(0, "F32", 1, 4), of(1, "F16", 1, 2), of(30, "BF16", 1, 2), of(28, "F64", 1, 8),
    of(24, "I8", 1, 1), of(25, "I16", 1, 2), of(26, "I32", 1, 4), of(27, "I64", 1, 8),
    of(2, "Q4_0", 32, 18), of(3, "Q4_1", 32, 20), of(6, "Q5_0", 32, 22), of(7, "Q5_1", 32, 24), of(8, "Q8_0", 32, 34), of(9, "Q8_1", 32, 36),
    of(10, "Q2_K", 256, 84), of(11, "Q3_K", 256, 110), of(12, "Q4_K", 256, 144), of(13, "Q5_K", 256, 176), of(14, "Q6_K", 256, 210), of(15, "Q8_K", 256, 292),
    of(16, "IQ2_XXS", 256, 66), of(17, "IQ2_XS", 256, 74), of(18, "IQ3_XXS", 256, 98), of(19, "IQ1_S", 256, 50), of(20, "IQ4_NL", 32, 18),
    of(21, "IQ3_S", 256, 110), of(22, "IQ2_S", 256, 82), of(23, "IQ4_XS", 256, 136), of(29, "IQ1_M", 256, 56),
    of(34, "TQ1_0", 256, 54), of(35, "TQ2_0", 256, 66), of(39, "MXFP4", 32, 17),
];

const fn of(id: u32, name: &'static str, block_len: u64, block_bytes: u64) -> GgmlType {
    GgmlType { id, name, block_len, block_bytes }
}

#[cfg(test)]
mod tests;
