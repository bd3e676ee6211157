//! A step's output on one lane (R17): header, table of rows, payload, in fixed little-endian layout.
//!
//! ```text
//! 0   u32 magic "mstp"     4   u16 version     6   u16 rows
//! 8   u64 plan hash        16  u32 width       20  u32 values type (0 = f32)
//! 24  u32 payload offset   28  u32 payload bytes
//! 32  rows, 56 bytes each: u128 stream, u64 attempt, u32 first, u32 count, u64 hash before, u64 hash after,
//!     u32 flags (bit 0: choose a token after the last position), u32 zero
//! payload offset (a multiple of 64): (sum of counts, width) values
//! ```
//! Everything is copied out and checked before it is used: counts, lengths, overflow, alignment. A row stands for
//! positions `first..first + count` of a stream; a message longer than a slot is cut by rows, a row by positions.

use crate::generation::AttemptTag;
use crate::ids::{PlanHash, PrefixHash, StreamId};

/// Bytes before the table of rows.
pub const HEADER_BYTES: usize = 32;
/// Bytes of one row's entry.
pub const ROW_BYTES: usize = 56;
/// Rows in one message at most.
pub const ROWS_MAX: usize = 1024;
const MAGIC: u32 = u32::from_le_bytes(*b"mstp");
const VERSION: u16 = 1;

/// One stream's part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The stream.
    pub stream: StreamId,
    /// The attempt.
    pub attempt: AttemptTag,
    /// First position.
    pub first: u32,
    /// How many positions; at least one.
    pub count: u32,
    /// Prefix hash before the first position.
    pub hash_before: PrefixHash,
    /// Prefix hash after the last.
    pub hash_after: PrefixHash,
    /// Whether a token is to be chosen after the last position.
    pub sample: bool,
}

/// A message, parsed and checked. Borrows nothing but the payload.
#[derive(Debug, PartialEq)]
pub struct StepMessage<'a> {
    /// The plan.
    pub plan: PlanHash,
    /// Values a position.
    pub width: u32,
    /// The rows.
    pub rows: Vec<Row>,
    /// (sum of counts, width) f32 values, still as bytes; a multiple of 64 into the message.
    pub payload: &'a [u8],
}

