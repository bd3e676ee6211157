//! Where connections arrive: listening sockets, and the handshakes that are under way, all in one thread.
//!
//! A stranger costs one descriptor and some hundred bytes, for [`Deadlines::preamble`] at most, and can hold
//! [`HALF_OPEN_MAX`] places at most; when the door is crowded the oldest gives way, since an honest handshake takes one
//! round trip and a hostile one waits.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::inward;
use super::link::Link;
use crate::config::Deadlines;
use crate::counters::Counters;
use crate::frame::{FrameError, Kind, PREAMBLE_BYTES, PREAMBLE_CLEAR_BYTES, PREFIX_BYTES, Preamble};
use crate::inlet::Inlet;
use crate::listeners::Listeners;
use crate::poll::{Bell, Watch, wait};
use crate::registry::{NoLane, Registry};
use crate::seal::{Keys, Opener, Sealer};

/// Handshakes under way at most.
const HALF_OPEN_MAX: usize = 32;
/// Connections taken from one listening socket before the others are looked at.
const ACCEPTS_A_TURN: usize = 16;
/// How long new connections are left alone when the system has no descriptor for them; trying on would only burn a core.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(200);
/// With nothing due, the thread looks at its state this often anyway. Costs nothing.
const IDLE_PAUSE: Duration = Duration::from_secs(60);

/// The door's own thread.
pub(crate) struct Door {
    pub(crate) listeners: Arc<Listeners>,
    pub(crate) bell: Arc<Bell>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) deadlines: Deadlines,
}

impl Door {
    /// Runs until the bell says so.
    pub(crate) fn run(self) {
        let mut half_open: VecDeque<HalfOpen> = VecDeque::new();
        let mut closed_until = Instant::now();
        while !self.bell.is_over() {
            let now = Instant::now();
            let due = self.registry.expire(now).into_iter().chain(half_open.front().map(|first| first.until));
            let open = now >= closed_until;
            let until = due.chain((!open).then_some(closed_until)).min().unwrap_or(now + IDLE_PAUSE);
            let listeners = self.listeners.now(); // whoever changes them rings
            let mut watches = vec![self.bell.watch()];
            watches.extend(half_open.iter().map(|one| Watch::read(one.socket.as_fd())));
            let doors_from = watches.len();
            watches.extend(listeners.iter().filter(|_| open).map(|listener| Watch::read(listener.socket.as_fd())));
            if let Err(error) = wait(&mut watches, until) {
                tracing::warn!(%error, "cannot wait for tensor lanes");
                std::thread::sleep(EXHAUSTED_PAUSE);
                continue;
            }
            let stirred: Vec<bool> = watches.iter().map(|watch| watch.stirred).collect();
            drop(watches);
            if stirred[0] {
                self.bell.hush();
            }
            half_open = self.go_on(half_open, &stirred[1..doors_from]);
            for (listener, _) in listeners.iter().zip(&stirred[doors_from..]).filter(|(_, stirred)| **stirred) {
                if let Err(error) = self.welcome(&listener.socket, &mut half_open) {
                    tracing::warn!(%error, "cannot take a tensor connection");
                    closed_until = Instant::now() + EXHAUSTED_PAUSE;
                }
            }
        }
        self.registry.close();
    }

    fn go_on(&self, half_open: VecDeque<HalfOpen>, stirred: &[bool]) -> VecDeque<HalfOpen> {
        let now = Instant::now();
        let mut rest = VecDeque::new();
        for (mut one, &stirred) in half_open.into_iter().zip(stirred) {
            match if stirred { one.advance(&self.registry) } else { Ok(false) } {
                Ok(true) => self.hand_over(one),
                Ok(false) if now >= one.until => Counters::add(&self.counters.late),
                Ok(false) => rest.push_back(one),
                Err(why) => {
                    Counters::add(&self.counters.refused);
                    tracing::debug!(peer = %one.peer, %why, "a tensor connection was refused");
                }
            }
        }
        rest
    }

