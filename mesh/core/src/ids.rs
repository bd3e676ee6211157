//! Names of things: nodes, boots, deployments, streams, hashes, and time.
//!
//! Each is its own type, so that a stream id can never be passed where a deployment id is meant. All are plain
//! values: ordered (a `BTreeMap` key), copied freely, printed short in logs and whole in JSON.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A node's lasting name: its ed25519 public key. It outlives restarts; see [`BootId`] for one start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub [u8; 32]);

/// 128 random bits drawn at each start of a node (R15): tells two lives of one key apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BootId(pub u128);

/// A deployment's name: 128 random bits, never used again after a deletion (R16).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeploymentId(pub u128);

/// A generation's name: 128 random bits; showing it is what lets a client resume (R7).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StreamId(pub u128);

/// Hash of a plan's contents (R1). Acceptance is equality of this, never a comparison of numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PlanHash(pub u64);

/// blake3 of some content: of a model's headers and sizes, or of a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Digest(pub [u8; 32]);

/// Rolling 64-bit hash of token ids `0..position` (R3).
///
/// Two stages that agree on (position, hash) agree on every token before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PrefixHash(pub u64);

impl PrefixHash {
    /// The hash of no tokens at all.
    pub const EMPTY: Self = Self(0x6d65_7368_2f70_6678); // "mesh/pfx"; any fixed non-zero value would do

    /// The hash after one more token.
    #[must_use]
    pub fn then(self, token: u32) -> Self {
        Self(xxhash_rust::xxh3::xxh3_64_with_seed(&token.to_le_bytes(), self.0))
    }

    /// The hash after all of `tokens`.
    #[must_use]
    pub fn over(self, tokens: &[u32]) -> Self {
        tokens.iter().fold(self, |hash, &token| hash.then(token))
    }
}

/// Nanoseconds on a clock that counts sleep (R8) and starts at an arbitrary zero. Only differences mean anything.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Time(pub u64);

impl Time {
    /// The moment `ms` milliseconds later; saturates at the end of time.
    #[must_use]
    pub const fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms.saturating_mul(1_000_000)))
    }

    /// Milliseconds from `earlier` until here; zero if `earlier` is later.
    #[must_use]
    pub const fn ms_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0) / 1_000_000
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}s", self.0 / 1_000_000_000, self.0 / 1_000_000 % 1_000)
    }
}

fn hex(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

/// `Display` is the whole value in hex, `Debug` its first eight digits behind a letter.
macro_rules! hex_names {
    ($($name:ident $letter:literal $bytes:expr),* $(,)?) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { let of: fn(&$name) -> Vec<u8> = $bytes; hex(f, &of(self)) }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let of: fn(&$name) -> Vec<u8> = $bytes;
                f.write_str($letter)?;
                hex(f, &of(self)[..4])
            }
        }
    )*};
}
hex_names! {
    NodeId "n:" |id| id.0.to_vec(),
    BootId "b:" |id| id.0.to_be_bytes().to_vec(),
    DeploymentId "d:" |id| id.0.to_be_bytes().to_vec(),
    StreamId "s:" |id| id.0.to_be_bytes().to_vec(),
    PlanHash "p:" |id| id.0.to_be_bytes().to_vec(),
    PrefixHash "h:" |id| id.0.to_be_bytes().to_vec(),
    Digest "blake3:" |id| id.0.to_vec(),
}

impl NodeId {
    /// The first eight hex digits: enough for people, never for programs.
    #[must_use]
    pub fn short(&self) -> String {
        self.to_string()[..8].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_hash_depends_on_every_token_and_its_place() {
        let ab = PrefixHash::EMPTY.over(&[1, 2]);
        assert_ne!(ab, PrefixHash::EMPTY.over(&[2, 1]));
        assert_ne!(ab, PrefixHash::EMPTY.over(&[1, 2, 0]));
        assert_eq!(ab, PrefixHash::EMPTY.then(1).then(2));
    }

    #[test]
    fn names_print_short_in_debug_and_whole_in_display() {
        let id = DeploymentId(0xabcd_ef01_0000_0000_0000_0000_0000_0007);
        assert_eq!(format!("{id:?}"), "d:abcdef01");
        assert_eq!(id.to_string(), "abcdef01000000000000000000000007");
    }
}
