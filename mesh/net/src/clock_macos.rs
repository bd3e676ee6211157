#![expect(unsafe_code, reason = "mach's clock is a C function")]
//! `mach_continuous_time`: monotonic, and goes on during sleep.

use std::sync::OnceLock;

#[repr(C)]
struct Timebase {
    numer: u32,
    denom: u32,
}

unsafe extern "C" {
    fn mach_continuous_time() -> u64;
    fn mach_timebase_info(info: *mut Timebase) -> i32;
}

/// Nanoseconds since boot.
pub fn nanoseconds() -> u64 {
    static TIMEBASE: OnceLock<(u128, u128)> = OnceLock::new();
    let (numer, denom) = *TIMEBASE.get_or_init(|| {
        let mut info = Timebase { numer: 1, denom: 1 };
        // SAFETY: `info` is ours, writable, and laid out as the header says.
        let code = unsafe { mach_timebase_info(&raw mut info) };
        assert!(code == 0 && info.denom != 0, "the kernel has no timebase");
        (u128::from(info.numer), u128::from(info.denom))
    });
    // SAFETY: takes nothing, touches nothing of ours.
    let ticks = unsafe { mach_continuous_time() };
    u64::try_from(u128::from(ticks) * numer / denom).unwrap_or(u64::MAX)
}
