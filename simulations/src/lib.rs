//! Worlds, faults and checkers that drive the shipped actors and cores on virtual time.
//!
//! The worlds come next. What stands here already is the rule they follow: a world is drawn whole from one seed, and
//! each part draws from a stream of its own, so that a new draw here does not reshuffle there.

pub mod report;

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
}

/// One step of splitmix64 (Steele, Lea, Flood 2014).
fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
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
}
