//! The node's links: tells the core what the system, the carrier and the channels say, and does what it wants.
//!
//! Interfaces are looked at every [`LOOK_MS`]: a cable that is plugged in shall be used in seconds (F4), one that is pulled
//! shall be avoided. Measuring happens on the channels' own threads.

use std::collections::BTreeMap;

use actix::prelude::*;
use mesh_core::deployments::{self, Health};
use mesh_core::ids::{BootId, NodeId, Time};
use mesh_core::links::{Effect, Input, Interface, LinkMessage, LinkName, Links, NotNow, Path, SeenLink};
use mesh_core::wire::Message;
use tokio::sync::oneshot;

use super::NodeActor;

/// How often this machine's interfaces are looked at.
const LOOK_MS: u64 = 2_000;

/// What the node actor keeps of links.
pub(super) struct LinkDesk {
    core: Links,
    looked: Option<Time>,
    addresses: Vec<String>,
    interfaces: Vec<Interface>,
    paths: Vec<Path>,
    /// Lanes that broke on each link, as counted when last looked at.
    broken: BTreeMap<(NodeId, LinkName), u64>,
    busy: bool,
}

impl LinkDesk {
    pub fn new(now: Time, me: NodeId, drawn: u128, addresses: Vec<String>) -> Self {
        let core = Links::new(now, me, drawn as u64);
        let (interfaces, paths, broken) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { core, looked: None, addresses, interfaces, paths, broken, busy: false }
    }

    pub fn wake_at(&self) -> Option<Time> {
        self.core.wake_at()
    }
}

impl NodeActor {
    /// A peer said something about links.
    pub(super) fn heard_of_links(&mut self, from: NodeId, message: LinkMessage, ctx: &mut Context<Self>) {
        self.step_links(Input::Heard { from, message }, ctx);
        self.tell_of_network(ctx);
        self.arm(ctx);
    }

    /// At each tick: what has changed on this machine, and what is due.
    pub(super) fn look_at_links(&mut self, ctx: &mut Context<Self>) {
        let now = self.parts.clock.now();
        if self.links.looked.is_none_or(|at| now.ms_since(at) >= LOOK_MS) {
            self.links.looked = Some(now);
            self.look_at_interfaces(ctx);
        }
        let busy = self.shards.are_busy();
        if busy != self.links.busy {
            self.links.busy = busy;
            self.step_links(Input::Busy(busy), ctx);
        }
        for used in self.parts.channels.links_in_use() {
            let key = (used.peer, used.link);
            let before = self.links.broken.insert(key.clone(), used.broken).unwrap_or(0);
            if used.broken > before {
                self.step_links(Input::Broke { peer: key.0, link: key.1 }, ctx);
            }
        }
        let peers: Vec<NodeId> = self.links.core.peers().collect();
        self.links.broken.retain(|(peer, _), _| peers.contains(peer));
        self.meet_for_links(ctx);
        self.step_links(Input::Elapsed, ctx);
        self.tell_of_network(ctx);
    }

    fn look_at_interfaces(&mut self, ctx: &mut Context<Self>) {
        let interfaces = self.parts.carrier.interfaces();
        if interfaces.is_empty() {
            return; // a carrier without any, or a system that does not tell just now: loopback is always there
        }
        self.parts.channels.renew(&interfaces); // also what could not be bound the last time
        if interfaces != self.links.interfaces {
            self.links.interfaces.clone_from(&interfaces);
            self.step_links(Input::Mine(interfaces), ctx);
        }
        if let Some(addresses) = self.parts.carrier.addresses() {
            self.links.addresses = addresses;
        }
    }

    /// Tells the core who is up, and with which interfaces.
    pub(super) fn meet_for_links(&mut self, ctx: &mut Context<Self>) {
        let me = self.parts.me.node;
        let is_up = |node: NodeId| matches!(self.core.health(node), Health::Up | Health::Suspect);
        let gone: Vec<NodeId> = self.links.core.peers().filter(|node| !is_up(*node)).collect();
        let up = self.core.directory().nodes().filter(|record| record.node != me && is_up(record.node));
        let news = up.filter(|record| !self.links.core.knows(record.node, record.boot, &record.interfaces));
        let met: Vec<(NodeId, BootId, Vec<Interface>)> = news.map(|record| (record.node, record.boot, record.interfaces.clone())).collect();
        for node in gone {
            self.step_links(Input::Gone(node), ctx);
        }
        for (node, boot, interfaces) in met {
            self.step_links(Input::Met { node, boot, interfaces }, ctx);
        }
    }

    /// Puts what has changed into this node's record.
    fn tell_of_network(&mut self, ctx: &mut Context<Self>) {
        let me = self.core.me();
        let LinkDesk { addresses, interfaces, paths, .. } = &self.links;
        if (&me.addresses, &me.interfaces, &me.paths) != (addresses, interfaces, paths) {
            let (addresses, interfaces, paths) = (addresses.clone(), interfaces.clone(), paths.clone());
            self.step(deployments::Input::MyNetwork { addresses, interfaces, paths }, ctx);
        }
    }

    fn step_links(&mut self, input: Input, ctx: &mut Context<Self>) {
        let mut effects = Vec::new();
        self.links.core.step(self.parts.clock.now(), input, &mut effects);
        for effect in effects {
            match effect {
                Effect::Send { to, message } => self.say_of_links(to, message),
                Effect::Echo { to, ticket, ways } => {
                    let offer = self.parts.channels.echo(to, &ways).map_err(|error| {
                        tracing::debug!(%error, "a link cannot be measured now");
                        NotNow::Unknown
                    });
                    self.say_of_links(to, LinkMessage::Answer { ticket, offer });
                }
                Effect::Measure { to, ticket, offer, ways, rate } => {
                    let (tell, told) = oneshot::channel();
                    self.parts.channels.measure(to, &offer, ways, rate, Box::new(move |outcome| drop(tell.send(outcome))));
                    let done = told.into_actor(self).map(move |outcome, actor, ctx| {
                        let outcome = outcome.unwrap_or_else(|_| Err("the measurement was given up".to_owned()));
                        actor.step_links(Input::Measured { ticket, outcome }, ctx);
                        actor.tell_of_network(ctx);
                        actor.arm(ctx);
                    });
                    ctx.spawn(done);
                }
                Effect::Prefer { peer, ways } => self.parts.channels.prefer(peer, ways),
                Effect::Tell(paths) => self.links.paths = paths,
                Effect::Notice(notice) => self.notice(notice),
            }
        }
    }

    fn say_of_links(&self, to: NodeId, message: LinkMessage) {
        // Lost is late: asks are asked again, tables repeated.
        if let Err(error) = self.parts.carrier.send(to, Message::Links(message)) {
            tracing::debug!(%error, "a message about links was not sent");
        }
    }

    /// Every link, with the lanes on it.
    pub(super) fn seen_links(&self) -> Vec<SeenLink> {
        let mut links = self.links.core.seen(self.parts.clock.now());
        for used in self.parts.channels.links_in_use() {
            if let Some(link) = links.iter_mut().find(|link| link.peer == used.peer && link.link == used.link) {
                link.lanes = used.lanes;
            }
        }
        links
    }
}
