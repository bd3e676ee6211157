//! [`TensorChannels`]: all lanes of a node.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use mesh_core::ports::{Channels, LaneError, LaneReceiver, LaneSender, LaneShape, Wake};
use mesh_core::wire::{LaneId, LaneOffer};

use crate::arena::{self, check_shape};
use crate::config::{ChannelConfig, INTERFACES_MAX};
use crate::counters::{ChannelCounters, Counters};
use crate::endpoint::{self, Endpoint};
use crate::inlet::{Inlet, Receiver};
use crate::interfaces::{Interface, is_link_local};
use crate::local::LocalSender;
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
    /// Where we listen, best first.
    addresses: Vec<SocketAddr>,
    registry: Arc<Registry>,
    counters: Arc<Counters>,
    /// The door's.
    bell: Arc<Bell>,
}

impl TensorChannels {
    /// Binds a port on each interface and starts to listen.
    ///
    /// # Errors
    /// No interface can be bound, or no thread or descriptor is left: what the operating system says.
    pub fn new(mut config: ChannelConfig) -> Result<Self, LaneError> {
        let system = |error: std::io::Error| LaneError::System(error.to_string());
        config.interfaces.sort_by_key(rank);
        if config.interfaces.len() > INTERFACES_MAX {
            let left_out = config.interfaces.split_off(INTERFACES_MAX);
            tracing::warn!(left_out = left_out.len(), used = INTERFACES_MAX, "not every interface is used for tensor lanes");
        }
        let listeners = tcp::listen(&config.interfaces).map_err(system)?;
        let addresses = listeners.iter().map(std::net::TcpListener::local_addr).collect::<Result<_, _>>().map_err(system)?;
        let registry = Arc::new(Registry::new());
        let counters = Arc::new(Counters::default());
        let bell = Arc::new(Bell::new().map_err(system)?);
        let door = Door {
            listeners,
            bell: Arc::clone(&bell),
            registry: Arc::clone(&registry),
            counters: Arc::clone(&counters),
            deadlines: config.deadlines,
        };
        let drawn = draw().map_err(LaneError::System)?;
        let id = u128::from_le_bytes(drawn[..16].try_into().expect("16 of 32 bytes"));
        std::thread::Builder::new().name("lane-door".into()).spawn(move || door.run()).map_err(system)?;
        Ok(Self { config, id, addresses, registry, counters, bell })
    }

    /// Where lanes can be connected to, best first.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What happened since the beginning.
    #[must_use]
    pub fn counters(&self) -> ChannelCounters {
        self.counters.read()
    }

    /// The endpoints of an offer, best first. A link's number means nothing on another machine and is left out.
    fn endpoints(&self) -> Vec<String> {
        let local = self.config.in_process.then_some(Endpoint::Local(self.id));
        let tcp = self.addresses.iter().map(|address| Endpoint::Tcp(SocketAddr::new(address.ip(), address.port())));
        local.into_iter().chain(tcp).map(|endpoint| endpoint.to_string()).collect()
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
}

impl Channels for TensorChannels {
    fn accept(&self, lane: LaneId, shape: LaneShape, waker: Arc<dyn Wake>) -> Result<(LaneOffer, Box<dyn LaneReceiver>), LaneError> {
        check_shape(shape).map_err(LaneError::System)?;
        let ring = Ring::new(arena::slots(shape)?);
        let secret = draw().map_err(LaneError::System)?;
        let until = Instant::now() + self.config.deadlines.unclaimed;
        let make = |generation| Arc::new(Inlet::new(lane, generation, secret, shape, ring, waker, until));
        let inlet = self.registry.accept(lane, make).map_err(LaneError::System)?;
        self.bell.ring(); // a new deadline
        let LaneShape { slot_bytes, slots } = shape;
        let offer = LaneOffer { lane, generation: inlet.generation, endpoints: self.endpoints(), secret, slot_bytes, slots };
        Ok((offer, Box::new(Receiver::new(inlet))))
    }

    fn connect(&self, offer: &LaneOffer, waker: Arc<dyn Wake>) -> Result<Box<dyn LaneSender>, LaneError> {
        let senseless = |why: String| LaneError::Down(format!("the other node's offer makes no sense: {why}"));
        let endpoints = endpoint::read(offer).map_err(senseless)?;
        if self.config.in_process && endpoints.contains(&Endpoint::Local(self.id)) {
            return self.connect_local(offer, waker);
        }
        let targets: Vec<SocketAddr> = endpoints
            .into_iter()
            .filter_map(|endpoint| match endpoint {
                Endpoint::Tcp(address) => Some(address),
                Endpoint::Local(_) => None,
            })
            .collect();
        if targets.is_empty() {
            return Err(senseless("it can be used in the other process only".into()));
        }
        let dialler = Dialler { targets, interfaces: self.config.interfaces.clone(), deadlines: self.config.deadlines };
        tcp::connect(offer, dialler, Arc::clone(&self.counters), waker)
    }
}

impl Drop for TensorChannels {
    fn drop(&mut self) {
        self.bell.end();
    }
}

/// Routable addresses first, then those of a cable, then our own machine's.
fn rank(interface: &Interface) -> u8 {
    match interface.address {
        address if address.is_loopback() => 2,
        address if is_link_local(address) => 1,
        _ => 0,
    }
}
