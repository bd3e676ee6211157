//! What every carrier must do. Each case gets fresh channels for the receiving and the sending node.

use std::sync::Arc;

use mesh_core::ports::{Channels, LaneError, LaneState};

use crate::support::{Gong, Lane, PEER, connecting_lane, down, lane, pattern, ready_lane, send, shape};

/// Receiving and sending node.
pub type Pair = (Arc<dyn Channels>, Arc<dyn Channels>);

/// What must hold, in words, and how it is tried.
type Case = (&'static str, fn(Pair));

/// Runs every case. A failure names its case, as the thread's name.
pub fn run(pair: &(dyn Fn() -> Pair + Sync)) {
    let cases: &[Case] = &[
        ("messages come whole and in order", order),
        ("a sender without credit stalls and is woken", back_pressure),
        ("one slot is enough", one_slot),
        ("a held slot does not change", stable),
        ("a message may fill its slot, or be empty, but not be longer", sizes),
        ("a reserved slot stays reserved until it is sent", reserve_twice),
        ("a new generation ends the one before", generations),
        ("late ends of an old generation cannot touch the new one", late_ends),
        ("a generation has one sender", one_sender),
        ("a sender can be dropped at any state", sender_drops),
        ("a receiver can be dropped at any state", receiver_drops),
        ("what was committed arrives although the sender left", last_words),
        ("lanes do not disturb each other", neighbours),
        ("lanes that wait end with their channels, connected ones go on", closed_channels),
        ("offers that make no sense are refused", hostile_offers),
        ("sizes that make no sense are refused", hostile_shapes),
        ("another secret does not open a lane", wrong_secret),
    ];
    for &(name, case) in cases {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name(name.into());
            let running = thread.spawn_scoped(scope, || case(pair())).expect("a thread");
            assert!(running.join().is_ok(), "case failed: {name}");
        });
    }
}

fn order((to, from): Pair) {
    const MESSAGES: usize = 2_000;
    const SLOT: usize = 40_000;
    let bytes_of = |number: usize| [1, 64, 4096, 17, SLOT, 63, 12_345][number % 7];
    let Lane { mut sender, mut receiver, at_sender, at_receiver, .. } = ready_lane(&*to, &*from, shape(SLOT as u32, 5));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..MESSAGES {
                send(&mut *sender, &at_sender, &pattern(number, bytes_of(number)));
            }
            at_sender.until("the receiver to leave", || down(&sender.state()));
        });
        for number in 0..MESSAGES {
            let slot = at_receiver.until("a message", || receiver.take());
            let bytes = receiver.bytes(slot);
            assert_eq!(bytes.as_ptr() as usize % 64, 0, "aligned");
            assert_eq!(bytes.len(), slot.bytes as usize);
            assert!(bytes == pattern(number, bytes_of(number)), "message {number}");
            receiver.release(slot);
        }
        assert!(receiver.take().is_none());
        drop(receiver);
    });
}

fn back_pressure((to, from): Pair) {
    let mut lane = ready_lane(&*to, &*from, shape(4096, 4));
    for number in 0..4 {
        lane.send(&pattern(number, 4096));
    }
    assert!(lane.sender.reserve().is_none(), "four slots, four messages");
    let held: Vec<_> = (0..4).map(|_| lane.take()).collect();
    assert!(lane.sender.reserve().is_none(), "taken is not released");
    for (number, slot) in held.into_iter().enumerate() {
        assert!(lane.receiver.bytes(slot) == pattern(number, 4096));
        lane.receiver.release(slot);
        let sender = &mut lane.sender;
        lane.at_sender.until("credit for one more", || sender.reserve().map(drop));
        lane.send(&pattern(number + 4, 100));
    }
    for number in 4..8 {
        lane.take_and_check(&pattern(number, 100));
    }
}

