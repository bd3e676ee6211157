//! [`TensorChannels`]: all lanes of a node.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use mesh_core::ids::{DeploymentId, NodeId, PlanHash};
use mesh_core::links::{Interface, InterfaceKind, Way};
use mesh_core::ports::{Channels, LaneError, LaneReceiver, LaneSender, LaneShape, LinkUse, MeasureDone, Wake};
use mesh_core::wire::{LaneId, LaneOffer};

use crate::arena::{self, check_shape};
use crate::book::Book;
use crate::config::{ChannelConfig, Deadlines};
use crate::counters::{ChannelCounters, Counters};
use crate::endpoint::{self, ENDPOINTS_MAX, Endpoint, Target};
use crate::inlet::{Inlet, Receiver, Terms};
use crate::listeners::Listeners;
use crate::local::LocalSender;
use crate::measure::{self, Doorbell, Place};
use crate::poll::Bell;
use crate::registry::Registry;
use crate::ring::Ring;
use crate::seal::draw;
use crate::tcp::{self, Dialler, Door};

/// The tensor channels of one node: listening sockets with their thread, and the lanes that are accepted.
///
/// Dropping it closes the sockets and ends the lanes that still wait for a sender; connected lanes go on until an end is
/// dropped. No thread outlives its lane by more than [`Deadlines::linger`](crate::Deadlines::linger).
pub struct TensorChannels {
    config: ChannelConfig,
    /// Our name in `local:` endpoints.
    id: u128,
    listeners: Arc<Listeners>,
    book: Arc<Book>,
    registry: Arc<Registry>,
    counters: Arc<Counters>,
    /// The door's.
    bell: Arc<Bell>,
    /// Far ends of measurements so far, and now.
    measured: AtomicU64,
    echoes: Arc<AtomicUsize>,
}

impl TensorChannels {
    /// Binds a port on each address of each interface and starts to listen.
    ///
    /// # Errors
    /// No interface can be bound, or no thread or descriptor is left: what the operating system says.
    pub fn new(config: ChannelConfig) -> Result<Self, LaneError> {
        let system = |error: std::io::Error| LaneError::System(error.to_string());
        let (listeners, book) = (Arc::new(Listeners::default()), Arc::new(Book::default()));
        listeners.renew(&config.interfaces).map_err(system)?;
        book.set_interfaces(&config.interfaces);
        let registry = Arc::new(Registry::new());
        let counters = Arc::new(Counters::default());
        let bell = Arc::new(Bell::new().map_err(system)?);
        let door = Door {
            listeners: Arc::clone(&listeners),
            bell: Arc::clone(&bell),
            registry: Arc::clone(&registry),
            counters: Arc::clone(&counters),
            deadlines: config.deadlines,
        };
        let drawn = draw().map_err(LaneError::System)?;
        let id = u128::from_le_bytes(drawn[..16].try_into().expect("16 of 32 bytes"));
        std::thread::Builder::new().name("lane-door".into()).spawn(move || door.run()).map_err(system)?;
        let (measured, echoes) = (AtomicU64::new(0), Arc::new(AtomicUsize::new(0)));
        Ok(Self { config, id, listeners, book, registry, counters, bell, measured, echoes })
    }

