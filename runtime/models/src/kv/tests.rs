//! What a cache must keep: the numbers, the counts, the bytes.

use mesh_core::model::Layers;
use mesh_core::plan::KvType;
use proptest::prelude::*;

use super::*;

const WIDTH: usize = 2 * 24;

/// Numbers of `count` positions that say where they belong, exact as 16-bit floats.
fn numbers(salt: usize, first: usize, count: usize) -> Vec<f32> {
    (first * WIDTH..(first + count) * WIDTH).map(|i| ((i * 31 + salt * 7) % 2039) as f32 - 1000.0).collect()
}

fn filled(kind: KvType, positions: usize) -> KvCache {
    let mut cache = KvCache::new(Layers::new(3, 6), 2, 24, kind);
    for layer in 3..6 {
        cache.append(layer, &numbers(layer as usize, 0, positions), &numbers(layer as usize + 50, 0, positions)).unwrap();
    }
    cache
}

#[test]
fn bytes_are_what_is_allocated() {
    for (kind, each) in [(KvType::F32, 4), (KvType::F16, 2)] {
        // 24 values of a key lie in 24 lines of 16 positions, those of a value in 2 lines.
        let slab = 2 * (256 * 24 + 256 * 32) * each;
        assert_eq!(filled(kind, 0).bytes(), 0);
        for (positions, slabs) in [(1, 1), (256, 1), (257, 2), (600, 3)] {
            let cache = filled(kind, positions);
            assert_eq!(cache.bytes(), 3 * slabs * slab);
            assert_eq!(cache.bytes(), KvCache::bytes_at(3, 2, 24, kind, positions as u32));
            assert_eq!(cache.bytes_with(positions as u32), cache.bytes());
        }
        let mut cache = filled(kind, 600);
        cache.truncate(256);
        assert_eq!(cache.bytes(), 3 * slab);
        cache.truncate(0);
        assert_eq!(cache.bytes(), 0);
    }
}

#[test]
fn a_pass_that_stopped_between_layers_is_undone() {
    let mut cache = filled(KvType::F32, 300);
    cache.append(3, &numbers(3, 300, 5), &numbers(53, 300, 5)).unwrap();
    assert_eq!((cache.positions(), cache.layer_positions(3)), (300, 305));
    cache.truncate(cache.positions());
    assert_eq!(cache.layer_positions(3), 300);
    assert_eq!(cache.export(3, 0, 300), filled(KvType::F32, 300).export(3, 0, 300));
}

#[test]
fn layers_that_stay_keep_their_positions() {
    let mut cache = filled(KvType::F16, 10);
    let kept = cache.export(4, 0, 10).unwrap();
    cache.reshape(Layers::new(4, 8), &Device::Cpu);
    assert_eq!((cache.positions(), cache.layer_positions(4), cache.layer_positions(7)), (0, 10, 0));
    assert_eq!(cache.export(4, 0, 10).unwrap(), kept);
    assert!(matches!(cache.export(3, 0, 1), Err(KvError::NoLayer { layer: 3, .. })));
    cache.reshape(Layers::new(0, 5), &Device::Cpu);
    assert_eq!((cache.layer_positions(3), cache.layer_positions(4)), (0, 10));
}

#[test]
fn export_writes_keys_then_values_by_position() {
    let cache = filled(KvType::F32, 20);
    let bytes = cache.export(5, 3, 5).unwrap();
    assert_eq!(decode(KvType::F32, &bytes), [numbers(5, 3, 2), numbers(55, 3, 2)].concat());
    assert_eq!(bytes.len(), 2 * cache.position_bytes());
}

#[test]
fn foreign_bytes_are_refused_not_trusted() {
    let mut cache = filled(KvType::F32, 10);
    let each = cache.position_bytes();
    assert!(matches!(cache.import(4, 0, &vec![0; each + 1]), Err(KvError::Length { .. })));
    assert!(matches!(cache.import(9, 0, &[]), Err(KvError::NoLayer { .. })));
    assert!(matches!(cache.import(4, 11, &vec![0; each]), Err(KvError::Positions { .. })));
    assert!(matches!(cache.import(4, u32::MAX, &vec![0; each]), Err(KvError::Positions { .. })));
    assert!(matches!(cache.export(4, 5, 11), Err(KvError::Positions { .. })));
    assert!(matches!(cache.export(4, 6, 5), Err(KvError::Positions { .. })));
    assert_eq!(cache.layer_positions(4), 10);
    assert_eq!(cache.export(4, 0, 10), filled(KvType::F32, 10).export(4, 0, 10));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn appended_in_any_pieces_cut_and_carried_it_is_the_same(
        pieces in proptest::collection::vec(1_usize..200, 1..5), keep in 0_usize..800, half in any::<bool>()
    ) {
        let kind = if half { KvType::F16 } else { KvType::F32 };
        let total: usize = pieces.iter().sum();
        let whole = filled(kind, total);
        let mut cache = KvCache::new(Layers::new(3, 6), 2, 24, kind);
        for layer in 3..6 {
            let mut first = 0;
            for &piece in &pieces {
                cache.append(layer, &numbers(layer as usize, first, piece), &numbers(layer as usize + 50, first, piece)).unwrap();
                first += piece;
            }
            prop_assert_eq!(cache.export(layer, 0, total as u32), whole.export(layer, 0, total as u32));
        }
        let keep = keep.min(total);
        cache.truncate(keep as u32);
        prop_assert_eq!(cache.positions(), keep as u32);
        let mut carried = KvCache::new(Layers::new(3, 6), 2, 24, kind);
        for layer in 3..6 {
            prop_assert_eq!(carried.import(layer, 0, &cache.export(layer, 0, keep as u32).unwrap()), Ok(keep as u32));
            let rest = whole.export(layer, keep as u32, total as u32).unwrap();
            prop_assert_eq!(carried.import(layer, keep as u32, &rest), Ok((total - keep) as u32));
            prop_assert_eq!(carried.export(layer, 0, total as u32), whole.export(layer, 0, total as u32));
        }
        prop_assert_eq!(carried.bytes(), whole.bytes());
    }
}
