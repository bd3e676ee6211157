//! Seeds and draws. A world is drawn whole from one seed; each part draws from a stream of its own, so that a new draw here
//! does not reshuffle there.

/// A seed, and the streams of randomness that are drawn from it by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub u64);

impl Seed {
    /// An independent seed for the part with this name: splitmix64 over the name's bytes.
    #[must_use]
    pub fn stream(self, part: &str) -> Self {
        let fold = |state: u64, byte: u8| mix(state ^ u64::from(byte));
        Self(part.bytes().fold(mix(self.0), fold))
    }

    /// Dice that start from this seed.
    #[must_use]
    pub fn dice(self) -> Dice {
        Dice(self.0)
    }
}

/// One step of splitmix64 (Steele, Lea, Flood 2014).
fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A stream of draws: splitmix64.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `end`; zero if `end` is zero.
    pub fn below(&mut self, end: u64) -> u64 {
        let wide = u128::from(self.draw()) * u128::from(end);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// A number of `first..=last`.
    pub fn within(&mut self, first: u64, last: u64) -> u64 {
        first.saturating_add(self.below(last.saturating_sub(first).saturating_add(1)))
    }

    /// Between 0 and 1, 1 excluded.
    #[expect(clippy::cast_precision_loss, reason = "53 bits are exact")]
    pub fn unit(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.unit() < probability
    }

    /// The wait for the next of events that come `rate` times a second (exponential), in nanoseconds; at most a day.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped just before")]
    pub fn wait_ns(&mut self, rate: f64) -> u64 {
        const DAY_NS: f64 = 86_400e9;
        if rate <= 0.0 {
            return DAY_NS as u64;
        }
        (-libm::log(1.0 - self.unit()) / rate * 1e9).clamp(0.0, DAY_NS) as u64
    }

    /// One of several; `None` of none.
    pub fn one_of<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        let index = usize::try_from(self.below(all.len() as u64)).unwrap_or(0);
        all.get(index)
    }
}

#[cfg(test)]
mod tests {
    use super::Seed;

    #[test]
    fn parts_draw_independently_and_repeatably() {
        let seed = Seed(0x2a);
        assert_eq!(seed.stream("links"), seed.stream("links"));
        assert_ne!(seed.stream("links"), seed.stream("nodes"));
        assert_ne!(seed.stream("links"), Seed(0x2b).stream("links"));
    }

    #[test]
    fn draws_stay_in_their_ranges() {
        let mut dice = Seed(7).dice();
        assert!((0..1_000).all(|_| (3..=5).contains(&dice.within(3, 5))));
        assert!((0..1_000).all(|_| (0.0..1.0).contains(&dice.unit())));
        assert_eq!(dice.below(0), 0);
        assert!(!dice.chance(0.0));
    }
}
