//! Every level against a scalar reading of the file, in bits; that reading against candle and against 64-bit arithmetic.

mod reference;

use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::{Device, Tensor};
use half::f16;
use proptest::prelude::*;

use super::Weight;
use crate::compute::{Compute, Level};
use crate::format::Format;

/// SplitMix64: a stream of words from a seed.
struct Draws(u64);

impl Draws {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// In -1..1.
    fn unit(&mut self) -> f32 {
        (self.word() >> 40) as f32 / 8_388_608.0 - 1.0
    }
}

/// What the numbers of a test are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Random,
    AllMax,
    AllMin,
    Alternating,
    Zeros,
    /// Scales at the ends of what a half and a single can hold.
    Extreme,
}

const KINDS: [Kind; 6] = [Kind::Random, Kind::AllMax, Kind::AllMin, Kind::Alternating, Kind::Zeros, Kind::Extreme];

/// A matrix in file layout.
fn weight_bytes(format: Format, rows: usize, cols: usize, kind: Kind, draws: &mut Draws) -> Vec<u8> {
    let length = format.bytes_of(rows, cols).expect("a shape of this format") as usize;
    let mut bytes: Vec<u8> = (0..length)
        .map(|i| match kind {
            Kind::AllMax => 0xff,
            // The one byte of Q8_0 whose magnitude is no i8.
            Kind::AllMin if format == Format::Q8_0 => 0x80,
            Kind::AllMin | Kind::Zeros => 0,
            Kind::Alternating => [0xf0, 0x0f][i % 2],
            Kind::Random | Kind::Extreme => draws.word() as u8,
        })
        .collect();
    let real = |draws: &mut Draws| match kind {
        Kind::Random => draws.unit() * 0.05,
        Kind::Zeros => 0.0,
        Kind::AllMin => -2.0,
        Kind::Extreme => [65504.0, -65504.0, 6e-8, 1e-6, 0.0, 1.0][draws.word() as usize % 6],
        Kind::AllMax | Kind::Alternating => 3.0,
    };
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        let mut half = |at: usize| block[at..at + 2].copy_from_slice(&f16::from_f32(real(draws)).to_le_bytes());
        match format {
            Format::F32 => block.copy_from_slice(&real(draws).to_le_bytes()),
            Format::F16 => half(0),
            Format::BF16 => block.copy_from_slice(&half::bf16::from_f32(real(draws)).to_le_bytes()),
            Format::Q6_K => half(208),
            Format::Q4_0 | Format::Q5_0 | Format::Q8_0 => half(0),
            Format::Q4_1 | Format::Q5_1 | Format::Q4_K | Format::Q5_K => {
                half(0);
                half(2);
            }
        }
    }
    bytes
}

fn activations(count: usize, kind: Kind, draws: &mut Draws) -> Vec<f32> {
    (0..count)
        .map(|i| match kind {
            Kind::Random => draws.unit() * 4.0,
            Kind::AllMax => 127.0,
            Kind::AllMin => -127.0,
            Kind::Alternating => [127.0, -127.0][i % 2],
            Kind::Zeros => [0.0, -0.0][i % 2],
            Kind::Extreme => draws.unit() * [1e30, 1e-30, 1e-41, 1.0, 1e-38][draws.word() as usize % 5],
        })
        .collect()
}

/// Bits, with one NaN for all.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() }).collect()
}

fn product(cx: &Compute, weight: &Weight, x: &[f32], columns: usize, bias: Option<&[f32]>) -> Vec<f32> {
    let mut out = vec![0.0; columns * weight.rows()];
    weight.multiply(cx, x, columns, bias, &mut out);
    out
}

/// The product of all columns at once, on each level and on several threads, against the file column by column.
fn check(format: Format, rows: usize, cols: usize, columns: usize, kinds: (Kind, Kind), seed: u64) {
    let mut draws = Draws(seed);
    let bytes = weight_bytes(format, rows, cols, kinds.0, &mut draws);
    let x = activations(columns * cols, kinds.1, &mut draws);
    let expected: Vec<f32> = x.chunks_exact(cols).flat_map(|x| reference::product(format, rows, cols, &bytes, x)).collect();
    for level in Level::usable() {
        for threads in [1, 3] {
            let cx = Compute::with_level(threads, level);
            let weight = Weight::new(&cx, format, rows, cols, &bytes).expect("a weight");
            let all = product(&cx, &weight, &x, columns, None);
            assert_eq!(bits(&all), bits(&expected), "{format} {rows}x{cols}, {columns} columns, {kinds:?}, {level:?}, {threads} threads");
            let last = product(&cx, &weight, &x[(columns - 1) * cols..], 1, None);
            assert_eq!(bits(&last), bits(&expected[(columns - 1) * rows..]), "{format} {rows}x{cols} alone, {kinds:?}, {level:?}");
        }
    }
}