fn one_slot((to, from): Pair) {
    let mut lane = ready_lane(&*to, &*from, shape(300_000, 1));
    for number in 0..50 {
        lane.send(&pattern(number, 300_000));
        lane.take_and_check(&pattern(number, 300_000));
    }
}

fn stable((to, from): Pair) {
    let mut lane = ready_lane(&*to, &*from, shape(5_000, 3));
    lane.send(&pattern(1, 5_000));
    let held = lane.take();
    for number in 2..200 {
        lane.send(&pattern(number, 5_000));
        let next = lane.take();
        assert_ne!(next.index, held.index);
        assert!(lane.receiver.bytes(next) == pattern(number, 5_000));
        lane.receiver.release(next);
    }
    assert!(lane.receiver.bytes(held) == pattern(1, 5_000));
    lane.receiver.release(held);
}

fn sizes((to, from): Pair) {
    for slot_bytes in [1, 63, 4096, 100_001] {
        let mut lane = ready_lane(&*to, &*from, shape(slot_bytes, 2));
        let slot = lane.sender.reserve().expect("credit");
        assert_eq!((slot.len(), slot.as_ptr() as usize % 64), (slot_bytes as usize, 0));
        let whole = pattern(3, slot_bytes as usize);
        slot.copy_from_slice(&whole);
        let too_long = LaneError::TooLong { bytes: slot_bytes as usize + 1, slot_bytes: slot_bytes as usize };
        assert_eq!(lane.sender.commit(slot_bytes as usize + 1), Err(too_long));
        assert_eq!(lane.sender.commit(slot_bytes as usize), Ok(()), "the slot is still there");
        lane.take_and_check(&whole);
        lane.send(&[]);
        lane.take_and_check(&[]);
        assert_eq!(lane.receiver.state(), LaneState::Ready);
    }
}

fn reserve_twice((to, from): Pair) {
    let mut lane = ready_lane(&*to, &*from, shape(64, 1));
    lane.sender.reserve().expect("credit").fill(5);
    assert_eq!(lane.sender.reserve().expect("the same one"), [5; 64], "asking again gives the same slot");
    lane.sender.commit(64).expect("up");
    lane.take_and_check(&[5; 64]);
}

fn generations((to, from): Pair) {
    let mut old = ready_lane(&*to, &*from, shape(256, 2));
    old.send(b"never taken");
    let mut new = ready_lane(&*to, &*from, shape(512, 4));
    assert!(new.offer.generation > old.offer.generation);
    assert_ne!(new.offer.secret, old.offer.secret);
    let why = old.receiver_down();
    assert!(why.contains("generation"), "{why}");
    old.sender_down();
    assert!(old.receiver.take().is_none(), "what an old generation brought is not taken any more");
    new.send(b"fresh");
    new.take_and_check(b"fresh");
    // An old offer that comes late finds nothing, and disturbs nothing.
    let gong = Arc::new(Gong::default());
    match from.connect(PEER, &old.offer, gong.clone()) {
        Ok(sender) => drop(gong.until("refusal", || down(&sender.state()))),
        Err(LaneError::Down(_)) => {}
        Err(other) => panic!("{other}"),
    }
    new.send(b"still fresh");
    new.take_and_check(b"still fresh");
}

fn late_ends((to, from): Pair) {
    let mut old = ready_lane(&*to, &*from, shape(256, 2));
    old.sender.reserve().expect("credit before the change").fill(1);
    let held = {
        old.sender.commit(1).expect("up");
        old.take()
    };
    let reserved = old.sender.reserve().is_some();
    let mut new = ready_lane(&*to, &*from, shape(256, 2));
    assert_eq!(old.receiver.bytes(held), [1], "held slots stay readable");
    old.receiver.release(held);
    old.sender_down();
    if reserved {
        assert!(matches!(old.sender.commit(1), Err(LaneError::Down(_))), "frames of the old generation go nowhere");
    }
    assert!(old.sender.reserve().is_none());
    drop((old.sender, old.receiver));
    new.send(b"untouched");
    new.take_and_check(b"untouched");
    assert!(new.receiver.take().is_none());
}

