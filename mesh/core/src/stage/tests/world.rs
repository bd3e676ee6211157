//! Worlds of stages and owners, driven by toy engines in random order: messages between two nodes keep their order, all
//! else may happen at any time. Whatever the order, the tokens are those of an undisturbed run.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;

use super::{attempt_of, node, place_of, plan_of};
use crate::generation::{FinishReason, GenerationRequest, Sampling, StreamError};
use crate::ids::{DeploymentId, NodeId, StreamId, Time};
use crate::model::ModelSheet;
use crate::plan::Plan;
use crate::ports::{Engine, LaneSlot, Sampled, Step, StepInput, StepRow};
use crate::stage::{Batch, Effect, Input, Limits, Part, Side, SlotId, Stage};
use crate::step_message::{self, Row};
use crate::stream::{self, Event, Stream};
use crate::toy::{self, ToyEngine};
use crate::wire::Message;

const SLOTS: usize = 3;

/// One stage's host: what the shard's thread is in the real world.
struct Host {
    stage: Stage,
    engine: ToyEngine,
    /// What the running step will have given.
    running: Option<Result<Vec<Sampled>, String>>,
    output: Vec<f32>,
    /// Received slots that were not released.
    held: BTreeMap<SlotId, Vec<u8>>,
    /// On the lane towards this host.
    lane: VecDeque<Vec<u8>>,
    lane_life: u64,
    received: u16,
}

struct Owner {
    node: NodeId,
    core: Stream,
    events: Vec<Event>,
    taken: u32,
}

struct World {
    sheet: ModelSheet,
    plan: Plan,
    slot_bytes: u32,
    now: Time,
    hosts: Vec<Host>,
    owners: BTreeMap<StreamId, Owner>,
    mail: BTreeMap<(NodeId, NodeId), VecDeque<Message>>,
    random: u64,
    /// Every token that any last stage said: (stream, attempt, position).
    said: BTreeMap<(StreamId, u64, u32), u32>,
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Mail(NodeId, NodeId),
    Lane(usize),
    StepDone(usize),
    Credit(usize),
    Take(StreamId),
}

impl World {
    fn new(stages: u8, slot_bytes: u32, limits: Limits, seed: u64) -> Self {
        let (sheet, plan) = plan_of(stages, 2_000);
        let hosts = (0..stages)
            .map(|index| Host {
                stage: Stage::new(limits),
                engine: ToyEngine::new(&sheet, plan.stages()[usize::from(index)].layers, 1 << 30),
                running: None,
                output: Vec::new(),
                held: BTreeMap::new(),
                lane: VecDeque::new(),
                lane_life: 1,
                received: 0,
            })
            .collect();
        let mut world = Self {
            sheet,
            plan,
            slot_bytes,
            now: Time(1),
            hosts,
            owners: BTreeMap::new(),
            mail: BTreeMap::new(),
            random: seed | 1,
            said: BTreeMap::new(),
        };
        for index in 0..usize::from(stages) {
            let place = world.place(index);
            world.feed(index, Input::Adopt(Box::new(place)));
        }
        world
    }

    fn place(&self, index: usize) -> crate::stage::Place {
        place_of(&self.plan, u16::try_from(index).expect("few"), self.slot_bytes)
    }

    /// xorshift64: enough to shuffle.
    fn draw(&mut self, below: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        usize::try_from(self.random % below as u64).expect("small")
    }

    fn ask(&mut self, stream: u128, owner: NodeId, request: GenerationRequest, counter: u32) {
        let setup = stream::Setup {
            deployment: DeploymentId(1),
            plan: self.plan.clone(),
            stream: StreamId(stream),
            attempt: attempt_of(owner, counter),
            request,
            names: BTreeMap::new(),
        };
        let core = Stream::new(setup, stream::Limits::default());
        self.owners.insert(StreamId(stream), Owner { node: owner, core, events: Vec::new(), taken: 0 });
        self.tell(StreamId(stream), stream::Input::Begin);
    }

    fn tell(&mut self, stream: StreamId, input: stream::Input) {
        let mut effects = Vec::new();
        let Some(owner) = self.owners.get_mut(&stream) else { return };
        owner.core.step(self.now, input, &mut effects);
        for effect in effects {
            match effect {
                stream::Effect::Send { to, message } => self.mail.entry((owner.node, to)).or_default().push_back(message),
                stream::Effect::Emit(event) => owner.events.push(event),
            }
        }
    }

