//! Keys and values of one stream, for a range of layers.
//!
//! A cache is an argument of a forward pass, never part of a model: one set of weights serves many streams and any
//! slice of layers. It grows by slabs of [`SLAB_POSITIONS`] positions without moving what is there, shrinks to any
//! length in place, and can be carried to another node and resumed there with the same bits.
//!
//! Every layer counts its own positions, because a forward pass appends layer after layer; [`KvCache::positions`] is
//! what all layers have. So a pass that stops half-way is undone by `truncate(positions())`.

mod device;
mod slab;

use candle_core::{Device, Tensor};
use mesh_core::model::Layers;
use mesh_core::plan::KvType;

use device::DeviceLayer;
pub(crate) use slab::{BLOCK_POSITIONS, HalfLine, HeadShape, Side, Slab};

/// Positions in one allocation. A slab of an 8 x 128 head layer takes 2 MiB: one huge page.
pub const SLAB_POSITIONS: u32 = 256;

const _: () = assert!((SLAB_POSITIONS as usize).is_multiple_of(BLOCK_POSITIONS));

/// Keys and values of one stream.
#[derive(Debug)]
pub struct KvCache {
    layers: Layers,
    heads: HeadShape,
    kind: KvType,
    held: Vec<Layer>,
}

/// One layer's part.
#[derive(Debug)]
struct Layer {
    positions: u32,
    store: Store,
}

/// Where the numbers lie.
#[derive(Debug)]
enum Store {
    /// Our own slabs, in the layout that the CPU kernels read.
    Slabs(Vec<Slab>),
    /// Tensors on a GPU.
    Device(DeviceLayer),
}

/// Why a cache could not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvError {
    /// The layer is not one of this cache's.
    #[error("layer {layer} is not in this cache, which holds {first}..{end}: plan and engine disagree, open the stream again")]
    NoLayer {
        /// The layer asked for.
        layer: u16,
        /// First layer held.
        first: u16,
        /// One past the last layer held.
        end: u16,
    },
    /// Positions that are not there, or would leave a hole.
    #[error("positions {from}..{to} do not fit a cache of {positions} positions: open the stream again and replay")]
    Positions {
        /// First position asked for.
        from: u32,
        /// One past the last.
        to: u32,
        /// Positions that the layer has.
        positions: u32,
    },
    /// Bytes of another length than the positions need.
    #[error(
        "{bytes} bytes of keys and values are not a whole number of positions of {each} bytes: the sender has another model or KV type"
    )]
    Length {
        /// Bytes received.
        bytes: usize,
        /// Bytes of one position.
        each: usize,
    },
    /// The device failed.
    #[error("the device could not move keys and values: {0}")]
    Device(String),
}

impl KvCache {
    /// An empty cache in main memory for `layers` of `kv_heads` heads of `head_dim` values each.
    #[must_use]
    pub fn new(layers: Layers, kv_heads: usize, head_dim: usize, kind: KvType) -> Self {
        Self::on_device(layers, kv_heads, head_dim, kind, &Device::Cpu)
    }

    /// An empty cache on a device.
    #[must_use]
    pub fn on_device(layers: Layers, kv_heads: usize, head_dim: usize, kind: KvType, device: &Device) -> Self {
        let heads = HeadShape { kv_heads, dim: head_dim };
        let held = layers.indices().map(|_| Layer::empty(heads, kind, device)).collect();
        Self { layers, heads, kind, held }
    }

    /// The layers.
    #[must_use]
    pub fn layers(&self) -> Layers {
        self.layers
    }

    /// Element type.
    #[must_use]
    pub fn kind(&self) -> KvType {
        self.kind
    }

    /// Heads of keys and values, and values of each.
    #[must_use]
    pub(crate) fn heads(&self) -> HeadShape {
        self.heads
    }

    /// Positions that every layer has.
    #[must_use]
    pub fn positions(&self) -> u32 {
        self.held.iter().map(|layer| layer.positions).min().unwrap_or(0)
    }

    /// Positions that one layer has; 0 for a layer that is not here.
    #[must_use]
    pub fn layer_positions(&self, layer: u16) -> u32 {
        self.index(layer).map_or(0, |index| self.held[index].positions)
    }

    /// Keeps the first `positions` of each layer, at most. Memory past them is given back by whole slabs.
    pub fn truncate(&mut self, positions: u32) {
        for layer in &mut self.held {
            layer.truncate(positions);
        }
    }

