//! The core in small worlds: a few nodes, messages that are late, doubled or lost, crashes, partitions, full disks. After
//! the world heals, all must agree on one record and one plan that answers.

mod ends;
mod world;

use proptest::prelude::*;

use super::*;
use world::World;

/// What a schedule is made of.
#[derive(Clone, Debug)]
enum Act {
    Deploy(usize, Option<u16>),
    Undeploy(usize),
    Crash(usize),
    Restart(usize),
    Part(u8),
    Heal,
    DiskFull(usize, bool),
    ShardPanics(usize),
    Freeze(usize),
    ReadFiles(usize),
    Wait(u64),
}

fn any_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        2 => (0_usize..4, prop::option::of(1_u16..4)).prop_map(|(node, split)| Act::Deploy(node, split)),
        1 => (0_usize..4).prop_map(Act::Undeploy),
        3 => (0_usize..4).prop_map(Act::Crash),
        3 => (0_usize..4).prop_map(Act::Restart),
        2 => (1_u8..15).prop_map(Act::Part),
        2 => Just(Act::Heal),
        1 => (0_usize..4, any::<bool>()).prop_map(|(node, full)| Act::DiskFull(node, full)),
        1 => (0_usize..4).prop_map(Act::ShardPanics),
        1 => (0_usize..4).prop_map(Act::Freeze),
        2 => (0_usize..4).prop_map(Act::ReadFiles),
        6 => (1_u64..4_000).prop_map(Act::Wait),
    ]
}

fn play(world: &mut World, act: &Act) {
    match *act {
        Act::Deploy(node, split) => world.deploy(node, split),
        Act::Undeploy(node) => world.undeploy(node),
        Act::Crash(node) => world.crash(node),
        Act::Restart(node) => world.restart(node),
        Act::Part(mask) => world.part(mask),
        Act::Heal => world.part(0),
        Act::DiskFull(node, full) => world.disk_full(node, full),
        Act::ShardPanics(node) => world.shard_panics(node),
        Act::Freeze(node) => world.freeze(node),
        Act::ReadFiles(node) => world.read_files(node, 1),
        Act::Wait(ms) => world.run(ms),
    }
}

/// Random schedules to play; `MESH_SCHEDULES=3000` for a long look.
fn schedules() -> u32 {
    std::env::var("MESH_SCHEDULES").ok().and_then(|text| text.parse().ok()).unwrap_or(32)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: schedules(), ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_a_healed_mesh_agrees_and_answers(seed in any::<u64>(), acts in prop::collection::vec(any_act(), 0..24)) {
        let mut world = World::new(seed, 4);
        world.run(1_000);
        for act in &acts {
            play(&mut world, act);
        }
        world.heal();
        world.run(90_000);
        world.check_agreed();
    }
}

#[test]
fn a_deployment_becomes_ready_and_a_record_is_on_disk_before_it_is_heard_of() {
    let mut world = World::new(1, 3);
    world.run(1_000);
    world.deploy(0, Some(3));
    world.run(5_000);
    world.check_agreed();
    let record = world.only_record(1);
    assert_eq!((record.status, record.plan.map(|plan| plan.stages().len())), (DeploymentStatus::Ready, Some(3)));
}

#[test]
fn when_a_stage_dies_the_rest_plans_without_it_and_keeps_what_it_holds() {
    let mut world = World::new(2, 3);
    world.run(1_000);
    world.deploy(0, Some(3));
    world.run(5_000);
    let before = world.only_record(0).plan.expect("ready");
    let victim = (0..3).find(|&node| world.id(node) != world.only_record(0).version.coordinator).expect("three nodes");
    world.crash(victim);
    world.run(5_000);
    let survivor = (0..3).find(|&node| node != victim).expect("three nodes");
    let record = world.only_record(survivor);
    let plan = record.plan.expect("planned anew");
    assert_eq!(record.status, DeploymentStatus::Ready);
    assert!(plan.stages().iter().all(|stage| stage.node != world.id(victim)));
    for stage in plan.stages() {
        let (_, was) = before.stage_of(stage.node).expect("a survivor");
        assert!(stage.layers.first <= was.layers.first && was.layers.end <= stage.layers.end, "{stage:?} dropped what it held: {was:?}");
    }
}

