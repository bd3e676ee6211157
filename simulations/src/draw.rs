//! Faults by chance become faults by the clock: the same seed draws the same ones, and each can be taken out by itself.

use crate::dice::{Dice, Seed};
use crate::scenario::{FaultLine, RandomFaults, Scenario, Side};

/// Faults that are drawn for one world at most.
const DRAWN_MAX: usize = 10_000;

/// The scenario with its random faults drawn and written out, in order of time.
#[must_use]
pub fn expand(scenario: &Scenario, seed: Seed) -> Scenario {
    let Some(random) = &scenario.random_faults else { return scenario.clone() };
    let mut faults = scenario.faults.clone();
    faults.extend(Draw::new(scenario, random, seed).all());
    faults.sort_by_key(|fault| fault.at_ms);
    Scenario { faults, random_faults: None, ..scenario.clone() }
}

struct Draw<'a> {
    random: &'a RandomFaults,
    seed: Seed,
    /// All nodes, and those that may be killed, frozen or stopped.
    nodes: Vec<String>,
    victims: Vec<String>,
    until_ms: u64,
    /// When victims are away: (name, from, until).
    away: Vec<(String, u64, u64)>,
}

impl<'a> Draw<'a> {
    fn new(scenario: &Scenario, random: &'a RandomFaults, seed: Seed) -> Self {
        let nodes: Vec<String> = scenario.machines().into_iter().map(|machine| machine.name).collect();
        let victims = nodes.iter().filter(|node| !random.spare.contains(node)).cloned().collect();
        Self { random, seed: seed.stream("faults"), nodes, victims, until_ms: scenario.run_ms(), away: Vec::new() }
    }

    fn all(mut self) -> Vec<FaultLine> {
        let random = self.random;
        let mut faults = Vec::new();
        // What stops nodes is drawn together, in order of time, so that enough of them are left running.
        type Make = fn(String) -> FaultLine;
        let stopping: [(&str, f64, [u64; 2], Make); 5] = [
            ("crash", random.crashes_per_min, random.away_ms, |node| FaultLine { crash: Some(node), ..FaultLine::default() }),
            ("power", random.powers_per_min, random.away_ms, |node| FaultLine { power: Some(node), ..FaultLine::default() }),
            ("freeze", random.freezes_per_min, random.freeze_ms, |node| FaultLine { freeze: Some(node), ..FaultLine::default() }),
            ("leave", random.leaves_per_min, random.away_ms, |node| FaultLine { leave: Some(node), ..FaultLine::default() }),
            ("crash_on_save", random.crashes_on_save_per_min, random.away_ms, |node| FaultLine {
                crash_on_save: Some(node),
                side: Some(Side::After),
                ..FaultLine::default()
            }),
        ];
        let mut moments = Vec::new();
        for (index, (name, rate, range, make)) in stopping.into_iter().enumerate() {
            let mut dice = self.seed.stream(name).dice();
            for at_ms in self.moments(&mut dice, rate) {
                moments.push((at_ms, index, dice.within(range[0], range[1]), make, dice.clone()));
                dice.draw();
            }
        }
        moments.sort_by_key(|moment| (moment.0, moment.1));
        for (at_ms, _, for_ms, make, mut dice) in moments {
            if let Some(node) = self.victim(&mut dice, at_ms, for_ms) {
                let mut fault = FaultLine { at_ms, for_ms: Some(for_ms), ..make(node) };
                if fault.side.is_some() && dice.chance(0.5) {
                    fault.side = Some(Side::Before);
                }
                faults.push(fault);
            }
        }
        self.nodes_troubled(&mut faults);
        self.links_troubled(&mut faults);
        faults.truncate(DRAWN_MAX);
        faults
    }

    /// Poisson moments.
    fn moments(&self, dice: &mut Dice, per_min: f64) -> Vec<u64> {
        let mut moments = Vec::new();
        let mut at_ms = self.random.from_ms;
        while moments.len() < DRAWN_MAX {
            at_ms = at_ms.saturating_add(dice.wait_ns(per_min / 60.0) / 1_000_000 + 1);
            if per_min <= 0.0 || at_ms >= self.until_ms {
                break;
            }
            moments.push(at_ms);
        }
        moments
    }

