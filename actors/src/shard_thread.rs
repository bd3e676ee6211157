//! The thread of a shard: obeys, turns, and sleeps on the orders' queue in between.
//!
//! One queue is all that it waits on: lanes and the router push into it. Before it sleeps it looks at the queue for a moment
//! longer ([`SPIN_US`]), where cores are spare: a token that comes back within that time is met awake, which saves the
//! kernel's wake-up (about 15 µs, measured).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use mesh_core::wire::ShardState;

use crate::shard_inlet::Order;
use crate::shard_worker::{Flow, ShardWorker, Steps};
use crate::workers::ShardStart;

/// How long to look before sleeping, in microseconds (DESIGN, section 5).
const SPIN_US: u64 = 20;

/// Fewer cores than this are never spare.
const SPIN_CORES_MIN: usize = 4;

/// Longest sleep: a lost wake-up would cost no more.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// Starts the thread. It ends after `ShardHandle::retire`, and says so in its view.
pub(crate) fn spawn(start: ShardStart) -> std::io::Result<()> {
    let name = format!("shard-{}", &start.setup.deployment.to_string()[..8]);
    let view = start.inlet.view.clone();
    let spin = std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= SPIN_CORES_MIN);
    std::thread::Builder::new().name(name).spawn(move || {
        let ended = catch_unwind(AssertUnwindSafe(|| run(&mut ShardWorker::new(start, Steps::AtOnce), spin)));
        view.send_modify(|view| {
            view.ended = true;
            if ended.is_err() {
                view.state =
                    ShardState::Failed { why: "the shard's thread panicked: its layers must be loaded anew".to_owned(), retry: true };
            }
        });
    })?;
    Ok(())
}

fn run(worker: &mut ShardWorker, spin: bool) {
    loop {
        while let Some(order) = worker.next_order() {
            if obey(worker, order) == Flow::Ended {
                return;
            }
        }
        worker.turn();
        if worker.has_order() || (spin && comes_soon(worker)) {
            continue;
        }
        let sleep = worker.wake_at().map_or(SLEEP_MAX, |at| Duration::from_nanos(at.0.saturating_sub(worker.now().0)).min(SLEEP_MAX));
        if let Ok(order) = worker.orders().recv_timeout(sleep)
            && obey(worker, order) == Flow::Ended
        {
            return;
        }
    }
}

/// A load begins and ends here, however long it takes.
fn obey(worker: &mut ShardWorker, order: Order) -> Flow {
    let flow = worker.obey(order);
    if let Some(loading) = worker.loading() {
        worker.finish_load(&loading);
    }
    flow
}

fn comes_soon(worker: &ShardWorker) -> bool {
    let until = worker.now().0.saturating_add(SPIN_US * 1_000);
    while worker.now().0 < until {
        if worker.has_order() {
            return true;
        }
        std::hint::spin_loop();
    }
    false
}
