//! What a shard's thread does: the stage core, the engine and the lanes, tied together.
//!
//! The worker owns all three and nobody else touches them. [`ShardWorker::turn`] looks at the lanes, hands what arrived to
//! the core and performs what the core wants. It never waits: who calls it (a thread, or a task on virtual time) waits on
//! the orders' queue until [`ShardWorker::wake_at`].
//!
//! What takes time is cut in two, so that a host can let the time pass in between: a step ([`ShardWorker::begin_step`],
//! [`ShardWorker::finish_step`]) and a load ([`ShardWorker::loading`], [`ShardWorker::finish_load`]). On a thread the step
//! runs within `turn`, at once.
//!
//! Bytes on the way: a row's values stay where the lane received them until the step has read them; the engine writes into
//! the slot that goes out next, unless the output needs more than one. So a hop costs no copy in the usual case.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_channel::Receiver;
use mesh_core::ids::{NodeId, Time};
use mesh_core::plan::Plan;
use mesh_core::ports::{CacheFull, Engine, EngineOptions, Sampled, Step, StepInput, StepRow, Wake};
use mesh_core::stage::{Batch, Effect, Input, Part, Place, Side, SlotId, Stage};
use mesh_core::step_message::{self, payload_offset};
use mesh_core::wire::{LaneId, LaneOffer, Message, ShardState};
use zerocopy::{FromBytes, IntoBytes};

use crate::shard::ShardSetup;
use crate::shard_inlet::{Order, Running, ShardView, Shared};
use crate::shard_lanes::{Change, Inward, Outward, shape_for};
use crate::workers::ShardStart;

mod load;

#[cfg(any(test, feature = "testing"))]
pub(crate) use load::Loading;

// Values are read where they lie, and the wire is little-endian.
const _: () = assert!(cfg!(target_endian = "little"));

/// Whether the worker goes on after an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Go,
    Ended,
}

/// When a step runs that the core asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Steps {
    /// Right away, within the call that led to it.
    AtOnce,
    /// When the host says so. Until then nothing else is fed to the core.
    #[cfg_attr(not(any(test, feature = "testing")), expect(dead_code, reason = "for hosts on virtual time"))]
    WhenTold,
}

/// Where the last step's output lies.
enum Output {
    /// In the reserved slot, from this byte on.
    Slot(usize),
    /// In `scratch`.
    Scratch,
}

/// See the module's head.
pub(crate) struct ShardWorker {
    setup: ShardSetup,
    orders: Receiver<Order>,
    shared: Arc<Shared>,
    view: Arc<tokio::sync::watch::Sender<ShardView>>,
    waker: Arc<dyn Wake>,
    stage: Stage,
    place: Option<Place>,
    engine: Option<Box<dyn Engine>>,
    options: Option<EngineOptions>,
    inward: Option<Inward>,
    outward: Option<Outward>,
    /// An offer for a plan that was not adopted yet.
    early: Option<(NodeId, LaneOffer)>,
    /// Lives of inward lanes so far.
    lives: u64,
    /// Where the values begin in each received slot.
    payloads: BTreeMap<SlotId, usize>,
    output: Output,
    scratch: Vec<f32>,
    inputs: VecDeque<Input>,
    effects: Vec<Effect>,
    /// An order that came while a step ran and must wait for its outcome.
    postponed: Option<Order>,
    /// A step that the core asked for and that was not run yet.
    pending: Option<Batch>,
    /// A load that was begun.
    loading: Option<load::Loading>,
    steps: Steps,
    malformed: u64,
}

impl ShardWorker {
    pub fn new(start: ShardStart, steps: Steps) -> Self {
        let ShardStart { setup, handle, inlet } = start;
        Self {
            stage: Stage::new(setup.limits),
            setup,
            orders: inlet.orders,
            shared: inlet.shared,
            view: inlet.view,
            waker: Arc::new(handle),
            place: None,
            engine: None,
            options: None,
            inward: None,
            outward: None,
            early: None,
            lives: 0,
            payloads: BTreeMap::new(),
            output: Output::Scratch,
            scratch: Vec::new(),
            inputs: VecDeque::new(),
            effects: Vec::new(),
            postponed: None,
            pending: None,
            loading: None,
            steps,
            malformed: 0,
        }
    }

    pub fn now(&self) -> Time {
        self.setup.ports.clock.now()
    }

