//! Whole carriers on loopback, in one process.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use mesh_core::generation::AttemptTag;
use mesh_core::ids::{BootId, DeploymentId, NodeId, PlanHash, StreamId};
use mesh_core::ports::{Carrier, CarrierEvent, SendError};
use mesh_core::records::{Record, RecordKey};
use mesh_core::wire::{self, Message, StreamTag};

use crate::frame::Class;
use crate::greeting::tests::record;
use crate::mail::CONTROL_QUEUE_MAX;
use crate::{MeshSecret, Net, NetConfig, NodeKey, Timings};

/// Long enough for a loaded machine; what is measured against tighter limits says so.
const PATIENCE: Duration = Duration::from_secs(10);

struct Node {
    net: Net,
    events: Receiver<CarrierEvent>,
    /// Makes the carrier's thread stand still until it is told to go on: a frozen process.
    freeze: Sender<Receiver<()>>,
}

fn config(key: &NodeKey, boot: u128) -> NetConfig {
    let secret = MeshSecret::from_bytes([9; 32]);
    NetConfig {
        listen: vec!["127.0.0.1:0".to_owned()],
        mdns: false,
        ..NetConfig::new(key.clone(), "test", secret, record(key.node(), boot))
    }
}

fn start(config: NetConfig) -> Node {
    let (told, events) = channel();
    let (freeze, frozen) = channel::<Receiver<()>>();
    let frozen = Mutex::new(frozen);
    let net = Net::start(
        config,
        move |event| drop(told.send(event)),
        move |_, message| {
            if let Ok(thaw) = frozen.lock().expect("not poisoned").try_recv() {
                let _ = thaw.recv();
            }
            Some(message)
        },
    );
    Node { net: net.expect("starts"), events, freeze }
}

/// A node that dials `seeds`.
fn join(key: &NodeKey, boot: u128, seeds: &[&Node]) -> Node {
    start(NetConfig { peers: seeds.iter().map(|seed| seed.place()).collect(), ..config(key, boot) })
}

/// A node that does not mistake a loaded machine for a dead peer.
fn patient(key: &NodeKey, boot: u128) -> Node {
    start(NetConfig { timings: Timings { dead_ms: 9_000, redial_ms: 9_000, ..Timings::default() }, ..config(key, boot) })
}

impl Node {
    fn id(&self) -> NodeId {
        self.net.node()
    }

    /// `IP:PORT`, as a user would type it.
    fn place(&self) -> String {
        let addresses = self.net.listen_addresses();
        let parts: Vec<&str> = addresses[0].split('/').collect();
        format!("{}:{}", parts[2], parts[4])
    }

    fn wait<T>(&self, what: &str, mut pick: impl FnMut(CarrierEvent) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        let mut seen = Vec::new();
        while let Ok(event) = self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            seen.push(format!("{event:?}"));
            if let Some(found) = pick(event) {
                return found;
            }
        }
        panic!("no {what} in {PATIENCE:?}; only {seen:#?}");
    }

    fn wait_up(&self, node: NodeId) -> BootId {
        self.wait("up", |event| match event {
            CarrierEvent::Up(record) if record.node == node => Some(record.boot),
            _ => None,
        })
    }

    /// In any order.
    fn wait_all_up(&self, nodes: &[&Node]) {
        let mut missing: Vec<NodeId> = nodes.iter().map(|node| node.id()).collect();
        while !missing.is_empty() {
            let up = self.wait("up", |event| match event {
                CarrierEvent::Up(record) => Some(record.node),
                _ => None,
            });
            missing.retain(|node| *node != up);
        }
    }

    fn wait_down(&self, node: NodeId) -> String {
        self.wait("down", |event| match event {
            CarrierEvent::Down { node: who, why } if who == node => Some(why),
            _ => None,
        })
    }

    fn wait_refused(&self) -> (String, String) {
        self.wait("refusal", |event| match event {
            CarrierEvent::Refused { address, why } => Some((address, why)),
            CarrierEvent::Up(record) => panic!("up instead of refused: {record:?}"),
            _ => None,
        })
    }

    fn wait_number(&self) -> u32 {
        self.wait("message", |event| match event {
            CarrierEvent::Heard { message: Message::Grant { position, .. }, .. } => Some(position),
            _ => None,
        })
    }
}

