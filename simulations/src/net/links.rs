//! Which links there are between machines, how they are, and what is wrong with them now.

use std::collections::BTreeMap;

use crate::dice::Dice;
use crate::scenario::{LinkKind, LinkLine, Scenario};

/// Bytes of a packet, as loss counts them.
const PACKET_BYTES: u64 = 1_460;

/// One link between two machines.
#[derive(Clone, Debug)]
pub struct Link {
    /// What it is.
    pub kind: LinkKind,
    delay_ns: u64,
    jitter_ns: u64,
    bits_s: u64,
    loss: f64,
    /// Faults that cut it.
    pub cuts: u32,
    /// Faults that forbid lanes on it.
    pub lanes_banned: u32,
    /// Worsened by these: (fault, delay, loss).
    pub worse: Vec<(usize, u64, f64)>,
}

/// What happens to tensor messages of a pair.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spell {
    /// Which fault it is.
    pub fault: usize,
    /// Probability of a loss.
    pub drop: f64,
    /// Of a second copy.
    pub duplicate: f64,
    /// Of being overtaken.
    pub reorder: f64,
    /// Of a flipped bit.
    pub corrupt: f64,
    /// Not repaired or noticed by the lane.
    pub raw: bool,
}

/// Everything between two machines.
#[derive(Clone, Debug, Default)]
pub struct Pair {
    /// The links, in the order of the file.
    pub links: Vec<Link>,
    /// Faults by which nothing passes: from the lower to the higher machine, and back.
    pub mute: [u32; 2],
    /// What happens to tensor messages.
    pub spells: Vec<Spell>,
}

/// All pairs.
#[derive(Clone, Debug)]
pub struct Links {
    places: usize,
    pairs: BTreeMap<(usize, usize), Pair>,
    default: Link,
    /// Machines without power, or asleep: faults that make them so.
    pub off: Vec<u32>,
    /// Machines whose queue pairs are in error.
    pub qp_errors: Vec<u32>,
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be positive and small")]
fn whole(value: f64) -> u64 {
    value.clamp(0.0, 1e18) as u64
}

fn link_of(kind: LinkKind, line: &LinkLine) -> Link {
    Link {
        kind,
        delay_ns: whole(line.delay_us * 1e3),
        jitter_ns: whole(line.jitter_us * 1e3),
        bits_s: whole(line.mbit_s * 1e6).max(1),
        loss: line.loss,
        cuts: 0,
        lanes_banned: 0,
        worse: Vec::new(),
    }
}

impl Links {
    /// As the scenario says.
    #[must_use]
    pub fn of(scenario: &Scenario) -> Self {
        let places = scenario.places();
        let default = link_of(scenario.links.kind, &scenario.links);
        let mut pairs: BTreeMap<(usize, usize), Pair> = BTreeMap::new();
        for cable in &scenario.cables {
            let [Some(&a), Some(&b)] = [places.get(&cable.between[0]), places.get(&cable.between[1])] else { continue };
            let line =
                LinkLine { kind: cable.kind, delay_us: cable.delay_us, jitter_us: cable.jitter_us, mbit_s: cable.mbit_s, loss: cable.loss };
            pairs.entry((a.min(b), a.max(b))).or_default().links.push(link_of(cable.kind, &line));
        }
        for a in 0..places.len() {
            for b in a + 1..places.len() {
                let pair = pairs.entry((a, b)).or_default();
                // A cable for tensors alone leaves the way for control.
                if !pair.links.iter().any(|link| link.kind.carries_control()) {
                    pair.links.push(default.clone());
                }
            }
        }
        Self { places: places.len(), pairs, default, off: vec![0; places.len()], qp_errors: vec![0; places.len()] }
    }

    /// How many machines.
    #[must_use]
    pub fn places(&self) -> usize {
        self.places
    }

    /// What is between two machines.
    ///
    /// # Panics
    /// If they are the same, or there are none of these numbers.
    pub fn pair(&mut self, a: usize, b: usize) -> &mut Pair {
        self.pairs.get_mut(&(a.min(b), a.max(b))).expect("every pair was made at the start")
    }

    fn seen(&self, a: usize, b: usize) -> Option<&Pair> {
        self.pairs.get(&(a.min(b), a.max(b)))
    }

    fn link(&self, a: usize, b: usize, index: usize) -> &Link {
        self.seen(a, b).and_then(|pair| pair.links.get(index)).unwrap_or(&self.default)
    }