    /// The next order that is there.
    pub fn next_order(&mut self) -> Option<Order> {
        self.postponed.take().or_else(|| self.orders.try_recv().ok())
    }
    pub fn orders(&self) -> &Receiver<Order> {
        &self.orders
    }
    /// Whether an order is there.
    pub fn has_order(&self) -> bool {
        self.postponed.is_some() || !self.orders.is_empty()
    }

    /// Does what it is told. A load is only begun: see [`ShardWorker::loading`].
    pub fn obey(&mut self, order: Order) -> Flow {
        if self.shared.retired.load(Ordering::Acquire) {
            self.retire();
            return Flow::Ended;
        }
        match order {
            Order::Load { plan, options } => self.begin_load(plan, options),
            Order::Adopt { plan } => self.adopt(plan),
            Order::Heard { from, message: Message::Lane(offer) } => self.offered(from, offer),
            Order::Heard { from, message } => self.feed(Input::Heard { from, message }),
            Order::NodeDown(node) => self.feed(Input::NodeDown(node)),
            Order::Retire | Order::Look => {}
        }
        Flow::Go
    }

    /// Looks at lanes and deadlines until nothing is left to do.
    pub fn turn(&mut self) {
        self.shared.looking_at_lanes();
        while self.pending.is_none() && self.look_in() | self.look_out() {}
        if self.pending.is_none() && self.stage.wake_at().is_some_and(|at| self.now() >= at) {
            self.feed(Input::Elapsed);
        }
        self.shared.streams.store(u32::try_from(self.stage.streams()).unwrap_or(u32::MAX), Ordering::Relaxed);
        let kv_bytes = self.engine.as_ref().map_or(0, |engine| engine.kv_bytes());
        self.shared.kv_bytes.store(kv_bytes, Ordering::Relaxed);
        self.shared.steps.store(self.stage.counts().steps, Ordering::Relaxed);
    }

    /// When `turn` has something to do even if nobody says so.
    pub fn wake_at(&self) -> Option<Time> {
        self.stage.wake_at().into_iter().chain(self.inward.as_ref().and_then(Inward::wake_at)).min()
    }

    fn look_in(&mut self) -> bool {
        let now = self.now();
        let (ports, idle) = (&self.setup.ports, self.stage.streams() == 0);
        let Some(inward) = &mut self.inward else { return false };
        let change = inward.tend(now, idle, ports.channels.as_ref(), ports.carrier.as_ref(), &self.waker);
        let changed = change.is_some();
        match change {
            Some(Change::Down(why)) => {
                tracing::info!(%why, "the lane from the stage before ended; it is accepted again");
                self.payloads.clear();
                self.feed(Input::LaneDown { side: Side::In, why });
                self.say_wired();
            }
            Some(Change::Ready) => self.say_wired(),
            None => {}
        }
        self.take_all();
        let arrived = !self.inputs.is_empty();
        self.work();
        arrived || changed
    }

    /// Queues everything that lies on the lane from the stage before.
    fn take_all(&mut self) {
        let Some(inward) = &mut self.inward else { return };
        let life = inward.life();
        let Some(receiver) = inward.receiver() else { return };
        while let Some(slot) = receiver.take() {
            let id = SlotId { lane: life, slot };
            match step_message::read(receiver.bytes(slot)) {
                Ok(message) => {
                    self.payloads.insert(id, payload_offset(message.rows.len()));
                    let (plan, width, rows) = (message.plan, message.width, message.rows);
                    self.inputs.push_back(Input::Arrived { slot: id, plan, width, rows });
                }
                Err(error) => {
                    receiver.release(slot);
                    self.malformed += 1;
                    tracing::warn!(%error, count = self.malformed, "the stage before sent nonsense");
                }
            }
        }
    }

    fn look_out(&mut self) -> bool {
        let Some(outward) = &mut self.outward else { return false };
        let change = outward.tend();
        let changed = change.is_some();
        self.outward_changed(change);
        let credit =
            self.stage.wants_credit() && self.outward.as_mut().and_then(Outward::sender).is_some_and(|sender| sender.reserve().is_some());
        if credit {
            self.feed(Input::Credit);
        }
        credit || changed
    }

    fn outward_changed(&mut self, change: Option<Change>) {
        match change {
            Some(Change::Down(why)) => {
                tracing::info!(%why, "the lane to the next stage ended");
                self.feed(Input::LaneDown { side: Side::Out, why });
                self.say_wired();
            }
            Some(Change::Ready) => self.say_wired(),
            None => {}
        }
    }

