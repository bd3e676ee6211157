//! Every carrier passes the same suite.

mod suite;
mod support;

use std::sync::Arc;
use std::time::Duration;

use mesh_channel::{ChannelConfig, TensorChannels};
use mesh_core::links::{Interface, NetAddress};
use mesh_core::ports::Channels;

use crate::support::{Gong, PEER, down, lane, shape, tcp_channels};

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
fn tcp_over_several_interfaces() {
    let interface = |name: &str, ip: &str| Interface {
        name: name.into(),
        addresses: vec![NetAddress { ip: ip.parse().expect("an address"), prefix: 8 }],
        ..Interface::loopback()
    };
    let node = || -> Arc<dyn Channels> {
        let interfaces = vec![interface("a", "127.0.0.5"), interface("b", "127.0.0.6"), interface("c", "::1"), interface("d", "192.0.2.1")];
        let config = ChannelConfig { in_process: false, interfaces, ..ChannelConfig::loopback() };
        Arc::new(TensorChannels::new(config).expect("loopback at least"))
    };
    suite::run(&|| (node(), node()));
}

#[test]
fn a_lane_that_nobody_connects_to_is_given_up() {
    let channels = tcp_channels(|deadlines| deadlines.unclaimed = Duration::from_millis(100));
    let gong = Arc::new(Gong::default());
    let (offer, receiver) = channels.accept(lane(0), PEER, shape(64, 1), gong.clone()).expect("accept");
    let why = gong.until("the deadline", || down(&receiver.state()));
    assert!(why.contains("no sender"), "{why}");
    let sender = channels.connect(PEER, &offer, gong.clone()).expect("a sound offer");
    gong.until("refusal", || down(&sender.state()));
}

#[test]
fn no_interface_and_no_memory_carrier_is_an_empty_offer() {
    let config = ChannelConfig { interfaces: Vec::new(), in_process: false, ..ChannelConfig::loopback() };
    let channels = TensorChannels::new(config).expect("nothing to bind is nothing to fail");
    let (offer, _receiver) = channels.accept(lane(0), PEER, shape(64, 1), Arc::new(Gong::default())).expect("accept");
    assert!(channels.connect(PEER, &offer, Arc::new(Gong::default())).is_err());
}
