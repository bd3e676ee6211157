//! Lanes take the ways they are told, in that order; links are measured; whoever dies or lies in the middle costs an answer.

mod support;

use std::io::Read;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use mesh_channel::{ChannelConfig, TensorChannels};
use mesh_core::ids::NodeId;
use mesh_core::links::{Interface, LinkName, Measured, NetAddress, Way};
use mesh_core::ports::{Channels, LaneState};
use mesh_core::wire::LaneOffer;

use crate::support::{Gong, PATIENCE, down, lane, shape};

const LOW: NodeId = NodeId([1; 32]);
const HIGH: NodeId = NodeId([2; 32]);

/// A node with the interfaces `x0`, `x1`, .. at these last bytes of 127.0.0.0/8.
fn node(last: &[u8]) -> TensorChannels {
    let interface = |(index, last): (usize, &u8)| Interface {
        name: format!("x{index}"),
        addresses: vec![NetAddress { ip: [127, 0, 0, *last].into(), prefix: 8 }],
        ..Interface::loopback()
    };
    let interfaces = last.iter().enumerate().map(interface).collect();
    TensorChannels::new(ChannelConfig { in_process: false, interfaces, ..ChannelConfig::loopback() }).expect("loopback")
}

/// The way from `x{i}` at `local` to `x{j}` at `remote`, as one end sees it.
fn way(low: bool, i: usize, local: u8, j: usize, remote: u8) -> Way {
    let (a, b) = if low { (i, j) } else { (j, i) };
    Way {
        link: LinkName { low: format!("x{a}"), high: format!("x{b}") },
        local_interface: format!("x{i}"),
        local: [127, 0, 0, local].into(),
        remote_interface: format!("x{j}"),
        remote: [127, 0, 0, remote].into(),
        direct: true,
        proven: true,
    }
}

/// Low node at .11 and .12, high one at .21 and .22; both prefer the second pair.
fn two_links() -> (TensorChannels, TensorChannels) {
    let (low, high) = (node(&[11, 12]), node(&[21, 22]));
    low.prefer(HIGH, vec![way(true, 1, 12, 1, 22), way(true, 0, 11, 0, 21)]);
    high.prefer(LOW, vec![way(false, 1, 22, 1, 12), way(false, 0, 21, 0, 11)]);
    (low, high)
}

fn links_of(channels: &TensorChannels) -> Vec<String> {
    channels.links_in_use().iter().filter(|one| !one.lanes.is_empty()).map(|one| one.link.to_string()).collect()
}

