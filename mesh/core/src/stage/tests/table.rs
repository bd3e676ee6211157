//! Decisions as a text table: a line in, its effects out.

use std::fmt::Write as _;

use super::*;
use crate::generation::FinishReason;
use crate::ids::PrefixHash;

/// A stage, the words that were said to it, and what it did.
struct Script {
    stage: Stage,
    index: u16,
    plans: [Plan; 2],
    now: Time,
    slot: u16,
}

fn number<T: std::str::FromStr>(words: &[&str], key: &str) -> Option<T> {
    words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('=')?.parse().ok())
}

fn list(words: &[&str], key: &str) -> Vec<u32> {
    let text = words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('=')).unwrap_or("");
    text.split(',').filter_map(|id| id.parse().ok()).collect()
}

impl Script {
    fn tag(&self, words: &[&str]) -> StreamTag {
        tag_of(&self.open(words))
    }

    fn open(&self, words: &[&str]) -> Open {
        let plan = &self.plans[number::<usize>(words, "plan").unwrap_or(0)];
        let stream = words[1].parse().expect("a stream");
        let ids = list(words, "ids");
        let prompt = number(words, "prompt").unwrap_or(u32::try_from(ids.len()).expect("few"));
        let mut open = open_of(plan, stream, attempt_of(node(9), number(words, "attempt").unwrap_or(1)), &ids, prompt);
        open.keep = number(words, "keep").unwrap_or(0);
        open.granted = number(words, "granted").unwrap_or(open.granted);
        open.max_tokens = number(words, "max").unwrap_or(open.max_tokens);
        open
    }

    fn input(&mut self, words: &[&str]) -> Input {
        let heard = |from, message| Input::Heard { from, message };
        let from = node(number(words, "from").unwrap_or(9));
        match words[0] {
            "adopt" => Input::Adopt(Box::new(place_of(&self.plans[number::<usize>(words, "plan").unwrap_or(0)], self.index, 272))),
            "open" => heard(from, Message::Open(Box::new(self.open(words)))),
            "cache" => Input::CacheOpened {
                tag: self.tag(words),
                outcome: number(words, "has").ok_or(CacheFull { need_bytes: 80, free_bytes: 8 }),
            },
            "start" => heard(from, Message::Start(self.tag(words))),
            "grant" => heard(from, Message::Grant { tag: self.tag(words), position: number(words, "to").expect("to=") }),
            "close" => heard(from, Message::Close(self.tag(words))),
            // `before` are the ids before the token.
            "token" => {
                let (tag, before) = (self.tag(words), list(words, "before"));
                let token = TokenOut {
                    deployment: tag.deployment,
                    plan: tag.plan,
                    stream: tag.stream,
                    attempt: tag.attempt,
                    position: u32::try_from(before.len()).expect("few"),
                    token: number(words, "id").expect("id="),
                    hash_before: PrefixHash::EMPTY.over(&before),
                    finish: words.contains(&"last").then_some(FinishReason::EndToken),
                    logprobs: None,
                };
                heard(node(number(words, "from").unwrap_or(2)), Message::Token(token))
            }
            // `rows 1 before=1,2 ids=3,4`: positions 2..4 of stream 1.
            "rows" => {
                let (tag, before, ids) = (self.tag(words), list(words, "before"), list(words, "ids"));
                self.slot += 1;
                let row = Row {
                    stream: tag.stream,
                    attempt: tag.attempt,
                    first: u32::try_from(before.len()).expect("few"),
                    count: u32::try_from(ids.len()).expect("few"),
                    hash_before: PrefixHash::EMPTY.over(&before),
                    hash_after: PrefixHash::EMPTY.over(&before).over(&ids),
                    sample: words.contains(&"sample"),
                };
                Input::Arrived {
                    slot: SlotId { lane: 1, slot: LaneSlot { index: self.slot, bytes: 0 } },
                    plan: tag.plan,
                    width: 4,
                    rows: vec![row],
                }
            }
            // `done 1:7` : the engine chose 7 for stream 1, at the position that it was asked for.
            "done" => Input::Stepped(Ok(words[1..].iter().filter_map(|word| self.chosen(word)).collect())),
            "broke" => Input::Stepped(Err("the engine panicked".to_owned())),
            "credit" => Input::Credit,
            "down" => Input::LaneDown { side: if words[1] == "in" { Side::In } else { Side::Out }, why: "reset by peer".to_owned() },
            "gone" => Input::NodeDown(node(words[1].parse().expect("a node"))),
            "fence" => Input::Fence { why: "the shard is reshaped".to_owned() },
            "wait" => {
                self.now = self.now.plus_ms(words[1].parse().expect("milliseconds"));
                Input::Elapsed
            }
            other => panic!("no such line: {other}"),
        }
    }

