#![expect(unsafe_code, reason = "clock_gettime is a C function")]
//! `CLOCK_BOOTTIME`: monotonic, and goes on during suspend.

#[cfg(target_os = "linux")]
const CLOCK: libc::clockid_t = libc::CLOCK_BOOTTIME;
#[cfg(not(target_os = "linux"))]
const CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC;

/// Nanoseconds since boot.
pub fn nanoseconds() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is ours, writable, and of the type that the call fills in.
    let code = unsafe { libc::clock_gettime(CLOCK, &raw mut now) };
    assert_eq!(code, 0, "the kernel has no monotonic clock");
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}
