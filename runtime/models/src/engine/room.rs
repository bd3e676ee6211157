//! Memory that the machine has left, looked at just before it is taken: a plan may be minutes old (F65).

/// Bytes that programs can still have without swapping. `None` where the system does not say.
pub(super) fn available_bytes() -> Option<u64> {
    of_meminfo(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn of_meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_found() {
        assert_eq!(of_meminfo("MemTotal:  9 kB\nMemAvailable:   1234 kB\n"), Some(1234 * 1024));
        assert_eq!(of_meminfo("MemTotal: 9 kB\n"), None);
        assert_eq!(of_meminfo("MemAvailable: 99999999999999999999 kB\n"), None);
    }
}
