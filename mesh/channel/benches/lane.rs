//! What a lane costs, beside a plain TCP connection in the same run (budget: DESIGN section 15, 60 µs a hop over TCP).
//!
//! *Latency* is half of a round trip over two lanes, one each way: reserve, write, commit; the other end's waker unparks its
//! thread, which takes, copies the message into a slot of its own lane back, and releases. The plain figure is half of a
//! round trip of the same bytes through two blocking sockets. *Rate* sends 1 MiB messages one way as fast as credit allows.

#![allow(missing_docs, reason = "criterion's macros")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::Thread;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use mesh_channel::{ChannelConfig, TensorChannels};
use mesh_core::ids::{DeploymentId, NodeId, PlanHash};
use mesh_core::ports::{Channels, LaneReceiver, LaneSender, LaneShape, LaneState, Wake};
use mesh_core::wire::LaneId;

/// Both ends are one node.
const PEER: NodeId = NodeId([7; 32]);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(&self) {
        self.0.unpark();
    }
}

fn channels(in_process: bool) -> TensorChannels {
    TensorChannels::new(ChannelConfig { in_process, ..ChannelConfig::loopback() }).expect("loopback")
}

/// A lane whose sender wakes `near` and whose receiver wakes `far`.
fn lane(
    channels: &TensorChannels,
    boundary: u16,
    shape: LaneShape,
    near: &Thread,
    far: &Thread,
) -> (Box<dyn LaneSender>, Box<dyn LaneReceiver>) {
    let id = LaneId { deployment: DeploymentId(1), plan: PlanHash(1), boundary };
    let (offer, receiver) = channels.accept(id, PEER, shape, Arc::new(Unpark(far.clone()))).expect("accept");
    let sender = channels.connect(PEER, &offer, Arc::new(Unpark(near.clone()))).expect("connect");
    while sender.state() != LaneState::Ready {
        std::thread::yield_now();
    }
    (sender, receiver)
}

fn send(sender: &mut dyn LaneSender, bytes: usize, fill: impl Fn(&mut [u8])) -> bool {
    loop {
        if let Some(slot) = sender.reserve() {
            fill(&mut slot[..bytes]);
            return sender.commit(bytes).is_ok();
        }
        if matches!(sender.state(), LaneState::Down(_)) {
            return false;
        }
        std::thread::park_timeout(Duration::from_secs(1));
    }
}

/// Echoes until the lane in ends.
fn echo(mut input: Box<dyn LaneReceiver>, mut output: Box<dyn LaneSender>) {
    loop {
        if let Some(slot) = input.take() {
            let message = input.bytes(slot);
            if !send(&mut *output, message.len(), |place| place.copy_from_slice(message)) {
                return;
            }
            input.release(slot);
        } else if matches!(input.state(), LaneState::Down(_)) {
            return;
        } else {
            std::thread::park_timeout(Duration::from_secs(1));
        }
    }
}

fn lane_round_trips(channels: &TensorChannels, bytes: usize, rounds: u64) -> Duration {
    let shape = LaneShape { slot_bytes: u32::try_from(bytes).expect("small").max(4096), slots: 8 };
    let here = std::thread::current();
    let (ends, hand_over) = std::sync::mpsc::channel();
    let there = std::thread::spawn(move || {
        let (input, output) = hand_over.recv().expect("the lanes");
        echo(input, output);
    });
    let (mut out, input) = lane(channels, 0, shape, &here, there.thread());
    let (output, mut back) = lane(channels, 1, shape, there.thread(), &here);
    ends.send((input, output)).expect("it waits");
    let mut round = || {
        assert!(send(&mut *out, bytes, |place| place[0] = place[0].wrapping_add(1)));
        loop {
            if let Some(slot) = back.take() {
                std::hint::black_box(back.bytes(slot));
                back.release(slot);
                return;
            }
            std::thread::park_timeout(Duration::from_secs(1));
        }
    };
    (0..100).for_each(|_| round());
    let started = Instant::now();
    (0..rounds).for_each(|_| round());
    let took = started.elapsed();
    drop(out);
    there.join().expect("the echo ends");
    took / 2
}

