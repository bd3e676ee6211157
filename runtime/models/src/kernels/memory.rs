//! Memory for weights: zeroed, aligned to lines, in huge pages where the system gives them.
//!
//! Huge pages are worth 10 % of raw read bandwidth and 3 % of decode speed (measured on a Zen 5 server): a pass walks all
//! weights, and with 4 KiB pages that is a miss of the address cache every 64 lines.

#![expect(unsafe_code, reason = "aligned allocation and advice about pages")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// An owned, zeroed block of bytes that begins at a line.
#[derive(Debug)]
pub(crate) struct Memory {
    start: NonNull<u8>,
    bytes: usize,
    kept: Kept,
}

/// How to give it back.
#[derive(Clone, Copy, Debug)]
enum Kept {
    /// Nothing was taken.
    Nothing,
    /// From the allocator.
    Heap(Layout),
    /// A mapping that begins before `start`.
    #[cfg(unix)]
    Mapped { base: NonNull<libc::c_void>, length: usize },
}

/// Size of a huge page, and the least amount that is asked for as such.
const HUGE: usize = 2 << 20;
/// Smaller than a huge page, larger than any register.
const ALIGN: usize = 64;

// SAFETY: the bytes are owned by this value alone; `&Memory` gives out only shared slices.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// So many zeros. `None` if the system has no such memory.
    pub fn zeroed(bytes: usize) -> Option<Self> {
        if bytes == 0 {
            return Some(Self { start: NonNull::dangling(), bytes, kept: Kept::Nothing });
        }
        #[cfg(unix)]
        if bytes >= HUGE {
            return Self::mapped(bytes);
        }
        let layout = Layout::from_size_align(bytes, ALIGN).ok()?;
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { start, bytes, kept: Kept::Heap(layout) })
    }

    /// A fresh mapping, zero without being written, with its start on a huge page's boundary.
    #[cfg(unix)]
    fn mapped(bytes: usize) -> Option<Self> {
        let length = bytes.checked_add(HUGE)?;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANON);
        // SAFETY: a new anonymous mapping at an address of the system's choice touches nothing that exists.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return None;
        }
        let base = NonNull::new(base)?;
        let skip = base.cast::<u8>().align_offset(HUGE);
        // SAFETY: `skip` is less than HUGE, and the mapping is HUGE longer than `bytes`.
        let start = unsafe { base.cast::<u8>().add(skip) };
        #[cfg(target_os = "linux")]
        // SAFETY: advice about pages of our own mapping; refusal (no huge pages here) changes nothing.
        unsafe {
            libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE)
        };
        Some(Self { start, bytes, kept: Kept::Mapped { base, length } })
    }

    /// All of it.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `start` is valid for `bytes` initialised bytes (zeroed by the system, written as bytes since), or dangling
        // and aligned with a length of 0; it lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// All of it, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as for `as_slice`, and `&mut self` makes it the only access.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match self.kept {
            Kept::Nothing => {}
            // SAFETY: allocated with this layout, and not used after.
            Kept::Heap(layout) => unsafe { dealloc(self.start.as_ptr(), layout) },
            #[cfg(unix)]
            // SAFETY: exactly the mapping made in `mapped`, and not used after.
            Kept::Mapped { base, length } => unsafe {
                libc::munmap(base.as_ptr(), length);
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_large_blocks_are_zero_aligned_and_writable() {
        for bytes in [0, 1, 4096, HUGE, HUGE * 2 + 3] {
            let mut memory = Memory::zeroed(bytes).expect("memory");
            assert_eq!(memory.as_slice().len(), bytes);
            assert!(memory.as_slice().iter().all(|&byte| byte == 0));
            if bytes > 0 {
                assert!(memory.as_slice().as_ptr().cast::<u8>().starts_a_line());
                memory.as_mut_slice()[bytes - 1] = 7;
                assert_eq!(memory.as_slice()[bytes - 1], 7);
            }
        }
    }

    #[test]
    fn what_no_machine_has_is_refused() {
        assert!(Memory::zeroed(usize::MAX / 2).is_none());
    }

    trait Aligned {
        fn starts_a_line(self) -> bool;
    }

    impl Aligned for *const u8 {
        fn starts_a_line(self) -> bool {
            (self as usize).is_multiple_of(ALIGN)
        }
    }
}
