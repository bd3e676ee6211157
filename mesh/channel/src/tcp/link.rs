//! One end of a connection, as all threads see it: the socket, and what is still to be written.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use socket2::SockRef;

use crate::arena::{Filled, Slot};
use crate::frame::{Kind, PREFIX_BYTES};
use crate::lock;
use crate::poll::Bell;
use crate::seal::Sealer;

/// Bytes written under one hold of the lock while catching up: about 50 µs of copying, so that a commit waits no longer.
const WRITE_BYTES_MAX: usize = 256 << 10;

/// One end of a connection.
pub(super) struct Link {
    pub(super) socket: TcpStream,
    pub(super) peer: SocketAddr,
    /// Wakes the pump, and tells it to say goodbye.
    pub(super) bell: Arc<Bell>,
    outbox: Mutex<Outbox>,
}

struct Outbox {
    sealer: Sealer,
    /// Sealed, in order, not wholly written. A message comes here only with credit, a small frame only if nothing else is
    /// here, and a goodbye once: so these are never more than the slots and two.
    queue: VecDeque<Outgoing>,
    written_at: Instant,
}

struct Outgoing {
    prefix: [u8; PREFIX_BYTES],
    body: Option<Filled>,
    written: usize,
}

impl Link {
    /// Takes a connected, non-blocking socket whose handshake is done.
    pub(super) fn new(socket: TcpStream, peer: SocketAddr, bell: Arc<Bell>, sealer: Sealer) -> Self {
        let outbox = Outbox { sealer, queue: VecDeque::new(), written_at: Instant::now() };
        Self { socket, peer, bell, outbox: Mutex::new(outbox) }
    }

    /// Seals a message in its slot and writes as much as the socket takes. Gives the slot back if that was all of it.
    ///
    /// # Errors
    /// The connection is dead.
    pub(super) fn send(&self, message: Filled) -> io::Result<Option<Slot>> {
        let mut outbox = lock(&self.outbox);
        let behind = !outbox.queue.is_empty();
        outbox.seal(Kind::Data, 0, Some(message));
        if !behind && let Some(done) = outbox.write(&self.socket, usize::MAX)? {
            return Ok(done.body.map(|filled| filled.slot));
        }
        drop(outbox);
        self.bell.ring();
        Ok(None)
    }

    /// Sends a small frame, unless older ones still wait: then the line is not silent, and what the frame would say can be
    /// said later. Returns whether it was sent or queued.
    ///
    /// # Errors
    /// The connection is dead.
    pub(super) fn send_small(&self, kind: Kind, granted: u64) -> io::Result<bool> {
        let mut outbox = lock(&self.outbox);
        if !outbox.queue.is_empty() {
            return Ok(false);
        }
        outbox.seal(kind, granted, None);
        if outbox.write(&self.socket, usize::MAX)?.is_none() {
            drop(outbox);
            self.bell.ring();
        }
        Ok(true)
    }

    /// Writes what waits, as far as the socket takes it. `done` gets the slots that became free. Returns whether something
    /// still waits.
    ///
    /// # Errors
    /// The connection is dead.
    pub(super) fn flush(&self, mut done: impl FnMut(Slot)) -> io::Result<bool> {
        loop {
            let mut outbox = lock(&self.outbox);
            if outbox.queue.is_empty() {
                return Ok(false);
            }
            let before = outbox.queue[0].written;
            let finished = outbox.write(&self.socket, WRITE_BYTES_MAX)?;
            let moved = finished.is_some() || outbox.queue[0].written > before;
            drop(outbox); // `done` wakes a sender
            if let Some(filled) = finished.and_then(|outgoing| outgoing.body) {
                done(filled.slot);
            }
            if !moved {
                return Ok(true);
            }
        }
    }

    /// When something was last written.
    pub(super) fn written_at(&self) -> Instant {
        lock(&self.outbox).written_at
    }

    /// Ends both directions at once, and frees what waited.
    pub(super) fn shut(&self) {
        let _ = self.socket.shutdown(Shutdown::Both); // fails if the other end was faster
        lock(&self.outbox).queue.clear();
    }
}

impl Outbox {
    fn seal(&mut self, kind: Kind, granted: u64, mut body: Option<Filled>) {
        let payload = body.as_mut().map_or(&mut [][..], |filled| &mut filled.slot[..filled.bytes]);
        let prefix = self.sealer.seal(kind, granted, payload);
        self.queue.push_back(Outgoing { prefix, body, written: 0 });
    }

    /// Writes the first frame as far as the socket takes it, about `budget` bytes at most. Returns it when it is through.
    fn write(&mut self, socket: &TcpStream, mut budget: usize) -> io::Result<Option<Outgoing>> {
        let Some(front) = self.queue.front_mut() else { return Ok(None) };
        let body = front.body.as_ref().map_or(&[][..], Filled::message);
        let whole = PREFIX_BYTES + body.len();
        while front.written < whole && budget > 0 {
            let head = &front.prefix[front.written.min(PREFIX_BYTES)..];
            let rest = &body[front.written.saturating_sub(PREFIX_BYTES)..];
            let rest = &rest[..rest.len().min(budget)];
            match SockRef::from(socket).send_vectored_with_flags(&[IoSlice::new(head), IoSlice::new(rest)], NO_SIGNAL) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => {
                    front.written += bytes;
                    budget = budget.saturating_sub(bytes);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.written_at = Instant::now();
        Ok(if front.written == whole { self.queue.pop_front() } else { None })
    }
}

/// A dead connection is an error here, not a signal to the process.
#[cfg(any(target_os = "linux", target_os = "android"))]
const NO_SIGNAL: libc::c_int = libc::MSG_NOSIGNAL;
/// Apple's sockets have an option for it, which is set when they are made.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const NO_SIGNAL: libc::c_int = 0;
