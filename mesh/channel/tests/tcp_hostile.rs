//! What a stranger, a broken network or a machine in the middle can do to a TCP lane: end it, and nothing else.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mesh_channel::{Deadlines, TensorChannels};
use mesh_core::ports::{Channels, LaneState};
use mesh_core::wire::LaneOffer;

use crate::support::relay::{Relay, Way};
use crate::support::{Gong, Lane, PEER, connecting_lane, down, lane, pattern, ready_lane, ready_lane_by, shape, tcp_channels};

const PREAMBLE_BYTES: usize = 96;
const PREFIX_BYTES: usize = 56;

/// A ready lane through a machine in the middle, which is idle until it is told otherwise.
fn lane_through_relay(change: impl Fn(&mut Deadlines)) -> (Lane, Relay, Arc<TensorChannels>) {
    let (to, from) = (tcp_channels(&change), tcp_channels(&change));
    let relay = Relay::new(to.addresses()[0]);
    let lane = ready_lane_by(&*to, &*from, shape(4096, 4), |offer| offer.endpoints = vec![format!("tcp:{}", relay.address)]);
    (lane, relay, to)
}

/// Flips one bit of the `at`th byte from now on, one way.
fn flip(relay: &Relay, way: Way, at: usize, bit: u8) {
    let mut passed = 0;
    relay.meddle(move |this_way, bytes| {
        if this_way == way {
            if (passed..passed + bytes.len()).contains(&at) {
                bytes[at - passed] ^= 1 << bit;
            }
            passed += bytes.len();
        }
        true
    });
}

#[test]
fn a_changed_bit_ends_the_lane_and_is_never_delivered() {
    // Header fields: magic, version, kind, zero, generation, sequence, granted, length (short and huge); tag; payload.
    for (at, bit) in [(0, 0), (4, 1), (5, 0), (6, 3), (8, 0), (16, 0), (24, 7), (32, 0), (35, 7), (40, 2), (55, 7), (56, 0), (155, 5)] {
        let (mut lane, relay, _to) = lane_through_relay(|_| {});
        lane.send(b"before");
        lane.take_and_check(b"before");
        flip(&relay, Way::Forth, at, bit);
        lane.send(&pattern(1, 100));
        // A length that grew makes the receiver wait for bytes that belong to the next frame.
        while down(&lane.sender.state()).is_none() && lane.sender.reserve().is_some_and(|slot| !slot.is_empty()) {
            if lane.sender.commit(4096).is_err() {
                break;
            }
        }
        let why = lane.receiver_down();
        assert!(why.contains("sent"), "byte {at}: {why}");
        assert!(lane.receiver.take().is_none(), "byte {at} of a frame was changed and the message came all the same");
        lane.sender_down();
    }
}

#[test]
fn a_changed_bit_on_the_way_back_ends_the_lane() {
    for at in [5, 24, 45] {
        let (mut lane, relay, _to) = lane_through_relay(|_| {});
        flip(&relay, Way::Back, at, 4);
        for number in 0..2 {
            lane.send(&pattern(number, 10));
            lane.take_and_check(&pattern(number, 10)); // half of the credit is used by then: a grant comes back
        }
        let why = lane.sender_down();
        assert!(why.contains("sent"), "byte {at}: {why}");
        lane.receiver_down();
    }
}

#[test]
fn a_changed_preamble_or_answer_connects_nothing() {
    let (to, from) = (tcp_channels(|_| {}), tcp_channels(|deadlines| deadlines.connect = Duration::from_millis(300)));
    for (way, at) in
        [(Way::Forth, 0), (Way::Forth, 20), (Way::Forth, 41), (Way::Forth, 60), (Way::Forth, 90), (Way::Back, 3), (Way::Back, 30)]
    {
        let relay = Relay::new(to.addresses()[0]);
        relay.meddle(move |this_way, bytes| {
            if this_way == way && bytes.len() > at {
                bytes[at] ^= 1;
            }
            true
        });
        let lane = connecting_lane(&*to, &*from, shape(64, 2), |offer| offer.endpoints = vec![format!("tcp:{}", relay.address)]);
        let why = lane.sender_down();
        assert!(why.contains("cannot reach the other end"), "{why}");
        assert_eq!(lane.receiver.state(), LaneState::Connecting, "{way:?} {at}");
    }
    assert!(to.counters().refused >= 5);
}

