//! A joiner on a long history (F40): a hundred thousand changes of sixty-four nodes and thirty-two deployments, of which half
//! are deleted in the end; then everything is told to a joiner. `cargo run --release -p mesh-core --example history [CHANGES]`.

#![expect(clippy::print_stdout, clippy::disallowed_types, reason = "a measurement for people")]

use std::time::Instant;

use mesh_core::directory::{Directory, in_pieces};
use mesh_core::ids::{BootId, DeploymentId, Digest, NodeId};
use mesh_core::lifetimes::{Lifetimes, Wall};
use mesh_core::model::{LayerCost, ModelSheet};
use mesh_core::records::{Capacity, DeploymentRecord, DeploymentStatus, NodeRecord, NodeState, PlanId, Record, Wish};
use mesh_core::wire::{self, Message};

const NODES: u64 = 64;
const DEPLOYMENTS: u64 = 32;

fn main() {
    let changes: u64 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(100_000);
    let mut directory = Directory::new(Lifetimes::default(), Wall(1));
    let start = Instant::now();
    for change in 0..changes {
        let record = if change % 3 == 0 { deployment(change, changes) } else { node(change) };
        directory.merge(record);
    }
    println!("{changes} changes merged in {:?}", start.elapsed());

    let start = Instant::now();
    let all = directory.all();
    let messages: Vec<Vec<u8>> =
        in_pieces(all.clone()).into_iter().map(|piece| wire::encode(&Message::Records(piece)).expect("pieces fit a message")).collect();
    let bytes: usize = messages.iter().map(Vec::len).sum();
    println!("{} records in {} messages, {bytes} bytes, written in {:?}", all.len(), messages.len(), start.elapsed());

    let start = Instant::now();
    let mut joiner = Directory::new(Lifetimes::default(), Wall(1));
    for message in &messages {
        let Ok(Message::Records(records)) = wire::decode(message) else { panic!("just written") };
        for record in records {
            joiner.merge(record);
        }
    }
    assert_eq!(joiner.digest(), directory.digest());
    println!("the joiner knows all after {:?}", start.elapsed());
}

fn node(change: u64) -> Record {
    let id = change % NODES;
    Record::Node(NodeRecord {
        node: NodeId([u8::try_from(id).expect("few"); 32]),
        name: format!("node-{id}"),
        boot: BootId(u128::from(change / 1_000)),
        incarnation: change / 1_000,
        version: change,
        state: NodeState::Up,
        alive: Wall(1),
        in_touch: Some(Wall(1)),
        capacity: Capacity::default(),
        numerics_class: 1,
        addresses: vec![format!("/ip4/10.0.0.{id}/tcp/7000")],
        models: Vec::new(),
        shards: Vec::new(),
        interfaces: Vec::new(),
        paths: Vec::new(),
    })
}

fn deployment(change: u64, changes: u64) -> Record {
    let id = change / 3 % DEPLOYMENTS;
    let deleted = change + 3 * DEPLOYMENTS >= changes && id.is_multiple_of(2);
    let layers = if deleted { Vec::new() } else { vec![LayerCost { weight_bytes: 1 << 28, flops: 1 << 28, kv_bytes: 4_096 }; 80] };
    Record::Deployment(DeploymentRecord {
        id: DeploymentId(id.into()),
        sheet: ModelSheet {
            name: format!("model-{id}"),
            digest: Digest([1; 32]),
            architecture: "llama".into(),
            storage: "q4_k".into(),
            layers,
            embed_bytes: 0,
            head_bytes: 0,
            head_flops: 0,
            tied: false,
            hidden_width: 8_192,
            vocabulary: 128_256,
            context_max: 131_072,
        },
        contents: None,
        wish: Wish { split: None, context: None, streams: 4, place: Vec::new() },
        version: PlanId { term: 1, epoch: change, revision: 0, coordinator: NodeId([1; 32]) },
        plan: None,
        status: DeploymentStatus::Planning,
        deleted: deleted.then_some(Wall(1)),
    })
}