    fn chosen(&self, word: &str) -> Option<Sampled> {
        let (stream, token) = word.split_once(':')?;
        let stream = StreamId(stream.parse().ok()?);
        let flight = self.stage.flight.as_ref()?;
        let share = flight.shares.iter().find(|share| share.tag.stream == stream)?;
        Some(Sampled { stream, position: share.after.at, token: token.parse().ok()?, logprobs: None })
    }

    fn run(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        let input = self.input(&words);
        let mut effects = Vec::new();
        self.stage.step(self.now, input, &mut effects);
        effects.iter().fold(String::new(), |mut text, effect| {
            writeln!(text, "    {}", words_of(effect)).expect("a string takes everything");
            text
        })
    }
}

fn words_of(effect: &Effect) -> String {
    match effect {
        Effect::Send { to, message } => format!("to {}: {}", to.0[0], message_words(message)),
        Effect::OpenCache { tag, keep, positions_max } => format!("open cache {} keep {keep} of {positions_max}", tag.stream.0),
        Effect::CloseCache(stream) => format!("close cache {}", stream.0),
        Effect::Run(batch) => {
            let row = |row: &BatchRow| {
                format!(" {}:{}..{}{}", row.tag.stream.0, row.first, row.first + row.count, if row.sample { " sample" } else { "" })
            };
            batch.rows.iter().fold("run".to_owned(), |text, one| text + &row(one))
        }
        Effect::Emit(part) => {
            let row = |row: &Row| {
                format!(" {}:{}..{}{}", row.stream.0, row.first, row.first + row.count, if row.sample { " sample" } else { "" })
            };
            part.rows.iter().fold("emit".to_owned(), |text, (one, _)| text + &row(one))
        }
        Effect::Release(slot) => format!("release {}", slot.slot.index),
    }
}

fn message_words(message: &Message) -> String {
    match message {
        Message::Opened(Opened { answer: Ok((position, _)), .. }) => format!("opened at {position}"),
        Message::Opened(Opened { answer: Err(refusal), .. }) => match refusal {
            Refusal::Fenced(_) => "refused: another plan".to_owned(),
            other => format!("refused: {other}"),
        },
        Message::StreamFailed(failed) => format!("failed {}: {}", failed.tag.stream.0, failed.why),
        Message::Token(token) => {
            format!("token {} = {}{}", token.position, token.token, token.finish.map_or(String::new(), |finish| format!(" {finish:?}")))
        }
        other => format!("{other:?}"),
    }
}

/// Runs a table: unindented lines are inputs, indented ones what comes of them; blank lines and comments stay.
/// A difference prints the whole table as it is, for review.
fn check(index: u16, table: &str) {
    let limits = Limits { streams_max: 3, step_positions_max: 8, chunk_positions_max: 4, lease_ms: 60_000, credit_ms: 5_000 };
    let plans = [plan_of(3, 64).1, plan_of(3, 32).1];
    let mut script = Script { stage: Stage::new(limits), index, plans, now: Time(1), slot: 0 };
    script.run("adopt");
    let mut is = String::new();
    for line in table.lines().filter(|line| !line.starts_with("    ")) {
        is.push_str(line);
        is.push('\n');
        if !line.trim().is_empty() && !line.starts_with('#') {
            is.push_str(&script.run(line));
        }
    }
    assert!(is.trim() == table.trim(), "the table should read:\n{is}");
}