    /// Holds exactly `layers` from now on. Layers that stay keep their positions, new ones have none.
    pub fn reshape(&mut self, layers: Layers, device: &Device) {
        let mut old: Vec<Option<Layer>> = std::mem::take(&mut self.held).into_iter().map(Some).collect();
        self.held = layers
            .indices()
            .map(|layer| {
                let kept = layer.checked_sub(usize::from(self.layers.first)).and_then(|index| old.get_mut(index)?.take());
                kept.unwrap_or_else(|| Layer::empty(self.heads, self.kind, device))
            })
            .collect();
        self.layers = layers;
    }

    /// Bytes allocated now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.held
            .iter()
            .map(|layer| match &layer.store {
                Store::Slabs(slabs) => slabs.iter().map(Slab::bytes).sum::<u64>(),
                Store::Device(store) => store.bytes(),
            })
            .sum()
    }

    /// Bytes that a cache in main memory takes with `positions` in each of `layers`.
    #[must_use]
    pub fn bytes_at(layers: u16, kv_heads: usize, head_dim: usize, kind: KvType, positions: u32) -> u64 {
        let slab = Slab::bytes_of(HeadShape { kv_heads, dim: head_dim }, kind);
        u64::from(layers).saturating_mul(u64::from(positions.div_ceil(SLAB_POSITIONS))).saturating_mul(slab)
    }

    /// Bytes that this cache will take once each layer has `positions`.
    #[must_use]
    pub fn bytes_with(&self, positions: u32) -> u64 {
        Self::bytes_at(self.layers.count(), self.heads.kv_heads, self.heads.dim, self.kind, positions)
    }

    /// Keys and values of positions `from..to` of one layer, for another node: all keys, then all values, each
    /// (positions, heads, dim) in the cache's element type, little-endian.
    ///
    /// # Errors
    /// A layer or positions that are not here, or a device that failed.
    pub fn export(&self, layer: u16, from: u32, to: u32) -> Result<Vec<u8>, KvError> {
        let held = &self.held[self.index(layer).ok_or_else(|| self.no_layer(layer))?];
        if from > to || to > held.positions {
            return Err(KvError::Positions { from, to, positions: held.positions });
        }
        let mut bytes = Vec::with_capacity(self.position_bytes() * (to - from) as usize);
        match &held.store {
            Store::Slabs(slabs) => {
                for side in [Side::Keys, Side::Values] {
                    for position in from..to {
                        let slab = &slabs[(position / SLAB_POSITIONS) as usize];
                        slab.export(self.heads, side, (position % SLAB_POSITIONS) as usize, &mut bytes);
                    }
                }
            }
            Store::Device(store) => store.export(from, to, &mut bytes).map_err(device_error)?,
        }
        Ok(bytes)
    }

    /// Puts exported keys and values at `from` of one layer, whose positions then end behind them. Returns how many
    /// positions there were. The bytes may come from anywhere: nothing in them is trusted but the numbers.
    ///
    /// # Errors
    /// A layer that is not here, a hole before `from`, a length that is no whole number of positions, a failed device.
    pub fn import(&mut self, layer: u16, from: u32, bytes: &[u8]) -> Result<u32, KvError> {
        let index = self.index(layer).ok_or_else(|| self.no_layer(layer))?;
        let each = self.position_bytes();
        if each == 0 || !bytes.len().is_multiple_of(each) {
            return Err(KvError::Length { bytes: bytes.len(), each });
        }
        let positions = self.held[index].positions;
        let hole = |to: u32| KvError::Positions { from, to, positions };
        let count = u32::try_from(bytes.len() / each).map_err(|_| hole(u32::MAX))?;
        let to = from.checked_add(count).ok_or_else(|| hole(u32::MAX))?;
        if from > positions {
            return Err(hole(to));
        }
        let width = self.heads.width();
        let values = decode(self.kind, bytes);
        let (keys, values) = values.split_at(count as usize * width);
        self.held[index].truncate(from);
        self.append_at(index, keys, values)?;
        Ok(count)
    }

    /// Appends keys and values, each (positions, heads, dim), to one layer.
    ///
    /// # Errors
    /// A layer that is not here, lengths that are no whole number of positions, or a device that failed.
    pub(crate) fn append(&mut self, layer: u16, keys: &[f32], values: &[f32]) -> Result<(), KvError> {
        let index = self.index(layer).ok_or_else(|| self.no_layer(layer))?;
        self.append_at(index, keys, values)
    }

    fn append_at(&mut self, index: usize, keys: &[f32], values: &[f32]) -> Result<(), KvError> {
        let width = self.heads.width();
        if keys.len() != values.len() || width == 0 || !keys.len().is_multiple_of(width) {
            return Err(KvError::Length { bytes: keys.len().max(values.len()) * 4, each: width * 4 });
        }
        let Layer { positions, store } = &mut self.held[index];
        let count = (keys.len() / width) as u32;
        let hole = KvError::Positions { from: *positions, to: u32::MAX, positions: *positions };
        let end = positions.checked_add(count).ok_or(hole)?;
        match store {
            Store::Slabs(slabs) => {
                while slabs.len() < end.div_ceil(SLAB_POSITIONS) as usize {
                    slabs.push(Slab::new(self.heads, self.kind));
                }
                for (offset, (keys, values)) in keys.chunks_exact(width).zip(values.chunks_exact(width)).enumerate() {
                    let position = *positions + offset as u32;
                    let slab = &mut slabs[(position / SLAB_POSITIONS) as usize];
                    slab.put(self.heads, (position % SLAB_POSITIONS) as usize, keys, values);
                }
            }
            Store::Device(store) => store.append(*positions, keys, values).map_err(device_error)?,
        }
        *positions = end;
        Ok(())
    }

    /// Appends tensors (positions, heads, dim) that lie on the cache's device, without a way through main memory.
    pub(crate) fn append_tensors(&mut self, layer: u16, keys: &Tensor, values: &Tensor) -> candle_core::Result<()> {
        let index = self.index(layer).ok_or_else(|| candle_core::Error::wrap(self.no_layer(layer)))?;
        let Layer { positions, store } = &mut self.held[index];
        let Store::Device(store) = store else { candle_core::bail!("tensors on a device meet a cache in main memory") };
        store.append_tensors(*positions, keys, values)?;
        *positions += keys.dim(0)? as u32;
        Ok(())
    }

    /// The slabs of one layer in main memory; none for a layer that is not here or lies on a device.
    pub(crate) fn slabs(&self, layer: u16) -> &[Slab] {
        match self.index(layer).map(|index| &self.held[index].store) {
            Some(Store::Slabs(slabs)) => slabs,
            _ => &[],
        }
    }

    /// Keys and values of one layer on a device, (positions, heads, dim) each.
    pub(crate) fn tensors(&self, layer: u16) -> candle_core::Result<(Tensor, Tensor)> {
        match self.index(layer).map(|index| &self.held[index]) {
            Some(Layer { positions, store: Store::Device(store) }) => store.tensors(*positions),
            _ => candle_core::bail!("layer {layer} has no keys and values on a device"),
        }
    }

    /// Exported bytes of one position of one layer.
    #[must_use]
    pub fn position_bytes(&self) -> usize {
        2 * self.heads.width() * element_bytes(self.kind)
    }

    fn index(&self, layer: u16) -> Option<usize> {
        self.layers.contains(layer).then(|| usize::from(layer - self.layers.first))
    }

    fn no_layer(&self, layer: u16) -> KvError {
        KvError::NoLayer { layer, first: self.layers.first, end: self.layers.end }
    }
}