fn one_sender((to, from): Pair) {
    let mut first = ready_lane(&*to, &*from, shape(256, 2));
    let gong = Arc::new(Gong::default());
    match from.connect(PEER, &first.offer, gong.clone()) {
        Ok(mut second) => {
            gong.until("refusal", || down(&second.state()));
            assert!(second.reserve().is_none());
        }
        Err(LaneError::Down(_)) => {}
        Err(other) => panic!("{other}"),
    }
    first.send(b"mine");
    first.take_and_check(b"mine");
}

fn sender_drops((to, from): Pair) {
    // While it connects: the receiver waits on, or sees an end; it never hangs half-open.
    let Lane { sender, receiver, at_receiver, .. } = connecting_lane(&*to, &*from, shape(256, 2), |_| {});
    drop(sender);
    if receiver.state() == LaneState::Ready {
        at_receiver.until("the end", || down(&receiver.state()));
    }
    drop(receiver);
    // Idle.
    let mut lane = ready_lane(&*to, &*from, shape(256, 2));
    lane.sender = ready_lane(&*to, &*from, shape(256, 2)).sender; // drops the one, and ends the other by its generation
    lane.receiver_down();
    // With a slot reserved, and without credit.
    for messages in [0, 2] {
        let mut lane = ready_lane(&*to, &*from, shape(256, 2));
        (0..messages).for_each(|_| lane.send(b"x"));
        let _ = lane.sender.reserve();
        let Lane { sender, receiver, at_receiver, .. } = lane;
        drop(sender);
        let why = at_receiver.until("the end", || down(&receiver.state()));
        assert!(why.contains("closed"), "{why}");
    }
}

fn receiver_drops((to, from): Pair) {
    // Before anybody connects.
    let (offer, receiver) = to.accept(lane(0), PEER, shape(256, 2), Arc::new(Gong::default())).expect("accept");
    drop(receiver);
    let gong = Arc::new(Gong::default());
    match from.connect(PEER, &offer, gong.clone()) {
        Ok(sender) => drop(gong.until("refusal", || down(&sender.state()))),
        Err(LaneError::Down(_)) => {}
        Err(other) => panic!("{other}"),
    }
    // While the sender connects.
    let Lane { sender, receiver, at_sender, .. } = connecting_lane(&*to, &*from, shape(256, 2), |_| {});
    drop(receiver);
    at_sender.until("the end", || down(&sender.state()));
    // Idle; with messages that nobody took; with a message held and the sender without credit.
    for (messages, takes) in [(0, 0), (2, 0), (2, 1)] {
        let mut lane = ready_lane(&*to, &*from, shape(256, 2));
        (0..messages).for_each(|_| lane.send(b"x"));
        let _ = lane.sender.reserve();
        for _ in 0..takes {
            lane.take();
        }
        let Lane { mut sender, receiver, at_sender, .. } = lane;
        drop(receiver);
        let why = at_sender.until("the end", || down(&sender.state()));
        assert!(why.contains("closed"), "{why}");
        if messages == 0 {
            assert!(matches!(sender.commit(1), Err(LaneError::Down(_))), "its slot was reserved before the end");
        }
        assert!(sender.reserve().is_none());
    }
}

fn last_words((to, from): Pair) {
    let mut lane = ready_lane(&*to, &*from, shape(1 << 20, 8));
    for number in 0..8 {
        lane.send(&pattern(number, 1 << 20));
    }
    let Lane { sender, mut receiver, at_receiver, .. } = lane;
    drop(sender);
    for number in 0..8 {
        let slot = at_receiver.until("a message", || receiver.take());
        assert!(receiver.bytes(slot) == pattern(number, 1 << 20), "message {number}");
        receiver.release(slot);
    }
    let why = at_receiver.until("the end", || down(&receiver.state()));
    assert!(why.contains("closed"), "{why}");
}