#[test]
fn levels_columns_and_threads_agree_with_the_file_at_the_extremes() {
    for format in Format::ALL {
        let cols = if format.is_float() { 77 } else { 2 * format.block_len().max(160) };
        for weights in KINDS {
            for x in KINDS {
                check(format, 37, cols, 3, (weights, x), 5);
            }
        }
    }
}

#[test]
fn a_matrix_of_many_tiles_and_columns_is_the_same_on_every_path() {
    for format in Format::ALL {
        let cols = if format.is_float() { 545 } else { 512 };
        check(format, 147, cols, 131, (Kind::Random, Kind::Random), 6);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn any_shape_agrees_with_the_file(
        format in proptest::sample::select(Format::ALL.to_vec()),
        rows in 1..40_usize,
        blocks in 1..12_usize,
        more in 0..32_usize,
        columns in 1..20_usize,
        kinds in (proptest::sample::select(KINDS.to_vec()), proptest::sample::select(KINDS.to_vec())),
        seed in any::<u64>(),
    ) {
        let cols = if format.is_float() { 32 * blocks + more } else { format.block_len() * if format.block_len() == 256 { 1 + blocks / 4 } else { blocks } };
        check(format, rows, cols, columns, kinds, seed);
    }
}

#[test]
fn a_number_that_is_not_finite_shows_in_its_column_only() {
    for format in [Format::Q4_1, Format::Q8_0, Format::Q4_K, Format::Q6_K, Format::F32] {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN] {
            let mut draws = Draws(7);
            let bytes = weight_bytes(format, 16, 512, Kind::Random, &mut draws);
            let mut x = activations(3 * 512, Kind::Random, &mut draws);
            x[512 + 300] = bad;
            for level in Level::usable() {
                let cx = Compute::with_level(1, level);
                let weight = Weight::new(&cx, format, 16, 512, &bytes).expect("a weight");
                let out = product(&cx, &weight, &x, 3, None);
                assert!(out[..16].iter().chain(&out[32..]).all(|v| v.is_finite()), "{format} {level:?}");
                assert!(out[16..32].iter().all(|v| !v.is_finite()), "{format} {level:?}: {bad}");
            }
        }
    }
}

#[test]
fn rows_come_out_as_candle_reads_them() {
    let cx = Compute::cpu(2);
    for format in Format::ALL {
        for kind in [Kind::Random, Kind::AllMax, Kind::AllMin, Kind::Alternating] {
            let (rows, cols) = (21, 512);
            let bytes = weight_bytes(format, rows, cols, kind, &mut Draws(8));
            let weight = Weight::new(&cx, format, rows, cols, &bytes).expect("a weight");
            let theirs = candle(format, rows, cols, &bytes).dequantize(&Device::Cpu).expect("candle's numbers");
            let theirs: Vec<Vec<f32>> = theirs.to_vec2().expect("two dimensions");
            let mut ours = vec![0.0; cols];
            for (r, theirs) in theirs.iter().enumerate() {
                weight.row(r, &mut ours);
                assert_eq!(bits(&ours), bits(theirs), "{format} row {r}, {kind:?}");
            }
        }
    }
}

/// The largest error that quantising activations can cause, and a little for rounding: no guess.
#[test]
fn products_are_as_close_to_exact_arithmetic_as_their_activations() {
    let cx = Compute::cpu(1);
    for format in Format::ALL {
        let (rows, cols) = (19, 1024);
        let mut draws = Draws(9);
        let bytes = weight_bytes(format, rows, cols, Kind::Random, &mut draws);
        let x = activations(cols, Kind::Random, &mut draws);
        let weight = Weight::new(&cx, format, rows, cols, &bytes).expect("a weight");
        let out = product(&cx, &weight, &x, 1, None);
        let mut row = vec![0.0; cols];
        for (r, out) in out.iter().enumerate() {
            weight.row(r, &mut row);
            let exact: f64 = row.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
            let sizes: f64 = row.iter().zip(&x).map(|(w, x)| (f64::from(*w) * f64::from(*x)).abs()).sum();
            let mut bound = 1e-5 * sizes;
            if !format.is_float() {
                for (w, x) in row.chunks(format.block_len()).zip(x.chunks(format.block_len())) {
                    let largest = x.iter().fold(0.0_f32, |a, x| a.max(x.abs()));
                    bound += w.iter().map(|w| f64::from(w.abs())).sum::<f64>() * f64::from(largest) / 254.0 * 1.0001;
                }
            }
            assert!((f64::from(*out) - exact).abs() <= bound, "{format} row {r}: {out} for {exact}, bound {bound}");
        }
    }
}

