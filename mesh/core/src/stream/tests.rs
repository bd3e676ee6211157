//! The owner's decisions, one by one, and any input in any order.

use proptest::prelude::*;

use super::*;
use crate::generation::Sampling;
use crate::ids::BootId;
use crate::model::Layers;
use crate::plan::{Numerics, Stage};
use crate::toy;

fn node(n: u8) -> NodeId {
    NodeId([n; 32])
}

fn setup(stages: u8, prompt: &[u32], max_tokens: u32) -> Setup {
    let sheet = toy::sheet(6, 4, 50, 4096);
    let cut = |stage: u8| u16::from(stage) * 6 / u16::from(stages);
    let list = (0..stages).map(|stage| Stage { node: node(stage), layers: Layers::new(cut(stage), cut(stage + 1)) }).collect();
    Setup {
        deployment: DeploymentId(1),
        plan: Plan::new(&sheet, list, 100, 4, Numerics::default()).expect("a chain"),
        stream: StreamId(5),
        attempt: Attempt { takeover: 0, owner: node(9), boot: BootId(1), counter: 1 },
        request: GenerationRequest { prompt: prompt.to_vec(), sampling: Sampling::default(), end_ids: vec![49, 7], max_tokens },
        names: [(node(1), "berta".to_owned())].into(),
    }
}

struct Bench {
    stream: Stream,
    now: Time,
}

impl Bench {
    fn new(stages: u8, prompt: &[u32], max_tokens: u32) -> Self {
        Self { stream: Stream::new(setup(stages, prompt, max_tokens), Limits::default()), now: Time(1) }
    }
    /// Begun, opened everywhere, started.
    fn running(stages: u8, prompt: &[u32], max_tokens: u32) -> Self {
        let mut bench = Self::new(stages, prompt, max_tokens);
        bench.step(Input::Begin);
        (0..stages).for_each(|stage| drop(bench.opened(stage, Ok((0, PrefixHash::EMPTY)))));
        bench
    }
    fn step(&mut self, input: Input) -> Vec<String> {
        let mut effects = Vec::new();
        self.stream.step(self.now, input, &mut effects);
        effects.iter().map(words_of).collect()
    }
    fn wait(&mut self, ms: u64) -> Vec<String> {
        self.now = self.now.plus_ms(ms);
        self.step(Input::Elapsed)
    }
    fn opened(&mut self, stage: u8, answer: Result<(u32, PrefixHash), Refusal>) -> Vec<String> {
        let opened = Opened { tag: self.stream.tag, stage: u16::from(stage), answer };
        self.step(Input::Heard { from: node(stage), message: Message::Opened(opened) })
    }
    /// The token that is due, or what `change` makes of it, from the last of two stages.
    fn token(&mut self, token: u32, change: impl FnOnce(&mut TokenOut)) -> Vec<String> {
        let tag = self.stream.tag;
        let mut out = TokenOut {
            deployment: tag.deployment,
            plan: tag.plan,
            stream: tag.stream,
            attempt: tag.attempt,
            position: self.stream.length(),
            token,
            hash_before: self.stream.hash,
            finish: None,
            logprobs: None,
        };
        change(&mut out);
        self.step(Input::Heard { from: self.stream.plan.last_node(), message: Message::Token(out) })
    }
}

fn words_of(effect: &Effect) -> String {
    match effect {
        Effect::Send { to, message } => {
            let what = match message {
                Message::Open(open) => format!("open {} ids, granted {}", open.ids.len(), open.granted),
                Message::Start(_) => "start".to_owned(),
                Message::Grant { position, .. } => format!("grant {position}"),
                Message::Close(_) => "close".to_owned(),
                other => format!("{other:?}"),
            };
            format!("{}: {what}", to.0[0])
        }
        Effect::Emit(Event::Token { index, token, .. }) => format!("token {index} = {token}"),
        Effect::Emit(Event::Finished { reason, prefill_ms, decode_ms }) => format!("finished {reason:?} {prefill_ms}+{decode_ms} ms"),
        Effect::Emit(Event::Failed(error)) => format!("failed: {error}"),
    }
}

