//! Shards and streams with real threads over lanes in memory.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use actix::System;
use mesh_core::generation::{FinishReason, GenerationRequest, Sampling, StreamError};
use mesh_core::ids::StreamId;
use mesh_core::model::ModelSheet;
use mesh_core::toy::{self, ToyModels};
use mesh_core::wire::ShardState;
use mesh_core::{stage, stream};

use crate::handle::{Generation, GenerationEvent};
use crate::stream::StreamNews;
use crate::testing::{Cluster, ClusterShape};

const CONTEXT: u32 = 1_200;

fn shape(nodes: u8) -> ClusterShape {
    ClusterShape {
        sheet: toy::sheet(6, 1_024, 200, 4_096), // 64 positions a slot: long prompts need several
        nodes,
        context: CONTEXT,
        kv_bytes_max: 1 << 30,
        stage: stage::Limits::default(),
        stream: stream::Limits::default(),
    }
}

fn request(seed: u64, prompt: usize, max_tokens: u32) -> GenerationRequest {
    let prompt = (0..prompt as u64).map(|at| u32::try_from((at * 31 + seed * 7) % 200).expect("small")).collect();
    GenerationRequest { prompt, sampling: Sampling { seed, ..Sampling::default() }, end_ids: vec![199], max_tokens }
}

fn plain(sheet: ModelSheet) -> impl Fn(u8) -> ToyModels {
    move |_| ToyModels::new(vec![sheet.clone()])
}

/// Everything that comes out.
async fn collect(mut generation: Generation) -> (Vec<u32>, Result<FinishReason, StreamError>) {
    let mut tokens = Vec::new();
    loop {
        let next = actix::clock::timeout(Duration::from_secs(20), generation.events.recv()).await.expect("no hang");
        match next.expect("closed only after the last event") {
            GenerationEvent::Token { index, token, .. } => {
                assert_eq!(index as usize, tokens.len());
                tokens.push(token);
            }
            GenerationEvent::Finished { reason, timing } => {
                assert_eq!(timing.generated_tokens as usize, tokens.len());
                assert_eq!(generation.events.recv().await, None, "closed after the end");
                return (tokens, Ok(reason));
            }
            GenerationEvent::Failed(error) => return (tokens, Err(error)),
        }
    }
}

fn expected(sheet: &ModelSheet, request: &GenerationRequest) -> (Vec<u32>, Result<FinishReason, StreamError>) {
    let (tokens, reason) = toy::reference(sheet, request, CONTEXT);
    (tokens, Ok(reason))
}

fn run(test: impl Future<Output = ()>) {
    System::new().block_on(test);
}

#[test]
fn one_two_and_three_stages_say_the_same() {
    run(async {
        for cuts in [&[][..], &[3], &[1, 4], &[5]] {
            let shape = shape(3);
            let sheet = shape.sheet.clone();
            let mut cluster = Cluster::new(shape, plain(sheet.clone()));
            let plan = cluster.plan(cuts);
            cluster.deploy(&plan).await;
            for owner in 0..3 {
                let ask = request(u64::from(owner), 300, 40);
                let (_, generation) = cluster.ask(owner, ask.clone());
                assert_eq!(collect(generation).await, expected(&sheet, &ask), "cuts {cuts:?}, owner {owner}");
            }
            cluster.quiet().await;
            cluster.end().await;
        }
    });
}

#[test]
fn many_at_once_equal_their_solo_runs() {
    run(async {
        let shape = shape(3);
        let sheet = shape.sheet.clone();
        let mut cluster = Cluster::new(shape, plain(sheet.clone()));
        let plan = cluster.plan(&[2, 4]);
        cluster.deploy(&plan).await;
        let asks: Vec<_> =
            [3, 900, 17, 128, 129, 256, 400, 1].into_iter().zip(1..).map(|(length, seed)| request(seed, length, 60)).collect();
        let all = asks.iter().zip([0, 1, 2].into_iter().cycle()).map(|(ask, owner)| collect(cluster.ask(owner, ask.clone()).1));
        let all: Vec<_> = all.collect();
        for (ask, got) in asks.iter().zip(futures::future::join_all(all).await) {
            assert_eq!(got, expected(&sheet, ask));
        }
        cluster.quiet().await;
        cluster.end().await;
    });
}

