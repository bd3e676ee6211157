//! Any inputs in any order, from a small world in which they meet: never a panic, never two tokens for one position, never
//! a row of an attempt that is not the current one, every slot given back at most once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::{attempt_of, node, open_of, place_of, plan_of, tag_of};
use crate::generation::{FinishReason, TokenOut};
use crate::ids::{DeploymentId, PlanHash, PrefixHash, StreamId, Time};
use crate::ports::{CacheFull, LaneSlot, Sampled};
use crate::stage::{Batch, Effect, Input, Limits, Side, SlotId, Stage};
use crate::step_message::Row;
use crate::wire::{Message, StreamTag};

/// A prefix of the one text that everybody speaks of, so that hashes often match.
fn ids(length: usize) -> Vec<u32> {
    (0..length).map(|at| u32::try_from(at % 7).expect("small")).collect()
}

fn hash(length: u32) -> PrefixHash {
    PrefixHash::EMPTY.over(&ids(length as usize))
}

fn tag() -> impl Strategy<Value = (u128, u32, usize)> {
    (0_u128..3, prop_oneof![4 => Just(1_u32), 1 => Just(2_u32), 1 => Just(3_u32)], prop_oneof![5 => Just(0_usize), 1 => Just(1_usize)])
}

fn stream_tag((stream, counter, plan): (u128, u32, usize)) -> StreamTag {
    tag_of(&open_of(&plans()[plan], stream, attempt_of(node(9), counter), &[1], 1))
}

fn plans() -> [crate::plan::Plan; 2] {
    [plan_of(3, 64).1, plan_of(3, 128).1]
}

/// What the driver does next: something at random, or its duty. Left to chance alone, few histories would get anywhere.
#[derive(Clone, Debug)]
enum Move {
    Random(Input),
    /// Answer the oldest open that waits.
    Answer(Result<u32, CacheFull>),
    /// Start stage 0 for the stream that was opened last.
    Start,
    /// The step is done, and gave this token wherever one was asked for.
    Done(u32),
    /// The next rows of the stream that was opened last.
    Rows(u32),
}

/// Mostly nothing passes between two moves.
fn pause() -> impl Strategy<Value = u64> {
    prop_oneof![15 => Just(0_u64), 1 => 0_u64..4_000]
}

fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        6 => input().prop_map(Move::Random),
        3 => prop_oneof![6 => Just(Ok(0)), 2 => (0_u32..9).prop_map(Ok), 1 => Just(Err(CacheFull { need_bytes: 1, free_bytes: 0 }))].prop_map(Move::Answer),
        2 => Just(Move::Start),
        4 => (0_u32..52).prop_map(Move::Done),
        4 => (1_u32..5).prop_map(Move::Rows),
        2 => Just(Move::Random(Input::Credit)),
    ]
}

fn input() -> impl Strategy<Value = Input> {
    let heard = |message| Input::Heard { from: node(9), message };
    let row = (
        0_u128..3,
        prop_oneof![4 => Just(1_u32), 1 => 2_u32..4],
        prop_oneof![2 => Just(0_u32), 1 => 0_u32..12],
        0_u32..6,
        any::<bool>(),
        0_u8..8,
    )
        .prop_map(|(stream, counter, first, count, sample, wrong)| Row {
            stream: StreamId(stream),
            attempt: attempt_of(node(9), counter).tag(),
            first,
            count,
            hash_before: if wrong == 0 { PrefixHash(3) } else { hash(first) },
            hash_after: hash(first + count),
            sample,
        });
    prop_oneof![
        1 => (0_usize..2, 0_u16..3).prop_map(|(plan, index)| Input::Adopt(Box::new(place_of(&plans()[plan], index, 200)))),
        8 => (tag(), 0_usize..14, prop_oneof![Just(0_u32), 0_u32..6], 1_u32..4, 0_u32..40).prop_map(move |((stream, counter, plan), length, keep, prompt, granted)| {
            let mut open = open_of(&plans()[plan], stream, attempt_of(node(9), counter), &ids(length), prompt);
            (open.keep, open.granted, open.max_tokens) = (keep, granted, 20);
            heard(Message::Open(Box::new(open)))
        }),
        8 => (tag(), prop_oneof![Just(Ok(0)), (0_u32..9).prop_map(Ok), Just(Err(CacheFull { need_bytes: 1, free_bytes: 0 }))])
            .prop_map(|(tag, outcome)| Input::CacheOpened { tag: stream_tag(tag), outcome }),
        4 => tag().prop_map(move |tag| heard(Message::Start(stream_tag(tag)))),
        2 => (tag(), any::<u32>()).prop_map(move |(tag, position)| heard(Message::Grant { tag: stream_tag(tag), position })),
        1 => tag().prop_map(move |tag| heard(Message::Close(stream_tag(tag)))),
        6 => (tag(), 0_u32..14, 0_u32..60, any::<bool>()).prop_map(|((stream, counter, plan), position, token, end)| {
            let token = TokenOut {
                deployment: DeploymentId(1), plan: plans()[plan].hash(), stream: StreamId(stream), attempt: attempt_of(node(9), counter).tag(),
                position, token, hash_before: hash(position), finish: end.then_some(FinishReason::EndToken), logprobs: None,
            };
            Input::Heard { from: node(2), message: Message::Token(token) }
        }),
        12 => (0_u64..2, any::<u16>(), prop_oneof![5 => Just(0_usize), 1 => Just(1_usize)], prop::collection::vec(row, 0..4)).prop_map(|(lane, index, plan, rows)| {
            Input::Arrived { slot: SlotId { lane, slot: LaneSlot { index, bytes: 0 } }, plan: plans()[plan].hash(), width: 4, rows }
        }),
        12 => prop_oneof![
            4 => prop::collection::vec((0_u128..3, 0_u32..14, 0_u32..60), 0..3).prop_map(|list| Ok(list.into_iter()
                .map(|(stream, position, token)| Sampled { stream: StreamId(stream), position, token, logprobs: None }).collect())),
            1 => Just(Err("broken".to_owned())),
        ].prop_map(Input::Stepped),
        8 => Just(Input::Credit),
        1 => any::<bool>().prop_map(|inward| Input::LaneDown { side: if inward { Side::In } else { Side::Out }, why: "pulled".to_owned() }),
        1 => Just(Input::NodeDown(node(9))),
        1 => Just(Input::Fence { why: "reshaped".to_owned() }),
        2 => Just(Input::Elapsed),
    ]
}