fn plain_round_trips(bytes: usize, rounds: u64) -> Duration {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let mut near = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
    let (mut far, _) = listener.accept().expect("connected");
    near.set_nodelay(true).expect("a socket");
    far.set_nodelay(true).expect("a socket");
    let there = std::thread::spawn(move || {
        let mut message = vec![0; bytes];
        while far.read_exact(&mut message).is_ok() && far.write_all(&message).is_ok() {}
    });
    let mut message = vec![0; bytes];
    let mut round = || {
        near.write_all(&message).expect("up");
        near.read_exact(&mut message).expect("up");
    };
    (0..100).for_each(|_| round());
    let started = Instant::now();
    (0..rounds).for_each(|_| round());
    let took = started.elapsed();
    drop(near);
    there.join().expect("the echo ends");
    took / 2
}

fn lane_stream(channels: &TensorChannels, bytes: usize, messages: u64) -> Duration {
    let shape = LaneShape { slot_bytes: u32::try_from(bytes).expect("small"), slots: 8 };
    let here = std::thread::current();
    let (end, hand_over) = std::sync::mpsc::channel();
    let there = std::thread::spawn(move || {
        let mut output: Box<dyn LaneSender> = hand_over.recv().expect("the lane");
        (0..messages).for_each(|_| assert!(send(&mut *output, bytes, |place| place[0] = 1)));
    });
    let (output, mut input) = lane(channels, 2, shape, there.thread(), &here);
    let started = Instant::now();
    end.send(output).expect("it waits");
    let mut taken = 0;
    while taken < messages {
        match input.take() {
            Some(slot) => {
                std::hint::black_box(input.bytes(slot));
                input.release(slot);
                taken += 1;
            }
            None => std::thread::park_timeout(Duration::from_secs(1)),
        }
    }
    let took = started.elapsed();
    there.join().expect("it has sent all");
    took
}

fn plain_stream(bytes: usize, messages: u64) -> Duration {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let mut near = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
    let (mut far, _) = listener.accept().expect("connected");
    let there = std::thread::spawn(move || {
        let message = vec![1; bytes];
        (0..messages).for_each(|_| near.write_all(&message).expect("up"));
    });
    let mut message = vec![0; bytes];
    let started = Instant::now();
    (0..messages).for_each(|_| far.read_exact(&mut message).expect("up"));
    let took = started.elapsed();
    there.join().expect("it has sent all");
    took
}

fn latency(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("one way");
    for bytes in [4 << 10, 64 << 10] {
        let (memory, tcp) = (channels(true), channels(false));
        let name = |carrier| BenchmarkId::new(carrier, format!("{} KiB", bytes >> 10));
        group.bench_function(name("plain TCP echo"), |bench| bench.iter_custom(|rounds| plain_round_trips(bytes, rounds)));
        group.bench_function(name("TCP lane"), |bench| bench.iter_custom(|rounds| lane_round_trips(&tcp, bytes, rounds)));
        group.bench_function(name("in-process lane"), |bench| bench.iter_custom(|rounds| lane_round_trips(&memory, bytes, rounds)));
    }
    group.finish();
}

fn rate(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("rate");
    let bytes = 1 << 20;
    group.throughput(Throughput::Bytes(bytes as u64));
    let tcp = channels(false);
    group.bench_function("plain TCP, 1 MiB", |bench| bench.iter_custom(|messages| plain_stream(bytes, messages)));
    group.bench_function("TCP lane, 1 MiB", |bench| bench.iter_custom(|messages| lane_stream(&tcp, bytes, messages)));
    group.finish();
}

/// The cipher alone, to know what of the above is its share: sealing one message (opening costs the same).
fn cipher(criterion: &mut Criterion) {
    use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &[7; 32]).expect("32 bytes"));
    let mut group = criterion.benchmark_group("seal");
    for bytes in [4 << 10, 64 << 10, 1 << 20] {
        let mut message = vec![0; bytes];
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(format!("{} KiB", bytes >> 10), |bench| {
            bench.iter(|| key.seal_in_place_separate_tag(Nonce::assume_unique_for_key([0; 12]), Aad::empty(), &mut message));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    targets = latency, rate, cipher
}
criterion_main!(benches);
