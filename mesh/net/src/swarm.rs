//! libp2p put together: TCP, the mesh secret, noise, yamux; limits, control streams, gossip, multicast DNS.

use std::error::Error;
use std::io;
use std::time::Duration;

use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::timeout::TransportTimeout;
use libp2p::core::upgrade::Version;
use libp2p::gossipsub::{self, IdentTopic, MessageAuthenticity, ValidationMode};
use libp2p::identity::Keypair;
use libp2p::pnet::PreSharedKey;
use libp2p::swarm::behaviour::toggle::Toggle;
use libp2p::swarm::{DialError, NetworkBehaviour};
use libp2p::{Multiaddr, PeerId, Swarm, Transport, TransportError, connection_limits, noise, tcp, yamux};

use crate::admit::{AdmitError, admit};
use crate::control;
use crate::secret::MeshSecret;

/// Longest gossiped record, in bytes; longer ones go by digest. Gossip goes to everybody several times, so it stays small.
pub const GOSSIP_BYTES_MAX: usize = 64 << 10;

/// From the first byte of a connection to the end of its handshakes.
const HANDSHAKE_MS: u64 = 5_000;

/// Half-open incoming connections. A stranger can hold one for three seconds.
const PENDING_INCOMING_MAX: u32 = 64;
const PENDING_OUTGOING_MAX: u32 = 256;
const CONNECTIONS_MAX: u32 = 1_024;
/// A connection to a frozen peer closes only when the peer thaws, so a few may pile up.
const CONNECTIONS_PER_PEER_MAX: u32 = 16;

#[cfg(feature = "mdns")]
type Discovery = libp2p::mdns::tokio::Behaviour;
#[cfg(not(feature = "mdns"))]
type Discovery = libp2p::swarm::dummy::Behaviour;

/// Everything that runs on a connection.
#[derive(NetworkBehaviour)]
pub struct Behaviour {
    limits: connection_limits::Behaviour,
    control: control::Behaviour,
    pub gossip: gossipsub::Behaviour,
    discovery: Toggle<Discovery>,
}

/// The swarm cannot be built. Says which part.
#[derive(Debug, thiserror::Error)]
#[error("libp2p's {part} cannot be set up: {why}")]
pub struct SetupError {
    /// The part.
    pub part: &'static str,
    /// What it said.
    pub why: String,
}

fn failed(part: &'static str) -> impl Fn(&dyn std::fmt::Display) -> SetupError {
    move |why| SetupError { part, why: why.to_string() }
}

/// The topic of a mesh: other names and versions never hear each other.
pub fn topic(protocol: u32, mesh: &str) -> IdentTopic {
    IdentTopic::new(format!("mesh/{protocol}/{mesh}"))
}

/// Must be called inside the runtime that will drive it.
///
/// # Errors
/// A part refused its settings, or the system refused a socket. Multicast DNS that does not start is only logged.
pub fn build(pair: &Keypair, secret: MeshSecret, discover: bool, topic: &IdentTopic) -> Result<Swarm<Behaviour>, SetupError> {
    let key = PreSharedKey::new(secret.to_bytes());
    let transport = tcp::tokio::Transport::new(tcp::Config::new().nodelay(true))
        .and_then(move |socket, _| admit(socket, key))
        .map_err(|error| error.either(AdmitError::Io, |error| error))
        .upgrade(Version::V1)
        .authenticate(noise::Config::new(pair).map_err(|error| failed("noise")(&error))?)
        .multiplex(yamux::Config::default())
        // libp2p nests one `Either` a layer, whose `source` hides what it holds: flattened, so that `find` sees our own error.
        .map_err(|error| error.either(|error| error.either(|admit| admit, other_layer), other_layer))
        .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));
    let transport = TransportTimeout::new(transport, Duration::from_millis(HANDSHAKE_MS)).boxed();
    let limits = connection_limits::ConnectionLimits::default()
        .with_max_pending_incoming(Some(PENDING_INCOMING_MAX))
        .with_max_pending_outgoing(Some(PENDING_OUTGOING_MAX))
        .with_max_established(Some(CONNECTIONS_MAX))
        .with_max_established_per_peer(Some(CONNECTIONS_PER_PEER_MAX));
    let settings = gossipsub::ConfigBuilder::default()
        .validation_mode(ValidationMode::Strict)
        .max_transmit_size(GOSSIP_BYTES_MAX)
        .build()
        .map_err(|error| failed("gossip")(&error))?;
    let mut gossip =
        gossipsub::Behaviour::new(MessageAuthenticity::Signed(pair.clone()), settings).map_err(|error| failed("gossip")(&error))?;
    gossip.subscribe(topic).map_err(|error| failed("gossip")(&error))?;
    let me = pair.public().to_peer_id();
    let behaviour = Behaviour {
        limits: connection_limits::Behaviour::new(limits),
        control: control::Behaviour::default(),
        gossip,
        discovery: Toggle::from(discover.then(|| discovery(me)).flatten()),
    };
    let settings = libp2p::swarm::Config::with_tokio_executor();
    Ok(Swarm::new(transport, behaviour, me, settings))
}

