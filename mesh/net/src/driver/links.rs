//! A link's way: connection, control stream, hello, life, end.

use std::time::Duration;

use futures::StreamExt;
use libp2p::core::ConnectedPoint;
use libp2p::swarm::{ConnectionId, ListenError, SwarmEvent};
use libp2p::{Multiaddr, PeerId};
use mesh_core::ids::{NodeId, Time};
use mesh_core::membership::{Closing, Input, LinkId};
use mesh_core::ports::{CarrierEvent, Clock};
use mesh_core::wire::{self, Message};

use super::{Connection, Driver, NEWS_BATCH, Phase};
use crate::control;
use crate::dialer::Outcome;
use crate::greeting::First;
use crate::interfaces::place_of;
use crate::key::node_of;
use crate::link::{Beat, Link, MARK, News, Read};
use crate::swarm;

/// From the connection to the peer's hello.
const HELLO_MS: u64 = 5_000;
/// How long a goodbye may take to leave.
const FAREWELL_MS: u64 = 300;
/// Longest text that we repeat from a peer.
const TEXT_BYTES_MAX: usize = 400;

impl Driver {
    pub(super) fn on_connected(&mut self, id: ConnectionId, peer: PeerId, endpoint: &ConnectedPoint) {
        let now = self.clock.now();
        self.redials.remove(&id);
        let Some(node) = node_of(peer) else {
            self.swarm.close_connection(id);
            return;
        };
        if let Some(key) = self.dials.remove(&id) {
            self.dialer.ended(now, &key, Outcome::Connected(peer), rand::random());
            if self.core.is_up(node) {
                self.dialer.connected(peer);
            }
        }
        self.links_drawn += 1;
        let link = LinkId(self.links_drawn);
        let connection = Connection {
            id,
            peer,
            node,
            address: endpoint.get_remote_address().clone(),
            dialled: endpoint.is_dialer(),
            phase: Phase::Greeting(now.plus_ms(HELLO_MS)),
            link: None,
            record: None,
        };
        self.connections.insert(link, connection);
        self.links_of.insert(id, link);
    }

    pub(super) fn on_control(&mut self, event: control::Event) {
        let Some(&id) = self.links_of.get(&event.connection) else { return };
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match event.opened {
            control::Opened::Stream(stream) => {
                connection.link = Some(Link::start(id, connection.node, stream, self.beats.0.clone(), self.news.0.clone()));
                let mut me = self.me.borrow().clone();
                if me.addresses.is_empty() {
                    me.addresses = self.shared.addresses().iter().map(ToString::to_string).collect();
                }
                let hello = self.greeting.hello(me);
                self.beat(id, &hello);
            }
            control::Opened::Failed(why) => {
                let why = format!(
                    "it holds the mesh secret and speaks no control protocol ({why}): it is not a mesh node, or of another version"
                );
                self.refused(id, "control", &why);
                self.close(id);
            }
        }
    }

    pub(super) fn on_news_batch(&mut self, first: Read) {
        let mut next = Some(first);
        for _ in 0..NEWS_BATCH {
            while let Ok((id, node, beat)) = self.beats.1.try_recv() {
                self.on_news(id, node, beat);
            }
            self.settle_core();
            let Some((id, node, news)) = next.take().or_else(|| self.news.1.try_recv().ok()) else { return };
            self.on_news(id, node, news);
        }
    }

    pub(super) fn on_news(&mut self, id: LinkId, node: NodeId, news: News) {
        // Read from a link that is gone by now: told as read to the sender, so it counts, if the node is still up.
        if let News::Heard { class, stamp, message } = news {
            if self.core.is_up(node) && self.received.entry(node).or_default().is_new(class, stamp) {
                self.shared.deliver(node, message);
            }
            return;
        }
        let Some(connection) = self.connections.get(&id) else { return };
        if matches!(connection.phase, Phase::Leaving(_)) {
            if matches!(news, News::Ended { .. }) {
                self.close(id);
            }
            return;
        }
        match news {
            News::First(bytes) => self.on_first(id, &bytes),
            News::Beat(message) => self.on_beat(id, message),
            News::Heard { .. } => {}
            News::UnknownKind => self.shared.counters.unknown_kinds.add(),
            News::Ended { why, malformed } => {
                if malformed {
                    self.shared.counters.malformed_frames.add();
                    self.refused(id, "malformed", &format!("it sent bytes that are no messages ({why}): the connection was closed"));
                }
                self.end(id, false, why);
            }
        }
    }