    fn offered(&mut self, from: NodeId, offer: LaneOffer) {
        let in_force = self.place.as_ref().is_some_and(|place| place.plan.hash() == offer.lane.plan);
        match &mut self.outward {
            Some(outward) if in_force => {
                let change = outward.offered(from, offer, self.setup.ports.channels.as_ref(), &self.waker);
                self.outward_changed(change);
            }
            // One offer of a plan that is not known here yet waits for it; the receiver repeats itself anyway.
            _ if !in_force => self.early = Some((from, offer)),
            _ => {}
        }
    }

    fn adopt(&mut self, plan: Plan) {
        let Some((index, stage)) = plan.stage_of(self.setup.me) else { return };
        // Another plan may have been ordered since, while this order waited for a load: the view is about that one now.
        if !self.shared.wants(plan.hash()) || self.place.as_ref().is_some_and(|place| place.plan == plan) {
            return;
        }
        let held = self.engine.as_ref().map(|engine| engine.layers());
        let shape = shape_for(self.setup.sheet.hidden_width);
        let (Some(shape), true) = (shape, held == Some(stage.layers)) else {
            let why = match held {
                _ if shape.is_none() => format!("{} values a position do not fit a lane's slot", self.setup.sheet.hidden_width),
                held => format!("it shall run layers {:?} but holds {held:?}: they must be loaded first", stage.layers),
            };
            let load_said_why = matches!(self.view.borrow().state, ShardState::Failed { .. });
            if !load_said_why {
                self.say(&plan, ShardState::Failed { why, retry: true });
            }
            return;
        };
        let index = u16::try_from(index).expect("a plan has fewer stages than layers");
        let place = Place {
            deployment: self.setup.deployment,
            index,
            width: self.setup.sheet.hidden_width,
            vocabulary: self.setup.sheet.vocabulary,
            slot_bytes: shape.slot_bytes,
            plan,
        };
        // First the core, which gives the old lanes' slots back, then the lanes. The streams' owners hear of the plan by
        // themselves, and may keep what is cached (R3).
        self.place = Some(place.clone());
        self.feed(Input::Adopt(Box::new(place.clone())));
        self.lives = self.inward.take().map_or(self.lives, |inward| inward.life());
        self.payloads.clear();
        let lane = |boundary| LaneId { deployment: place.deployment, plan: place.plan.hash(), boundary };
        let node_of = |index: u16| place.plan.stages().get(usize::from(index)).map(|stage| stage.node);
        self.inward = index.checked_sub(1).and_then(|before| Some(Inward::new(lane(before), shape, node_of(before)?, self.lives)));
        self.outward = node_of(index + 1).map(|next| Outward::new(lane(index), next));
        if let Some((from, offer)) = self.early.take() {
            self.offered(from, offer);
        }
        self.say_wired();
    }

    /// Ends both lanes.
    fn unwire(&mut self, why: &str) {
        if let Some(inward) = self.inward.take() {
            self.lives = inward.life();
            self.payloads.clear();
            self.feed(Input::LaneDown { side: Side::In, why: why.to_owned() });
        }
        if self.outward.take().is_some() {
            self.feed(Input::LaneDown { side: Side::Out, why: why.to_owned() });
        }
    }

    /// Takes the plan out of force: before layers are dropped or loaded.
    fn stop_serving(&mut self, why: &str) {
        self.feed(Input::Fence { why: why.to_owned() });
        self.unwire(why);
        self.place = None;
    }

    fn retire(&mut self) {
        self.stop_serving("the shard was retired");
        let engine = self.engine.take();
        let _ = guarded("dropping", || drop(engine));
        self.shared.holds(mesh_core::model::Layers::new(0, 0));
        self.turn();
    }

    /// Says whether the plan in force has its lanes.
    fn say_wired(&self) {
        let Some(place) = &self.place else { return };
        let wired = self.inward.as_ref().is_none_or(Inward::is_ready) && self.outward.as_ref().is_none_or(Outward::is_ready);
        self.say(&place.plan, if wired { ShardState::Wired } else { ShardState::Loaded });
    }

    /// Says something about a plan, unless another one was ordered meanwhile.
    fn say(&self, plan: &Plan, state: ShardState) {
        self.view.send_if_modified(|view| {
            let news = view.plan.is_some_and(|(hash, _)| hash == plan.hash()) && view.state != state;
            if news {
                view.state = state;
            }
            news
        });
    }

