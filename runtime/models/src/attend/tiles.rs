//! Cuts an attention into tasks for the pool.
//!
//! A task is one kv head of some positions of one stream. When there are fewer tasks than threads can use (decode of few
//! streams), the key blocks are shared out too, kept one by one, and folded in order behind: the same operations.

use std::ops::Range;
use std::sync::Mutex;

use super::blocks::{Blocks, FoldKept, Partials, State, Target, Tile};
use super::{Attention, Shape, Span};
use crate::compute::Compute;
use crate::kv::{BLOCK_POSITIONS, Slab};
use crate::math::dispatch;

/// A span and its stream's cache for the layer, the span's own keys and values included.
pub(super) struct Stream<'a> {
    pub(super) slabs: &'a [Slab],
    pub(super) span: Span,
}

/// Query rows of a task: enough to use a key block often while it is in the first-level cache, few enough that a prompt
/// of some hundred tokens keeps all threads busy (guess).
const ROWS_OF_TASK: usize = 48;

/// Key blocks worth a task of their own (guess).
const BLOCKS_OF_TASK: usize = 2;

/// Multiplications that are worth waking other threads for: some ten microseconds (estimate).
pub(super) const PRODUCTS_OF_THREADS: usize = 200_000;

/// Values that kept blocks may take: 64 MiB. Longer contexts are not cut by blocks.
const KEPT_VALUES_MAX: usize = 16 << 20;

/// A tile and where its results go: for each position the (group, dim) of its kv head.
struct Task<'a> {
    tile: Tile<'a>,
    out: Vec<&'a mut [f32]>,
}

/// Attention of all rows into `out`, (rows, heads, dim).
pub(super) fn attend(cx: &Compute, shape: Shape, q: &[f32], streams: &[Stream<'_>], how: &Attention, out: &mut [f32]) {
    let tasks: Vec<Mutex<Task<'_>>> = cut(shape, q, streams, how, out).into_iter().map(Mutex::new).collect();
    let tiles: Vec<Tile<'_>> = tasks.iter().filter_map(|task| task.lock().ok().map(|task| task.tile)).collect();
    let parts = parts(cx.pool().threads(), &tiles);
    if parts > 1 {
        return in_parts(cx, &tasks, &tiles, parts);
    }
    let run = |index: usize| {
        // Longest first: the last positions of a prompt see the most. Each lock is taken once.
        let Ok(mut task) = tasks[tasks.len() - 1 - index].lock() else { return };
        let tile = task.tile;
        let mut state = State::new(&tile);
        dispatch(cx.level(), Blocks { tile, blocks: tile.blocks(), into: Target::State(&mut state) });
        task.finish(&state);
    };
    if products(&tiles) < PRODUCTS_OF_THREADS { (0..tasks.len()).for_each(run) } else { cx.pool().run(tasks.len(), &run) }
}

/// Each task's blocks in up to `parts` parts.
fn in_parts(cx: &Compute, tasks: &[Mutex<Task<'_>>], tiles: &[Tile<'_>], parts: usize) {
    let kept: Vec<Mutex<Partials>> = (0..tiles.len() * parts).map(|_| Mutex::default()).collect();
    cx.pool().run(kept.len(), &|index| {
        let tile = tiles[index / parts];
        let mut done = Partials::default();
        dispatch(cx.level(), Blocks { tile, blocks: part(tile.blocks(), index % parts, parts), into: Target::Partials(&mut done) });
        if let Ok(mut kept) = kept[index].lock() {
            *kept = done;
        }
    });
    for (task, kept) in tasks.iter().zip(kept.chunks(parts)) {
        let Ok(mut task) = task.lock() else { continue };
        let mut state = State::new(&task.tile);
        for kept in kept.iter().filter_map(|kept| kept.lock().ok()) {
            dispatch(cx.level(), FoldKept { kept: &kept, state: &mut state });
        }
        task.finish(&state);
    }
}

impl Task<'_> {
    fn finish(&mut self, state: &State) {
        let dim = self.tile.heads.dim;
        for (position, out) in self.out.iter_mut().enumerate() {
            for (head, out) in out.chunks_exact_mut(dim).enumerate() {
                state.finish(position * self.tile.group + head, out);
            }
        }
    }
}

/// The tasks: by stream, then kv head, then position.
fn cut<'a>(shape: Shape, q: &'a [f32], streams: &[Stream<'a>], how: &'a Attention, out: &'a mut [f32]) -> Vec<Task<'a>> {
    let Shape { kv, group, .. } = shape;
    let each = (ROWS_OF_TASK / group).max(1);
    let (head_width, q_stride) = (group * kv.dim, kv.kv_heads * group * kv.dim);
    let mut out = out.chunks_exact_mut(head_width);
    let mut tasks = Vec::new();
    let mut row = 0;
    for stream in streams {
        let count = stream.span.count as usize;
        let first_task = tasks.len();
        for kv_head in 0..kv.kv_heads {
            for from in (0..count).step_by(each) {
                let positions = each.min(count - from);
                let tile = Tile {
                    slabs: stream.slabs,
                    heads: kv,
                    kv_head,
                    group,
                    first: stream.span.first + from as u32,
                    positions,
                    q: &q[(row + from) * q_stride + kv_head * head_width..],
                    q_stride,
                    scale: how.scale,
                    window: how.window,
                    sinks: how.sinks.as_ref().map(|sinks| &sinks[kv_head * group..(kv_head + 1) * group]),
                };
                tasks.push(Task { tile, out: Vec::with_capacity(positions) });
            }
        }
        // `out` goes by position, then kv head.
        for position in 0..count {
            for (kv_head, out) in (0..kv.kv_heads).zip(&mut out) {
                tasks[first_task + kv_head * count.div_ceil(each) + position / each].out.push(out);
            }
        }
        row += count;
    }
    tasks
}

/// In how many parts to cut the blocks of each tile.
fn parts(threads: usize, tiles: &[Tile<'_>]) -> usize {
    let blocks = tiles.iter().map(|tile| tile.blocks().len()).max().unwrap_or(0);
    let kept: usize = tiles.iter().map(|tile| tile.blocks().len() * tile.rows() * tile.heads.dim).sum();
    let busy = threads == 1 || tiles.is_empty() || tiles.len() >= 2 * threads;
    if busy || kept > KEPT_VALUES_MAX || products(tiles) < PRODUCTS_OF_THREADS {
        return 1;
    }
    (2 * threads).div_ceil(tiles.len()).min(blocks / BLOCKS_OF_TASK).max(1)
}

/// Multiplications, about.
fn products(tiles: &[Tile<'_>]) -> usize {
    tiles.iter().map(|tile| 2 * tile.blocks().len() * BLOCK_POSITIONS * tile.rows() * tile.heads.dim).sum()
}

/// Part `index` of `parts`.
fn part(blocks: Range<usize>, index: usize, parts: usize) -> Range<usize> {
    let at = |index: usize| blocks.start + index * blocks.len() / parts;
    at(index)..at(index + 1)
}
