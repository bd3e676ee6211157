//! The smallest member: joins a mesh by multicast DNS or by an address, prints what it sees. For trying networks by hand:
//!
//! `neighbour SECRET_HEX [load] [PEER]...` in two network namespaces. With `load` it fills the bulk queue to everybody it
//! meets, as fast as the queue takes it: on a slow line nobody may be held dead (F39).
#![expect(clippy::print_stdout, reason = "an example that people watch")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mesh_core::ids::{BootId, DeploymentId};
use mesh_core::lifetimes::Wall;
use mesh_core::ports::{Carrier, CarrierEvent, Entropy};
use mesh_core::records::{Capacity, NodeRecord, NodeState, RecordKey};
use mesh_core::wire::Message;
use mesh_net::{MeshSecret, Net, NetConfig, NodeKey, SystemEntropy, interfaces};

fn main() {
    tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env()).init();
    let mut arguments = std::env::args().skip(1).peekable();
    let secret = MeshSecret::from_hex(&arguments.next().unwrap_or_default()).expect("64 hexadecimal digits");
    let load = arguments.next_if(|argument| argument == "load").is_some();
    let key = NodeKey::draw();
    let me = NodeRecord {
        node: key.node(),
        name: "neighbour".to_owned(),
        boot: BootId(SystemEntropy.draw()),
        incarnation: 1,
        version: 0,
        state: NodeState::Up,
        alive: Wall::default(),
        in_touch: None,
        capacity: Capacity::default(),
        numerics_class: 0,
        addresses: Vec::new(),
        models: Vec::new(),
        shards: Vec::new(),
        interfaces: Vec::new(),
        paths: Vec::new(),
    };
    let start = Instant::now();
    let config = NetConfig { peers: arguments.collect(), ..NetConfig::new(key, "neighbours", secret, me) };
    let (met, meetings) = std::sync::mpsc::channel();
    let heard = Arc::new(AtomicU64::new(0));
    let counted = heard.clone();
    let tell = move |event: CarrierEvent| match event {
        CarrierEvent::Up(record) => {
            println!("{:>9.3?} up {} at {:?}", start.elapsed(), record.node.short(), record.addresses);
            let _ = met.send(record.node);
        }
        CarrierEvent::Heard { .. } => {
            counted.fetch_add(1, Ordering::Relaxed);
        }
        other => println!("{:>9.3?} {other:?}", start.elapsed()),
    };
    let net = Net::start(config, tell, |_, message| Some(message)).expect("starts");
    println!("{} on {:?}; interfaces {:?}", net.node().short(), net.listen_addresses(), interfaces());
    let bulk = Message::Want((0..20_000).map(|index| RecordKey::Deployment(DeploymentId(index))).collect());
    let (mut nodes, mut next) = (Vec::new(), start);
    loop {
        nodes.extend(meetings.try_iter());
        let sent = load && nodes.iter().any(|node| net.send(*node, bulk.clone()).is_ok());
        if !sent {
            std::thread::sleep(Duration::from_millis(20));
        }
        if Instant::now() >= next {
            next += Duration::from_secs(10);
            println!("{:>9.3?} heard {} {:?}", start.elapsed(), heard.load(Ordering::Relaxed), net.counts());
        }
    }
}
