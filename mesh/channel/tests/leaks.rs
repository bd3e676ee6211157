//! Lanes leave nothing behind: no thread, no descriptor, no memory. Alone in its process, since it counts those.
#![cfg(target_os = "linux")]

mod support;

use mesh_core::ports::LaneState;

use crate::support::{connecting_lane, pattern, ready_lane, relay, shape, tcp_channels};

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").expect("procfs").count()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("procfs").count()
}

fn resident_pages() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("procfs");
    text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("the second number")
}

#[test]
fn many_lanes_come_and_go_and_nothing_stays() {
    let before_all = (threads(), descriptors());
    let (to, from) = (tcp_channels(|_| {}), tcp_channels(|_| {}));
    let turn = |number: usize| {
        let mut lane = ready_lane(&*to, &*from, shape(1 << 20, 4));
        for message in 0..number % 4 {
            lane.send(&pattern(message, 1 << 20)); // touches the arenas
        }
        match number % 5 {
            0 => drop(lane.sender), // either end first, with messages on the way
            1 => drop(lane.receiver),
            2 => drop(ready_lane(&*to, &*from, shape(64, 1))), // superseded
            3 => drop(connecting_lane(&*to, &*from, shape(1 << 20, 4), |_| {})),
            _ => assert_eq!(lane.sender.state(), LaneState::Ready),
        }
    };
    (0..20).for_each(turn);
    let settled = || (threads(), descriptors());
    let level = relay::until(|| (settled().0 <= before_all.0 + 2).then(settled));
    let pages = resident_pages();
    (0..100).for_each(turn);
    relay::until(|| (settled() == level).then_some(()));
    let grown = resident_pages().saturating_sub(pages) * 4096;
    assert!(grown < 16 << 20, "{grown} bytes stayed after 100 lanes of 8 MiB");
    drop((to, from));
    relay::until(|| (settled() == before_all).then_some(()));
}
