//! SentencePiece vocabularies inside GGUF files (`tokenizer.ggml.model` = `llama`): tokens with scores and no list of merges.
//!
//! Encoding is the field's greedy one. The text starts as characters; of all neighbouring pairs that make a token, the one
//! with the best score is joined first (the leftmost of equals), until none is left. A character that is no token becomes its UTF-8
//! bytes' tokens, `<0xE5>` and so on. This is not what Viterbi over the scores gives (`Unigram`), and a list of merges that
//! reproduces it does not exist for every vocabulary, so it is written out here. A heap makes it n log n.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

/// A vocabulary with scores.
#[derive(Debug)]
pub(super) struct Spm {
    by_text: HashMap<Vec<u8>, u32>,
    scores: Vec<f32>,
    bytes: Box<[Option<u32>; 256]>,
    unknown: Option<u32>,
    longest: usize,
    special: SpecialTokens,
    space_prefix: bool,
}

/// A token of the vocabulary, as [`Spm::new`] takes it. Its id is its index.
pub(super) struct SpmToken<'a> {
    pub(super) text: &'a str,
    pub(super) score: f32,
    /// Found in the text as it reads, before anything else.
    pub(super) special: bool,
    /// Set if it is the token of this byte.
    pub(super) byte: Option<u8>,
}

impl Spm {
    /// `space_prefix`: whether a space goes before the text, and before what follows a special token.
    pub(super) fn new(tokens: &[SpmToken<'_>], unknown: Option<u32>, space_prefix: bool) -> Self {
        let mut spm = Self {
            by_text: HashMap::with_capacity(tokens.len()),
            scores: tokens.iter().map(|token| token.score).collect(),
            bytes: Box::new([None; 256]),
            unknown,
            longest: 0,
            special: SpecialTokens::default(),
            space_prefix,
        };
        for (id, token) in (0_u32..).zip(tokens) {
            if token.text.is_empty() {
                continue;
            }
            spm.by_text.entry(token.text.as_bytes().to_vec()).or_insert(id);
            spm.longest = spm.longest.max(token.text.len());
            if token.special {
                spm.special.add(token.text, id);
            }
            if let Some(byte) = token.byte {
                spm.bytes[usize::from(byte)] = Some(id);
            }
        }
        spm
    }

    /// The ids of a text, special tokens in it included, none added around it.
    pub(super) fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 1);
        for part in self.special.split(text) {
            match part {
                Part::Special(id) => ids.push(id),
                Part::Text(text) => {
                    let prefix = if self.space_prefix { " " } else { "" };
                    self.encode_text(&format!("{prefix}{text}").replace(' ', "▁"), &mut ids);
                }
            }
        }
        ids
    }

    fn encode_text(&self, text: &str, ids: &mut Vec<u32>) {
        let mut symbols = Symbols::new(text);
        let mut pairs = BinaryHeap::new();
        for left in 0..symbols.list.len().saturating_sub(1) {
            pairs.extend(self.pair(&symbols, Some(left), Some(left + 1)));
        }
        while let Some(pair) = pairs.pop() {
            if !symbols.is_current(&pair) {
                continue;
            }
            let (before, after) = symbols.join(pair.left, pair.right);
            pairs.extend(self.pair(&symbols, before, Some(pair.left)));
            pairs.extend(self.pair(&symbols, Some(pair.left), after));
        }
        for symbol in symbols.list.iter().filter(|symbol| symbol.len > 0) {
            self.push_symbol(&text.as_bytes()[symbol.start..symbol.start + symbol.len], ids);
        }
    }

    /// The pair of two neighbours, if it is a token.
    fn pair(&self, symbols: &Symbols<'_>, left: Option<usize>, right: Option<usize>) -> Option<Pair> {
        let (left, right) = (left?, right?);
        let bytes = symbols.bytes_of(left, right);
        if bytes.len() > self.longest {
            return None;
        }
        let id = *self.by_text.get(bytes)?;
        Some(Pair { score: self.scores[id as usize], left, right, len: bytes.len() })
    }

    /// The token of a symbol, or the tokens of its bytes.
    fn push_symbol(&self, bytes: &[u8], ids: &mut Vec<u32>) {
        if let Some(id) = self.by_text.get(bytes) {
            ids.push(*id);
            return;
        }
        let tokens: Option<Vec<u32>> = bytes.iter().map(|&byte| self.bytes[usize::from(byte)]).collect();
        match tokens {
            Some(tokens) => ids.extend(tokens),
            None => ids.extend(self.unknown),
        }
    }
}

/// A pair of neighbouring symbols that makes a token.
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    /// Bytes of both when the pair was found; another length now means that one of them has grown since.
    len: usize,
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left)).then(self.len.cmp(&other.len))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

/// A text as a chain of symbols, each a stretch of its bytes.
struct Symbols<'a> {
    text: &'a [u8],
    list: Vec<Symbol>,
}

struct Symbol {
    start: usize,
    /// 0 once it was joined to the symbol before it.
    len: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

impl<'a> Symbols<'a> {
    fn new(text: &'a str) -> Self {
        let count = text.chars().count();
        let symbol = |(index, (start, character)): (usize, (usize, char))| Symbol {
            start,
            len: character.len_utf8(),
            previous: index.checked_sub(1),
            next: (index + 1 < count).then_some(index + 1),
        };
        Self { text: text.as_bytes(), list: text.char_indices().enumerate().map(symbol).collect() }
    }