    pub(super) fn on_first(&mut self, id: LinkId, bytes: &[u8]) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let node = connection.node;
        match self.greeting.judge(node, bytes) {
            First::Hello(record) => {
                let boot = record.boot;
                connection.record = Some(record);
                connection.phase = Phase::Known;
                self.inputs.push_back(Input::Knock { link: id, node, boot });
            }
            First::Goodbye(text) => self.on_goodbye(id, text),
            First::Refuse { theirs, ours } => {
                self.refused(id, "hello", &ours);
                self.farewell(id, &theirs);
            }
            First::Malformed(why) => {
                self.shared.counters.malformed_frames.add();
                self.refused(id, "malformed", &format!("its greeting cannot be read ({why}): it is broken, or of another version"));
                self.close(id);
            }
        }
    }

    pub(super) fn on_beat(&mut self, id: LinkId, message: Message) {
        match message {
            Message::Ping(nonce) => {
                self.beat(id, &Message::Pong(nonce));
                if nonce & MARK == 0 {
                    self.inputs.push_back(Input::Accepted(id));
                }
            }
            Message::Pong(nonce) if nonce & MARK != 0 => self.push(id, Beat::Marked(nonce)),
            Message::Pong(nonce) => self.inputs.push_back(Input::Echo { link: id, nonce }),
            Message::Goodbye(text) => self.on_goodbye(id, text),
            Message::Word(word) => {
                if let Some(from) = self.connections.get(&id).map(|connection| connection.node) {
                    self.inputs.push_back(Input::Heard { from, word });
                }
            }
            _ => {} // a hello said twice, or something else in the wrong class: harmless
        }
    }

    pub(super) fn on_goodbye(&mut self, id: LinkId, mut text: String) {
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        let Some(connection) = self.connections.get(&id) else { return };
        if !self.core.is_up(connection.node) {
            self.refused(id, "goodbye", &format!("it refused this node: {text}"));
        }
        self.end(id, true, text);
    }

    /// The link is over, by the other side or by the network.
    pub(super) fn end(&mut self, id: LinkId, on_purpose: bool, why: String) {
        if self.connections.get(&id).is_some_and(|connection| connection.phase == Phase::Known) {
            self.inputs.push_back(Input::Ended { link: id, on_purpose, why });
        }
        self.close(id);
    }

    /// Forgets a link and closes its connection.
    pub(super) fn close(&mut self, id: LinkId) {
        if let Some(mut connection) = self.connections.remove(&id) {
            if self.in_use.get(&connection.node) == Some(&id)
                && let Some(mail) = connection.link.as_mut().and_then(Link::take_mail)
            {
                self.in_between.insert(connection.node, mail);
            }
            self.links_of.remove(&connection.id);
            self.swarm.close_connection(connection.id);
        }
    }

    pub(super) fn close_by_core(&mut self, id: LinkId, why: Closing) {
        tracing::debug!(link = id.0, ?why, "closing a link");
        match why {
            Closing::Clone => {
                let Some(connection) = self.connections.get(&id) else { return };
                let node = connection.node.short();
                let elder = self.connections.values().find(|other| other.node == connection.node && other.id != connection.id);
                let elder = elder.map(|other| other.address.to_string()).unwrap_or_default();
                self.refused(
                    id,
                    "clone",
                    &format!("another running node, at {elder}, has the same key ({node}): one of the two is a copy"),
                );
                self.farewell(
                    id,
                    &format!(
                        "your key ({node}) is in use by a running node at {elder}: this one is a copy. Remove node.key from its state \
                         directory to become a node of its own, or stop the other one"
                    ),
                );
            }
            Closing::Dropped => self.farewell(id, "disconnected"),
            Closing::Duplicate | Closing::Silent | Closing::Ungreeted => self.close(id),
        }
    }

    /// Tells our operator why a node is not let in, and lets the dialer pause.
    pub(super) fn refused(&mut self, id: LinkId, kind: &'static str, why: &str) {
        let Some(connection) = self.connections.get(&id) else { return };
        self.shared.counters.refused_hellos.add();
        let (peer, address, now) = (connection.peer, connection.address.to_string(), self.clock.now());
        self.dialer.unwelcome(now, peer, rand::random());
        // An incoming connection has another port each time: one notice for a node, whatever its address.
        if self.notices.may_tell(now, &peer.to_string(), kind) {
            self.notify(address, why.to_owned());
        }
    }

    pub(super) fn notify(&self, address: String, why: String) {
        tracing::debug!(address, why, "refused"); // the event says it once, to whoever shows notices
        self.shared.tell(CarrierEvent::Refused { address, why });
    }

    pub(super) fn farewell(&mut self, id: LinkId, text: &str) {
        let deadline = self.clock.now().plus_ms(FAREWELL_MS);
        let Ok(bytes) = wire::encode(&Message::Goodbye(text.to_owned())) else { return };
        self.push(id, Beat::Farewell(bytes));
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.phase = Phase::Leaving(deadline);
        }
    }

    pub(super) fn close_overdue(&mut self, now: Time) {
        let overdue = |connection: &Connection| match connection.phase {
            Phase::Greeting(deadline) | Phase::Leaving(deadline) => deadline <= now,
            Phase::Known => false,
        };
        let ids: Vec<LinkId> = self.connections.iter().filter(|(_, connection)| overdue(connection)).map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.close(id));
    }

    pub(super) async fn say_goodbye(&mut self) {
        self.shared.outboxes.clear();
        #[cfg(test)]
        if self.shared.killed.load(std::sync::atomic::Ordering::Relaxed) {
            return;
        }
        let ids: Vec<LinkId> = self.connections.keys().copied().collect();
        ids.iter().for_each(|id| self.farewell(*id, "it was stopped"));
        let deadline = tokio::time::sleep(Duration::from_millis(FAREWELL_MS));
        tokio::pin!(deadline);
        while !self.connections.is_empty() {
            tokio::select! {
                () = &mut deadline => break,
                event = self.swarm.select_next_some() => if let SwarmEvent::ConnectionClosed { connection_id, .. } = event {
                    self.on_closed(connection_id, "stopped".to_owned());
                },
                Some(_) = self.beats.1.recv() => {}
                Some((id, _, news)) = self.news.1.recv() => if matches!(news, News::Ended { .. }) { self.close(id) },
            }
        }
    }

    pub(super) fn on_incoming_error(&mut self, now: Time, from: &Multiaddr, error: &ListenError) {
        if !swarm::is_stranger(error) {
            tracing::debug!(%from, %error, "an incoming connection came to nothing");
            return;
        }
        self.shared.counters.strangers.add();
        let Some((ip, _)) = place_of(from) else { return };
        if self.notices.may_tell(now, &ip.to_string(), "stranger") {
            let why = "a connection from there does not hold this mesh's secret: a node of another mesh (invite it with this mesh's token), \
                       or no mesh node at all";
            self.notify(ip.to_string(), why.to_owned());
        }
    }
}
