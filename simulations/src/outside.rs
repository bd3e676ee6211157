//! The people around a world: an operator who deploys, clients who ask, an observer who looks at what nodes say.
//!
//! They see what users see, handles and answers, and decide nothing about nodes. They also bring the world to its end: once
//! everything is mended they demand that all agree, that all answer, and that nothing is left over.

mod clients;
mod closing;
mod observer;
mod operator;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use mesh_actors::handle::NodeHandle;
use mesh_core::ids::DeploymentId;
use mesh_core::model::ModelSheet;

use crate::dice::Seed;
use crate::ground::Ground;
use crate::happening::{End, Happening};
use crate::net::queue::{Event, WorldEvent};
use crate::outcome::{Kind, Violation};
use crate::scenario::Scenario;
use crate::world::Shared;
use observer::Seen;

/// Nanoseconds of a millisecond.
const MS: u64 = 1_000_000;

/// A node that runs.
#[derive(Clone)]
pub(crate) struct Running {
    /// Which life.
    pub life: usize,
    /// How it is spoken to.
    pub handle: NodeHandle,
    /// It was told to leave.
    pub leaving: bool,
}

/// A question and what came of it.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Prompt.
    pub prompt: Vec<u32>,
    /// Tokens wanted at most.
    pub answer_max: u32,
    /// Seed of the draws.
    pub seed: u64,
    /// Whom the client asked last, and in which life.
    pub owner: Option<(usize, usize)>,
    /// Signs of life of the last try: asked, begun, each token, the end.
    pub signs: Vec<u64>,
    /// Tokens of the last try.
    pub tokens: Vec<u32>,
    /// Whether the node took it.
    pub began: bool,
    /// How it ended.
    pub end: Option<End>,
    /// After the healing, to demand progress.
    pub last: bool,
}

/// What is written down about nodes.
#[derive(Clone, Copy, Debug, Default)]
struct Health {
    /// When it was frozen, jumped or began to sleep last, or went on.
    disturbed: Option<(u64, u64)>,
    frozen_since: Option<u64>,
}

/// Everything that people know.
#[derive(Default)]
pub(crate) struct Book {
    running: Vec<Option<Running>>,
    healths: Vec<Health>,
    /// Questions, in order.
    pub requests: Vec<Request>,
    /// What was found broken.
    pub violations: Vec<Violation>,
    /// Deployments by the line of the scenario.
    deployments: Vec<Option<DeploymentId>>,
    /// Deleted, on which machine, since when.
    deleted: Vec<(DeploymentId, usize, u64)>,
    seen: Seen,
    open_requests: usize,
    healed_ns: Option<u64>,
    /// When all agreed.
    pub converged_ns: Option<u64>,
    over: bool,
}

impl Book {
    /// What the observer saw.
    pub fn seen(&self) -> &Seen {
        &self.seen
    }
    /// From the healing until all agreed.
    pub fn converged_after(&self) -> Option<u64> {
        Some(self.converged_ns?.saturating_sub(self.healed_ns?))
    }
}

/// See the module's head.
pub(crate) struct Outside {
    scenario: Scenario,
    seed: Seed,
    ground: Arc<Ground>,
    sheet: ModelSheet,
    /// What is written down.
    pub book: Shared<Book>,
}

impl Outside {
    /// Nobody has done anything yet.
    pub fn new(scenario: Scenario, seed: Seed, ground: Arc<Ground>, sheet: ModelSheet) -> Rc<Self> {
        let places = scenario.machines().len();
        let book = Book {
            running: (0..places).map(|_| None).collect(),
            healths: vec![Health::default(); places],
            deployments: vec![None; scenario.deployments.len()],
            ..Book::default()
        };
        Rc::new(Self { scenario, seed, ground, sheet, book: Rc::new(RefCell::new(book)) })
    }

