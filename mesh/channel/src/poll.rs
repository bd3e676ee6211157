#![expect(unsafe_code, reason = "poll(2): std can wait for one socket only, and not for a bell beside it")]
//! Waiting for sockets and for a bell, with a deadline.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What to wait for on one descriptor, and afterwards what there is.
pub(crate) struct Watch<'a> {
    descriptor: BorrowedFd<'a>,
    events: libc::c_short,
    /// What was waited for is there, or the connection ended.
    pub(crate) stirred: bool,
}

impl<'a> Watch<'a> {
    /// Something to read.
    pub(crate) fn read(descriptor: BorrowedFd<'a>) -> Self {
        Self { descriptor, events: libc::POLLIN, stirred: false }
    }

    /// Room to write.
    pub(crate) fn write(descriptor: BorrowedFd<'a>) -> Self {
        Self { descriptor, events: libc::POLLOUT, stirred: false }
    }

    /// Either.
    pub(crate) fn read_and_write(descriptor: BorrowedFd<'a>) -> Self {
        Self { descriptor, events: libc::POLLIN | libc::POLLOUT, stirred: false }
    }
}

/// Waits until something stirs or `until` has come. Being woken early is possible and harmless.
///
/// # Errors
/// What the operating system says; interruption is none.
pub(crate) fn wait(watches: &mut [Watch<'_>], until: Instant) -> io::Result<()> {
    let mut entries: Vec<libc::pollfd> =
        watches.iter().map(|watch| libc::pollfd { fd: watch.descriptor.as_raw_fd(), events: watch.events, revents: 0 }).collect();
    // Rounded up: a pause cut short to 0 ms would spin until the deadline.
    let left = until.saturating_duration_since(Instant::now()).saturating_add(Duration::from_micros(999));
    let timeout = libc::c_int::try_from(left.as_millis()).unwrap_or(libc::c_int::MAX);
    // SAFETY: `entries` is that many entries, and the descriptors are borrowed, hence open, during the call.
    let stirred = unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, timeout) };
    if stirred < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) };
    }
    for (watch, entry) in watches.iter_mut().zip(&entries) {
        watch.stirred = entry.revents != 0;
    }
    Ok(())
}

/// Lets any thread wake one that waits, and tell it to come to an end.
pub(crate) struct Bell {
    push: UnixStream,
    pull: UnixStream,
    over: AtomicBool,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        let (push, pull) = UnixStream::pair()?;
        push.set_nonblocking(true)?;
        pull.set_nonblocking(true)?;
        Ok(Self { push, pull, over: AtomicBool::new(false) })
    }

    /// Tells the waiter to come to an end.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.ring();
    }

    /// Whether [`Bell::end`] was called.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Wakes the waiter now, or when it waits next.
    pub(crate) fn ring(&self) {
        // Full means rung already; nothing else can fail while we hold both ends.
        let _ = (&self.push).write(&[1]);
    }

    /// For [`wait`].
    pub(crate) fn watch(&self) -> Watch<'_> {
        Watch::read(self.pull.as_fd())
    }

    /// Forgets the rings so far. To be called before looking at what they were about.
    pub(crate) fn hush(&self) {
        while matches!((&self.pull).read(&mut [0; 64]), Ok(64)) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bell_wakes_once_however_often_it_was_rung() {
        let bell = Bell::new().expect("two descriptors");
        for _ in 0..100_000 {
            bell.ring(); // never blocks, even when nobody listens
        }
        let mut watches = [bell.watch()];
        wait(&mut watches, Instant::now() + Duration::from_secs(10)).expect("poll");
        assert!(watches[0].stirred);
        bell.hush();
        let mut watches = [bell.watch()];
        wait(&mut watches, Instant::now()).expect("poll");
        assert!(!watches[0].stirred);
    }
}
