//! How connections come about: as mesh-net's dialer does it, with growing pauses, and the redials that settle suspicions.

use super::{Event, LinkId, Mail, Time, World, boot};

const PAUSE_FIRST_MS: u64 = 250;
const PAUSE_MAX_MS: u64 = 5_000;
/// The one with the greater id lets the other dial first.
const COURTESY_MS: u64 = 200;
/// Handshakes are given up after this.
const HANDSHAKE_MS: u64 = 5_000;
/// TCP, mesh secret, noise, multiplexer and control stream, after the first one.
const HANDSHAKE_LEGS: u64 = 9;

impl World {
    /// `node` has heard where `other` is.
    pub fn learn(&mut self, node: usize, other: usize) {
        if self.nodes[node].tried.insert(other) {
            let courtesy_ms = if node < other { 0 } else { COURTESY_MS };
            self.try_later(node, other, courtesy_ms, PAUSE_FIRST_MS);
        }
    }

    pub(super) fn lost(&mut self, node: usize, other: usize) {
        self.try_later(node, other, PAUSE_FIRST_MS, PAUSE_FIRST_MS);
    }

    fn try_later(&mut self, from: usize, to: usize, ms: u64, pause_ms: u64) {
        let life = self.nodes[from].life;
        self.at(self.now.plus_ms(ms), Event::Try { from, life, to, pause_ms });
    }

    pub(super) fn attempt(&mut self, from: usize, to: usize, pause_ms: u64) {
        if !self.nodes[from].core.is_up(super::id(to)) {
            self.dial(from, to, false);
            self.try_later(from, to, pause_ms, (2 * pause_ms).min(PAUSE_MAX_MS));
        }
    }

    pub(super) fn dial(&mut self, from: usize, to: usize, redial: bool) {
        let life = self.nodes[from].life;
        let mut delay = self.leg(from, to, 1_000);
        for leg in 0..HANDSHAKE_LEGS {
            let (a, b) = if leg % 2 == 0 { (to, from) } else { (from, to) };
            delay = delay.saturating_add(self.leg(a, b, 200));
        }
        if delay > HANDSHAKE_MS * 1_000_000 {
            return self.give_up(from, to, redial);
        }
        self.at(Time(self.now.0 + delay), Event::Connect { from, life, to, redial });
    }

    fn give_up(&mut self, node: usize, of: usize, redial: bool) {
        if redial {
            let life = self.nodes[node].life;
            self.at(self.now.plus_ms(HANDSHAKE_MS), Event::Answered { node, life, of, refused: false });
        }
    }

    /// The last handshake reaches the one who was dialled.
    pub(super) fn connect(&mut self, from: usize, life: u32, to: usize, redial: bool) {
        if !self.nodes[from].alive || self.nodes[from].life != life {
            return;
        }
        if !self.nodes[to].alive {
            if redial {
                self.at(self.now.plus_ms(1), Event::Answered { node: from, life, of: to, refused: true });
            }
            return;
        }
        if [from, to].iter().any(|node| self.nodes[*node].frozen_until > self.now) {
            return self.give_up(from, to, redial);
        }
        self.links_drawn += 1;
        let link = LinkId(self.links_drawn);
        for (one, other) in [(from, to), (to, from)] {
            self.nodes[one].links.insert(link, other);
            let hello = Mail::Hello(boot(one, self.nodes[one].life));
            self.carry(link, one, other, hello);
        }
    }
}
