//! Control connections as a kernel has them: ordered and reliable, so that loss is delay; broken when one end is gone.
//!
//! Connecting takes round trips. A packet that is lost, or meets a cut link, is sent again after 200 ms, then twice that, and
//! so on (RFC 6298 with its usual minimum on Linux). A frozen process keeps its connections, and whoever sends to it fills its
//! window. A killed one's kernel tells the others; a machine without power does not, until it is back and knows nothing.

use std::collections::VecDeque;
use std::sync::Arc;

use mesh_core::records::Record;
use mesh_core::wire::Message;

use super::Net;
use super::queue::Event;
use crate::happening::Happening;

/// First pause before a lost packet is sent again.
const RTO_NS: u64 = 200_000_000;
/// Longest such pause. (Linux goes on to two minutes; nobody here waits so long.)
const RTO_MAX_NS: u64 = 3_200_000_000;
/// Nothing came through for so long: the kernel gives up. (Linux: about a quarter of an hour; a guess that is long enough.)
const GIVE_UP_NS: u64 = 60_000_000_000;
/// First pause before a lost SYN is sent again.
const SYN_RTO_NS: u64 = 1_000_000_000;
/// A dial without an answer ends.
const DIAL_NS: u64 = 10_000_000_000;
/// A frozen process does not answer a handshake; its kernel is asked again so often.
const FROZEN_LOOK_NS: u64 = 50_000_000;
/// Bytes that may lie unread or under way, as in mesh-net's links.
const WINDOW_BYTES: usize = 32 << 10;
/// Mail that waits for one node at most, in messages and bytes, as in mesh-net.
const MAIL_MAX: usize = 1_024;
const MAIL_BYTES_MAX: usize = 8 << 20;

/// What a frame carries.
#[derive(Clone, Debug)]
pub enum Body {
    /// A control message.
    Control(Box<Message>),
    /// A record, passed on from node to node, and its hash.
    Gossip(Arc<Record>, u64),
    /// The last thing.
    Fin(String),
}

/// Something on a connection.
#[derive(Clone, Debug)]
pub struct Frame {
    /// What.
    pub body: Body,
    /// Its bytes on the wire.
    pub bytes: usize,
    /// Overtakes mail, and is not sent again over another connection.
    pub heart: bool,
}

/// One direction of a connection.
#[derive(Default)]
struct Way {
    hearts: VecDeque<Frame>,
    mail: VecDeque<Frame>,
    mail_bytes: usize,
    under_way: VecDeque<Frame>,
    under_way_bytes: usize,
    unread_bytes: usize,
    /// A packet was lost: nothing goes until it is sent again.
    lost: Option<Frame>,
    rto_ns: u64,
    stuck_since: u64,
    free_at: u64,
    last_arrival: u64,
    waits: bool,
}

/// A connection. End 0 dialled.
pub struct Wire {
    /// Which lives.
    pub ends: [usize; 2],
    /// Which ends still have it.
    pub open: [bool; 2],
    link: usize,
    ways: [Way; 2],
}

/// A dial under way.
pub struct Dial {
    from: usize,
    to: usize,
    link: usize,
    began: u64,
    rto_ns: u64,
}

/// What happens on connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireEvent {
    /// A dial knocks.
    Syn(u64),
    /// A dial is answered: nobody listens.
    Refused(u64),
    /// A dial had no answer.
    Unanswered(u64),
    /// An end can use a new connection.
    Up(u64, usize),
    /// Something may go now.
    Ready(u64, usize),
    /// The first packet under way is there.
    Arrive(u64, usize),
    /// An end hears that the other one knows nothing of this connection.
    Reset(u64, usize),
}

/// What an end of a connection, or of a dial, hears.
pub enum Arrival {
    /// A new connection, with the one that dialled, or that was dialled by `dial`.
    Connected {
        /// Which.
        wire: u64,
        /// Which end of it this is.
        end: usize,
        /// The dial that led to it, at the end that dialled.
        dial: Option<u64>,
    },
    /// A dial came to nothing.
    DialFailed {
        /// Which.
        dial: u64,
        /// Nobody listens there; else there was no answer.
        refused: bool,
    },
    /// Something came.
    Frame {
        /// On which connection.
        wire: u64,
        /// At which end.
        end: usize,
        /// What.
        frame: Frame,
    },
    /// The connection is gone.
    Closed {
        /// Which.
        wire: u64,
        /// Why.
        why: String,
    },
}