fn number(position: u32) -> Message {
    let tag = StreamTag { deployment: DeploymentId(1), plan: PlanHash(2), stream: StreamId(3), attempt: AttemptTag(4) };
    Message::Grant { tag, position }
}

/// Retries while the queue is full: a sender that waits for its turn.
fn send_patiently(node: &Node, to: NodeId, message: &Message) {
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = node.net.send(to, message.clone()) {
        assert!(matches!(error, SendError::Full(_)) && Instant::now() < deadline, "{error}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn two_nodes_meet_and_messages_arrive_whole_and_in_order() {
    let (a_key, b_key) = (NodeKey::draw(), NodeKey::draw());
    let a = join(&a_key, 1, &[]);
    let b = join(&b_key, 2, &[&a]);
    assert_eq!((a.wait_up(b.id()), b.wait_up(a.id())), (BootId(2), BootId(1)));
    // long bulk messages between the short ones do not disturb them
    let bulk = Message::Want((0..20_000).map(|index| RecordKey::Deployment(DeploymentId(index))).collect());
    for index in 0..3_000 {
        send_patiently(&a, b.id(), &number(index));
        if index % 1_000 == 0 {
            send_patiently(&a, b.id(), &bulk);
        }
    }
    let (mut numbers, mut bulks) = (0, 0);
    while numbers < 3_000 || bulks < 3 {
        b.wait("message", |event| match event {
            CarrierEvent::Heard { from, message } => {
                assert_eq!(from, a.id());
                if message == bulk {
                    bulks += 1;
                } else {
                    assert_eq!(message, number(numbers));
                    numbers += 1;
                }
                Some(())
            }
            CarrierEvent::Down { why, .. } => panic!("{why}"),
            _ => None, // a suspicion on a loaded machine
        });
    }
    a.net.send(a.id(), number(7)).expect("to oneself");
    assert_eq!(a.wait_number(), 7);
    assert_eq!(a.net.send(NodeId([5; 32]), number(0)), Err(SendError::Unreachable(NodeId([5; 32]))));
    // a farewell is quick and is told as one
    a.net.stop();
    assert!(b.wait_down(a.id()).contains("goodbye"));
    assert_eq!(b.net.send(a.id(), number(0)), Err(SendError::Unreachable(a.id())));
}

#[test]
fn three_nodes_make_a_full_mesh_and_hear_gossip() {
    let keys = [NodeKey::draw(), NodeKey::draw(), NodeKey::draw()];
    let a = join(&keys[0], 1, &[]);
    let b = join(&keys[1], 2, &[&a]);
    let c = join(&keys[2], 3, &[&a]);
    a.wait_all_up(&[&b, &c]);
    // what the node actor does with an address out of a record
    let address = b.net.listen_addresses().remove(0);
    c.net.dial(&address);
    c.net.dial(&address);
    b.wait_all_up(&[&a, &c]);
    c.wait_all_up(&[&a, &b]);
    // until the topic is known at the others, publishing reaches nobody: gossip may be lost, so it is repeated
    let told = Record::Node(record(a.id(), 77));
    for node in [&b, &c] {
        let deadline = Instant::now() + PATIENCE;
        let mut version = 0;
        loop {
            version += 1;
            let Record::Node(mut fresh) = told.clone() else { unreachable!() };
            fresh.version = version;
            a.net.gossip(&Record::Node(fresh));
            if let Ok(CarrierEvent::Gossip(Record::Node(heard))) = node.events.recv_timeout(Duration::from_millis(200)) {
                assert_eq!((heard.node, heard.boot), (a.id(), BootId(77)));
                break;
            }
            assert!(Instant::now() < deadline, "no gossip");
        }
    }
}

#[test]
fn both_sides_dial_and_one_link_remains() {
    let (a_key, b_key) = (NodeKey::draw(), NodeKey::draw());
    let a = join(&a_key, 1, &[]);
    let b = join(&b_key, 2, &[]);
    for _ in 0..3 {
        a.net.dial(&b.place());
        b.net.dial(&a.place());
    }
    a.wait_up(b.id());
    b.wait_up(a.id());
    for index in 0..200 {
        send_patiently(&a, b.id(), &number(index));
        send_patiently(&b, a.id(), &number(index));
    }
    for index in 0..200 {
        assert_eq!((a.wait_number(), b.wait_number()), (index, index));
    }
    // no flapping afterwards
    std::thread::sleep(Duration::from_millis(1_500));
    let rest: Vec<CarrierEvent> = a.events.try_iter().chain(b.events.try_iter()).collect();
    assert!(!rest.iter().any(|event| matches!(event, CarrierEvent::Down { .. } | CarrierEvent::Up(_))), "{rest:?}");
}

#[test]
fn a_restart_with_the_same_key_is_a_new_life() {
    let (a_key, b_key) = (NodeKey::draw(), NodeKey::draw());
    let a = join(&a_key, 1, &[]);
    let b = join(&b_key, 2, &[&a]);
    a.wait_up(b.id());
    drop(b);
    a.wait_down(b_key.node());
    let again = join(&b_key, 3, &[&a]);
    assert_eq!(a.wait_up(b_key.node()), BootId(3));
    assert_eq!(again.wait_up(a.id()), BootId(1));
}

#[test]
fn a_clone_is_refused_and_the_elder_stays() {
    let (a_key, b_key) = (NodeKey::draw(), NodeKey::draw());
    let a = join(&a_key, 1, &[]);
    let b = join(&b_key, 2, &[&a]);
    a.wait_up(b.id());
    b.wait_up(a.id());
    let copy = join(&b_key, 3, &[&a]);
    let (_, why) = copy.wait_refused();
    assert!(why.contains("copy") && why.contains("node.key") && why.contains("127.0.0.1"), "{why}");
    let (_, why) = a.wait_refused();
    assert!(why.contains("same key"), "{why}");
    a.net.send(b.id(), number(5)).expect("still up");
    assert_eq!(b.wait_number(), 5);
    // the copy and the elder dial each other directly
    copy.net.dial(&b.place());
    let (_, why) = copy.wait_refused();
    assert!(why.contains("has this node's key"), "{why}");
}

#[test]
fn other_secrets_names_and_versions_are_refused_in_words() {
    let a = join(&NodeKey::draw(), 1, &[]);
    let key = NodeKey::draw();
    let base = NetConfig { peers: vec![a.place()], ..config(&key, 2) };

    let stranger = start(NetConfig { secret: MeshSecret::from_bytes([8; 32]), ..base.clone() });
    let (address, why) = stranger.wait_refused();
    assert!(address == a.place() && why.contains("another secret"), "{address}: {why}");
    let (_, why) = a.wait_refused();
    assert!(why.contains("secret"), "{why}");
    assert!(a.net.counts().strangers > 0);
    drop(stranger);

    let elsewhere = start(NetConfig { mesh: "work".to_owned(), ..base.clone() });
    assert!(elsewhere.wait_refused().1.contains("work"));
    assert!(a.wait_refused().1.contains("work"));
    drop(elsewhere);

    let newer = start(NetConfig { protocol: 99, key: NodeKey::draw(), ..base.clone() }.with_own_record());
    for (_, why) in [newer.wait_refused(), a.wait_refused()] {
        assert!(why.contains("99") && why.contains(&wire::PROTOCOL_VERSION.to_string()), "{why}");
    }
    drop(newer);

    // and the port is still open for a good one
    let good = join(&NodeKey::draw(), 4, &[&a]);
    a.wait_up(good.id());
}

impl NetConfig {
    fn with_own_record(self) -> Self {
        Self { me: record(self.key.node(), 2), ..self }
    }
}

#[test]
fn a_frozen_peer_is_suspected_then_down_and_comes_back() {
    let a = join(&NodeKey::draw(), 1, &[]);
    let b = join(&NodeKey::draw(), 2, &[&a]);
    a.wait_up(b.id());
    b.wait_up(a.id());
    let (thaw, frozen) = channel();
    b.freeze.send(frozen).expect("there");
    a.net.send(b.id(), number(0)).expect("up");
    let from = Instant::now();
    a.wait("suspicion", |event| matches!(event, CarrierEvent::Suspect { node, .. } if node == b.id()).then_some(()));
    let suspected = from.elapsed();
    // its queue fills, and says so at once
    let full = (0..20 * CONTROL_QUEUE_MAX as u32).find_map(|index| a.net.send(b.id(), number(index)).err());
    assert_eq!(full, Some(SendError::Full(b.id())));
    // bulk has a queue of its own
    assert_eq!(a.net.send(b.id(), Message::Want(Vec::new())), Ok(()));
    let why = a.wait_down(b.id());
    let dead = from.elapsed();
    assert!(why.contains("no echo"), "{why}");
    // 0.7 to 0.9 s without an echo; the upper bound allows for a loaded machine
    assert!(suspected < dead && dead > Duration::from_millis(600) && dead < Duration::from_millis(2_500), "{suspected:?} {dead:?}");
    thaw.send(()).expect("frozen");
    assert_eq!(a.wait_up(b.id()), BootId(2));
}

/// A node that says, in its hello, that it is reached at this address and nowhere else.
fn known_at(place: &str, boot: u128) -> Node {
    let (key, (host, port)) = (NodeKey::draw(), place.split_once(':').expect("HOST:PORT"));
    let mut config = config(&key, boot);
    config.me.addresses = vec![format!("/ip4/{host}/tcp/{port}")];
    start(config)
}

#[test]
fn a_node_that_only_others_reach_is_suspected_by_name_and_not_dead() {
    let c = join(&NodeKey::draw(), 3, &[]);
    // a and b know each other through the relay only, which nobody can redial once it stalls
    let relay = Relay::closed();
    let (a, b) = (known_at(&relay.place, 1), known_at(&relay.place, 2));
    relay.open(&b.place());
    a.net.dial(&relay.place);
    a.wait_up(b.id());
    b.wait_up(a.id());
    for node in [&a, &b] {
        node.net.dial(&c.place());
        node.wait_up(c.id());
    }
    c.wait_all_up(&[&a, &b]);
    relay.stall(true);
    for (node, other) in [(&a, b.id()), (&b, a.id())] {
        let through = |event| match event {
            CarrierEvent::Suspect { node, why } if node == other && why == "reached only through test" => Some(Ok(())),
            CarrierEvent::Down { why, .. } => Some(Err(why)),
            _ => None,
        };
        assert_eq!(node.wait("words", through), Ok(()));
    }
    relay.stall(false);
    for (node, other) in [(&a, b.id()), (&b, a.id())] {
        let next = |event| match event {
            CarrierEvent::Trusted(node) if node == other => Some(Ok(())),
            CarrierEvent::Down { why, .. } => Some(Err(why)),
            _ => None,
        };
        assert_eq!(node.wait("trust", next), Ok(()));
    }
}

#[test]
fn what_is_gossiped_of_a_node_that_node_says() {
    let a = join(&NodeKey::draw(), 1, &[]);
    let b = join(&NodeKey::draw(), 2, &[&a]);
    a.wait_up(b.id());
    b.wait_up(a.id());
    let deadline = Instant::now() + PATIENCE;
    while b.net.counts().foreign_gossip == 0 {
        let mut forged = record(b.id(), 2);
        forged.version = a.net.counts().gossip_dropped + 1; // what was said before is not passed on again
        a.net.gossip(&Record::Node(forged));
        std::thread::sleep(Duration::from_millis(20));
        assert!(Instant::now() < deadline, "no gossip");
    }
    let told: Vec<CarrierEvent> = b.events.try_iter().collect();
    assert!(!told.iter().any(|event| matches!(event, CarrierEvent::Gossip(_))), "{told:?}");
}

#[test]
fn a_process_that_ends_without_a_word_is_down_at_once() {
    let a = join(&NodeKey::draw(), 1, &[]);
    let b_key = NodeKey::draw();
    let b = join(&b_key, 2, &[&a]);
    a.wait_up(b.id());
    b.net.shared().killed.store(true, Ordering::Relaxed);
    let from = Instant::now();
    drop(b);
    let why = a.wait_down(b_key.node());
    assert!(why.contains("refuse"), "{why}");
    assert!(from.elapsed() < Duration::from_secs(1), "{:?}", from.elapsed());
    // killed and started again and again: the same node each time, never a clone
    for boot in 3..6 {
        let again = join(&b_key, boot, &[&a]);
        assert_eq!(a.wait_up(b_key.node()), BootId(boot));
        again.net.shared().killed.store(true, Ordering::Relaxed);
    }
    assert_eq!(a.net.counts().refused_hellos, 0);
}

#[test]
fn a_cut_connection_is_healed_by_a_redial_without_a_death() {
    let a = patient(&NodeKey::draw(), 1);
    let b = patient(&NodeKey::draw(), 2);
    let relay = Relay::to(&b.place());
    a.net.dial(&relay.place);
    a.wait_up(b.id());
    b.wait_up(a.id());
    relay.cut();
    let next = |event| match event {
        CarrierEvent::Trusted(_) => Some(Ok(())),
        CarrierEvent::Down { why, .. } => Some(Err(why)),
        _ => None,
    };
    assert_eq!(a.wait("healing", next), Ok(()));
    send_patiently(&a, b.id(), &number(3));
    assert_eq!(b.wait_number(), 3);
}

#[test]
fn nothing_is_lost_or_doubled_when_another_link_takes_over() {
    const EACH: u32 = 3_000;
    let a = patient(&NodeKey::draw(), 1);
    let b = patient(&NodeKey::draw(), 2);
    let relay = Relay::to(&b.place());
    a.net.dial(&relay.place);
    a.wait_up(b.id());
    b.wait_up(a.id());
    for index in 0..EACH {
        send_patiently(&a, b.id(), &number(index));
        send_patiently(&b, a.id(), &number(index));
        if index == EACH / 2 {
            relay.cut(); // with messages in both queues, in the sockets, and half read
        }
    }
    for index in 0..EACH {
        for node in [&a, &b] {
            let next = node.wait("message", |event| match event {
                CarrierEvent::Heard { message: Message::Grant { position, .. }, .. } => Some(Ok(position)),
                CarrierEvent::Down { why, .. } => Some(Err(why)),
                _ => None,
            });
            assert_eq!(next, Ok(index));
        }
    }
}

#[test]
fn garbage_on_the_port_harms_nobody() {
    let a = join(&NodeKey::draw(), 1, &[]);
    let mut held = Vec::new();
    for (index, bytes) in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], &[0; 64], &[]].into_iter().cycle().take(40).enumerate() {
        let mut stream = TcpStream::connect(a.place()).expect("listening");
        let _ = stream.write_all(bytes);
        if index % 2 == 0 {
            held.push(stream); // half open until the deadline
        }
    }
    let b = join(&NodeKey::draw(), 2, &[&a]);
    a.wait_up(b.id());
    b.wait_up(a.id());
}