#[test]
fn a_client_that_goes_away_frees_every_cache() {
    run(async {
        let shape = shape(3);
        let sheet = shape.sheet.clone();
        let mut cluster = Cluster::new(shape, plain(sheet.clone()));
        let plan = cluster.plan(&[2, 4]);
        cluster.deploy(&plan).await;
        let ask = GenerationRequest { end_ids: vec![], ..request(1, 30, 1_000) };
        let (_, mut generation) = cluster.ask(1, ask);
        for _ in 0..10 {
            assert!(matches!(generation.events.recv().await, Some(GenerationEvent::Token { .. })));
        }
        assert!((0..3).all(|stage| cluster.shard(stage).seen().streams == 1));
        drop(generation);
        cluster.quiet().await;
        cluster.end().await;
    });
}

/// Rows of a closed stream leave a hole in the slot that the engine wrote into; what follows moves up into it.
#[test]
fn a_stream_that_is_closed_in_mid_step_does_not_shift_its_neighbours() {
    run(async {
        let shape = shape(2);
        let sheet = shape.sheet.clone();
        let (gate, caught) = (Arc::new(Gate::default()), Arc::new(Mutex::new(Vec::new())));
        let (held, seen, models) = (gate.clone(), caught.clone(), sheet.clone());
        let mut cluster = Cluster::new(shape, move |node| {
            let (held, seen) = (held.clone(), seen.clone());
            let models = ToyModels::new(vec![models.clone()]);
            // Steps of the first stage are slow, so that streams meet in one. The first such step is held.
            let hook = move |rows: &[mesh_core::ports::StepRow<'_>]| {
                std::thread::sleep(Duration::from_millis(2));
                if rows.len() > 1 && seen.lock().expect("no panic inside").is_empty() {
                    held.shut(true);
                    *seen.lock().expect("no panic inside") = rows.iter().map(|row| row.stream.0).collect();
                    held.pass();
                }
            };
            if node == 0 { models.with_hook(Arc::new(hook)) } else { models }
        });
        let plan = cluster.plan(&[3]);
        cluster.deploy(&plan).await;
        let asks = [1, 2, 3].map(|seed| GenerationRequest { end_ids: vec![], ..request(seed, 20, 100) });
        let running = asks.clone().map(|ask| cluster.ask(0, ask).1);
        for _ in 0..500 {
            if !caught.lock().expect("no panic inside").is_empty() {
                break;
            }
            actix::clock::sleep(Duration::from_millis(10)).await;
        }
        let first = *caught.lock().expect("no panic inside").first().expect("streams meet in a step");
        let (closed, others): (Vec<_>, Vec<_>) = running.into_iter().zip(asks).partition(|(one, _)| one.stream.0 == first);
        assert_eq!((closed.len(), others.len()), (1, 2));
        drop(closed);
        actix::clock::sleep(Duration::from_millis(50)).await; // the close arrives while the step is held
        gate.shut(false);
        for (generation, ask) in others {
            assert_eq!(collect(generation).await, expected(&sheet, &ask));
        }
        cluster.quiet().await;
        cluster.end().await;
    });
}

#[test]
fn a_client_that_does_not_read_stops_the_stages_and_loses_nothing() {
    run(async {
        let shape = shape(2);
        let sheet = shape.sheet.clone();
        let mut cluster = Cluster::new(shape, plain(sheet.clone()));
        let plan = cluster.plan(&[3]);
        cluster.deploy(&plan).await;
        let ask = GenerationRequest { end_ids: vec![], ..request(1, 30, 500) };
        let (_, generation) = cluster.ask(0, ask.clone());
        let mut before = u64::MAX;
        while before != cluster.shard(1).seen().steps {
            before = cluster.shard(1).seen().steps;
            actix::clock::sleep(Duration::from_millis(100)).await;
        }
        assert!(before < 200, "the stages ran {before} steps for a client that took nothing");
        assert_eq!(collect(generation).await, expected(&sheet, &ask));
        cluster.end().await;
    });
}