/// What is true of every history, seen from outside.
#[derive(Default)]
struct Watcher {
    /// The current attempt of each open stream, as its answers and ends told.
    open: BTreeMap<StreamId, StreamTag>,
    said: BTreeSet<(StreamTag, u32)>,
    held: BTreeSet<SlotId>,
    /// What each slot brought.
    brought: BTreeMap<SlotId, (PlanHash, Vec<Row>)>,
    running: Option<Batch>,
    /// Opens that the driver has not answered.
    asked: VecDeque<StreamTag>,
    last_opened: Option<StreamTag>,
    /// How often things happened that the rules are about.
    runs: usize,
    emits: usize,
}

impl Watcher {
    /// Every piece that a step reads came in a row of exactly its stream, attempt and plan.
    fn check_pieces(&self, batch: &Batch) {
        let mut pieces = batch.pieces.iter();
        for row in &batch.rows {
            let mut left = if batch.pieces.is_empty() { 0 } else { row.count };
            while left > 0 {
                let piece = pieces.next().expect("as many positions as the rows have");
                let (plan, rows) = &self.brought[&piece.slot];
                let right = |one: &Row| one.stream == row.tag.stream && one.attempt == row.tag.attempt;
                assert!(*plan == row.tag.plan && rows.iter().any(right), "a row of another plan or attempt is computed");
                left -= piece.count;
            }
        }
    }

    fn before(&mut self, input: &Input) {
        match input {
            Input::Arrived { slot, plan, rows, .. } => {
                self.brought.insert(*slot, (*plan, rows.clone()));
                self.held.insert(*slot);
            }
            Input::Stepped(_) => self.running = None,
            _ => {}
        }
    }

    fn after(&mut self, effect: &Effect) {
        match effect {
            Effect::OpenCache { tag, .. } => {
                self.open.insert(tag.stream, *tag);
                self.asked.push_back(*tag);
                self.last_opened = Some(*tag);
            }
            Effect::CloseCache(stream) => {
                self.open.remove(stream);
            }
            Effect::Run(batch) => {
                assert!(self.running.is_none(), "one step at a time");
                self.running = Some(batch.clone());
                self.runs += 1;
                let mut streams = BTreeSet::new();
                for row in &batch.rows {
                    assert_eq!(self.open.get(&row.tag.stream), Some(&row.tag), "a row of the current attempt");
                    assert!(streams.insert(row.tag.stream) && row.count > 0, "a stream appears once");
                }
                assert!(batch.pieces.iter().all(|piece| self.held.contains(&piece.slot)), "a slot that was given back is read");
                self.check_pieces(batch);
                let positions: u32 = batch.rows.iter().map(|row| row.count).sum();
                let pieces: u32 = batch.pieces.iter().map(|piece| piece.count).sum();
                assert!(batch.positions == positions && (pieces == positions || batch.tokens.len() == positions as usize));
            }
            Effect::Emit(part) => {
                assert!(!part.rows.is_empty());
                self.emits += 1;
                for (row, _) in &part.rows {
                    assert_eq!(self.open.get(&row.stream).map(|tag| (tag.attempt, tag.plan)), Some((row.attempt, part.plan)));
                }
            }
            Effect::Release(slot) => assert!(self.held.remove(slot), "given back once"),
            Effect::Send { message: Message::Token(token), .. } => {
                let tag = StreamTag { deployment: token.deployment, plan: token.plan, stream: token.stream, attempt: token.attempt };
                assert!(self.said.insert((tag, token.position)), "two tokens for one position");
            }
            Effect::Send { .. } => {}
        }
    }
}