#[test]
fn unknown_kinds_are_ignored_and_broken_frames_end_the_link() {
    let a = join(&NodeKey::draw(), 1, &[]);
    let b = join(&NodeKey::draw(), 2, &[&a]);
    a.wait_up(b.id());
    b.wait_up(a.id());
    let outbox = a.net.shared().outboxes.get(&b.id()).expect("up").clone();
    outbox.send_bytes(Class::Control, vec![250, 1, 2, 3]).expect("sent");
    send_patiently(&a, b.id(), &number(1));
    assert_eq!(b.wait_number(), 1);
    assert_eq!(b.net.counts().unknown_kinds, 1);
    let mut broken = wire::encode(&number(2)).expect("short");
    broken.truncate(10);
    outbox.send_bytes(Class::Control, broken).expect("sent");
    let why = b.wait("end", |event| match event {
        CarrierEvent::Refused { why, .. } => Some(why),
        _ => None,
    });
    assert!(why.contains("no messages"), "{why}");
    assert_eq!(b.net.counts().malformed_frames, 1);
}

#[test]
fn a_seed_that_comes_later_is_found() {
    let seed_key = NodeKey::draw();
    let place = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("bound").to_string()
    };
    let b = start(NetConfig { peers: vec![place.clone()], ..config(&NodeKey::draw(), 2) }.with_own_record());
    let (address, why) = b.wait_refused();
    assert!(address == place && why.contains("no node listens"), "{address}: {why}");
    let seed = start(NetConfig { listen: vec![place], ..config(&seed_key, 1) });
    b.wait_up(seed.id());
}

