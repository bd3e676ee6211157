//! Links on real kernels: two machines in network namespaces, joined by cables that are named, crossed, pulled and plugged.
//!
//! As in `namespaces.rs`, no root is needed where user namespaces are allowed, and where they are not, the tests say
//! loudly that they were skipped.

use std::process::{Command, Stdio};

mod common;

/// Makes the cables, starts two nodes, and checks what each sees. Arguments: program, scratch directory, scenario, names.
const CABLES: &str = include_str!("links.sh");

/// Inside which a test may plug cables.
const NAMESPACES: [&str; 4] = ["--user", "--map-root-user", "--net", "--mount"];

fn may_make_namespaces() -> bool {
    let probe = "ip link add probe type veth peer name other && tc qdisc add dev probe root tbf rate 40mbit burst 16kb latency 100ms";
    let made = Command::new("unshare").args(NAMESPACES).args(["bash", "-c", probe]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if made.is_ok_and(|status| status.success()) {
        return true;
    }
    common::skipped("this machine allows no network namespaces (user namespaces, iproute2, veth and tbf are needed)");
    false
}

fn with_cables(scenario: &str, names: &str) {
    if !may_make_namespaces() {
        return;
    }
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let output = Command::new("unshare")
        .args(NAMESPACES)
        .args(["--pid", "--fork", "--kill-child", "bash", "-c", CABLES, "links.sh"])
        .arg(common::program())
        .arg(scratch.path())
        .args([scenario, names])
        .output()
        .expect("unshare runs");
    assert!(
        output.status.success(),
        "{scenario} {names}:\n{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// F3: whatever the interfaces are called at each end, both take the quicker link.
#[test]
fn a_quick_cable_is_agreed_on_under_every_naming() {
    for names in ["a a b b", "a b b a", "b a a b", "b b a a"] {
        with_cables("names", names);
    }
}

/// F18.
#[test]
fn two_crossed_cables_are_two_links_and_both_ends_take_the_same() {
    with_cables("crossed", "");
}

/// F15.
#[test]
fn a_pulled_cable_costs_an_answer_at_most_and_comes_back() {
    with_cables("cut", "");
}

/// F15, R14: no carrier is lost, nothing refuses, the link just says nothing any more.
#[test]
fn a_link_that_falls_silent_is_given_up_for_the_other() {
    with_cables("deaf", "");
}

/// F4.
#[test]
fn a_cable_that_is_plugged_in_later_is_used_in_seconds() {
    with_cables("later", "");
}

/// F17.
#[test]
fn a_new_interface_disturbs_nothing() {
    with_cables("nic", "");
}

#[test]
fn a_cable_with_link_local_ipv6_alone_carries_tensors() {
    with_cables("fe80", "");
}

/// F1.
#[test]
fn a_container_bridge_is_no_link() {
    with_cables("bridge", "");
}
