//! TCP with sealed frames: the carrier that works everywhere.
//!
//! One connection a generation. Each end has one thread, the *pump*, which reads what comes, writes what did not fit at
//! once, keeps the line alive and notices its death. A commit seals in the slot and writes from the caller's thread as
//! long as the socket takes it, which on an idle line saves a wake; the socket never blocks.

mod dial;
mod door;
mod incoming;
mod inward;
mod link;
mod outward;
mod pump;

pub(crate) use dial::Dialler;
pub(crate) use door::Door;
pub(crate) use outward::connect;

use std::io;
use std::os::fd::AsFd;

use socket2::SockRef;

use crate::config::Deadlines;

/// Bytes asked for in each socket buffer: two messages, between these bounds. Guess; see the bench.
const BUFFER_BYTES: std::ops::RangeInclusive<usize> = (256 << 10)..=(4 << 20);

/// Sets a connection up for messages of `slot_bytes`.
///
/// # Errors
/// The connection is dead already.
fn tune(socket: &impl AsFd, slot_bytes: u32, deadlines: &Deadlines) -> io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_tcp_nodelay(true)?;
    let bytes = (2 * slot_bytes as usize).clamp(*BUFFER_BYTES.start(), *BUFFER_BYTES.end());
    socket.set_send_buffer_size(bytes)?;
    socket.set_recv_buffer_size(bytes)?;
    give_up_unacknowledged(&socket, deadlines)
}

/// The kernel ends a connection whose bytes nobody acknowledges as soon as we would, and frees what it holds.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn give_up_unacknowledged(socket: &SockRef<'_>, deadlines: &Deadlines) -> io::Result<()> {
    socket.set_tcp_user_timeout(Some(deadlines.silent))
}

/// Elsewhere the pump's own deadline does it.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn give_up_unacknowledged(_: &SockRef<'_>, _: &Deadlines) -> io::Result<()> {
    Ok(())
}