impl Net {
    /// Dials a machine.
    pub fn dial(&mut self, life: usize, to: usize) -> u64 {
        let id = self.draw_id();
        let from = self.place_of(life);
        let link = self.links.for_control(from, to);
        self.dials.insert(id, Dial { from: life, to, link, began: self.now, rto_ns: SYN_RTO_NS });
        self.knock(id);
        id
    }

    fn knock(&mut self, id: u64) {
        let Some(dial) = self.dials.get(&id) else { return };
        let (from, to, link) = (self.lives[dial.from].place, dial.to, dial.link);
        let passes = self.links.passes(from, to, link) && self.links.passes(to, from, link);
        if passes && !self.links.loses(from, to, link, 60, &mut self.wire_dice) {
            let ns = self.links.delay_ns(from, to, link, &mut self.wire_dice);
            return self.after(ns, Event::Wire(WireEvent::Syn(id)));
        }
        let Some(dial) = self.dials.get_mut(&id) else { return };
        if self.now.saturating_sub(dial.began) >= DIAL_NS {
            return self.after(0, Event::Wire(WireEvent::Unanswered(id)));
        }
        let pause = dial.rto_ns;
        dial.rto_ns *= 2;
        // The next knock is decided when it is due: until then the dial just waits.
        self.after(pause, Event::Wire(WireEvent::Ready(id, 2)));
    }

    /// Does what is due on a connection.
    pub fn on_wire(&mut self, event: WireEvent) {
        match event {
            WireEvent::Syn(dial) => self.on_syn(dial),
            WireEvent::Refused(id) | WireEvent::Unanswered(id) => {
                if let Some(dial) = self.dials.remove(&id) {
                    let refused = matches!(event, WireEvent::Refused(_));
                    self.arrivals.push_back((dial.from, Arrival::DialFailed { dial: id, refused }));
                }
            }
            WireEvent::Up(id, end) => {
                let Some(wire) = self.wires.get(&id).filter(|wire| wire.open[end]) else { return };
                let [from, to] = [wire.ends[end], wire.ends[1 - end]].map(|life| self.lives[life].place);
                self.arrivals.push_back((wire.ends[end], Arrival::Connected { wire: id, end, dial: (end == 0).then_some(id) }));
                self.note(Happening::Connected { from, to });
            }
            WireEvent::Ready(dial, 2) => self.knock(dial),
            WireEvent::Ready(id, way) => {
                if let Some(wire) = self.wires.get_mut(&id) {
                    wire.ways[way].waits = false;
                    self.retry(id, way);
                }
            }
            WireEvent::Arrive(id, way) => self.on_arrive(id, way),
            WireEvent::Reset(id, end) => self.closed(id, end, "the connection was reset".to_owned()),
        }
    }

    fn on_syn(&mut self, id: u64) {
        let Some(dial) = self.dials.get(&id) else { return };
        let (from_life, from, to, link, began) = (dial.from, self.lives[dial.from].place, dial.to, dial.link, dial.began);
        let back = self.links.delay_ns(to, from, link, &mut self.wire_dice);
        match self.running[to].filter(|life| self.lives[*life].alive) {
            None => self.after(back, Event::Wire(WireEvent::Refused(id))),
            Some(life) if self.lives[life].frozen => {
                if self.now.saturating_sub(began) >= DIAL_NS {
                    return self.after(0, Event::Wire(WireEvent::Unanswered(id)));
                }
                self.after(FROZEN_LOOK_NS, Event::Wire(WireEvent::Syn(id)));
            }
            Some(life) => {
                self.dials.remove(&id);
                let there = self.links.delay_ns(from, to, link, &mut self.wire_dice);
                let mut ways = [Way::default(), Way::default()];
                ways.iter_mut().for_each(|way| way.rto_ns = RTO_NS);
                ways[0].last_arrival = self.now + back + there;
                ways[1].last_arrival = self.now + back;
                self.wires.insert(id, Wire { ends: [from_life, life], open: [true; 2], link, ways });
                self.after(back, Event::Wire(WireEvent::Up(id, 0)));
                self.after(back + there, Event::Wire(WireEvent::Up(id, 1)));
            }
        }
    }

