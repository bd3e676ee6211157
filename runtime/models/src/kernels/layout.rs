//! How a weight lies in memory: tiles of 16 rows, one after the other, at the density of the file.
//!
//! A row is an output, so a tile yields 16 outputs, one a lane. A *line* is 64 bytes: 4 bytes for each of the 16 rows,
//! and those 4 bytes hold four neighbours of k (or of their bits). A kernel thus reads a tile front to back, multiplies
//! a line by four broadcast activations, and never sums across lanes. Sixteen lanes are one AVX-512 register, two of
//! AVX2, four of NEON.
//!
//! - **Nibble line**: low nibbles are k = 8l..8l+3, high nibbles k = 8l+4..8l+7. Four of them make 32 k.
//! - **Bit line**: for 32 k, bit g of byte b is the fifth bit of k = 4g + b.
//! - **Q4_0, Q5_0, Q8_0**: groups of [`GROUP`] blocks (the last one may be shorter): 32 bytes of scales (16 halves) a
//!   block first, then the lines of all blocks: 4 nibble lines, with 1 bit line after them (Q5_0), or 8 lines of bytes (Q8_0).
//!   Gathering the scales keeps lines on line boundaries.
//! - **Q4_1, Q5_1**: a block is 16 scales, 16 minima, 4 nibble lines (and 1 bit line).
//! - **Q4_K, Q5_K**: a block of 256 is 16 d, 16 dmin, 3 lines of packed 6-bit scales (see [`pack_scales`]), then for each
//!   sub-block of 32: 4 nibble lines (and 1 bit line).
//! - **Q6_K**: 16 d of every block first, filled up to a line; then per block 4 lines of 8-bit scales (4 sub-blocks
//!   each), and for each sub-block of 16: 2 nibble lines and 1 line of upper bits, where bits 2g and 2g + 1 of byte b
//!   belong to k = 4g + b.
//! - **Floats**: 4 groups of 4 rows, each a stream: for 32 k, the 4 rows' numbers after each other, rows filled up with
//!   zeros. BF16 in natural order, because shifts and masks split a word of two; F32 and F16 the 16 odd ones first,
//!   then the 16 even ones.
//!
//! Rows that a last tile lacks are zeros.

use crate::format::Format;

/// Rows of a tile.
pub(crate) const ROWS: usize = 16;
/// Bytes of a line.
pub(crate) const LINE: usize = 64;
/// Blocks whose scales stand together, in formats whose scales are half a line.
pub(crate) const GROUP: usize = 8;
/// Numbers of k in a block of floats.
pub(crate) const FLOAT_BLOCK: usize = 32;
/// Rows of a float format that share a stream.
pub(crate) const FLOAT_ROWS: usize = 4;

/// Shape and strides of a weight in tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub format: Format,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Blocks of a row; for floats, of [`FLOAT_BLOCK`] numbers.
    pub blocks: usize,
    pub tiles: usize,
    /// Distance between tiles: a multiple of [`LINE`].
    pub tile_bytes: usize,
}

/// Where the parts of one quantised block are in its tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// 16 halves d, and in formats with minima 16 halves m behind them.
    pub scales: usize,
    /// The first line; in K formats that of the sub-blocks' scales.
    pub lines: usize,
}

impl Layout {
    /// `None` if the format has no such rows or memory cannot hold it.
    pub fn new(format: Format, rows: usize, cols: usize) -> Option<Self> {
        let file = usize::try_from(format.bytes_of(rows, cols)?).ok()?;
        // So much may be added to a matrix by filling up rows and tiles; all sums below stay under it.
        file.checked_mul(4 * ROWS * FLOAT_BLOCK)?;
        let blocks = cols.div_ceil(if format.is_float() { FLOAT_BLOCK } else { format.block_len() });
        let tile_bytes = match format {
            Format::F32 => blocks * FLOAT_BLOCK * ROWS * 4,
            Format::F16 | Format::BF16 => blocks * FLOAT_BLOCK * ROWS * 2,
            Format::Q6_K => (blocks * 32).next_multiple_of(LINE) + blocks * Q6_K_LINES * LINE,
            _ => (blocks * format.block_bytes() * ROWS).next_multiple_of(LINE),
        };
        Some(Self { format, rows, cols, blocks, tiles: rows.div_ceil(ROWS), tile_bytes })
    }

    /// Bytes of all tiles.
    pub fn bytes(&self) -> usize {
        self.tiles * self.tile_bytes
    }

    /// Where block `b` of a quantised tile is.
    #[inline]
    pub fn place(&self, b: usize) -> Place {
        match self.format {
            Format::Q4_0 | Format::Q5_0 | Format::Q8_0 => {
                let lines = LINE * block_lines(self.format);
                let (group, in_group) = (b / GROUP, b % GROUP);
                let base = group * GROUP * (32 + lines);
                let here = GROUP.min(self.blocks - group * GROUP);
                Place { scales: base + 32 * in_group, lines: base + 32 * here + lines * in_group }
            }
            Format::Q6_K => Place { scales: b * 32, lines: (self.blocks * 32).next_multiple_of(LINE) + b * Q6_K_LINES * LINE },
            _ => {
                let at = b * LINE * (1 + block_lines(self.format));
                Place { scales: at, lines: at + LINE }
            }
        }
    }
}

