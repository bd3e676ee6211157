//! The one way from token ids to text, for streams and whole answers alike:
//! ids → bytes → whole characters → beginning of the text → stop strings → pieces.
//!
//! A pure state machine: the same ids give the same pieces, so an answer that moves to another owner is run again from its
//! first id, and what was sent before is dropped. Joined, the pieces equal what decoding all ids at once gives. It costs
//! a copy of each token's bytes, and holds back an unfinished character and what may be the beginning of a stop string.

use std::sync::Arc;

use super::stops::StopSearch;
use super::tokens::{Lead, Sight, TokenTable};
use super::utf8::Utf8Stream;

/// What the text that a pipeline makes follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Nothing: it is a text of its own, such as an assistant's turn. A SentencePiece vocabulary's leading space is dropped.
    Fresh,
    /// The prompt's text, which it continues. A leading space parts two words and stays.
    Continuing,
}

/// What one more token adds to the text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Text that can be shown now. Often empty: special tokens, unfinished characters, held back beginnings of stop strings.
    pub text: String,
    /// A stop string was found, now or earlier. Nothing more will be shown; the generation can end.
    pub stopped: bool,
}

/// Turns the ids of one answer into text.
#[derive(Clone, Debug)]
pub struct TextPipeline {
    tokens: Arc<TokenTable>,
    end_ids: Arc<[u32]>,
    characters: Utf8Stream,
    lead: Lead,
    stops: StopSearch,
}

impl TextPipeline {
    pub(super) fn new(tokens: Arc<TokenTable>, end_ids: Arc<[u32]>, start: Start, stops: Vec<String>) -> Self {
        let lead = match start {
            Start::Fresh => tokens.lead,
            Start::Continuing => Lead::Keep,
        };
        Self { tokens, end_ids, characters: Utf8Stream::default(), lead, stops: StopSearch::new(stops) }
    }

    /// Takes the next id and returns what it adds. End tokens (F92, F93) and other special tokens add nothing.
    pub fn push(&mut self, id: u32) -> Piece {
        if self.stops.stopped() || self.tokens.sight(id) == Sight::Hidden || self.end_ids.binary_search(&id).is_ok() {
            return Piece { text: String::new(), stopped: self.stops.stopped() };
        }
        let tokens = Arc::clone(&self.tokens);
        let mut text = String::new();
        let bytes = self.after_lead(tokens.bytes(id));
        self.characters.push(bytes, &mut text);
        self.strip_lead(&mut text);
        let shown = self.stops.push(&text);
        Piece { text: shown, stopped: self.stops.stopped() }
    }

    /// Nothing more will come: returns what was held back. An unfinished character becomes one U+FFFD.
    pub fn finish(&mut self) -> String {
        if self.stops.stopped() {
            return String::new();
        }
        let mut text = String::new();
        self.characters.finish(&mut text);
        let mut shown = self.stops.push(&text);
        if !self.stops.stopped() {
            shown.push_str(&self.stops.finish());
        }
        shown
    }

    /// Whether a stop string was found.
    #[must_use]
    pub const fn stopped(&self) -> bool {
        self.stops.stopped()
    }

    /// [`Lead::FirstToken`], done: the first shown token without the spaces that it begins with.
    fn after_lead<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        if self.lead != Lead::FirstToken {
            return bytes;
        }
        self.lead = Lead::Keep;
        let spaces = bytes.iter().take_while(|&&byte| byte == b' ').count();
        &bytes[spaces..]
    }

    /// [`Lead::Strip`], done: over as soon as another character begins the text.
    fn strip_lead(&mut self, text: &mut String) {
        while let Lead::Strip { character, count: 1.. } = self.lead
            && !text.is_empty()
        {
            if text.starts_with(character) {
                text.drain(..character.len_utf8());
                self.count_down();
            } else {
                self.lead = Lead::Keep;
            }
        }
    }

    fn count_down(&mut self) {
        if let Lead::Strip { count, .. } = &mut self.lead {
            *count -= 1;
        }
    }
}
