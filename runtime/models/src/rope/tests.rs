//! Angles against f64, pairings against each other and against candle, and the bits against threads and batches.

use super::*;
use crate::compute::Level;

fn shape(dims: usize) -> RopeShape {
    RopeShape { dims, base: 10_000.0, scaling: Scaling::None, divisors: None, pairing: Pairing::Halves, context: 1000 }
}

fn cx(threads: usize) -> Compute {
    Compute::with_level(threads, Level::Portable)
}

fn ramp(rows: usize, heads: usize, dim: usize) -> Tensor {
    let values = (0..rows * heads * dim).map(|i| ((i * 37 % 101) as f32 - 50.0) / 25.0).collect();
    tensor(values, (rows, heads, dim)).unwrap()
}

fn numbers(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

#[test]
fn pairs_turn_by_position_times_frequency() {
    let rope = Rope::new(&shape(8)).unwrap();
    let x = ramp(3, 2, 10);
    let positions = [0, 7, 999];
    let got = numbers(&rope.apply(&cx(1), &x, &positions).unwrap());
    let x = numbers(&x);
    for (row, position) in positions.into_iter().enumerate() {
        for head in 0..2 {
            let at = (row * 2 + head) * 10;
            for pair in 0..4 {
                let angle = f64::from(position) * 10_000_f64.powf(-2.0 * pair as f64 / 8.0);
                let (a, b) = (f64::from(x[at + pair]), f64::from(x[at + pair + 4]));
                let want = [a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()];
                assert!((f64::from(got[at + pair]) - want[0]).abs() < 1e-6 && (f64::from(got[at + pair + 4]) - want[1]).abs() < 1e-6);
            }
            // The values behind the rotary dimensions pass through.
            assert_eq!(got[at + 8..at + 10], x[at + 8..at + 10]);
        }
    }
}

#[test]
fn interleaved_is_halves_in_another_order() {
    let halves = Rope::new(&shape(16)).unwrap();
    let interleaved = Rope::new(&RopeShape { pairing: Pairing::Interleaved, ..shape(16) }).unwrap();
    let x = ramp(4, 1, 16);
    let permute = |values: &[f32]| -> Vec<f32> {
        values.chunks(16).flat_map(|head| (0..16).map(|i| head[i / 2 + i % 2 * 8]).collect::<Vec<_>>()).collect()
    };
    let positions = [5, 6, 7, 300];
    let want = permute(&numbers(&halves.apply(&cx(1), &x, &positions).unwrap()));
    let permuted = tensor(permute(&numbers(&x)), (4, 1, 16)).unwrap();
    assert_eq!(numbers(&interleaved.apply(&cx(1), &permuted, &positions).unwrap()), want);
}

#[test]
fn scalings_change_the_right_frequencies() {
    let plain = Rope::new(&shape(64)).unwrap().frequencies;
    let linear = Rope::new(&RopeShape { scaling: Scaling::Linear { factor: 4.0 }, ..shape(64) }).unwrap().frequencies;
    assert!(plain.iter().zip(&linear).all(|(a, b)| a / 4.0 == *b));
    let divisors: Vec<f32> = (0..32).map(|i| 1.0 + i as f32).collect();
    let divided = Rope::new(&RopeShape { divisors: Some(divisors), ..shape(64) }).unwrap().frequencies;
    assert!(plain.iter().zip(&divided).enumerate().all(|(i, (a, b))| a / (1.0 + i as f64) == *b));
    // Llama 3.1 and 3.2: waves below 2048 positions stay, above 8192 are divided, and between they blend.
    let scaling = Scaling::Llama3 { factor: 32.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 8192.0 };
    let base = RopeShape { base: 500_000.0, ..shape(64) };
    let plain = Rope::new(&base).unwrap().frequencies;
    let scaled = Rope::new(&RopeShape { scaling, ..base }).unwrap().frequencies;
    let mut bands = [0; 3];
    for (a, b) in plain.iter().zip(&scaled) {
        let wave = 2.0 * std::f64::consts::PI / a;
        let band = if wave < 2048.0 {
            0
        } else if wave > 8192.0 {
            2
        } else {
            1
        };
        bands[band] += 1;
        match band {
            0 => assert_eq!(a, b),
            2 => assert_eq!(a / 32.0, *b),
            _ => assert!(*b < *a && *b > a / 32.0),
        }
    }
    // 500000^(-i/32) * 8192 / 2 pi: 15 pairs turn at least four times in 8192 positions, 17.5 at least once.
    assert_eq!(bands, [15, 3, 14]);
}

#[test]
fn candles_kernels_agree() {
    for pairing in [Pairing::Halves, Pairing::Interleaved] {
        for dims in [16, 24] {
            let rope = Rope::new(&RopeShape { pairing, ..shape(dims) }).unwrap();
            let x = ramp(5, 3, 24);
            let positions = [3, 4, 5, 0, 700];
            let ours = numbers(&rope.apply(&cx(1), &x, &positions).unwrap());
            let theirs = numbers(&rope.on_device(&x, &positions, &Device::Cpu).unwrap());
            assert!(ours.iter().zip(&theirs).all(|(a, b)| (a - b).abs() < 1e-6));
        }
    }
}

#[test]
fn neither_threads_nor_neighbours_show() {
    let rope = Rope::new(&shape(64)).unwrap();
    let x = ramp(200, 4, 64);
    let positions: Vec<u32> = (0..200).map(|i| i * 7 % 1000).collect();
    let one = numbers(&rope.apply(&cx(1), &x, &positions).unwrap());
    assert_eq!(numbers(&rope.apply(&cx(3), &x, &positions).unwrap()), one);
    let alone = rope.apply(&cx(1), &x.narrow(0, 111, 1).unwrap(), &positions[111..112]).unwrap();
    assert_eq!(numbers(&alone), one[111 * 256..112 * 256]);
}

#[test]
fn strange_shapes_are_errors() {
    assert_eq!(Rope::new(&shape(7)).unwrap_err(), RopeError::Dims(7));
    assert_eq!(Rope::new(&shape(0)).unwrap_err(), RopeError::Dims(0));
    let short = RopeShape { divisors: Some(vec![1.0; 3]), ..shape(8) };
    assert_eq!(Rope::new(&short).unwrap_err(), RopeError::Divisors { got: 3, want: 4 });
    for bad in [
        RopeShape { base: 0.0, ..shape(8) },
        RopeShape { base: f64::NAN, ..shape(8) },
        RopeShape { scaling: Scaling::Linear { factor: 0.0 }, ..shape(8) },
        RopeShape { divisors: Some(vec![0.0; 4]), ..shape(8) },
    ] {
        assert!(matches!(Rope::new(&bad), Err(RopeError::Frequency(_))), "{bad:?}");
    }
    let rope = Rope::new(&shape(8)).unwrap();
    assert!(rope.apply(&cx(1), &ramp(1, 1, 8), &[1000]).is_err());
    assert!(rope.apply(&cx(1), &ramp(2, 1, 8), &[1]).is_err());
    assert!(rope.apply(&cx(1), &ramp(1, 1, 6), &[1]).is_err());
}
