//! Keys and seals of one connection: HKDF-SHA256 and AES-256-GCM (RFC 5869, NIST SP 800-38D), by ring.
//!
//! Each connection has its own two keys, one a direction, from the offer's secret (which travelled over the authenticated
//! control connection), the sender's random value and everything else in the preamble. The nonce is the frame's number, so
//! a key never sees a nonce twice, and a frame that was lost, doubled or moved does not open.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk, Salt};
use ring::rand::{SecureRandom, SystemRandom};

use crate::frame::{FrameError, HEADER_BYTES, Header, Kind, PREAMBLE_BYTES, PREAMBLE_CLEAR_BYTES, PREFIX_BYTES, Preamble, TAG_BYTES};

/// 32 fresh random bytes.
///
/// # Errors
/// The operating system has none.
pub(crate) fn draw() -> Result<[u8; 32], String> {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes).map_err(|_| "the operating system gives no random bytes".to_owned())?;
    Ok(bytes)
}

/// The keys of one connection.
pub(crate) struct Keys {
    /// For frames from sender to receiver.
    pub(crate) forth: LessSafeKey,
    /// For frames from receiver to sender.
    pub(crate) back: LessSafeKey,
}

impl Keys {
    pub(crate) fn derive(secret: &[u8; 32], preamble: &Preamble) -> Self {
        let root = Salt::new(HKDF_SHA256, &preamble.random).extract(secret);
        let clear = preamble.write();
        Self { forth: key(&root, b"mesh lane 1 forth", &clear), back: key(&root, b"mesh lane 1 back", &clear) }
    }

    /// The preamble with its proof: frame 0 of the way forth.
    pub(crate) fn prove(&self, preamble: &Preamble) -> [u8; PREAMBLE_BYTES] {
        let mut bytes = [0; PREAMBLE_BYTES];
        let clear = preamble.write();
        bytes[..PREAMBLE_CLEAR_BYTES].copy_from_slice(&clear);
        bytes[PREAMBLE_CLEAR_BYTES..].copy_from_slice(&seal(&self.forth, 0, &clear, &mut []));
        bytes
    }

    /// Whether a preamble's proof holds.
    pub(crate) fn holds(&self, bytes: &[u8; PREAMBLE_BYTES]) -> bool {
        let (clear, tag) = bytes.split_at(PREAMBLE_CLEAR_BYTES);
        open(&self.forth, 0, clear, tag, &mut []).is_ok()
    }
}

fn key(root: &Prk, label: &[u8], context: &[u8]) -> LessSafeKey {
    let info = [label, context];
    let bound = root.expand(&info, &AES_256_GCM).expect("a key is shorter than HKDF can give");
    LessSafeKey::new(UnboundKey::from(bound))
}

