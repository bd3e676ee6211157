use super::*;
use proptest::prelude::*;

/// Writes small files, right or wrong.
#[derive(Clone, Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn head(version: u32, tensors: u64, entries: u64) -> Self {
        Self(b"GGUF".to_vec()).u32(version).u64(tensors).u64(entries)
    }
    fn u32(mut self, n: u32) -> Self {
        self.0.extend(n.to_le_bytes());
        self
    }
    fn u64(mut self, n: u64) -> Self {
        self.0.extend(n.to_le_bytes());
        self
    }
    fn string(mut self, text: &str) -> Self {
        self = self.u64(text.len() as u64);
        self.0.extend(text.as_bytes());
        self
    }
    fn tensor(self, name: &str, dims: &[u64], kind: u32, offset: u64) -> Self {
        let with_dims = dims.iter().fold(self.string(name).u32(dims.len() as u32), |writer, &dim| writer.u64(dim));
        with_dims.u32(kind).u64(offset)
    }
    /// Pads, appends `data` bytes, and reads.
    fn read(mut self, data: usize) -> Result<Gguf, Fault> {
        self.0.resize(self.0.len().next_multiple_of(32) + data, 7);
        Gguf::read(&self.0[..], self.0.len() as u64)
    }
}

fn cause(result: Result<Gguf, Fault>) -> String {
    result.expect_err("accepted").to_string()
}

fn sound() -> Writer {
    let entries = Writer::head(3, 2, 3).string("general.architecture").u32(8).string("llama").string("n").u32(4).u32(7);
    let list = entries.string("list").u32(9).u32(8).u64(2).string("a").string("bc");
    list.tensor("x", &[32, 3], 8, 0).tensor("y", &[5], 0, 128)
}

#[test]
fn a_sound_file_is_read() {
    let gguf = sound().read(148).unwrap();
    assert_eq!((gguf.version, gguf.metadata["n"].as_u64(), gguf.metadata["general.architecture"].as_str()), (3, Some(7), Some("llama")));
    assert_eq!(gguf.metadata["list"].as_array().unwrap()[1].as_str(), Some("bc"));
    let x = gguf.tensor("x").unwrap();
    assert_eq!((x.shape.as_slice(), x.kind.name, x.bytes, x.offset % 32), (&[3, 32][..], "Q8_0", 102, 0));
    assert_eq!(gguf.tensor("y").unwrap().offset, x.offset + 128);
}

#[test]
fn huge_counts_and_lengths_are_errors() {
    let huge = 1_u64 << 60;
    assert!(cause(Writer::head(3, huge, 0).read(0)).contains("claims 1152921504606846976 tensors"));
    assert!(cause(Writer::head(3, 0, huge).read(0)).contains("metadata entries"));
    assert!(cause(Writer::head(3, 0, 1).u64(huge).read(64)).contains("a metadata key"));
    assert!(cause(Writer::head(3, 0, 1).string("k").u32(8).u64(huge).read(64)).contains("\"k\""));
    assert!(cause(Writer::head(3, 0, 1).string("k").u32(9).u32(0).u64(huge).read(64)).contains("values for \"k\""));
    assert!(cause(Writer::head(3, 1, 0).tensor("t", &[huge, huge], 0, 0).read(64)).contains("shape"));
    assert!(cause(Writer::head(3, 1, 0).tensor("t", &[8], 0, huge).read(64)).contains("wants 32 bytes"));
    assert!(cause(Writer::head(3, 1, 0).tensor("t", &[8], 0, u64::MAX - 31).read(64)).contains("wants 32 bytes"));
}

#[test]
fn a_list_that_grows_when_unpacked_meets_the_memory_limit() {
    let mut file = Writer::head(3, 0, 1).string("k").u32(9).u32(0).u64(1 << 20);
    file.0.resize(file.0.len() + (1 << 20), 0);
    let mut reader = Reader::new(&file.0[24..], file.0.len() as u64, 1 << 20);
    assert!(read_metadata(&mut reader, 1).unwrap_err().to_string().contains("more than 1 MiB"));
}

#[test]
fn contradictions_are_named() {
    let deep = (0..6).fold(Writer::head(3, 0, 1).string("k").u32(9), |writer, _| writer.u32(9).u64(1));
    assert!(cause(deep.read(64)).contains("nested"));
    assert!(cause(Writer::head(3, 0, 2).string("k").u32(4).u32(1).string("k").u32(4).u32(1).read(0)).contains("\"k\" twice"));
    assert!(cause(Writer::head(3, 2, 0).tensor("t", &[8], 0, 0).tensor("t", &[8], 0, 32).read(64)).contains("two tensors named \"t\""));
    assert!(cause(Writer::head(3, 2, 0).tensor("t", &[16], 0, 0).tensor("u", &[8], 0, 32).read(64)).contains("overlap"));
    assert!(cause(Writer::head(3, 1, 0).tensor("t", &[33], 8, 0).read(64)).contains("shape"));
    assert!(cause(Writer::head(3, 1, 0).tensor("t", &[8, 0], 0, 0).read(64)).contains("shape"));
    assert!(cause(Writer::head(3, 1, 0).tensor("t", &[], 0, 0).read(64)).contains("0 dimensions"));
    assert!(cause(Writer::head(3, 1, 0).tensor("t", &[8], 0, 8).read(64)).contains("multiple of 32"));
    assert!(cause(Writer::head(3, 0, 1).string("general.alignment").u32(4).u32(33).read(0)).contains("power of two"));
    assert!(cause(Writer::head(3, 0, 1).string("k").u32(77).read(64)).contains("unknown kind 77"));
    assert!(cause(Writer::head(3, 1, 0).tensor("t", &[8], 99, 0).read(64)).contains("storage type 99"));
    assert!(cause(Gguf::read(&b"GGML\x03\0\0\0"[..], 8)).contains("GGML"));
}

#[test]
fn versions_are_told_apart() {
    assert!(Writer::head(2, 0, 0).read(0).is_ok());
    assert!(cause(Writer::head(1, 0, 0).read(0)).contains("version 1"));
    assert!(cause(Writer::head(3_u32.swap_bytes(), 0, 0).read(0)).contains("big-endian"));
    assert!(cause(Writer::head(9, 0, 0).read(0)).contains("version 9"));
}

#[test]
fn every_cut_of_a_file_is_an_error() {
    let mut whole = sound().0;
    let header = whole.len();
    whole.resize(header.next_multiple_of(32) + 148, 7);
    for len in 0..whole.len() {
        assert!(Gguf::read(&whole[..len], len as u64).is_err(), "cut at {len}");
    }
    assert!(Gguf::read(&whole[..], whole.len() as u64).is_ok());
}

proptest! {
    #[test]
    fn changed_bytes_never_panic(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut bytes = sound().0;
        bytes.resize(bytes.len().next_multiple_of(32) + 148, 7);
        for (at, to) in changes {
            let at = at.index(bytes.len());
            bytes[at] = to;
        }
        if let Ok(gguf) = Gguf::read(&bytes[..], bytes.len() as u64) {
            prop_assert!(gguf.tensors.iter().all(|tensor| tensor.offset + tensor.bytes <= bytes.len() as u64));
        }
    }

    #[test]
    fn any_bytes_never_panic(tail in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Gguf::read(&tail[..], tail.len() as u64);
        let mut bytes = Writer::head(3, 3, 3).0;
        bytes.extend(tail);
        let _ = Gguf::read(&bytes[..], bytes.len() as u64);
    }
}
