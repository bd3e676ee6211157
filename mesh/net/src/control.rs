//! One control stream on each connection, as a small libp2p behaviour: whoever dialled opens it.
//!
//! Why not libp2p-stream: its streams come without the id of their connection, so two connections to one peer could not be
//! told apart, and it drops inbound streams when two arrive at once.

use std::collections::VecDeque;
use std::task::{Context, Poll};

use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::core::upgrade::ReadyUpgrade;
use libp2p::swarm::handler::{ConnectionEvent, ConnectionHandler, FullyNegotiatedInbound, FullyNegotiatedOutbound};
use libp2p::swarm::{
    ConnectionDenied, ConnectionHandlerEvent, ConnectionId, FromSwarm, NetworkBehaviour, SubstreamProtocol, THandler, THandlerInEvent,
    THandlerOutEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId, Stream, StreamProtocol};

/// The name never changes: versions are compared in the hello, where a refusal can be put in words.
const PROTOCOL: StreamProtocol = StreamProtocol::new("/mesh/control/1");

/// What became of a connection's control stream.
#[derive(Debug)]
pub enum Opened {
    /// Here it is.
    Stream(Stream),
    /// The other side speaks no control protocol.
    Failed(String),
}

/// A control stream was opened, or could not be.
#[derive(Debug)]
pub struct Event {
    /// On which connection.
    pub connection: ConnectionId,
    /// The stream.
    pub opened: Opened,
}

/// See the module's head.
#[derive(Default)]
pub struct Behaviour {
    events: VecDeque<Event>,
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = Handler;
    type ToSwarm = Event;

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(Handler::new(false))
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(Handler::new(true))
    }

    fn on_swarm_event(&mut self, _: FromSwarm) {}

    fn on_connection_handler_event(&mut self, _: PeerId, connection: ConnectionId, opened: THandlerOutEvent<Self>) {
        self.events.push_back(Event { connection, opened });
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        // The swarm polls again after it handed us a handler's event, so no waker is kept.
        self.events.pop_front().map_or(Poll::Pending, |event| Poll::Ready(ToSwarm::GenerateEvent(event)))
    }
}

/// One connection's part: opens the stream, or takes the first one that comes; further ones are dropped.
pub struct Handler {
    dialled: bool,
    asked: bool,
    given: bool,
    opened: Option<Opened>,
}

impl Handler {
    fn new(dialled: bool) -> Self {
        Self { dialled, asked: false, given: false, opened: None }
    }

    fn give(&mut self, opened: Opened) {
        if !std::mem::replace(&mut self.given, true) {
            self.opened = Some(opened);
        }
    }
}

impl ConnectionHandler for Handler {
    type FromBehaviour = std::convert::Infallible;
    type ToBehaviour = Opened;
    type InboundProtocol = ReadyUpgrade<StreamProtocol>;
    type OutboundProtocol = ReadyUpgrade<StreamProtocol>;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = ();

    fn listen_protocol(&self) -> SubstreamProtocol<Self::InboundProtocol> {
        SubstreamProtocol::new(ReadyUpgrade::new(PROTOCOL), ())
    }

    /// The driver closes connections, with its own deadlines; idleness is no reason.
    fn connection_keep_alive(&self) -> bool {
        true
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ConnectionHandlerEvent<Self::OutboundProtocol, (), Self::ToBehaviour>> {
        if let Some(opened) = self.opened.take() {
            return Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour(opened));
        }
        if self.dialled && !std::mem::replace(&mut self.asked, true) {
            let protocol = SubstreamProtocol::new(ReadyUpgrade::new(PROTOCOL), ());
            return Poll::Ready(ConnectionHandlerEvent::OutboundSubstreamRequest { protocol });
        }
        Poll::Pending
    }

    fn on_behaviour_event(&mut self, event: Self::FromBehaviour) {
        match event {}
    }

    fn on_connection_event(&mut self, event: ConnectionEvent<Self::InboundProtocol, Self::OutboundProtocol>) {
        match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound { protocol, .. }) if !self.dialled => {
                self.give(Opened::Stream(protocol));
            }
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound { protocol, .. }) => self.give(Opened::Stream(protocol)),
            ConnectionEvent::DialUpgradeError(failed) => self.give(Opened::Failed(failed.error.to_string())),
            _ => {}
        }
    }
}