    /// Nothing passes from one machine to another any more, or not for this reason any more.
    pub fn mute(&mut self, from: usize, to: usize, whether: bool) {
        if from == to {
            return;
        }
        let count = &mut self.pair(from, to).mute[usize::from(from > to)];
        *count = if whether { *count + 1 } else { count.saturating_sub(1) };
    }

    /// Whether what is sent on a link arrives.
    #[must_use]
    pub fn passes(&self, from: usize, to: usize, index: usize) -> bool {
        let Some(pair) = self.seen(from, to) else { return from == to };
        let up = pair.links.get(index).is_some_and(|link| link.cuts == 0);
        up && pair.mute[usize::from(from > to)] == 0 && self.off[from] == 0 && self.off[to] == 0
    }

    /// Whether two machines can hear each other over some control link.
    #[must_use]
    pub fn connected(&self, a: usize, b: usize) -> bool {
        let count = self.seen(a, b).map_or(0, |pair| pair.links.len());
        (0..count).any(|index| self.link(a, b, index).kind.carries_control() && self.passes(a, b, index) && self.passes(b, a, index))
    }

    /// The link that a control connection takes: the first that is up, else the first.
    #[must_use]
    pub fn for_control(&self, a: usize, b: usize) -> usize {
        let Some(pair) = self.seen(a, b) else { return 0 };
        let usable = |index: &usize| pair.links[*index].kind.carries_control();
        let all: Vec<usize> = (0..pair.links.len()).filter(usable).collect();
        all.iter().find(|index| pair.links[**index].cuts == 0).or(all.first()).copied().unwrap_or(0)
    }

    /// The link that a lane takes: the fastest that is up and allowed.
    #[must_use]
    pub fn for_lane(&self, a: usize, b: usize) -> Option<usize> {
        let pair = self.seen(a, b)?;
        let usable = |index: &usize| {
            let link = &pair.links[*index];
            let pairs_work = link.kind != LinkKind::Rdma || self.qp_errors[a] == 0 && self.qp_errors[b] == 0;
            link.cuts == 0 && link.lanes_banned == 0 && pairs_work
        };
        (0..pair.links.len()).filter(usable).max_by_key(|index| (pair.links[*index].bits_s, std::cmp::Reverse(*index)))
    }

    /// What kind a link is.
    #[must_use]
    pub fn kind(&self, a: usize, b: usize, index: usize) -> LinkKind {
        self.link(a, b, index).kind
    }

    /// Delay of one packet, jitter drawn, in nanoseconds.
    pub fn delay_ns(&self, a: usize, b: usize, index: usize, dice: &mut Dice) -> u64 {
        let link = self.link(a, b, index);
        let jitter = if link.jitter_ns == 0 { 0 } else { dice.below(link.jitter_ns) };
        link.delay_ns + jitter + link.worse.iter().map(|worse| worse.1).sum::<u64>()
    }

    /// Time that so many bytes keep the wire busy, in nanoseconds.
    #[must_use]
    pub fn busy_ns(&self, a: usize, b: usize, index: usize, bytes: u64) -> u64 {
        let ns = u128::from(bytes) * 8_000_000_000 / u128::from(self.link(a, b, index).bits_s);
        u64::try_from(ns).unwrap_or(u64::MAX / 4)
    }

    /// Whether one of the packets of so many bytes is lost.
    pub fn loses(&self, a: usize, b: usize, index: usize, bytes: u64, dice: &mut Dice) -> bool {
        let link = self.link(a, b, index);
        let loss = 1.0 - link.worse.iter().map(|worse| 1.0 - worse.2).product::<f64>() * (1.0 - link.loss);
        if loss <= 0.0 {
            return false;
        }
        let packets = u32::try_from(bytes / PACKET_BYTES + 1).unwrap_or(u32::MAX);
        let whole = (0..packets.min(4_096)).fold(1.0, |whole, _| whole * (1.0 - loss));
        dice.chance(1.0 - whole)
    }

    /// What happens to tensor messages between two machines now.
    #[must_use]
    pub fn spell(&self, a: usize, b: usize) -> Option<Spell> {
        self.seen(a, b)?.spells.last().copied()
    }

    /// Everything is as the scenario began.
    pub fn heal(&mut self) {
        for pair in self.pairs.values_mut() {
            (pair.mute, pair.spells) = ([0; 2], Vec::new());
            for link in &mut pair.links {
                (link.cuts, link.lanes_banned) = (0, 0);
                link.worse.clear();
            }
        }
        self.off.fill(0);
        self.qp_errors.fill(0);
    }
}