/// Why bytes are no step message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed step message: {0}")]
pub struct StepMessageError(pub &'static str);

/// Offset of the payload in a message of so many rows.
#[must_use]
pub const fn payload_offset(rows: usize) -> usize {
    (HEADER_BYTES + rows * ROW_BYTES).next_multiple_of(64)
}

/// Writes header and rows into a slot and returns the message's length. The payload goes to `payload_offset(rows.len())`.
///
/// # Panics
/// If the message does not fit the slot: the caller cut it wrongly.
pub fn write(slot: &mut [u8], plan: PlanHash, width: u32, rows: &[Row]) -> usize {
    assert!(!rows.is_empty() && rows.len() <= ROWS_MAX, "a message has 1..={ROWS_MAX} rows");
    let offset = payload_offset(rows.len());
    let positions: usize = rows.iter().map(|row| row.count as usize).sum();
    let payload = positions * width as usize * 4;
    assert!(offset + payload <= slot.len(), "message of {} bytes for a slot of {}", offset + payload, slot.len());
    let u32_of = |value: usize| u32::try_from(value).expect("a slot is shorter than 4 GiB").to_le_bytes();
    slot[0..4].copy_from_slice(&MAGIC.to_le_bytes());
    slot[4..6].copy_from_slice(&VERSION.to_le_bytes());
    slot[6..8].copy_from_slice(&u16::try_from(rows.len()).expect("ROWS_MAX fits").to_le_bytes());
    slot[8..16].copy_from_slice(&plan.0.to_le_bytes());
    slot[16..20].copy_from_slice(&width.to_le_bytes());
    slot[20..24].copy_from_slice(&0_u32.to_le_bytes());
    slot[24..28].copy_from_slice(&u32_of(offset));
    slot[28..32].copy_from_slice(&u32_of(payload));
    for (row, entry) in rows.iter().zip(slot[HEADER_BYTES..offset].chunks_exact_mut(ROW_BYTES)) {
        entry[0..16].copy_from_slice(&row.stream.0.to_le_bytes());
        entry[16..24].copy_from_slice(&row.attempt.0.to_le_bytes());
        entry[24..28].copy_from_slice(&row.first.to_le_bytes());
        entry[28..32].copy_from_slice(&row.count.to_le_bytes());
        entry[32..40].copy_from_slice(&row.hash_before.0.to_le_bytes());
        entry[40..48].copy_from_slice(&row.hash_after.0.to_le_bytes());
        entry[48..52].copy_from_slice(&u32::from(row.sample).to_le_bytes());
        entry[52..56].fill(0);
    }
    offset + payload
}

/// Reads a message.
///
/// # Errors
/// Anything that does not add up.
pub fn read(bytes: &[u8]) -> Result<StepMessage<'_>, StepMessageError> {
    let no = |what| Err(StepMessageError(what));
    if bytes.len() < HEADER_BYTES {
        return no("shorter than its header");
    }
    if u32_at(bytes, 0) != MAGIC {
        return no("wrong magic");
    }
    if u16_at(bytes, 4) != VERSION {
        return no("unknown version");
    }
    let count = usize::from(u16_at(bytes, 6));
    if count == 0 || count > ROWS_MAX {
        return no("no rows, or too many");
    }
    let width = u32_at(bytes, 16);
    if width == 0 || u32_at(bytes, 20) != 0 {
        return no("unknown type of values, or no width");
    }
    let (offset, payload) = (u32_at(bytes, 24) as usize, u32_at(bytes, 28) as usize);
    if offset != payload_offset(count) || offset.checked_add(payload) != Some(bytes.len()) {
        return no("payload does not fill the message");
    }
    let mut rows = Vec::with_capacity(count);
    let mut positions = 0_u64;
    for entry in bytes[HEADER_BYTES..HEADER_BYTES + count * ROW_BYTES].chunks_exact(ROW_BYTES) {
        let flags = u32_at(entry, 48);
        let row = Row {
            stream: StreamId(u128::from_le_bytes(entry[..16].try_into().expect("16 bytes"))),
            attempt: AttemptTag(u64_at(entry, 16)),
            first: u32_at(entry, 24),
            count: u32_at(entry, 28),
            hash_before: PrefixHash(u64_at(entry, 32)),
            hash_after: PrefixHash(u64_at(entry, 40)),
            sample: flags & 1 == 1,
        };
        if row.count == 0 || row.first.checked_add(row.count).is_none() || flags > 1 || u32_at(entry, 52) != 0 {
            return no("a row with no positions, too many, or unknown flags");
        }
        positions += u64::from(row.count);
        rows.push(row);
    }
    if positions.checked_mul(u64::from(width) * 4) != Some(payload as u64) {
        return no("payload length is not rows times width");
    }
    Ok(StepMessage { plan: PlanHash(u64_at(bytes, 8)), width, rows, payload: &bytes[offset..] })
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("2 bytes"))
}
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn row(first: u32, count: u32) -> Row {
        Row {
            stream: StreamId(7),
            attempt: AttemptTag(9),
            first,
            count,
            hash_before: PrefixHash(1),
            hash_after: PrefixHash(2),
            sample: first == 0,
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let rows = [row(0, 3), row(5, 1)];
        let mut slot = vec![0xAA; 1024];
        let bytes = write(&mut slot, PlanHash(42), 8, &rows);
        let message = read(&slot[..bytes]).expect("sound");
        assert_eq!(
            (message.plan, message.width, message.rows.as_slice(), message.payload.len()),
            (PlanHash(42), 8, rows.as_slice(), 4 * 8 * 4)
        );
    }

    proptest! {
        #[test]
        fn garbage_is_refused_or_adds_up(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(message) = read(&bytes) {
                let positions: usize = message.rows.iter().map(|row| row.count as usize).sum();
                prop_assert_eq!(message.payload.len(), positions * message.width as usize * 4);
            }
        }

        #[test]
        fn one_changed_byte_never_panics(at in 0_usize..208, byte in any::<u8>()) {
            let mut slot = vec![0; 1024];
            let bytes = write(&mut slot, PlanHash(42), 4, &[row(0, 3), row(5, 1)]);
            slot[at] = byte;
            let _ = read(&slot[..bytes]);
        }
    }
}
