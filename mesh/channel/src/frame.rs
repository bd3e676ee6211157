//! What is on a lane's TCP connection, byte for byte.
//!
//! ```text
//! preamble   sender to receiver, once: 80 bytes in clear and a 16-byte tag that proves the key
//! frame      40-byte header in clear, 16-byte tag over header and payload, payload (data frames only), sealed
//!
//! preamble   0 u64 magic   8 u16 version   10 u16 boundary   12 u32 zero   16 u128 deployment   32 u64 plan
//!            40 u64 generation   48 32 bytes: the sender's random value   80 tag
//! header     0 u32 magic   4 u8 version   5 u8 kind   6 u16 zero   8 u64 generation   16 u64 sequence
//!            24 u64 granted: messages that the other end may have sent in all   32 u32 payload bytes   36 u32 zero
//! ```
//! All little-endian, deployment big-endian as ids are written everywhere. `sequence` counts the frames of one direction
//! and is the nonce; the preamble is frame 0 of its direction. The receiver answers a preamble with a `Grant` (its frame 0),
//! the sender proves with a `KeepAlive` (its frame 1) that it read it; only then the lane is its own. So a preamble that was
//! recorded and sent again takes no lane, and a connection that the sender gave up for a better one neither.

use mesh_core::ids::{DeploymentId, PlanHash};
use mesh_core::wire::LaneId;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = size_of::<WireHeader>();
/// Bytes of an AES-GCM tag.
pub(crate) const TAG_BYTES: usize = 16;
/// Bytes before a frame's payload.
pub(crate) const PREFIX_BYTES: usize = HEADER_BYTES + TAG_BYTES;
/// Bytes of a preamble without its tag.
pub(crate) const PREAMBLE_CLEAR_BYTES: usize = size_of::<WirePreamble>();
/// Bytes of a preamble.
pub(crate) const PREAMBLE_BYTES: usize = PREAMBLE_CLEAR_BYTES + TAG_BYTES;

const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"mlan");
const PREAMBLE_MAGIC: u64 = u64::from_le_bytes(*b"meshlane");
const VERSION: u8 = 1;

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A message, from sender to receiver.
    Data = 1,
    /// More credit, from receiver to sender.
    Grant = 2,
    /// This end closes the lane on purpose.
    Goodbye = 3,
    /// Nothing to say, but alive.
    KeepAlive = 4,
}

/// A frame's header, read and checked in itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) generation: u64,
    pub(crate) sequence: u64,
    pub(crate) granted: u64,
    pub(crate) bytes: u32,
}

/// Why bytes on a connection are not what should be there. The lane ends: nothing after it can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("bytes that are no frame")]
    NoFrame,
    #[error("a frame of version {0}; this node speaks {VERSION}: update the older node")]
    Version(u8),
    #[error("a frame of unknown kind {0}")]
    Kind(u8),
    #[error("a frame of generation {theirs} on generation {ours}")]
    Generation { theirs: u64, ours: u64 },
    #[error("frame {theirs} where frame {ours} is due")]
    Sequence { theirs: u64, ours: u64 },
    #[error("a message of {bytes} bytes for slots of {slot_bytes}")]
    TooLong { bytes: u32, slot_bytes: usize },
    #[error("a frame whose seal does not open: changed on the way, or sealed with another key")]
    Seal,
    #[error("a message without credit")]
    NoCredit,
    #[error("a grant of {granted} messages when {sent} were sent into {slots} slots")]
    Grant { granted: u64, sent: u64, slots: u16 },
    #[error("a frame that only the other end may send")]
    WrongWay,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct WireHeader {
    magic: U32,
    version: u8,
    kind: u8,
    zero: U16,
    generation: U64,
    sequence: U64,
    granted: U64,
    bytes: U32,
    zero_too: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct WirePreamble {
    magic: U64,
    version: U16,
    boundary: U16,
    zero: U32,
    deployment: [u8; 16],
    plan: U64,
    generation: U64,
    random: [u8; 32],
}

const _: () = assert!(HEADER_BYTES == 40 && PREAMBLE_CLEAR_BYTES == 80);

impl Header {
    pub(crate) fn write(self) -> [u8; HEADER_BYTES] {
        let wire = WireHeader {
            magic: FRAME_MAGIC.into(),
            version: VERSION,
            kind: self.kind as u8,
            zero: 0.into(),
            generation: self.generation.into(),
            sequence: self.sequence.into(),
            granted: self.granted.into(),
            bytes: self.bytes.into(),
            zero_too: 0.into(),
        };
        zerocopy::transmute!(wire)
    }

    /// Reads a header from exactly [`HEADER_BYTES`] bytes, which are copied before they are looked at.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, FrameError> {
        let wire = WireHeader::read_from_bytes(bytes).map_err(|_| FrameError::NoFrame)?;
        if wire.magic.get() != FRAME_MAGIC {
            return Err(FrameError::NoFrame);
        }
        if wire.version != VERSION {
            return Err(FrameError::Version(wire.version));
        }
        let kind = match wire.kind {
            1 => Kind::Data,
            2 => Kind::Grant,
            3 => Kind::Goodbye,
            4 => Kind::KeepAlive,
            other => return Err(FrameError::Kind(other)),
        };
        let bytes = wire.bytes.get();
        if wire.zero.get() != 0 || wire.zero_too.get() != 0 || (kind != Kind::Data && bytes != 0) {
            return Err(FrameError::NoFrame);
        }
        Ok(Self { kind, generation: wire.generation.get(), sequence: wire.sequence.get(), granted: wire.granted.get(), bytes })
    }
}

