//! Membership's budgets (DESIGN 15) in simulated swarms of the shipped cores: how fast the dead are known, that nobody else
//! is held dead, and what it costs. `MESH_HOUR=1 cargo test -p mesh-core --test membership -- --nocapture` runs the whole
//! hour of loss, in about ten minutes where the core is compiled with optimization.

#![expect(clippy::print_stdout, reason = "what a budget came to is worth reading")]

mod swarm;

use std::sync::OnceLock;

use mesh_core::ids::Time;
use mesh_core::membership::Suspicion;
use swarm::{World, id};

/// Whole, and a few seconds old.
fn settled(seed: u64, count: usize, loss_percent: u64) -> World {
    let mut world = World::new(seed, count, loss_percent);
    let ms = world.run_until(30_000, World::is_whole).expect("they all meet");
    assert!(loss_percent > 0 || ms < 2_000, "{count} nodes took {ms} ms to meet");
    world.run(3_000);
    assert!(world.downs.is_empty(), "{:?}", world.downs);
    world
}

/// Sixty-four in peace: made once, for they take longest to meet.
fn sixty_four() -> World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| settled(3, 64, 0)).clone()
}

/// The slowest of the survivors to hold `dead` dead, in milliseconds from `since`; and nobody else is.
fn slowest(world: &World, dead: usize, count: usize, since: Time) -> u64 {
    assert!(world.downs.iter().all(|verdict| verdict.of == dead), "{:?}", world.downs);
    assert_eq!(world.downs.len(), count - 1, "not all know: {:?}", world.downs);
    world.downs.iter().map(|verdict| verdict.at.ms_since(since)).max().unwrap_or(0)
}

/// Freezes or kills a node and says how long all others took, over a few seeds and moments.
fn death_known(count: usize, seeds: u64, most_ms: u64, end: fn(&mut World, usize), says: &str) -> u64 {
    let mut worst = 0;
    for seed in 0..seeds {
        let mut world = if count == 64 { sixty_four() } else { settled(seed, count, 0) };
        world.reseed(seed);
        let moment = Time(world.now.0 + world.phase());
        world.run_to(moment);
        let dead = (seed as usize * 7 + 1) % count;
        end(&mut world, dead);
        world.run(most_ms);
        assert!(world.downs.iter().all(|verdict| verdict.why.contains(says)), "{:?}", world.downs);
        worst = worst.max(slowest(&world, dead, count, moment));
    }
    worst
}

fn freeze(world: &mut World, node: usize) {
    world.freeze(node, 60_000);
}

#[test]
fn a_frozen_node_is_dead_for_all_within_a_second_and_within_two_in_a_large_mesh() {
    let small = [2, 4, 8].map(|count| death_known(count, 6, 1_000, freeze, "no echo"));
    let large = [16, 64].map(|count| death_known(count, 2, 2_000, freeze, "no echo"));
    println!("a frozen node is held dead by all of 2, 4, 8 after {small:?} ms, of 16, 64 after {large:?} ms");
}

#[test]
fn a_killed_node_is_dead_for_all_within_200_ms() {
    let worst = [2, 4, 64].map(|count| death_known(count, 2, 200, World::kill, "refuse"));
    println!("a killed process is held dead by all of 2, 4, 64 after {worst:?} ms");
}

#[test]
fn sixty_four_are_whole_two_seconds_after_one_joins() {
    let mut world = sixty_four();
    let joiner = world.join(17);
    let ms = world.run_until(2_000, World::is_whole).expect("all see the joiner, and it sees all");
    assert!(world.sees(joiner, 0) && world.sees(0, joiner));
    println!("64 nodes are whole {ms} ms after another joins");
}

/// Bytes a second that the busiest node sends, over so long.
fn cost(world: &mut World, count: usize, seconds: u64) -> u64 {
    let before: Vec<u64> = (0..count).map(|node| world.sent_bytes(node)).collect();
    world.kinds.clear();
    world.run(seconds * 1_000);
    println!("{count} nodes, {seconds} s: {:?}", world.kinds);
    (0..count).map(|node| (world.sent_bytes(node) - before[node]) / seconds).max().unwrap_or(0)
}

