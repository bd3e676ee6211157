//! What an operator should know: each thing once, and not for longer than it is true of the last while.

use std::collections::VecDeque;

use mesh_core::ids::Time;

/// Things that are kept at most.
const NOTICES_MAX: usize = 32;
/// A notice that did not come again is shown so long (guess: who looks after something went wrong looks sooner).
const NOTICE_MS: u64 = 10 * 60_000;

/// Notices and when each last came, newest last.
#[derive(Default)]
pub(super) struct Notices(VecDeque<(Time, String)>);

impl Notices {
    /// Takes a notice. One that is there already moves to the end and is no news; says whether this one is.
    pub fn take(&mut self, now: Time, notice: String) -> bool {
        self.0.retain(|(at, _)| now.ms_since(*at) < NOTICE_MS);
        let known = self.0.iter().position(|(_, known)| *known == notice).and_then(|index| self.0.remove(index));
        self.0.push_back((now, notice));
        self.0.drain(..self.0.len().saturating_sub(NOTICES_MAX));
        known.is_none()
    }

    /// What came lately.
    pub fn fresh(&self, now: Time) -> Vec<String> {
        self.0.iter().filter(|(at, _)| now.ms_since(*at) < NOTICE_MS).map(|(_, notice)| notice.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_shown_once_and_ends_when_its_cause_has_ended() {
        let (mut notices, start) = (Notices::default(), Time(1_000_000_000));
        assert!(notices.take(start, "a".to_owned()) && notices.take(start, "b".to_owned()));
        assert!(!notices.take(start.plus_ms(60_000), "a".to_owned()), "no news");
        assert_eq!(notices.fresh(start.plus_ms(60_000)), ["b", "a"]);
        assert_eq!(notices.fresh(start.plus_ms(NOTICE_MS)), ["a"], "b did not come again");
        assert!(notices.take(start.plus_ms(2 * NOTICE_MS), "a".to_owned()), "after so long it is news again");
        assert!((0..100).all(|index| notices.take(start.plus_ms(2 * NOTICE_MS), index.to_string())));
        assert_eq!(notices.fresh(start.plus_ms(2 * NOTICE_MS)).len(), NOTICES_MAX);
    }
}