#[test]
fn a_generation_from_begin_to_end() {
    let mut bench = Bench::new(2, &[1, 2, 3], 40);
    assert_eq!(bench.step(Input::Begin), ["0: open 3 ids, granted 35", "1: open 3 ids, granted 35"]);
    assert!(bench.opened(1, Ok((0, PrefixHash::EMPTY))).is_empty());
    assert_eq!(bench.opened(0, Ok((0, PrefixHash::EMPTY))), ["0: start"]);
    bench.now = bench.now.plus_ms(120);
    assert_eq!(bench.token(4, |_| ()), ["token 0 = 4"]);
    bench.now = bench.now.plus_ms(30);
    let last = bench.token(49, |token| token.finish = Some(FinishReason::EndToken));
    assert_eq!(last, ["token 1 = 49", "finished EndToken 120+30 ms", "0: close", "1: close"]);
    assert!(bench.stream.is_over() && bench.stream.wake_at().is_none());
    assert!(bench.token(5, |_| ()).is_empty(), "nothing after the end");
}

#[test]
fn tokens_come_in_order_and_each_once() {
    let mut bench = Bench::running(2, &[1, 2, 3], 40);
    assert_eq!(bench.token(4, |_| ()), ["token 0 = 4"]);
    assert!(bench.token(4, |token| token.position = 3).is_empty(), "a repeat");
    assert!(bench.token(8, |token| token.attempt.0 ^= 1).is_empty(), "of another attempt");
    assert!(bench.token(8, |token| token.plan.0 ^= 1).is_empty(), "of another plan");
    let forged = TokenOut { token: 8, ..last_token(&bench) };
    assert!(bench.step(Input::Heard { from: node(0), message: Message::Token(forged) }).is_empty(), "not from the last stage");
    let gap = bench.token(6, |token| token.position += 1);
    assert_eq!(gap[0], format!("failed: stage 1 on {:?} failed: token 5 came where 4 was due: one was lost", node(1)));
    assert_eq!(gap[1..], ["0: close", "1: close"]);
}

fn last_token(bench: &Bench) -> TokenOut {
    let tag = bench.stream.tag;
    TokenOut {
        deployment: tag.deployment,
        plan: tag.plan,
        stream: tag.stream,
        attempt: tag.attempt,
        position: bench.stream.length(),
        token: 1,
        hash_before: bench.stream.hash,
        finish: None,
        logprobs: None,
    }
}

#[test]
fn a_token_after_other_tokens_ends_the_stream() {
    let mut bench = Bench::running(2, &[1, 2, 3], 40);
    let wrong = bench.token(4, |token| token.hash_before = PrefixHash(1));
    assert!(wrong[0].contains("token 3 was computed after other tokens"), "{wrong:?}");
}

#[test]
fn the_limits_hold_even_if_the_last_stage_forgets_them() {
    let mut bench = Bench::running(1, &[1, 2, 3], 2);
    bench.token(4, |_| ());
    assert_eq!(bench.token(5, |_| ())[..2], ["token 1 = 5", "finished Length 0+0 ms"]);
    let mut bench = Bench::running(1, &[1, 2, 3], 40);
    assert_eq!(bench.token(7, |_| ())[1], "finished EndToken 0+0 ms");
}

#[test]
fn grants_follow_the_client_in_halves_and_bound_what_may_come() {
    let mut bench = Bench::running(2, &[1, 2, 3], 100);
    for token in 0..33 {
        assert_eq!(bench.token(token % 5, |_| ()).len(), 1);
    }
    assert!(bench.stream.wake_at().is_none(), "we wait for the client, nobody is late");
    assert!(bench.step(Input::Taken(15)).is_empty());
    assert_eq!(bench.step(Input::Taken(16)), ["0: grant 51"]);
    assert!(bench.stream.wake_at().is_some());
    assert!(bench.step(Input::Taken(16)).is_empty());
    assert_eq!(bench.step(Input::Unsent { to: node(0), kind: Kind::Grant, why: "full".to_owned() }), Vec::<String>::new());
    assert_eq!(bench.wait(100), ["0: grant 51"], "and again if it could not be sent");
    let mut bench = Bench::running(2, &[1, 2, 3], 100);
    for token in 0..33 {
        bench.token(token % 5, |_| ());
    }
    assert!(bench.token(1, |_| ())[0].contains("only 35 were granted"));
}

