//! One block of a tile, unpacked to numbers that plain Rust can work on.

use super::file::{offset, single};
use super::layout::{FLOAT_BLOCK, FLOAT_ROWS, LINE, Layout, ROWS, unpack_scales};
use crate::format::Format;
use half::{bf16, f16};

/// A quantised block of 16 rows. See `file::Block` for what the parts mean; offsets are already taken off `q`.
pub(super) struct Panel {
    /// Scale of the block, a row each.
    pub d: [f32; ROWS],
    /// Minimum of the block, a row each.
    pub m: [f32; ROWS],
    /// Scales of the sub-blocks: `[sub-block][row]`.
    pub scales: [[i32; ROWS]; 16],
    /// Minima of the sub-blocks: `[sub-block][row]`.
    pub mins: [[i32; ROWS]; 8],
    /// The numbers: `[k / 4][row][k % 4]`.
    pub q: [[i8; LINE]; 64],
}

impl Panel {
    /// Room for a block.
    pub fn new() -> Self {
        Self { d: [0.0; ROWS], m: [0.0; ROWS], scales: [[0; ROWS]; 16], mins: [[0; ROWS]; 8], q: [[0; LINE]; 64] }
    }

    /// Unpacks block `b` of a tile.
    pub fn read(&mut self, layout: &Layout, tile: &[u8], b: usize) {
        let place = layout.place(b);
        self.d = halves(&tile[place.scales..]);
        let lines = &tile[place.lines..];
        match layout.format {
            Format::F32 | Format::F16 | Format::BF16 => unreachable!("floats have no blocks"),
            Format::Q4_0 => self.nibbles(0, 4, lines),
            Format::Q5_0 => {
                self.nibbles(0, 4, lines);
                self.fifth_bits(0, &lines[4 * LINE..]);
            }
            Format::Q4_1 => {
                self.m = halves(&tile[place.scales + 32..]);
                self.nibbles(0, 4, lines);
            }
            Format::Q5_1 => {
                self.m = halves(&tile[place.scales + 32..]);
                self.nibbles(0, 4, lines);
                self.fifth_bits(0, &lines[4 * LINE..]);
            }
            Format::Q8_0 => {
                for (q, line) in self.q.iter_mut().zip(lines.chunks_exact(LINE).take(8)) {
                    for (q, byte) in q.iter_mut().zip(line) {
                        *q = byte.cast_signed();
                    }
                }
            }
            Format::Q4_K | Format::Q5_K => {
                self.m = halves(&tile[place.scales + 32..]);
                self.packed_scales(lines);
                let lines_each = if layout.format == Format::Q5_K { 5 } else { 4 };
                for (j, lines) in lines[3 * LINE..].chunks_exact(lines_each * LINE).take(8).enumerate() {
                    self.nibbles(8 * j, 4, lines);
                    if layout.format == Format::Q5_K {
                        self.fifth_bits(8 * j, &lines[4 * LINE..]);
                    }
                }
            }
            Format::Q6_K => {
                for (j, scales) in self.scales.iter_mut().enumerate() {
                    *scales = std::array::from_fn(|r| i32::from(lines[j / 4 * LINE + 4 * r + j % 4].cast_signed()));
                }
                for (j, lines) in lines[4 * LINE..].chunks_exact(3 * LINE).take(16).enumerate() {
                    self.nibbles(4 * j, 2, lines);
                    self.sixth_bits(4 * j, &lines[2 * LINE..]);
                }
            }
        }
        self.take_off(offset(layout.format) as i8, layout.format.block_len() / 4);
    }

    fn nibbles(&mut self, first: usize, count: usize, lines: &[u8]) {
        for (pair, line) in self.q[first..].chunks_exact_mut(2).zip(lines.chunks_exact(LINE)).take(count) {
            let [low, high] = pair else { unreachable!("chunks of two") };
            for i in 0..LINE {
                low[i] = (line[i] & 15).cast_signed();
                high[i] = (line[i] >> 4).cast_signed();
            }
        }
    }

    fn fifth_bits(&mut self, first: usize, line: &[u8]) {
        for (g, q) in self.q[first..first + 8].iter_mut().enumerate() {
            for (q, bits) in q.iter_mut().zip(&line[..LINE]) {
                *q |= (bits >> g & 1).cast_signed() << 4;
            }
        }
    }

    fn sixth_bits(&mut self, first: usize, line: &[u8]) {
        for (g, q) in self.q[first..first + 4].iter_mut().enumerate() {
            for (q, bits) in q.iter_mut().zip(&line[..LINE]) {
                *q |= (bits >> (2 * g) & 3).cast_signed() << 4;
            }
        }
    }

    fn packed_scales(&mut self, lines: &[u8]) {
        for r in 0..ROWS {
            let word = |line: usize| {
                let at = line * LINE + 4 * r;
                u32::from_le_bytes([lines[at], lines[at + 1], lines[at + 2], lines[at + 3]])
            };
            let (scales, mins) = unpack_scales([word(0), word(1), word(2)]);
            for j in 0..8 {
                self.scales[j][r] = i32::from(scales[j]);
                self.mins[j][r] = i32::from(mins[j]);
            }
        }
    }

    fn take_off(&mut self, offset: i8, groups: usize) {
        if offset != 0 {
            self.q[..groups].as_flattened_mut().iter_mut().for_each(|q| *q -= offset);
        }
    }

    /// The numbers of one row, as floats. Exact but for the last operation: every product before it fits 24 bits.
    pub fn row(&self, layout: &Layout, r: usize, out: &mut [f32]) {
        let (d, m) = (self.d[r], self.m[r]);
        for (k, out) in out.iter_mut().enumerate() {
            let q = f32::from(self.q[k / 4][4 * r + k % 4]);
            *out = match layout.format {
                Format::Q4_K | Format::Q5_K => d * self.scales[k / 32][r] as f32 * q - m * self.mins[k / 32][r] as f32,
                Format::Q6_K => d * self.scales[k / 16][r] as f32 * q,
                Format::Q4_1 | Format::Q5_1 => d * q + m,
                _ => d * q,
            };
        }
    }
}

/// The 32 numbers of block `b` in row `lane` of a float tile: 16 odd ones, then 16 even ones.
pub(super) fn float_block(layout: &Layout, tile: &[u8], lane: usize, b: usize) -> [[f32; ROWS]; 2] {
    let width = if layout.format == Format::F32 { 4 } else { 2 };
    let at = ((lane / FLOAT_ROWS * layout.blocks + b) * FLOAT_ROWS + lane % FLOAT_ROWS) * FLOAT_BLOCK * width;
    let bytes = &tile[at..at + FLOAT_BLOCK * width];
    let half = |i: usize| u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]);
    let one = |i: usize| match layout.format {
        Format::F32 => f32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]]),
        Format::F16 => f16::from_bits(half(i)).to_f32(),
        _ => bf16::from_bits(half(i)).to_f32(),
    };
    if layout.format == Format::BF16 {
        [std::array::from_fn(|l| one(2 * l + 1)), std::array::from_fn(|l| one(2 * l))]
    } else {
        [std::array::from_fn(one), std::array::from_fn(|l| one(ROWS + l))]
    }
}

/// Sixteen halves as singles.
fn halves(bytes: &[u8]) -> [f32; ROWS] {
    std::array::from_fn(|r| single(u16::from_le_bytes([bytes[2 * r], bytes[2 * r + 1]])))
}