#[test]
fn a_bias_is_added_last() {
    for level in Level::usable() {
        let cx = Compute::with_level(2, level);
        let mut draws = Draws(10);
        let bytes = weight_bytes(Format::Q8_0, 35, 64, Kind::Random, &mut draws);
        let x = activations(2 * 64, Kind::Random, &mut draws);
        let bias = activations(35, Kind::Random, &mut draws);
        let weight = Weight::new(&cx, Format::Q8_0, 35, 64, &bytes).expect("a weight");
        let plain = product(&cx, &weight, &x, 2, None);
        let sums: Vec<f32> = plain.chunks_exact(35).flat_map(|out| out.iter().zip(&bias).map(|(o, b)| o + b)).collect();
        assert_eq!(bits(&product(&cx, &weight, &x, 2, Some(&bias))), bits(&sums));
    }
}

fn candle(format: Format, rows: usize, cols: usize, bytes: &[u8]) -> QTensor {
    let dtype = match format {
        Format::F32 => GgmlDType::F32,
        Format::F16 => GgmlDType::F16,
        Format::BF16 => GgmlDType::BF16,
        Format::Q4_0 => GgmlDType::Q4_0,
        Format::Q4_1 => GgmlDType::Q4_1,
        Format::Q5_0 => GgmlDType::Q5_0,
        Format::Q5_1 => GgmlDType::Q5_1,
        Format::Q8_0 => GgmlDType::Q8_0,
        Format::Q4_K => GgmlDType::Q4K,
        Format::Q5_K => GgmlDType::Q5K,
        Format::Q6_K => GgmlDType::Q6K,
    };
    let storage = QStorage::from_data(bytes.into(), &Device::Cpu, dtype).expect("candle's storage");
    QTensor::new(storage, (rows, cols)).expect("candle's tensor")
}

#[test]
fn a_linear_checks_what_it_is_given() {
    use crate::linear::Linear;
    use mesh_core::ports::ModelError;
    let cx = Compute::cpu(2);
    let mut draws = Draws(11);
    let bytes = weight_bytes(Format::Q4_1, 40, 96, Kind::Random, &mut draws);
    let linear = |cols, bytes: &[u8], bias| Linear::from_file_bytes(&cx, Format::Q4_1, 40, cols, bytes, bias);
    assert!(matches!(linear(95, &bytes, None), Err(ModelError::Unsupported(_))));
    assert!(matches!(linear(96, &bytes[1..], None), Err(ModelError::Damaged(_))));
    assert!(matches!(linear(96, &bytes, Some(vec![0.0; 39])), Err(ModelError::Damaged(_))));
    let good = linear(96, &bytes, Some(vec![0.5; 40])).expect("a weight");
    assert_eq!((good.rows(), good.cols(), good.bytes()), (40, 96, 48 * 3 * 20 + 160));
    let x = Tensor::from_vec(activations(2 * 96, Kind::Random, &mut draws), (2, 96), &Device::Cpu).expect("a tensor");
    assert_eq!(good.forward(&cx, &x).expect("a product").dims(), [2, 40]);
    assert!(good.forward(&cx, &x.reshape((4, 48)).expect("another shape")).is_err());
    assert!(good.lookup(&cx, &[3, 40]).is_err());
    let ids: Vec<u32> = (0..40).rev().collect();
    let rows: Vec<Vec<f32>> = good.lookup(&cx, &ids).expect("rows").to_vec2().expect("two dimensions");
    let theirs: Vec<Vec<f32>> =
        candle(Format::Q4_1, 40, 96, &bytes).dequantize(&Device::Cpu).expect("candle's numbers").to_vec2().expect("two dimensions");
    for (row, &id) in rows.iter().zip(&ids) {
        assert_eq!(bits(row), bits(&theirs[id as usize]));
    }
}
