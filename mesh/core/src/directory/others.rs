//! Records that this program cannot read: kept as bytes, told like the rest, bounded in number and size.

use std::collections::BTreeMap;

use crate::records::{OtherRecord, RecordKey};

use super::Merged;

/// Unreadable records that are remembered at most.
pub const OTHERS_MAX: usize = 1_024;
/// Bytes of them at most: as many as a joiner can be told in a second over a slow line.
pub const OTHERS_BYTES_MAX: usize = 4 << 20;

/// The newest version of each.
#[derive(Clone, Debug, Default)]
pub(super) struct Others {
    records: BTreeMap<RecordKey, (OtherRecord, u64)>,
    bytes: usize,
}

impl Others {
    /// Takes a record if it is greater by format, version and hash.
    pub fn merge(&mut self, record: OtherRecord, hash: u64) -> Merged {
        let key = RecordKey::from((record.kind, record.id));
        let known = self.records.get(&key);
        if known.is_some_and(|(known, known_hash)| order(&record, hash) <= order(known, *known_hash)) {
            return Merged::Known;
        }
        let bytes = self.bytes - known.map_or(0, |(known, _)| size(known)) + size(&record);
        if bytes > OTHERS_BYTES_MAX || (known.is_none() && self.records.len() >= OTHERS_MAX) {
            return Merged::Refused("more of unknown kinds than can be remembered");
        }
        self.bytes = bytes;
        self.records.insert(key, (record, hash));
        Merged::Newer
    }

    pub fn record(&self, key: RecordKey) -> Option<&OtherRecord> {
        self.records.get(&key).map(|entry| &entry.0)
    }

    pub fn hash_of(&self, key: RecordKey) -> Option<u64> {
        self.records.get(&key).map(|entry| entry.1)
    }

    pub fn digest(&self) -> impl Iterator<Item = (RecordKey, u64)> {
        self.records.iter().map(|(key, entry)| (*key, entry.1))
    }
}

fn order(record: &OtherRecord, hash: u64) -> (u16, &[u8], u64) {
    (record.format, &record.version, hash)
}

/// With a guess of what the map takes beside them.
fn size(record: &OtherRecord) -> usize {
    record.version.len() + record.body.len() + 128
}
