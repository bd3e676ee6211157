//! What breaks, how it is mended, and the great mending at the end.

use std::sync::atomic::Ordering;

use super::{MS, World};
use crate::disk::Doom;
use crate::happening::Happening;
use crate::net::links::Spell;
use crate::net::queue::{Event, WorldEvent};
use crate::scenario::{FaultLine, LinkKind, Side};

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be positive and small")]
fn whole(value: f64) -> u64 {
    value.clamp(0.0, 1e18) as u64
}

impl World {
    fn index(&self, name: &str) -> usize {
        self.places.iter().position(|place| place.machine.name == name).expect("names were checked")
    }

    fn pair(&self, pair: &[String; 2]) -> (usize, usize) {
        (self.index(&pair[0]), self.index(&pair[1]))
    }

    pub(super) fn begin_fault(&mut self, index: usize) {
        if self.healed {
            return;
        }
        let fault = self.scenario.faults[index].clone();
        self.ground.with(|inner| {
            inner.net.note(Happening::FaultBegins { index, what: fault.in_words() });
            if let Some(ms) = fault.for_ms {
                inner.net.after(ms * MS, Event::World(WorldEvent::Mend(index)));
            }
        });
        self.node_fault(&fault, true);
        self.link_fault(index, &fault, true);
    }

    pub(super) fn end_fault(&mut self, index: usize) {
        if self.healed {
            return;
        }
        let fault = self.scenario.faults[index].clone();
        self.ground.with(|inner| inner.net.note(Happening::FaultEnds { index }));
        self.node_fault(&fault, false);
        self.link_fault(index, &fault, false);
    }

    fn node_fault(&mut self, fault: &FaultLine, begins: bool) {
        if let Some(name) = &fault.crash {
            self.dies(name, false, begins, fault);
        }
        if let Some(name) = &fault.power {
            let place = self.index(name);
            self.switch_off(place, begins);
            self.dies(name, true, begins, fault);
        }
        if let Some(name) = fault.leave.as_ref().or(fault.upgrade.as_ref()) {
            let place = self.index(name);
            if begins {
                self.places[place].wanted = fault.for_good != Some(true);
                self.outside_tasks.spawn_local(self.outside.clone().leave(place));
            } else {
                // Whoever has not left by now is ended.
                self.end(place, false, "it was told to leave, and had its time");
                self.places[place].protocol = fault.protocol.unwrap_or(self.places[place].protocol);
                self.start(place);
            }
        }
        if let Some(name) = fault.freeze.as_ref().or(fault.sleep.as_ref()) {
            let place = self.index(name);
            if fault.sleep.is_some() {
                self.switch_off(place, begins);
            }
            if begins { self.freeze(place) } else { self.thaw(place) }
        }
        let thousandths = if begins { whole(fault.factor.unwrap_or(1.0) * 1e3) } else { 1_000 };
        if let Some(name) = &fault.slow {
            self.ground.speeds[self.index(name)].compute.store(thousandths, Ordering::Relaxed);
        }
        if let Some(name) = &fault.slow_disk {
            self.ground.speeds[self.index(name)].disk.store(thousandths, Ordering::Relaxed);
        }
        if let Some(name) = &fault.full_disk {
            self.places[self.index(name)].disk.fill(begins);
        }
        if let Some(name) = fault.clock.as_ref().filter(|_| begins) {
            self.jump(self.index(name), fault.jump_ms.unwrap_or(0) * MS);
        }
        if let Some(name) = &fault.crash_on_save {
            let again_ns = fault.for_ms.map(|ms| ms * MS);
            let doom = Doom { side: fault.side.unwrap_or(Side::After), again_ns };
            let place = self.index(name);
            self.places[place].disk.doom(begins.then_some(doom));
        }
    }

    fn dies(&mut self, name: &str, silence: bool, begins: bool, fault: &FaultLine) {
        let place = self.index(name);
        if begins {
            self.places[place].wanted = fault.for_good != Some(true);
            self.end(place, silence, if silence { "its machine lost power" } else { "killed" });
        } else {
            self.start(place);
        }
    }

    fn switch_off(&self, place: usize, off: bool) {
        self.ground.with(|inner| {
            let count = &mut inner.net.links.off[place];
            *count = if off { *count + 1 } else { count.saturating_sub(1) };
        });
    }

    fn jump(&self, place: usize, ns: u64) {
        self.ground.speeds[place].clock_ahead_ns.fetch_add(ns, Ordering::Relaxed);
        self.outside.jumped(place);
        if let Some(process) = &self.places[place].process {
            self.ground.carrier(process.life, |carrier, net| {
                carrier.clock_ahead_ns += ns;
                carrier.elapsed(net);
            });
        }
    }

