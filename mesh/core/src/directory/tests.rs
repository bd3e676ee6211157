//! Merging in any order gives the same directory; two directories that exchange digests become equal.

use proptest::prelude::*;

use super::*;
use crate::ids::{BootId, Digest};
use crate::lifetimes::{DOWN_MS, TOMBSTONE_MS, kept_ms};
use crate::model::LayerCost;
use crate::records::{Capacity, NodeState, OtherRecord, PlanId, Wish};

fn node(id: u8, incarnation: u64, version: u64, boot: u128) -> Record {
    Record::Node(NodeRecord {
        node: NodeId([id; 32]),
        name: format!("n{id}"),
        boot: BootId(boot),
        incarnation,
        version,
        state: NodeState::Up,
        alive: Wall::default(),
        in_touch: None,
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
        deleted: deleted.then_some(Wall(5)),
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
    assert!(directory.deployment(DeploymentId(1)).is_some_and(|record| record.is_deleted()));
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

/// Directories of several nodes whose clocks read this.
fn at(wall_ms: u64) -> Directory {
    Directory::new(Lifetimes::default(), Wall(wall_ms))
}

/// One exchange of digests, as `exchange.rs` does it.
fn exchange(left: &mut Directory, right: &mut Directory) {
    let (wants, gives) = left.compare(&right.digest());
    let wanted: Vec<Record> = wants.into_iter().filter_map(|key| right.record(key)).collect();
    wanted.into_iter().for_each(|record| {
        left.merge(record);
    });
    gives.into_iter().for_each(|record| {
        right.merge(record);
    });
}

fn tombstone(id: u128, at: u64) -> Record {
    let Record::Deployment(record) = deployment(id, 0, 0, 1, true) else { unreachable!() };
    Record::Deployment(DeploymentRecord { deleted: Some(Wall(at)), ..record })
}

#[test]
fn a_tombstone_is_told_then_kept_then_gone_and_not_taken_back() {
    let start = 1_000_000;
    let mut directory = at(start);
    directory.merge(tombstone(1, start));
    directory.set_wall(Wall(start + TOMBSTONE_MS - 1));
    assert!(directory.expire().is_empty());
    assert_eq!(directory.digest().len(), 1);
    directory.set_wall(Wall(start + TOMBSTONE_MS));
    assert!(directory.expire().is_empty() && directory.digest().is_empty() && directory.all().is_empty());
    // Whoever has it alive after all hears of it.
    let mut late = at(start + TOMBSTONE_MS);
    late.merge(deployment(1, 9, 9, 2, false));
    exchange(&mut directory, &mut late);
    assert!(late.deployment(DeploymentId(1)).is_some_and(DeploymentRecord::is_deleted));
    directory.set_wall(Wall(start + kept_ms(TOMBSTONE_MS)));
    assert_eq!(directory.expire(), [RecordKey::Deployment(DeploymentId(1))]);
    assert_eq!(directory.merge(tombstone(1, start)), Merged::Known);
    assert_eq!(directory.deployments().count(), 0);
}

#[test]
fn a_node_that_was_off_with_its_mesh_remembers_deletions_for_their_running_time() {
    let (start, off) = (1_000_000, 3 * TOMBSTONE_MS);
    let mut directory = at(start + off);
    directory.was_off_since(Wall(start));
    directory.merge(tombstone(1, start - 5));
    assert!(directory.expire().is_empty() && directory.deployments().count() == 1);
    directory.set_wall(Wall(start + off + kept_ms(TOMBSTONE_MS)));
    assert_eq!(directory.expire().len(), 1);
}

#[test]
fn a_node_that_has_not_said_for_long_that_it_runs_goes_unless_it_is_here() {
    let mut directory = at(0);
    for id in 1..4 {
        directory.merge(node(id, 1, 0, 0));
        directory.arrived(NodeId([id; 32]));
    }
    directory.departed(NodeId([2; 32]));
    directory.set_wall(Wall(DOWN_MS));
    assert!(directory.expire().is_empty());
    assert_eq!(directory.digest().len(), 2, "it is told no more");
    directory.departed(NodeId([3; 32])); // seen here until now, so it stays another while
    directory.set_wall(Wall(kept_ms(DOWN_MS)));
    assert_eq!(directory.expire(), [RecordKey::Node(NodeId([2; 32]))]);
    assert_eq!(directory.merge(node(2, 1, 5, 0)), Merged::Known, "gossip does not bring it back");
    directory.arrived(NodeId([2; 32]));
    assert_eq!(directory.merge(node(2, 1, 5, 0)), Merged::Newer, "it is here after all");
}

#[test]
fn a_forgotten_life_of_a_node_is_over_and_a_later_one_is_welcome() {
    let Record::Node(known) = node(1, 4, 9, 0) else { unreachable!() };
    let forgotten = Record::Node(NodeRecord { state: NodeState::Forgotten, ..known });
    let mut directory = after([forgotten]);
    assert_eq!(directory.merge(node(1, 4, u64::MAX, 0)), Merged::Known);
    assert_eq!(directory.merge(node(1, 5, 0, 0)), Merged::Newer);
}

fn other(kind: u16, id: u8, version: u8, body: &[u8]) -> Record {
    Record::Other(OtherRecord { kind, format: 7, id: [id; 32], version: vec![version], body: body.to_vec() })
}

#[test]
fn records_that_nobody_here_can_read_go_around_like_the_rest() {
    let (mut left, mut right) =
        (after([other(9, 1, 1, b"old"), other(9, 2, 1, b"x")]), after([other(9, 1, 2, b"new"), other(1, 3, 1, b"y")]));
    exchange(&mut left, &mut right);
    assert_eq!(left.all(), right.all());
    assert_eq!(left.all(), [other(1, 3, 1, b"y"), other(9, 1, 2, b"new"), other(9, 2, 1, b"x")]);
    for record in left.all() {
        let bytes = wire::encode(&record).expect("short");
        assert_eq!(wire::decode::<Record>(&bytes), Ok(record));
    }
}

#[test]
fn unreadable_records_are_bounded_in_number_and_bytes() {
    let mut directory = Directory::default();
    let merged = |directory: &mut Directory, kind, body: &[u8]| directory.merge(other(kind, 1, 1, body));
    assert!((0..OTHERS_MAX as u16).all(|kind| merged(&mut directory, 100 + kind, b"") == Merged::Newer));
    assert!(matches!(merged(&mut directory, 99, b""), Merged::Refused(_)));
    assert_eq!(directory.merge(other(100, 1, 2, b"newer")), Merged::Newer);
    let (mut directory, body) = (Directory::default(), vec![0; 50_000]);
    let taken = (0..200).filter(|kind| merged(&mut directory, 100 + kind, &body) == Merged::Newer).count();
    assert!(taken * body.len() <= OTHERS_BYTES_MAX && taken >= OTHERS_BYTES_MAX / 60_000, "{taken}");
    assert!(matches!(merged(&mut Directory::default(), 9, &vec![0; RECORD_BYTES_MAX]), Merged::Refused(_)));
}

#[test]
fn a_future_format_of_what_we_know_is_carried_on_and_what_we_know_of_it_stays() {
    let known = node(3, 1, 1, 0);
    let future = other(1, 3, 1, b"in a way that we cannot read");
    let mut directory = after([known.clone(), future.clone()]);
    assert_eq!(directory.node(NodeId([3; 32])).cloned().map(Record::Node), Some(known));
    assert_eq!(directory.all(), std::slice::from_ref(&future));
    assert_eq!(directory.merge(node(3, 2, 0, 0)), Merged::Newer);
    assert_eq!(directory.all(), [future]);
}

#[test]
fn a_long_history_costs_a_joiner_what_is_true_now() {
    let mut directory = Directory::default();
    for change in 0..4_000 {
        directory.merge(node((change % 8) as u8, change / 100, change, 0));
        directory.merge(deployment(u128::from(change % 4), 1, change, 1, change >= 3_996));
    }
    let all = directory.all();
    assert_eq!(all.len(), 12);
    let bytes: usize = all.iter().map(|record| wire::encode(record).expect("short").len()).sum();
    assert!(bytes < 12 * 1_000, "{bytes}");
    assert_eq!(after(all).digest(), directory.digest());
}