#[test]
fn stage_0_opens_starts_and_goes_no_further_than_its_grant() {
    check(
        0,
        "
# nothing runs before the owner's start, nor without credit
open 1 ids=1,2,3,4,5,6 granted=7
    open cache 1 keep 0 of 64
cache 1 has=0
    to 9: opened at 0
start 1
credit
    run 1:0..4
# an owner that repeats its open hears how far we are
open 1 ids=1,2,3,4,5,6 granted=7
    to 9: opened at 0
done
    emit 1:0..4
credit
    run 1:4..6
done
    emit 1:4..6 sample
credit
# the token comes back: position 6 is the last that is granted
token 1 before=1,2,3,4,5,6 id=7
    run 1:6..7
token 1 before=1,2,3,4,5,6 id=7
done
    emit 1:6..7 sample
credit
token 1 before=1,2,3,4,5,6,7 id=8
grant 1 to=7
grant 1 to=9
    run 1:7..8
# a token after other tokens, or one too far
done
    emit 1:7..8 sample
token 1 before=9,2,3,4,5,6,7,8 id=3
    to 9: failed 1: token 8 came where 8 was due, or after other tokens than were here
    close cache 1
",
    );
}

#[test]
fn who_may_not_speak_is_not_heard() {
    check(
        0,
        "
open 1 ids=1,2 from=4
open 1 ids=1,2
    open cache 1 keep 0 of 64
cache 1 has=0
    to 9: opened at 0
credit
start 1 from=4
close 1 from=4
start 1 attempt=2
start 1
    run 1:0..2
done
    emit 1:0..2 sample
credit
# only the last stage's tokens count
token 1 before=1,2 id=3 from=1
token 1 before=1,2 id=3 attempt=2
token 1 before=1,2 id=3 plan=1
token 1 before=1,2 id=3
    run 1:2..3
",
    );
}

#[test]
fn opens_are_checked_before_anything_is_kept() {
    check(
        1,
        "
open 1 ids=1,2 plan=1
    to 9: refused: another plan
open 1 ids=
    to 9: refused: malformed: a stream needs a prompt, and its ids begin with it
open 1 ids=1,2 prompt=3
    to 9: refused: malformed: a stream needs a prompt, and its ids begin with it
open 1 ids=1,2 keep=2
    to 9: refused: malformed: positions to keep or to sample from lie beyond the ids
open 1 ids=1,50
    to 9: refused: malformed: a token id is not in the vocabulary
open 1 ids=1,2,3 prompt=1 max=2
    to 9: refused: malformed: every token that may be generated is there already
open 1 ids=1,2 max=5
    open cache 1 keep 0 of 7
cache 1
    close cache 1
    to 9: refused: no cache memory for 80 bytes, 8 are free
# three streams at most; a new attempt of one that is here is no fourth
open 1 ids=1,2
    open cache 1 keep 0 of 64
open 2 ids=1,2
    open cache 2 keep 0 of 64
open 3 ids=1,2
    open cache 3 keep 0 of 64
open 4 ids=1,2
    to 9: refused: 3 streams run here already
open 3 ids=1,2 attempt=2
    open cache 3 keep 0 of 64
# the old attempt is deposed, and its cache's answer is for nobody
cache 3 has=0
open 3 ids=1,2
    to 9: refused: a newer attempt of this stream is open
cache 3 has=0 attempt=2
    to 9: opened at 0
# what was closed is not opened again by a late repeat
close 3 attempt=2
    close cache 3
open 3 ids=1,2 attempt=2
    to 9: refused: a newer attempt of this stream is open
",
    );
}

#[test]
fn rows_are_accepted_one_by_one() {
    check(
        1,
        "
open 1 ids=1,2,3,4,5,6,7
    open cache 1 keep 0 of 64
# rows before the cache is open, and of streams that are not: dropped, their slot given back
rows 1 before= ids=1,2
    release 1
cache 1 has=0
    to 9: opened at 0
rows 2 before= ids=1,2
    release 2
# another attempt, another plan
rows 1 before= ids=1,2 attempt=2
    release 3
rows 1 before= ids=1,2 plan=1
    release 4
# taken, and given back when the step is done; a chunk of 4 leaves one position for later
rows 1 before= ids=1,2
rows 1 before=1,2 ids=3,4,5
credit
    run 1:0..4
# there already: dropped in silence
rows 1 before=1 ids=2,3
    release 7
done
    release 5
    emit 1:0..4
# overlaps: what is new is taken
rows 1 before=1,2,3,4 ids=5,6
credit
    run 1:4..6
done
    release 6
    release 8
    emit 1:4..6
credit
# a middle stage knows no generated ids: it trusts the hash of one position, never more
rows 1 before=1,2,3,4,5,6 ids=7 sample
    run 1:6..7
rows 1 before=1,2,3,4,5,6,7 ids=8
done
    release 9
    emit 1:6..7 sample
credit
    run 1:7..8
done
    release 10
    emit 1:7..8
rows 1 before=1,2,3,4,5,6,7,8 ids=9,10
    to 9: failed 1: positions 8..10 have no ids (7 are known, context 64)
    close cache 1
    release 11
",
    );
}