#[test]
fn when_the_coordinator_dies_another_takes_over_with_a_greater_term() {
    let mut world = World::new(3, 4);
    world.run(1_000);
    world.deploy(0, Some(2));
    world.run(5_000);
    let before = world.only_record(1);
    assert_eq!(before.version.coordinator, world.id(0));
    world.crash(0);
    world.run(6_000);
    let after = world.only_record(1);
    assert!(after.version.term > before.version.term && after.version.coordinator != world.id(0));
    assert_eq!(after.status, DeploymentStatus::Ready);
    world.check_agreed();
}

#[test]
fn a_takeover_of_an_intact_plan_keeps_its_hash_and_loads_nothing() {
    let mut world = World::new(4, 4);
    world.run(1_000);
    world.deploy(3, Some(2));
    world.run(5_000);
    let before = world.only_record(0);
    let plan = before.plan.expect("ready");
    assert!(plan.stage_of(world.id(3)).is_none(), "of equal nodes the first are chosen: the coordinator holds nothing");
    let loads = world.loads;
    world.crash(3);
    world.run(6_000);
    let after = world.only_record(0);
    assert_eq!((after.plan.map(|plan| plan.hash()), world.loads), (Some(plan.hash()), loads));
    assert!(after.version.term > before.version.term && after.status == DeploymentStatus::Ready);
}

#[test]
fn a_takeover_while_stages_connect_counts_what_the_successors_own_shard_has_said() {
    for seed in 0..8 {
        let mut world = World::new(seed, 4);
        world.run(1_000);
        world.deploy(3, Some(2));
        while (0..3).any(|node| world.record_count(node) == 0 || world.only_record(node).status != DeploymentStatus::Starting) {
            world.run(5);
            assert!(world.record_count(0) == 0 || world.only_record(0).status != DeploymentStatus::Ready, "seed {seed}: it was missed");
        }
        world.crash(3);
        world.run(8_000);
        let after = world.only_record(0);
        assert!(after.version.coordinator != world.id(3) && after.status == DeploymentStatus::Ready, "seed {seed}: {:?}", after.status);
    }
}

#[test]
fn two_coordinators_of_a_partition_merge_into_one() {
    let mut world = World::new(5, 4);
    world.run(1_000);
    world.deploy(0, Some(2));
    world.run(5_000);
    world.part(0b0011);
    world.run(8_000);
    let (left, right) = (world.only_record(0), world.only_record(3));
    assert_ne!(left.version.coordinator, right.version.coordinator, "the other side took over");
    world.part(0);
    world.run(10_000);
    world.check_agreed();
}

#[test]
fn what_does_not_fit_waits_with_numbers_and_starts_when_a_node_comes() {
    let mut world = World::new(6, 4);
    world.crash(2);
    world.crash(3);
    world.run(1_000);
    world.deploy_large(0);
    world.run(3_000);
    let DeploymentStatus::Waiting { missing_bytes, why } = world.only_record(0).status else { panic!("it waits") };
    assert!(missing_bytes > 0 && why.contains("missing"), "{why}");
    world.restart(2);
    world.run(6_000);
    assert_eq!(world.only_record(0).status, DeploymentStatus::Ready);
}

#[test]
fn a_load_that_always_fails_is_given_up_after_growing_pauses() {
    let mut world = World::new(7, 1);
    world.loads_fail = true;
    world.deploy(0, None);
    world.run(60_000);
    assert!(matches!(world.only_record(0).status, DeploymentStatus::Failed { .. }));
    assert_eq!(world.loads, 5, "five tries, then none");
    world.run(600_000);
    assert_eq!(world.loads, 5);
    // Asking again starts afresh.
    world.loads_fail = false;
    world.deploy(0, None);
    world.run(5_000);
    assert_eq!(world.only_record(0).status, DeploymentStatus::Ready);
}

