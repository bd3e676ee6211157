//! A model's table of contents, from configuration and headers alone. Making it checks that every tensor is there, in a
//! known format and of the right shape, so that a damaged model is refused before any memory is taken.

use std::collections::BTreeMap;

use mesh_core::ids::Digest;
use mesh_core::model::{LayerCost, ModelSheet};
use mesh_core::ports::ModelError;

use crate::arch::{Part, Place, block_parts, embedding_part, find, head_parts, tensor_name, usable};
use crate::files::gguf::Value;
use crate::files::{Fault, Kind, Stored, Weights};
use crate::model_files::ModelFiles;

/// The sheet of a model.
///
/// # Errors
/// A tensor that is missing, misshapen, or stored in a way that cannot be computed with, by name and file.
pub fn sheet_of(files: &ModelFiles) -> Result<ModelSheet, ModelError> {
    let ModelFiles { origin, config, weights, .. } = files;
    let parts = block_parts(config);
    let flops = parts.iter().map(Part::flops).sum();
    let kv_bytes = 2 * config.kv_heads as u64 * config.head_dim as u64 * size_of::<f32>() as u64;
    let kv_bytes = u32::try_from(kv_bytes).map_err(|_| {
        let cause = format!("{} heads of {} values for keys and values make no sense", config.kv_heads, config.head_dim);
        Fault::Damaged(cause).of(weights.name())
    })?;
    let mut layers = Vec::new();
    for layer in 0..config.layers {
        let weight_bytes = parts_bytes(weights, Place::Layer(layer), &parts)?;
        layers.push(LayerCost { weight_bytes, flops, kv_bytes });
    }
    let head = head_parts(config);
    Ok(ModelSheet {
        name: origin.name(),
        digest: digest_of(files)?,
        architecture: config.architecture.name().to_owned(),
        storage: storage_of(weights),
        layers,
        embed_bytes: parts_bytes(weights, Place::Ends, &[embedding_part(config)])?,
        head_bytes: parts_bytes(weights, Place::Ends, &head)?,
        head_flops: head.iter().map(Part::flops).sum(),
        tied: config.tied,
        hidden_width: config.hidden as u32,
        vocabulary: config.vocabulary as u32,
        context_max: config.context,
    })
}

/// Bytes of these parts in the files, which must have them all.
fn parts_bytes(weights: &Weights, place: Place, parts: &[Part]) -> Result<u64, ModelError> {
    let mut bytes = 0_u64;
    for part in parts {
        for (field, shape) in part.tensors() {
            let name = tensor_name(weights.kind(), place, part.name(), field);
            let entry = find(weights, &name, &shape)?;
            let format = usable(weights, &name, entry)?;
            if shape.len() == 1 && !format.is_float() {
                let cause = format!("tensor {name:?} is stored as {format}, but vectors must be F32, F16 or BF16");
                return Err(Fault::Unsupported(cause).of(weights.file_of(entry)));
            }
            bytes = bytes.saturating_add(entry.bytes);
        }
    }
    Ok(bytes)
}

/// blake3 over every tensor's name, type, shape and length in order of names, the configuration, and 64 bytes from the middle
/// of each tensor: a model and another one trained on from it have the same names and shapes, and must not be taken for each
/// other. The same tensors cut into other files have the same digest.
fn digest_of(files: &ModelFiles) -> Result<Digest, ModelError> {
    let mut hash = blake3::Hasher::new();
    hash.update(b"mesh model sheet, version 1\n");
    files.config.digest(&mut hash);
    for (name, entry) in files.weights.tensors() {
        for text in [name.as_str(), entry.stored.name()] {
            hash.update(&(text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        }
        hash.update(&(entry.shape.len() as u64).to_le_bytes());
        for number in entry.shape.iter().chain([&entry.bytes]) {
            hash.update(&number.to_le_bytes());
        }
        hash.update(&files.weights.sample(entry)?);
    }
    Ok(Digest(*hash.finalize().as_bytes()))
}

/// How the weights are stored, in a word: what a GGUF file says of itself, else the type that most bytes have.
fn storage_of(weights: &Weights) -> String {
    if let Kind::Gguf(metadata) = weights.kind()
        && let Some(name) = metadata.get("general.file_type").and_then(Value::as_u64).and_then(file_type)
    {
        return name.to_owned();
    }
    let mut bytes: BTreeMap<&str, u64> = BTreeMap::new();
    for entry in weights.tensors().values() {
        *bytes.entry(entry.stored.name()).or_default() += entry.bytes;
    }
    let most = bytes.into_iter().max_by_key(|(_, bytes)| *bytes).map_or("nothing", |(name, _)| name);
    match weights.tensors().values().find(|entry| entry.stored.name() == most).map(|entry| &entry.stored) {
        Some(Stored::Usable(format)) if format.is_float() => most.to_lowercase(),
        _ => most.to_owned(),
    }
}

/// llama.h, enum llama_ftype, as far as it can be computed with.
fn file_type(number: u64) -> Option<&'static str> {
    Some(match number {
        0 => "F32",
        1 => "F16",
        2 => "Q4_0",
        3 => "Q4_1",
        7 => "Q8_0",
        8 => "Q5_0",
        9 => "Q5_1",
        14 => "Q4_K_S",
        15 => "Q4_K_M",
        16 => "Q5_K_S",
        17 => "Q5_K_M",
        18 => "Q6_K",
        32 => "BF16",
        _ => return None,
    })
}