/// F3, F18: both lanes of a pair of nodes take the link that was agreed on, and both ends know which it is.
#[test]
fn both_directions_take_the_agreed_link() {
    let (low, high) = two_links();
    let gong = Arc::new(Gong::default());
    let (there, back) = (lane(0), lane(1));
    let (offer, receiver) = high.accept(there, LOW, shape(64, 2), gong.clone()).expect("accept");
    assert!(offer.endpoints[0].starts_with("tcp:127.0.0.22:") && offer.endpoints[0].ends_with(" via x1"), "{:?}", offer.endpoints);
    let sender = low.connect(HIGH, &offer, gong.clone()).expect("connect");
    let (offer, receiver_back) = low.accept(back, HIGH, shape(64, 2), gong.clone()).expect("accept");
    let sender_back = high.connect(LOW, &offer, gong.clone()).expect("connect");
    let ready =
        || [sender.state(), sender_back.state(), receiver.state(), receiver_back.state()].iter().all(|state| *state == LaneState::Ready);
    gong.until("four ends", || ready().then_some(()));
    assert_eq!((links_of(&low), links_of(&high)), (vec!["x1-x1".to_owned()], vec!["x1-x1".to_owned()]));
    assert!(!receiver.has_better_link());
    high.prefer(LOW, vec![way(false, 0, 21, 0, 11), way(false, 1, 22, 1, 12)]);
    assert!(receiver.has_better_link(), "the next life shall move");
    drop((sender, sender_back));
    gong.until("the ends", || down(&receiver.state()).and(down(&receiver_back.state())));
    let end = Instant::now() + PATIENCE;
    while !(links_of(&low).is_empty() && links_of(&high).is_empty()) {
        assert!(Instant::now() < end, "a lane that is over is on no link");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(high.links_in_use().iter().all(|one| one.broken == 0), "it was closed, not broken");
}

/// F15: the best link is dead; the lane is there over the next one.
#[test]
fn a_dead_link_is_passed_over() {
    let (low, high) = two_links();
    let gone =
        Interface { name: "x0".into(), addresses: vec![NetAddress { ip: [127, 0, 0, 21].into(), prefix: 8 }], ..Interface::loopback() };
    let gong = Arc::new(Gong::default());
    let (offer, _receiver) = high.accept(lane(0), LOW, shape(64, 2), gong.clone()).expect("accept");
    high.renew(&[gone]); // 127.0.0.22 is not listened on any more
    assert_eq!(high.addresses().len(), 1);
    let sender = low.connect(HIGH, &offer, gong.clone()).expect("connect");
    gong.until("the other link", || (sender.state() == LaneState::Ready).then_some(()));
    assert_eq!(links_of(&low), ["x0-x0"]);
}

/// F4: an interface that comes later is listened on and offered.
#[test]
fn an_interface_that_comes_later_is_used() {
    let (low, high) = (node(&[13]), node(&[23]));
    let second = |name: &str, last: u8| Interface {
        name: name.into(),
        addresses: vec![NetAddress { ip: [127, 0, 0, last].into(), prefix: 8 }],
        ..Interface::loopback()
    };
    low.renew(&[second("x0", 13), second("x1", 14)]);
    high.renew(&[second("x0", 23), second("x1", 24)]);
    high.prefer(LOW, vec![way(false, 1, 24, 1, 14)]);
    low.prefer(HIGH, vec![way(true, 1, 14, 1, 24)]);
    let gong = Arc::new(Gong::default());
    let (offer, receiver) = high.accept(lane(0), LOW, shape(64, 2), gong.clone()).expect("accept");
    let _sender = low.connect(HIGH, &offer, gong.clone()).expect("connect");
    gong.until("the new link", || (receiver.state() == LaneState::Ready).then_some(()));
    assert_eq!(links_of(&high), ["x1-x1"]);
}

fn measured(low: &TensorChannels, offer: &LaneOffer, ways: Vec<Way>, rate: bool) -> Result<Measured, String> {
    let (tell, told) = mpsc::channel();
    low.measure(HIGH, offer, ways, rate, Box::new(move |outcome| drop(tell.send(outcome))));
    told.recv_timeout(Duration::from_secs(20)).expect("an answer, always")
}

#[test]
fn a_link_is_measured() {
    let (low, high) = two_links();
    let offer = high.echo(LOW, &[way(false, 0, 21, 0, 11)]).expect("a place");
    let both = measured(&low, &offer, vec![way(true, 0, 11, 0, 21)], true).expect("figures");
    assert!(both.delay_us > 0 && both.delay_us < 50_000, "{both:?}");
    assert!(both.bytes_per_s > 1_000_000 && both.bytes_per_s < 100_000_000_000, "{both:?}");
    let offer = high.echo(LOW, &[way(false, 0, 21, 0, 11)]).expect("a place");
    assert_eq!(measured(&low, &offer, vec![way(true, 0, 11, 0, 21)], false).expect("figures").bytes_per_s, 0);
    assert!(links_of(&low).is_empty() && links_of(&high).is_empty(), "a measurement is no lane of anybody's");
}

#[test]
fn an_offer_that_leads_elsewhere_is_refused() {
    let (low, high) = two_links();
    let stranger = TcpListener::bind("127.0.0.99:0").expect("bound");
    let offer = high.echo(LOW, &[way(false, 0, 21, 0, 11)]).expect("a place");
    let elsewhere = format!("tcp:{} via x0", stranger.local_addr().expect("bound"));
    let lie = LaneOffer { endpoints: vec![elsewhere], ..offer.clone() };
    assert!(measured(&low, &lie, vec![way(true, 0, 11, 0, 21)], true).is_err());
    let huge = LaneOffer { slot_bytes: 64 << 20, ..offer };
    assert!(measured(&low, &huge, vec![way(true, 0, 11, 0, 21)], true).is_err(), "nobody makes us allocate");
    stranger.set_nonblocking(true).expect("set");
    assert!(stranger.accept().is_err(), "nobody came");
}

/// P4: the far end accepts and says nothing, or dies in the middle.
#[test]
fn a_far_end_that_freezes_or_dies_costs_an_answer() {
    let (low, high) = two_links();
    let mute = TcpListener::bind("127.0.0.21:0").expect("bound");
    let offer = high.echo(LOW, &[way(false, 0, 21, 0, 11)]).expect("a place");
    let frozen = LaneOffer { endpoints: vec![format!("tcp:{} via x0", mute.local_addr().expect("bound"))], ..offer };
    let start = Instant::now();
    let why = measured(&low, &frozen, vec![way(true, 0, 11, 0, 21)], true).expect_err("nobody answers");
    assert!(start.elapsed() < Duration::from_secs(6), "{why} after {:?}", start.elapsed());

    let dying = std::thread::spawn(move || {
        let (mut one, _) = mute.accept().expect("the frozen one");
        let (mut two, _) = mute.accept().expect("it comes");
        let _ = (one.read(&mut [0; 8]), two.read(&mut [0; 8])); // and both are closed
    });
    let why = measured(&low, &frozen, vec![way(true, 0, 11, 0, 21)], true).expect_err("it hangs up");
    assert!(!why.is_empty());
    dying.join().expect("no panic");
}

#[test]
fn far_ends_are_few_and_end() {
    let (low, high) = two_links();
    let ways = [way(false, 0, 21, 0, 11)];
    let offers: Vec<LaneOffer> = std::iter::from_fn(|| high.echo(LOW, &ways).ok()).take(100).collect();
    assert_eq!(offers.len(), 4, "each holds memory and threads");
    assert!(measured(&low, &offers[0], vec![way(true, 0, 11, 0, 21)], false).is_ok());
    let end = Instant::now() + PATIENCE;
    while high.echo(LOW, &ways).is_err() {
        assert!(Instant::now() < end, "a far end that is done gives its place back");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(high.echo(LOW, &[way(false, 0, 99, 0, 11)]).is_err(), "nothing listens there");
}
