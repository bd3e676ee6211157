//! Names of things: nodes, boots, deployments, streams, hashes, and time.
//!
//! Each is its own type, so that a stream id can never be passed where a deployment id is meant. All are plain
//! values: ordered (a `BTreeMap` key), copied freely, printed short in logs and whole in JSON.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A node's lasting name: its ed25519 public key. It outlives restarts; see [`BootId`] for one start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub [u8; 32]);

/// 128 random bits drawn at each start of a node (R15): tells two lives of one key apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootId(pub u128);

/// A deployment's name: 128 random bits, never used again after a deletion (R16).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeploymentId(pub u128);

/// A generation's name: 128 random bits; showing it is what lets a client resume (R7).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u128);

/// Hash of a plan's contents (R1). Acceptance is equality of this, never a comparison of numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlanHash(pub u64);

/// blake3 of some content: of a model's headers and sizes, or of a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

/// Rolling 64-bit hash of token ids `0..position` (R3).
///
/// Two stages that agree on (position, hash) agree on every token before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

/// Bytes from exactly `N` pairs of hex digits.
fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N || !text.is_ascii() {
        return None;
    }
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(bytes)
}

/// Text that is not the hex form of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not {digits} hexadecimal digits")]
pub struct NotHex {
    /// How many digits there should be.
    pub digits: usize,
}

/// `Display` is the whole value in hex, `Debug` its first eight digits behind a letter. Written as hex in JSON and TOML,
/// as plain bytes on the wire.
macro_rules! hex_names {
    ($($name:ident $letter:literal $size:literal $bytes:expr, $from:expr;)*) => {$(
        impl $name {
            fn to_bytes(self) -> [u8; $size] {
                let of: fn($name) -> [u8; $size] = $bytes;
                of(self)
            }
            fn from_bytes(bytes: [u8; $size]) -> Self {
                let of: fn([u8; $size]) -> $name = $from;
                of(bytes)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                hex(f, &self.to_bytes())
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str($letter)?;
                hex(f, &self.to_bytes()[..4])
            }
        }
        impl std::str::FromStr for $name {
            type Err = NotHex;
            fn from_str(text: &str) -> Result<Self, NotHex> {
                unhex::<$size>(text).map(Self::from_bytes).ok_or(NotHex { digits: 2 * $size })
            }
        }
        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                if serializer.is_human_readable() { serializer.collect_str(self) } else { self.to_bytes().serialize(serializer) }
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                if deserializer.is_human_readable() {
                    let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                    text.parse().map_err(serde::de::Error::custom)
                } else {
                    <[u8; $size]>::deserialize(deserializer).map(Self::from_bytes)
                }
            }
        }
    )*};
}
hex_names! {
    NodeId "n:" 32 |id| id.0, NodeId;
    BootId "b:" 16 |id| id.0.to_be_bytes(), |bytes| BootId(u128::from_be_bytes(bytes));
    DeploymentId "d:" 16 |id| id.0.to_be_bytes(), |bytes| DeploymentId(u128::from_be_bytes(bytes));
    StreamId "s:" 16 |id| id.0.to_be_bytes(), |bytes| StreamId(u128::from_be_bytes(bytes));
    PlanHash "p:" 8 |id| id.0.to_be_bytes(), |bytes| PlanHash(u64::from_be_bytes(bytes));
    PrefixHash "h:" 8 |id| id.0.to_be_bytes(), |bytes| PrefixHash(u64::from_be_bytes(bytes));
    Digest "blake3:" 32 |id| id.0, |bytes| Digest(bytes);
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

    #[test]
    fn names_are_read_back_from_their_text() {
        let id = NodeId([0xab; 32]);
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!("zz".parse::<PlanHash>(), Err(NotHex { digits: 16 }));
    }
}
