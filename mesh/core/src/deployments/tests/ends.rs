//! How records end: tombstones, nodes that are gone, twins after a partition, and a history that is long.

use proptest::prelude::*;

use super::*;
use crate::lifetimes::{Lifetimes, kept_ms};
use world::World;

/// Ordinary lifetimes, 2,520 times faster: a week is four minutes.
const FAST: Lifetimes = Lifetimes { tombstone_ms: 240_000, down_ms: 96_000, left_ms: 5_000 };

/// A mesh of four that deletes a deployment while one of them, who has it, is away; and other things happen.
#[derive(Clone, Debug)]
struct Absence {
    seed: u64,
    /// The one that is away is switched off; else it runs on its own.
    off: bool,
    /// Between its going and the deletion.
    before_ms: u64,
    /// Between the deletion and the moment when all others are switched off, too.
    after_ms: u64,
    /// For how long everything is off; zero = the others run on.
    dark_ms: u64,
    /// When each is switched on again after that.
    delays_ms: [u64; 4],
}

fn any_absence() -> impl Strategy<Value = Absence> {
    let dark = prop_oneof![Just(0), 1_000_u64..800_000];
    (any::<u64>(), any::<bool>(), 0_u64..360_000, 3_000_u64..360_000, dark, prop::array::uniform4(0_u64..25_000))
        .prop_map(|(seed, off, before_ms, after_ms, dark_ms, delays_ms)| Absence { seed, off, before_ms, after_ms, dark_ms, delays_ms })
}

fn nobody_has_it_alive(world: &mut World) {
    for node in 0..4 {
        let alive = world.core(node).directory().deployments().filter(|record| !record.is_deleted()).count();
        assert_eq!(alive, 0, "n{node} has it alive");
        assert_eq!(world.shard_count(node), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: schedules() / 4, ..ProptestConfig::default() })]

    #[test]
    fn the_dead_stay_dead(absence in any_absence()) {
        let mut world = World::with_lifetimes(absence.seed, 4, FAST);
        world.run(1_000);
        world.deploy(1, Some(4));
        world.run(10_000);
        let away = 0;
        if absence.off { world.crash(away) } else { world.part(1) }
        world.run(2_000 + absence.before_ms);
        world.undeploy(1);
        world.run(absence.after_ms);
        if absence.dark_ms > 0 {
            (1..4).for_each(|node| world.crash(node));
            world.run(absence.dark_ms);
        }
        let mut order: Vec<usize> = (0..4).collect();
        order.sort_by_key(|node| absence.delays_ms[*node]);
        let mut passed_ms = 0;
        for node in order {
            world.run(absence.delays_ms[node] - passed_ms);
            passed_ms = absence.delays_ms[node];
            world.restart(node);
            if node == away {
                world.part(0);
            }
        }
        world.run(30_000);
        nobody_has_it_alive(&mut world);
        // And then it is gone everywhere, from the disks too.
        world.run(kept_ms(FAST.tombstone_ms) + 30_000);
        for node in 0..4 {
            prop_assert_eq!(world.record_count(node), 0);
            prop_assert_eq!(world.deployments_on_disk(node), 0);
        }
    }
}

#[test]
fn a_mesh_that_was_off_for_weeks_keeps_its_deployments() {
    let mut world = World::with_lifetimes(5, 3, FAST);
    world.run(1_000);
    world.deploy(0, None);
    world.run(20_000);
    (0..3).for_each(|node| world.crash(node));
    world.run(5 * FAST.tombstone_ms);
    for node in [2, 0, 1] {
        world.restart(node);
        world.run(7_000);
    }
    world.run(30_000);
    assert!(!world.only_record(1).is_deleted());
    world.check_agreed();
}

#[test]
fn a_lone_node_that_was_off_for_weeks_keeps_its_deployments_when_it_invites_another() {
    let mut world = World::with_lifetimes(5, 2, FAST);
    world.crash(1);
    world.run(1_000);
    world.deploy(0, None);
    world.run(20_000);
    world.crash(0);
    world.run(5 * FAST.tombstone_ms);
    world.wipe(1);
    world.restart(1);
    world.run(60_000);
    world.restart(0);
    world.run(30_000);
    assert!((0..2).all(|node| !world.only_record(node).is_deleted()));
}

#[test]
fn a_node_that_is_gone_vanishes_everywhere_and_comes_back_if_it_does() {
    let mut world = World::with_lifetimes(6, 3, FAST);
    world.run(10_000);
    world.crash(2);
    world.run(FAST.down_ms / 2);
    let gone = world.id(2);
    assert_eq!(world.core(0).health(gone), Health::Down);
    let away_ms = world.core(0).away_ms(gone).expect("it is away");
    assert!((FAST.down_ms / 2 - 5_000..FAST.down_ms / 2 + 5_000).contains(&away_ms), "{away_ms}");
    world.crash(1);
    world.restart(1); // knows it from its disk only
    world.run(kept_ms(FAST.down_ms));
    for node in 0..2 {
        assert!(world.core(node).directory().node(gone).is_none());
        assert_eq!(world.nodes_on_disk(node), 2, "both who are left");
        assert!(world.forgotten(node).contains(&gone), "nobody dials it any more");
    }
    world.restart(2);
    world.run(5_000);
    assert!((0..2).all(|node| world.core(node).health(gone) == Health::Up));
}

