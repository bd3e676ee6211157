//! Every kind of message comes back as it went; nobody's bytes panic; the bytes of a few are written down.

use proptest::prelude::*;

use super::*;
use crate::generation::{Attempt, FinishReason, Sampling, TokenLogprobs};
use crate::ids::Digest;
use crate::lifetimes::Wall;
use crate::links::{Interface, LinkName, LinkSaid, LinkState, Measured, NotNow, Path};
use crate::model::{Contents, FileContents, HeldModel, LayerCost, ModelSheet};
use crate::plan::{Numerics, Stage};
use crate::records::{Capacity, DeploymentRecord, DeploymentStatus, HeldShard, NodeState, PlanId, Wish};

const NODE: NodeId = NodeId([7; 32]);
const DEPLOYMENT: DeploymentId = DeploymentId(1 << 100);
const TAG: StreamTag = StreamTag { deployment: DEPLOYMENT, plan: PlanHash(u64::MAX), stream: StreamId(5), attempt: AttemptTag(6) };

fn sheet() -> ModelSheet {
    ModelSheet {
        name: "builtin:story".to_owned(),
        digest: Digest([3; 32]),
        architecture: "llama".to_owned(),
        storage: "bf16".to_owned(),
        layers: vec![LayerCost { weight_bytes: 1, flops: 2, kv_bytes: 3 }; 4],
        embed_bytes: 10,
        head_bytes: 10,
        head_flops: 20,
        tied: true,
        hidden_width: 128,
        vocabulary: 857,
        context_max: 2048,
    }
}

fn plan() -> Plan {
    let stages = vec![Stage { node: NODE, layers: Layers::new(0, 1) }, Stage { node: NodeId([8; 32]), layers: Layers::new(1, 4) }];
    Plan::new(&sheet(), stages, 2048, 4, Numerics::default()).expect("a chain")
}

fn node_record() -> NodeRecord {
    NodeRecord {
        node: NODE,
        name: "näme".to_owned(),
        boot: BootId(u128::MAX),
        incarnation: 3,
        version: 9,
        state: NodeState::Leaving,
        alive: Wall::default(),
        in_touch: None,
        capacity: Capacity { memory_bytes: 1 << 40, memory_bandwidth: 2, flops: 3, threads: 4 },
        numerics_class: 99,
        addresses: vec!["/ip4/127.0.0.1/tcp/1".to_owned()],
        models: vec![HeldModel { name: "m".to_owned(), digest: Digest([1; 32]), layers: Layers::new(0, 4), contents: Some(contents()) }],
        shards: vec![HeldShard { deployment: DEPLOYMENT, layers: Layers::new(1, 2) }],
        interfaces: vec![Interface::loopback()],
        paths: vec![Path { peer: NODE, measured: Measured { delay_us: 7, bytes_per_s: 1 << 30 } }],
    }
}

fn contents() -> Contents {
    Contents::new(Digest([5; 32]), vec![FileContents { name: "a".to_owned(), hash: 6 }])
}

fn deployment(status: DeploymentStatus) -> Record {
    Record::Deployment(DeploymentRecord {
        id: DEPLOYMENT,
        sheet: sheet(),
        contents: Some(contents()),
        wish: Wish { split: Some(2), context: None, streams: 4, place: vec![Stage { node: NODE, layers: Layers::new(0, 4) }] },
        version: PlanId { term: 1, epoch: 2, revision: 3, coordinator: NODE },
        plan: Some(plan()),
        status,
        deleted: None,
    })
}

fn open() -> Open {
    Open {
        deployment: DEPLOYMENT,
        plan: PlanHash(1),
        stream: StreamId(2),
        attempt: Attempt { takeover: 0, owner: NODE, boot: BootId(1), counter: 1 },
        keep: 0,
        sample_from: 3,
        ids: vec![1, 200_000, 3],
        prompt_len: 3,
        granted: 35,
        sampling: Sampling { logit_bias: vec![(1, -100.0)], logprobs: Some(5), ..Sampling::default() },
        end_ids: vec![1, 2],
        max_tokens: 100,
    }
}

fn report(state: ShardState) -> Message {
    Message::Shard(ShardReport { deployment: DEPLOYMENT, plan: PlanHash(1), node: NODE, boot: BootId(2), layers: Layers::new(0, 4), state })
}

