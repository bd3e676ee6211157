//! An invitation into a mesh: one word to copy from one machine to another.
//!
//! `mesh1-` and base32 (lower case, no padding: survives double clicks, chat windows and dictation) of
//! version 1 · name · secret · addresses · checksum. Whoever holds it can join: it is as secret as the mesh secret in it.

use std::fmt;
use std::str::FromStr;

use libp2p::Multiaddr;

use crate::secret::MeshSecret;

/// What a new node needs to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Name of the mesh: 1 to 64 bytes.
    pub mesh: String,
    /// Its secret.
    pub secret: MeshSecret,
    /// Multiaddresses under which members can be dialled, best first; empty where multicast DNS will do.
    pub addresses: Vec<String>,
}

/// A token that cannot be read. Says what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Something else was pasted.
    #[error("not an invitation: it begins with `mesh1-`")]
    NotAToken,
    /// Made by another version.
    #[error("the invitation is of form {0}, this program reads form 1: use the same version of mesh on both machines")]
    OtherForm(String),
    /// A character that no token has.
    #[error("`{character}` at place {place} does not belong into an invitation: was it copied whole?")]
    Character {
        /// The character.
        character: char,
        /// Counted from 1, the prefix included.
        place: usize,
    },
    /// The checksum does not match.
    #[error("the invitation is mistyped or cut: copy it again, whole")]
    Checksum,
    /// The checksum matches and the contents make no sense.
    #[error("the invitation's {0} cannot be read: it was made by a broken program")]
    Malformed(&'static str),
}

/// Addresses that a token carries at most: it stays a word, not a page.
pub const TOKEN_ADDRESSES_MAX: usize = 8;

const PREFIX: &str = "mesh1-";
const FORM: u8 = 1;
const NAME_BYTES_MAX: usize = 64;
const ADDRESS_BYTES_MAX: usize = 255;
const CHECKSUM_BYTES: usize = 4;
const TEXT_BYTES_MAX: usize = 8192;
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567"; // RFC 4648, section 6

impl fmt::Display for Token {
    /// The word. Addresses that are no multiaddresses, and those beyond [`TOKEN_ADDRESSES_MAX`], are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<Vec<u8>> = self
            .addresses
            .iter()
            .filter_map(|text| Some(text.parse::<Multiaddr>().ok()?.to_vec()))
            .filter(|bytes| bytes.len() <= ADDRESS_BYTES_MAX)
            .take(TOKEN_ADDRESSES_MAX)
            .collect();
        let name = self.mesh.get(..self.mesh.floor_char_boundary(NAME_BYTES_MAX)).unwrap_or_default().as_bytes();
        let mut bytes = vec![FORM];
        push_counted(&mut bytes, name);
        bytes.extend(self.secret.to_bytes());
        bytes.push(addresses.len() as u8); // at most TOKEN_ADDRESSES_MAX
        addresses.iter().for_each(|address| push_counted(&mut bytes, address));
        let sum = checksum(&bytes);
        bytes.extend(sum);
        write!(f, "{PREFIX}{}", base32(&bytes))
    }
}

/// The length in one byte, then the bytes. The callers keep them below 256.
fn push_counted(bytes: &mut Vec<u8>, part: &[u8]) {
    bytes.push(part.len() as u8);
    bytes.extend(part);
}

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let text: String = text.chars().filter(|character| !character.is_whitespace()).collect::<String>().to_lowercase();
        let Some(body) = text.strip_prefix(PREFIX) else {
            let form = text.strip_prefix("mesh").and_then(|rest| rest.split_once('-')).map(|(form, _)| form);
            return Err(match form {
                Some(form) if !form.is_empty() && form.len() < 4 && form.bytes().all(|byte| byte.is_ascii_digit()) => {
                    TokenError::OtherForm(form.to_owned())
                }
                _ => TokenError::NotAToken,
            });
        };
        if body.len() > TEXT_BYTES_MAX {
            return Err(TokenError::Checksum);
        }
        let bytes = unbase32(body)?;
        let (bytes, sum) = bytes.split_at_checked(bytes.len().wrapping_sub(CHECKSUM_BYTES)).ok_or(TokenError::Checksum)?;
        if checksum(bytes) != sum {
            return Err(TokenError::Checksum);
        }
        parse(bytes)
    }
}

