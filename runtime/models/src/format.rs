//! Storage formats of weights, as GGUF and safetensors files have them.
//!
//! A file stores a row as blocks of [`Format::block_len`] numbers. Floats are blocks of one. What a block's bytes mean
//! is told where they are read, in `kernels/file.rs`.

/// How a weight's numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(non_camel_case_types, reason = "these are the names that files and people use")]
pub enum Format {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of a single.
    BF16,
    /// 4 bits with a scale for 32 numbers: d (q - 8).
    Q4_0,
    /// 4 bits with a scale and a minimum for 32 numbers: d q + m.
    Q4_1,
    /// 5 bits with a scale for 32 numbers: d (q - 16).
    Q5_0,
    /// 5 bits with a scale and a minimum for 32 numbers: d q + m.
    Q5_1,
    /// 8 bits with a scale for 32 numbers: d q.
    Q8_0,
    /// 4 bits; 6-bit scale and minimum for 32 numbers, a scale of each for 256: d s q - dmin m.
    Q4_K,
    /// 5 bits, else as Q4_K.
    Q5_K,
    /// 6 bits; 8-bit scale for 16 numbers, a scale for 256: d s (q - 32).
    Q6_K,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 11] =
        [Self::F32, Self::F16, Self::BF16, Self::Q4_0, Self::Q4_1, Self::Q5_0, Self::Q5_1, Self::Q8_0, Self::Q4_K, Self::Q5_K, Self::Q6_K];

    /// The format with this number in GGUF files, if it is one that we read.
    #[must_use]
    pub fn from_ggml(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.to_ggml() == id)
    }

    /// The number of this format in GGUF files.
    #[must_use]
    pub fn to_ggml(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q5_1 => 7,
            Self::Q8_0 => 8,
            Self::Q4_K => 12,
            Self::Q5_K => 13,
            Self::Q6_K => 14,
            Self::BF16 => 30,
        }
    }

    /// The name that files and people use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q4_K => "Q4_K",
            Self::Q5_K => "Q5_K",
            Self::Q6_K => "Q6_K",
        }
    }

    /// Numbers in a block. A row holds whole blocks.
    #[must_use]
    pub fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q4_K | Self::Q5_K | Self::Q6_K => 256,
        }
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
        }
    }

    /// Whether numbers are stored as they are, without scales.
    #[must_use]
    pub fn is_float(self) -> bool {
        self.block_len() == 1
    }

    /// Bytes of a matrix in a file. `None` if a row is not a whole number of blocks, or the product passes 64 bits.
    #[must_use]
    pub fn bytes_of(self, rows: usize, cols: usize) -> Option<u64> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        let row = u64::try_from(cols / self.block_len()).ok()?.checked_mul(self.block_bytes() as u64)?;
        u64::try_from(rows).ok()?.checked_mul(row)
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_files_go_there_and_back() {
        for format in Format::ALL {
            assert_eq!(Format::from_ggml(format.to_ggml()), Some(format));
        }
        assert_eq!(Format::from_ggml(4), None, "a format withdrawn long ago");
        assert_eq!(Format::from_ggml(u32::MAX), None);
    }

    #[test]
    fn a_matrix_takes_whole_blocks_and_never_overflows() {
        assert_eq!(Format::Q4_1.bytes_of(3, 576), Some(3 * 18 * 20));
        assert_eq!(Format::Q6_K.bytes_of(2, 512), Some(2 * 2 * 210));
        assert_eq!(Format::BF16.bytes_of(2, 5), Some(20));
        assert_eq!(Format::Q4_K.bytes_of(2, 576), None);
        assert_eq!(Format::Q8_0.bytes_of(1, 33), None);
        assert_eq!(Format::F32.bytes_of(usize::MAX, usize::MAX), None);
    }
}
