//! What every token id stands for: its bytes, and whether people may see it.
//!
//! One flat buffer, so that a vocabulary of 260,000 tokens costs its bytes and five more for each token.

use super::error::TextError;

/// Token ids are below this. The largest vocabularies of the field have 262,144; a damaged file must not make us allocate more.
pub(super) const IDS_MAX: u32 = 1 << 22;

/// How a token is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    /// Part of the text.
    Shown,
    /// Special: steers the model, never part of an answer.
    Hidden,
}

/// What is taken off where a text begins. SentencePiece writes a space before every first word, and its detokenizers take it
/// away again. Text that continues a prompt keeps it: there it parts two words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lead {
    /// Nothing.
    Keep,
    /// Up to `count` times this character, from the text (`Strip` decoders, GGUF's `add_space_prefix`).
    Strip {
        /// The character, nearly always a space.
        character: char,
        /// How many at most.
        count: usize,
    },
    /// All spaces that the first shown token begins with (`Metaspace` decoders).
    FirstToken,
}

/// The bytes of every token.
#[derive(Debug)]
pub(super) struct TokenTable {
    bytes: Vec<u8>,
    /// Where each token's bytes end; they begin where those of the id before end.
    ends: Vec<u32>,
    hidden: Vec<bool>,
    /// What a fresh text loses at its beginning.
    pub(super) lead: Lead,
}

impl TokenTable {
    /// A table of these (id, bytes, sight), in any order. Of two entries with one id the later counts; ids that do not occur
    /// stand for nothing.
    ///
    /// # Errors
    /// An id beyond [`IDS_MAX`], or more than 4 GiB of bytes.
    pub(super) fn new(entries: Vec<(u32, Vec<u8>, Sight)>, lead: Lead) -> Result<Self, TextError> {
        let count = entries.iter().map(|(id, ..)| id.saturating_add(1)).max().unwrap_or(0);
        if count > IDS_MAX {
            return Err(TextError::Damaged(format!(
                "the tokenizer has a token id of {}, the limit is {IDS_MAX}: the file is damaged",
                count - 1
            )));
        }
        let mut by_id: Vec<Option<(Vec<u8>, Sight)>> = vec![None; count as usize];
        for (id, bytes, sight) in entries {
            by_id[id as usize] = Some((bytes, sight));
        }
        let mut table = Self { bytes: Vec::new(), ends: Vec::with_capacity(by_id.len()), hidden: Vec::with_capacity(by_id.len()), lead };
        for entry in by_id {
            let (bytes, sight) = entry.unwrap_or((Vec::new(), Sight::Hidden));
            table.bytes.extend_from_slice(&bytes);
            let end = u32::try_from(table.bytes.len())
                .map_err(|_| TextError::Damaged("the tokenizer's tokens have over 4 GiB of text".into()))?;
            table.ends.push(end);
            table.hidden.push(sight == Sight::Hidden);
        }
        Ok(table)
    }

    /// The bytes of a token; none for an id that is no token.
    pub(super) fn bytes(&self, id: u32) -> &[u8] {
        let Some(&end) = self.ends.get(id as usize) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id as usize - 1] };
        &self.bytes[start as usize..end as usize]
    }

    /// Whether people see a token. Ids that are no token are hidden.
    pub(super) fn sight(&self, id: u32) -> Sight {
        match self.hidden.get(id as usize) {
            Some(false) => Sight::Shown,
            _ => Sight::Hidden,
        }
    }

    /// One more than the largest id.
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.ends.len()).expect("bounded by IDS_MAX")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_and_strangers_stand_for_nothing() {
        let table = TokenTable::new(vec![(3, b"c".to_vec(), Sight::Shown), (0, b"ab".to_vec(), Sight::Hidden)], Lead::Keep).unwrap();
        assert_eq!([table.bytes(0), table.bytes(1), table.bytes(3), table.bytes(99)], [&b"ab"[..], b"", b"c", b""]);
        assert_eq!(
            [table.sight(0), table.sight(2), table.sight(3), table.sight(99)],
            [Sight::Hidden, Sight::Hidden, Sight::Shown, Sight::Hidden]
        );
        assert_eq!(table.len(), 4);
    }

    #[test]
    fn a_huge_id_is_refused_before_memory_is_taken() {
        let error = TokenTable::new(vec![(u32::MAX, Vec::new(), Sight::Shown)], Lead::Keep).unwrap_err();
        assert!(matches!(error, TextError::Damaged(_)));
    }
}