fn parse(bytes: &[u8]) -> Result<Token, TokenError> {
    let mut rest = bytes;
    match take(&mut rest, 1) {
        Some([FORM]) => {}
        Some([form]) => return Err(TokenError::OtherForm(form.to_string())),
        _ => return Err(TokenError::Malformed("form")),
    }
    let name = take_counted(&mut rest).ok_or(TokenError::Malformed("name"))?;
    let mesh = std::str::from_utf8(name).map_err(|_| TokenError::Malformed("name"))?.to_owned();
    if mesh.is_empty() || mesh.len() > NAME_BYTES_MAX || mesh.chars().any(char::is_control) {
        return Err(TokenError::Malformed("name"));
    }
    let secret = take(&mut rest, 32).and_then(|bytes| bytes.try_into().ok()).ok_or(TokenError::Malformed("secret"))?;
    let count = take(&mut rest, 1).ok_or(TokenError::Malformed("addresses"))?[0];
    let mut addresses = Vec::new();
    for _ in 0..count {
        let bytes = take_counted(&mut rest).ok_or(TokenError::Malformed("addresses"))?;
        let address = Multiaddr::try_from(bytes.to_vec()).map_err(|_| TokenError::Malformed("addresses"))?;
        addresses.push(address.to_string());
    }
    if !rest.is_empty() || addresses.len() > TOKEN_ADDRESSES_MAX {
        return Err(TokenError::Malformed("end"));
    }
    Ok(Token { mesh, secret: MeshSecret::from_bytes(secret), addresses })
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (head, tail) = rest.split_at_checked(count)?;
    *rest = tail;
    Some(head)
}

fn take_counted<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let count = take(rest, 1)?[0];
    take(rest, usize::from(count))
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let hash = blake3::hash(bytes);
    let mut sum = [0; CHECKSUM_BYTES];
    sum.copy_from_slice(&hash.as_bytes()[..CHECKSUM_BYTES]);
    sum
}

fn base32(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(5) * 8);
    let (mut pending, mut bits) = (0_u16, 0);
    for &byte in bytes {
        pending = pending << 8 | u16::from(byte);
        bits += 8;
        while bits >= 5 {
            bits -= 5;
            text.push(char::from(ALPHABET[usize::from(pending >> bits & 31)]));
        }
        pending &= (1 << bits) - 1;
    }
    if bits > 0 {
        text.push(char::from(ALPHABET[usize::from(pending << (5 - bits) & 31)]));
    }
    text
}

fn unbase32(text: &str) -> Result<Vec<u8>, TokenError> {
    let mut bytes = Vec::with_capacity(text.len() * 5 / 8);
    let (mut pending, mut bits) = (0_u16, 0);
    for (index, character) in text.chars().enumerate() {
        let value = ALPHABET.iter().position(|&letter| char::from(letter) == character);
        let value = value.ok_or(TokenError::Character { character, place: PREFIX.len() + index + 1 })?;
        pending = pending << 5 | value as u16; // below 32
        bits += 5;
        if bits >= 8 {
            bits -= 8;
            bytes.push((pending >> bits) as u8); // the eight bits above the pending ones
            pending &= (1 << bits) - 1;
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Token {
        Token {
            mesh: "home".to_owned(),
            secret: MeshSecret::from_bytes([7; 32]),
            addresses: vec!["/ip4/192.168.1.20/tcp/7000".to_owned(), "/ip6/fd00::1/tcp/7000".to_owned()],
        }
    }

    #[test]
    fn a_token_survives_being_copied() {
        let word = token().to_string();
        assert!(word.starts_with("mesh1-") && word.len() < 140, "{word}");
        assert_eq!(word.parse(), Ok(token()));
        let (head, tail) = word.split_at(20);
        assert_eq!(format!(" {head}\n{} ", tail.to_uppercase()).parse(), Ok(token()));
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let word = token().to_string();
        assert_eq!("hello".parse::<Token>(), Err(TokenError::NotAToken));
        assert_eq!("".parse::<Token>(), Err(TokenError::NotAToken));
        assert_eq!("mesh2-aaaa".parse::<Token>(), Err(TokenError::OtherForm("2".to_owned())));
        assert_eq!("mesh1-".parse::<Token>(), Err(TokenError::Checksum));
        assert_eq!(word[..word.len() - 3].parse::<Token>(), Err(TokenError::Checksum));
        assert_eq!(word.replacen("mesh1-a", "mesh1-1", 1).parse::<Token>(), Err(TokenError::Character { character: '1', place: 7 }));
        let swapped: String = word.chars().enumerate().map(|(at, c)| if at == 12 { if c == 'q' { 'r' } else { 'q' } } else { c }).collect();
        assert_eq!(swapped.parse::<Token>(), Err(TokenError::Checksum));
    }

    #[test]
    fn a_long_name_and_odd_addresses_do_not_break_it() {
        let long = Token { mesh: "ö".repeat(60), addresses: vec!["nonsense".to_owned(); 3], ..token() };
        let back: Token = long.to_string().parse().expect("reads");
        assert_eq!((back.mesh, back.addresses), ("ö".repeat(32), Vec::new()));
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in ".{0,200}", bytes in proptest::collection::vec(0_u8.., 0..200)) {
            let _ = text.parse::<Token>();
            let _ = format!("mesh1-{text}").parse::<Token>();
            let _ = parse(&bytes);
            assert_eq!(unbase32(&base32(&bytes)), Ok(bytes.clone()));
            let mut signed = bytes;
            let sum = checksum(&signed);
            signed.extend(sum);
            let _ = format!("mesh1-{}", base32(&signed)).parse::<Token>();
        }
    }
}
