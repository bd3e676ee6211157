//! Decisions as a text table (`cases.txt`), and what must hold for any input. `MESH_REWRITE=1` writes the table anew:
//! the difference is the review.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;
use crate::ids::Digest;
use crate::model::LayerCost;

const CASES: &str = include_str!("cases.txt");

/// One line `plan key=value ..`.
#[derive(Debug)]
struct Case {
    sheet: ModelSheet,
    wish: Wish,
    nodes: Vec<PlanNode>,
    links: Option<Vec<PlanLink>>,
    keep: Option<Plan>,
}

fn id(name: &str) -> NodeId {
    let mut bytes = [0; 32];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    NodeId(bytes)
}

fn size(text: &str) -> u64 {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    number.parse::<u64>().expect("a number")
        << match unit {
            "" => 0,
            "K" => 10,
            "M" => 20,
            "G" => 30,
            other => panic!("unit {other}"),
        }
}

fn range(text: &str) -> Layers {
    let (first, end) = text.split_once("..").expect("a range");
    Layers::new(first.parse().expect("first"), end.parse().expect("end"))
}

/// `a:24G` and then any of `bw=GB/s`, `tf=TFLOP/s`, `class=`, `files=`, `shard=`, `taken=`, `down`.
fn node(text: &str, layers: u16) -> PlanNode {
    let mut words = text.split(':');
    let name = words.next().expect("a name");
    let memory_bytes = size(words.next().expect("memory"));
    let mut node = PlanNode {
        node: id(name),
        name: name.to_owned(),
        capacity: Capacity { memory_bytes, ..Capacity::default() },
        taken_bytes: 0,
        numerics_class: 0,
        files: Some(Layers::new(0, layers)),
        shard: None,
        unusable: None,
    };
    for word in words {
        match word.split_once('=').unwrap_or((word, "")) {
            ("bw", value) => node.capacity.memory_bandwidth = size(value) * 1_000_000_000,
            ("tf", value) => node.capacity.flops = size(value) * 1_000_000_000_000,
            ("class", value) => node.numerics_class = size(value),
            ("files", "none") => node.files = None,
            ("files", value) => node.files = Some(range(value)),
            ("shard", value) => node.shard = Some(range(value)),
            ("taken", value) => node.taken_bytes = size(value),
            ("down", _) => node.unusable = Some(format!("{name} is down")),
            other => panic!("word {other:?}"),
        }
    }
    node
}

fn sheet(layers: u16, layer_bytes: u64) -> ModelSheet {
    ModelSheet {
        name: "model".into(),
        digest: Digest([7; 32]),
        architecture: "llama".into(),
        storage: "bf16".into(),
        layers: vec![LayerCost { weight_bytes: layer_bytes, flops: layer_bytes, kv_bytes: 4096 }; layers.into()],
        embed_bytes: 0,
        head_bytes: 0,
        head_flops: 0,
        tied: false,
        hidden_width: 2048,
        vocabulary: 1000,
        context_max: 4096,
    }
}

fn link(text: &str) -> PlanLink {
    let mut words = text.split(':');
    let (a, b) = words.next().and_then(|pair| pair.split_once('-')).expect("a pair");
    let delay_us = words.next().map_or(PlanLink::DEFAULT_DELAY_US, |text| text.parse().expect("a delay"));
    PlanLink { a: id(a), b: id(b), delay_us, bytes_per_s: PlanLink::DEFAULT_BYTES_PER_S }
}

fn parse(line: &str) -> Case {
    let fields: Vec<(&str, &str)> = line.split_whitespace().skip(1).map(|word| word.split_once('=').unwrap_or((word, ""))).collect();
    let field = |name: &str| fields.iter().find(|field| field.0 == name).map(|field| field.1);
    let layers: u16 = field("layers").map_or(32, |text| text.parse().expect("layers"));
    let mut sheet = sheet(layers, field("layer").map_or(1 << 30, size));
    sheet.embed_bytes = field("embed").map_or(0, size);
    sheet.head_bytes = field("head").map_or(0, size);
    sheet.tied = field("tied").is_some();
    sheet.context_max = field("max").map_or(4096, |text| text.parse().expect("max"));
    if let Some(kv) = field("kv") {
        sheet.layers.iter_mut().for_each(|layer| layer.kv_bytes = u32::try_from(size(kv)).expect("small"));
    }
    let number = |name: &str| field(name).map(|text| text.parse().expect("a number"));
    let stage = |text: &str| {
        let (name, layers) = text.split_once(':').expect("node:layers");
        Stage { node: id(name), layers: range(layers) }
    };
    let place = field("place").map_or_else(Vec::new, |text| text.split(',').map(stage).collect());
    let wish = Wish {
        split: number("split").map(|n: u32| n as u16),
        context: number("context"),
        streams: number("streams").unwrap_or(1) as u16,
        place,
    };
    let nodes = field("nodes").unwrap_or("").split(',').filter(|text| !text.is_empty()).map(|text| node(text, layers)).collect();
    let links = field("links").map(|text| text.split(',').map(link).collect());
    let context = wish.context.unwrap_or(sheet.context_max);
    let keep = field("keep").map(|text| {
        Plan::new(&sheet, text.split(',').map(stage).collect(), context, wish.streams, Numerics::default()).expect("a plan to keep")
    });
    Case { sheet, wish, nodes, links, keep }
}

