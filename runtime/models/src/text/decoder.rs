//! The decoder of a `tokenizer.json`, as a rule for one token at a time.
//!
//! The format's decoders work on a whole list of tokens. All that generation models use do the same to each token,
//! whatever its neighbours are, but for the bytes of a character that meet at token borders and for what is taken off the
//! beginning. So a token has bytes of its own ([`Rule::bytes`]), joining them is all that is left to do, and decoding piece
//! by piece gives what decoding the whole gives. Decoders of which this is not true (`CTC`, `WordPiece`, ..) are refused.

use serde_json::Value;

use super::error::TextError;
use super::tokens::Lead;

/// What happens to each token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    steps: Vec<Step>,
    /// What a fresh text loses at its beginning.
    pub(super) lead: Lead,
}

/// One decoder of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// GPT-2's alphabet: every character stands for a byte.
    ByteLevel,
    /// `<0xE5>` stands for a byte.
    ByteFallback,
    /// One string for another, in the token's text.
    Replace(String, String),
}

impl Rule {
    /// The rule of GPT-2's alphabet, for vocabularies inside GGUF files.
    pub(super) fn byte_level() -> Self {
        Self { steps: vec![Step::ByteLevel], lead: Lead::Keep }
    }

    /// SentencePiece's rule, for vocabularies inside GGUF files.
    pub(super) fn sentencepiece(lead: Lead) -> Self {
        Self { steps: vec![Step::Replace("▁".into(), " ".into()), Step::ByteFallback], lead }
    }

    /// Reads the `decoder` part of a `tokenizer.json`.
    ///
    /// # Errors
    /// A decoder that does not work token by token, or none.
    pub(super) fn new(decoder: &Value) -> Result<Self, TextError> {
        let mut rule = Self { steps: Vec::new(), lead: Lead::Keep };
        rule.add(decoder, &mut false)?;
        Ok(rule)
    }

    /// Adds one decoder. `fused` tells whether the tokens are one text by then.
    fn add(&mut self, decoder: &Value, fused: &mut bool) -> Result<(), TextError> {
        let name = decoder["type"].as_str().unwrap_or("none");
        match name {
            "Sequence" => {
                let parts = decoder["decoders"].as_array().ok_or_else(|| unsupported("a Sequence without decoders"))?;
                for part in parts {
                    self.add(part, fused)?;
                }
            }
            "ByteLevel" => {
                self.steps.push(Step::ByteLevel);
                *fused = true;
            }
            "ByteFallback" => self.steps.push(Step::ByteFallback),
            "Fuse" => *fused = true,
            "Replace" => {
                let from = decoder["pattern"]["String"].as_str().ok_or_else(|| unsupported("a Replace with a pattern"))?;
                let to = decoder["content"].as_str().unwrap_or_default();
                self.steps.push(Step::Replace(from.to_owned(), to.to_owned()));
            }
            "Metaspace" => {
                let mark = decoder["replacement"].as_str().unwrap_or("▁");
                self.steps.push(Step::Replace(mark.to_owned(), " ".into()));
                if decoder["prepend_scheme"].as_str() != Some("never") {
                    self.lead = Lead::FirstToken;
                }
            }
            // Before the tokens are one text it would strip each of them, which no model of ours wants.
            "Strip" if *fused && decoder["stop"].as_u64() == Some(0) => self.set_strip(decoder)?,
            other => return Err(unsupported(other)),
        }
        Ok(())
    }

    fn set_strip(&mut self, decoder: &Value) -> Result<(), TextError> {
        let character = decoder["content"].as_str().and_then(|content| content.chars().next());
        let count = decoder["start"].as_u64().and_then(|start| usize::try_from(start).ok());
        let (Some(character), Some(count)) = (character, count) else { return Err(unsupported("a Strip of nothing")) };
        self.lead = Lead::Strip { character, count };
        Ok(())
    }