    /// Where lanes can be connected to, best guess first.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.now().iter().map(|listener| listener.address).collect()
    }

    /// What happened since the beginning.
    #[must_use]
    pub fn counters(&self) -> ChannelCounters {
        self.counters.read()
    }

    /// The endpoints of a lane from `from`, best first: on the links that were agreed on, then whatever else there is, but
    /// for VPNs and container bridges, which are used by agreement only (F1). A link's number means nothing on another
    /// machine and is left out.
    fn endpoints(&self, from: NodeId) -> Vec<String> {
        let listeners = self.listeners.now();
        let plain = |address: SocketAddr| SocketAddr::new(address.ip(), address.port());
        let local = self.config.in_process.then_some(Endpoint::Local(self.id));
        let agreed = self.agreed(&self.book.ways(from));
        let real = |kind: InterfaceKind| !matches!(kind, InterfaceKind::Virtual | InterfaceKind::Loopback);
        let detours = !listeners.iter().any(|listener| real(listener.kind)); // then there is nothing else
        let rest = listeners.iter().filter(|listener| detours || listener.kind != InterfaceKind::Virtual);
        let rest = rest.map(|listener| Endpoint::Tcp(Target { address: plain(listener.address), via: None }));
        local.into_iter().chain(agreed).chain(rest).take(ENDPOINTS_MAX).map(|endpoint| endpoint.to_string()).collect()
    }

    /// The endpoints on these ways.
    fn agreed(&self, ways: &[Way]) -> Vec<Endpoint> {
        let listeners = self.listeners.now();
        let endpoint = |way: &Way| {
            let address = listeners.iter().find(|listener| listener.address.ip() == way.local)?.address;
            Some(Endpoint::Tcp(Target { address: SocketAddr::new(address.ip(), address.port()), via: Some(way.remote_interface.clone()) }))
        };
        ways.iter().filter_map(endpoint).collect()
    }

    fn accept_at(
        &self,
        terms: Terms,
        endpoints: Vec<String>,
        waker: Arc<dyn Wake>,
    ) -> Result<(LaneOffer, Box<dyn LaneReceiver>), LaneError> {
        let Terms { lane, secret, shape: LaneShape { slot_bytes, slots }, .. } = terms;
        let ring = Ring::new(arena::slots(terms.shape)?);
        let book = Arc::clone(&self.book);
        let make = |generation| Arc::new(Inlet::new(generation, terms, ring, waker, book));
        let inlet = self.registry.accept(lane, make).map_err(LaneError::System)?;
        self.bell.ring(); // a new deadline
        let offer = LaneOffer { lane, generation: inlet.generation, endpoints, secret, slot_bytes, slots };
        Ok((offer, Box::new(Receiver::new(inlet))))
    }

    fn connect_local(&self, offer: &LaneOffer, waker: Arc<dyn Wake>) -> Result<Box<dyn LaneSender>, LaneError> {
        let inlet = self.registry.find(&offer.lane, offer.generation).map_err(|error| LaneError::Down(error.to_string()))?;
        if inlet.secret != offer.secret {
            return Err(LaneError::Down("the offer is not the one that was made here".into()));
        }
        let sender =
            LocalSender::claim(inlet, waker).ok_or_else(|| LaneError::Down("the lane is over or has its sender already".into()))?;
        Ok(Box::new(sender))
    }

    /// Connects to what an offer for a measurement names, if that is where the ways lead: a peer must not send us elsewhere.
    fn connect_to_measure(
        &self,
        to: NodeId,
        offer: &LaneOffer,
        ways: &[Way],
        waker: Arc<dyn Wake>,
    ) -> Result<Box<dyn LaneSender>, LaneError> {
        let endpoints = endpoint::read(offer).map_err(senseless)?;
        let known =
            |target: &Target| ways.iter().any(|way| way.remote == target.address.ip() && Some(&way.local_interface) == target.via.as_ref());
        let targets: Vec<Target> = tcp_only(endpoints).filter(known).collect();
        if (offer.slot_bytes, offer.slots) != (measure::SHAPE.slot_bytes, measure::SHAPE.slots) || targets.is_empty() {
            return Err(senseless("it is not for this link".into()));
        }
        let deadlines = Deadlines { attempt: measure::ATTEMPT, connect: measure::CONNECT, ..self.config.deadlines };
        let dialler = Dialler { to, targets, book: Arc::clone(&self.book), deadlines, measuring: true };
        tcp::connect(offer, dialler, Arc::clone(&self.counters), waker)
    }
}

impl Channels for TensorChannels {
    fn accept(
        &self,
        lane: LaneId,
        from: NodeId,
        shape: LaneShape,
        waker: Arc<dyn Wake>,
    ) -> Result<(LaneOffer, Box<dyn LaneReceiver>), LaneError> {
        check_shape(shape).map_err(LaneError::System)?;
        let secret = draw().map_err(LaneError::System)?;
        let unclaimed_until = Instant::now() + self.config.deadlines.unclaimed;
        self.accept_at(Terms { lane, from, secret, shape, unclaimed_until }, self.endpoints(from), waker)
    }

