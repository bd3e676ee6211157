//! What this machine, or its container, can lend to models.

use std::time::Instant;

use mesh_core::records::Capacity;

/// Memory left for models: what the machine has available, or the container's limit where that is less (F63), without a
/// tenth for everything else.
#[must_use]
pub fn memory_default() -> u64 {
    let free = available_bytes().unwrap_or(4 << 30);
    let limit = container_bytes().unwrap_or(u64::MAX);
    free.min(limit) / 10 * 9
}

/// `MemAvailable` of Linux; on macOS what `sysctl` says the machine has.
fn available_bytes() -> Option<u64> {
    if let Ok(text) = std::fs::read_to_string("/proc/meminfo") {
        let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
        return Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024);
    }
    let output = std::process::Command::new("/usr/sbin/sysctl").args(["-n", "hw.memsize"]).output().ok()?;
    // macOS lets processes use most of the memory; two thirds is what Metal offers by default as well.
    Some(String::from_utf8(output.stdout).ok()?.trim().parse::<u64>().ok()? / 3 * 2)
}

/// The tightest limit of this process's control groups (version 2, then 1), less what is in use.
fn container_bytes() -> Option<u64> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    let mut least = None;
    let mut dir = std::path::PathBuf::from("/sys/fs/cgroup").join(path.trim_start_matches('/'));
    while dir.starts_with("/sys/fs/cgroup") {
        if let Some(limit) = number(&dir.join("memory.max")) {
            let left = limit.saturating_sub(number(&dir.join("memory.current")).unwrap_or(0));
            least = Some(least.unwrap_or(u64::MAX).min(left));
        }
        if !dir.pop() {
            break;
        }
    }
    // Version 1 writes "no limit" as a number near 2^63.
    least.or_else(|| number("/sys/fs/cgroup/memory/memory.limit_in_bytes".as_ref()).filter(|limit| *limit < 1 << 60))
}

fn number(path: &std::path::Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Cores that this process may use: affinity and container quota included.
#[must_use]
pub fn threads_default() -> u16 {
    std::thread::available_parallelism().map_or(1, |cores| u16::try_from(cores.get()).unwrap_or(u16::MAX))
}

/// Capacity with quickly measured speeds: about 60 ms. The planner needs ratios between nodes, not laboratory values.
#[must_use]
pub fn measure(memory_bytes: u64, threads: u16) -> Capacity {
    Capacity { memory_bytes, memory_bandwidth: bandwidth(threads), flops: flops(threads), threads }
}

/// Bytes a second when every thread reads its own 32 MiB: the best of three rounds.
fn bandwidth(threads: u16) -> u64 {
    const WORDS: usize = 4 << 20;
    let mut best = 0.0_f64;
    let data: Vec<Vec<u64>> = (0..threads).map(|thread| vec![u64::from(thread) + 1; WORDS]).collect();
    for _ in 0..3 {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for part in &data {
                scope.spawn(|| std::hint::black_box(part.iter().fold(0_u64, |sum, word| sum.wrapping_add(*word))));
            }
        });
        best = best.max((data.len() * WORDS * 8) as f64 / start.elapsed().as_secs_f64());
    }
    best as u64
}

/// Multiply-adds a second (counted as two operations) in a small product that stays in cache, times the threads.
fn flops(threads: u16) -> u64 {
    const LANES: usize = 64;
    const ROUNDS: usize = 200_000;
    let mut sums = [0.0_f32; LANES];
    let (mut a, b) = ([1.0_f32; LANES], [0.999_f32; LANES]);
    let start = Instant::now();
    for _ in 0..ROUNDS {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
        std::hint::black_box(&mut a);
    }
    std::hint::black_box(sums);
    let rate = (2 * LANES * ROUNDS) as f64 / start.elapsed().as_secs_f64();
    (rate * f64::from(threads)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory_and_speed() {
        assert!(memory_default() > 16 << 20);
        let capacity = measure(1 << 30, 1);
        assert!(capacity.memory_bandwidth > 100 << 20 && capacity.flops > 10_000_000, "{capacity:?}");
    }
}