#[test]
fn a_deleted_deployment_stays_deleted_through_a_restart_of_everyone() {
    let mut world = World::new(8, 3);
    world.run(1_000);
    world.deploy(0, None);
    world.run(5_000);
    world.crash(2);
    world.run(2_000);
    world.undeploy(1);
    world.run(2_000);
    world.crash(0);
    world.crash(1);
    world.restart(2); // remembers it as ready
    world.run(500);
    world.restart(0);
    world.restart(1);
    world.run(10_000);
    for node in 0..3 {
        assert!(world.only_record(node).is_deleted());
        assert!(world.shard_count(node) == 0);
    }
}

#[test]
fn everyone_restarts_and_the_deployment_proves_itself_again() {
    let mut world = World::new(9, 3);
    world.run(1_000);
    world.deploy(0, Some(3));
    world.run(5_000);
    let plan = world.only_record(0).plan.expect("ready").hash();
    (0..3).for_each(|node| world.crash(node));
    (0..3).for_each(|node| world.restart(node));
    world.run(10_000);
    world.check_agreed();
    assert_eq!(world.only_record(0).plan.map(|plan| plan.hash()), Some(plan), "nobody was gone for long: the same plan");
}

#[test]
fn a_wish_that_contradicts_the_model_is_refused_at_once() {
    let mut world = World::new(10, 1);
    let mut effects = Vec::new();
    let wish = Wish { split: Some(99), context: None, streams: 1, place: Vec::new() };
    let answer = world.core(0).deploy(1, world::small_sheet(), wish, &mut effects);
    assert!(answer.is_err_and(|why| why.contains("at most")) && effects.is_empty());
}

#[test]
fn a_full_disk_publishes_nothing_and_says_so() {
    let mut world = World::new(11, 2);
    world.run(1_000);
    world.disk_full(0, true);
    world.deploy(0, None);
    world.run(5_000);
    assert!((0..2).all(|node| world.record_count(node) == 0));
    assert!(world.notices.iter().any(|notice| notice.contains("could not be written")));
}

#[test]
fn a_core_with_nothing_to_do_is_woken_about_once_a_second() {
    let mut world = World::new(12, 3);
    world.run(1_000);
    world.deploy(0, Some(3));
    world.run(70_000);
    let before = world.steps;
    world.run(10_000);
    let a_second = (world.steps - before) / 10;
    assert!(a_second <= 3 * 5, "{a_second} steps a second for three idle nodes");
}

/// Steps a lone core; what it publishes is saved at once and counted.
fn step_lone(core: &mut Deployments, now: Time, input: Input) -> usize {
    let (mut inputs, mut published) = (vec![input], 0);
    while let Some(input) = inputs.pop() {
        let mut effects = Vec::new();
        core.step(now, input, &mut effects);
        for effect in effects {
            if let Effect::Publish(record) = effect {
                published += 1;
                inputs.push(Input::Saved(record));
            }
        }
    }
    published
}

/// A lone node that waits for memory and stops for twenty seconds; and when it is woken.
fn frozen_while_it_waits() -> (Deployments, Time) {
    let start = Time(1_000_000_000);
    let mut core = Deployments::new(start, world::node_record(0, 1 << 28), Directory::default(), Vec::new());
    let mut effects = Vec::new();
    let wish = Wish { split: None, context: None, streams: 1, place: Vec::new() };
    core.deploy(7, world::large_sheet(), wish, &mut effects).expect("a plain wish");
    let Some(Effect::Publish(record)) = effects.pop() else { panic!("it is published") };
    assert!(step_lone(&mut core, start, Input::Saved(record)) > 0, "it waits for memory");
    (core, start.plus_ms(20_000))
}

#[test]
fn after_a_freeze_nothing_is_published_until_all_have_answered() {
    let (mut core, woken) = frozen_while_it_waits();
    // The first thing it hears would let it plan.
    let large = world::node_record(1, 8 << 30);
    assert_eq!(step_lone(&mut core, woken, Input::Up(large.clone())), 0);
    let mut effects = Vec::new();
    core.step(woken.plus_ms(100), Input::Waking, &mut effects);
    let compares = |effect: &Effect| matches!(effect, Effect::Send { to, message: Message::Summary(_) } if *to == large.node);
    assert!(effects.iter().any(compares), "it asks at once what was decided without it");
    assert!((200..9_000).step_by(800).all(|ms| step_lone(&mut core, woken.plus_ms(ms), Input::Elapsed) == 0));
    assert!(step_lone(&mut core, woken.plus_ms(9_000), Input::Awake) > 0, "now it plans");
}