#[test]
fn a_node_of_sixty_four_pays_less_than_two_kib_a_second() {
    let quiet = cost(&mut sixty_four(), 64, 10);
    let mut world = sixty_four();
    world.loss_percent = 5;
    world.run(5_000);
    let lossy = cost(&mut world, 64, 10);
    let eight = cost(&mut settled(7, 8, 0), 8, 20);
    println!("bytes a second of the busiest of 64: {quiet} quiet, {lossy} at 5 % loss; of 8: {eight}");
    assert!(quiet <= 2_048 && lossy <= 2_048 && eight <= 2_048);
}

fn nobody_dies_of_loss(seed: u64, count: usize, seconds: u64) {
    let mut world = if count == 64 { sixty_four() } else { settled(seed, count, 0) };
    world.loss_percent = 5;
    let seconds = if std::env::var_os("MESH_HOUR").is_some() { 3_600 } else { seconds };
    world.run(seconds * 1_000);
    println!(
        "{count} nodes, {seconds} s at 5 % loss: {} false deaths, {} suspicions, {} events",
        world.downs.len(),
        world.suspected,
        world.events
    );
    assert!(world.downs.is_empty(), "{:?}", world.downs);
    assert!(world.is_whole());
}

#[test]
fn nobody_of_four_dies_of_loss() {
    nobody_dies_of_loss(11, 4, 120);
}

#[test]
fn nobody_of_sixteen_dies_of_loss() {
    nobody_dies_of_loss(12, 16, 30);
}

#[test]
fn nobody_of_sixty_four_dies_of_loss() {
    nobody_dies_of_loss(13, 64, 5);
}

#[test]
fn two_that_cannot_reach_each_other_are_kept_by_a_third_and_say_so() {
    let mut world = settled(21, 3, 0);
    world.cut(0, 1, true);
    world.run(30_000);
    assert!(world.downs.is_empty(), "{:?}", world.downs);
    for pair in [(0, 1), (1, 0)] {
        assert_eq!(world.suspicions.get(&pair), Some(&Suspicion::OnlyThrough(id(2))), "{pair:?}");
    }
    world.cut(0, 1, false);
    let ms = world.run_until(5_000, |world| world.suspicions.is_empty()).expect("they reach each other again");
    println!("two that were cut off from each other trust each other {ms} ms after the cable is back");
    assert!(world.downs.is_empty() && world.is_whole());
    // And when it dies behind the cut, it is dead within a second for both.
    world.cut(0, 1, true);
    world.run(10_000);
    let moment = world.now;
    world.freeze(1, 60_000);
    world.run(1_000);
    assert!(slowest(&world, 1, 3, moment) <= 1_000);
}

#[test]
fn who_slept_is_down_meanwhile_and_back_in_ten_seconds_as_itself() {
    let mut world = settled(22, 4, 0);
    world.freeze(2, 90_000);
    world.run(89_990);
    assert_eq!(slowest(&world, 2, 4, world.now), 0);
    assert!(!world.is_whole());
    let ms = world.run_until(10_000, World::is_whole).expect("back");
    // It held nobody dead for the time that it slept, and is not mute for longer than the others took to answer.
    assert!(world.downs.iter().all(|verdict| verdict.of == 2 || verdict.by == 2), "{:?}", world.downs);
    world.run(1_000);
    assert!(!world.is_hushed(2) && world.is_whole());
    println!("back {ms} ms after waking");
}

/// One process gets its turn late, again and again, as on a machine with too much to do.
#[test]
fn a_starved_process_neither_dies_nor_kills() {
    let mut world = settled(23, 4, 0);
    for round in 0..100 {
        world.freeze(1, 100 + (round * 37) % 400);
        world.run(700);
    }
    assert!(world.downs.is_empty(), "{:?}", world.downs);
}