#[test]
fn rows_that_do_not_fit_end_their_stream_only() {
    check(
        1,
        "
open 1 ids=1,2,3,4
    open cache 1 keep 0 of 64
cache 1 has=0
    to 9: opened at 0
open 2 ids=1,2,3,4
    open cache 2 keep 0 of 64
cache 2 has=0
    to 9: opened at 0
rows 1 before=1 ids=2
    to 9: failed 1: positions 0..1 are missing before 2
    close cache 1
    release 1
rows 2 before= ids=1,3
    to 9: failed 2: other ids at positions 0..2
    close cache 2
    release 2
open 3 ids=1,2,3,4
    open cache 3 keep 0 of 64
cache 3 has=0
    to 9: opened at 0
rows 3 before= ids=1
rows 3 before=9 ids=2
    to 9: failed 3: another prefix before position 1
    release 3
    close cache 3
    release 4
",
    );
}

#[test]
fn what_was_closed_or_opened_anew_in_flight_is_written_nowhere() {
    check(
        1,
        "
open 1 ids=1,2,3
    open cache 1 keep 0 of 64
cache 1 has=0
    to 9: opened at 0
open 2 ids=1,2,3
    open cache 2 keep 0 of 64
cache 2 has=0
    to 9: opened at 0
credit
rows 1 before= ids=1,2,3
    run 1:0..3
rows 2 before= ids=1,2,3
open 1 ids=1,2,3,4 attempt=2 keep=2 prompt=3
    open cache 1 keep 0 of 64
cache 1 has=0 attempt=2
    to 9: opened at 0
done
    release 1
    run 2:0..3
close 2
    close cache 2
done
    release 2
# a kept prefix: computed, and confirmed by the ids
rows 1 before= ids=1,2,3 attempt=2
    run 1:0..3
done
    release 3
    emit 1:0..3
open 1 ids=1,2,9,4 attempt=3 keep=3 prompt=3
    open cache 1 keep 2 of 64
cache 1 has=2 attempt=3
    to 9: opened at 2
",
    );
}

#[test]
fn the_last_stage_chooses_and_ends() {
    check(
        2,
        "
open 1 ids=1,2,3 max=2
    open cache 1 keep 0 of 5
cache 1 has=0
    to 9: opened at 0
open 2 ids=4
    open cache 2 keep 0 of 64
cache 2 has=0
    to 9: opened at 0
# no credit is needed: nothing is sent on. The token goes to stage 0 and to the owner
rows 1 before= ids=1,2,3 sample
    run 1:0..3 sample
rows 2 before= ids=4 sample
done 1:7
    to 0: token 3 = 7
    to 9: token 3 = 7
    release 1
    run 2:0..1 sample
# 49 is an end token
done 2:49
    to 0: token 1 = 49 EndToken
    to 9: token 1 = 49 EndToken
    release 2
# the last stage knows every id
rows 1 before=1,2,3 ids=7 sample
    run 1:3..4 sample
done 1:8
    to 0: token 4 = 8 Length
    to 9: token 4 = 8 Length
    release 3
rows 1 before=1,2,3,7 ids=8 sample
    to 9: failed 1: positions 4..5 come after the last token
    close cache 1
    release 4
",
    );
}