    fn feed(&mut self, index: usize, input: Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let mut effects = Vec::new();
            self.hosts[index].stage.step(self.now, input, &mut effects);
            for effect in effects {
                match effect {
                    Effect::Send { to, message } => self.post(index, to, message),
                    Effect::OpenCache { tag, keep, positions_max } => {
                        let outcome = self.hosts[index].engine.open(tag.stream, keep, positions_max);
                        inputs.push_back(Input::CacheOpened { tag, outcome });
                    }
                    Effect::CloseCache(stream) => self.hosts[index].engine.close(stream),
                    Effect::Run(batch) => self.run(index, &batch),
                    Effect::Emit(part) => self.emit(index, &part),
                    Effect::Release(slot) => assert!(self.hosts[index].held.remove(&slot).is_some(), "released twice"),
                }
            }
        }
    }

    fn post(&mut self, index: usize, to: NodeId, message: Message) {
        if let Message::Token(token) = &message {
            let former = self.said.insert((token.stream, token.attempt.0, token.position), token.token);
            let repeated = former.is_some() && to == self.owners[&token.stream].node && former != Some(token.token);
            assert!(!repeated, "two tokens for one position");
        }
        self.mail.entry((node(u8::try_from(index).expect("few")), to)).or_default().push_back(message);
    }

    /// The engine runs inline; the outcome is told later.
    fn run(&mut self, index: usize, batch: &Batch) {
        let host = &mut self.hosts[index];
        assert!(host.running.is_none(), "one step at a time");
        let last = index + 1 == self.plan.stages().len();
        host.output = if last { Vec::new() } else { vec![0.0; batch.positions as usize * 4] };
        let rows: Vec<StepRow<'_>> = batch
            .rows
            .iter()
            .map(|row| StepRow {
                stream: row.tag.stream,
                first: row.first,
                count: row.count,
                sample: row.sample.then(|| host.stage.sample_how(row.tag.stream).expect("it is open")),
            })
            .collect();
        let segments: Vec<Vec<f32>> = batch.pieces.iter().map(|piece| values(&host.held[&piece.slot], piece.at, piece.count)).collect();
        let segments: Vec<&[f32]> = segments.iter().map(Vec::as_slice).collect();
        let input = if index == 0 { StepInput::Tokens(&batch.tokens) } else { StepInput::Hidden(&segments) };
        let step = Step { rows: &rows, input, output: &mut host.output, give_up: &AtomicBool::new(false) };
        let outcome = host.engine.step(step);
        host.running = Some(outcome.map_err(|error| error.to_string()));
    }

    fn emit(&mut self, index: usize, part: &Part) {
        let rows: Vec<Row> = part.rows.iter().map(|(row, _)| *row).collect();
        let mut slot = vec![0; self.slot_bytes as usize];
        let bytes = step_message::write(&mut slot, part.plan, 4, &rows);
        let mut at = step_message::payload_offset(rows.len());
        for (row, from) in &part.rows {
            for value in &self.hosts[index].output[*from as usize * 4..(*from + row.count) as usize * 4] {
                slot[at..at + 4].copy_from_slice(&value.to_le_bytes());
                at += 4;
            }
        }
        assert_eq!(at, bytes);
        slot.truncate(bytes);
        let next = &mut self.hosts[index + 1];
        assert!(next.lane.len() + next.held.len() < SLOTS, "sent without credit");
        next.lane.push_back(slot);
    }

    fn acts(&self) -> Vec<Act> {
        let mut acts: Vec<Act> =
            self.mail.iter().filter(|(_, queue)| !queue.is_empty()).map(|((from, to), _)| Act::Mail(*from, *to)).collect();
        for (index, host) in self.hosts.iter().enumerate() {
            if !host.lane.is_empty() {
                acts.push(Act::Lane(index));
            }
            if host.running.is_some() {
                acts.push(Act::StepDone(index));
            }
            if host.stage.wants_credit() && self.hosts[index + 1].lane.len() + self.hosts[index + 1].held.len() < SLOTS {
                acts.push(Act::Credit(index));
            }
        }
        for (stream, owner) in &self.owners {
            if (owner.taken as usize) < owner.core.tokens().len() && !owner.core.is_over() {
                acts.push(Act::Take(*stream));
            }
        }
        acts
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Mail(from, to) => {
                let message = self.mail.get_mut(&(from, to)).and_then(VecDeque::pop_front).expect("there was one");
                self.deliver(from, to, message);
            }
            Act::Lane(index) => {
                let bytes = self.hosts[index].lane.pop_front().expect("there was one");
                let host = &mut self.hosts[index];
                host.received = host.received.wrapping_add(1);
                let slot = LaneSlot { index: host.received, bytes: u32::try_from(bytes.len()).expect("small") };
                let slot = SlotId { lane: host.lane_life, slot };
                let message = step_message::read(&bytes).expect("we wrote it");
                let (plan, width, rows) = (message.plan, message.width, message.rows);
                host.held.insert(slot, bytes);
                self.feed(index, Input::Arrived { slot, plan, width, rows });
            }
            Act::StepDone(index) => {
                let outcome = self.hosts[index].running.take().expect("there was one");
                self.feed(index, Input::Stepped(outcome));
            }
            Act::Credit(index) => self.feed(index, Input::Credit),
            Act::Take(stream) => {
                let taken = {
                    let owner = self.owners.get_mut(&stream).expect("it is there");
                    owner.taken += 1;
                    owner.taken
                };
                self.tell(stream, stream::Input::Taken(taken));
            }
        }
    }

    /// As the router: to the owner, to the shard, or to both.
    fn deliver(&mut self, from: NodeId, to: NodeId, message: Message) {
        let stream = match &message {
            Message::Opened(opened) => Some(opened.tag.stream),
            Message::Token(token) => Some(token.stream),
            Message::StreamFailed(failed) => Some(failed.tag.stream),
            _ => None,
        };
        if let Some(stream) = stream.filter(|stream| self.owners.get(stream).is_some_and(|owner| owner.node == to)) {
            self.tell(stream, stream::Input::Heard { from, message: message.clone() });
        }
        let index = usize::from(to.0[0]);
        if index < self.hosts.len() && !matches!(message, Message::Opened(_) | Message::StreamFailed(_)) {
            self.feed(index, Input::Heard { from, message });
        }
    }

    /// Runs in random order until nothing can happen any more. `disturb` may do something before each act.
    fn run_out(&mut self, mut disturb: impl FnMut(&mut Self, usize)) {
        for turn in 0..200_000 {
            disturb(self, turn);
            let acts = self.acts();
            if acts.is_empty() {
                return;
            }
            let act = acts[self.draw(acts.len())];
            self.act(act);
        }
        panic!("never quiet");
    }

    fn tokens(&self, stream: u128) -> Vec<u32> {
        let events = &self.owners[&StreamId(stream)].events;
        let mut tokens = Vec::new();
        for event in events {
            if let Event::Token { index, token, .. } = event {
                assert_eq!(*index as usize, tokens.len(), "in order, each once");
                tokens.push(*token);
            }
        }
        tokens
    }

    fn finish(&self, stream: u128) -> Option<Result<FinishReason, StreamError>> {
        self.owners[&StreamId(stream)].events.iter().find_map(|event| match event {
            Event::Token { .. } => None,
            Event::Finished { reason, .. } => Some(Ok(*reason)),
            Event::Failed(error) => Some(Err(error.clone())),
        })
    }

    fn assert_empty(&self) {
        for (index, host) in self.hosts.iter().enumerate() {
            assert_eq!((host.stage.streams(), host.engine.streams(), host.held.len()), (0, 0, 0), "stage {index} keeps nothing");
        }
    }

    fn expected(&self, request: &GenerationRequest) -> (Vec<u32>, FinishReason) {
        toy::reference(&self.sheet, request, self.plan.context())
    }
}

