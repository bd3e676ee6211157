//! Whole nodes in memory, with real shard threads and the toy model: what a user does, and what goes wrong meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use actix::System;
use mesh_core::generation::{FinishReason, GenerationRequest, Sampling, StreamError};
use mesh_core::ids::DeploymentId;
use mesh_core::model::ModelSheet;
use mesh_core::ports::Store;
use mesh_core::records::{DeploymentRecord, DeploymentStatus, Record, Wish};
use mesh_core::toy::{self, ToyModels};

use crate::handle::{Generation, GenerationEvent, Health, NodeHandle, NodeStatus};
use crate::testing::Nodes;

fn sheet() -> ModelSheet {
    toy::sheet(6, 16, 200, 1_024)
}

fn models() -> Arc<ToyModels> {
    Arc::new(ToyModels::new(vec![sheet()]))
}

/// Steps take a while, so that there is a middle to be struck in.
fn slow_models() -> Arc<ToyModels> {
    Arc::new(ToyModels::new(vec![sheet()]).with_hook(Arc::new(|_| std::thread::sleep(Duration::from_millis(4)))))
}

fn request(max_tokens: u32) -> GenerationRequest {
    GenerationRequest {
        prompt: vec![3, 1, 4, 1, 5],
        sampling: Sampling { seed: 7, ..Sampling::default() },
        end_ids: Vec::new(),
        max_tokens,
    }
}

fn wish(split: Option<u16>) -> Wish {
    Wish { split, context: Some(512), streams: 4, place: Vec::new() }
}

fn only(status: &NodeStatus) -> Option<&DeploymentRecord> {
    status.deployments.first().map(|seen| &seen.record)
}

fn ready(status: &NodeStatus) -> bool {
    only(status).is_some_and(|record| record.status == DeploymentStatus::Ready)
}

async fn collect(mut generation: Generation) -> (Vec<u32>, Result<FinishReason, StreamError>) {
    let mut tokens = Vec::new();
    loop {
        let next = actix::clock::timeout(Duration::from_secs(10), generation.events.recv()).await.expect("no hang");
        match next.expect("closed only after the last event") {
            GenerationEvent::Token { token, .. } => tokens.push(token),
            GenerationEvent::Finished { reason, .. } => return (tokens, Ok(reason)),
            GenerationEvent::Failed(error) => return (tokens, Err(error)),
        }
    }
}

/// Asks and compares with what an undisturbed engine says.
async fn answers(handle: &NodeHandle, deployment: DeploymentId) {
    let request = request(24);
    let (reference, _) = toy::reference(&sheet(), &request, 512);
    let generation = handle.generate(deployment, request).await.expect("the node runs").expect("it starts");
    assert_eq!(collect(generation).await, (reference, Ok(FinishReason::Length)));
}

/// Three nodes with a deployment over all of them, asked for at node 0.
async fn three(models: fn() -> Arc<ToyModels>) -> (Nodes, Vec<NodeHandle>, DeploymentId) {
    let mut nodes = Nodes::default();
    let handles: Vec<NodeHandle> = (0..3).map(|index| nodes.start(index, models())).collect();
    let all_up = |status: &NodeStatus| status.nodes.iter().filter(|seen| seen.health == Health::Up).count() == 3;
    nodes.until(0, "three are up", all_up).await;
    let id = handles[0].deploy(sheet(), wish(Some(3))).await.expect("it runs").expect("a plain wish");
    assert!(only(&nodes.status(0).await).is_some_and(|record| record.id == id), "accepted is visible (F124)");
    for index in 0..3 {
        nodes.until(index, "it is ready", ready).await;
    }
    (nodes, handles, id)
}