impl Layer {
    fn empty(heads: HeadShape, kind: KvType, device: &Device) -> Self {
        let store = if device.is_cpu() { Store::Slabs(Vec::new()) } else { Store::Device(DeviceLayer::new(heads, kind, device)) };
        Self { positions: 0, store }
    }

    fn truncate(&mut self, positions: u32) {
        self.positions = self.positions.min(positions);
        match &mut self.store {
            Store::Slabs(slabs) => slabs.truncate(self.positions.div_ceil(SLAB_POSITIONS) as usize),
            Store::Device(store) => store.truncate(self.positions),
        }
    }
}

/// Bytes of one number.
pub(crate) const fn element_bytes(kind: KvType) -> usize {
    match kind {
        KvType::F32 => 4,
        KvType::F16 => 2,
    }
}

/// Little-endian numbers as floats. Exact both ways: a 16-bit float that was widened rounds back to itself.
fn decode(kind: KvType, bytes: &[u8]) -> Vec<f32> {
    match kind {
        KvType::F32 => bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect(),
        KvType::F16 => bytes.as_chunks().0.iter().map(|two| half::f16::from_le_bytes(*two).to_f32()).collect(),
    }
}

fn device_error(error: candle_core::Error) -> KvError {
    KvError::Device(error.to_string())
}

#[cfg(test)]
mod tests;