fn other_layer<E: Error + Send + Sync + 'static>(error: E) -> AdmitError {
    AdmitError::Io(io::Error::other(error))
}

#[cfg(feature = "mdns")]
fn discovery(me: PeerId) -> Option<Discovery> {
    // Asks again every 30 s: a lost packet must not cost the default's five minutes. Entries live four times as long.
    let config =
        libp2p::mdns::Config { ttl: Duration::from_secs(120), query_interval: Duration::from_secs(30), ..libp2p::mdns::Config::default() };
    libp2p::mdns::tokio::Behaviour::new(config, me)
        .map_err(|error| tracing::warn!(%error, "multicast DNS does not start: peers are found by address only"))
        .ok()
}

#[cfg(not(feature = "mdns"))]
fn discovery(_: PeerId) -> Option<Discovery> {
    None
}

/// Why a dial came to nothing, as far as what to do next depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Somebody's machine said: nobody listens there. Or somebody else does.
    Refused,
    /// The address leads to this key: to ourselves, or to a clone.
    OwnKey(Multiaddr),
    /// It does not hold our secret.
    Stranger,
    /// No answer, no route, or anything else that may pass.
    Other(String),
}

/// Reads libp2p's nested errors.
pub fn failure_of(error: &DialError) -> Failure {
    match error {
        DialError::LocalPeerId { address } => Failure::OwnKey(address.clone()),
        DialError::WrongPeerId { .. } => Failure::Refused,
        DialError::Transport(tries) => failure_of_tries(tries),
        other => Failure::Other(other.to_string()),
    }
}

/// The most telling of several tries: a stranger; then "refused", if no other try may still mean that it is there.
fn failure_of_tries(tries: &[(Multiaddr, TransportError<io::Error>)]) -> Failure {
    let (mut refused, mut no_way, mut other) = (false, None, None);
    for (_, error) in tries {
        let TransportError::Other(error) = error else {
            no_way = Some("the address is of an unknown kind".to_owned());
            continue;
        };
        if matches!(find::<AdmitError>(error), Some(AdmitError::Stranger)) {
            return Failure::Stranger;
        }
        match find_io(error) {
            Some(io::ErrorKind::ConnectionRefused) => refused = true,
            // A way is missing here; that says nothing about the node.
            Some(io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable | io::ErrorKind::AddrNotAvailable) => {
                no_way = Some(innermost(error));
            }
            _ => other = Some(innermost(error)),
        }
    }
    match other {
        None if refused => Failure::Refused,
        other => Failure::Other(other.or(no_way).unwrap_or_else(|| "no address".to_owned())),
    }
}

/// Whether an incoming connection failed because the other side does not hold our secret.
pub fn is_stranger(error: &libp2p::swarm::ListenError) -> bool {
    matches!(error, libp2p::swarm::ListenError::Transport(TransportError::Other(error))
        if matches!(find::<AdmitError>(error), Some(AdmitError::Stranger)))
}

/// The first error of a type in a chain. `io::Error` hides what it wraps from `source`, so it is opened by hand.
fn find<'a, T: Error + 'static>(outermost: &'a (dyn Error + 'static)) -> Option<&'a T> {
    chain(outermost).find_map(|error| error.downcast_ref::<T>())
}

fn find_io(outermost: &(dyn Error + 'static)) -> Option<io::ErrorKind> {
    chain(outermost).filter_map(|error| error.downcast_ref::<io::Error>()).map(io::Error::kind).find(|kind| *kind != io::ErrorKind::Other)
}

fn innermost(outermost: &(dyn Error + 'static)) -> String {
    chain(outermost).last().map(ToString::to_string).unwrap_or_default()
}

fn chain<'a>(outermost: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(outermost), |error| inside(*error))
}

fn inside<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(inner) => Some(inner),
        None => error.source(),
    }
}
