//! Keys and values of one layer as tensors on a GPU. No canonical order here: the device's own kernels decide (N1).

use candle_core::{DType, Device, Result, Tensor};
use mesh_core::plan::KvType;

use super::slab::HeadShape;
use super::{SLAB_POSITIONS, element_bytes};

/// Two tensors (capacity, heads, dim) that grow by doubling, rounded up to whole slabs.
#[derive(Debug)]
pub(super) struct DeviceLayer {
    heads: HeadShape,
    kind: KvType,
    device: Device,
    sides: Option<[Tensor; 2]>,
    capacity: u32,
}

impl DeviceLayer {
    /// An empty one.
    pub(super) fn new(heads: HeadShape, kind: KvType, device: &Device) -> Self {
        Self { heads, kind, device: device.clone(), sides: None, capacity: 0 }
    }

    /// Bytes allocated on the device.
    pub(super) fn bytes(&self) -> u64 {
        2 * u64::from(self.capacity) * (self.heads.width() * element_bytes(self.kind)) as u64
    }

    /// Puts keys and values, (positions, heads, dim), behind `positions`.
    pub(super) fn append(&mut self, positions: u32, keys: &[f32], values: &[f32]) -> Result<()> {
        let shape = (keys.len() / self.heads.width(), self.heads.kv_heads, self.heads.dim);
        let keys = Tensor::from_slice(keys, shape, &self.device)?;
        let values = Tensor::from_slice(values, shape, &self.device)?;
        self.append_tensors(positions, &keys, &values)
    }

    /// Puts keys and values, (positions, heads, dim) on this device, behind `positions`.
    pub(super) fn append_tensors(&mut self, positions: u32, keys: &Tensor, values: &Tensor) -> Result<()> {
        let count = keys.dim(0)? as u32;
        self.reserve(positions, positions.saturating_add(count))?;
        let Some(sides) = &self.sides else { return Ok(()) };
        for (side, new) in sides.iter().zip([keys, values]) {
            side.slice_set(&new.to_dtype(dtype(self.kind))?.contiguous()?, 0, positions as usize)?;
        }
        Ok(())
    }

    /// Gives the tensors back once nothing is left in them.
    pub(super) fn truncate(&mut self, positions: u32) {
        if positions == 0 {
            self.sides = None;
            self.capacity = 0;
        }
    }

    /// Keys and values of the first `positions`, as 32-bit floats.
    pub(super) fn tensors(&self, positions: u32) -> Result<(Tensor, Tensor)> {
        match &self.sides {
            Some([keys, values]) => {
                let first = |side: &Tensor| side.narrow(0, 0, positions as usize)?.to_dtype(DType::F32);
                Ok((first(keys)?, first(values)?))
            }
            None => {
                let empty = Tensor::zeros((0, self.heads.kv_heads, self.heads.dim), DType::F32, &self.device)?;
                Ok((empty.clone(), empty))
            }
        }
    }

    /// Appends the bytes of positions `from..to`: keys, then values.
    pub(super) fn export(&self, from: u32, to: u32, bytes: &mut Vec<u8>) -> Result<()> {
        for side in self.sides.iter().flatten() {
            let part = side.narrow(0, from as usize, (to - from) as usize)?.flatten_all()?;
            match self.kind {
                KvType::F32 => part.to_vec1::<f32>()?.iter().for_each(|x| bytes.extend_from_slice(&x.to_le_bytes())),
                KvType::F16 => part.to_vec1::<half::f16>()?.iter().for_each(|x| bytes.extend_from_slice(&x.to_le_bytes())),
            }
        }
        Ok(())
    }

    /// Makes room for `end` positions, of which the first `positions` are in use.
    fn reserve(&mut self, positions: u32, end: u32) -> Result<()> {
        if end <= self.capacity {
            return Ok(());
        }
        let capacity = end.max(self.capacity.saturating_mul(2)).div_ceil(SLAB_POSITIONS).saturating_mul(SLAB_POSITIONS);
        let shape = (capacity as usize, self.heads.kv_heads, self.heads.dim);
        let grown = [Tensor::zeros(shape, dtype(self.kind), &self.device)?, Tensor::zeros(shape, dtype(self.kind), &self.device)?];
        if positions > 0 {
            for (old, new) in self.sides.iter().flatten().zip(&grown) {
                new.slice_set(&old.narrow(0, 0, positions as usize)?.contiguous()?, 0, 0)?;
            }
        }
        self.sides = Some(grown);
        self.capacity = capacity;
        Ok(())
    }
}

fn dtype(kind: KvType) -> DType {
    match kind {
        KvType::F32 => DType::F32,
        KvType::F16 => DType::F16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Candle's CPU device stands in for a GPU: the code is the same.
    #[test]
    fn grows_and_gives_back_what_was_put() {
        let heads = HeadShape { kv_heads: 2, dim: 3 };
        for kind in [KvType::F32, KvType::F16] {
            let mut layer = DeviceLayer::new(heads, kind, &Device::Cpu);
            let numbers: Vec<f32> = (0..300 * 6).map(|i| (i % 97) as f32).collect();
            let other: Vec<f32> = numbers.iter().map(|x| -x).collect();
            layer.append(0, &numbers[..200 * 6], &other[..200 * 6]).unwrap();
            layer.append(200, &numbers[200 * 6..], &other[200 * 6..]).unwrap();
            let (keys, values) = layer.tensors(300).unwrap();
            assert_eq!(keys.flatten_all().unwrap().to_vec1::<f32>().unwrap(), numbers);
            assert_eq!(values.flatten_all().unwrap().to_vec1::<f32>().unwrap(), other);
            assert_eq!(layer.bytes(), 2 * 512 * 6 * element_bytes(kind) as u64);
            let mut bytes = Vec::new();
            layer.export(7, 9, &mut bytes).unwrap();
            assert_eq!(super::super::decode(kind, &bytes), [&numbers[42..54], &other[42..54]].concat());
            layer.truncate(0);
            assert_eq!(layer.bytes(), 0);
        }
    }
}
