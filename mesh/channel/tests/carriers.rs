//! Every carrier passes the same suite.

mod suite;
mod support;

use std::sync::Arc;
use std::time::Duration;

use mesh_channel::{ChannelConfig, TensorChannels};
use mesh_core::ports::Channels;

use crate::support::{Gong, down, lane, shape, tcp_channels};

#[test]
fn in_process() {
    suite::run(&|| {
        let one: Arc<dyn Channels> = Arc::new(TensorChannels::new(ChannelConfig::loopback()).expect("loopback"));
        (Arc::clone(&one), one)
    });
}

#[test]
fn tcp() {
    suite::run(&|| (tcp_channels(|_| {}), tcp_channels(|_| {})));
}

#[test]
fn tcp_to_oneself() {
    suite::run(&|| {
        let one: Arc<dyn Channels> = tcp_channels(|_| {});
        (Arc::clone(&one), one)
    });
}

#[test]
fn tcp_over_every_interface_of_this_machine() {
    let node = || -> Arc<dyn Channels> {
        let config = ChannelConfig { in_process: false, ..ChannelConfig::every_interface().expect("interfaces") };
        Arc::new(TensorChannels::new(config).expect("loopback at least"))
    };
    suite::run(&|| (node(), node()));
}

#[test]
fn a_lane_that_nobody_connects_to_is_given_up() {
    let channels = tcp_channels(|deadlines| deadlines.unclaimed = Duration::from_millis(100));
    let gong = Arc::new(Gong::default());
    let (offer, receiver) = channels.accept(lane(0), shape(64, 1), gong.clone()).expect("accept");
    let why = gong.until("the deadline", || down(&receiver.state()));
    assert!(why.contains("no sender"), "{why}");
    let sender = channels.connect(&offer, gong.clone()).expect("a sound offer");
    gong.until("refusal", || down(&sender.state()));
}

#[test]
fn no_interface_and_no_memory_carrier_is_an_empty_offer() {
    let config = ChannelConfig { interfaces: Vec::new(), in_process: false, ..ChannelConfig::loopback() };
    let channels = TensorChannels::new(config).expect("nothing to bind is nothing to fail");
    let (offer, _receiver) = channels.accept(lane(0), shape(64, 1), Arc::new(Gong::default())).expect("accept");
    assert!(channels.connect(&offer, Arc::new(Gong::default())).is_err());
}
