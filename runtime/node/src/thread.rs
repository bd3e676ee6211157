//! The node's own thread: everything is made here, in order, and taken down in the reverse one.
//!
//! Start: settings → state directory (locked) → key → mesh identity → incarnation on disk → channels → carrier → actors.
//! Stop: streams end → actors stop → engines are joined → channels close → the carrier says goodbye → the thread ends.

use std::sync::Arc;
use std::thread::JoinHandle;

use mesh_actors::handle::{Command, NodeHandle};
use mesh_actors::node::{NodeActor, NodeParts};
use mesh_actors::router::Router;
use mesh_actors::workers::Threads;
use mesh_channel::{ChannelConfig, TensorChannels};
use mesh_core::ids::{BootId, NodeId};
use mesh_core::ports::{Carrier, CarrierEvent, Clock, Models};
use mesh_core::records::{NodeRecord, NodeState};
use mesh_models::library::Library;
use mesh_net::{MeshSecret, Net, NetConfig, NodeKey, SystemClock, SystemEntropy, Token};
use tokio::sync::mpsc;

use crate::capacity;
use crate::mesh::JoinError;
use crate::settings::Settings;
use crate::state::{MeshIdentity, StateDir};

/// Carrier events that wait for the node actor at most. Beyond it the carrier drops records, which digests repair.
const EVENTS_MAX: usize = 4096;

/// A node that runs.
pub(crate) struct NodeThread {
    pub handle: NodeHandle,
    pub library: Arc<Library>,
    pub me: NodeId,
    pub incarnation: u64,
    pub token: String,
    pub listen: Vec<String>,
    pub thread: JoinHandle<()>,
}

/// Starts a node. Blocks until it listens.
pub(crate) fn start(settings: Settings) -> Result<NodeThread, JoinError> {
    settings.check()?;
    let invitation = match settings.token.as_deref() {
        None => None,
        Some(token) => Some(token.parse::<Token>().map_err(|error| JoinError::Token(error.to_string()))?),
    };
    let state = StateDir::open(&settings.state_dir)?;
    let identity = identity(&state, &settings, invitation.as_ref())?;
    let secret = MeshSecret::from_hex(&identity.secret).map_err(|error| JoinError::Token(format!("the secret in mesh.json: {error}")))?;
    let key = NodeKey::load_or_create(&state.key_path()).map_err(|error| JoinError::Net(error.to_string()))?;
    let incarnation = state.next_incarnation(0)?;
    let threads = settings.threads.unwrap_or_else(capacity::threads_default);
    let memory = settings.memory_bytes.unwrap_or_else(capacity::memory_default);
    let library = Arc::new(Library::new(settings.model_dirs.clone(), usize::from(threads)).with_contents_in(state.contents_path()));
    let me = NodeRecord {
        node: key.node(),
        name: settings.name.clone(),
        boot: BootId(rand::random()),
        incarnation,
        version: 0,
        state: NodeState::Up,
        alive: SystemClock.wall(),
        in_touch: None,
        capacity: capacity::measure(memory, threads),
        numerics_class: library.numerics_class(),
        addresses: Vec::new(),
        models: library.list(),
        shards: Vec::new(),
        interfaces: Vec::new(),
        paths: Vec::new(),
    };

    let (handle, commands) = NodeHandle::new();
    let router = Arc::new(Router::new());
    let (events, queue) = mpsc::channel::<CarrierEvent>(EVENTS_MAX);
    let invited = invitation.into_iter().flat_map(|invitation| invitation.addresses);
    let net_config = NetConfig {
        listen: settings.listen.clone(),
        peers: settings.peers.iter().cloned().chain(invited).collect(),
        mdns: settings.mdns,
        ..NetConfig::new(key, identity.name.clone(), secret, me.clone())
    };
    let route = Arc::clone(&router);
    let net = Net::start(
        net_config,
        move |event| {
            // A node actor that has stopped needs none.
            if let Err(mpsc::error::TrySendError::Full(_)) = events.try_send(event) {
                tracing::warn!("the node has {EVENTS_MAX} events waiting; one was dropped");
            }
        },
        move |from, message| route.route(from, message),
    )
    .map_err(|error| JoinError::Net(error.to_string()))?;
    let net = Arc::new(net);
    let listen = net.listen_addresses();
    let me = NodeRecord { addresses: listen.clone(), ..me };
    let token = Token { mesh: identity.name, secret, addresses: listen.clone() }.to_string();
    // Tensor channels listen where the control connections do: on loopback alone if those do.
    let channels = TensorChannels::new(ChannelConfig { interfaces: net.interfaces(), ..ChannelConfig::loopback() })
        .map_err(|error| JoinError::Channels(format!("cannot set up tensor channels: {error}")))?;
    let id = me.node;
    let parts = NodeParts {
        me,
        clock: Arc::new(SystemClock) as Arc<dyn Clock>,
        entropy: Arc::new(SystemEntropy),
        store: Arc::new(state.store()),
        carrier: Arc::clone(&net) as _,
        channels: Arc::new(channels),
        models: Arc::clone(&library) as Arc<dyn Models>,
        router,
        workers: Arc::new(Threads),
        threads,
        lifetimes: settings.lifetimes,
        stage_limits: mesh_core::stage::Limits::default(),
        stream_limits: mesh_core::stream::Limits::default(),
    };
    let (reading, watch) = (Arc::clone(&library), handle.clone());
    let thread = std::thread::Builder::new()
        .name("mesh-node".to_owned())
        .spawn(move || {
            run(parts, &watch, queue, commands);
            reading.stop_reading();
            net.stop();
            drop(state); // the lock goes last: whoever takes it finds everything else free
        })
        .map_err(JoinError::Thread)?;
    Ok(NodeThread { handle, library, me: id, incarnation, token, listen, thread })
}

/// The actix System of this node. Ends when the node actor has stopped.
fn run(parts: NodeParts, handle: &NodeHandle, events: mpsc::Receiver<CarrierEvent>, commands: mpsc::Receiver<Command>) {
    let system = actix::System::with_tokio_rt(|| {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime needs a few file descriptors, no more")
    });
    system.block_on(async move {
        let node = NodeActor::launch(parts, events, commands);
        handle.ended().await;
        drop(node);
    });
}

/// The mesh this node belongs to: the token's, else the one on disk, else a new one.
fn identity(state: &StateDir, settings: &Settings, invitation: Option<&Token>) -> Result<MeshIdentity, JoinError> {
    let wanted = match (invitation, state.identity()?) {
        (Some(invitation), _) => MeshIdentity { name: invitation.mesh.clone(), secret: invitation.secret.to_hex() },
        (None, Some(known)) => known,
        (None, None) => MeshIdentity { name: settings.mesh.clone(), secret: MeshSecret::draw().to_hex() },
    };
    state.adopt(&wanted)?;
    Ok(wanted)
}