impl Watcher {
    fn input(&mut self, next: Move, stage: &Stage) -> Option<Input> {
        Some(match next {
            Move::Random(input) => input,
            Move::Answer(outcome) => Input::CacheOpened { tag: self.asked.pop_front()?, outcome },
            Move::Start => Input::Heard { from: node(9), message: Message::Start(self.last_opened?) },
            Move::Done(token) => {
                let batch = self.running.as_ref()?;
                let asked = batch.rows.iter().filter(|row| row.sample);
                Input::Stepped(Ok(asked
                    .map(|row| Sampled { stream: row.tag.stream, position: row.first + row.count, token, logprobs: None })
                    .collect()))
            }
            Move::Rows(count) => {
                let tag = self.last_opened?;
                let run = stage.runs.get(&tag.stream)?;
                let next = run.opened()?;
                let left = run.ids_len().saturating_sub(next.at);
                let count = if left == 0 { 1 } else { count.min(left) };
                let row = Row {
                    stream: tag.stream,
                    attempt: tag.attempt,
                    first: next.at,
                    count,
                    hash_before: next.hash,
                    hash_after: hash(next.at + count),
                    sample: left <= count,
                };
                let slot = SlotId { lane: 0, slot: LaneSlot { index: 0, bytes: 0 } };
                Input::Arrived { slot, plan: tag.plan, width: 4, rows: vec![row] }
            }
        })
    }
}

/// Runs a history and says how often something ran and was sent.
fn history(start: u16, moves: Vec<(u64, Move)>) -> (usize, usize, usize) {
    let limits = Limits { streams_max: 2, step_positions_max: 7, chunk_positions_max: 4, lease_ms: 9_000, credit_ms: 3_000 };
    let mut stage = Stage::new(limits);
    let mut watcher = Watcher::default();
    let (mut now, mut effects) = (Time(1), Vec::new());
    let adopt = Move::Random(Input::Adopt(Box::new(place_of(&plans()[0], start, 200))));
    let mut slots = BTreeSet::new();
    for (pause_ms, next) in std::iter::once((0, adopt)).chain(moves) {
        now = now.plus_ms(pause_ms);
        let Some(mut input) = watcher.input(next, &stage) else { continue };
        // A driver hands out each slot of a lane's life once at a time; here, once for ever.
        if let Input::Arrived { slot, .. } = &mut input {
            while !slots.insert(*slot) {
                slot.slot.index = slot.slot.index.wrapping_add(1);
            }
        }
        watcher.before(&input);
        let memory_is_gone = matches!(input, Input::LaneDown { side: Side::In, .. });
        stage.step(now, input, &mut effects);
        for effect in effects.drain(..) {
            // A token goes to the owner and to stage 0: the owner's counts here.
            if !matches!(&effect, Effect::Send { to, message: Message::Token(_) } if *to != node(9)) {
                watcher.after(&effect);
            }
        }
        // What was due before the lane went down may still give slots back in the same step; a driver ignores that.
        if memory_is_gone {
            watcher.held.clear();
        }
    }
    (watcher.runs, watcher.emits, watcher.said.len())
}

/// The histories do get somewhere: a fuzz that only meets refusals proves nothing.
#[test]
fn histories_run_steps_send_rows_and_say_tokens() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut seen = (0, 0, 0);
    for start in [0, 1, 2, 2].into_iter().cycle().take(400) {
        let moves = prop::collection::vec((pause(), moves()), 100).new_tree(&mut runner).expect("a history").current();
        let (runs, emits, tokens) = history(start, moves);
        seen = (seen.0 + runs, seen.1 + emits, seen.2 + tokens);
    }
    assert!(seen.0 > 300 && seen.1 > 100 && seen.2 > 15, "steps, sent parts, tokens: {seen:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_history_keeps_the_rules(start in 0_u16..3, moves in prop::collection::vec((pause(), moves()), 0..150)) {
        history(start, moves);
    }
}
