//! Stop strings, found over any token boundaries (F90).
//!
//! The first stop string to become complete ends the text, and the text before it is all that is shown. What could be the
//! beginning of a stop string is held back until it is one, or cannot become one. "First to become complete" (of those
//! that end at the same byte, the longest) does not depend on how the text was cut into pieces; "leftmost", as a search
//! in the whole text would say, would. So a stream and a whole answer show the same.

/// Looks for stop strings in text that arrives in pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StopSearch {
    stops: Vec<String>,
    held: String,
    stopped: bool,
}

impl StopSearch {
    /// Looks for `stops`; empty ones are ignored, since they would end any text before it began.
    pub(super) fn new(mut stops: Vec<String>) -> Self {
        stops.retain(|stop| !stop.is_empty());
        Self { stops, held: String::new(), stopped: false }
    }

    /// Whether a stop string was found.
    pub(super) const fn stopped(&self) -> bool {
        self.stopped
    }

    /// Takes text and returns what can be shown now.
    pub(super) fn push(&mut self, text: &str) -> String {
        if self.stopped {
            return String::new();
        }
        self.held.push_str(text);
        if let Some(start) = self.first_complete() {
            self.stopped = true;
            self.held.truncate(start);
            return std::mem::take(&mut self.held);
        }
        let shown_len = self.held.len() - self.begun_len();
        let shown = self.held[..shown_len].to_owned();
        self.held.drain(..shown_len);
        shown
    }

    /// Nothing more will come: what was held back is no stop string after all.
    pub(super) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Where the stop string begins that is complete first.
    fn first_complete(&self) -> Option<usize> {
        let found = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str()).map(|start| (start + stop.len(), start)));
        found.min().map(|(_, start)| start)
    }

    /// The length of the longest end of the held text that a stop string begins with.
    fn begun_len(&self) -> usize {
        let begun = |stop: &String| {
            let longest = self.held.len().min(stop.len() - 1);
            (1..=longest).rev().find(|&len| self.held.as_bytes().ends_with(&stop.as_bytes()[..len])).unwrap_or(0)
        };
        self.stops.iter().map(begun).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, bool) {
        let mut search = StopSearch::new(stops.iter().map(|stop| (*stop).to_owned()).collect());
        let mut shown: Vec<String> = pieces.iter().map(|piece| search.push(piece)).collect();
        shown.push(search.finish());
        (shown, search.stopped())
    }

    #[test]
    fn a_stop_over_tokens_is_found_and_nothing_of_it_leaks() {
        let (shown, stopped) = run(&["beta gamma"], &["alpha", " be", "ta", " gam", "ma", " delta"]);
        assert_eq!(shown, ["alpha", " ", "", "", "", "", ""]);
        assert!(stopped);
    }

    #[test]
    fn a_false_alarm_is_released() {
        let (shown, stopped) = run(&["beta gamma"], &["alpha be", "ta", " gone"]);
        assert_eq!(shown, ["alpha ", "", "beta gone", ""]);
        assert!(!stopped);
    }

    #[test]
    fn what_is_held_at_the_end_is_released() {
        assert_eq!(run(&["###"], &["a#", "#"]), (vec!["a".into(), String::new(), "##".into()], false));
    }

    #[test]
    fn the_first_to_be_complete_wins_and_then_the_longest() {
        assert_eq!(run(&["abcd", "bc"], &["xabcd"]).0.concat(), "xa");
        assert_eq!(run(&["c", "bc"], &["abc"]).0.concat(), "a");
    }

    #[test]
    fn a_begun_stop_may_begin_again_inside_itself() {
        assert_eq!(run(&["aab"], &["a", "a", "a", "b", "z"]).0.concat(), "a");
    }

    #[test]
    fn no_stops_hold_nothing_back() {
        assert_eq!(run(&["", ""], &["a", "b"]), (vec!["a".into(), "b".into(), String::new()], false));
    }

    proptest! {
        /// Whatever the pieces, the same text is shown; it has no stop string in it, and without one it is all shown.
        #[test]
        fn the_cut_does_not_matter(
            text in "[abé🙂]{0,24}",
            stops in proptest::collection::vec("[abé🙂]{1,4}", 0..3),
            cuts in proptest::collection::vec(0_usize..24, 0..6),
        ) {
            let whole: Vec<&str> = vec![&text];
            let stop_refs: Vec<&str> = stops.iter().map(String::as_str).collect();
            let mut at: Vec<usize> = cuts.into_iter().filter(|&cut| text.is_char_boundary(cut.min(text.len()))).map(|cut| cut.min(text.len())).collect();
            at.extend([0, text.len()]);
            at.sort_unstable();
            let pieces: Vec<&str> = at.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
            let (in_pieces, stopped) = run(&stop_refs, &pieces);
            let (at_once, stopped_at_once) = run(&stop_refs, &whole);
            let shown = in_pieces.concat();
            prop_assert_eq!(&shown, &at_once.concat());
            prop_assert_eq!(stopped, stopped_at_once);
            prop_assert_eq!(stopped, stops.iter().any(|stop| text.contains(stop.as_str())));
            prop_assert!(text.starts_with(&shown));
            prop_assert!(!stops.iter().any(|stop| shown.contains(stop.as_str())));
            if !stopped { prop_assert_eq!(shown, text); }
        }
    }
}
