//! The smallest member: joins a mesh by multicast DNS or by an address, prints what it sees. For trying networks by hand:
//!
//! `neighbour SECRET_HEX [PEER]...` in two network namespaces.
#![expect(clippy::print_stdout, reason = "an example that people watch")]

use std::time::{Duration, Instant};

use mesh_core::ids::BootId;
use mesh_core::ports::{CarrierEvent, Entropy};
use mesh_core::records::{Capacity, NodeRecord, NodeState};
use mesh_net::{MeshSecret, Net, NetConfig, NodeKey, SystemEntropy, interfaces};

fn main() {
    tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env()).init();
    let mut arguments = std::env::args().skip(1);
    let secret = MeshSecret::from_hex(&arguments.next().unwrap_or_default()).expect("64 hexadecimal digits");
    let key = NodeKey::draw();
    let me = NodeRecord {
        node: key.node(),
        name: "neighbour".to_owned(),
        boot: BootId(SystemEntropy.draw()),
        incarnation: 1,
        version: 0,
        state: NodeState::Up,
        capacity: Capacity::default(),
        numerics_class: 0,
        addresses: Vec::new(),
        models: Vec::new(),
        shards: Vec::new(),
    };
    let start = Instant::now();
    let config = NetConfig { peers: arguments.collect(), ..NetConfig::new(key, "neighbours", secret, me) };
    let tell = move |event: CarrierEvent| match event {
        CarrierEvent::Up(record) => println!("{:>9.3?} up {} at {:?}", start.elapsed(), record.node.short(), record.addresses),
        other => println!("{:>9.3?} {other:?}", start.elapsed()),
    };
    let net = Net::start(config, tell, |_, message| Some(message)).expect("starts");
    println!("{} on {:?}; interfaces {:?}", net.node().short(), net.listen_addresses(), interfaces());
    loop {
        std::thread::sleep(Duration::from_secs(10));
        println!("{:>9.3?} {:?}", start.elapsed(), net.counts());
    }
}