#[test]
fn deployed_over_three_nodes_every_node_answers() {
    System::new().block_on(async {
        let (nodes, handles, id) = three(models).await;
        for handle in &handles {
            answers(handle, id).await;
        }
        let status = nodes.status(1).await;
        let plan = only(&status).and_then(|record| record.plan.clone()).expect("ready");
        assert_eq!(plan.stages().len(), 3);
        assert!(status.deployments[0].shard.is_some_and(|shard| shard.layers.count() > 0 && shard.steps > 0));
        assert!(status.nodes.iter().all(|seen| seen.record.shards.len() == 1), "everyone says what it holds");
        // A preview changes nothing, and says why it would stay on one node.
        let preview = handles[2].plan(sheet(), wish(None)).await.expect("it runs");
        let planned = preview.outcome.expect("it fits");
        assert!(planned.plan.stages().len() == 1 && planned.reasons[0].contains("stays there") && preview.names.len() == 3);
        // The same wish again is the same deployment; one that cannot be met changes nothing.
        assert_eq!(handles[1].deploy(sheet(), wish(Some(3))).await, Ok(Ok(id)));
        assert!(matches!(handles[1].deploy(sheet(), wish(Some(5))).await, Ok(Err(why)) if why.contains("only 3 nodes")));
        assert!(ready(&nodes.status(1).await));
    });
}

#[test]
fn a_node_whose_files_hold_something_else_takes_no_part() {
    System::new().block_on(async {
        let mut nodes = Nodes::default();
        let copy = |copy: u8| Arc::new(ToyModels::new(vec![sheet()]).with_copy(copy));
        let handles: Vec<NodeHandle> = (0..3).map(|index| nodes.start(index, copy([7, 8, 7][usize::from(index)]))).collect();
        let all_up = |status: &NodeStatus| status.nodes.iter().filter(|seen| seen.health == Health::Up).count() == 3;
        nodes.until(0, "three are up", all_up).await;
        let id = handles[0].deploy(sheet(), wish(Some(2))).await.expect("it runs").expect("a plain wish");
        let moved = |status: &NodeStatus| {
            let other = status.nodes.iter().find(|seen| {
                seen.record.models.iter().any(|held| held.contents.as_ref().is_some_and(|contents| contents.digest.0 == [8; 32]))
            });
            let plan = only(status).and_then(|record| record.plan.as_ref());
            let named = status.deployments.first().map(|seen| seen.other_copies.as_slice());
            match (other, plan, named) {
                (Some(other), Some(plan), Some([(node, why)])) => {
                    ready(status)
                        && *node == other.record.node
                        && why.contains("toy")
                        && plan.stage_of(*node).is_none()
                        && plan.stages().len() == 2
                }
                _ => false,
            }
        };
        for index in 0..3 {
            nodes.until(index, "the other copy is named and left out", moved).await;
        }
        answers(&handles[1], id).await;
    });
}

#[test]
fn a_node_that_dies_breaks_its_streams_and_the_others_go_on() {
    System::new().block_on(async {
        let (mut nodes, handles, id) = three(slow_models).await;
        let loaded = nodes.status(0).await.deployments[0].shard.expect("a stage is here").loaded_bytes;
        let mut generation = handles[0].generate(id, request(400)).await.expect("it runs").expect("it starts");
        for _ in 0..3 {
            assert!(matches!(generation.events.recv().await, Some(GenerationEvent::Token { .. })));
        }
        nodes.kill(1).await;
        let (_, end) = collect(generation).await;
        assert!(matches!(&end, Err(StreamError::NodeDown { node, .. }) if *node == Nodes::id(1)), "{end:?}");
        let without = |status: &NodeStatus| {
            ready(status) && only(status).and_then(|record| record.plan.as_ref()).is_some_and(|plan| plan.stage_of(Nodes::id(1)).is_none())
        };
        nodes.until(0, "the others hold all layers", without).await;
        nodes.until(2, "the others hold all layers", without).await;
        answers(&handles[0], id).await;
        answers(&handles[2], id).await;
        // Layers that stayed were not read again: three of six at most came to a node that had two.
        let now = nodes.status(0).await.deployments[0].shard.expect("a stage is here").loaded_bytes;
        assert!(now <= loaded + 2_000, "{loaded} bytes before, {now} after");
        let seen = nodes.status(0).await;
        assert!(seen.nodes.iter().any(|seen| seen.record.node == Nodes::id(1) && seen.health == Health::Down));
    });
}