#[test]
fn who_does_not_open_in_time_is_named() {
    let mut bench = Bench::new(3, &[1, 2, 3], 40);
    bench.step(Input::Begin);
    bench.opened(0, Ok((0, PrefixHash::EMPTY)));
    bench.opened(2, Ok((0, PrefixHash::EMPTY)));
    assert_eq!(bench.stream.wake_at(), Some(Time(1).plus_ms(3_000)));
    assert!(bench.wait(2_999).is_empty());
    let late = bench.wait(1);
    assert_eq!(late[0], format!("failed: stage 1 on {:?} did not open the stream within 3000 ms: ask again", node(1)));
    assert_eq!(late[1..], ["0: close", "1: close", "2: close"]);
}

#[test]
fn a_late_token_names_the_stage_that_is_silent_or_behind() {
    let half = (30_000 + 3 * 50) / 2;
    // Stage 1 does not even answer.
    let mut bench = Bench::running(3, &[1, 2, 3], 40);
    assert_eq!(bench.wait(half).len(), 3, "the open again, to all: how far are you?");
    bench.opened(0, Ok((3, PrefixHash(1))));
    bench.opened(2, Ok((0, PrefixHash(1))));
    assert!(bench.wait(half)[0].contains("stage 1"));
    // Stage 2 answers, but has not got what the others have.
    let mut bench = Bench::running(3, &[1, 2, 3], 40);
    bench.wait(half);
    (0..3).for_each(|stage| drop(bench.opened(stage, Ok((if stage == 2 { 1 } else { 3 }, PrefixHash(1))))));
    assert!(bench.wait(half)[0].contains(&format!("stage 2 on {:?} did not compute position 2", node(2))));
    // All have it, so the last one owes the token. A token in between starts the clock anew.
    let mut bench = Bench::running(3, &[1, 2, 3], 40);
    bench.wait(half);
    bench.token(1, |_| ());
    assert_eq!(bench.wait(15_000).len(), 3);
    (0..3).for_each(|stage| drop(bench.opened(stage, Ok((4, PrefixHash(1))))));
    assert!(bench.wait(15_000)[0].contains("stage 2"));
}

#[test]
fn refusals_failures_dead_nodes_and_new_plans_end_it_with_their_own_words() {
    let mut bench = Bench::new(2, &[1], 5);
    bench.step(Input::Begin);
    assert!(
        bench.opened(1, Err(Refusal::Busy { streams: 256 }))[0].contains("stage 1 on n:01010101 refused: 256 streams run here already")
    );

    let mut bench = Bench::new(2, &[1], 5);
    bench.step(Input::Begin);
    assert!(
        bench.opened(1, Ok((1, PrefixHash::EMPTY.then(1))))[0].contains("opened the stream at position 1"),
        "it kept what we did not allow"
    );

    let mut bench = Bench::running(2, &[1], 5);
    let down = bench.step(Input::NodeDown(node(1)));
    assert!(down[0].contains("node berta") && down[0].contains("layers 3..6"), "{down:?}");
    assert_eq!(down[1..], ["0: close"], "the dead one is not told");
    assert!(Bench::running(2, &[1], 5).step(Input::NodeDown(node(4))).is_empty(), "not one of ours");

    let mut bench = Bench::running(2, &[1], 5);
    let failed = StreamFailed { tag: bench.stream.tag, stage: 1, why: "the engine panicked".to_owned() };
    let from_stranger = Input::Heard { from: node(6), message: Message::StreamFailed(failed.clone()) };
    assert!(bench.step(from_stranger).is_empty());
    assert!(bench.step(Input::Heard { from: node(1), message: Message::StreamFailed(failed) })[0].contains("the engine panicked"));

    assert_eq!(Bench::running(2, &[1], 5).step(Input::Replanned)[1..], ["0: close", "1: close"]);
    let gone = Bench::running(2, &[1], 5).step(Input::Undeployed);
    assert!(gone[0].contains("undeployed") && gone[1..] == ["0: close", "1: close"], "{gone:?}");
    assert_eq!(Bench::running(2, &[1], 5).step(Input::Cancel), ["0: close", "1: close"]);
    let unsent = Input::Unsent { to: node(1), kind: Kind::Open, why: "no connection".to_owned() };
    let mut bench = Bench::new(2, &[1], 5);
    bench.step(Input::Begin);
    assert!(bench.step(unsent)[0].contains("stage 1 on n:01010101 failed: no connection"));
}

