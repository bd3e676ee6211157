//! Products of one weight and 1, 4 or 128 positions: ours on one thread and on all, candle's `QMatMul` on the same numbers.
//!
//! `cargo bench -p mesh-models --bench linear [FILTER]`; a filter is part of a name such as `Q4_1/1536x576/m=1`. With one
//! position the rate is weight bytes, otherwise operations (two for each weight and position). The line after each group
//! compares the best times: `RAYON_NUM_THREADS=1` holds candle to one thread as well.

use std::cell::Cell;
use std::hint::black_box;
use std::time::{Duration, Instant};

use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{Device, Module, Tensor};
use criterion::{Bencher, Criterion, Throughput, criterion_group, criterion_main};
use mesh_models::compute::Compute;
use mesh_models::format::Format;
use mesh_models::linear::Linear;

const FORMATS: [(Format, GgmlDType); 5] = [
    (Format::Q4_1, GgmlDType::Q4_1),
    (Format::Q8_0, GgmlDType::Q8_0),
    (Format::Q4_K, GgmlDType::Q4K),
    (Format::Q6_K, GgmlDType::Q6K),
    (Format::BF16, GgmlDType::BF16),
];

/// Outputs and inputs: attention and feed-forward of a model 576 wide, feed-forward of one 1024 wide.
const SHAPES: [(usize, usize); 3] = [(576, 576), (1536, 576), (1024, 3072)];

fn products(c: &mut Criterion) {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let (one, all) = (Compute::cpu(1), Compute::cpu(threads));
    for (format, dtype) in FORMATS {
        for (rows, cols) in SHAPES.into_iter().filter(|(_, cols)| cols.is_multiple_of(format.block_len())) {
            let weight = Tensor::randn(0_f32, 1.0, (rows, cols), &Device::Cpu).expect("numbers");
            let table = QTensor::quantize(&weight, dtype).expect("a format of candle's");
            let bytes = table.data().expect("numbers in main memory").into_owned();
            let ours = Linear::from_file_bytes(&one, format, rows, cols, &bytes, None).expect("a weight");
            let theirs = QMatMul::from_qtensor(table).expect("a weight");
            for m in [1, 4, 128] {
                let x = Tensor::randn(0_f32, 1.0, (m, cols), &Device::Cpu).expect("numbers");
                let name = format!("{format}/{rows}x{cols}/m={m}");
                let mut group = c.benchmark_group(&name);
                group.sample_size(10).warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(500));
                group.throughput(if m == 1 {
                    Throughput::Bytes(bytes.len() as u64)
                } else {
                    Throughput::Elements(2 * (rows * cols * m) as u64)
                });
                let best = [const { Cell::new(f64::INFINITY) }; 3];
                group.bench_function("one thread", |b| timed(b, &best[0], || ours.forward(&one, &x)));
                group.bench_function("all threads", |b| timed(b, &best[1], || ours.forward(&all, &x)));
                group.bench_function("candle", |b| timed(b, &best[2], || theirs.forward(&x)));
                group.finish();
                tell(&name, bytes.len(), rows * cols * m, &best);
            }
        }
    }
}

/// Times a product, and remembers the shortest time of any.
fn timed(b: &mut Bencher<'_>, best: &Cell<f64>, product: impl Fn() -> candle_core::Result<Tensor>) {
    b.iter_custom(|count| {
        let begin = Instant::now();
        for _ in 0..count {
            let one = Instant::now();
            black_box(product().expect("a product"));
            best.set(best.get().min(one.elapsed().as_secs_f64()));
        }
        begin.elapsed()
    });
}

#[expect(clippy::print_stdout, reason = "a benchmark's result")]
fn tell(name: &str, bytes: usize, products: usize, best: &[Cell<f64>; 3]) {
    let [one, all, candle] = best.each_ref().map(Cell::get);
    if one.is_finite() && all.is_finite() && candle.is_finite() {
        println!(
            "{name}: best {:.1} us = {:.1} GB/s, {:.0} GFLOP/s on one thread; {:.2} and (all threads) {:.2} times as fast as candle",
            one * 1e6,
            bytes as f64 / one / 1e9,
            2.0 * products as f64 / one / 1e9,
            candle / one,
            candle / all
        );
    }
}

criterion_group!(benches, products);
criterion_main!(benches);