#[test]
fn when_the_coordinator_dies_another_repairs_and_answers() {
    System::new().block_on(async {
        let (mut nodes, handles, id) = three(models).await;
        let before = only(&nodes.status(1).await).expect("deployed").version;
        assert_eq!(before.coordinator, Nodes::id(0));
        nodes.kill(0).await;
        let taken_over = |status: &NodeStatus| ready(status) && only(status).is_some_and(|record| record.version.term > before.term);
        nodes.until(1, "another took over", taken_over).await;
        nodes.until(2, "another took over", taken_over).await;
        answers(&handles[1], id).await;
        answers(&handles[2], id).await;
        // It comes back under its id, in a later life, and learns what happened.
        let back = nodes.start(0, models());
        let status = nodes.until(0, "it knows the new plan", taken_over).await;
        assert!(status.nodes.iter().any(|seen| seen.record.node == Nodes::id(0) && seen.record.incarnation == 2));
        answers(&back, id).await;
    });
}

#[test]
fn a_stage_that_restarts_at_once_gets_its_layers_again() {
    System::new().block_on(async {
        let (mut nodes, handles, id) = three(models).await;
        let version = only(&nodes.status(0).await).expect("deployed").version;
        nodes.kill(2).await;
        nodes.start(2, models());
        let again = |status: &NodeStatus| ready(status) && only(status).is_some_and(|record| record.version.epoch > version.epoch);
        nodes.until(0, "it is ready again", again).await;
        answers(&handles[0], id).await;
        answers(&handles[1], id).await;
    });
}

#[test]
fn undeployed_is_gone_everywhere_and_memory_is_freed() {
    System::new().block_on(async {
        let (nodes, handles, id) = three(models).await;
        handles[1].undeploy(id).await.expect("it runs").expect("it is there");
        for index in 0..3 {
            nodes.until(index, "it is gone", |status| status.deployments.is_empty()).await;
            let freed = |status: &NodeStatus| status.nodes.iter().all(|seen| seen.record.shards.is_empty());
            nodes.until(index, "nobody holds a shard", freed).await;
        }
        let answer = handles[2].generate(id, request(1)).await.expect("it runs");
        assert!(matches!(answer.err(), Some(StreamError::NotReady { .. })));
        assert!(handles[0].undeploy(id).await.expect("it runs").is_err());
    });
}

#[test]
fn a_step_that_panics_costs_its_streams_and_not_the_deployment() {
    System::new().block_on(async {
        static PANIC: AtomicBool = AtomicBool::new(false);
        let explosive = || {
            Arc::new(ToyModels::new(vec![sheet()]).with_hook(Arc::new(|_| {
                assert!(!PANIC.swap(false, Ordering::SeqCst), "a fault that the test asked for");
            })))
        };
        let (nodes, handles, id) = three(explosive).await;
        PANIC.store(true, Ordering::SeqCst);
        let generation = handles[0].generate(id, request(50)).await.expect("it runs").expect("it starts");
        let (_, end) = collect(generation).await;
        assert!(end.is_err(), "the step's stream is told");
        nodes.until(0, "it is ready (again)", ready).await;
        nodes.until(1, "it is ready (again)", ready).await;
        for attempt in 0.. {
            let whole = match handles[1].generate(id, request(24)).await.expect("it runs") {
                Ok(generation) => collect(generation).await.1.is_ok(),
                Err(_) => false,
            };
            if whole {
                break;
            }
            assert!(attempt < 100, "it answers again");
            actix::clock::sleep(Duration::from_millis(50)).await;
        }
    });
}