    /// Sends something. False if as much mail waits as may.
    pub fn send(&mut self, wire: u64, end: usize, frame: Frame) -> bool {
        let Some(way) = self.wires.get_mut(&wire).filter(|wire| wire.open[end]).map(|wire| &mut wire.ways[end]) else { return false };
        if frame.heart {
            way.hearts.push_back(frame);
        } else {
            let full = way.mail.len() >= MAIL_MAX || !way.mail.is_empty() && way.mail_bytes + frame.bytes > MAIL_BYTES_MAX;
            if full {
                return false;
            }
            way.mail_bytes += frame.bytes;
            way.mail.push_back(frame);
        }
        self.transmit(wire, end);
        true
    }

    /// Mail that did not arrive, for another connection. The connection is closed at this end.
    pub fn take_mail(&mut self, wire: u64, end: usize) -> Vec<Frame> {
        let Some(wire) = self.wires.get_mut(&wire) else { return Vec::new() };
        let way = &mut wire.ways[end];
        way.mail_bytes = 0;
        let sent = way.under_way.iter().chain(&way.lost).filter(|frame| !frame.heart && !matches!(frame.body, Body::Fin(_))).cloned();
        let mail: Vec<Frame> = sent.chain(way.mail.iter().cloned()).collect();
        way.mail.clear();
        way.lost = None;
        // What is under way would arrive twice.
        way.under_way
            .iter_mut()
            .filter(|frame| !frame.heart)
            .for_each(|frame| frame.body = Body::Control(Box::new(Message::Pong(u64::MAX))));
        mail
    }

    /// An end has read so many bytes: there is room for more.
    pub fn has_read(&mut self, wire: u64, end: usize, bytes: usize) {
        if let Some(wire) = self.wires.get_mut(&wire) {
            let way = &mut wire.ways[1 - end];
            way.unread_bytes = way.unread_bytes.saturating_sub(bytes);
        }
        self.transmit(wire, 1 - end);
    }

    /// An end closes the connection; what it said before still arrives.
    pub fn close_wire(&mut self, wire: u64, end: usize, why: &str) {
        let Some(there) = self.wires.get_mut(&wire).filter(|wire| wire.open[end]) else { return };
        there.open[end] = false;
        if !there.open[1 - end] {
            self.wires.remove(&wire);
            return;
        }
        let way = &mut there.ways[end];
        way.mail.clear();
        way.hearts.push_back(Frame { body: Body::Fin(why.to_owned()), bytes: 60, heart: true });
        self.transmit(wire, end);
    }

    /// A process is gone; with `silence`, its kernel too.
    pub fn drop_wires_of(&mut self, life: usize, silence: bool) {
        self.dials.retain(|_, dial| dial.from != life);
        let ids: Vec<(u64, usize)> =
            self.wires.iter().filter_map(|(id, wire)| Some((*id, wire.ends.iter().position(|end| *end == life)?))).collect();
        for (id, end) in ids {
            if silence {
                let Some(wire) = self.wires.get_mut(&id) else { continue };
                wire.open[end] = false;
                wire.ways[end].hearts.clear();
                wire.ways[end].mail.clear();
                if !wire.open[1 - end] {
                    self.wires.remove(&id);
                }
            } else {
                self.close_wire(id, end, "the other end closed the control stream");
            }
        }
    }

    fn retry(&mut self, id: u64, way: usize) {
        let Some(wire) = self.wires.get_mut(&id) else { return };
        if let Some(frame) = wire.ways[way].lost.take() {
            wire.ways[way].rto_ns = (wire.ways[way].rto_ns * 2).min(RTO_MAX_NS);
            if self.now.saturating_sub(wire.ways[way].stuck_since) >= GIVE_UP_NS {
                return self.closed(id, way, "nothing came through for a minute".to_owned());
            }
            if !self.put(id, way, frame) {
                return;
            }
        }
        self.transmit(id, way);
    }