    fn welcome(&self, listener: &TcpListener, half_open: &mut VecDeque<HalfOpen>) -> io::Result<()> {
        for _ in 0..ACCEPTS_A_TURN {
            let (socket, peer) = match listener.accept() {
                Ok(one) => one,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // The connection ended before we took it, or an interruption: the next one may be sound.
                Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) => continue,
                Err(error) => return Err(error),
            };
            if socket.set_nonblocking(true).is_err() {
                continue; // dead already
            }
            if half_open.len() >= HALF_OPEN_MAX {
                half_open.pop_front();
                Counters::add(&self.counters.late);
            }
            let until = Instant::now() + self.deadlines.preamble;
            half_open.push_back(HalfOpen { socket, peer, until, heard: [0; PREAMBLE_BYTES], heard_bytes: 0, known: None });
        }
        Ok(())
    }

    fn hand_over(&self, one: HalfOpen) {
        let Some(Known { inlet, sealer, opener }) = one.known else { return };
        let started = super::tune(&one.socket, inlet.shape.slot_bytes, &self.deadlines).and_then(|()| Bell::new()).map(|bell| {
            let link = Arc::new(Link::new(one.socket, one.peer, Arc::new(bell), sealer));
            inward::start(inlet, link, opener, self.deadlines, Arc::clone(&self.counters))
        });
        match started {
            Ok(true) => Counters::add(&self.counters.accepted),
            Ok(false) => Counters::add(&self.counters.refused),
            Err(error) => tracing::warn!(peer = %one.peer, %error, "cannot take a tensor connection"),
        }
    }
}

/// A connection that has not proved itself.
struct HalfOpen {
    socket: TcpStream,
    peer: SocketAddr,
    until: Instant,
    heard: [u8; PREAMBLE_BYTES],
    heard_bytes: usize,
    /// Set when the preamble was good: what remains is the proof that the other end read our answer.
    known: Option<Known>,
}

struct Known {
    inlet: Arc<Inlet>,
    sealer: Sealer,
    opener: Opener,
}

/// Why a connection is not taken.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("it says what no lane's sender says")]
    NoPreamble,
    #[error("{0}")]
    NoLane(#[from] NoLane),
    #[error("it does not have the lane's key")]
    NoKey,
    #[error("it sent {0}")]
    Frame(#[from] FrameError),
    #[error("{0}")]
    System(#[from] io::Error),
}

const _: () = assert!(PREFIX_BYTES <= PREAMBLE_BYTES);

impl HalfOpen {
    /// Reads what is there. True when the connection has proved itself.
    fn advance(&mut self, registry: &Registry) -> Result<bool, Refusal> {
        loop {
            let want = if self.known.is_some() { PREFIX_BYTES } else { PREAMBLE_BYTES };
            match (&self.socket).read(&mut self.heard[self.heard_bytes..want]) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(bytes) => self.heard_bytes += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            }
            if self.heard_bytes < want {
                continue;
            }
            self.heard_bytes = 0;
            if self.known.is_some() {
                self.confirm()?;
                return Ok(true);
            }
            self.known = Some(self.answer(registry)?);
        }
    }

    /// Checks the preamble and answers it with the first credits. The answer is the same for the same preamble, so one
    /// that was recorded and sent again gets nothing new sealed under its nonce.
    fn answer(&self, registry: &Registry) -> Result<Known, Refusal> {
        let preamble = Preamble::read(&self.heard[..PREAMBLE_CLEAR_BYTES]).ok_or(Refusal::NoPreamble)?;
        let inlet = registry.find(&preamble.lane, preamble.generation)?;
        let keys = Keys::derive(&inlet.secret, &preamble);
        if !keys.holds(&self.heard) {
            return Err(Refusal::NoKey);
        }
        let mut sealer = Sealer::new(keys.back, inlet.generation, 0);
        let answer = sealer.seal(Kind::Grant, u64::from(inlet.shape.slots), &mut []);
        (&self.socket).write_all(&answer)?; // fits the buffer of a fresh socket
        Ok(Known { opener: Opener::new(keys.forth, inlet.generation, 1), sealer, inlet })
    }

    fn confirm(&mut self) -> Result<(), Refusal> {
        let known = self.known.as_mut().expect("asked for after the answer only");
        let prefix = self.heard[..PREFIX_BYTES].try_into().expect("so many were read");
        let header = known.opener.header(prefix)?;
        if header.kind != Kind::KeepAlive {
            return Err(FrameError::WrongWay.into());
        }
        known.opener.open(prefix, &mut [])?;
        Ok(())
    }
}