fn neighbours((to, from): Pair) {
    let other = || -> Lane {
        let (at_sender, at_receiver) = (Arc::new(Gong::default()), Arc::new(Gong::default()));
        let (offer, receiver) = to.accept(lane(1), PEER, shape(256, 2), at_receiver.clone()).expect("accept");
        let sender = from.connect(PEER, &offer, at_sender.clone()).expect("connect");
        at_sender.until("ready", || (sender.state() == LaneState::Ready).then_some(()));
        Lane { sender, receiver, at_sender, at_receiver, offer }
    };
    let mut stays = other();
    let stuck = {
        let mut lane = ready_lane(&*to, &*from, shape(256, 2));
        lane.send(b"nobody takes this");
        lane.send(b"nor this");
        lane
    };
    stays.send(b"still here");
    stays.take_and_check(b"still here");
    drop(stuck);
    stays.send(b"and here");
    stays.take_and_check(b"and here");
}

fn closed_channels((to, from): Pair) {
    let mut connected = ready_lane(&*to, &*from, shape(256, 2));
    let gong = Arc::new(Gong::default());
    let (_, waiting) = to.accept(lane(9), PEER, shape(256, 2), gong.clone()).expect("accept");
    drop((to, from));
    gong.until("the end", || down(&waiting.state()));
    connected.send(b"goes on");
    connected.take_and_check(b"goes on");
}

fn hostile_offers((to, from): Pair) {
    let (offer, _receiver) = to.accept(lane(0), PEER, shape(256, 2), Arc::new(Gong::default())).expect("accept");
    let refused = |change: &dyn Fn(&mut mesh_core::wire::LaneOffer)| {
        let mut offer = offer.clone();
        change(&mut offer);
        from.connect(PEER, &offer, Arc::new(Gong::default())).err().is_some_and(|error| matches!(error, LaneError::Down(_)))
    };
    assert!(refused(&|offer| offer.slot_bytes = 0));
    assert!(refused(&|offer| offer.slot_bytes = u32::MAX));
    assert!(refused(&|offer| offer.slots = 0));
    assert!(refused(&|offer| offer.slots = u16::MAX));
    assert!(refused(&|offer| (offer.slots, offer.slot_bytes) = (1024, 16 << 20)), "each in bounds, 16 GiB together");
    assert!(refused(&|offer| offer.endpoints.clear()));
    assert!(refused(&|offer| offer.endpoints = vec!["tcp:127.0.0.1:1".into(); 10_000]));
    for endpoint in ["", "tcp:", "tcp:localhost:80", "tcp:127.0.0.1:99999", "tcp:127.0.0.1:0", "local:zz", "pigeon:1", &"tcp:1".repeat(99)]
    {
        assert!(refused(&|offer| offer.endpoints = vec![endpoint.to_owned()]), "{endpoint}");
    }
}

fn hostile_shapes((to, _): Pair) {
    for bad in [shape(0, 1), shape(1, 0), shape(u32::MAX, 1), shape(1, u16::MAX), shape(16 << 20, 1024)] {
        assert!(matches!(to.accept(lane(0), PEER, bad, Arc::new(Gong::default())), Err(LaneError::System(_))), "{bad:?}");
    }
}

fn wrong_secret((to, from): Pair) {
    let (mut offer, receiver) = to.accept(lane(0), PEER, shape(256, 2), Arc::new(Gong::default())).expect("accept");
    offer.secret[31] ^= 1;
    let gong = Arc::new(Gong::default());
    match from.connect(PEER, &offer, gong.clone()) {
        Ok(sender) => drop(gong.until("refusal", || down(&sender.state()))),
        Err(LaneError::Down(_)) => {}
        Err(other) => panic!("{other}"),
    }
    assert_eq!(receiver.state(), LaneState::Connecting, "a stranger takes no lane");
}