fn values(bytes: &[u8], at: u32, count: u32) -> Vec<f32> {
    let payload = step_message::read(bytes).expect("we wrote it").payload;
    payload[at as usize * 16..(at + count) as usize * 16]
        .chunks_exact(4)
        .map(|four| f32::from_le_bytes(four.try_into().expect("4 bytes")))
        .collect()
}

fn requests() -> impl Strategy<Value = Vec<(u8, GenerationRequest)>> {
    let request = (prop::collection::vec(0_u32..50, 1..200), 1_u32..60, any::<u64>(), prop::option::of(0_u8..3));
    let request = request.prop_map(|(prompt, max_tokens, seed, logprobs)| GenerationRequest {
        prompt,
        sampling: Sampling { seed, logprobs, ..Sampling::default() },
        end_ids: vec![48, 49],
        max_tokens,
    });
    prop::collection::vec((0_u8..5, request), 1..6)
}

fn limits() -> impl Strategy<Value = Limits> {
    (1_u32..40, 1_u32..20).prop_map(|(step, chunk)| Limits { step_positions_max: step, chunk_positions_max: chunk, ..Limits::default() })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Any number of stages, streams, slot sizes, budgets, any order: exactly the reference's tokens, and nothing stays behind.
    #[test]
    fn any_order_gives_the_tokens_of_an_undisturbed_run(
        stages in 1_u8..5, slot_bytes in 144_u32..600, limits in limits(), requests in requests(), seed in any::<u64>()
    ) {
        let mut world = World::new(stages, slot_bytes, limits, seed);
        for (stream, (owner, request)) in requests.iter().enumerate() {
            world.ask(stream as u128, node(*owner), request.clone(), 1);
        }
        world.run_out(|_, _| {});
        for (stream, (_, request)) in requests.iter().enumerate() {
            let (tokens, reason) = world.expected(request);
            prop_assert_eq!(world.tokens(stream as u128), tokens);
            prop_assert_eq!(world.finish(stream as u128), Some(Ok(reason)));
        }
        world.assert_empty();
    }

    /// Cancelled streams stop everywhere; the others do not notice.
    #[test]
    fn a_cancelled_stream_leaves_nothing_and_disturbs_nobody(
        stages in 1_u8..5, slot_bytes in 144_u32..600, limits in limits(), requests in requests(), seed in any::<u64>(), when in prop::collection::vec(0_usize..300, 6)
    ) {
        let mut world = World::new(stages, slot_bytes, limits, seed);
        for (stream, (owner, request)) in requests.iter().enumerate() {
            world.ask(stream as u128, node(*owner), request.clone(), 1);
        }
        world.run_out(|world, turn| {
            for stream in (0..requests.len()).filter(|stream| stream % 2 == 0 && when[*stream] == turn) {
                world.tell(StreamId(stream as u128), stream::Input::Cancel);
            }
        });
        for (stream, (_, request)) in requests.iter().enumerate() {
            let (tokens, _) = world.expected(request);
            let got = world.tokens(stream as u128);
            prop_assert!(got == tokens[..got.len()] && (stream % 2 == 0 || got.len() == tokens.len()));
        }
        world.assert_empty();
    }

    /// Lanes that break, owners that die, plans that come again, messages that come twice: a stream may end with an error,
    /// but what came out is the beginning of the right answer, and no stage keeps anything of it.
    #[test]
    fn faults_end_streams_but_never_change_a_token(
        stages in 2_u8..5, slot_bytes in 144_u32..600, limits in limits(), requests in requests(), seed in any::<u64>(),
        faults in prop::collection::vec((0_usize..400, 0_u8..4, 0_usize..8), 0..5)
    ) {
        let mut world = World::new(stages, slot_bytes, limits, seed);
        for (stream, (owner, request)) in requests.iter().enumerate() {
            world.ask(stream as u128, node(*owner), request.clone(), 1);
        }
        world.run_out(|world, turn| {
            for (_, fault, which) in faults.iter().filter(|(when, _, _)| *when == turn) {
                fault_of(world, *fault, *which);
            }
        });
        // A message that came twice may have opened what nobody closes: the lease does.
        world.now = world.now.plus_ms(Limits::default().lease_ms * 2);
        for index in 0..world.hosts.len() {
            world.feed(index, Input::Elapsed);
        }
        world.run_out(|_, _| {});
        for (stream, (_, request)) in requests.iter().enumerate() {
            let (tokens, reason) = world.expected(request);
            let got = world.tokens(stream as u128);
            prop_assert_eq!(&got[..], &tokens[..got.len()]);
            match world.finish(stream as u128) {
                Some(Ok(finish)) => prop_assert!(finish == reason && got.len() == tokens.len()),
                Some(Err(_)) => {}
                None => prop_assert!(!faults.is_empty(), "without a fault it must end"),
            }
        }
        world.assert_empty();
    }
}