#[test]
fn a_panic_in_the_engine_ends_its_streams_and_nothing_else() {
    run(async {
        let shape = shape(2);
        let sheet = shape.sheet.clone();
        let armed = Arc::new(AtomicBool::new(false));
        let trigger = armed.clone();
        let mut cluster = Cluster::new(shape, move |node| {
            let trigger = trigger.clone();
            let models = ToyModels::new(vec![sheet.clone()]);
            if node == 0 {
                return models;
            }
            models.with_hook(Arc::new(move |_| assert!(!trigger.swap(false, Ordering::SeqCst), "a kernel met a number it did not like")))
        });
        let plan = cluster.plan(&[3]);
        cluster.deploy(&plan).await;
        let loaded = cluster.shard(1).seen().loaded_bytes;
        armed.store(true, Ordering::SeqCst);
        let (_, error) = collect(cluster.ask(0, request(1, 30, 10)).1).await;
        let error = error.expect_err("it must fail");
        assert!(matches!(&error, StreamError::Stage { stage: 1, why, .. } if why.contains("a kernel met a number")), "{error}");
        cluster.quiet().await;
        let ask = request(2, 30, 10);
        let sheet = shape_sheet();
        assert_eq!(collect(cluster.ask(0, ask.clone()).1).await, expected(&sheet, &ask));
        assert_eq!(cluster.shard(1).seen().loaded_bytes, loaded, "nothing was loaded again");
        cluster.end().await;
    });
}

fn shape_sheet() -> ModelSheet {
    shape(1).sheet
}

/// Blocks whoever passes while it is shut.
#[derive(Default)]
struct Gate {
    shut: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    fn shut(&self, whether: bool) {
        *self.shut.lock().expect("no panic inside") = whether;
        self.changed.notify_all();
    }
    fn pass(&self) {
        let mut shut = self.shut.lock().expect("no panic inside");
        while *shut {
            shut = self.changed.wait(shut).expect("no panic inside");
        }
    }
}

#[test]
fn a_stage_that_is_stuck_is_named() {
    run(async {
        let mut shape = shape(3);
        shape.stream = stream::Limits { token_ms: 400, prompt_token_ms: 1, ..stream::Limits::default() };
        let sheet = shape.sheet.clone();
        let gate = Arc::new(Gate::default());
        let held = gate.clone();
        let models = sheet.clone();
        let mut cluster = Cluster::new(shape, move |node| {
            let held = held.clone();
            let models = ToyModels::new(vec![models.clone()]);
            if node == 1 { models.with_hook(Arc::new(move |_| held.pass())) } else { models }
        });
        let plan = cluster.plan(&[2, 4]);
        cluster.deploy(&plan).await;
        gate.shut(true);
        let (tokens, error) = collect(cluster.ask(0, request(1, 10, 10)).1).await;
        let error = error.expect_err("it must fail");
        assert!(tokens.is_empty() && matches!(error, StreamError::Late { stage: 1, .. }), "{error}");
        gate.shut(false);
        cluster.quiet().await;
        let ask = request(2, 30, 10);
        assert_eq!(collect(cluster.ask(2, ask.clone()).1).await, expected(&sheet, &ask));
        cluster.end().await;
    });
}

