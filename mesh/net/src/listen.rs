//! Listening: addresses become sockets with known ports, or errors in words.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use futures::StreamExt;
use libp2p::Swarm;
use libp2p::core::transport::ListenerId;
use libp2p::swarm::SwarmEvent;

use crate::interfaces::{address_at, place_of};
use crate::net::{NetError, Shared};
use crate::swarm::Behaviour;

/// How long to wait for the first address of each listener.
const LISTEN_MS: u64 = 3_000;

/// Binds every address and waits until each listener has reported its port.
pub async fn listen(swarm: &mut Swarm<Behaviour>, addresses: &[String], shared: &Shared) -> Result<(), NetError> {
    let mut waiting: HashMap<ListenerId, (&String, SocketAddr)> = HashMap::new();
    for text in addresses {
        let wrong = |why: String| NetError::Listen { address: text.clone(), why };
        let socket = text.parse().ok().or_else(|| text.parse().ok().as_ref().and_then(place_of).map(SocketAddr::from));
        let socket: SocketAddr =
            socket.ok_or_else(|| wrong("it is neither IP:PORT nor a multiaddress such as /ip4/0.0.0.0/tcp/0".to_owned()))?;
        check_free(socket).map_err(|error| wrong(error.to_string()))?;
        let listener = swarm.listen_on(address_at(socket.ip(), socket.port())).map_err(|error| wrong(error.to_string()))?;
        waiting.insert(listener, (text, socket));
    }
    let mut bound = Vec::new();
    let deadline = tokio::time::sleep(Duration::from_millis(LISTEN_MS));
    tokio::pin!(deadline);
    while let Some((text, _)) = waiting.values().next().copied() {
        let failed = |why: String| NetError::Listen { address: text.clone(), why };
        tokio::select! {
            () = &mut deadline => return Err(failed("no interface has such an address".to_owned())),
            event = swarm.select_next_some() => match event {
                SwarmEvent::NewListenAddr { listener_id, address } => {
                    if let (Some((_, socket)), Some((_, port))) = (waiting.remove(&listener_id), place_of(&address)) {
                        bound.push(SocketAddr::new(socket.ip(), port));
                    }
                }
                SwarmEvent::ListenerClosed { reason: Err(error), .. } => return Err(failed(error.to_string())),
                _ => {}
            },
        }
    }
    let _ = shared.bound.set(bound);
    Ok(())
}

/// libp2p listens with `SO_REUSEPORT`: a second node on a port would silently get half of the first one's connections. So a
/// port that was asked for is bound once without.
fn check_free(socket: SocketAddr) -> std::io::Result<()> {
    if socket.port() == 0 { Ok(()) } else { std::net::TcpListener::bind(socket).map(drop) }
}
