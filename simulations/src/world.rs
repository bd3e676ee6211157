//! A world: machines whose nodes live and die, and the driver that moves time from event to event.
//!
//! One thread, one tokio runtime with a paused clock, and for each life of a node a `LocalSet` of its own: not polling it is
//! a freeze, dropping it is `kill -9`, a new one on the same disk is a reboot. Tokio's timers have a grain of a millisecond,
//! the world's events one of a nanosecond: the driver sleeps to the millisecond of the next event, so that nodes' timers fire
//! on the way and in order, and steps the rest by hand.

mod birth;
mod faults;

use std::cell::RefCell;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use mesh_core::model::ModelSheet;
use mesh_core::ports::Models;
use tokio::task::LocalSet;
use tokio::time::{Instant, Sleep};

use crate::dice::Seed;
use crate::disk::Disk;
use crate::ground::Ground;
use crate::happening::Happening;
use crate::net::queue::{Event, WorldEvent};
use crate::outside::Outside;
use crate::scenario::{Machine, Scenario};

const MS: u64 = 1_000_000;

/// Steps that one world may take: a world that never comes to rest shall not run for ever. (Guess: an hour with 64 nodes.)
const EVENTS_MAX: u64 = 300_000_000;

/// Wakes one life, and the driver if it sleeps.
struct Flag {
    set: AtomicBool,
    driver: Arc<Mutex<Option<Waker>>>,
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if !self.set.swap(true, Ordering::Relaxed) {
            let driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(waker) = driver.as_ref() {
                waker.wake_by_ref();
            }
        }
    }
}

/// What runs of a process.
struct Process {
    life: usize,
    tasks: Pin<Box<LocalSet>>,
    flag: Arc<Flag>,
    frozen: bool,
}

/// A machine.
struct Place {
    machine: Machine,
    disk: Arc<Disk>,
    failing_loads: Arc<AtomicU32>,
    process: Option<Process>,
    /// The protocol that its next life speaks.
    protocol: u32,
    lives: u64,
    /// It has started once and shall run when everything is healed.
    wanted: bool,
}

/// What a world is made of.
pub(crate) struct World {
    scenario: Scenario,
    seed: Seed,
    ground: Arc<Ground>,
    places: Vec<Place>,
    outside: Rc<Outside>,
    outside_tasks: Pin<Box<LocalSet>>,
    outside_flag: Arc<Flag>,
    driver: Arc<Mutex<Option<Waker>>>,
    sheet: ModelSheet,
    other_sheet: ModelSheet,
    story: Option<Arc<dyn Models>>,
    healed: bool,
    over: bool,
    began: Instant,
    sleep: Pin<Box<Sleep>>,
}