    /// The bytes that an ordinary token stands for.
    pub(super) fn bytes(&self, token: &str) -> Vec<u8> {
        let mut text = token.to_owned();
        for step in &self.steps {
            match step {
                Step::Replace(from, to) => text = text.replace(from.as_str(), to),
                Step::ByteFallback => {
                    if let Some(byte) = fallback_byte(&text) {
                        return vec![byte];
                    }
                }
                Step::ByteLevel => {
                    let bytes: Option<Vec<u8>> = text.chars().map(byte_of).collect();
                    return bytes.unwrap_or_else(|| text.into_bytes());
                }
            }
        }
        text.into_bytes()
    }

    /// The bytes of a token that was added beside the vocabulary (`<think>`, a run of spaces). They are written as they read, not in
    /// GPT-2's alphabet; SentencePiece's mark still stands for a space.
    pub(super) fn added_bytes(&self, token: &str) -> Vec<u8> {
        if self.steps.contains(&Step::ByteLevel) { token.as_bytes().to_vec() } else { self.bytes(token) }
    }
}

fn unsupported(what: &str) -> TextError {
    TextError::Unsupported(format!(
        "tokenizer.json: the decoder is {what}, which cannot be applied token by token; known are ByteLevel, ByteFallback, Replace, Fuse, Strip and Metaspace"
    ))
}

/// `<0xE5>` as a byte.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()) { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// The byte that a character of GPT-2's alphabet stands for: printable Latin-1 stands for itself, the rest follow each other from
/// U+0100 on.
pub(super) fn byte_of(character: char) -> Option<u8> {
    let code = u32::from(character);
    match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => u8::try_from(code).ok(),
        0x100..=0x120 => u8::try_from(code - 0x100).ok(),        // 0x00..=0x20
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7F).ok(), // 0x7F..=0xA0
        0x143 => Some(0xAD),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_alphabet_names_every_byte_once() {
        let mut seen: Vec<u8> = (0..0x200).filter_map(char::from_u32).filter_map(byte_of).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..=255).collect::<Vec<u8>>());
        assert_eq!(
            [byte_of('Ġ'), byte_of('Ċ'), byte_of('ł'), byte_of('Ń'), byte_of('▁')],
            [Some(b' '), Some(b'\n'), Some(0xA0), Some(0xAD), None]
        );
    }

    #[test]
    fn tokens_of_both_kinds_have_their_bytes() {
        let byte_level = Rule::new(&json!({"type": "ByteLevel", "add_prefix_space": true})).unwrap();
        assert_eq!(byte_level.bytes("ĠParis"), b" Paris");
        assert_eq!(byte_level.bytes("ðŁĺ"), [0xF0, 0x9F, 0x98]);
        assert_eq!(byte_level.bytes("<｜x｜>"), "<｜x｜>".as_bytes());
        assert_eq!(byte_level.added_bytes("é"), "é".as_bytes());

        let pieces = Rule::new(&json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}))
        .unwrap();
        assert_eq!(pieces.bytes("▁Paris"), b" Paris");
        assert_eq!(pieces.bytes("<0xe5>"), [0xE5]);
        assert_eq!(pieces.bytes("<0x+5>"), b"<0x+5>");
        assert_eq!(pieces.added_bytes("▁▁"), b"  ");
        assert_eq!(pieces.lead, Lead::Strip { character: ' ', count: 1 });
        assert_eq!(pieces, Rule::sentencepiece(Lead::Strip { character: ' ', count: 1 }));
    }

    #[test]
    fn decoders_that_look_at_neighbours_are_refused_by_name() {
        for decoder in [
            json!({"type": "WordPiece"}),
            json!({"type": "CTC"}),
            json!(null),
            json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}),
        ] {
            let error = Rule::new(&decoder).unwrap_err();
            assert!(matches!(&error, TextError::Unsupported(text) if text.contains(decoder["type"].as_str().unwrap_or("none"))), "{error}");
        }
    }
}
