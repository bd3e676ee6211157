//! Threads of one engine, and how a loop is shared among them.
//!
//! [`Pool::run`] calls a function for every index below a count, on the caller and on the pool's own threads; whoever is
//! free takes the next index. What is left to take and how much there is lie in one atomic word, so taking an index is
//! one compare-and-swap, and a thread that wakes late finds nothing and goes back. The caller never waits for a thread
//! to wake: if none does, it does everything itself.
//!
//! A pass through a small model calls `run` some hundred times a token, microseconds apart, and waking a parked thread
//! costs 5 to 50 of them. So threads look for more work for [`SPIN`] before they park, unless the process has more
//! pool threads than the machine has cores: then a spinning thread would take the core of a working one.

#![expect(unsafe_code, reason = "a borrowed closure is lent to other threads for the length of one call")]

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a thread looks for work before it parks. About twice the longest gap between two products of a small model.
pub const SPIN: Duration = Duration::from_micros(20);

/// Most threads of one pool. A guess well above the cores of any machine that decodes from its own memory.
pub const THREADS_MAX: usize = 256;

/// Threads that share loops. Dropping it ends and joins them.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Whether a loop runs: a second one (from inside a task, or from another thread) is then run by its caller alone.
    busy: AtomicBool,
    /// What this pool added to [`THREADS`].
    counted: usize,
}

impl Pool {
    /// A pool that runs loops on `threads` threads, the caller's included. 0 counts as 1; more than [`THREADS_MAX`] as that.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        let threads = threads.clamp(1, THREADS_MAX);
        let shared = Arc::new(Shared::default());
        let workers: Vec<_> = (1..threads)
            .filter_map(|i| {
                let shared = Arc::clone(&shared);
                // A system out of threads leaves a smaller pool, which computes the same.
                std::thread::Builder::new().name(format!("mesh-compute-{i}")).spawn(move || shared.work()).ok()
            })
            .collect();
        let counted = if workers.is_empty() { 0 } else { workers.len() + 1 };
        THREADS.fetch_add(counted, Ordering::Relaxed);
        Self { shared, workers, busy: AtomicBool::new(false), counted }
    }

    /// Threads that a loop may use, the caller's included.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `f` once for each of `0..tasks`, in no order, on the caller and the pool's threads. Returns when all are done.
    ///
    /// # Panics
    /// If a task panics: with its payload, when no other task runs any more. Tasks not yet begun are then skipped.
    pub fn run(&self, tasks: usize, f: &(dyn Fn(usize) + Sync)) {
        let alone = tasks <= 1 || self.workers.is_empty() || tasks > TASKS_MAX;
        if alone || self.busy.swap(true, Ordering::Acquire) {
            return (0..tasks).for_each(f);
        }
        let panic = self.shared.lead(tasks, f);
        self.busy.store(false, Ordering::Release);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        THREADS.fetch_sub(self.counted, Ordering::Relaxed);
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(lock(&self.shared.sleep));
        self.shared.wake_workers.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches its tasks' panics, so it cannot have one of its own to tell.
            let _ = worker.join();
        }
    }
}

/// Threads of all pools of this process that have more than one.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// The word's halves hold 32 bits each.
const TASKS_MAX: usize = u32::MAX as usize >> 1;

/// A loop's function. Its real lifetime is that of the `run` call which put it there.
type Job = *const (dyn Fn(usize) + Sync + 'static);

/// What the caller and the workers share.
#[derive(Debug, Default)]
struct Shared {
    /// High half: tasks of the current loop. Low half: the next one to take. Equal halves: nothing to take.
    word: Padded<AtomicU64>,
    /// Tasks of the current loop that ended.
    done: Padded<AtomicUsize>,
    /// The current loop's function.
    job: Slot,
    /// Set by the first task that panics: later ones are counted but not run.
    failed: AtomicBool,
    /// What the first panicking task threw.
    payload: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
    /// Workers that are parked, or about to be.
    parked: AtomicUsize,
    /// Whether the caller is parked, or about to be.
    caller_parked: AtomicBool,
    sleep: Mutex<()>,
    wake_workers: Condvar,
    wake_caller: Condvar,
}

/// Keeps two busy atomics off one cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded<T>(T);

/// Holds the function of the loop that runs now.
#[derive(Default)]
struct Slot(UnsafeCell<Option<Job>>);

// SAFETY: the slot is written by the one leader while nothing can be taken, and read only by who has taken a task that is
// not yet counted as done; `Shared::word` and `Shared::done` order the two. The function in it is `Sync`.
unsafe impl Sync for Slot {}
// SAFETY: as above; the pointer is followed only while its owner waits in `lead`.
unsafe impl Send for Slot {}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Slot")
    }
}

