//! One allocation of keys and values, laid out for the attention kernels.
//!
//! Each head has its keys first, then its values. Keys lie in groups of sixteen positions, (dim, 16): a kernel multiplies
//! one value of a query with sixteen keys at once, so each score is a plain sum in order of dim and no lanes need to be
//! added up. Values lie by position, each padded with zeros to whole lines of sixteen.

use mesh_core::plan::KvType;

use super::{SLAB_POSITIONS, element_bytes};
use crate::math::{LANES, Line};

/// Positions of a key block: what the online softmax takes at once. Blocks begin at multiples of this, so that the order
/// of operations for a position does not depend on how its prompt was cut.
pub(crate) const BLOCK_POSITIONS: usize = 64;

/// Heads of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadShape {
    /// How many.
    pub(crate) kv_heads: usize,
    /// Values of each.
    pub(crate) dim: usize,
}

impl HeadShape {
    /// Values of one position, over all heads.
    pub(crate) fn width(self) -> usize {
        self.kv_heads * self.dim
    }
    /// Lines of one position's value vector.
    pub(crate) fn value_lines(self) -> usize {
        self.dim.div_ceil(LANES)
    }
    /// Lines of one head's keys in a slab.
    fn key_lines(self) -> usize {
        SLAB_POSITIONS as usize / LANES * self.dim
    }
    /// Lines of one head in a slab.
    fn head_lines(self) -> usize {
        self.key_lines() + SLAB_POSITIONS as usize * self.value_lines()
    }
}

/// Keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Keys.
    Keys,
    /// Values.
    Values,
}

/// Sixteen 16-bit floats, as bits.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub(crate) struct HalfLine(pub(crate) [u16; LANES]);

/// Keys and values of [`SLAB_POSITIONS`] positions of one layer.
#[derive(Debug)]
pub(crate) enum Slab {
    /// As 32-bit floats.
    F32(Box<[Line]>),
    /// As 16-bit floats.
    F16(Box<[HalfLine]>),
}

impl Slab {
    /// A slab of zeros.
    pub(crate) fn new(heads: HeadShape, kind: KvType) -> Self {
        let lines = heads.kv_heads * heads.head_lines();
        match kind {
            KvType::F32 => Self::F32(vec![Line::ZERO; lines].into_boxed_slice()),
            KvType::F16 => Self::F16(vec![HalfLine([0; LANES]); lines].into_boxed_slice()),
        }
    }

    /// Bytes of this slab.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::F32(lines) => size_of_val::<[Line]>(lines) as u64,
            Self::F16(lines) => size_of_val::<[HalfLine]>(lines) as u64,
        }
    }

    /// Bytes of a slab of this shape.
    pub(crate) fn bytes_of(heads: HeadShape, kind: KvType) -> u64 {
        (heads.kv_heads * heads.head_lines() * LANES * element_bytes(kind)) as u64
    }

    /// Writes keys and values (heads, dim) of one position, an index into this slab.
    pub(crate) fn put(&mut self, heads: HeadShape, position: usize, keys: &[f32], values: &[f32]) {
        match self {
            Self::F32(lines) => put(heads, lines, position, keys, values, |line, lane, x| line.0[lane] = x),
            Self::F16(lines) => {
                put(heads, lines, position, keys, values, |line, lane, x| line.0[lane] = half::f16::from_f32(x).to_bits());
            }
        }
    }

    /// Appends one position's keys or values, (heads, dim), little-endian.
    pub(crate) fn export(&self, heads: HeadShape, side: Side, position: usize, to: &mut Vec<u8>) {
        for head in 0..heads.kv_heads {
            for d in 0..heads.dim {
                let (line, lane) = place(heads, side, head, position, d);
                match self {
                    Self::F32(lines) => to.extend_from_slice(&lines[line].0[lane].to_le_bytes()),
                    Self::F16(lines) => to.extend_from_slice(&lines[line].0[lane].to_le_bytes()),
                }
            }
        }
    }

    /// Lines of one head's keys in block `block` of this slab: groups of sixteen positions, (dim, 16) each.
    pub(crate) fn key_range(heads: HeadShape, head: usize, block: usize) -> std::ops::Range<usize> {
        let each = BLOCK_POSITIONS / LANES * heads.dim;
        let first = head * heads.head_lines() + block * each;
        first..first + each
    }

    /// Lines of one head's values in block `block` of this slab: [`HeadShape::value_lines`] for each position.
    pub(crate) fn value_range(heads: HeadShape, head: usize, block: usize) -> std::ops::Range<usize> {
        let each = BLOCK_POSITIONS * heads.value_lines();
        let first = head * heads.head_lines() + heads.key_lines() + block * each;
        first..first + each
    }
}

/// Line and lane of one number.
fn place(heads: HeadShape, side: Side, head: usize, position: usize, d: usize) -> (usize, usize) {
    let base = head * heads.head_lines();
    match side {
        Side::Keys => (base + position / LANES * heads.dim + d, position % LANES),
        Side::Values => (base + heads.key_lines() + position * heads.value_lines() + d / LANES, d % LANES),
    }
}

/// Puts each number of one position into its lane by `set`.
fn put<L>(heads: HeadShape, lines: &mut [L], position: usize, keys: &[f32], values: &[f32], set: impl Fn(&mut L, usize, f32)) {
    for (head, (keys, values)) in keys.chunks_exact(heads.dim).zip(values.chunks_exact(heads.dim)).enumerate() {
        let (first, lane) = place(heads, Side::Keys, head, position, 0);
        for (line, &key) in lines[first..first + heads.dim].iter_mut().zip(keys) {
            set(line, lane, key);
        }
        let (first, _) = place(heads, Side::Values, head, position, 0);
        for (line, values) in lines[first..].iter_mut().zip(values.chunks(LANES)) {
            for (lane, &value) in values.iter().enumerate() {
                set(line, lane, value);
            }
        }
    }
}
