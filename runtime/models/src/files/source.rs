//! Where bytes come from: a file, or memory that lives as long as the program.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufReader, Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::Fault;

/// Bytes with a length that does not change. A file that shrinks behind our back gives errors, never less than was asked for.
#[derive(Debug)]
pub struct Source {
    name: String,
    bytes: u64,
    from: From,
}

#[derive(Debug)]
enum From {
    File { file: File, path: PathBuf },
    Memory(&'static [u8]),
}

impl Source {
    /// A file that is there.
    ///
    /// # Errors
    /// It is not, or may not be read.
    pub fn file(path: &Path) -> Result<Self, Fault> {
        // Asked first: opening a pipe would wait for its other end.
        let about = std::fs::metadata(path)?;
        if !about.is_file() {
            return Err(Fault::System("it is no file".into()));
        }
        let file = File::open(path)?;
        Ok(Self { name: path.display().to_string(), bytes: about.len(), from: From::File { file, path: path.to_owned() } })
    }

    /// Bytes of the program itself.
    #[must_use]
    pub fn memory(name: &str, bytes: &'static [u8]) -> Self {
        Self { name: name.to_owned(), bytes: bytes.len() as u64, from: From::Memory(bytes) }
    }

    /// For errors.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file's path, if it is one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match &self.from {
            From::File { path, .. } => Some(path),
            From::Memory(_) => None,
        }
    }

    /// How many bytes there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// All of it, from the start on.
    ///
    /// # Errors
    /// The operating system refused.
    pub fn reader(&self) -> Result<Box<dyn Read + '_>, Fault> {
        match &self.from {
            From::File { file, .. } => {
                let mut file = file;
                file.seek(SeekFrom::Start(0))?;
                Ok(Box::new(BufReader::with_capacity(1 << 16, file)))
            }
            From::Memory(bytes) => Ok(Box::new(Cursor::new(*bytes))),
        }
    }

    /// `bytes` bytes at `offset`. Memory is taken only if the source has them.
    ///
    /// # Errors
    /// They are past the end, the file was cut, or the operating system refused.
    pub fn read(&self, offset: u64, bytes: u64) -> Result<Cow<'_, [u8]>, Fault> {
        let beyond = || Fault::damaged(format!("{bytes} bytes at {offset} are past its end at {}", self.bytes));
        let end = offset.checked_add(bytes).filter(|end| *end <= self.bytes).ok_or_else(beyond)?;
        match &self.from {
            From::Memory(all) => Ok(Cow::Borrowed(&all[offset as usize..end as usize])),
            From::File { file, .. } => {
                let mut file = file;
                file.seek(SeekFrom::Start(offset))?;
                let mut buffer = Vec::new();
                buffer.try_reserve_exact(usize::try_from(bytes).map_err(|_| beyond())?).map_err(|_| no_memory(bytes))?;
                file.take(bytes).read_to_end(&mut buffer)?;
                if buffer.len() as u64 != bytes {
                    return Err(Fault::damaged("it became shorter while it was read"));
                }
                Ok(Cow::Owned(buffer))
            }
        }
    }
}

fn no_memory(bytes: u64) -> Fault {
    Fault::System(format!("no memory for a tensor of {bytes} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_there_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, b"0123456789").unwrap();
        for source in [Source::file(&path).unwrap(), Source::memory("memory", b"0123456789")] {
            assert_eq!(source.read(3, 4).unwrap().as_ref(), b"3456");
            for (offset, bytes) in [(3, 8), (11, 0), (u64::MAX, 2), (0, 1 << 60)] {
                assert!(matches!(source.read(offset, bytes), Err(Fault::Damaged(_))), "{bytes} at {offset}");
            }
        }
        let source = Source::file(&path).unwrap();
        std::fs::write(&path, b"01234").unwrap();
        assert_eq!(source.read(3, 4), Err(Fault::damaged("it became shorter while it was read")));
        assert!(matches!(Source::file(dir.path()), Err(Fault::System(_))));
    }
}