#[test]
fn a_step_that_nobody_wants_gives_up() {
    run(async {
        let shape = shape(1);
        let sheet = shape.sheet.clone();
        let (gate, calls) = (Arc::new(Gate::default()), Arc::new(AtomicUsize::new(0)));
        let (held, counted, models) = (gate.clone(), calls.clone(), sheet.clone());
        let mut cluster = Cluster::new(shape, move |_| {
            let (held, counted) = (held.clone(), counted.clone());
            ToyModels::new(vec![models.clone()]).with_hook(Arc::new(move |_| {
                counted.fetch_add(1, Ordering::SeqCst);
                held.pass();
            }))
        });
        let plan = cluster.plan(&[]);
        cluster.deploy(&plan).await;
        gate.shut(true);
        let (_, generation) = cluster.ask(0, request(1, 30, 10));
        while calls.load(Ordering::SeqCst) == 0 {
            actix::clock::sleep(Duration::from_millis(1)).await;
        }
        drop(generation);
        actix::clock::sleep(Duration::from_millis(50)).await; // the close arrives while the step is held
        gate.shut(false);
        cluster.quiet().await;
        assert_eq!((calls.load(Ordering::SeqCst), cluster.shard(0).seen().steps), (1, 0), "begun, and given up");
        let ask = request(2, 30, 10);
        assert_eq!(collect(cluster.ask(0, ask.clone()).1).await, expected(&sheet, &ask));
        cluster.end().await;
    });
}

#[test]
fn a_node_that_hears_nothing_is_named_at_the_open() {
    run(async {
        let mut shape = shape(3);
        shape.stream = stream::Limits { open_ms: 200, ..stream::Limits::default() };
        let sheet = shape.sheet.clone();
        let mut cluster = Cluster::new(shape, plain(sheet.clone()));
        let plan = cluster.plan(&[2, 4]);
        cluster.deploy(&plan).await;
        cluster.net.mute(Cluster::node(2), true);
        let (_, error) = collect(cluster.ask(0, request(1, 10, 10)).1).await;
        assert!(matches!(error, Err(StreamError::Late { stage: 2, .. })), "{error:?}");
        cluster.net.mute(Cluster::node(2), false);
        cluster.net.cut(Cluster::node(1), true);
        let (_, error) = collect(cluster.ask(0, request(1, 10, 10)).1).await;
        assert!(matches!(error, Err(StreamError::Stage { stage: 1, .. })), "{error:?}");
        cluster.net.cut(Cluster::node(1), false);
        let ask = request(2, 30, 10);
        assert_eq!(collect(cluster.ask(0, ask.clone()).1).await, expected(&sheet, &ask));
        cluster.end().await;
    });
}

#[test]
fn a_lane_that_breaks_ends_its_streams_and_comes_back() {
    run(async {
        let shape = shape(3);
        let sheet = shape.sheet.clone();
        let mut cluster = Cluster::new(shape, plain(sheet.clone()));
        let plan = cluster.plan(&[2, 4]);
        cluster.deploy(&plan).await;
        let loaded: Vec<u64> = (0..3).map(|stage| cluster.shard(stage).seen().loaded_bytes).collect();
        for boundary in [0, 1, 1] {
            let (_, mut generation) = cluster.ask(1, GenerationRequest { end_ids: vec![], ..request(1, 30, 1_000) });
            assert!(matches!(generation.events.recv().await, Some(GenerationEvent::Token { index: 0, .. })));
            let mut wired = cluster.shard(usize::from(boundary)).watch();
            cluster.lanes.pull(boundary, "a cable was pulled");
            let error = loop {
                match generation.events.recv().await.expect("closed only after the last event") {
                    GenerationEvent::Token { .. } => {}
                    GenerationEvent::Failed(error) => break error,
                    GenerationEvent::Finished { .. } => panic!("it cannot finish"),
                }
            };
            assert!(error.to_string().contains("a cable was pulled"), "{error}");
            wired.wait_for(|view| view.state == ShardState::Loaded).await.expect("it says that it is not wired");
            cluster.wait(&plan, &ShardState::Wired).await;
            let ask = request(2, 30, 10);
            assert_eq!(collect(cluster.ask(0, ask.clone()).1).await, expected(&sheet, &ask));
        }
        assert_eq!((0..3).map(|stage| cluster.shard(stage).seen().loaded_bytes).collect::<Vec<_>>(), loaded);
        cluster.end().await;
    });
}

