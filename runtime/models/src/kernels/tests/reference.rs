//! The canonical order as `kernels.rs` states it, one output after the other, straight from the file's bytes. It shares
//! with the kernels only the reading of a file's block, which candle's own reading checks.

use half::{bf16, f16};

use crate::format::Format;
use crate::kernels::file::{Block, offset, single};

/// One column's outputs.
pub(super) fn product(format: Format, rows: usize, cols: usize, bytes: &[u8], x: &[f32]) -> Vec<f32> {
    let row_bytes = bytes.len() / rows;
    assert_eq!(x.len(), cols);
    bytes.chunks_exact(row_bytes).map(|row| if format.is_float() { dense(format, row, x) } else { quantised(format, row, x) }).collect()
}

fn dense(format: Format, row: &[u8], x: &[f32]) -> f32 {
    let w: Vec<f32> = row
        .chunks_exact(format.block_bytes())
        .map(|w| match format {
            Format::F32 => f32::from_le_bytes([w[0], w[1], w[2], w[3]]),
            Format::F16 => f16::from_le_bytes([w[0], w[1]]).to_f32(),
            _ => bf16::from_le_bytes([w[0], w[1]]).to_f32(),
        })
        .collect();
    let at = |of: &[f32], k: usize| of.get(k).copied().unwrap_or(0.0);
    let mut lanes = [0.0_f32; 16];
    for block in 0..x.len().div_ceil(32) {
        for (l, lane) in lanes.iter_mut().enumerate() {
            let k = 32 * block + 2 * l;
            *lane = at(&w, k + 1).mul_add(at(x, k + 1), *lane);
            *lane = at(&w, k).mul_add(at(x, k), *lane);
        }
    }
    for apart in [8, 4, 2, 1] {
        for i in 0..apart {
            lanes[i] += lanes[i + apart];
        }
    }
    lanes[0]
}

/// Numbers and scale of a block of activations.
fn quantise(x: &[f32]) -> (Vec<i32>, f32) {
    if x.iter().any(|x| !x.is_finite()) {
        return (vec![0; x.len()], f32::NAN);
    }
    let largest = x.iter().fold(0.0_f32, |a, x| a.max(x.abs()));
    if largest < 2.0_f32.powi(-119) {
        return (vec![0; x.len()], 0.0);
    }
    let inverse = 127.0 / largest;
    (x.iter().map(|x| (x * inverse).round_ties_even() as i32).collect(), largest / 127.0)
}

fn quantised(format: Format, row: &[u8], x: &[f32]) -> f32 {
    let mut acc = 0.0_f32;
    let mut block = Block::new();
    for (bytes, x) in row.chunks_exact(format.block_bytes()).zip(x.chunks_exact(format.block_len())) {
        block.read(format, bytes);
        let (x, dx) = quantise(x);
        let (d, m) = (single(block.d), single(block.m));
        let q = |k: usize| {
            if format == Format::Q8_0 { i32::from(block.q[k].cast_signed()) } else { i32::from(block.q[k]) - offset(format) }
        };
        let (mut s, mut sum, mut minima) = (0_i32, 0_i32, 0_i32);
        for (k, x) in x.iter().enumerate() {
            let scale = match format {
                Format::Q4_K | Format::Q5_K => i32::from(block.scales[k / 32]),
                Format::Q6_K => i32::from(block.scales[k / 16]),
                _ => 1,
            };
            s += scale * q(k) * x;
            sum += x;
            minima += i32::from(block.mins[k / 32 % 8]) * x;
        }
        acc = match format {
            Format::Q4_1 | Format::Q5_1 => dx.mul_add(d.mul_add(s as f32, m * sum as f32), acc),
            Format::Q4_K | Format::Q5_K => dx.mul_add(d.mul_add(s as f32, -(m * minima as f32)), acc),
            _ => (dx * d).mul_add(s as f32, acc),
        };
    }
    acc
}