    fn feed(&mut self, input: Input) {
        self.inputs.push_back(input);
        self.work();
    }

    /// Steps the core through what is queued and performs what it wants.
    fn work(&mut self) {
        while self.pending.is_none()
            && let Some(input) = self.inputs.pop_front()
        {
            let mut effects = std::mem::take(&mut self.effects);
            self.stage.step(self.now(), input, &mut effects);
            effects.drain(..).for_each(|effect| self.perform(effect));
            self.effects = effects;
            if self.steps == Steps::AtOnce
                && let Some(batch) = self.pending.take()
            {
                self.run(&batch);
            }
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Send { to, message } => {
                if let Err(error) = self.setup.ports.carrier.send(to, message) {
                    tracing::debug!(%error, "a stage's message was lost; a deadline acts");
                }
            }
            Effect::OpenCache { tag, keep, positions_max } => {
                let outcome = self.open_cache(tag.stream, keep, positions_max);
                self.inputs.push_back(Input::CacheOpened { tag, outcome });
            }
            Effect::CloseCache(stream) => {
                if let Some(engine) = &mut self.engine {
                    let _ = guarded("closing a cache", || engine.close(stream));
                }
            }
            Effect::Run(batch) => self.pending = Some(batch),
            Effect::Emit(part) => self.emit(&part),
            Effect::Release(slot) => self.release(slot),
        }
    }

    fn open_cache(&mut self, stream: mesh_core::ids::StreamId, keep: u32, positions_max: u32) -> Result<u32, CacheFull> {
        let none = CacheFull { need_bytes: 0, free_bytes: 0 };
        let Some(engine) = &mut self.engine else { return Err(none) };
        match guarded("opening a cache", || engine.open(stream, keep, positions_max)) {
            Ok(outcome) => outcome,
            Err(_) => {
                let _ = guarded("closing a cache", || engine.close(stream));
                Err(none)
            }
        }
    }

    fn release(&mut self, slot: SlotId) {
        self.payloads.remove(&slot);
        if let Some(inward) = self.inward.as_mut().filter(|inward| inward.life() == slot.lane)
            && let Some(receiver) = inward.receiver()
        {
            receiver.release(slot.slot);
        }
    }

    /// The model's table of contents.
    #[cfg(any(test, feature = "testing"))]
    pub fn sheet(&self) -> &mesh_core::model::ModelSheet {
        &self.setup.sheet
    }
    /// Layers in memory.
    #[cfg(any(test, feature = "testing"))]
    pub fn layers(&self) -> mesh_core::model::Layers {
        self.engine.as_ref().map_or(mesh_core::model::Layers::new(0, 0), |engine| engine.layers())
    }

    /// A step that is to be run: from now on its streams' ends are noted. [`ShardWorker::finish_step`] has to follow, and
    /// nothing else may be called before.
    #[cfg(any(test, feature = "testing"))]
    pub fn begin_step(&mut self) -> Option<&Batch> {
        let batch = self.pending.as_ref()?;
        self.shared.begin(running(batch));
        Some(batch)
    }

    /// Whether the step that was begun, or the load, is for nobody any more.
    #[cfg(any(test, feature = "testing"))]
    pub fn shall_give_up(&self) -> bool {
        self.shared.give_up.load(Ordering::Acquire)
    }

    /// Computes the step that was begun, and what follows from it.
    #[cfg(any(test, feature = "testing"))]
    pub fn finish_step(&mut self) {
        if let Some(batch) = self.pending.take() {
            self.compute(&batch);
            self.work();
        }
    }

    /// Runs a step.
    fn run(&mut self, batch: &Batch) {
        self.shared.begin(running(batch));
        self.compute(batch);
    }

    /// What came meanwhile is heard before the outcome is: an `Open` or `Close` voids its stream's rows.
    fn compute(&mut self, batch: &Batch) {
        let outcome = self.step(batch);
        self.shared.end();
        while self.postponed.is_none() {
            match self.orders.try_recv() {
                Ok(Order::Heard { from, message }) if !matches!(message, Message::Lane(_)) => {
                    self.inputs.push_back(Input::Heard { from, message })
                }
                Ok(Order::NodeDown(node)) => self.inputs.push_back(Input::NodeDown(node)),
                Ok(Order::Look) => self.shared.looking_at_lanes(),
                Ok(order) => self.postponed = Some(order),
                Err(_) => break,
            }
        }
        // Rows that arrived meanwhile may share the next step.
        self.take_all();
        self.inputs.push_back(Input::Stepped(outcome));
    }