    /// Everything that people do, until the world is healed and judged.
    pub async fn run(self: Rc<Self>) {
        for index in 0..self.scenario.deployments.len() {
            tokio::task::spawn_local(self.clone().operate(index));
        }
        tokio::task::spawn_local(self.clone().ask());
        tokio::task::spawn_local(self.clone().observe());
        let run_ns = self.scenario.run_ms() * MS;
        self.ground.wait(run_ns).await;
        // The driver heals at the same moment; what follows comes after it.
        self.ground.wait(MS).await;
        self.close().await;
        self.book.borrow_mut().over = true;
        self.ground.with(|inner| inner.net.after(0, Event::World(WorldEvent::Over)));
    }

    /// The model that is deployed.
    pub fn sheet(&self) -> &ModelSheet {
        &self.sheet
    }

    /// By machine: from when to when it was frozen, or its clock jumped, if ever.
    pub fn disturbed(&self, end_ns: u64) -> Vec<Option<(u64, u64)>> {
        let of = |health: &Health| match (health.disturbed, health.frozen_since) {
            (disturbed, None) => disturbed,
            (disturbed, Some(since)) => Some((disturbed.map_or(since, |disturbed| disturbed.0), end_ns)),
        };
        self.book.borrow().healths.iter().map(of).collect()
    }

    /// Whether the world has been judged.
    pub fn is_over(&self) -> bool {
        self.book.borrow().over
    }

    fn now(&self) -> u64 {
        self.ground.now_ns()
    }

    fn note(&self, what: Happening) {
        self.ground.with(|inner| inner.net.note(what));
    }

    /// Something is broken.
    pub fn violated(&self, check: &'static str, kind: Kind, text: String) {
        self.note(Happening::Violated { check, text: text.clone() });
        let at_ms = self.now() / MS;
        self.book.borrow_mut().violations.push(Violation { kind, check, at_ms, text });
    }

    /// A node runs.
    pub fn born(&self, place: usize, life: usize, handle: NodeHandle) {
        self.book.borrow_mut().running[place] = Some(Running { life, handle, leaving: false });
    }

    /// A node's process is gone.
    pub fn forget(&self, place: usize) {
        self.book.borrow_mut().running[place] = None;
    }

    /// A process was stopped.
    pub fn was_frozen(&self, place: usize) {
        let now = self.now();
        self.book.borrow_mut().healths[place].frozen_since = Some(now);
    }

    /// It goes on.
    pub fn was_thawed(&self, place: usize) {
        let now = self.now();
        let health = &mut self.book.borrow_mut().healths[place];
        if let Some(since) = health.frozen_since.take() {
            health.disturbed = Some((health.disturbed.map_or(since, |former| former.0.min(since)), now));
        }
    }

    /// A clock jumped: deadlines move with it (R8), so its node's silences are not judged.
    pub fn jumped(&self, place: usize) {
        let now = self.now();
        let health = &mut self.book.borrow_mut().healths[place];
        health.disturbed = Some((health.disturbed.map_or(now, |former| former.0), now));
    }

    /// A node is told to leave, as a user would.
    pub async fn leave(self: Rc<Self>, place: usize) {
        let told = self.book.borrow_mut().running[place].as_mut().map(|running| {
            running.leaving = true;
            running.clone()
        });
        let Some(running) = told else { return };
        running.handle.leave().await;
        self.ground.carrier(running.life, |carrier, net| carrier.say_goodbye(net));
        let end = WorldEvent::End { life: running.life, why: "left", again_ns: None };
        self.ground.with(|inner| inner.net.after(50 * MS, Event::World(end)));
    }

    /// The driver mended everything.
    pub fn heal(&self) {
        let now = self.now();
        self.book.borrow_mut().healed_ns = Some(now);
    }

    /// A node that can be spoken to.
    fn running(&self, place: usize) -> Option<Running> {
        self.book.borrow().running[place].clone()
    }

    /// Every node that runs, by machine, but those that leave.
    fn all_running(&self) -> Vec<(usize, Running)> {
        let book = self.book.borrow();
        let there = book.running.iter().enumerate().filter_map(|(place, running)| Some((place, running.clone()?)));
        there.filter(|(_, running)| !running.leaving).collect()
    }
}
