//! What all lives of a world share: the time, what lies between them, their carriers. One thread, so one lock that nobody
//! ever waits for; what is handed to a node is handed over after it is given back.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use mesh_core::ids::{DeploymentId, NodeId, Time};
use mesh_core::plan::Plan;

use crate::carrier::Carrier;
use crate::net::queue::{Bell, Event, EventKey, Waiting};
use crate::net::{Delivery, Net};

/// What a node's clock says when the world begins: a second, so that nothing starts at zero.
pub const EPOCH_NS: u64 = 1_000_000_000;

/// How fast a machine is now, in thousandths of its usual time for the same work.
pub struct Speed {
    /// Computing.
    pub compute: AtomicU64,
    /// Reading weights.
    pub disk: AtomicU64,
    /// How far its clock is ahead.
    pub clock_ahead_ns: AtomicU64,
}

impl Default for Speed {
    fn default() -> Self {
        Self { compute: AtomicU64::new(1_000), disk: AtomicU64::new(1_000), clock_ahead_ns: AtomicU64::new(0) }
    }
}

/// See the module's head.
pub struct Ground {
    now: AtomicU64,
    inner: Mutex<Inner>,
    /// By machine.
    pub speeds: Vec<Speed>,
}

/// What is behind the lock.
pub struct Inner {
    /// What lies between nodes.
    pub net: Net,
    /// By life; none once it is over.
    pub carriers: Vec<Option<Box<Carrier>>>,
    /// Names of machines, and the keys under which they started last.
    pub names: Vec<String>,
    /// By machine.
    pub keys: Vec<NodeId>,
    /// Deployments in the order in which they were first heard of.
    pub deployments: Vec<DeploymentId>,
}

impl Ground {
    /// A world in which nobody lives yet.
    #[must_use]
    pub fn new(net: Net, names: Vec<String>, keys: Vec<NodeId>) -> Arc<Self> {
        let speeds = names.iter().map(|_| Speed::default()).collect();
        let inner = Inner { net, carriers: Vec::new(), names, keys, deployments: Vec::new() };
        Arc::new(Self { now: AtomicU64::new(0), inner: Mutex::new(inner), speeds })
    }

    /// Nanoseconds since the world began.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// What a machine's clock says.
    #[must_use]
    pub fn clock(&self, place: usize) -> Time {
        Time(self.now_ns() + EPOCH_NS + self.speeds[place].clock_ahead_ns.load(Ordering::Relaxed))
    }

    /// The driver's: it is so late now.
    pub fn set_now(&self, ns: u64) {
        self.now.store(ns, Ordering::Relaxed);
        self.with(|inner| inner.net.now = ns);
    }

    /// Looks at or changes what is shared. Nobody is called from within.
    pub fn with<T>(&self, run: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = run(&mut inner);
        inner.settle();
        outcome
    }

    /// The same with the carrier of a life that is not over.
    pub fn carrier<T>(&self, life: usize, run: impl FnOnce(&mut Carrier, &mut Net) -> T) -> Option<T> {
        self.with(|inner| inner.carrier(life, run))
    }

    /// Completes after so many nanoseconds.
    pub fn wait(self: &Arc<Self>, ns: u64) -> Waiting<impl FnMut(EventKey) + Send + Unpin + use<>> {
        let bell = Arc::new(Bell::default());
        let key = self.with(|inner| {
            let at = inner.net.now.saturating_add(ns);
            inner.net.queue.push(at, Event::Waited(bell.clone()))
        });
        let ground = self.clone();
        Waiting { bell, key, cancel: move |key| ground.with(|inner| inner.net.queue.cancel(key)) }
    }

    /// Hands over what is to be handed over.
    pub fn hand_over(&self) {
        while let Some(delivery) = self.with(|inner| inner.net.deliveries.pop_front()) {
            let (life, event) = match delivery {
                Delivery::Wake(waker) => {
                    waker.wake();
                    continue;
                }
                Delivery::Message { life, from, message } => {
                    let Some(router) =
                        self.with(|inner| inner.net.lives.get(life).filter(|life| life.alive).map(|life| life.router.clone()))
                    else {
                        continue;
                    };
                    let Some(message) = router.route(from, message) else { continue };
                    (life, mesh_core::ports::CarrierEvent::Heard { from, message })
                }
                Delivery::Event { life, event } => (life, event),
            };
            let ear = self.with(|inner| inner.net.lives.get(life).filter(|life| life.alive).map(|life| life.events.clone()));
            if let Some(ear) = ear {
                let _ = ear.try_send(event); // full is lost, as live
            }
        }
    }
}

impl Inner {
    fn carrier<T>(&mut self, life: usize, run: impl FnOnce(&mut Carrier, &mut Net) -> T) -> Option<T> {
        let mut carrier = self.carriers.get_mut(life)?.take()?;
        let outcome = run(&mut carrier, &mut self.net);
        self.carriers[life] = Some(carrier);
        Some(outcome)
    }

    /// Carriers hear what arrived.
    fn settle(&mut self) {
        while let Some((life, arrival)) = self.net.arrivals.pop_front() {
            self.carrier(life, |carrier, net| carrier.hear(arrival, net));
        }
    }

    /// Which deployment, counted in the order of hearing.
    pub fn deployment(&mut self, id: DeploymentId) -> usize {
        self.deployments.iter().position(|known| *known == id).unwrap_or_else(|| {
            self.deployments.push(id);
            self.deployments.len() - 1
        })
    }

    /// The machine of a key; of two with one key, the first.
    #[must_use]
    pub fn place_of(&self, node: NodeId) -> Option<usize> {
        self.keys.iter().position(|key| *key == node)
    }

    /// A plan in words: `a 0..12, b 12..24`.
    #[must_use]
    pub fn plan_in_words(&self, plan: &Plan) -> String {
        let name = |node: NodeId| self.place_of(node).map_or_else(|| node.short(), |place| self.names[place].clone());
        let stages = plan.stages().iter().map(|stage| format!("{} {}..{}", name(stage.node), stage.layers.first, stage.layers.end));
        stages.collect::<Vec<_>>().join(", ")
    }

    /// Ends a life: nothing that it says or hears gets through any more.
    pub fn end_life(&mut self, life: usize, silence: bool, why: &str) {
        if !self.net.lives.get(life).is_some_and(|life| life.alive) {
            return;
        }
        let node = self.net.place_of(life);
        self.net.note(crate::happening::Happening::Ended { node, life, why: why.to_owned() });
        self.carriers[life] = None;
        self.net.end_life(life, silence);
    }
}