#[test]
fn a_full_disk_refuses_a_deployment_in_words() {
    System::new().block_on(async {
        let mut nodes = Nodes::default();
        let handle = nodes.start(0, models());
        nodes.store(0).fill(true);
        let answer = handle.deploy(sheet(), wish(None)).await.expect("it runs");
        assert!(answer.is_err_and(|why| why.contains("no space left")));
        assert!(nodes.status(0).await.deployments.is_empty());
        nodes.store(0).fill(false);
        let id = handle.deploy(sheet(), wish(None)).await.expect("it runs").expect("there is room now");
        nodes.until(0, "it is ready", ready).await;
        answers(&handle, id).await;
    });
}

#[test]
fn leaving_ends_streams_tells_the_others_and_stops() {
    System::new().block_on(async {
        let (nodes, handles, id) = three(slow_models).await;
        let mine = handles[2].generate(id, request(400)).await.expect("it runs").expect("it starts");
        let theirs = handles[0].generate(id, request(400)).await.expect("it runs").expect("it starts");
        handles[2].leave().await;
        assert_eq!(collect(mine).await.1, Err(StreamError::ShuttingDown));
        assert!(collect(theirs).await.1.is_err(), "a stage of it left");
        assert!(handles[2].status().await.is_err(), "it has stopped");
        let left = |status: &NodeStatus| status.nodes.iter().any(|seen| seen.record.node == Nodes::id(2) && seen.health == Health::Left);
        nodes.until(0, "it has left", left).await;
        nodes.until(0, "the rest goes on", ready).await;
        nodes.until(1, "the rest goes on", ready).await;
        answers(&handles[0], id).await;
    });
}

#[test]
fn what_is_over_leaves_every_list_and_disk_when_its_days_have_passed() {
    System::new().block_on(async {
        let (mut nodes, handles, deployment) = three(models).await;
        nodes.kill(2).await;
        nodes.until(0, "node 2 is down", |status| status.nodes[2].health == Health::Down && status.nodes[2].away_ms.is_some()).await;
        handles[1].undeploy(deployment).await.expect("runs").expect("it is there");
        nodes.until(0, "it is deleted", |status| status.deployments.is_empty()).await;
        let on_disk = |nodes: &mut Nodes| {
            let records = (0..2).flat_map(|index| nodes.store(index).load()).collect::<Vec<Record>>();
            let tombstones = records.iter().filter(|record| matches!(record, Record::Deployment(_))).count();
            (tombstones, records.iter().filter(|record| record.key() == mesh_core::records::RecordKey::Node(Nodes::id(2))).count())
        };
        assert_eq!(on_disk(&mut nodes), (2, 2));
        nodes.clock.days_pass(2);
        for index in 0..2 {
            nodes.until(index, "node 2 has vanished", |status| status.nodes.len() == 2).await;
        }
        // Deletions are remembered for longer.
        for (days, left) in [(0, (2, 0)), (7, (0, 0))] {
            nodes.clock.days_pass(days);
            for _ in 0..500 {
                if on_disk(&mut nodes) == left {
                    break;
                }
                actix::clock::sleep(Duration::from_millis(10)).await;
            }
            assert_eq!(on_disk(&mut nodes), left);
        }
    });
}

#[test]
fn a_node_is_forgotten_when_it_is_gone_and_not_before() {
    System::new().block_on(async {
        let (mut nodes, handles, _) = three(models).await;
        let refused = handles[0].forget(Nodes::id(2)).await.expect("runs");
        assert!(refused.is_err_and(|why| why.contains("stop it first")));
        nodes.kill(2).await;
        nodes.until(0, "node 2 is down", |status| status.nodes[2].health == Health::Down).await;
        handles[0].forget(Nodes::id(2)).await.expect("runs").expect("it is down");
        for index in 0..2 {
            nodes.until(index, "node 2 is on no list", |status| status.nodes.len() == 2).await;
        }
        nodes.start(2, models());
        for index in 0..2 {
            nodes.until(index, "node 2 is welcome", |status| status.nodes.len() == 3 && status.nodes[2].health == Health::Up).await;
        }
    });
}