    fn step(&mut self, batch: &Batch) -> Result<Vec<Sampled>, String> {
        let Self { engine, stage, inward, outward, payloads, scratch, output, shared, place, .. } = self;
        let engine = engine.as_mut().ok_or("the shard holds no layers")?;
        let place = place.as_ref().ok_or("no plan is in force")?;
        let width = place.width as usize;
        let last = usize::from(place.index) + 1 == place.plan.stages().len();

        let how = |row: &mesh_core::stage::BatchRow| row.sample.then(|| stage.sample_how(row.tag.stream)).flatten();
        let rows: Vec<StepRow<'_>> =
            batch.rows.iter().map(|row| StepRow { stream: row.tag.stream, first: row.first, count: row.count, sample: how(row) }).collect();
        let receiver = inward.as_ref().and_then(Inward::receiver_ref);
        let segments: Vec<&[f32]> = batch
            .pieces
            .iter()
            .map(|piece| {
                let start = payloads.get(&piece.slot)? + piece.at as usize * width * 4;
                let bytes = receiver?.bytes(piece.slot.slot).get(start..start + piece.count as usize * width * 4)?;
                <[f32]>::ref_from_bytes(bytes).ok()
            })
            .collect::<Option<_>>()
            .ok_or("the input's lane went down")?;
        let input = if place.index == 0 { StepInput::Tokens(&batch.tokens) } else { StepInput::Hidden(&segments) };

        // Straight into the slot that goes out next, if it all fits there (R17).
        let values = if last { 0 } else { batch.positions as usize * width };
        let offset = payload_offset(batch.rows.len());
        let slot = outward.as_mut().and_then(Outward::sender).filter(|_| batch.fits_slot && !last).and_then(|sender| sender.reserve());
        let direct = slot.and_then(|slot| slot.get_mut(offset..offset + values * 4)).and_then(|bytes| <[f32]>::mut_from_bytes(bytes).ok());
        let target: &mut [f32] = if let Some(values) = direct {
            *output = Output::Slot(offset);
            values
        } else {
            *output = Output::Scratch;
            scratch.clear();
            scratch.resize(values, 0.0);
            scratch
        };
        let step = Step { rows: &rows, input, output: target, give_up: &shared.give_up };
        guarded("a step", || engine.step(step))?.map_err(|error| error.to_string())
    }

    /// Sends rows of the last step on. A lane that is gone says so itself when it is looked at.
    fn emit(&mut self, part: &Part) {
        let Some(place) = &self.place else { return };
        let position_bytes = place.width as usize * 4;
        let Some(sender) = self.outward.as_mut().and_then(Outward::sender) else { return };
        let Some(slot) = sender.reserve() else { return };
        let rows: Vec<_> = part.rows.iter().map(|(row, _)| *row).collect();
        let mut to = payload_offset(rows.len());
        for (row, at) in &part.rows {
            let (from, bytes) = (*at as usize * position_bytes, row.count as usize * position_bytes);
            match self.output {
                // Rows that are no longer wanted leave holes; what follows moves down. Nothing moves in the usual case.
                Output::Slot(offset) if offset + from == to => {}
                Output::Slot(offset) => slot.copy_within(offset + from..offset + from + bytes, to),
                Output::Scratch => slot[to..to + bytes].copy_from_slice(&self.scratch.as_bytes()[from..from + bytes]),
            }
            to += bytes;
        }
        let bytes = step_message::write(slot, part.plan, place.width, &rows);
        if let Err(error) = sender.commit(bytes) {
            tracing::debug!(%error, "rows were lost with their lane");
        }
    }
}

/// Whose rows a step has.
fn running(batch: &Batch) -> Vec<Running> {
    batch.rows.iter().map(|row| (row.tag.stream, row.tag.attempt, row.owner)).collect()
}

/// Runs foreign code: a panic in it is its failure, not ours (F27).
fn guarded<T>(what: &str, run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let words = panic.downcast_ref::<&str>().map(|text| (*text).to_owned()).or_else(|| panic.downcast_ref::<String>().cloned());
        let why = format!("the engine panicked in {what}: {}", words.unwrap_or_else(|| "without a word".to_owned()));
        tracing::error!("{why}");
        why
    })
}