#[test]
fn a_thread_that_was_late_by_itself_is_mute_for_a_moment_only() {
    let (mut core, woken) = frozen_while_it_waits();
    assert_eq!(step_lone(&mut core, woken, Input::Up(world::node_record(1, 8 << 30))), 0);
    assert_eq!(step_lone(&mut core, woken.plus_ms(400), Input::Elapsed), 0);
    assert!(step_lone(&mut core, woken.plus_ms(600), Input::Elapsed) > 0, "now it plans");
}

fn stages(world: &mut World) -> Vec<NodeId> {
    let record = world.only_record(0);
    assert_eq!(record.status, DeploymentStatus::Ready);
    record.plan.expect("ready").stages().iter().map(|stage| stage.node).collect()
}

#[test]
fn a_copy_that_holds_something_else_is_named_and_its_stage_moves_away() {
    let mut world = World::new(11, 3);
    world.run(1_000);
    world.deploy(0, Some(2));
    world.run(5_000);
    assert_eq!(stages(&mut world), [world.id(0), world.id(1)]);
    world.read_files(1, 2);
    world.read_files(2, 1);
    world.run(5_000);
    assert_eq!(stages(&mut world), [world.id(0), world.id(1)], "which copy is meant is not known before its own node has read it");
    world.read_files(0, 1);
    world.run(6_000);
    assert_eq!(stages(&mut world), [world.id(0), world.id(2)]);
    let (id, other) = (world.only_record(2).id, world.id(1));
    let named = world.core(2).other_copies(id);
    assert!(
        matches!(named.as_slice(), [(node, why)] if *node == other && why.contains("n1's copy") && why.contains("model.safetensors")),
        "{named:?}"
    );
    // It was copied again.
    world.read_files(1, 1);
    world.run(1_000);
    assert_eq!(world.core(2).other_copies(id), []);
}

#[test]
fn no_pipeline_is_built_of_copies_that_are_known_to_differ() {
    let mut world = World::new(12, 3);
    (0..3).for_each(|node| world.read_files(node, [1, 2, 3][node]));
    world.run(1_000);
    world.deploy(0, Some(2));
    world.run(5_000);
    let record = world.only_record(2);
    let DeploymentStatus::Waiting { why, .. } = &record.status else { panic!("{:?}", record.status) };
    assert!(why.contains("n1's copy") && why.contains("n2's copy") && why.contains("model.safetensors"), "{why}");
    assert_eq!((world.loads, record.plan), (0, None));
    // Whoever deploys means its own copy.
    world.read_files(2, 2);
    world.run(500);
    world.deploy(1, Some(2));
    world.run(5_000);
    assert_eq!(stages(&mut world), [world.id(1), world.id(2)]);
}

#[test]
fn what_was_wished_for_comes_back_when_it_can_be_had_for_a_while() {
    let mut world = World::new(13, 3);
    world.run(1_000);
    world.deploy(0, Some(3));
    world.run(5_000);
    world.crash(2);
    world.run(5_000);
    assert_eq!(stages(&mut world).len(), 2);
    world.restart(2);
    world.run(coordinate::RESTORE_MS - 6_000);
    assert_eq!(stages(&mut world).len(), 2, "not at once: it might go again");
    world.run(coordinate::RESTORE_MS + 8_000);
    assert_eq!(stages(&mut world).len(), 3);
    // A wish that nobody can meet costs nothing but looks.
    world.crash(2);
    world.run(4 * coordinate::RESTORE_MS);
    let epoch = world.only_record(0).version.epoch;
    world.run(20 * coordinate::RESTORE_MS);
    assert_eq!((stages(&mut world).len(), world.only_record(0).version.epoch), (2, epoch));
}