/// One of each kind, and of each kind inside.
fn every_message() -> Vec<Message> {
    let statuses = [
        DeploymentStatus::Planning,
        DeploymentStatus::Loading { plan: plan() },
        DeploymentStatus::Starting,
        DeploymentStatus::Ready,
        DeploymentStatus::Waiting { missing_bytes: 7, why: "memory".to_owned() },
        DeploymentStatus::Failed { why: "a file".to_owned() },
    ];
    let refusals = [
        Refusal::Fenced(None),
        Refusal::Fenced(Some(PlanHash(1))),
        Refusal::Deposed,
        Refusal::Busy { streams: 3 },
        Refusal::CacheFull { need_bytes: 1, free_bytes: 2 },
        Refusal::TooLong { asked: 1, context: 2 },
        Refusal::Malformed("x".to_owned()),
    ];
    let mut all = vec![
        Message::Hello(Box::new(Hello { protocol: 1, program: "mesh 0".to_owned(), mesh: "home".to_owned(), me: node_record() })),
        Message::Goodbye("no".to_owned()),
        Message::Ping(u64::MAX),
        Message::Pong(0),
        Message::Digest(vec![(RecordKey::Node(NODE), 1), (RecordKey::Deployment(DEPLOYMENT), 2)]),
        Message::Want(vec![RecordKey::Node(NODE)]),
        Message::Records(vec![Record::Node(node_record())]),
        Message::Load(Box::new(LoadOrder { deployment: DEPLOYMENT, plan: plan(), coordinator: NODE })),
        report(ShardState::Loading { done_bytes: 1, all_bytes: 2 }),
        report(ShardState::Loaded),
        report(ShardState::Wired),
        report(ShardState::Failed { why: "x".to_owned(), retry: true }),
        Message::Lane(LaneOffer {
            lane: LaneId { deployment: DEPLOYMENT, plan: PlanHash(1), boundary: 0 },
            generation: 4,
            endpoints: vec!["tcp:127.0.0.1:1".to_owned()],
            secret: [9; 32],
            slot_bytes: 1 << 17,
            slots: 8,
        }),
        Message::Open(Box::new(open())),
        Message::Opened(Opened { tag: TAG, stage: 1, answer: Ok((0, PrefixHash::EMPTY)) }),
        Message::Start(TAG),
        Message::Grant { tag: TAG, position: 64 },
        Message::Close(TAG),
        Message::Token(TokenOut {
            deployment: DEPLOYMENT,
            plan: PlanHash(1),
            stream: StreamId(2),
            attempt: AttemptTag(3),
            position: 12,
            token: 856,
            hash_before: PrefixHash(4),
            finish: Some(FinishReason::EndToken),
            logprobs: Some(TokenLogprobs { chosen: -0.5, top: vec![(1, -0.5), (2, f32::NEG_INFINITY)] }),
        }),
        Message::StreamFailed(StreamFailed { tag: TAG, stage: 1, why: "x".to_owned() }),
    ];
    let words = [
        Word::Ask { suspect: NODE, nonce: 7 },
        Word::Ping { origin: NODE, nonce: u64::MAX },
        Word::Echo { origin: NODE, nonce: 7, boot: BootId(u128::MAX) },
        Word::Brought { suspect: NODE, nonce: 7, boot: BootId(2) },
        Word::Suspect { node: NODE, boot: BootId(2), refuted: 1 },
        Word::Refute { refuted: 2 },
    ];
    all.extend(words.map(Message::Word));
    all.push(Message::Summary(u64::MAX));
    all.extend(link_messages().into_iter().map(Message::Links));
    all.push(Message::Records(statuses.into_iter().map(deployment).collect()));
    all.extend(refusals.into_iter().map(|refusal| Message::Opened(Opened { tag: TAG, stage: 0, answer: Err(refusal) })));
    all
}

fn link_messages() -> Vec<LinkMessage> {
    let link = LinkName { low: "en0".to_owned(), high: "eth0".to_owned() };
    let measured = Some(Measured { delay_us: 50, bytes_per_s: 0 });
    let states = [LinkState::Untried, LinkState::Up, LinkState::Down("x".to_owned())];
    vec![
        LinkMessage::Ask { ticket: u64::MAX, link: link.clone(), rate: true },
        LinkMessage::Answer { ticket: 1, offer: Err(NotNow::Busy) },
        LinkMessage::Table(states.into_iter().map(|state| LinkSaid { link: link.clone(), state, measured }).collect()),
        LinkMessage::Doubt(link),
    ]
}

#[test]
fn every_message_comes_back_as_it_went() {
    for message in every_message() {
        let bytes = encode(&message).expect("short enough");
        assert_eq!(decode::<Message>(&bytes), Ok(message));
    }
}

/// A token to the owner and a token to stage 0 are what flows for each token: the budget of 200 bytes is for all of it.
#[test]
fn a_token_costs_few_bytes() {
    let token = every_message().into_iter().find_map(|message| match message {
        Message::Token(token) => Some(TokenOut { logprobs: None, ..token }),
        _ => None,
    });
    let bytes = encode(&Message::Token(token.expect("one of each"))).expect("short").len();
    assert!(2 * bytes <= 200, "{bytes} bytes each");
}

/// The wire format, written down: a change here is another protocol version.
#[test]
fn the_bytes_of_a_message_are_what_they_were() {
    assert_eq!(encode(&Message::Ping(1)).expect("short"), [2, 1]);
    assert_eq!(encode(&Message::Pong(300)).expect("short"), [3, 251, 44, 1]);
    assert_eq!(encode(&Message::Word(Word::Refute { refuted: 3 })).expect("short"), [17, 5, 3]);
    assert_eq!(encode(&Message::Summary(1)).expect("short"), [18, 1]);
    assert_eq!(
        encode(&Message::Want(vec![RecordKey::Deployment(DeploymentId(1))])).expect("short"),
        [&[5, 1, 2][..], &[0; 15], &[1], &[0; 16]].concat()
    );
}

#[test]
fn odd_lengths_and_kinds_are_told_apart() {
    assert_eq!(decode::<Message>(&[200]), Err(DecodeError::UnknownKind));
    assert!(matches!(decode::<Message>(&[2, 1, 0]), Err(DecodeError::Malformed(_))));
    assert!(matches!(decode::<Message>(&[]), Err(DecodeError::Malformed(_))));
    assert_eq!(decode::<Message>(&vec![0; MESSAGE_BYTES_MAX + 1]), Err(DecodeError::TooLong(MESSAGE_BYTES_MAX + 1)));
}

proptest! {
    #[test]
    fn nobodys_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = decode::<Message>(&bytes);
        let _ = decode::<Record>(&bytes);
    }

    #[test]
    fn a_changed_byte_gives_a_message_or_an_error(which in 0_usize..39, at in 0_usize..4096, byte in any::<u8>()) {
        let all = every_message();
        let mut bytes = encode(&all[which % all.len()]).expect("short");
        let at = at % bytes.len();
        bytes[at] = byte;
        let _ = decode::<Message>(&bytes);
    }
}
