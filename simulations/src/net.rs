//! What lies between nodes: links, control connections, tensor lanes, and the events that are still to come.
//!
//! It belongs to the world, not to a node: a kernel keeps sockets of a frozen process open and tells the others when one is
//! killed. Nothing here decides; it delays, loses and breaks as the scenario says.

pub mod lanes;
pub mod links;
pub mod queue;
pub mod wires;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use mesh_actors::router::Router;
use mesh_core::ids::NodeId;
use mesh_core::ports::{CarrierEvent, Wake};
use mesh_core::wire::Message;
use tokio::sync::mpsc;

use crate::dice::{Dice, Seed};
use crate::happening::{Happening, Trace};
use lanes::Lane;
use links::Links;
use queue::{Event, Queue};
use wires::{Arrival, Dial, Wire};

/// One life of a node, as the world knows it.
pub struct Life {
    /// Which machine.
    pub place: usize,
    /// Under which key.
    pub node: NodeId,
    /// Its process is there.
    pub alive: bool,
    /// It is stopped.
    pub frozen: bool,
    /// The fast way for its messages.
    pub router: Arc<Router>,
    /// Its ear.
    pub events: mpsc::Sender<CarrierEvent>,
}

/// Something to be handed to a node once nobody holds the world.
#[expect(clippy::large_enum_variant, reason = "they are moved one by one")]
pub enum Delivery {
    /// A control message: the router first, then the ear.
    Message {
        /// To which life.
        life: usize,
        /// From whom.
        from: NodeId,
        /// What.
        message: Message,
    },
    /// Something that the carrier tells.
    Event {
        /// To which life.
        life: usize,
        /// What.
        event: CarrierEvent,
    },
    /// A shard has something to look at.
    Wake(Arc<dyn Wake>),
}

/// Everything between nodes.
pub struct Net {
    /// Nanoseconds since the world began.
    pub now: u64,
    /// What is still to come.
    pub queue: Queue,
    /// What happened.
    pub trace: Trace,
    /// What is between which machines.
    pub links: Links,
    /// Every life so far.
    pub lives: Vec<Life>,
    /// The life that each machine has now.
    pub running: Vec<Option<usize>>,
    /// Control connections.
    pub wires: BTreeMap<u64, Wire>,
    /// Dials under way.
    pub dials: BTreeMap<u64, Dial>,
    /// Tensor lanes.
    pub lanes: BTreeMap<u64, Lane>,
    /// What carriers hear, to be handed to them by whoever holds them.
    pub arrivals: VecDeque<(usize, Arrival)>,
    /// What is to be handed over.
    pub deliveries: VecDeque<Delivery>,
    /// Control bytes that each machine has sent.
    pub control_bytes: Vec<u64>,
    /// Nodes held dead by nodes that could hear them.
    pub false_deaths: u64,
    /// Whether messages are traced.
    pub chatty: bool,
    drawn: u64,
    wire_dice: Dice,
    lane_dice: Dice,
}

impl Net {
    /// Nothing is connected yet.
    #[must_use]
    pub fn new(seed: Seed, links: Links, trace: Trace, chatty: bool) -> Self {
        let places = links.places();
        Self {
            now: 0,
            queue: Queue::default(),
            trace,
            links,
            lives: Vec::new(),
            running: vec![None; places],
            wires: BTreeMap::new(),
            dials: BTreeMap::new(),
            lanes: BTreeMap::new(),
            arrivals: VecDeque::new(),
            deliveries: VecDeque::new(),
            control_bytes: vec![0; places],
            false_deaths: 0,
            chatty,
            drawn: 0,
            wire_dice: seed.stream("wires").dice(),
            lane_dice: seed.stream("lanes").dice(),
        }
    }

    /// A number that was never drawn before.
    pub fn draw_id(&mut self) -> u64 {
        self.drawn += 1;
        self.drawn
    }

    /// Notes something that happens now.
    pub fn note(&mut self, what: Happening) {
        self.trace.note(self.now, what);
    }

    /// Has something happen later.
    pub fn after(&mut self, ns: u64, event: Event) {
        self.queue.push(self.now.saturating_add(ns), event);
    }

    /// The machine of a life.
    #[must_use]
    pub fn place_of(&self, life: usize) -> usize {
        self.lives[life].place
    }

    /// Hands something to a life, unless it is over.
    pub fn tell(&mut self, life: usize, event: CarrierEvent) {
        self.deliveries.push_back(Delivery::Event { life, event });
    }

    /// A process is gone. With `silence`, so is its kernel: nobody is told.
    pub fn end_life(&mut self, life: usize, silence: bool) {
        self.lives[life].alive = false;
        let place = self.lives[life].place;
        if self.running[place] == Some(life) {
            self.running[place] = None;
        }
        self.drop_wires_of(life, silence);
        self.drop_lanes_of(life, silence);
    }
}
