//! The same trouble is told once a minute, not once a try.

use std::collections::BTreeMap;

use mesh_core::ids::Time;

/// Between two notices of the same kind about the same address.
const PAUSE_MS: u64 = 60_000;

/// Addresses remembered; beyond it the oldest is forgotten.
const REMEMBERED_MAX: usize = 256;

/// Remembers what was told when.
#[derive(Debug, Default)]
pub struct Notices {
    told: BTreeMap<(String, &'static str), Time>,
}

impl Notices {
    /// Whether this may be told now. Saying yes counts as telling it.
    pub fn may_tell(&mut self, now: Time, address: &str, kind: &'static str) -> bool {
        let key = (address.to_owned(), kind);
        if self.told.get(&key).is_some_and(|told| now.ms_since(*told) < PAUSE_MS) {
            return false;
        }
        if self.told.len() >= REMEMBERED_MAX
            && let Some(oldest) = self.told.iter().min_by_key(|(_, told)| **told).map(|(key, _)| key.clone())
        {
            self.told.remove(&oldest);
        }
        self.told.insert(key, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_a_minute_each_and_bounded() {
        let mut notices = Notices::default();
        let start = Time::default();
        assert!(notices.may_tell(start, "a", "secret"));
        assert!(!notices.may_tell(start.plus_ms(59_999), "a", "secret"));
        assert!(notices.may_tell(start, "a", "version") && notices.may_tell(start, "b", "secret"));
        assert!(notices.may_tell(start.plus_ms(60_000), "a", "secret"));
        (0..1000).for_each(|index| {
            notices.may_tell(start.plus_ms(index), &index.to_string(), "secret");
        });
        assert_eq!(notices.told.len(), REMEMBERED_MAX);
    }
}
