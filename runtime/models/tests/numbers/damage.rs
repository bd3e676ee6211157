//! Damaged and hostile files cost an error, never a panic or much memory.

use std::fs;
use std::path::Path;

use mesh_core::model::Layers;
use mesh_core::plan::Numerics;
use mesh_core::ports::{EngineOptions, ModelError};
use mesh_models::compute::Compute;
use mesh_models::engine::LayerEngine;
use mesh_models::model_files::{ModelFiles, Origin};
use mesh_models::sheet::sheet_of;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::chain::{Quiet, fixture};

/// Reads everything that a node would read of a model: sheet, weights, text.
fn read_all(origin: &Origin) -> Result<(), ModelError> {
    let files = ModelFiles::open(origin)?;
    let sheet = sheet_of(&files)?;
    let layers = Layers::new(0, sheet.layer_count());
    let options = EngineOptions { threads: 1, numerics: Numerics::default(), context: sheet.context_max, kv_bytes_max: 1 << 20 };
    LayerEngine::load(Compute::cpu(1), &files, sheet, layers, options, &Quiet)?;
    origin.text().map(drop)
}

/// What happens to a file.
#[derive(Clone, Debug)]
enum Harm {
    /// A byte becomes another.
    Byte { at: Index, to: u8 },
    /// Eight bytes become a number that counts and lengths are hurt by.
    Number { at: Index, to: u64 },
    /// The end is cut off.
    Cut { at: Index },
}

fn harms() -> impl Strategy<Value = Vec<Harm>> {
    let number = prop_oneof![Just(1_u64 << 60), Just(u64::MAX), Just(1 << 31), Just(0), any::<u64>(), 0_u64..300];
    let harm = prop_oneof![
        4 => (any::<Index>(), any::<u8>()).prop_map(|(at, to)| Harm::Byte { at, to }),
        2 => (any::<Index>(), number).prop_map(|(at, to)| Harm::Number { at, to }),
        1 => any::<Index>().prop_map(|at| Harm::Cut { at }),
    ];
    proptest::collection::vec(harm, 1..4)
}

/// The bytes after harm to the first `within` of them.
fn harmed(mut bytes: Vec<u8>, within: usize, harms: &[Harm]) -> Vec<u8> {
    for harm in harms {
        let within = within.min(bytes.len());
        if within == 0 {
            break;
        }
        match harm {
            Harm::Byte { at, to } => bytes[at.index(within)] = *to,
            Harm::Number { at, to } => {
                let at = at.index(within);
                let end = bytes.len().min(at + 8);
                bytes[at..end].copy_from_slice(&to.to_le_bytes()[..end - at]);
            }
            Harm::Cut { at } => bytes.truncate(at.index(within)),
        }
    }
    bytes
}

/// Address space that this process ever had, in bytes: it shows allocations that were never touched. Linux only.
fn address_space_peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()).map_or(0, |kib| kib << 10)
}

/// More than all tests of this binary need together, by far less than a believed length would ask for.
const PEAK_BYTES_MAX: u64 = 6 << 30;

fn write(dir: &Path, name: &str, bytes: &[u8]) {
    fs::write(dir.join(name), bytes).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn a_gguf_file(harms in harms(), in_header in any::<bool>()) {
        let bytes = fs::read(fixture("gguf_llama/model-Q4_K_M.gguf")).unwrap();
        let within = if in_header { 24_000 } else { bytes.len() };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        write(dir.path(), "model.gguf", &harmed(bytes, within, &harms));
        let _ = read_all(&Origin::Gguf(path));
        prop_assert!(address_space_peak() < PEAK_BYTES_MAX);
    }

    #[test]
    fn a_safetensors_file(harms in harms(), in_header in any::<bool>()) {
        let bytes = fs::read(fixture("qwen3/model.safetensors")).unwrap();
        let within = if in_header { 5_000 } else { bytes.len() };
        let dir = tempfile::tempdir().unwrap();
        for name in ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"] {
            fs::copy(fixture("qwen3").join(name), dir.path().join(name)).unwrap();
        }
        write(dir.path(), "model.safetensors", &harmed(bytes, within, &harms));
        let _ = read_all(&Origin::Directory(dir.path().to_owned()));
        prop_assert!(address_space_peak() < PEAK_BYTES_MAX);
    }

    #[test]
    fn the_json_beside_them(harms in harms(), which in 0_usize..4) {
        let names = ["config.json", "generation_config.json", "tokenizer_config.json", "model.safetensors.index.json"];
        let dir = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(fixture("llama")).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
        }
        let bytes = fs::read(dir.path().join(names[which])).unwrap();
        let len = bytes.len();
        write(dir.path(), names[which], &harmed(bytes, len, &harms));
        let _ = read_all(&Origin::Directory(dir.path().to_owned()));
        prop_assert!(address_space_peak() < PEAK_BYTES_MAX);
    }
}

#[test]
fn an_undamaged_copy_is_read() {
    for origin in [Origin::Gguf(fixture("gguf_llama/model-Q4_K_M.gguf")), Origin::Directory(fixture("qwen3")), Origin::Builtin] {
        read_all(&origin).unwrap();
    }
}