    fn bytes_of(&self, left: usize, right: usize) -> &'a [u8] {
        &self.text[self.list[left].start..self.list[right].start + self.list[right].len]
    }

    fn is_current(&self, pair: &Pair) -> bool {
        let (left, right) = (self.list[pair.left].len, self.list[pair.right].len);
        left > 0 && right > 0 && left + right == pair.len
    }

    /// Joins two neighbours into the left one; returns the neighbours of the whole.
    fn join(&mut self, left: usize, right: usize) -> (Option<usize>, Option<usize>) {
        self.list[left].len += self.list[right].len;
        self.list[right].len = 0;
        self.list[left].next = self.list[right].next;
        if let Some(after) = self.list[right].next {
            self.list[after].previous = Some(left);
        }
        (self.list[left].previous, self.list[left].next)
    }
}

/// Tokens that are found in the text as they read.
#[derive(Debug, Default)]
struct SpecialTokens {
    by_text: HashMap<Vec<u8>, u32>,
    /// By first byte: the lengths that occur, longest first.
    lengths: HashMap<u8, Vec<usize>>,
}

/// A stretch of text between special tokens, or one of these.
#[derive(Debug, PartialEq, Eq)]
enum Part<'a> {
    Text(&'a str),
    Special(u32),
}

impl SpecialTokens {
    fn add(&mut self, text: &str, id: u32) {
        let bytes = text.as_bytes();
        self.by_text.entry(bytes.to_vec()).or_insert(id);
        let lengths = self.lengths.entry(bytes[0]).or_default();
        if let Err(at) = lengths.binary_search_by(|len| bytes.len().cmp(len)) {
            lengths.insert(at, bytes.len());
        }
    }

    /// Leftmost first, of those that begin there the longest.
    fn split<'a>(&self, text: &'a str) -> Vec<Part<'a>> {
        let (mut parts, mut from, mut at) = (Vec::new(), 0, 0);
        while at < text.len() {
            let Some((id, len)) = self.at(&text.as_bytes()[at..]) else {
                at += 1;
                continue;
            };
            if from < at {
                parts.push(Part::Text(&text[from..at]));
            }
            parts.push(Part::Special(id));
            at += len;
            from = at;
        }
        if from < text.len() {
            parts.push(Part::Text(&text[from..]));
        }
        parts
    }

    fn at(&self, rest: &[u8]) -> Option<(u32, usize)> {
        let lengths = self.lengths.get(rest.first()?)?;
        lengths.iter().find_map(|&len| self.by_text.get(rest.get(..len)?).map(|&id| (id, len)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str, score: f32) -> SpmToken<'_> {
        let byte = text.strip_prefix("<0x").and_then(|rest| u8::from_str_radix(rest.strip_suffix('>')?, 16).ok());
        SpmToken { text, score, special: text.starts_with("<s"), byte }
    }

    fn vocabulary(space_prefix: bool) -> Spm {
        let mut tokens = vec![token("<unk>", 0.0), token("<s>", 0.0), token("<s>x", 0.0)];
        let bytes: Vec<String> = (0..=255_u8).map(|byte| format!("<0x{byte:02X}>")).collect();
        tokens.extend(bytes.iter().map(|text| token(text, 0.0)));
        tokens.extend([token("▁", -1e9), token("a", -1e9), token("b", -1e9), token("c", -1e9)]); // 259..=262
        tokens.extend([token("ab", -2.0), token("bc", -1.0), token("▁ab", -3.0), token("aa", -4.0)]); // 263..=266
        Spm::new(&tokens, Some(0), space_prefix)
    }

    #[test]
    fn the_best_score_is_joined_first_not_the_longest_token() {
        assert_eq!(vocabulary(false).encode("abc"), [260, 264]); // a + bc, since bc is better than ab
        assert_eq!(vocabulary(false).encode("ab"), [263]);
        assert_eq!(vocabulary(true).encode("ab"), [265]);
    }

    #[test]
    fn the_leftmost_of_equals_is_joined_first() {
        assert_eq!(vocabulary(false).encode("aaa"), [266, 260]);
    }

    #[test]
    fn characters_beside_the_vocabulary_become_bytes() {
        let e5 = 3 + 0xE5;
        assert_eq!(vocabulary(false).encode("叫"), [e5, 3 + 0x8F, 3 + 0xAB]);
        assert_eq!(Spm::new(&[token("<unk>", 0.0)], Some(0), false).encode("z"), [0]);
    }

    #[test]
    fn special_tokens_are_found_first_and_the_space_comes_after_them() {
        assert_eq!(vocabulary(true).encode("ab<s>ab<s>x"), [265, 1, 265, 2]);
        assert_eq!(vocabulary(true).encode(""), [0_u32; 0]);
        assert_eq!(vocabulary(true).encode(" "), [259, 259]);
    }

    #[test]
    fn a_long_run_is_quick() {
        let ids = vocabulary(false).encode(&"a".repeat(200_000));
        assert_eq!(ids, vec![266; 100_000]);
    }
}