impl Case {
    fn input(&self) -> PlanInput<'_> {
        PlanInput {
            sheet: &self.sheet,
            wish: &self.wish,
            numerics: Numerics::default(),
            nodes: self.nodes.clone(),
            links: self.links.clone(),
            keep: self.keep.as_ref(),
        }
    }

    fn name(&self, id: NodeId) -> &str {
        self.nodes.iter().find(|node| node.node == id).map_or("?", |node| node.name.as_str())
    }

    fn answer(&self) -> String {
        let mut text = String::new();
        match plan(&self.input()) {
            Ok(planned) => {
                let stage = |stage: &Stage| format!("{} {}..{}", self.name(stage.node), stage.layers.first, stage.layers.end);
                let stages: Vec<String> = planned.plan.stages().iter().map(stage).collect();
                writeln!(text, "{}   context {}", stages.join("   "), planned.plan.context()).unwrap();
                planned.reasons.iter().for_each(|reason| writeln!(text, "because {reason}").unwrap());
                planned.left_out.iter().for_each(|(id, why)| writeln!(text, "without {}: {why}", self.name(*id)).unwrap());
            }
            Err(no) => {
                writeln!(text, "none: {}", no.why).unwrap();
                if no.missing_bytes > 0 {
                    writeln!(text, "missing {}", words::bytes(no.missing_bytes)).unwrap();
                }
                no.left_out.iter().for_each(|(id, why)| writeln!(text, "without {}: {why}", self.name(*id)).unwrap());
            }
        }
        text
    }
}

#[test]
fn decisions_are_those_of_the_table() {
    let mut now = String::new();
    for block in CASES.split("\n\n").filter(|block| !block.trim().is_empty()) {
        let head: Vec<&str> = block.lines().take_while(|line| *line != "----").collect();
        let line = head.iter().find(|line| line.starts_with("plan")).expect("each case has a line that starts with plan");
        write!(now, "{}\n----\n{}\n", head.join("\n"), parse(line).answer()).unwrap();
    }
    if std::env::var_os("MESH_REWRITE").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/src/planner/cases.txt"), now).expect("write the table");
    } else {
        assert_eq!(now.trim(), CASES.trim(), "run with MESH_REWRITE=1 and review the difference");
    }
}

fn any_node(index: usize, layers: u16) -> impl Strategy<Value = PlanNode> {
    let files = (0..layers, 0..=layers).prop_map(|(a, b)| Layers::new(a.min(b), a.max(b)));
    (
        0_u64..24,
        0_u64..8,
        0_u64..2,
        prop::option::weighted(0.8, files.clone()),
        prop::option::weighted(0.3, files),
        prop::bool::weighted(0.1),
    )
        .prop_map(move |(memory, bandwidth, class, files, shard, down)| PlanNode {
            node: NodeId([u8::try_from(index).expect("few") + 1; 32]),
            name: format!("n{index}"),
            capacity: Capacity {
                memory_bytes: memory << 30,
                memory_bandwidth: bandwidth * 50_000_000_000,
                flops: bandwidth << 40,
                threads: 4,
            },
            taken_bytes: 0,
            numerics_class: class,
            files: if memory % 3 == 0 { Some(Layers::new(0, layers)) } else { files },
            shard,
            unusable: down.then(|| "is down".to_owned()),
        })
}

fn any_case() -> impl Strategy<Value = Case> {
    (1_u16..20, 1_usize..7).prop_flat_map(|(layers, count)| {
        let nodes: Vec<_> = (0..count).map(|index| any_node(index, layers)).collect();
        (nodes, prop::option::of(0_u16..6), prop::option::of(1_u32..5000), 1_u16..4, any::<bool>()).prop_map(
            move |(nodes, split, context, streams, tied)| {
                let sheet = ModelSheet { embed_bytes: 1 << 29, head_bytes: 1 << 29, tied, ..sheet(layers, 1 << 30) };
                Case { sheet, wish: Wish { split, context, streams, place: Vec::new() }, nodes, links: None, keep: None }
            },
        )
    })
}