/// Lines of a block behind its `d` and `m`.
const fn block_lines(format: Format) -> usize {
    match format {
        Format::Q4_0 | Format::Q4_1 => 4,
        Format::Q5_0 | Format::Q5_1 => 5,
        Format::Q8_0 => 8,
        Format::Q4_K => 3 + 32,
        Format::Q5_K => 3 + 40,
        Format::Q6_K => Q6_K_LINES,
        Format::F32 | Format::F16 | Format::BF16 => 0,
    }
}

const Q6_K_LINES: usize = 4 + 16 * 3;

const _: () = {
    assert!(ROWS * 20 == LINE * (1 + block_lines(Format::Q4_1)));
    assert!(ROWS * 24 == LINE * (1 + block_lines(Format::Q5_1)));
    assert!(ROWS * 144 == LINE * (1 + block_lines(Format::Q4_K)));
    assert!(ROWS * 176 == LINE * (1 + block_lines(Format::Q5_K)));
    assert!(ROWS * 210 == 32 + LINE * Q6_K_LINES);
    assert!(ROWS * 18 == 32 + LINE * block_lines(Format::Q4_0));
    assert!(ROWS * 22 == 32 + LINE * block_lines(Format::Q5_0));
    assert!(ROWS * 34 == 32 + LINE * block_lines(Format::Q8_0));
};

/// Packs a row's eight 6-bit scales and eight minima into three words, one for each scale line.
///
/// Kernels want the pairs (2j, 2j + 1) as the two 16-bit halves of a word. Each half has room for two whole fields and
/// four bits more: word 0 has the scale pairs 0 and 1, word 1 the scale pairs 2 and 3, word 2 the minimum pairs 0 and 1.
/// Minimum pair 2 has its lower four bits on top of word 0 and its upper two in bits 12 and 13 of word 2's halves; pair 3
/// on top of word 1 and in bits 14 and 15. So every pair comes out by a 16-bit shift and a mask, the last two by two.
pub(crate) fn pack_scales(scales: &[i8; 16], mins: &[i8; 8]) -> [u32; 3] {
    let pair = |of: &[i8], j: usize| u32::from(of[2 * j].cast_unsigned()) | u32::from(of[2 * j + 1].cast_unsigned()) << 16;
    let (p, q) = (pair(mins, 2), pair(mins, 3));
    let (low, high) = (0x000f_000f, 0x0030_0030);
    [
        pair(scales, 0) | pair(scales, 1) << 6 | (p & low) << 12,
        pair(scales, 2) | pair(scales, 3) << 6 | (q & low) << 12,
        pair(mins, 0) | pair(mins, 1) << 6 | (p & high) << 8 | (q & high) << 10,
    ]
}

/// The reverse of [`pack_scales`].
pub(crate) fn unpack_scales(words: [u32; 3]) -> ([u8; 8], [u8; 8]) {
    let [a, b, c] = words;
    let six = 0x003f_003f;
    let p = (a >> 12 & 0x000f_000f) | (c >> 8 & 0x0030_0030);
    let q = (b >> 12 & 0x000f_000f) | (c >> 10 & 0x0030_0030);
    let pairs = |words: [u32; 4]| std::array::from_fn(|j| (words[j / 2] >> (16 * (j % 2))) as u8);
    (pairs([a & six, a >> 6 & six, b & six, b >> 6 & six]), pairs([c & six, c >> 6 & six, p, q]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_come_out_as_they_went_in() {
        let mut seed = 1_u32;
        let mut draw = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 26) as i8
        };
        for _ in 0..1000 {
            let scales: [i8; 16] = std::array::from_fn(|i| if i < 8 { draw() } else { 0 });
            let mins: [i8; 8] = std::array::from_fn(|_| draw());
            let (s, m) = unpack_scales(pack_scales(&scales, &mins));
            assert_eq!(s.map(u8::cast_signed), scales[..8]);
            assert_eq!(m.map(u8::cast_signed), mins);
        }
    }

    #[test]
    fn blocks_follow_each_other_and_fill_the_tile() {
        for format in Format::ALL.into_iter().filter(|f| !f.is_float()) {
            for blocks in [1, 2, 7, 8, 9, 18] {
                let layout = Layout::new(format, 17, blocks * format.block_len()).expect("a layout");
                assert_eq!(layout.tiles, 2);
                let lines = LINE * block_lines(format);
                let scales = if crate::kernels::file::offset(format) != 0 || format == Format::Q8_0 { 32 } else { 64 };
                let mut used = vec![false; layout.tile_bytes];
                for b in 0..blocks {
                    let place = layout.place(b);
                    for at in (place.scales..place.scales + scales).chain(place.lines..place.lines + lines) {
                        assert!(!std::mem::replace(&mut used[at], true), "{format}: byte {at} used twice");
                    }
                }
                assert!(used.iter().filter(|used| !**used).count() < LINE, "{format}: file density");
            }
        }
    }

    #[test]
    fn a_size_that_memory_cannot_count_is_no_layout() {
        assert_eq!(Layout::new(Format::F32, usize::MAX / 8, 1), None);
        assert_eq!(Layout::new(Format::Q4_K, 1, 100), None);
    }
}
