//! Three nodes in three network namespaces on one virtual LAN: found by multicast DNS over 169.254 addresses alone.
//!
//! The namespaces are made inside a user namespace, so no root is needed where the kernel allows that. Where it does
//! not, the test says loudly that it was skipped.

use std::process::{Command, Stdio};

mod common;

/// Makes the LAN, starts three nodes, and checks what each sees. Arguments: program, scratch directory.
const LAN: &str = include_str!("lan.sh");

/// Makes nets on which machines do not find each other by themselves, or hardly.
const DISCOVERY: &str = include_str!("discovery.sh");

fn may_make_namespaces() -> bool {
    let made = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "--mount", "ip", "link", "add", "probe", "type", "veth", "peer", "name", "other"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if made.is_ok_and(|status| status.success()) {
        return true;
    }
    common::skipped("this machine allows no network namespaces (user namespaces, iproute2 and veth are needed)");
    false
}

fn on_a_lan(scenario: &str) {
    on_a_lan_with(scenario, &[]);
}

/// `more` follows the scenario's name on the script's command line.
fn on_a_lan_with(scenario: &str, more: &[&std::ffi::OsStr]) {
    run(LAN, scenario, more);
}

fn run(script: &str, scenario: &str, more: &[&std::ffi::OsStr]) {
    if !may_make_namespaces() {
        return;
    }
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", script, "script"])
        .arg(common::program())
        .arg(scratch.path())
        .arg(scenario)
        .args(more)
        .output()
        .expect("unshare runs");
    assert!(
        output.status.success(),
        "{scenario}:\n{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn three_machines_with_link_local_addresses_find_each_other_and_tell_a_story() {
    on_a_lan("story");
}

#[test]
fn a_container_bridge_with_the_same_address_everywhere_is_no_lan() {
    on_a_lan("bridge");
}

#[test]
fn a_mesh_of_another_name_stays_apart() {
    on_a_lan("strangers");
}

#[test]
fn three_machines_with_link_local_addresses_answer_with_a_real_model_whichever_is_asked() {
    let Some(models) = common::real_model() else { return };
    let python = common::python().map_or_else(Default::default, std::path::PathBuf::into_os_string);
    let script = common::openai_script();
    on_a_lan_with(
        "real",
        &[models.as_ref(), common::SMOLLM2.as_ref(), common::QUESTION.as_ref(), common::ANSWER.as_ref(), &python, script.as_ref()],
    );
}

#[test]
fn without_multicast_a_node_says_so_and_an_address_is_enough() {
    run(DISCOVERY, "quiet", &[]);
}

#[test]
fn to_be_heard_in_one_direction_is_enough() {
    run(DISCOVERY, "oneway", &[]);
}

#[test]
fn on_routed_subnets_one_seed_is_enough_and_may_leave() {
    run(DISCOVERY, "routed", &[]);
}

#[test]
fn small_subnets_that_look_alike_are_told_apart() {
    run(DISCOVERY, "thirty", &[]);
}

#[test]
fn a_seed_that_comes_up_late_is_found_and_a_dead_address_of_it_costs_nothing() {
    run(DISCOVERY, "late", &[]);
}

#[test]
fn five_hundred_addresses_do_not_hold_a_node_up() {
    run(DISCOVERY, "crowd", &[]);
}