impl Shared {
    /// Runs one loop as its caller. Gives back what a task threw.
    fn lead(&self, tasks: usize, f: &(dyn Fn(usize) + Sync)) -> Option<Box<dyn Any + Send>> {
        let job: *const (dyn Fn(usize) + Sync + '_) = f;
        // SAFETY: only the lifetime changes. The pointer is followed by tasks of this loop alone, and this function returns
        // only after all of them are counted as done.
        let job = unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), Job>(job) };
        // SAFETY: the last loop is over (`word`'s halves are equal, `done` had reached its tasks), so nobody reads the slot.
        unsafe { *self.job.0.get() = Some(job) };
        self.done.0.store(0, Ordering::Relaxed);
        self.word.0.store((tasks as u64) << 32, Ordering::SeqCst);
        if self.parked.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.sleep));
            self.wake_workers.notify_all();
        }
        self.take_all();
        self.wait_done(tasks);
        if self.failed.swap(false, Ordering::Relaxed) { lock(&self.payload).take() } else { None }
    }

    /// Takes and runs tasks until none is left.
    fn take_all(&self) {
        let mut word = self.word.0.load(Ordering::Acquire);
        loop {
            let (tasks, next) = ((word >> 32) as usize, (word & 0xffff_ffff) as usize);
            if next >= tasks {
                return;
            }
            match self.word.0.compare_exchange_weak(word, word + 1, Ordering::AcqRel, Ordering::Acquire) {
                Err(seen) => word = seen,
                Ok(_) => {
                    self.run_one(next);
                    // The word may by then belong to a later loop: then its tasks are as good.
                    if self.done.0.fetch_add(1, Ordering::SeqCst) + 1 == tasks && self.caller_parked.load(Ordering::SeqCst) {
                        drop(lock(&self.sleep));
                        self.wake_caller.notify_one();
                    }
                    word = self.word.0.load(Ordering::Acquire);
                }
            }
        }
    }

    /// Runs a task that this thread has taken.
    fn run_one(&self, task: usize) {
        if self.failed.load(Ordering::Relaxed) {
            return;
        }
        // SAFETY: this thread holds a task that is not done, so `lead` waits and the slot is not written.
        let job = unsafe { *self.job.0.get() };
        let Some(job) = job else { unreachable!("a task was published without its function") };
        // SAFETY: as above; `lead` borrows the function until all tasks are done.
        let job = unsafe { &*job };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| job(task))) {
            lock(&self.payload).get_or_insert(payload);
            self.failed.store(true, Ordering::Relaxed);
        }
    }

    /// Waits until the tasks that others took are done.
    fn wait_done(&self, tasks: usize) {
        let all_done = || self.done.0.load(Ordering::SeqCst) == tasks;
        if spin_until(all_done) {
            return;
        }
        let mut guard = lock(&self.sleep);
        self.caller_parked.store(true, Ordering::SeqCst);
        while !all_done() {
            guard = self.wake_caller.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.caller_parked.store(false, Ordering::SeqCst);
    }

    /// A worker's life.
    fn work(&self) {
        let something = || {
            let word = self.word.0.load(Ordering::SeqCst);
            (word & 0xffff_ffff) < (word >> 32) || self.stop.load(Ordering::SeqCst)
        };
        while !self.stop.load(Ordering::SeqCst) {
            self.take_all();
            if spin_until(something) {
                continue;
            }
            let mut guard = lock(&self.sleep);
            self.parked.fetch_add(1, Ordering::SeqCst);
            while !something() {
                guard = self.wake_workers.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
            self.parked.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Looks again and again for [`SPIN`], or once if cores are scarce. Tells whether the condition came true.
fn spin_until(condition: impl Fn() -> bool) -> bool {
    if condition() {
        return true;
    }
    if THREADS.load(Ordering::Relaxed) > cores() {
        return false;
    }
    let begin = Instant::now();
    loop {
        for _ in 0..16 {
            if condition() {
                return true;
            }
            std::hint::spin_loop();
        }
        if begin.elapsed() > SPIN {
            return false;
        }
    }
}

/// Cores that this process may use; asked once.
fn cores() -> usize {
    static CORES: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get))
}

/// Locks; nothing that the pool's mutexes guard can be left half-written by a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_runs_once_whatever_the_threads() {
        for threads in [0, 1, 2, 3, 8] {
            let pool = Pool::new(threads);
            for tasks in [0, 1, 2, 7, 64, 1000] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, &|i| {
                    counts[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1), "{threads} threads, {tasks} tasks");
            }
        }
    }

    #[test]
    fn many_short_loops_lose_no_task() {
        let pool = Pool::new(4);
        let sum = AtomicUsize::new(0);
        for _ in 0..20_000 {
            pool.run(5, &|i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
        }
        assert_eq!(sum.into_inner(), 20_000 * 10);
    }

    #[test]
    fn a_loop_inside_a_task_and_a_second_caller_run_by_themselves() {
        let pool = Pool::new(2);
        let count = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        pool.run(4, &|_| {
                            pool.run(4, &|_| {
                                count.fetch_add(1, Ordering::Relaxed);
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 3 * 100 * 16);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(3);
        for _ in 0..50 {
            let caught = catch_unwind(AssertUnwindSafe(|| pool.run(16, &|i| assert!(i != 11, "eleven"))));
            let payload = caught.expect_err("task 11 panics");
            let text = payload.downcast_ref::<&str>().map_or_else(|| payload.downcast_ref::<String>().cloned(), |s| Some((*s).into()));
            assert_eq!(text.as_deref(), Some("eleven"));
            let count = AtomicUsize::new(0);
            pool.run(16, &|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.into_inner(), 16);
        }
    }
}
