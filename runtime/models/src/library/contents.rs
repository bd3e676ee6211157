//! A digest of everything in a model's files. The sheet's digest is there at once but sees little of the numbers; this one
//! tells a damaged or requantised copy for certain.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use mesh_core::ids::Digest;
use mesh_core::ports::{ModelError, Progress};

use super::place;
use crate::builtin;
use crate::files::{Fault, Weights};
use crate::model_files::Origin;

/// Read at once.
const CHUNK_BYTES: usize = 1 << 20;

/// The digest of all contents.
pub(super) fn digest(origin: &Origin, progress: &dyn Progress) -> Result<Digest, ModelError> {
    let mut hash = blake3::Hasher::new();
    hash.update(b"mesh model contents, version 1\n");
    match origin {
        Origin::Builtin => {
            for (name, bytes) in builtin::contents() {
                head(&mut hash, name, bytes.len() as u64);
                hash.update(bytes);
            }
        }
        Origin::Directory(dir) => files(&mut hash, &place::model_files(dir), progress)?,
        Origin::Gguf(path) => {
            let parts: Vec<PathBuf> = Weights::from_gguf(path)?.files().filter_map(|file| file.path().map(Path::to_owned)).collect();
            files(&mut hash, &parts, progress)?;
        }
    }
    Ok(Digest(*hash.finalize().as_bytes()))
}

fn files(hash: &mut blake3::Hasher, paths: &[PathBuf], progress: &dyn Progress) -> Result<(), ModelError> {
    let sizes: Result<Vec<u64>, ModelError> = paths
        .iter()
        .map(|path| std::fs::metadata(path).map(|about| about.len()).map_err(|error| Fault::from(error).of(path.display())))
        .collect();
    let sizes = sizes?;
    let (mut done, all) = (0, sizes.iter().sum());
    let mut chunk = vec![0; CHUNK_BYTES];
    for (path, bytes) in paths.iter().zip(sizes) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        head(hash, &name, bytes);
        let refused = |error: std::io::Error| Fault::from(error).of(path.display());
        let mut file = File::open(path).map_err(refused)?.take(bytes);
        loop {
            if progress.give_up() {
                return Err(ModelError::GivenUp);
            }
            let read = file.read(&mut chunk).map_err(refused)?;
            if read == 0 {
                break;
            }
            hash.update(&chunk[..read]);
            done += read as u64;
            progress.loaded(done, all);
        }
    }
    Ok(())
}

fn head(hash: &mut blake3::Hasher, name: &str, bytes: u64) {
    hash.update(&(name.len() as u64).to_le_bytes());
    hash.update(name.as_bytes());
    hash.update(&bytes.to_le_bytes());
}