    fn connect(&self, to: NodeId, offer: &LaneOffer, waker: Arc<dyn Wake>) -> Result<Box<dyn LaneSender>, LaneError> {
        let endpoints = endpoint::read(offer).map_err(senseless)?;
        if self.config.in_process && endpoints.contains(&Endpoint::Local(self.id)) {
            return self.connect_local(offer, waker);
        }
        let targets: Vec<Target> = tcp_only(endpoints).collect();
        if targets.is_empty() {
            return Err(senseless("it can be used in the other process only".into()));
        }
        let dialler = Dialler { to, targets, book: Arc::clone(&self.book), deadlines: self.config.deadlines, measuring: false };
        tcp::connect(offer, dialler, Arc::clone(&self.counters), waker)
    }

    fn renew(&self, interfaces: &[Interface]) {
        self.book.set_interfaces(interfaces);
        match self.listeners.renew(interfaces) {
            Ok(true) => self.bell.ring(),
            Ok(false) => {}
            Err(error) => tracing::debug!(%error, "no address of this machine takes tensor lanes now"),
        }
    }

    fn prefer(&self, peer: NodeId, ways: Vec<Way>) {
        self.book.set_ways(peer, ways);
    }

    fn echo(&self, from: NodeId, ways: &[Way]) -> Result<LaneOffer, LaneError> {
        let place = Place::take(&self.echoes).ok_or_else(|| LaneError::System("too many measurements are running here".into()))?;
        let endpoints: Vec<String> = self.agreed(ways).into_iter().map(|endpoint| endpoint.to_string()).collect();
        if endpoints.is_empty() {
            return Err(LaneError::System("nothing listens on this link here".into()));
        }
        // No deployment has this id: they are drawn from 128 bits.
        let number = self.measured.fetch_add(1, Ordering::Relaxed);
        let lane = LaneId { deployment: DeploymentId(0), plan: PlanHash(number), boundary: u16::MAX };
        let secret = draw().map_err(LaneError::System)?;
        let terms = Terms { lane, from, secret, shape: measure::SHAPE, unclaimed_until: Instant::now() + measure::UNCLAIMED };
        let doorbell = Arc::new(Doorbell::default());
        let (offer, receiver) = self.accept_at(terms, endpoints, Arc::clone(&doorbell) as _)?;
        let thread = std::thread::Builder::new().name("link-echo".into());
        thread.spawn(move || measure::echo(receiver, &doorbell, place)).map_err(|error| LaneError::System(error.to_string()))?;
        Ok(offer)
    }

    fn measure(&self, to: NodeId, offer: &LaneOffer, ways: Vec<Way>, rate: bool, done: MeasureDone) {
        let doorbell = Arc::new(Doorbell::default());
        let sender = match self.connect_to_measure(to, offer, &ways, Arc::clone(&doorbell) as _) {
            Ok(sender) => sender,
            Err(error) => return done(Err(error.to_string())),
        };
        // Whatever happens to the thread, the answer is given.
        let done = Arc::new(std::sync::Mutex::new(Some(done)));
        let (answer, thread) = (Arc::clone(&done), std::thread::Builder::new().name("link-measure".into()));
        let tell = |done: &std::sync::Mutex<Option<MeasureDone>>, outcome| {
            if let Some(done) = crate::lock(done).take() {
                done(outcome);
            }
        };
        let run = move || {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| measure::measure(sender, &doorbell, rate)));
            tell(&answer, outcome.unwrap_or_else(|_| Err("the measurement panicked; this is a defect".into())));
        };
        if let Err(error) = thread.spawn(run) {
            tell(&done, Err(format!("no thread to measure: {error}")));
        }
    }

    fn links_in_use(&self) -> Vec<LinkUse> {
        let mut uses = self.book.uses();
        uses.iter_mut().for_each(|one| one.lanes.retain(|lane| lane.deployment != DeploymentId(0)));
        uses
    }
}

impl Drop for TensorChannels {
    fn drop(&mut self) {
        self.bell.end();
    }
}

fn tcp_only(endpoints: Vec<Endpoint>) -> impl Iterator<Item = Target> {
    endpoints.into_iter().filter_map(|endpoint| match endpoint {
        Endpoint::Tcp(target) => Some(target),
        Endpoint::Local(_) => None,
    })
}

fn senseless(why: String) -> LaneError {
    LaneError::Down(format!("the other node's offer makes no sense: {why}"))
}