    /// Sends what may go now.
    fn transmit(&mut self, id: u64, end: usize) {
        loop {
            let Some(wire) = self.wires.get_mut(&id) else { return };
            let way = &mut wire.ways[end];
            if way.lost.is_some() || way.waits {
                return;
            }
            let open = way.under_way_bytes + way.unread_bytes < WINDOW_BYTES;
            if way.free_at > self.now && (!way.hearts.is_empty() || open && !way.mail.is_empty()) {
                way.waits = true;
                let pause = way.free_at - self.now;
                return self.after(pause, Event::Wire(WireEvent::Ready(id, end)));
            }
            let frame = match way.hearts.pop_front() {
                Some(frame) => frame,
                None if open => match way.mail.pop_front() {
                    Some(frame) => {
                        way.mail_bytes = way.mail_bytes.saturating_sub(frame.bytes);
                        frame
                    }
                    None => return,
                },
                None => return,
            };
            if !self.put(id, end, frame) {
                return;
            }
        }
    }

    /// Puts one frame on the link. False if it was lost.
    fn put(&mut self, id: u64, end: usize, frame: Frame) -> bool {
        let Some(wire) = self.wires.get_mut(&id) else { return false };
        let [from, to] = [wire.ends[end], wire.ends[1 - end]].map(|life| self.lives[life].place);
        let (link, bytes) = (wire.link, frame.bytes as u64 + 60);
        let passes = self.links.passes(from, to, link) && !self.links.loses(from, to, link, bytes, &mut self.wire_dice);
        let way = &mut wire.ways[end];
        if !passes {
            if way.rto_ns == RTO_NS {
                way.stuck_since = self.now;
            }
            let pause = way.rto_ns;
            way.lost = Some(frame);
            way.waits = true;
            self.after(pause, Event::Wire(WireEvent::Ready(id, end)));
            return false;
        }
        way.rto_ns = RTO_NS;
        way.free_at = way.free_at.max(self.now) + self.links.busy_ns(from, to, link, bytes);
        let arrival = way.free_at + self.links.delay_ns(from, to, link, &mut self.wire_dice);
        way.last_arrival = arrival.max(way.last_arrival + 1);
        way.under_way_bytes += frame.bytes;
        way.under_way.push_back(frame);
        self.control_bytes[from] += bytes;
        let at = way.last_arrival;
        self.queue.push(at, Event::Wire(WireEvent::Arrive(id, end)));
        true
    }

    fn on_arrive(&mut self, id: u64, way: usize) {
        let Some(wire) = self.wires.get_mut(&id) else { return };
        let Some(frame) = wire.ways[way].under_way.pop_front() else { return };
        wire.ways[way].under_way_bytes = wire.ways[way].under_way_bytes.saturating_sub(frame.bytes);
        let (there, reader, open) = (1 - way, wire.ends[1 - way], wire.open[1 - way]);
        if !open {
            // Nobody knows of this connection here any more.
            let [from, to] = [reader, wire.ends[way]].map(|life| self.lives[life].place);
            let (link, passes) = (wire.link, wire.open[way]);
            if passes && self.links.passes(from, to, link) {
                let ns = self.links.delay_ns(from, to, link, &mut self.wire_dice);
                self.after(ns, Event::Wire(WireEvent::Reset(id, way)));
            }
            return;
        }
        if let Body::Fin(why) = frame.body {
            return self.closed(id, there, why);
        }
        if !frame.heart {
            wire.ways[way].unread_bytes += frame.bytes;
        }
        self.arrivals.push_back((reader, Arrival::Frame { wire: id, end: there, frame }));
        self.transmit(id, way);
    }

    /// An end finds its connection gone.
    fn closed(&mut self, id: u64, end: usize, why: String) {
        let Some(wire) = self.wires.get(&id).filter(|wire| wire.open[end]) else { return };
        let [at, of] = [wire.ends[end], wire.ends[1 - end]].map(|life| self.lives[life].place);
        let life = wire.ends[end];
        self.note(Happening::Broken { at, of, why: why.clone() });
        self.arrivals.push_back((life, Arrival::Closed { wire: id, why }));
        // The end takes its mail back when it reads this, and closes.
    }
}