#[test]
fn what_cannot_begin_says_so_before_anybody_is_asked() {
    assert_eq!(Bench::new(2, &[], 5).step(Input::Begin).len(), 1);
    let refused = Bench::new(2, &[1; 100], 5).step(Input::Begin);
    assert!(refused.len() == 1 && refused[0].contains("101 tokens are more than the context of 100"), "{refused:?}");
    assert_eq!(Bench::new(2, &[1], 0).step(Input::Begin), ["finished Length 0+0 ms"]);
}

fn input() -> impl Strategy<Value = (u64, u8, u32, u8)> {
    (0_u64..20_000, 0_u8..14, 0_u32..40, 0_u8..4)
}

proptest! {
    /// Whatever comes: tokens count up from 0, nothing follows the end, and the end closes every stage once.
    #[test]
    fn any_history_keeps_the_rules(inputs in prop::collection::vec(input(), 0..100)) {
        let mut bench = Bench::new(3, &[1, 2, 3], 30);
        let (mut tokens, mut ended, mut closes) = (0, 0, 0);
        bench.step(Input::Begin);
        for (pause_ms, what, number, who) in inputs {
            bench.now = bench.now.plus_ms(if what == 0 { pause_ms } else { 0 });
            let from = node(who);
            let tag = StreamTag { attempt: if number == 13 { crate::generation::AttemptTag(1) } else { bench.stream.tag.attempt }, ..bench.stream.tag };
            let input = match what {
                1..=4 => Input::Heard { from, message: Message::Opened(Opened { tag, stage: 0, answer: if number == 0 { Err(Refusal::Deposed) } else { Ok((0, PrefixHash::EMPTY)) } }) },
                5..=9 => {
                    let mut token = TokenOut { attempt: tag.attempt, token: number, ..last_token(&bench) };
                    if number == 39 { token.position += 1 } else if number > 30 { token.position -= 1 }
                    Input::Heard { from: if number == 20 { from } else { node(2) }, message: Message::Token(token) }
                }
                10 => Input::Taken(number),
                11 if number < 2 => Input::Heard { from, message: Message::StreamFailed(StreamFailed { tag, stage: 0, why: "x".to_owned() }) },
                12 if number < 2 => Input::NodeDown(from),
                13 => Input::Unsent { to: from, kind: if number == 0 { Kind::Start } else { Kind::Grant }, why: "full".to_owned() },
                _ => Input::Elapsed,
            };
            let mut effects = Vec::new();
            bench.stream.step(bench.now, input, &mut effects);
            for effect in effects {
                match effect {
                    Effect::Emit(Event::Token { index, .. }) => {
                        prop_assert_eq!((index, ended), (tokens, 0));
                        tokens += 1;
                    }
                    Effect::Emit(Event::Finished { .. } | Event::Failed(_)) => ended += 1,
                    Effect::Send { message: Message::Close(_), .. } => closes += 1,
                    Effect::Send { .. } => {}
                }
            }
        }
        prop_assert!(ended <= 1 && tokens <= 30 && closes <= 3 && (ended == 0) == (closes == 0));
        prop_assert_eq!(bench.stream.is_over(), ended == 1);
    }
}