#[test]
fn another_plan_reads_only_layers_that_are_new() {
    run(async {
        let shape = shape(3);
        let sheet = shape.sheet.clone();
        let mut cluster = Cluster::new(shape, plain(sheet.clone()));
        let read = |cluster: &Cluster| (0..3).map(|node| cluster.shard(node).seen().loaded_bytes).collect::<Vec<_>>();
        let three = cluster.plan(&[2, 4]);
        cluster.deploy(&three).await;
        assert_eq!(read(&cluster), [2_000, 2_000, 2_000]);
        let (_, generation) = cluster.ask(0, GenerationRequest { end_ids: vec![], ..request(1, 30, 1_000) });
        let two = cluster.plan(&[3]);
        cluster.deploy(&two).await;
        assert_eq!(read(&cluster), [3_000, 4_000, 2_000], "node 0 read layer 2; node 1 kept layer 3 and read 4 and 5");
        assert!(collect(generation).await.1.is_err(), "streams of the old plan end");
        let ask = request(2, 30, 10);
        assert_eq!(collect(cluster.ask(2, ask.clone()).1).await, expected(&sheet, &ask));
        cluster.deploy(&two).await;
        assert_eq!(read(&cluster), [3_000, 4_000, 2_000], "an order that is carried out changes nothing");
        cluster.end().await;
    });
}

#[test]
fn a_load_that_nobody_wants_gives_up() {
    run(async {
        let shape = shape(1);
        let sheet = shape.sheet.clone();
        let (gate, layers) = (Arc::new(Gate::default()), Arc::new(AtomicUsize::new(0)));
        let (held, counted) = (gate.clone(), layers.clone());
        let cluster = Cluster::new(shape, move |_| {
            let (held, counted) = (held.clone(), counted.clone());
            let models = ToyModels::new(vec![sheet.clone()]);
            models.with_load_hook(Arc::new(move |_| {
                counted.fetch_add(1, Ordering::SeqCst);
                held.pass();
            }))
        });
        gate.shut(true);
        let plan = cluster.plan(&[]);
        let options =
            mesh_core::ports::EngineOptions { threads: 1, numerics: plan.numerics(), context: plan.context(), kv_bytes_max: 1 << 20 };
        cluster.shard(0).load(&plan, options).expect("the queue is empty");
        assert!(matches!(cluster.shard(0).report().expect("ordered").state, ShardState::Loading { .. }));
        while layers.load(Ordering::SeqCst) == 0 {
            actix::clock::sleep(Duration::from_millis(1)).await;
        }
        cluster.shard(0).retire();
        gate.shut(false);
        cluster.shard(0).ended().await;
        assert_eq!(layers.load(Ordering::SeqCst), 1, "it asked before the second layer");
    });
}

#[test]
fn a_superseded_order_to_adopt_does_not_hide_what_becomes_of_the_newer_plan() {
    run(async {
        let shape = shape(2);
        let sheet = shape.sheet.clone();
        let gate = Arc::new(Gate::default());
        let held = gate.clone();
        let cluster = Cluster::new(shape, move |_| {
            let held = held.clone();
            ToyModels::new(vec![sheet.clone()]).with_load_hook(Arc::new(move |_| held.pass()))
        });
        gate.shut(true);
        let (old, new) = (cluster.plan(&[]), cluster.plan(&[3]));
        let options =
            mesh_core::ports::EngineOptions { threads: 1, numerics: old.numerics(), context: old.context(), kv_bytes_max: 1 << 20 };
        let shard = cluster.shard(0);
        shard.load(&old, options).and_then(|()| shard.adopt(&old)).expect("there is room");
        shard.load(&new, options).and_then(|()| cluster.shard(1).load(&new, options)).expect("there is room");
        gate.shut(false);
        cluster.wait(&new, &ShardState::Loaded).await;
        cluster.end().await;
    });
}

