//! Messages on a control stream: cut into parts, so that nothing long delays a heartbeat.
//!
//! A message is `wire::encode(Message)`. It travels in one or more parts, each behind a 32-bit little-endian header:
//! bits 0..16 length (1 to [`PART_BYTES_MAX`]), bits 28..30 class, bit 30 "last part"; the rest is zero. Parts of one
//! class follow each other; parts of different classes may alternate. Three classes: heart (hello, ping, pong, goodbye)
//! before control before bulk (digests and records). Words about third nodes are of the heart class too.

use futures::{AsyncRead, AsyncReadExt};
use mesh_core::wire::MESSAGE_BYTES_MAX;

/// Longest part: the longest time that a heartbeat waits on our side of the socket is one of these.
pub const PART_BYTES_MAX: usize = 16 << 10;

const _: () = assert!(PART_BYTES_MAX < 1 << 16);

/// What goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Hello, ping, pong, goodbye, words about third nodes.
    Heart,
    /// All other control messages.
    Control,
    /// What can wait: digests and records.
    Bulk,
}

const CLASSES: [Class; 3] = [Class::Heart, Class::Control, Class::Bulk];
const LAST: u32 = 1 << 30;

/// Bytes that are no frames: the peer is broken or hostile.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// A header that no version writes.
    #[error("a frame header that makes no sense ({0:#010x})")]
    Header(u32),
    /// More parts than a message may have.
    #[error("a message longer than {MESSAGE_BYTES_MAX} bytes")]
    TooLong,
    /// The stream ended or failed.
    #[error("{0}")]
    Ended(std::io::Error),
}

/// Header and payload of the next part of `message`, appended to `out`. Returns where the part after it begins.
pub fn push_part(out: &mut Vec<u8>, class: Class, message: &[u8], from: usize) -> usize {
    let end = message.len().min(from + PART_BYTES_MAX);
    let last = if end == message.len() { LAST } else { 0 };
    let header = (end - from) as u32 | (class as u32) << 28 | last; // below 1 << 16: see the assertion above
    out.extend(header.to_le_bytes());
    out.extend(&message[from..end]);
    end
}

/// A whole message in parts.
pub fn parts(class: Class, message: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(message.len() + 4 * message.len().div_ceil(PART_BYTES_MAX));
    let mut from = 0;
    while from < message.len() {
        from = push_part(&mut out, class, message, from);
    }
    out
}

fn read_header(header: u32) -> Result<(Class, usize, bool), FrameError> {
    let length = header as usize & 0xffff;
    let class = CLASSES.get(header as usize >> 28 & 3).filter(|_| header & 0x8fff_0000 == 0);
    match class {
        Some(class) if (1..=PART_BYTES_MAX).contains(&length) => Ok((*class, length, header & LAST != 0)),
        _ => Err(FrameError::Header(header)),
    }
}

/// Puts parts together again. Holds at most one unfinished message of each class.
#[derive(Debug, Default)]
pub struct Assembly {
    unfinished: [Vec<u8>; 3],
}

impl Assembly {
    /// Reads until a message is whole; returns its class with it. `None` = the stream ended between two parts.
    ///
    /// # Errors
    /// See [`FrameError`].
    pub async fn next<R: AsyncRead + Unpin>(&mut self, stream: &mut R) -> Result<Option<(Class, Vec<u8>)>, FrameError> {
        loop {
            let mut header = [0; 4];
            if !read_or_end(stream, &mut header).await? {
                return Ok(None);
            }
            let (class, length, last) = read_header(u32::from_le_bytes(header))?;
            let message = &mut self.unfinished[class as usize];
            let from = message.len();
            if from + length > MESSAGE_BYTES_MAX {
                return Err(FrameError::TooLong);
            }
            message.resize(from + length, 0);
            stream.read_exact(&mut message[from..]).await.map_err(FrameError::Ended)?;
            if last {
                return Ok(Some((class, std::mem::take(message))));
            }
        }
    }
}

/// Fills `bytes`; false if the stream ended before the first one.
async fn read_or_end<R: AsyncRead + Unpin>(stream: &mut R, bytes: &mut [u8]) -> Result<bool, FrameError> {
    let mut filled = 0;
    while filled < bytes.len() {
        match stream.read(&mut bytes[filled..]).await.map_err(FrameError::Ended)? {
            0 if filled == 0 => return Ok(false),
            0 => return Err(FrameError::Ended(std::io::ErrorKind::UnexpectedEof.into())),
            count => filled += count,
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;
    use futures::io::Cursor;

    use super::*;

    fn read_all(bytes: Vec<u8>) -> (Vec<Vec<u8>>, Option<FrameError>) {
        let (mut stream, mut assembly, mut messages) = (Cursor::new(bytes), Assembly::default(), Vec::new());
        loop {
            match block_on(assembly.next(&mut stream)) {
                Ok(Some((_, message))) => messages.push(message),
                Ok(None) => return (messages, None),
                Err(error) => return (messages, Some(error)),
            }
        }
    }

    #[test]
    fn classes_may_alternate_and_each_keeps_its_order() {
        let long: Vec<u8> = (0..40_000_u32).map(|n| n as u8).collect();
        let mut stream = Vec::new();
        let middle = push_part(&mut stream, Class::Bulk, &long, 0);
        stream.extend(parts(Class::Heart, b"beat"));
        let end = push_part(&mut stream, Class::Bulk, &long, middle);
        stream.extend(parts(Class::Control, b"token"));
        assert_eq!(push_part(&mut stream, Class::Bulk, &long, end), long.len());
        let (messages, error) = read_all(stream);
        assert!(error.is_none());
        assert_eq!(messages, [b"beat".to_vec(), b"token".to_vec(), long]);
    }

    #[test]
    fn nonsense_is_refused_and_takes_no_memory() {
        for header in [0, LAST, 0xffff_ffff, 3 << 28 | LAST | 1, 1 << 16 | 1, (PART_BYTES_MAX as u32 + 1) | LAST] {
            let (messages, error) = read_all(header.to_le_bytes().into_iter().chain([0; 64]).collect());
            assert!(messages.is_empty() && matches!(error, Some(FrameError::Header(_))), "{header:#x}: {error:?}");
        }
        let endless: Vec<u8> = parts(Class::Bulk, &vec![7; MESSAGE_BYTES_MAX + 1]);
        assert!(matches!(read_all(endless), (none, Some(FrameError::TooLong)) if none.is_empty()));
        assert!(matches!(read_all(vec![1, 0]), (_, Some(FrameError::Ended(_)))));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(0_u8.., 0..600)) {
            let _ = read_all(bytes);
        }
        #[test]
        fn what_is_cut_comes_together(messages in proptest::collection::vec((0_usize..3, 1_usize..50_000), 0..6)) {
            let sent: Vec<Vec<u8>> = messages.iter().map(|(class, length)| vec![*class as u8; *length]).collect();
            let stream = messages.iter().zip(&sent).flat_map(|((class, _), message)| parts(CLASSES[*class], message)).collect();
            assert_eq!(read_all(stream).0, sent);
        }
    }
}