impl World {
    /// Runs until it is over. Inside a runtime with a paused clock.
    pub async fn run(mut self) {
        let machines: Vec<u64> = self.places.iter().map(|place| place.machine.start_ms).collect();
        self.ground.with(|inner| {
            for (place, start_ms) in machines.into_iter().enumerate() {
                inner.net.queue.push(start_ms * MS, Event::World(WorldEvent::Start { place }));
            }
            for (index, fault) in self.scenario.faults.iter().enumerate() {
                inner.net.queue.push(fault.at_ms * MS, Event::World(WorldEvent::Break(index)));
            }
            let heal_ns = self.scenario.run_ms() * MS;
            inner.net.queue.push(heal_ns, Event::World(WorldEvent::Heal));
        });
        let outside = self.outside.clone();
        self.outside_tasks.spawn_local(async move { outside.run().await });
        self.outside_flag.set.store(true, Ordering::Relaxed);
        tokio::task::unconstrained(poll_fn(|context| self.poll(context))).await;
        // Whoever still runs is dropped without a word.
        for place in 0..self.places.len() {
            self.end(place, true, crate::checks::OVER);
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // While we look ourselves, nobody needs to call us.
        *self.driver.lock().unwrap_or_else(PoisonError::into_inner) = None;
        loop {
            if self.over {
                return Poll::Ready(());
            }
            let now = self.set_now();
            if self.poll_processes() {
                continue;
            }
            let next = self.ground.with(|inner| inner.net.queue.next_at()).unwrap_or(u64::MAX / 2);
            if next <= now {
                self.next_event(now);
                continue;
            }
            let (ms_now, ms_next) = (now / MS, next / MS);
            if ms_next == ms_now {
                advance(next - now);
                continue;
            }
            if !now.is_multiple_of(MS) {
                advance(MS - now % MS);
                self.set_now();
            }
            let until = self.began + Duration::from_millis(ms_next);
            self.sleep.as_mut().reset(until);
            if self.sleep.as_mut().poll(context).is_ready() {
                continue;
            }
            *self.driver.lock().unwrap_or_else(PoisonError::into_inner) = Some(context.waker().clone());
            return Poll::Pending;
        }
    }

    fn set_now(&self) -> u64 {
        let now = u64::try_from((Instant::now() - self.began).as_nanos()).unwrap_or(u64::MAX / 2);
        if now != self.ground.now_ns() {
            self.ground.set_now(now);
        }
        now
    }

    /// Lets every process run that was woken, in the order of machines. Whether any did.
    fn poll_processes(&mut self) -> bool {
        let mut any = false;
        for place in &mut self.places {
            let Some(process) = place.process.as_mut().filter(|process| !process.frozen) else { continue };
            if process.flag.set.swap(false, Ordering::Relaxed) {
                let waker = Waker::from(process.flag.clone());
                let _ = process.tasks.as_mut().poll(&mut Context::from_waker(&waker));
                any = true;
            }
        }
        if self.outside_flag.set.swap(false, Ordering::Relaxed) {
            let waker = Waker::from(self.outside_flag.clone());
            let _ = self.outside_tasks.as_mut().poll(&mut Context::from_waker(&waker));
            any = true;
        }
        if any {
            self.ground.hand_over();
            self.over |= self.outside.is_over();
        }
        any
    }

    fn next_event(&mut self, now: u64) {
        let (event, done) = self.ground.with(|inner| (inner.net.queue.pop_due(now), inner.net.queue.done));
        if done > EVENTS_MAX {
            self.outside.violated("P4", crate::outcome::Kind::Liveness, "the world never comes to rest".to_owned());
            self.over = true;
        }
        match event {
            None => {}
            Some(Event::Waited(bell)) => bell.ring(),
            Some(Event::Carrier { life }) => drop(self.ground.carrier(life, |carrier, net| carrier.elapsed(net))),
            Some(Event::ToSelf { life, message }) => self.ground.with(|inner| {
                let from = inner.net.lives[life].node;
                inner.net.deliveries.push_back(crate::net::Delivery::Message { life, from, message: *message });
            }),
            Some(Event::Wire(event)) => self.ground.with(|inner| inner.net.on_wire(event)),
            Some(Event::Lane(event)) => self.ground.with(|inner| inner.net.on_lane(event)),
            Some(Event::World(event)) => self.on_world(event),
        }
        self.ground.hand_over();
    }

    fn on_world(&mut self, event: WorldEvent) {
        match event {
            WorldEvent::Start { place } => self.start(place),
            WorldEvent::End { life, why, again_ns } => {
                let place = self.ground.with(|inner| inner.net.place_of(life));
                if self.places[place].process.as_ref().is_some_and(|process| process.life == life) {
                    self.end(place, false, why);
                    if let Some(ns) = again_ns {
                        self.ground.with(|inner| inner.net.after(ns, Event::World(WorldEvent::Start { place })));
                    }
                }
            }
            WorldEvent::Break(index) => self.begin_fault(index),
            WorldEvent::Mend(index) => self.end_fault(index),
            WorldEvent::Flap { fault, cut } => self.flap(fault, cut),
            WorldEvent::Heal => self.heal(),
            WorldEvent::Over => self.over = true,
        }
    }

    /// A process is gone, from one moment to the next.
    fn end(&mut self, place: usize, silence: bool, why: &str) {
        let Some(process) = self.places[place].process.take() else { return };
        self.outside.forget(place);
        self.ground.with(|inner| inner.end_life(process.life, silence, why));
        // Its actors are dropped with their ports cut; a panic while that happens is theirs.
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(process)));
        if dropped.is_err() {
            self.outside.violated("panic", crate::outcome::Kind::Safety, format!("machine {place} panicked as it was killed"));
        }
    }

    fn freeze(&mut self, place: usize) {
        let Some(process) = self.places[place].process.as_mut().filter(|process| !process.frozen) else { return };
        process.frozen = true;
        let life = process.life;
        self.ground.with(|inner| {
            inner.net.lives[life].frozen = true;
            if let Some(carrier) = inner.carriers[life].as_mut() {
                carrier.frozen = true;
            }
            inner.net.note(Happening::Frozen { node: place });
        });
        self.outside.was_frozen(place);
    }

    fn thaw(&mut self, place: usize) {
        let Some(process) = self.places[place].process.as_mut().filter(|process| process.frozen) else { return };
        process.frozen = false;
        process.flag.set.store(true, Ordering::Relaxed);
        let life = process.life;
        self.ground.with(|inner| {
            inner.net.lives[life].frozen = false;
            inner.net.note(Happening::Thawed { node: place });
        });
        self.ground.carrier(life, |carrier, net| carrier.thaw(net));
        self.outside.was_thawed(place);
    }
}

/// Moves the paused clock by less than a millisecond: no timer of tokio's is due on the way.
fn advance(ns: u64) {
    let mut moved = Box::pin(tokio::time::advance(Duration::from_nanos(ns)));
    // The first poll moves the clock; the rest would only yield.
    let _ = moved.as_mut().poll(&mut Context::from_waker(Waker::noop()));
}

/// Runs a world made by `make` on this thread, on virtual time.
pub(crate) fn drive(make: impl FnOnce() -> World) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without input and output needs nothing of the system");
    runtime.block_on(async { make().run().await });
}

/// Shared by whoever wants to know of a process.
pub(crate) type Shared<T> = Rc<RefCell<T>>;