/// What a connection says first: which generation of which lane it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Preamble {
    pub(crate) lane: LaneId,
    pub(crate) generation: u64,
    pub(crate) random: [u8; 32],
}

impl Preamble {
    pub(crate) fn write(&self) -> [u8; PREAMBLE_CLEAR_BYTES] {
        let wire = WirePreamble {
            magic: PREAMBLE_MAGIC.into(),
            version: u16::from(VERSION).into(),
            boundary: self.lane.boundary.into(),
            zero: 0.into(),
            deployment: self.lane.deployment.0.to_be_bytes(),
            plan: self.lane.plan.0.into(),
            generation: self.generation.into(),
            random: self.random,
        };
        zerocopy::transmute!(wire)
    }

    /// Reads a preamble from exactly [`PREAMBLE_CLEAR_BYTES`] bytes. `None`: it is none.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let wire = WirePreamble::read_from_bytes(bytes).ok()?;
        if wire.magic.get() != PREAMBLE_MAGIC || wire.version.get() != u16::from(VERSION) || wire.zero.get() != 0 {
            return None;
        }
        let lane = LaneId {
            deployment: DeploymentId(u128::from_be_bytes(wire.deployment)),
            plan: PlanHash(wire.plan.get()),
            boundary: wire.boundary.get(),
        };
        Some(Self { lane, generation: wire.generation.get(), random: wire.random })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SOUND: Header = Header { kind: Kind::Data, generation: 7, sequence: 9, granted: 11, bytes: 4096 };

    fn changed(at: usize, value: u8) -> Result<Header, FrameError> {
        let mut bytes = SOUND.write();
        bytes[at] = value;
        Header::read(&bytes)
    }

    #[test]
    fn each_field_of_a_header_is_checked() {
        assert_eq!(Header::read(&SOUND.write()), Ok(SOUND));
        assert_eq!(changed(0, 0), Err(FrameError::NoFrame));
        assert_eq!(changed(4, 2), Err(FrameError::Version(2)));
        assert_eq!(changed(5, 0), Err(FrameError::Kind(0)));
        assert_eq!(changed(5, 255), Err(FrameError::Kind(255)));
        assert_eq!(changed(5, Kind::Grant as u8), Err(FrameError::NoFrame), "only data has a payload");
        assert_eq!(changed(6, 1), Err(FrameError::NoFrame));
        assert_eq!(changed(39, 1), Err(FrameError::NoFrame));
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_are_what_would_be_written(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(header) = Header::read(&bytes) {
                prop_assert_eq!(header.write().to_vec(), bytes.clone());
            }
            if let Some(preamble) = Preamble::read(&bytes) {
                prop_assert_eq!(preamble.write().to_vec(), bytes);
            }
        }

        #[test]
        fn one_changed_byte_is_refused_or_read_as_it_is(at in 0..HEADER_BYTES, value: u8) {
            let mut bytes = SOUND.write();
            bytes[at] = value;
            if let Ok(header) = Header::read(&bytes) {
                prop_assert_eq!(header.write(), bytes);
            }
        }

        #[test]
        fn what_is_written_is_read(kind in 1..=4_u8, generation: u64, sequence: u64, granted: u64, bytes: u32) {
            let kind = [Kind::Data, Kind::Grant, Kind::Goodbye, Kind::KeepAlive][usize::from(kind) - 1];
            let header = Header { kind, generation, sequence, granted, bytes: if kind == Kind::Data { bytes } else { 0 } };
            prop_assert_eq!(Header::read(&header.write()), Ok(header));
        }

        #[test]
        fn preambles_are_read_as_written(deployment: u128, plan: u64, boundary: u16, generation: u64, random: [u8; 32]) {
            let lane = LaneId { deployment: DeploymentId(deployment), plan: PlanHash(plan), boundary };
            let preamble = Preamble { lane, generation, random };
            prop_assert_eq!(Preamble::read(&preamble.write()), Some(preamble));
        }
    }
}
