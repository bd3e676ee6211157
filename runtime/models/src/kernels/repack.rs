//! From the file's rows to tiles, once, when a weight is loaded.

use super::file::Block;
use super::layout::{FLOAT_BLOCK, FLOAT_ROWS, LINE, Layout, ROWS, pack_scales};
use crate::format::Format;

/// Writes one tile from its rows in file layout. `rows` holds at most [`ROWS`] of them; the tile is zero before.
pub(super) fn tile(layout: &Layout, rows: &[u8], tile: &mut [u8]) {
    let row_bytes = layout.cols / layout.format.block_len() * layout.format.block_bytes();
    if row_bytes == 0 {
        return;
    }
    let mut block = Block::new();
    for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
        match layout.format {
            Format::F32 => float_row::<4>(layout, lane, row, tile),
            Format::F16 | Format::BF16 => float_row::<2>(layout, lane, row, tile),
            format => {
                for (b, bytes) in row.chunks_exact(format.block_bytes()).enumerate() {
                    block.read(format, bytes);
                    quantised_block(layout, b, lane, &block, tile);
                }
            }
        }
    }
}

/// Writes one row of floats, `W` bytes each.
fn float_row<const W: usize>(layout: &Layout, lane: usize, row: &[u8], tile: &mut [u8]) {
    let stream = &mut tile[lane / FLOAT_ROWS * layout.blocks * FLOAT_ROWS * FLOAT_BLOCK * W..];
    for (b, block) in row.chunks(FLOAT_BLOCK * W).enumerate() {
        let to = &mut stream[(b * FLOAT_ROWS + lane % FLOAT_ROWS) * FLOAT_BLOCK * W..][..FLOAT_BLOCK * W];
        if layout.format == Format::BF16 {
            to[..block.len()].copy_from_slice(block);
            continue;
        }
        for (k, value) in block.chunks_exact(W).enumerate() {
            // Odd ones first.
            let slot = if k % 2 == 1 { k / 2 } else { FLOAT_BLOCK / 2 + k / 2 };
            to[slot * W..][..W].copy_from_slice(value);
        }
    }
}

/// Writes one row's part of a quantised block.
fn quantised_block(layout: &Layout, b: usize, lane: usize, block: &Block, tile: &mut [u8]) {
    let place = layout.place(b);
    put_half(tile, place.scales, lane, block.d);
    let mut at = place.lines;
    match layout.format {
        Format::F32 | Format::F16 | Format::BF16 => unreachable!("floats have no blocks"),
        Format::Q4_0 => nibble_lines(&block.q[..32], lane, tile, &mut at),
        Format::Q5_0 => {
            nibble_lines(&block.q[..32], lane, tile, &mut at);
            bit_line(&block.q[..32], lane, tile, &mut at);
        }
        Format::Q4_1 => {
            put_half(tile, place.scales + 32, lane, block.m);
            nibble_lines(&block.q[..32], lane, tile, &mut at);
        }
        Format::Q5_1 => {
            put_half(tile, place.scales + 32, lane, block.m);
            nibble_lines(&block.q[..32], lane, tile, &mut at);
            bit_line(&block.q[..32], lane, tile, &mut at);
        }
        Format::Q8_0 => {
            for four in block.q[..32].chunks_exact(4) {
                put_word(tile, &mut at, lane, word(four));
            }
        }
        Format::Q4_K | Format::Q5_K => {
            put_half(tile, place.scales + 32, lane, block.m);
            for word in pack_scales(&block.scales, &block.mins) {
                put_word(tile, &mut at, lane, word);
            }
            for sub in block.q.chunks_exact(32) {
                nibble_lines(sub, lane, tile, &mut at);
                if layout.format == Format::Q5_K {
                    bit_line(sub, lane, tile, &mut at);
                }
            }
        }
        Format::Q6_K => {
            for four in block.scales.chunks_exact(4) {
                put_word(tile, &mut at, lane, word(&[four[0], four[1], four[2], four[3]].map(i8::cast_unsigned)));
            }
            for sub in block.q.chunks_exact(16) {
                nibble_lines(sub, lane, tile, &mut at);
                let upper = (0..4).fold(0, |bits, g| bits | (word(&sub[4 * g..]) >> 4 & 0x0303_0303) << (2 * g));
                put_word(tile, &mut at, lane, upper);
            }
        }
    }
}

/// The lower four bits, eight numbers a line.
fn nibble_lines(q: &[u8], lane: usize, tile: &mut [u8], at: &mut usize) {
    for eight in q.chunks_exact(8) {
        let (low, high) = (word(eight) & 0x0f0f_0f0f, word(&eight[4..]) & 0x0f0f_0f0f);
        put_word(tile, at, lane, low | high << 4);
    }
}

/// The fifth bits of 32 numbers.
fn bit_line(q: &[u8], lane: usize, tile: &mut [u8], at: &mut usize) {
    let bits = (0..8).fold(0, |bits, g| bits | (word(&q[4 * g..]) >> 4 & 0x0101_0101) << g);
    put_word(tile, at, lane, bits);
}

/// Four bytes, the first one lowest.
fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn put_word(tile: &mut [u8], at: &mut usize, lane: usize, word: u32) {
    tile[*at + 4 * lane..][..4].copy_from_slice(&word.to_le_bytes());
    *at += LINE;
}

fn put_half(tile: &mut [u8], at: usize, lane: usize, half: u16) {
    tile[at + 2 * lane..][..2].copy_from_slice(&half.to_le_bytes());
}

const _: () = assert!(ROWS.is_multiple_of(FLOAT_ROWS));
