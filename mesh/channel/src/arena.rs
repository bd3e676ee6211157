#![expect(unsafe_code, reason = "one page-aligned allocation, handed out as slots that own disjoint parts of it")]
//! The memory of one generation: one page-aligned allocation, cut into equal slots.
//!
//! A [`Slot`] owns its part. It is moved, never shared: who holds it may touch it, so a slot in flight cannot be written
//! by accident. The allocation lives until the last slot is gone, and is never used for another generation (R11).

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use mesh_core::ports::{LaneError, LaneShape};

/// Bytes of a slot at most.
pub const SLOT_BYTES_MAX: u32 = 16 << 20;
/// Slots of a lane at most.
pub const SLOTS_MAX: u16 = 1024;
/// Bytes of a lane's arena at most. An offer that asks for more makes no sense.
pub const ARENA_BYTES_MAX: usize = 256 << 20;
/// Slots start on pages: the unit in which memory is registered, and more than any vector instruction asks for.
const PAGE_BYTES: usize = 4096;

/// Checks sizes before any memory is taken.
///
/// # Errors
/// Says which size is out of bounds.
pub(crate) fn check_shape(shape: LaneShape) -> Result<(), String> {
    let LaneShape { slot_bytes, slots } = shape;
    if slot_bytes == 0 || slot_bytes > SLOT_BYTES_MAX {
        return Err(format!("slots of {slot_bytes} bytes; 1 to {SLOT_BYTES_MAX} are possible"));
    }
    if slots == 0 || slots > SLOTS_MAX {
        return Err(format!("{slots} slots; 1 to {SLOTS_MAX} are possible"));
    }
    let bytes = stride(shape) * usize::from(slots);
    if bytes > ARENA_BYTES_MAX {
        return Err(format!("{slots} slots of {slot_bytes} bytes take {bytes} bytes; at most {ARENA_BYTES_MAX} are possible"));
    }
    Ok(())
}

fn stride(shape: LaneShape) -> usize {
    (shape.slot_bytes as usize).next_multiple_of(PAGE_BYTES)
}

/// The slots of a new arena, all zero.
///
/// # Errors
/// Sizes out of bounds, or no memory.
pub(crate) fn slots(shape: LaneShape) -> Result<Vec<Slot>, LaneError> {
    check_shape(shape).map_err(LaneError::System)?;
    let bytes = stride(shape) * usize::from(shape.slots);
    let layout = Layout::from_size_align(bytes, PAGE_BYTES).expect("at most ARENA_BYTES_MAX, and a power of two");
    // SAFETY: `layout` is not empty, since `check_shape` refuses a zero.
    let start = unsafe { alloc_zeroed(layout) };
    let start = NonNull::new(start).ok_or_else(|| LaneError::System(format!("no memory for an arena of {bytes} bytes")))?;
    let block = Arc::new(Block { start, layout });
    let cut = |index: u16| {
        let offset = stride(shape) * usize::from(index);
        // SAFETY: `index < slots`, so `offset` lies inside the allocation.
        let start = unsafe { block.start.add(offset) };
        Slot { start, bytes: shape.slot_bytes as usize, index, _block: Arc::clone(&block) }
    };
    Ok((0..shape.slots).map(cut).collect())
}

/// The allocation. Nobody reads or writes through it; slots do.
struct Block {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: `Block` gives no access to its memory; it only frees it, which any one thread may do.
unsafe impl Send for Block {}
// SAFETY: as above: a shared `Block` can do nothing.
unsafe impl Sync for Block {}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `slots`; every slot holds an `Arc` of the block, so none is left.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// One slot. There is exactly one value for each part of an arena.
pub(crate) struct Slot {
    start: NonNull<u8>,
    bytes: usize,
    index: u16,
    _block: Arc<Block>,
}

// SAFETY: a slot is the only way to its bytes, like a `Box<[u8]>`.
unsafe impl Send for Slot {}
// SAFETY: as above; `&Slot` only reads.
unsafe impl Sync for Slot {}

impl Slot {
    /// Its place in the arena.
    pub(crate) fn index(&self) -> u16 {
        self.index
    }
}

impl Deref for Slot {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `bytes` initialised bytes from `start` belong to this slot only and live as long as its block.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for Slot {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` excludes every other view.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

/// A slot and how many of its bytes are a message.
pub(crate) struct Filled {
    pub(crate) slot: Slot,
    pub(crate) bytes: usize,
}

impl Filled {
    pub(crate) fn message(&self) -> &[u8] {
        &self.slot[..self.bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_aligned_zero_and_disjoint() {
        let shape = LaneShape { slot_bytes: 5000, slots: 3 };
        let mut slots = slots(shape).expect("small");
        for (index, slot) in slots.iter_mut().enumerate() {
            assert_eq!((slot.len(), slot.as_ptr() as usize % PAGE_BYTES, usize::from(slot.index())), (5000, 0, index));
            assert!(slot.iter().all(|&byte| byte == 0));
            slot.fill(0xFF);
        }
    }

    #[test]
    fn a_slot_outlives_its_siblings() {
        let mut slots = slots(LaneShape { slot_bytes: 64, slots: 2 }).expect("small");
        let mut last = slots.pop().expect("two slots");
        drop(slots);
        last.fill(7);
        assert_eq!(last[63], 7);
    }

    #[test]
    fn sizes_out_of_bounds_take_no_memory() {
        for (slot_bytes, slots) in [(0, 1), (1, 0), (u32::MAX, 1), (1, u16::MAX), (SLOT_BYTES_MAX, SLOTS_MAX)] {
            assert!(check_shape(LaneShape { slot_bytes, slots }).is_err(), "{slot_bytes} {slots}");
        }
    }
}