    fn link_fault(&mut self, index: usize, fault: &FaultLine, begins: bool) {
        if let Some(groups) = &fault.partition {
            let group = |name: &String| groups.iter().position(|group| group.contains(name));
            let names: Vec<Option<usize>> = self.places.iter().map(|place| group(&place.machine.name)).collect();
            for from in 0..names.len() {
                for to in (0..names.len()).filter(|to| names[from] != names[*to]) {
                    self.ground.with(|inner| inner.net.links.mute(from, to, begins));
                }
            }
        }
        if let Some(pair) = &fault.one_way {
            let (from, to) = self.pair(pair);
            self.ground.with(|inner| inner.net.links.mute(from, to, begins));
        }
        if let Some(name) = &fault.deaf {
            let to = self.index(name);
            (0..self.places.len()).for_each(|from| self.ground.with(|inner| inner.net.links.mute(from, to, begins)));
        }
        if let Some(pair) = &fault.cut {
            self.cut(pair, fault.link, begins);
        }
        if let Some(pair) = fault.flap.as_ref() {
            if begins {
                self.ground.with(|inner| inner.net.after(0, Event::World(WorldEvent::Flap { fault: index, cut: true })));
            } else {
                let (a, b) = self.pair(pair);
                self.ground.with(|inner| inner.net.links.pair(a, b).links.iter_mut().for_each(|link| link.cuts = 0));
            }
        }
        if let Some(pair) = &fault.worsen {
            let (a, b) = self.pair(pair);
            let worse = (index, whole(fault.delay_us.unwrap_or(0.0) * 1e3), fault.loss.unwrap_or(0.0));
            self.ground.with(|inner| {
                for link in &mut inner.net.links.pair(a, b).links {
                    link.worse.retain(|worse| worse.0 != index);
                    link.worse.extend(begins.then_some(worse));
                }
            });
        }
        self.lane_fault(index, fault, begins);
    }

    fn lane_fault(&self, index: usize, fault: &FaultLine, begins: bool) {
        if let Some(pair) = &fault.lane_error {
            let (a, b) = self.pair(pair);
            let banned = fault.for_ms.is_some();
            self.ground.with(|inner| {
                // Only the link that lanes run over now: the next one may do better.
                if let Some(link) = inner.net.links.for_lane(a, b).filter(|_| begins && banned) {
                    inner.net.links.pair(a, b).links[link].lanes_banned += 1;
                }
                if begins {
                    inner
                        .net
                        .break_lanes(|from, to, _| (from.min(to), from.max(to)) == (a.min(b), a.max(b)), "the carrier reports an error");
                } else {
                    inner.net.links.pair(a, b).links.iter_mut().for_each(|link| link.lanes_banned = link.lanes_banned.saturating_sub(1));
                }
            });
        }
        if let Some(name) = &fault.qp_error {
            let place = self.index(name);
            self.ground.with(|inner| {
                let count = &mut inner.net.links.qp_errors[place];
                *count = if begins { *count + 1 } else { count.saturating_sub(1) };
                if begins {
                    let on = |from: usize, to: usize, kind| (from == place || to == place) && kind == LinkKind::Rdma;
                    inner.net.break_lanes(on, "its queue pair is in error");
                }
            });
        }
        if let Some(pair) = &fault.tensors {
            let (a, b) = self.pair(pair);
            let spell = Spell {
                fault: index,
                drop: fault.drop.unwrap_or(0.0),
                duplicate: fault.duplicate.unwrap_or(0.0),
                reorder: fault.reorder.unwrap_or(0.0),
                corrupt: fault.corrupt.unwrap_or(0.0),
                raw: fault.raw.unwrap_or(false),
            };
            self.ground.with(|inner| {
                let spells = &mut inner.net.links.pair(a, b).spells;
                spells.retain(|spell| spell.fault != index);
                spells.extend(begins.then_some(spell));
            });
        }
    }

    fn cut(&self, pair: &[String; 2], which: Option<usize>, whether: bool) {
        let (a, b) = self.pair(pair);
        self.ground.with(|inner| {
            let links = &mut inner.net.links.pair(a, b).links;
            for link in links.iter_mut().enumerate().filter(|(index, _)| which.is_none_or(|which| which == *index)).map(|(_, link)| link) {
                link.cuts = if whether { link.cuts + 1 } else { link.cuts.saturating_sub(1) };
            }
        });
    }

    /// A flapping link turns, until its fault is over.
    pub(super) fn flap(&self, index: usize, cut: bool) {
        let fault = &self.scenario.faults[index];
        let (Some(pair), Some(period_ms)) = (&fault.flap, fault.period_ms) else { return };
        let over = fault.for_ms.is_some_and(|ms| self.ground.now_ns() >= fault.at_ms.saturating_add(ms) * MS);
        if self.healed || over {
            return;
        }
        self.cut(pair, fault.link, cut);
        self.ground.with(|inner| inner.net.after(period_ms / 2 * MS, Event::World(WorldEvent::Flap { fault: index, cut: !cut })));
    }

    /// Links are up, disks have room, clocks go on as they are, and everybody who is wanted runs.
    pub(super) fn heal(&mut self) {
        self.healed = true;
        self.ground.with(|inner| {
            inner.net.links.heal();
            inner.net.note(Happening::Healed);
        });
        for speed in &self.ground.speeds {
            speed.compute.store(1_000, Ordering::Relaxed);
            speed.disk.store(1_000, Ordering::Relaxed);
        }
        for place in 0..self.places.len() {
            self.places[place].disk.heal();
            self.thaw(place);
            if self.places[place].wanted {
                self.start(place);
            }
        }
        self.outside.heal();
    }
}