fn forget(world: &mut World, node: usize, whom: NodeId) -> Result<(), String> {
    let (now, mut effects) = (world.now(), Vec::new());
    let answer = world.core(node).forget(now, whom, &mut effects);
    world.perform(node, effects);
    answer
}

#[test]
fn a_forgotten_node_is_gone_for_all_and_welcome_in_a_later_life() {
    let mut world = World::new(7, 4);
    world.run(10_000);
    let (ghost, me) = (world.id(3), world.id(0));
    assert!(forget(&mut world, 0, ghost).is_err_and(|why| why.contains("stop it first")));
    assert!(forget(&mut world, 0, me).is_err_and(|why| why.contains("itself")));
    assert!(forget(&mut world, 0, NodeId([99; 32])).is_err());
    world.crash(3);
    world.run(2_000);
    world.crash(2); // does not hear of it
    world.run(2_000);
    forget(&mut world, 0, ghost).expect("it is down");
    assert!(forget(&mut world, 0, ghost).is_err(), "once is enough");
    world.run(2_000);
    world.restart(2); // still tells of the ghost
    world.run(20_000);
    for node in 0..3 {
        let record = world.core(node).directory().node(ghost).expect("its tombstone");
        assert_eq!(record.state, NodeState::Forgotten, "n{node}");
        assert_eq!(world.core(node).health(ghost), Health::Left);
    }
    let preview = world.core(1).preview(&world::small_sheet(), &Wish { split: Some(3), context: None, streams: 1, place: Vec::new() });
    assert!(preview.is_ok(), "the ghost is in nobody's way");
    world.restart(3);
    world.run(10_000);
    assert!((0..3).all(|node| world.core(node).health(ghost) == Health::Up));
}

#[test]
fn a_node_that_was_cut_off_and_forgotten_answers_with_a_later_incarnation() {
    let mut world = World::new(8, 3);
    world.run(10_000);
    let cut = world.id(2);
    let before = world.core(2).me().incarnation;
    world.part(0b100);
    world.run(3_000);
    forget(&mut world, 0, cut).expect("it is down");
    world.run(3_000);
    world.part(0);
    world.run(10_000);
    assert!(world.core(2).me().incarnation > before);
    for node in 0..2 {
        assert_eq!(world.core(node).health(cut), Health::Up);
        assert_eq!(world.core(node).directory().node(cut).map(|record| record.state), Some(NodeState::Up));
    }
}

#[test]
fn of_twins_from_two_halves_one_stays_and_nothing_comes_back() {
    for (seed, first_half_is_ready) in [(1, true), (2, false), (3, true), (4, false)] {
        let mut world = World::new(seed, 4);
        world.run(1_000);
        world.part(0b0011);
        world.run(2_000);
        let split = if first_half_is_ready { Some(2) } else { Some(3) }; // three stages are too many for two nodes
        world.deploy(0, split);
        world.deploy(2, Some(2));
        world.run(20_000);
        let records: Vec<DeploymentRecord> = [0, 2].map(|node| world.only_record(node)).to_vec();
        assert_ne!(records[0].id, records[1].id);
        assert_eq!(records[0].status == DeploymentStatus::Ready, first_half_is_ready);
        let ready = records.iter().filter(|record| record.status == DeploymentStatus::Ready);
        let stays = ready.map(|record| record.id).min().expect("one is ready");
        world.part(0);
        world.run(20_000);
        world.check_agreed();
        let live: Vec<_> = world.core(3).directory().deployments().filter(|record| !record.is_deleted()).cloned().collect();
        assert_eq!(live.iter().map(|record| record.id).collect::<Vec<_>>(), [stays]);
        assert_eq!(live[0].status, DeploymentStatus::Ready);
        // Both halves come back from their disks and meet in another order.
        (0..4).for_each(|node| world.crash(node));
        (0..4).rev().for_each(|node| world.restart(node));
        world.run(30_000);
        world.check_agreed();
        assert_eq!(world.core(0).directory().deployments().filter(|record| !record.is_deleted()).count(), 1);
    }
}

#[test]
fn a_record_of_a_future_kind_reaches_everybody_and_survives_a_restart() {
    let mut world = World::new(9, 3);
    world.run(1_000);
    world.crash(2);
    let record =
        Record::Other(crate::records::OtherRecord { kind: 77, format: 1, id: [5; 32], version: vec![1], body: b"who knows".to_vec() });
    world.step(0, Input::Gossip(record.clone()));
    world.restart(2);
    world.run(10_000);
    world.crash(0);
    world.crash(1);
    world.crash(2);
    (0..3).for_each(|node| world.restart(node));
    assert!((0..3).all(|node| world.core(node).directory().record(record.key()) == Some(record.clone())));
}
