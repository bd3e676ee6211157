//! Clients: they ask, read, hang up, lose patience, and ask another node after an error.

use std::pin::pin;
use std::rc::Rc;

use futures::future::{Either, select};
use mesh_actors::handle::{Generation, GenerationEvent};
use mesh_core::generation::{FinishReason, GenerationRequest, Sampling};
use mesh_core::ids::DeploymentId;

use super::{MS, Outside, Request};
use crate::dice::Dice;
use crate::happening::{End, Happening};
use crate::outcome::Kind;

/// A client waits so long between two tries.
const AGAIN_MS: u64 = 500;

/// The last questions are asked so often: a plan that fits the wish better may still come, and ends what runs.
const LAST_TRIES: u32 = 3;

impl Outside {
    /// Clients come, at random moments.
    pub(super) async fn ask(self: Rc<Self>) {
        let traffic = &self.scenario.traffic;
        let mut dice = self.seed.stream("traffic").dice();
        match traffic.from_ms {
            Some(ms) => self.ground.wait(ms * MS).await,
            None => {
                while !self.book.borrow().seen.ever_ready() {
                    self.ground.wait(100 * MS).await;
                }
            }
        }
        if traffic.per_s <= 0.0 {
            return;
        }
        loop {
            self.ground.wait(dice.wait_ns(traffic.per_s)).await;
            if self.now() >= self.scenario.run_ms() * MS {
                return;
            }
            let client = self.clone().client(dice.clone(), None);
            dice.draw();
            tokio::task::spawn_local(client);
        }
    }

    /// Nodes that clients ask.
    fn doors(&self) -> Vec<usize> {
        let places = self.scenario.places();
        if self.scenario.traffic.ask.is_empty() {
            return (0..places.len()).collect();
        }
        self.scenario.traffic.ask.iter().filter_map(|name| places.get(name).copied()).collect()
    }

    /// One client and its question. With `at`, that node alone is asked, after the healing.
    pub(super) async fn client(self: Rc<Self>, mut dice: Dice, at: Option<usize>) {
        let traffic = &self.scenario.traffic;
        let deployments: Vec<DeploymentId> = self.living_deployments();
        let Some(&deployment) = dice.one_of(&deployments) else { return };
        let prompt = (0..dice.within(traffic.prompt[0].into(), traffic.prompt[1].into()))
            .map(|_| u32::try_from(dice.below(u64::from(self.sheet.vocabulary))).unwrap_or(0))
            .collect();
        let answer_max = u32::try_from(dice.within(traffic.answer[0].into(), traffic.answer[1].into())).unwrap_or(1);
        let hang_up = (at.is_none() && dice.chance(traffic.hang_up)).then(|| dice.below(u64::from(answer_max)));
        let request = Request { prompt, answer_max, seed: dice.draw(), last: at.is_some(), ..Request::default() };
        let (index, doors) = {
            let mut book = self.book.borrow_mut();
            book.requests.push(request);
            book.open_requests += 1;
            (book.requests.len() - 1, self.doors())
        };
        let mut door = at.or_else(|| dice.one_of(&doors).copied()).unwrap_or(0);
        let mut end = End::GaveUp;
        let tries = if at.is_some() { LAST_TRIES } else { traffic.tries.max(1) };
        for again in 0..tries {
            end = self.try_once(index, deployment, door, again, hang_up).await;
            if matches!(end, End::Finished(_) | End::HungUp | End::GaveUp) {
                break;
            }
            self.ground.wait(AGAIN_MS * MS).await;
            let others: Vec<usize> = doors.iter().copied().filter(|other| *other != door).collect();
            door = at.or_else(|| dice.one_of(&others).copied()).unwrap_or(door);
        }
        self.note(Happening::Answered { request: index, end: end.clone() });
        let now = self.now();
        let mut book = self.book.borrow_mut();
        if end == End::GaveUp {
            book.requests[index].signs.push(now); // so long it was silent, at least
        }
        book.requests[index].end = Some(end);
        book.open_requests -= 1;
    }

    async fn try_once(&self, index: usize, deployment: DeploymentId, door: usize, again: u32, hang_up: Option<u64>) -> End {
        let now = self.now();
        let patience = self.scenario.traffic.patience_ms * MS;
        let request = {
            let mut book = self.book.borrow_mut();
            let owner = book.running[door].as_ref().map(|running| (door, running.life));
            let request = &mut book.requests[index];
            (request.owner, request.signs, request.tokens, request.began) = (owner, vec![now], Vec::new(), false);
            request.clone()
        };
        let (prompt, answer_max) = (request.prompt.len(), request.answer_max);
        self.note(Happening::Asked { request: index, on: door, prompt, answer_max, again });
        let Some(running) = self.running(door) else { return End::Lost("nobody listens there".to_owned()) };
        let asked = GenerationRequest {
            prompt: request.prompt,
            sampling: Sampling { seed: request.seed, ..Sampling::default() },
            end_ids: Vec::new(),
            max_tokens: answer_max,
        };
        let mut tired = pin!(self.ground.wait(patience));
        let generation = match select(pin!(running.handle.generate(deployment, asked)), &mut tired).await {
            Either::Right(_) => return End::GaveUp,
            Either::Left((Err(gone), _)) => return End::Lost(gone.to_string()),
            Either::Left((Ok(Err(error)), _)) => return End::Failed(error.to_string()),
            Either::Left((Ok(Ok(generation)), _)) => generation,
        };
        self.began(index);
        match select(pin!(self.read(index, generation, hang_up)), &mut tired).await {
            Either::Left((end, _)) => end,
            Either::Right(_) => End::GaveUp,
        }
    }

    fn began(&self, index: usize) {
        let now = self.now();
        self.note(Happening::Began { request: index });
        let mut book = self.book.borrow_mut();
        let request = &mut book.requests[index];
        request.began = true;
        request.signs.push(now);
    }

    /// Reads an answer; checks P1 and P2 as it comes.
    async fn read(&self, request: usize, mut generation: Generation, hang_up: Option<u64>) -> End {
        loop {
            let event = generation.events.recv().await;
            let now = self.now();
            self.book.borrow_mut().requests[request].signs.push(now);
            match event {
                Some(GenerationEvent::Token { index, token, .. }) => {
                    self.note(Happening::Token { request, index, token });
                    let due = {
                        let mut book = self.book.borrow_mut();
                        let tokens = &mut book.requests[request].tokens;
                        tokens.push(token);
                        tokens.len() as u64 - 1
                    };
                    if u64::from(index) != due {
                        self.violated("P1", Kind::Safety, format!("request {request}: token {index} came where token {due} was due"));
                    }
                    if hang_up == Some(due) {
                        return End::HungUp;
                    }
                }
                Some(GenerationEvent::Finished { reason, .. }) => {
                    let reason = match reason {
                        FinishReason::EndToken => "end token",
                        FinishReason::Length => "length",
                    };
                    return End::Finished(reason.to_owned());
                }
                Some(GenerationEvent::Failed(error)) => return End::Failed(error.to_string()),
                None => return End::Lost("the connection to the node ended".to_owned()),
            }
        }
    }
}
