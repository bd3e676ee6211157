//! Bytes that arrive in pieces, into whole characters.
//!
//! A token of a byte-level vocabulary may end in the middle of a character (F88). The bytes that could still become one
//! wait here: three at most. Bytes that no continuation can save become U+FFFD, one for each maximal ill-formed part
//! (Unicode 15, section 3.9, "substitution of maximal subparts"), which is what `String::from_utf8_lossy` gives for the
//! whole: the pieces, joined, always equal it.

/// The bytes of a character that has begun and is not whole yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Utf8Stream {
    begun: Vec<u8>,
}

impl Utf8Stream {
    /// Takes bytes and appends every character that they complete to `text`.
    pub(super) fn push(&mut self, bytes: &[u8], text: &mut String) {
        if self.begun.is_empty() {
            let rest = append_whole(bytes, text);
            self.begun.extend_from_slice(rest);
            return;
        }
        self.begun.extend_from_slice(bytes);
        let rest_len = append_whole(&self.begun, text).len();
        self.begun.drain(..self.begun.len() - rest_len);
    }

    /// Nothing more will come: a character that was begun becomes one U+FFFD.
    pub(super) fn finish(&mut self, text: &mut String) {
        if !self.begun.is_empty() {
            self.begun.clear();
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

/// Appends what is whole or beyond saving, and returns the incomplete character at the end.
fn append_whole<'a>(mut bytes: &'a [u8], text: &mut String) -> &'a [u8] {
    loop {
        match std::str::from_utf8(bytes) {
            Ok(whole) => {
                text.push_str(whole);
                return &[];
            }
            Err(error) => {
                let (whole, rest) = bytes.split_at(error.valid_up_to());
                text.push_str(std::str::from_utf8(whole).expect("valid up to here"));
                let Some(bad) = error.error_len() else { return rest };
                text.push(char::REPLACEMENT_CHARACTER);
                bytes = &rest[bad..];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_split_emoji_comes_out_whole_and_once() {
        let mut stream = Utf8Stream::default();
        let mut pieces = Vec::new();
        for byte in "a😸b".as_bytes() {
            let mut text = String::new();
            stream.push(&[*byte], &mut text);
            pieces.push(text);
        }
        assert_eq!(pieces, ["a", "", "", "", "😸", "b"]);
    }

    #[test]
    fn an_unfinished_character_becomes_one_replacement() {
        let (mut stream, mut text) = (Utf8Stream::default(), String::new());
        stream.push(&[0xF0, 0x9F, 0x98], &mut text);
        assert_eq!(text, "");
        stream.finish(&mut text);
        stream.finish(&mut text);
        assert_eq!(text, "\u{FFFD}");
    }

    proptest! {
        #[test]
        fn any_cut_of_any_bytes_equals_the_whole(chunks in proptest::collection::vec(byte_salad(), 0..8)) {
            let (mut stream, mut text) = (Utf8Stream::default(), String::new());
            for chunk in &chunks {
                stream.push(chunk, &mut text);
                prop_assert!(stream.begun.len() <= 3);
            }
            stream.finish(&mut text);
            prop_assert_eq!(text, String::from_utf8_lossy(&chunks.concat()).into_owned());
        }
    }

    /// Bytes that are often nearly UTF-8.
    fn byte_salad() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..6),
            proptest::collection::vec(
                prop_oneof![Just(0xE2_u8), Just(0x82), Just(0xAC), Just(0xF0), Just(0x9F), Just(0x98), Just(b'a')],
                0..6
            ),
            any::<String>().prop_map(String::into_bytes),
        ]
    }
}
