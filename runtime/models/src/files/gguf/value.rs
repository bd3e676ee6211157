//! A value of a GGUF file's metadata.

use std::io::Read;

use super::reader::Reader;
use crate::files::Fault;

/// Lists of lists go no deeper. No file of the field has any.
const DEPTH_MAX: u32 = 4;

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A number.
    U8(u8),
    /// A number.
    I8(i8),
    /// A number.
    U16(u16),
    /// A number.
    I16(i16),
    /// A number.
    U32(u32),
    /// A number.
    I32(i32),
    /// A number.
    U64(u64),
    /// A number.
    I64(i64),
    /// A number.
    F32(f32),
    /// A number.
    F64(f64),
    /// Yes or no.
    Bool(bool),
    /// Text.
    String(String),
    /// Values of one kind.
    Array(Vec<Self>),
}

impl Value {
    /// Feeds a hash, so that different values give different bytes.
    pub(crate) fn digest(&self, hash: &mut blake3::Hasher) {
        let mut put = |kind: u8, bytes: &[u8]| {
            hash.update(&[kind]);
            hash.update(&(bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        match self {
            Self::U8(n) => put(0, &n.to_le_bytes()),
            Self::I8(n) => put(1, &n.to_le_bytes()),
            Self::U16(n) => put(2, &n.to_le_bytes()),
            Self::I16(n) => put(3, &n.to_le_bytes()),
            Self::U32(n) => put(4, &n.to_le_bytes()),
            Self::I32(n) => put(5, &n.to_le_bytes()),
            Self::U64(n) => put(6, &n.to_le_bytes()),
            Self::I64(n) => put(7, &n.to_le_bytes()),
            Self::F32(n) => put(8, &n.to_bits().to_le_bytes()),
            Self::F64(n) => put(9, &n.to_bits().to_le_bytes()),
            Self::Bool(yes) => put(10, &[u8::from(*yes)]),
            Self::String(text) => put(11, text.as_bytes()),
            Self::Array(values) => {
                put(12, &(values.len() as u64).to_le_bytes());
                values.iter().for_each(|value| value.digest(hash)); // files of the field have one level, the reader allows four
            }
        }
    }

    /// As a whole number, if it is one that is not negative.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::U8(n) => Some(n.into()),
            Self::U16(n) => Some(n.into()),
            Self::U32(n) => Some(n.into()),
            Self::U64(n) => Some(n),
            Self::I8(n) => n.try_into().ok(),
            Self::I16(n) => n.try_into().ok(),
            Self::I32(n) => n.try_into().ok(),
            Self::I64(n) => n.try_into().ok(),
            _ => None,
        }
    }

    /// As a number, whole ones included; those beyond 2^53 are rounded.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "said so")]
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::F32(n) => Some(n.into()),
            Self::F64(n) => Some(n),
            Self::I8(n) => Some(n.into()),
            Self::I16(n) => Some(n.into()),
            Self::I32(n) => Some(n.into()),
            Self::I64(n) => Some(n as f64),
            _ => self.as_u64().map(|n| n as f64),
        }
    }

    /// As yes or no.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Self::Bool(yes) => Some(yes),
            _ => None,
        }
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// As a list.
    #[must_use]
    pub fn as_array(&self) -> Option<&[Self]> {
        match self {
            Self::Array(values) => Some(values),
            _ => None,
        }
    }

    /// Reads a value of the kind with this number. `key` is for errors.
    pub(super) fn read<R: Read>(reader: &mut Reader<R>, kind: u32, key: &str) -> Result<Self, Fault> {
        Self::read_at_depth(reader, kind, key, 0)
    }

    fn read_at_depth<R: Read>(reader: &mut Reader<R>, kind: u32, key: &str, depth: u32) -> Result<Self, Fault> {
        Ok(match kind {
            0 => Self::U8(u8::from_le_bytes(reader.bytes(key)?)),
            1 => Self::I8(i8::from_le_bytes(reader.bytes(key)?)),
            2 => Self::U16(u16::from_le_bytes(reader.bytes(key)?)),
            3 => Self::I16(i16::from_le_bytes(reader.bytes(key)?)),
            4 => Self::U32(reader.u32(key)?),
            5 => Self::I32(i32::from_le_bytes(reader.bytes(key)?)),
            6 => Self::F32(f32::from_le_bytes(reader.bytes(key)?)),
            7 => match reader.bytes::<1>(key)? {
                [0] => Self::Bool(false),
                [1] => Self::Bool(true),
                [other] => return Err(Fault::damaged(format!("{key:?} is neither true (1) nor false (0) but {other}"))),
            },
            8 => Self::String(reader.string(key)?),
            9 => Self::Array(read_array(reader, key, depth)?),
            10 => Self::U64(reader.u64(key)?),
            11 => Self::I64(i64::from_le_bytes(reader.bytes(key)?)),
            12 => Self::F64(f64::from_le_bytes(reader.bytes(key)?)),
            _ => return Err(unknown(kind, key)),
        })
    }
}

fn read_array<R: Read>(reader: &mut Reader<R>, key: &str, depth: u32) -> Result<Vec<Value>, Fault> {
    if depth == DEPTH_MAX {
        return Err(Fault::damaged(format!("the lists of {key:?} are nested more than {DEPTH_MAX} deep")));
    }
    let kind = reader.u32(key)?;
    let count = reader.u64(key)?;
    reader.expect(count, bytes_min(kind).ok_or_else(|| unknown(kind, key))?, &format!("values for {key:?}"))?;
    reader.charge(count.saturating_mul(size_of::<Value>() as u64), key)?;
    // The charge was accepted, so the count is far below the limit of usize.
    let mut values = Vec::with_capacity(count as usize);
    for _ in 0..count {
        values.push(Value::read_at_depth(reader, kind, key, depth + 1)?);
    }
    Ok(values)
}

/// Bytes that a value of a kind takes in a file at least.
const fn bytes_min(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        8 | 10..=12 => Some(8),
        9 => Some(12),
        _ => None,
    }
}

fn unknown(kind: u32, key: &str) -> Fault {
    Fault::damaged(format!("{key:?} has the unknown kind {kind}"))
}
