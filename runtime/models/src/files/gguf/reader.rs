//! Reads a header without believing its counts.

use std::io::Read;

use crate::files::Fault;

/// Bytes of a file's start, counted, and the memory that was taken for what they said.
#[derive(Debug)]
pub(super) struct Reader<R> {
    from: R,
    position: u64,
    file_bytes: u64,
    memory: u64,
    memory_max: u64,
}

/// Memory reckoned for a string besides its bytes.
const STRING_MEMORY: u64 = 32;

impl<R: Read> Reader<R> {
    pub(super) fn new(from: R, file_bytes: u64, memory_max: u64) -> Self {
        Self { from, position: 0, file_bytes, memory: 0, memory_max }
    }

    /// Bytes read so far.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Whether `count` things of at least `bytes_min` bytes can follow.
    pub(super) fn expect(&self, count: u64, bytes_min: u64, what: &str) -> Result<(), Fault> {
        let left = self.file_bytes.saturating_sub(self.position);
        if count.checked_mul(bytes_min).is_none_or(|bytes| bytes > left) {
            return Err(Fault::damaged(format!("it claims {count} {what}, but only {left} bytes follow")));
        }
        Ok(())
    }

    /// Counts memory that is about to be taken.
    pub(super) fn charge(&mut self, bytes: u64, what: &str) -> Result<(), Fault> {
        self.memory = self.memory.saturating_add(bytes);
        if self.memory > self.memory_max {
            return Err(Fault::damaged(format!("its header would take more than {} MiB of memory, at {what:?}", self.memory_max >> 20)));
        }
        Ok(())
    }

    pub(super) fn bytes<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Fault> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, what)?;
        Ok(bytes)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, Fault> {
        self.bytes(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, Fault> {
        self.bytes(what).map(u64::from_le_bytes)
    }

    pub(super) fn string(&mut self, what: &str) -> Result<String, Fault> {
        let len = self.u64(what)?;
        self.expect(len, 1, &format!("bytes of text for {what:?}"))?;
        self.charge(len.saturating_add(STRING_MEMORY), what)?;
        let mut bytes = vec![0; usize::try_from(len).map_err(|_| Fault::damaged(format!("the text of {what:?} is too long")))?];
        self.fill(&mut bytes, what)?;
        String::from_utf8(bytes).map_err(|_| Fault::damaged(format!("the text of {what:?} is not UTF-8")))
    }

    fn fill(&mut self, bytes: &mut [u8], what: &str) -> Result<(), Fault> {
        self.from.read_exact(bytes).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => Fault::damaged(format!("it ends in the middle of its header, at {what:?}")),
            _ => error.into(),
        })?;
        self.position += bytes.len() as u64;
        Ok(())
    }
}