proptest! {
    #[test]
    fn every_plan_fits_and_keeps_to_the_wish(case in any_case()) {
        let Ok(planned) = plan(&case.input()) else { return Ok(()) };
        prop_assert!(planned.plan.is_sound(&case.sheet));
        prop_assert!(case.wish.split.is_none_or(|split| usize::from(split) == planned.plan.stages().len()));
        prop_assert!(case.wish.context.is_none_or(|context| context == planned.plan.context()));
        prop_assert!(planned.plan.context() > 0 && planned.decode_tokens_per_s > 0.0 && planned.prefill_tokens_per_s > 0.0);
        for (stage, (need, lends)) in planned.plan.stages().iter().zip(&planned.memory) {
            let node = case.nodes.iter().find(|node| node.node == stage.node).expect("one of the nodes");
            prop_assert!(node.unusable.is_none() && need <= lends);
            let files = node.files.expect("has files");
            prop_assert!(files.first <= stage.layers.first && stage.layers.end <= files.end);
        }
    }

    #[test]
    fn the_order_of_the_nodes_given_changes_nothing(case in any_case(), turn in 0_usize..7) {
        let mut turned = case.input();
        let by = turn % turned.nodes.len();
        turned.nodes.rotate_left(by);
        prop_assert_eq!(plan(&case.input()).ok().map(|planned| planned.plan), plan(&turned).ok().map(|planned| planned.plan));
    }

    /// The search against trying everything: same cost to the picosecond.
    #[test]
    fn no_chain_is_cheaper_than_the_best(case in any_case()) {
        let input = case.input();
        let (Ok(()), Ok(desk)) = (check_wish(input.sheet, input.wish), Desk::new(&input)) else { return Ok(()) };
        let context = desk.context_top;
        let best = desk.best_chain(&Attempt { nodes: &desk.nodes, context, split: case.wish.split });
        let all = cheapest_by_trying(&desk, context, case.wish.split);
        prop_assert_eq!(best.map(|best| best.0.0), all);
    }
}

/// Cost in picoseconds of the cheapest chain, pace counted, by recursion over every node and every cut.
fn cheapest_by_trying(desk: &Desk<'_>, context: u32, split: Option<u16>) -> Option<u64> {
    struct Trial<'a> {
        desk: &'a Desk<'a>,
        costs: Vec<Costs>,
        split: Option<u16>,
        used: Vec<usize>,
        best: Option<u64>,
    }
    impl Trial<'_> {
        fn go(&mut self, covered: usize, sum: u64, pace: u64) {
            if covered == self.desk.sizes.layers {
                if self.split.is_none_or(|split| usize::from(split) == self.used.len()) {
                    self.best = self.best.into_iter().chain([sum + search::PACES * pace]).min();
                }
                return;
            }
            for node in (0..self.costs.len()).filter(|node| !self.used.contains(node)).collect::<Vec<_>>() {
                let id = |node: usize| self.desk.nodes[node].node;
                let hop = self.used.last().map_or(Some(0), |&last| self.desk.hops.ps(self.desk.input.sheet, id(last), id(node)));
                let Some(hop) = hop else { continue };
                for end in covered + 1..=self.desk.sizes.layers {
                    let (cost, time) = (self.costs[node].cost_ps(covered, end), self.costs[node].decode_ps(covered, end));
                    if cost != u64::MAX {
                        self.used.push(node);
                        self.go(end, sum + hop + cost, pace.max(time));
                        self.used.pop();
                    }
                }
            }
        }
    }
    if desk.nodes.len() > 4 || desk.sizes.layers > 9 {
        // Trying everything takes too long there: trust the search.
        return desk.best_chain(&Attempt { nodes: &desk.nodes, context, split }).map(|best| best.0.0);
    }
    let costs = desk.nodes.iter().map(|node| Costs::of(desk, node, context)).collect();
    let mut trial = Trial { desk, costs, split, used: Vec::new(), best: None };
    trial.go(0, 0, 0);
    trial.best
}

#[test]
fn more_than_eight_unlike_nodes_still_find_what_fits() {
    let nodes: Vec<String> = (0..16).map(|index| format!("n{index}:{}G:bw={}", 6 + index % 5, 50 + 13 * index)).collect();
    let case = parse(&format!("plan nodes={} layers=80 layer=1G", nodes.join(",")));
    let planned = plan(&case.input()).expect("128 GiB hold 80");
    assert!(planned.plan.is_sound(&case.sheet) && planned.memory.iter().all(|(need, lends)| need <= lends));
}

#[test]
fn a_hostile_sheet_is_refused_without_work() {
    let mut case = parse("plan nodes=a:24G layers=4");
    case.sheet.layers[2].weight_bytes = u64::MAX;
    assert!(plan(&case.input()).is_err());
    case.sheet.layers = vec![case.sheet.layers[0]; 60_000];
    assert!(plan(&case.input()).is_err());
}