#[test]
fn a_listener_in_the_middle_learns_nothing_of_the_payload() {
    let (mut lane, relay, _to) = lane_through_relay(|_| {});
    let heard = Arc::new(Mutex::new(Vec::new()));
    let tape = Arc::clone(&heard);
    relay.meddle(move |way, bytes| {
        if way == Way::Forth {
            tape.lock().expect("no panic inside").extend_from_slice(bytes);
        }
        true
    });
    let secret = pattern(77, 4096);
    for _ in 0..3 {
        lane.send(&secret);
        lane.take_and_check(&secret);
    }
    let heard = heard.lock().expect("no panic inside");
    assert!(heard.len() >= 3 * (4096 + PREFIX_BYTES), "it did listen");
    assert!(!secret.chunks(8).any(|piece| heard.windows(8).any(|window| window == piece)), "eight bytes in clear");
    let first = &heard[PREFIX_BYTES..PREFIX_BYTES + 4096];
    let second = &heard[2 * PREFIX_BYTES + 4096..2 * (PREFIX_BYTES + 4096)];
    assert!(first != second, "equal messages look different");
}

#[test]
fn a_repeated_a_missing_and_an_invented_frame_end_the_lane() {
    let frame = PREFIX_BYTES + 100;
    let repeat = |bytes: &mut Vec<u8>| bytes.extend_from_within(..);
    let swallow = |bytes: &mut Vec<u8>| bytes.clear();
    let invent = |bytes: &mut Vec<u8>| {
        // Exactly what the sender would say next, but for the key.
        let mut invented = bytes.clone();
        let next = u64::from_le_bytes(bytes[16..24].try_into().expect("8 bytes")) + 1;
        invented[16..24].copy_from_slice(&next.to_le_bytes());
        bytes.extend(invented);
    };
    type Meddling = (&'static str, fn(&mut Vec<u8>), bool);
    let meddlings: [Meddling; 3] =
        [("frame 2 where frame 3", repeat, true), ("frame 3 where frame 2", swallow, false), ("seal", invent, true)];
    for (expected, meddling, first_arrives) in meddlings {
        let (mut lane, relay, _to) = lane_through_relay(|_| {});
        let mut done = false;
        relay.meddle(move |way, bytes| {
            if way == Way::Forth && bytes.len() == frame && !done {
                done = true;
                meddling(bytes);
            }
            true
        });
        lane.send(&pattern(1, 100));
        std::thread::sleep(Duration::from_millis(50)); // frames must not run together on the relay
        if down(&lane.sender.state()).is_none() && lane.sender.reserve().is_some() {
            let _ = lane.sender.commit(100);
        }
        let why = lane.receiver_down();
        assert!(why.contains(expected), "{why}");
        if first_arrives {
            lane.take_and_check(&pattern(1, 100));
        }
        assert!(lane.receiver.take().is_none(), "{expected}");
    }
}

#[test]
fn a_frozen_peer_is_noticed_at_the_deadline_by_both_ends() {
    let silent = Duration::from_secs(1);
    let (lane, relay, to) = lane_through_relay(|deadlines| (deadlines.silent, deadlines.keep_alive) = (silent, silent / 5));
    std::thread::sleep(silent * 3 / 2);
    assert_eq!((lane.sender.state(), lane.receiver.state()), (LaneState::Ready, LaneState::Ready), "idle is not dead");
    relay.meddle(|_, _| false);
    let frozen = Instant::now();
    let (at_sender, at_receiver) = (lane.sender_down(), lane.receiver_down());
    let noticed = frozen.elapsed();
    assert!(at_sender.contains("silent for 1.0 s") && at_receiver.contains("silent for 1.0 s"), "{at_sender}, {at_receiver}");
    assert!(noticed >= silent / 2 && noticed < silent * 4, "{noticed:?}");
    assert_eq!(to.counters().broken, 1);
}

#[test]
fn a_frozen_peer_is_noticed_although_messages_wait() {
    let silent = Duration::from_secs(3);
    let change = |deadlines: &mut Deadlines| (deadlines.silent, deadlines.keep_alive) = (silent, silent / 4);
    let (to, from) = (tcp_channels(change), tcp_channels(change));
    let relay = Relay::new(to.addresses()[0]);
    let mut lane = ready_lane_by(&*to, &*from, shape(4 << 20, 8), |offer| offer.endpoints = vec![format!("tcp:{}", relay.address)]);
    relay.meddle(|_, _| {
        std::thread::sleep(Duration::from_secs(60));
        false
    });
    let message = pattern(1, 4 << 20);
    for _ in 0..8 {
        lane.send(&message); // more than any socket takes: a commit that waited would see the lane end
    }
    assert!(lane.sender.reserve().is_none());
    lane.sender_down();
    lane.receiver_down();
}

#[test]
fn a_dead_peer_is_noticed_at_once_by_both_ends() {
    let (lane, relay, _to) = lane_through_relay(|_| {});
    let cut = Instant::now();
    relay.cut();
    let (at_sender, at_receiver) = (lane.sender_down(), lane.receiver_down());
    assert!(cut.elapsed() < Duration::from_millis(500), "{:?}", cut.elapsed());
    assert!(at_sender.contains("127.0.0.1") && at_receiver.contains("127.0.0.1"), "{at_sender}, {at_receiver}");
}

#[test]
fn connecting_to_nobody_ends_with_a_clear_text() {
    let from = tcp_channels(|deadlines| (deadlines.attempt, deadlines.connect) = (Duration::from_millis(100), Duration::from_millis(400)));
    let offer_to = |address: SocketAddr| LaneOffer {
        lane: lane(0),
        generation: 1,
        endpoints: vec![format!("tcp:{address}")],
        secret: [1; 32],
        slot_bytes: 64,
        slots: 2,
    };
    let outcome = |address: SocketAddr| {
        let gong = Arc::new(Gong::default());
        let started = Instant::now();
        let sender = from.connect(PEER, &offer_to(address), gong.clone()).expect("a sound offer");
        assert_eq!(sender.state(), LaneState::Connecting);
        (gong.until("the end", || down(&sender.state())), started.elapsed())
    };
    let mute = TcpListener::bind("127.0.0.1:0").expect("loopback"); // the kernel accepts, nobody answers
    let (why, after) = outcome(mute.local_addr().expect("bound"));
    assert!(why.contains("no answer in time") && why.contains("127.0.0.1"), "{why}");
    assert!(after >= Duration::from_millis(200) && after < Duration::from_secs(2), "{after:?}");
    let gone = mute.local_addr().expect("bound");
    drop(mute);
    let (why, after) = outcome(gone);
    assert!(why.contains("nobody listens"), "{why}");
    assert!(after < Duration::from_millis(350), "refused is known before the deadline: {after:?}");
    // A dropped sender does not go on connecting.
    let mute = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let sender = from.connect(PEER, &offer_to(mute.local_addr().expect("bound")), Arc::new(Gong::default())).expect("a sound offer");
    let (mut caller, _) = mute.accept().expect("it calls");
    caller.set_read_timeout(Some(support::PATIENCE)).expect("a socket");
    caller.read_exact(&mut [0; PREAMBLE_BYTES]).expect("a preamble");
    drop(sender);
    assert!(matches!(caller.read(&mut [0; 1]), Ok(0)), "it hangs up");
}

#[test]
fn strangers_at_the_door_disturb_nobody() {
    let (to, from) = (tcp_channels(|deadlines| deadlines.preamble = Duration::from_millis(300)), tcp_channels(|_| {}));
    let door = to.addresses()[0];
    let lane = ready_lane(&*to, &*from, shape(4096, 4));
    // More half-open connections than there are places, and some that talk.
    let mute: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(door).expect("the door is open")).collect();
    for number in 0..50 {
        let mut stranger = TcpStream::connect(door).expect("the door is open");
        let _ = stranger.write_all(&pattern(number, 40 * number));
    }
    let mut http = TcpStream::connect(door).expect("the door is open");
    http.write_all(b"GET / HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\nUser-Agent: someone who has lost the way\r\n\r\n")
        .expect("sent");
    http.set_read_timeout(Some(support::PATIENCE)).expect("a socket");
    let mut answer = Vec::new();
    let _ = http.read_to_end(&mut answer); // a reset is as good as an end
    assert!(answer.is_empty(), "a stranger is told nothing");
    // An honest sender comes in through the crowd, and the lane that was there goes on.
    let mut newcomer = ready_lane_by(&*to, &*from, shape(4096, 4), |_| {});
    newcomer.send(b"hello");
    newcomer.take_and_check(b"hello");
    lane.receiver_down(); // the newcomer is its next generation
    // All of the mute ones are sent away, at the latest at the deadline.
    for mut stranger in mute {
        stranger.set_read_timeout(Some(support::PATIENCE)).expect("a socket");
        assert!(matches!(stranger.read(&mut [0; 1]), Ok(0) | Err(_)));
    }
    let counters = to.counters();
    assert!(counters.late >= 68 && counters.refused >= 1, "{counters:?}");
    lane.sender_down();
}