fn fault_of(world: &mut World, fault: u8, which: usize) {
    let boundary = which % (world.hosts.len() - 1);
    match fault {
        0 => {
            // The lane breaks: what was on it is lost, both ends hear of it.
            let why = "pulled".to_owned();
            world.feed(boundary, Input::LaneDown { side: Side::Out, why: why.clone() });
            let host = &mut world.hosts[boundary + 1];
            host.lane.clear();
            host.held.clear();
            host.lane_life += 1;
            world.feed(boundary + 1, Input::LaneDown { side: Side::In, why });
        }
        1 => {
            let dead = node(u8::try_from(which).expect("small"));
            (0..world.hosts.len()).for_each(|index| world.feed(index, Input::NodeDown(dead)));
        }
        2 => {
            let place = world.place(boundary);
            world.feed(boundary, Input::Adopt(Box::new(place)));
        }
        _ => {
            let twice: Option<(NodeId, NodeId, Message)> =
                world.mail.iter().filter_map(|((from, to), queue)| queue.front().map(|message| (*from, *to, message.clone()))).nth(which);
            if let Some((from, to, message)) = twice {
                world.deliver(from, to, message);
            }
        }
    }
}

/// A client that takes nothing stops the whole chain at its grant, and goes on when it takes again.
#[test]
fn a_client_that_takes_nothing_is_waited_for_within_the_grant() {
    let mut world = World::new(3, 600, Limits::default(), 7);
    let request = GenerationRequest { prompt: vec![1, 2, 3], sampling: Sampling::default(), end_ids: vec![], max_tokens: 100 };
    world.ask(1, node(0), request.clone(), 1);
    loop {
        let acts: Vec<Act> = world.acts().into_iter().filter(|act| !matches!(act, Act::Take(_))).collect();
        let Some(act) = acts.first() else { break };
        world.act(*act);
    }
    assert_eq!(world.tokens(1).len(), 33, "the grant of 32 positions after the prompt, and the token after the last of them");
    world.run_out(|_, _| {});
    assert_eq!(world.tokens(1), world.expected(&request).0);
}