#[test]
fn bad_settings_are_refused_in_words() {
    let key = NodeKey::draw();
    let fails = |config: NetConfig| Net::start(config, |_| {}, |_, message| Some(message)).err().expect("refused").to_string();
    assert!(fails(NetConfig { listen: vec!["nonsense".to_owned()], ..config(&key, 1) }).contains("nonsense"));
    assert!(fails(NetConfig { peers: vec!["not a peer".to_owned()], ..config(&key, 1) }).contains("HOST:PORT"));
    let taken = join(&NodeKey::draw(), 1, &[]);
    assert!(fails(NetConfig { listen: vec![taken.place()], ..config(&key, 1) }).contains("in use"));
    assert!(fails(NetConfig { me: record(NodeId([1; 32]), 1), ..config(&key, 1) }).contains("another node"));
}

/// Passes bytes on until it is told to cut; then new connections pass again. Or holds all bytes back for a while.
struct Relay {
    place: String,
    target: Arc<OnceLock<String>>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
    stalled: Arc<AtomicBool>,
}

impl Relay {
    fn to(target: &str) -> Self {
        let relay = Self::closed();
        relay.open(target);
        relay
    }

    /// Has a place already and leads nowhere yet.
    fn closed() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let place = listener.local_addr().expect("bound").to_string();
        let relay = Self { place, target: Arc::default(), streams: Arc::default(), stalled: Arc::default() };
        let (target, streams, stalled) = (relay.target.clone(), relay.streams.clone(), relay.stalled.clone());
        std::thread::spawn(move || {
            for from in listener.incoming().flatten() {
                let Some(Ok(to)) = target.get().map(TcpStream::connect) else { continue };
                for (a, b) in [(from.try_clone(), to.try_clone()), (to.try_clone(), from.try_clone())] {
                    let (Ok(a), Ok(b), stalled) = (a, b, stalled.clone()) else { continue };
                    std::thread::spawn(move || pass(a, b, &stalled));
                }
                streams.lock().expect("not poisoned").extend([from, to]);
            }
        });
        relay
    }

    fn open(&self, target: &str) {
        self.target.set(target.to_owned()).expect("once");
    }

    fn cut(&self) {
        for stream in self.streams.lock().expect("not poisoned").drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    fn stall(&self, whether: bool) {
        self.stalled.store(whether, Ordering::Relaxed);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, stalled: &AtomicBool) {
    let mut bytes = [0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        while stalled.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        if to.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
}