#[test]
fn a_recorded_preamble_takes_no_lane() {
    let (to, from) = (tcp_channels(|_| {}), tcp_channels(|_| {}));
    let door = to.addresses()[0];
    let relay = Relay::new(door);
    let said = Arc::new(Mutex::new(Vec::new()));
    let tape = Arc::clone(&said);
    // Lets the preamble through and swallows what proves it: the lane is still to be had.
    relay.meddle(move |way, bytes| {
        tape.lock().expect("no panic inside").push((way, bytes.clone()));
        way == Way::Forth && bytes.len() == PREAMBLE_BYTES
    });
    let gong = Arc::new(Gong::default());
    let (offer, mut receiver) = to.accept(lane(0), PEER, shape(64, 2), gong.clone()).expect("accept");
    let detour = LaneOffer { endpoints: vec![format!("tcp:{}", relay.address)], ..offer.clone() };
    let robbed = from.connect(PEER, &detour, Arc::new(Gong::default())).expect("a sound offer");
    let recorded = support::relay::until(|| {
        let said = said.lock().expect("no panic inside");
        said.iter().find(|(way, bytes)| *way == Way::Forth && bytes.len() == PREAMBLE_BYTES).map(|(_, bytes)| bytes.clone())
    });
    // Sent again by someone who does not have the key: it gets an answer, and cannot go on.
    let mut thief = TcpStream::connect(door).expect("the door is open");
    thief.write_all(&recorded).expect("sent");
    let mut answer = [0; PREFIX_BYTES];
    thief.read_exact(&mut answer).expect("an answer");
    thief.write_all(&answer).expect("sent");
    thief.set_read_timeout(Some(support::PATIENCE)).expect("a socket");
    assert!(matches!(thief.read(&mut answer), Ok(0) | Err(_)), "and is sent away");
    assert_eq!(receiver.state(), LaneState::Connecting);
    drop(robbed);
    // The honest way still leads there.
    let at_sender = Arc::new(Gong::default());
    let mut sender = from.connect(PEER, &offer, at_sender.clone()).expect("a sound offer");
    support::send(&mut *sender, &at_sender, b"mine");
    let slot = gong.until("the message", || receiver.take());
    assert_eq!(receiver.bytes(slot), b"mine");
}

#[test]
fn a_sender_takes_the_next_endpoint_when_one_is_dead() {
    let (to, from) = (tcp_channels(|_| {}), tcp_channels(|deadlines| deadlines.attempt = Duration::from_millis(100)));
    let mute = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let stranger = tcp_channels(|_| {});
    let mut lane = ready_lane_by(&*to, &*from, shape(64, 2), |offer| {
        offer.endpoints.insert(0, format!("tcp:{}", mute.local_addr().expect("bound")));
        offer.endpoints.insert(1, format!("tcp:{}", stranger.addresses()[0]));
        offer.endpoints.insert(2, "rdma:something-newer".into());
    });
    lane.send(b"found");
    lane.take_and_check(b"found");
}
