//! How long a plan takes (budget: 50 ms for 16 nodes and 128 layers): `cargo run --release -p mesh-core --example plan_time`.
#![expect(clippy::print_stdout, clippy::disallowed_types, reason = "a measurement for people")]

use std::time::Instant;

use mesh_core::ids::{Digest, NodeId};
use mesh_core::model::{LayerCost, Layers, ModelSheet};
use mesh_core::plan::Numerics;
use mesh_core::planner::{PlanInput, PlanLink, PlanNode, plan};
use mesh_core::records::{Capacity, Wish};

fn sheet(layers: u16) -> ModelSheet {
    ModelSheet {
        name: "large".into(),
        digest: Digest([1; 32]),
        architecture: "llama".into(),
        storage: "bf16".into(),
        layers: vec![LayerCost { weight_bytes: 1 << 30, flops: 1 << 30, kv_bytes: 8192 }; layers.into()],
        embed_bytes: 1 << 30,
        head_bytes: 1 << 30,
        head_flops: 1 << 30,
        tied: false,
        hidden_width: 8192,
        vocabulary: 128_000,
        context_max: 131_072,
    }
}

/// `count` nodes, each unlike the others, with about `gib` GiB.
fn nodes(count: u8, gib: u64, layers: u16) -> Vec<PlanNode> {
    let node = |index: u8| PlanNode {
        node: NodeId([index + 1; 32]),
        name: format!("n{index}"),
        capacity: Capacity {
            memory_bytes: (gib << 30) + (u64::from(index % 5) << 30),
            memory_bandwidth: 100_000_000_000 + u64::from(index) * 7_000_000_000,
            flops: 10_000_000_000_000,
            threads: 8,
        },
        taken_bytes: 0,
        numerics_class: 0,
        files: Some(Layers::new(0, layers)),
        shard: None,
        unusable: None,
    };
    (0..count).map(node).collect()
}

/// Every pair was measured, each a little differently.
fn links(count: u8) -> Vec<PlanLink> {
    let id = |index: u8| NodeId([index + 1; 32]);
    let link = |a: u8, b: u8| PlanLink {
        a: id(a),
        b: id(b),
        delay_us: 40 + u32::from(a * 7 + b * 5) % 60,
        bytes_per_s: 1_000_000_000 + u64::from(a ^ b) * 10_000_000,
    };
    (0..count).flat_map(|a| (a + 1..count).map(move |b| link(a, b))).collect()
}

fn main() {
    for (count, gib, layers, split) in
        [(3, 64, 128, None), (8, 24, 128, None), (8, 150, 128, Some(8)), (16, 11, 128, None), (16, 24, 128, None), (16, 200, 128, Some(16))]
    {
        let sheet = sheet(layers);
        let wish = Wish { split, context: None, streams: 1, place: Vec::new() };
        let input = PlanInput {
            sheet: &sheet,
            wish: &wish,
            numerics: Numerics::default(),
            nodes: nodes(count, gib, layers),
            links: Some(links(count)),
            keep: None,
        };
        let start = Instant::now();
        let answer = plan(&input);
        let took = start.elapsed();
        let stages = answer.as_ref().map_or(0, |planned| planned.plan.stages().len());
        let decode = answer.as_ref().map_or(0.0, |planned| planned.decode_tokens_per_s);
        println!(
            "{count:2} nodes of {gib:3} GiB, {layers} layers, split {split:?}: {stages:2} stages, {decode:.3} tokens/s, planned in {took:.1?}"
        );
    }
}
