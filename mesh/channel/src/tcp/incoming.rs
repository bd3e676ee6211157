//! Frames as they come in: from the socket straight into a slot, opened there.

use std::io::{self, Read};
use std::net::TcpStream;

use crate::arena::{Filled, Slot};
use crate::frame::{FrameError, Header, Kind, PREFIX_BYTES};
use crate::seal::Opener;

/// The half of a connection that is read. Keeps a half-read frame over any number of calls.
pub(super) struct Incoming {
    opener: Opener,
    prefix: [u8; PREFIX_BYTES],
    prefix_bytes: usize,
    /// The header of the frame whose payload is being read, and where that goes.
    frame: Option<(Header, Option<Slot>)>,
    payload_bytes: usize,
    /// Bytes read since the beginning: proof of life, even if a frame takes long.
    pub(super) heard_bytes: u64,
}

/// What one call brought.
pub(super) enum Arrival {
    /// A whole, authentic frame.
    Frame(Header, Option<Filled>),
    /// There is no more to read now.
    Nothing,
}

/// Why no more frames come.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error("closed the connection without a goodbye")]
    Closed,
    #[error("is lost: {0}")]
    System(#[from] io::Error),
    #[error("sent {0}")]
    Frame(#[from] FrameError),
}

impl Incoming {
    pub(super) fn new(opener: Opener) -> Self {
        Self { opener, prefix: [0; PREFIX_BYTES], prefix_bytes: 0, frame: None, payload_bytes: 0, heard_bytes: 0 }
    }

    /// Reads until a frame is whole or nothing is there. `slot` gives a message's header a place for its payload, or says
    /// why there is none.
    pub(super) fn advance(&mut self, socket: &TcpStream, slot: impl Fn() -> Result<Slot, FrameError>) -> Result<Arrival, Broken> {
        while self.prefix_bytes < PREFIX_BYTES {
            match read(socket, &mut self.prefix[self.prefix_bytes..])? {
                None => return Ok(Arrival::Nothing),
                Some(bytes) => self.prefix_bytes += bytes,
            }
            if self.prefix_bytes == PREFIX_BYTES {
                self.heard_bytes += PREFIX_BYTES as u64;
                self.frame = Some(self.begin(&slot)?);
            }
        }
        let (header, place) = self.frame.as_mut().expect("set when the prefix was whole, taken when the frame was");
        let payload = place.as_mut().map_or(&mut [][..], |slot| &mut slot[..header.bytes as usize]);
        while self.payload_bytes < payload.len() {
            match read(socket, &mut payload[self.payload_bytes..])? {
                None => return Ok(Arrival::Nothing),
                Some(bytes) => {
                    self.payload_bytes += bytes;
                    self.heard_bytes += bytes as u64;
                }
            }
        }
        self.opener.open(&self.prefix, payload)?;
        (self.prefix_bytes, self.payload_bytes) = (0, 0);
        let (header, place) = self.frame.take().expect("as above");
        Ok(Arrival::Frame(header, place.map(|slot| Filled { slot, bytes: header.bytes as usize })))
    }

    /// Checks a header before a byte of its payload is read. Its seal is checked last, with the payload; until then the
    /// length is only known to fit.
    fn begin(&self, slot: impl Fn() -> Result<Slot, FrameError>) -> Result<(Header, Option<Slot>), FrameError> {
        let header = self.opener.header(&self.prefix)?;
        if header.kind != Kind::Data {
            return Ok((header, None));
        }
        let slot = slot()?;
        if header.bytes as usize > slot.len() {
            return Err(FrameError::TooLong { bytes: header.bytes, slot_bytes: slot.len() });
        }
        Ok((header, Some(slot)))
    }
}

/// What is there now; `None` if nothing is.
fn read(mut socket: &TcpStream, into: &mut [u8]) -> Result<Option<usize>, Broken> {
    loop {
        return match socket.read(into) {
            Ok(0) => Err(Broken::Closed),
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => Err(error.into()),
        };
    }
}