fn nonce(sequence: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&sequence.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

fn seal(key: &LessSafeKey, sequence: u64, clear: &[u8], payload: &mut [u8]) -> [u8; TAG_BYTES] {
    let tag = key.seal_in_place_separate_tag(nonce(sequence), Aad::from(clear), payload).expect("a slot is shorter than AES-GCM's limit");
    tag.as_ref().try_into().expect("AES-GCM tags have 16 bytes")
}

fn open(key: &LessSafeKey, sequence: u64, clear: &[u8], tag: &[u8], payload: &mut [u8]) -> Result<(), FrameError> {
    let tag = Tag::try_from(tag).map_err(|_| FrameError::Seal)?;
    key.open_in_place_separate_tag(nonce(sequence), Aad::from(clear), tag, payload, 0..).map_err(|_| FrameError::Seal)?;
    Ok(())
}

/// Seals the frames of one direction, in their order.
pub(crate) struct Sealer {
    key: LessSafeKey,
    generation: u64,
    next: u64,
}

impl Sealer {
    pub(crate) fn new(key: LessSafeKey, generation: u64, next: u64) -> Self {
        Self { key, generation, next }
    }

    /// Seals `payload` where it is, and returns what goes before it on the wire.
    pub(crate) fn seal(&mut self, kind: Kind, granted: u64, payload: &mut [u8]) -> [u8; PREFIX_BYTES] {
        let bytes = u32::try_from(payload.len()).expect("a slot is at most SLOT_BYTES_MAX");
        let clear = Header { kind, generation: self.generation, sequence: self.next, granted, bytes }.write();
        let mut prefix = [0; PREFIX_BYTES];
        prefix[..HEADER_BYTES].copy_from_slice(&clear);
        prefix[HEADER_BYTES..].copy_from_slice(&seal(&self.key, self.next, &clear, payload));
        self.next += 1; // 2^64 frames do not come
        prefix
    }
}

/// Opens the frames of one direction, in their order.
pub(crate) struct Opener {
    key: LessSafeKey,
    generation: u64,
    next: u64,
}

impl Opener {
    pub(crate) fn new(key: LessSafeKey, generation: u64, next: u64) -> Self {
        Self { key, generation, next }
    }

    /// Reads and checks a header, except for its seal: that needs the payload.
    pub(crate) fn header(&self, prefix: &[u8; PREFIX_BYTES]) -> Result<Header, FrameError> {
        let header = Header::read(&prefix[..HEADER_BYTES])?;
        if header.generation != self.generation {
            return Err(FrameError::Generation { theirs: header.generation, ours: self.generation });
        }
        if header.sequence != self.next {
            return Err(FrameError::Sequence { theirs: header.sequence, ours: self.next });
        }
        Ok(header)
    }

    /// Opens the payload where it is. After an error its bytes mean nothing.
    pub(crate) fn open(&mut self, prefix: &[u8; PREFIX_BYTES], payload: &mut [u8]) -> Result<(), FrameError> {
        let (clear, tag) = prefix.split_at(HEADER_BYTES);
        open(&self.key, self.next, clear, tag, payload)?;
        self.next += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use mesh_core::ids::{DeploymentId, PlanHash};
    use mesh_core::wire::LaneId;

    use super::*;

    fn preamble(random: u8) -> Preamble {
        let lane = LaneId { deployment: DeploymentId(1), plan: PlanHash(2), boundary: 3 };
        Preamble { lane, generation: 4, random: [random; 32] }
    }

    fn pair() -> (Sealer, Opener) {
        let key = || Keys::derive(&[9; 32], &preamble(1)).forth;
        (Sealer::new(key(), 4, 1), Opener::new(key(), 4, 1))
    }

    #[test]
    fn a_sealed_payload_is_hidden_and_opens() {
        let (mut sealer, mut opener) = pair();
        let mut payload = *b"a hidden state";
        let prefix = sealer.seal(Kind::Data, 0, &mut payload);
        assert_ne!(&payload, b"a hidden state");
        assert_eq!(opener.header(&prefix).map(|header| header.bytes), Ok(14));
        opener.open(&prefix, &mut payload).expect("ours");
        assert_eq!(&payload, b"a hidden state");
    }

    #[test]
    fn no_bit_of_a_frame_can_change() {
        for bit in 0..(PREFIX_BYTES + 3) * 8 {
            let (mut sealer, mut opener) = pair();
            let mut payload = [1, 2, 3];
            let mut prefix = sealer.seal(Kind::Data, 5, &mut payload);
            match bit / 8 {
                at if at < PREFIX_BYTES => prefix[at] ^= 1 << (bit % 8),
                at => payload[at - PREFIX_BYTES] ^= 1 << (bit % 8),
            }
            let refused = opener.header(&prefix).is_err() || opener.open(&prefix, &mut payload).is_err();
            assert!(refused, "bit {bit}");
        }
    }

    #[test]
    fn a_frame_opens_at_its_place_only() {
        let (mut sealer, mut opener) = pair();
        let first = sealer.seal(Kind::KeepAlive, 0, &mut []);
        let second = sealer.seal(Kind::KeepAlive, 0, &mut []);
        assert_eq!(opener.header(&second), Err(FrameError::Sequence { theirs: 2, ours: 1 }));
        opener.open(&first, &mut []).expect("in order");
        assert_eq!(opener.header(&first), Err(FrameError::Sequence { theirs: 1, ours: 2 }));
        assert_eq!(opener.open(&first, &mut []), Err(FrameError::Seal));
    }

    #[test]
    fn another_secret_value_or_direction_is_another_key() {
        let mut payload = [0; 4];
        let keys = Keys::derive(&[9; 32], &preamble(1));
        let prefix = Sealer::new(keys.forth, 4, 1).seal(Kind::Data, 0, &mut payload);
        for other in [
            Keys::derive(&[8; 32], &preamble(1)).forth,
            Keys::derive(&[9; 32], &preamble(2)).forth,
            Keys::derive(&[9; 32], &Preamble { generation: 5, ..preamble(1) }).forth,
            keys.back,
        ] {
            assert_eq!(Opener::new(other, 4, 1).open(&prefix, &mut payload.clone()), Err(FrameError::Seal));
        }
    }

    #[test]
    fn a_preamble_proves_the_secret() {
        let keys = Keys::derive(&[9; 32], &preamble(1));
        let mut bytes = keys.prove(&preamble(1));
        assert!(keys.holds(&bytes));
        assert!(!Keys::derive(&[8; 32], &preamble(1)).holds(&bytes));
        bytes[PREAMBLE_BYTES - 1] ^= 1;
        assert!(!keys.holds(&bytes));
    }
}