#[test]
fn news_end_streams_at_once() {
    run(async {
        let shape = shape(2);
        let sheet = shape.sheet.clone();
        let mut cluster = Cluster::new(shape, plain(sheet));
        let plan = cluster.plan(&[3]);
        cluster.deploy(&plan).await;
        let endless = GenerationRequest { end_ids: vec![], ..request(1, 30, 1_000) };
        for news in [StreamNews::NodeDown(Cluster::node(1)), StreamNews::Replanned, StreamNews::Undeployed, StreamNews::ShuttingDown] {
            let (stream, mut generation) = cluster.ask(0, endless.clone());
            assert!(matches!(generation.events.recv().await, Some(GenerationEvent::Token { .. })));
            stream.send(news.clone()).await.expect("it runs");
            let mut last = None;
            while let Some(event) = generation.events.recv().await {
                last = Some(event);
            }
            let Some(GenerationEvent::Failed(error)) = last else { panic!("{news:?} gave {last:?}") };
            let right = match news {
                StreamNews::NodeDown(_) => matches!(error, StreamError::NodeDown { first: 3, end: 6, .. }),
                StreamNews::Replanned => error == StreamError::Replanned,
                StreamNews::Undeployed => error == StreamError::Undeployed,
                StreamNews::ShuttingDown => error == StreamError::ShuttingDown,
            };
            assert!(right, "{error}");
            // A node that is down is not told; here it lives, and its own ear would drop what the owner had.
            if matches!(news, StreamNews::NodeDown(_)) {
                cluster.shard(1).node_down(Cluster::node(0)).expect("room");
            }
            cluster.quiet().await;
        }
        cluster.end().await;
    });
}

#[test]
fn caches_that_are_full_refuse_with_numbers() {
    run(async {
        let mut shape = shape(1);
        shape.kv_bytes_max = 6 * 8 * 100; // a hundred positions of six layers
        let sheet = shape.sheet.clone();
        let mut cluster = Cluster::new(shape, plain(sheet.clone()));
        let plan = cluster.plan(&[]);
        cluster.deploy(&plan).await;
        let (_, error) = collect(cluster.ask(0, request(1, 90, 11)).1).await;
        let error = error.expect_err("it does not fit");
        assert!(error.to_string().contains("no cache memory for 4848 bytes, 4800 are free"), "{error}");
        let ask = request(1, 90, 10);
        assert_eq!(collect(cluster.ask(0, ask.clone()).1).await, expected(&sheet, &ask));
        cluster.end().await;
    });
}

#[test]
fn a_stream_id_is_registered_only_while_it_runs() {
    let id = StreamId(5);
    let router = crate::router::Router::new();
    let (inlet, mut heard) = tokio::sync::mpsc::channel(1);
    let message = |why: &str| {
        let tag = mesh_core::wire::StreamTag {
            deployment: mesh_core::ids::DeploymentId(1),
            plan: mesh_core::ids::PlanHash(1),
            stream: id,
            attempt: mesh_core::generation::AttemptTag(1),
        };
        mesh_core::wire::Message::StreamFailed(mesh_core::wire::StreamFailed { tag, stage: 0, why: why.to_owned() })
    };
    router.add_stream(id, inlet);
    assert_eq!(router.route(Cluster::node(0), message("one")), None);
    assert_eq!(router.route(Cluster::node(0), message("two")), None, "full: counted and dropped");
    assert_eq!(heard.try_recv().expect("the first"), (Cluster::node(0), message("one")));
    router.remove_stream(id);
    router.route(Cluster::node(0), message("three"));
    assert_eq!(router.undelivered(), crate::router::Undelivered { unknown: 1, full: 1 });
    assert!(router.route(Cluster::node(0), mesh_core::wire::Message::Ping(1)).is_some(), "not ours");
}
