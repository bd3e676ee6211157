//! The one place where threads write into the same output.

#![expect(unsafe_code, reason = "tasks write disjoint parts of one matrix")]

use std::marker::PhantomData;

use super::layout::ROWS;

/// A matrix of outputs, (columns, rows), that tasks fill tile by tile.
pub(super) struct Out<'a> {
    start: *mut f32,
    columns: usize,
    rows: usize,
    borrowed: PhantomData<&'a mut [f32]>,
}

// SAFETY: the only access is `store`, whose callers promise that no two of them name the same tile and column.
unsafe impl Sync for Out<'_> {}

impl<'a> Out<'a> {
    /// # Panics
    /// If `out` is not `columns` times `rows` long.
    pub fn new(out: &'a mut [f32], columns: usize, rows: usize) -> Self {
        assert_eq!(Some(out.len()), columns.checked_mul(rows), "outputs of a product");
        Self { start: out.as_mut_ptr(), columns, rows, borrowed: PhantomData }
    }

    /// Writes the sixteen outputs of a tile for one column; of the last tile as many as there are rows.
    ///
    /// # Safety
    /// No other thread may write this tile and column meanwhile.
    #[inline]
    pub unsafe fn store(&self, tile: usize, column: usize, values: &[f32; ROWS]) {
        let first = tile * ROWS;
        assert!(first < self.rows && column < self.columns, "a tile and a column of this matrix");
        let count = ROWS.min(self.rows - first);
        // SAFETY: the column has `rows` numbers and the asserts put the tile's first one among all of them.
        let to = unsafe { self.start.add(column * self.rows + first) };
        if count == ROWS {
            // SAFETY: `count` numbers from `to` on belong to the borrowed matrix and, as promised, to this thread.
            unsafe { to.cast::<[f32; ROWS]>().write_unaligned(*values) };
        } else {
            // SAFETY: as above; `values` has at least `count`.
            unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), to, count) };
        }
    }
}
