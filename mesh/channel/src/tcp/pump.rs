//! The thread of one end of a connection. It alone reads; it writes what waits; it keeps the line alive; it decides that
//! the line is dead. Everything it does is bounded, so a hang-up is seen within one turn.

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use super::incoming::{Arrival, Broken, Incoming};
use super::link::Link;
use crate::arena::{Filled, Slot};
use crate::config::Deadlines;
use crate::counters::Counters;
use crate::frame::{FrameError, Header, Kind};
use crate::poll::{Watch, wait};
use crate::seal::Opener;

/// Frames read before the clock and the bell are looked at again.
const FRAMES_A_TURN: usize = 16;

/// What the two ends of a lane do differently.
pub(super) trait Side {
    /// A message announces itself: a slot for it.
    fn slot(&self) -> Result<Slot, FrameError>;
    /// An authentic frame came; goodbyes are not shown.
    fn frame(&self, header: &Header, message: Option<Filled>) -> Result<(), FrameError>;
    /// The slot of a message that had to wait was written.
    fn written(&self, slot: Slot);
    /// Says what could not be said while the line was busy.
    fn catch_up(&self) -> io::Result<()>;
    /// Says that this end is alive.
    fn keep_alive(&self) -> io::Result<()>;
    /// The lane is over.
    fn ended(&self, why: &str);
}

/// How a connection came to its end.
enum End {
    /// The other end said goodbye.
    Goodbye,
    /// This end was told to hang up.
    HungUp,
}

/// Runs one end until it is over; says whether it broke. Leaves nothing behind: the socket is shut, what waited is freed, the
/// lane is down.
pub(super) fn run(link: &Link, opener: Opener, side: &impl Side, deadlines: &Deadlines, counters: &Counters) -> bool {
    // A waker is foreign code. If it panics the lane must not look alive.
    let end = catch_unwind(AssertUnwindSafe(|| drive(link, opener, side, deadlines)));
    let mut broken = false;
    let why = match end {
        Ok(Ok(End::Goodbye)) => "the other end closed the lane".to_owned(),
        Ok(Ok(End::HungUp)) => {
            let _ = hang_up(link, deadlines); // the other end may be gone
            "this end closed the lane".to_owned()
        }
        Ok(Err(why)) => {
            broken = !link.bell.is_over();
            if broken {
                Counters::add(&counters.broken);
                tracing::warn!(peer = %link.peer, why, "a tensor lane broke");
            }
            why
        }
        Err(_) => "the lane's thread panicked; this is a defect".to_owned(),
    };
    link.shut();
    side.ended(&why);
    broken
}

fn drive(link: &Link, opener: Opener, side: &impl Side, deadlines: &Deadlines) -> Result<End, String> {
    let named = |broken: Broken| format!("{} {broken}", link.peer);
    let mut incoming = Incoming::new(opener);
    let mut heard = (0, Instant::now());
    loop {
        // Read first: after our own long sleep, what waits in the socket is what proves the other end's life.
        let mut idle = false;
        for _ in 0..FRAMES_A_TURN {
            match incoming.advance(&link.socket, || side.slot()).map_err(named)? {
                Arrival::Frame(header, _) if header.kind == Kind::Goodbye => return Ok(End::Goodbye),
                Arrival::Frame(header, message) => side.frame(&header, message).map_err(|error| named(error.into()))?,
                Arrival::Nothing => {
                    idle = true;
                    break;
                }
            }
        }
        let waiting = link.flush(|slot| side.written(slot)).map_err(|error| named(error.into()))?;
        if link.bell.is_over() {
            return Ok(End::HungUp);
        }
        let now = Instant::now();
        if incoming.heard_bytes != heard.0 {
            heard = (incoming.heard_bytes, now);
        }
        let silent_at = heard.1 + deadlines.silent;
        if now >= silent_at {
            return Err(format!("{} has been silent for {:.1} s", link.peer, deadlines.silent.as_secs_f32()));
        }
        side.catch_up().map_err(|error| named(error.into()))?;
        if now >= link.written_at() + deadlines.keep_alive && !waiting {
            side.keep_alive().map_err(|error| named(error.into()))?;
        }
        if idle {
            let keep_alive_at = if waiting { silent_at } else { link.written_at() + deadlines.keep_alive };
            pause(link, waiting, silent_at.min(keep_alive_at)).map_err(|error| named(error.into()))?;
        }
    }
}

/// Waits for the socket, the bell or the deadline.
fn pause(link: &Link, waiting: bool, until: Instant) -> io::Result<()> {
    let socket = link.socket.as_fd();
    let socket = if waiting { Watch::read_and_write(socket) } else { Watch::read(socket) };
    let mut watches = [socket, link.bell.watch()];
    wait(&mut watches, until)?;
    if watches[1].stirred {
        link.bell.hush();
    }
    Ok(())
}

/// Writes what still waits, says goodbye and listens, for a while, until the other end has read it: closing a socket with
/// unread bytes in it would throw away what is still under way to the other end.
fn hang_up(link: &Link, deadlines: &Deadlines) -> io::Result<()> {
    let until = Instant::now() + deadlines.linger;
    let written = || -> io::Result<bool> {
        while link.flush(drop)? {
            if Instant::now() >= until {
                return Ok(false);
            }
            wait(&mut [Watch::write(link.socket.as_fd())], until)?;
        }
        Ok(true)
    };
    if !written()? || !link.send_small(Kind::Goodbye, 0)? || !written()? {
        return Ok(());
    }
    link.socket.shutdown(Shutdown::Write)?;
    let mut scrap = [0; 4096];
    while Instant::now() < until {
        match (&link.socket).read(&mut scrap) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait(&mut [Watch::read(link.socket.as_fd())], until)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
