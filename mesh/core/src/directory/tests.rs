//! Merging in any order gives the same directory; two directories that exchange digests become equal.

use proptest::prelude::*;

use super::*;
use crate::ids::{BootId, Digest};
use crate::model::LayerCost;
use crate::records::{Capacity, PlanId, Wish};

fn node(id: u8, incarnation: u64, version: u64, boot: u128) -> Record {
    Record::Node(NodeRecord {
        node: NodeId([id; 32]),
        name: format!("n{id}"),
        boot: BootId(boot),
        incarnation,
        version,
        state: NodeState::Up,
        capacity: Capacity::default(),
        numerics_class: 0,
        addresses: Vec::new(),
        models: Vec::new(),
        shards: Vec::new(),
        interfaces: Vec::new(),
        paths: Vec::new(),
    })
}

pub(crate) fn sheet() -> ModelSheet {
    ModelSheet {
        name: "m".into(),
        digest: Digest([1; 32]),
        architecture: "llama".into(),
        storage: "f32".into(),
        layers: vec![LayerCost { weight_bytes: 1000, flops: 1000, kv_bytes: 8 }; 4],
        embed_bytes: 0,
        head_bytes: 0,
        head_flops: 0,
        tied: false,
        hidden_width: 8,
        vocabulary: 100,
        context_max: 64,
    }
}

fn deployment(id: u128, term: u64, epoch: u64, author: u8, deleted: bool) -> Record {
    Record::Deployment(DeploymentRecord {
        id: DeploymentId(id),
        sheet: sheet(),
        contents: None,
        wish: Wish { split: None, context: None, streams: 1, place: Vec::new() },
        version: PlanId { term, epoch, revision: 0, coordinator: NodeId([author; 32]) },
        plan: None,
        status: DeploymentStatus::Planning,
        deleted,
    })
}

fn any_record() -> impl Strategy<Value = Record> {
    prop_oneof![
        (1_u8..4, 0_u64..3, 0_u64..3, 0_u128..2).prop_map(|(id, incarnation, version, boot)| node(id, incarnation, version, boot)),
        (1_u128..4, 0_u64..3, 0_u64..3, 1_u8..4, prop::bool::weighted(0.1))
            .prop_map(|(id, term, epoch, author, deleted)| deployment(id, term, epoch, author, deleted)),
    ]
}

fn after(records: impl IntoIterator<Item = Record>) -> Directory {
    let mut directory = Directory::default();
    for record in records {
        directory.merge(record);
    }
    directory
}

proptest! {
    #[test]
    fn merging_does_not_depend_on_order_or_repetition(records in prop::collection::vec(any_record(), 0..40), shift in 0_usize..40) {
        let mut shuffled = records.clone();
        shuffled.extend(records.clone());
        let by = shift % shuffled.len().max(1);
        shuffled.rotate_left(by);
        shuffled.reverse();
        prop_assert_eq!(after(records).all(), after(shuffled).all());
    }

    #[test]
    fn one_exchange_of_digests_makes_two_directories_equal(
        left in prop::collection::vec(any_record(), 0..20),
        right in prop::collection::vec(any_record(), 0..20),
    ) {
        let (mut left, mut right) = (after(left), after(right));
        let (wants, gives) = left.compare(&right.digest());
        for record in wants.into_iter().filter_map(|key| right.record(key)).collect::<Vec<_>>() {
            left.merge(record);
        }
        for record in gives {
            right.merge(record);
        }
        prop_assert_eq!(left.all(), right.all());
        prop_assert_eq!(left.compare(&right.digest()), (Vec::new(), Vec::new()));
    }
}

#[test]
fn a_tombstone_beats_any_term_and_stays() {
    let mut directory = after([deployment(1, 0, 0, 1, true)]);
    assert_eq!(directory.merge(deployment(1, 99, 99, 3, false)), Merged::Known);
    assert!(directory.deployment(DeploymentId(1)).is_some_and(|record| record.deleted));
}

#[test]
fn a_record_that_contradicts_itself_is_refused() {
    let Record::Deployment(mut record) = deployment(1, 1, 1, 1, false) else { unreachable!() };
    record.status = DeploymentStatus::Ready; // without a plan
    assert!(matches!(Directory::default().merge(Record::Deployment(record.clone())), Merged::Refused(_)));
    record.status = DeploymentStatus::Failed { why: "x".repeat(TEXT_BYTES_MAX + 1) };
    assert!(matches!(Directory::default().merge(Record::Deployment(record)), Merged::Refused(_)));
}

#[test]
fn a_full_directory_takes_no_more_but_updates_what_it_has() {
    let mut directory = Directory::default();
    for id in 0..DEPLOYMENTS_MAX as u128 {
        directory.merge(deployment(id, 0, 0, 1, false));
    }
    assert!(matches!(directory.merge(deployment(u128::MAX, 0, 0, 1, false)), Merged::Refused(_)));
    assert_eq!(directory.merge(deployment(3, 1, 0, 1, false)), Merged::Newer);
}

#[test]
fn pieces_hold_everything_and_each_fits_a_message() {
    let records: Vec<Record> = (0..DEPLOYMENTS_MAX as u128).map(|id| deployment(id, 0, 0, 1, false)).collect();
    let pieces = in_pieces(records.clone());
    assert!(pieces.iter().all(|piece| wire::encode(&wire::Message::Records(piece.clone())).is_ok()));
    assert_eq!(pieces.concat(), records);
}