    /// One that runs at that time, if enough others do.
    fn victim(&mut self, dice: &mut Dice, at_ms: u64, for_ms: u64) -> Option<String> {
        let until_ms = at_ms.saturating_add(for_ms);
        let away = |node: &&String| self.away.iter().any(|(other, from, until)| other == *node && *from <= until_ms && at_ms <= *until);
        let running: Vec<String> = self.victims.iter().filter(|node| !away(node)).cloned().collect();
        let spared = self.nodes.len() - self.victims.len();
        if running.len() + spared <= self.random.running_min {
            return None;
        }
        let node = dice.one_of(&running)?.clone();
        self.away.push((node.clone(), at_ms, until_ms));
        Some(node)
    }

    fn nodes_troubled(&self, faults: &mut Vec<FaultLine>) {
        let random = self.random;
        type Make = fn(String, u64) -> FaultLine;
        let kinds: [(&str, f64, [u64; 2], Make); 4] = [
            ("slow", random.slows_per_min, random.slow_ms, |node, ms| FaultLine {
                slow: Some(node),
                for_ms: Some(ms),
                factor: Some(10.0),
                ..FaultLine::default()
            }),
            ("full_disk", random.full_disks_per_min, random.slow_ms, |node, ms| FaultLine {
                full_disk: Some(node),
                for_ms: Some(ms),
                ..FaultLine::default()
            }),
            ("clock", random.clock_jumps_per_min, random.jump_ms, |node, ms| FaultLine {
                clock: Some(node),
                jump_ms: Some(ms),
                ..FaultLine::default()
            }),
            ("deaf", random.deafs_per_min, random.cut_ms, |node, ms| FaultLine {
                deaf: Some(node),
                for_ms: Some(ms),
                ..FaultLine::default()
            }),
        ];
        for (name, rate, range, make) in kinds {
            let mut dice = self.seed.stream(name).dice();
            for at_ms in self.moments(&mut dice, rate) {
                let Some(node) = dice.one_of(&self.nodes).cloned() else { continue };
                faults.push(FaultLine { at_ms, ..make(node, dice.within(range[0], range[1])) });
            }
        }
    }

    fn links_troubled(&self, faults: &mut Vec<FaultLine>) {
        let random = self.random;
        type Make = fn([String; 2], u64) -> FaultLine;
        let kinds: [(&str, f64, [u64; 2], Make); 5] = [
            ("one_way", random.one_ways_per_min, random.cut_ms, |pair, ms| FaultLine {
                one_way: Some(pair),
                for_ms: Some(ms),
                ..FaultLine::default()
            }),
            ("cut", random.cuts_per_min, random.cut_ms, |pair, ms| FaultLine { cut: Some(pair), for_ms: Some(ms), ..FaultLine::default() }),
            ("worsen", random.worsens_per_min, random.worsen_ms, |pair, ms| FaultLine {
                worsen: Some(pair),
                for_ms: Some(ms),
                delay_us: Some(20_000.0),
                loss: Some(0.05),
                ..FaultLine::default()
            }),
            ("lane_error", random.lane_errors_per_min, [0, 0], |pair, _| FaultLine { lane_error: Some(pair), ..FaultLine::default() }),
            ("tensors", random.tensor_spells_per_min, random.spell_ms, |pair, ms| FaultLine {
                tensors: Some(pair),
                for_ms: Some(ms),
                drop: Some(0.1),
                duplicate: Some(0.1),
                reorder: Some(0.1),
                corrupt: Some(0.1),
                ..FaultLine::default()
            }),
        ];
        for (name, rate, range, make) in kinds {
            let mut dice = self.seed.stream(name).dice();
            for at_ms in self.moments(&mut dice, rate) {
                let Some(pair) = self.pair(&mut dice) else { continue };
                let mut fault = FaultLine { at_ms, ..make(pair, dice.within(range[0], range[1])) };
                if fault.tensors.is_some() && random.raw_spells {
                    fault.raw = Some(true);
                }
                faults.push(fault);
            }
        }
        let mut dice = self.seed.stream("partition").dice();
        for at_ms in self.moments(&mut dice, random.partitions_per_min) {
            let mut groups = [Vec::new(), Vec::new()];
            for node in &self.nodes {
                groups[usize::from(dice.chance(0.5))].push(node.clone());
            }
            let for_ms = Some(dice.within(random.cut_ms[0], random.cut_ms[1]));
            if groups.iter().all(|group| !group.is_empty()) {
                faults.push(FaultLine { at_ms, for_ms, partition: Some(groups.to_vec()), ..FaultLine::default() });
            }
        }
    }

    fn pair(&self, dice: &mut Dice) -> Option<[String; 2]> {
        let first = dice.one_of(&self.nodes)?.clone();
        let others: Vec<String> = self.nodes.iter().filter(|node| **node != first).cloned().collect();
        Some([first, dice.one_of(&others)?.clone()])
    }
}