#[test]
fn decode_comes_first_and_turns_go_round() {
    check(
        0,
        "
open 1 ids=1,2,3,4,5,6,7,8,9
    open cache 1 keep 0 of 64
cache 1 has=0
    to 9: opened at 0
open 2 ids=1,2,3,4,5,6,7,8,9
    open cache 2 keep 0 of 64
cache 2 has=0
    to 9: opened at 0
open 3 ids=1
    open cache 3 keep 0 of 64
cache 3 has=0
    to 9: opened at 0
start 1
start 2
start 3
# one single position, then chunks of 4 while the 8 last; 2 comes short and is first next time
credit
    run 3:0..1 1:0..4 2:0..3
# a slot of 272 bytes takes 5 positions of two rows: the rest goes in a second part, and no step starts before it is out
done
    emit 3:0..1 sample 1:0..4
credit
    emit 2:0..3
credit
    run 2:3..7 1:4..8
",
    );
}

#[test]
fn failures_name_who_and_end_what_they_touch() {
    check(
        1,
        "
open 1 ids=1,2,3
    open cache 1 keep 0 of 64
cache 1 has=0
    to 9: opened at 0
rows 1 before= ids=1,2,3
# the next stage takes nothing
wait 4999
wait 1
    to 9: failed 1: stage 2 on n:02020202 has taken no rows for 5000 ms
    release 1
    close cache 1
open 1 ids=1,2,3 attempt=2
    open cache 1 keep 0 of 64
cache 1 has=0 attempt=2
    to 9: opened at 0
down in
    to 9: failed 1: the tensor lane from stage 0 on n:00000000 is down: reset by peer
    close cache 1
open 1 ids=1,2,3 attempt=3
    open cache 1 keep 0 of 64
cache 1 has=0 attempt=3
    to 9: opened at 0
credit
rows 1 before= ids=1,2,3 attempt=3
    run 1:0..3
broke
    to 9: failed 1: the engine panicked
    close cache 1
    release 2
# an owner that is silent for a minute, one that is dead, a plan that is gone
open 1 ids=1,2,3 attempt=4
    open cache 1 keep 0 of 64
cache 1 has=0 attempt=4
    to 9: opened at 0
wait 60000
    to 9: failed 1: no row, token or grant for 60000 ms
    close cache 1
open 1 ids=1,2,3 attempt=5
    open cache 1 keep 0 of 64
gone 9
    close cache 1
open 1 ids=1,2,3 attempt=6
    open cache 1 keep 0 of 64
fence
    to 9: failed 1: the shard is reshaped
    close cache 1
open 1 ids=1,2,3 attempt=7
    to 9: refused: another plan
",
    );
}

#[test]
fn a_new_plan_voids_rows_but_not_what_its_owner_may_keep() {
    check(
        1,
        "
open 1 ids=1,2,3
    open cache 1 keep 0 of 64
cache 1 has=0
    to 9: opened at 0
credit
rows 1 before= ids=1,2,3
    run 1:0..3
done
    release 1
    emit 1:0..3
rows 1 before=1,2,3 ids=4
adopt plan=1
    release 2
rows 1 before=1,2,3 ids=4
    release 3
open 1 ids=1,2,3,4,5 prompt=3 plan=1 attempt=2 keep=4
    open cache 1 keep 3 of 32
cache 1 has=3 plan=1 attempt=2
    to 9: opened at 3
",
    );
}

#[test]
fn a_cache_is_kept_as_far_as_the_new_ids_confirm_it() {
    check(
        1,
        "
open 1 ids=1,2,3
    open cache 1 keep 0 of 64
cache 1 has=0
    to 9: opened at 0
credit
rows 1 before= ids=1,2,3
    run 1:0..3
done
    release 1
    emit 1:0..3
credit
rows 1 before=1,2,3 ids=4
    run 1:3..4
done
    release 2
    emit 1:3..4
credit
rows 1 before=1,2,3,4 ids=5
    run 1:4..5
done
    release 3
    emit 1:4..5
# this stage never saw the ids 4 and 5, but the hashes after them. The owner says 9 where 5 was
open 1 ids=1,2,3,4,9,6 prompt=3 attempt=2 keep=5
    open cache 1 keep 4 of 64
# the engine may have less than that
cache 1 has=2 attempt=2
    to 9: opened at 2
# a prefix that differs early confirms nothing after it
open 1 ids=1,7,3,4 prompt=3 attempt=3 keep=3
    open cache 1 keep 1 of 64
",
    );
}
