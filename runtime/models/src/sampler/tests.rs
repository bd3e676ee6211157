//! What each parameter does, what extreme ones do, and how draws are spread.

use super::*;

fn pick(logits: &[f32], sampling: &Sampling, position: u32) -> u32 {
    choose(logits, &SampleHow { sampling, ids: &[0], prompt_len: 1 }, position).0
}

fn warm() -> Sampling {
    Sampling { temperature: 1.0, seed: 7, ..Sampling::default() }
}

/// How often each token is drawn at 20000 positions.
fn shares(logits: &[f32], sampling: &Sampling) -> Vec<f64> {
    let mut counts = vec![0.0; logits.len()];
    for position in 0..20_000 {
        counts[pick(logits, sampling, position) as usize] += 1.0 / 20_000.0;
    }
    counts
}

fn close(got: &[f64], want: &[f64]) {
    // Five standard deviations of a share of 20000 draws are below 0.018.
    assert!(got.iter().zip(want).all(|(got, want)| (got - want).abs() < 0.018), "{got:?}, not {want:?}");
}

#[test]
fn greedy_takes_the_greatest_then_the_lowest_id() {
    let greedy = Sampling::default();
    assert_eq!(pick(&[1.0, 3.0, 3.0, 2.0], &greedy, 0), 1);
    assert_eq!(pick(&[f32::NAN, -0.0, 0.0, f32::NAN], &greedy, 0), 1);
    assert_eq!(pick(&[f32::NAN; 4], &greedy, 0), 0);
    assert_eq!(pick(&[f32::NAN, f32::NEG_INFINITY], &greedy, 0), 1);
    assert_eq!(pick(&[1.0, f32::INFINITY, f32::NAN], &greedy, 0), 1);
    assert_eq!(pick(&[], &greedy, 0), 0);
    assert_eq!(pick(&[1.0, 2.0], &Sampling { temperature: f32::NAN, ..warm() }, 0), 1);
    assert_eq!(pick(&[1.0, 2.0], &Sampling { temperature: -1.0, ..warm() }, 0), 1);
}

#[test]
fn draws_follow_the_probabilities() {
    let want = [0.5, 0.25, 0.125, 0.125];
    let logits = want.map(|p: f64| p.ln() as f32 + 3.0);
    close(&shares(&logits, &warm()), &want);
    // At temperature 2 each probability becomes its square root, normalised.
    let roots = want.map(f64::sqrt);
    let total: f64 = roots.iter().sum();
    close(&shares(&logits, &Sampling { temperature: 2.0, ..warm() }), &roots.map(|p| p / total));
    close(&shares(&logits, &Sampling { top_k: 2, ..warm() }), &[2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]);
    // 0.5 and 0.25 reach 0.7; of the tie behind them the lower id comes first.
    close(&shares(&logits, &Sampling { top_p: 0.7, ..warm() }), &[2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]);
    close(&shares(&logits, &Sampling { top_p: 0.8, ..warm() }), &[4.0 / 7.0, 2.0 / 7.0, 1.0 / 7.0, 0.0]);
    close(&shares(&logits, &Sampling { top_k: 3, top_p: 0.8, ..warm() }), &[2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]);
    close(&shares(&logits, &Sampling { min_p: 0.4, ..warm() }), &[2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]);
    close(&shares(&logits, &Sampling { min_p: 0.2, ..warm() }), &want);
}

#[test]
fn seed_and_position_alone_decide() {
    let logits: Vec<f32> = (0..100).map(|i| (i % 7) as f32 * 0.1).collect();
    let one: Vec<u32> = (0..200).map(|position| pick(&logits, &warm(), position)).collect();
    let back: Vec<u32> = (0..200).rev().map(|position| pick(&logits, &warm(), position)).collect();
    assert!(one.iter().eq(back.iter().rev()));
    let other: Vec<u32> = (0..200).map(|position| pick(&logits, &Sampling { seed: 8, ..warm() }, position)).collect();
    let agreeing = one.iter().zip(&other).filter(|(a, b)| a == b).count();
    assert!(agreeing < 20, "{agreeing} of 200 draws agree between two seeds");
}

/// Plans promise the same draws on every machine and release: these numbers may not change.
#[test]
fn the_random_numbers_are_fixed_for_ever() {
    let numbers = [(0, 0), (1, 0), (0, 1), (u64::MAX, u32::MAX)].map(|(seed, position)| (uniform(seed, position) * 1e9) as u64);
    assert_eq!(numbers, [800_231_552, 490_163_444, 11_074_553, 894_133_751]);
    let mean = (0..10_000).map(|position| uniform(3, position)).sum::<f64>() / 10_000.0;
    assert!((mean - 0.5).abs() < 0.015, "{mean}");
}

#[test]
fn extreme_parameters_are_harmless() {
    let logits = [1.0, 5.0, 4.9, -2.0];
    let only_best = [
        Sampling { top_p: 0.0, ..warm() },
        Sampling { top_p: -3.0, ..warm() },
        Sampling { top_k: 1, ..warm() },
        Sampling { min_p: 1.0, ..warm() },
        Sampling { min_p: 7.0, ..warm() },
        Sampling { temperature: 1e-6, ..warm() },
        Sampling { temperature: f32::MIN_POSITIVE, ..warm() },
        Sampling { temperature: 1e-45, top_p: 0.5, top_k: 3, ..warm() },
    ];
    for sampling in &only_best {
        assert!((0..50).all(|position| pick(&logits, sampling, position) == 1), "{sampling:?}");
    }
    let flat = shares(&[1.0, 5.0, 4.9, f32::NAN], &Sampling { temperature: f32::INFINITY, top_p: f32::NAN, min_p: f32::NAN, ..warm() });
    close(&flat, &[1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0, 0.0]);
    for sampling in [warm(), Sampling { top_p: 0.9, ..warm() }, Sampling { top_k: 3, ..warm() }] {
        assert_eq!(pick(&[f32::NEG_INFINITY, f32::NEG_INFINITY, -3e38, f32::NEG_INFINITY], &sampling, 1), 2);
        assert_eq!(pick(&[f32::NAN, f32::NAN, f32::NAN, -7.0], &sampling, 1), 3);
        assert_eq!(pick(&[3e38, f32::INFINITY, -3e38, 0.0], &sampling, 1), 1);
        assert_eq!(pick(&[f32::NAN; 5], &sampling, 1), 0);
        assert!(pick(&[f32::NEG_INFINITY; 5], &sampling, 1) < 5);
    }
}

#[test]
fn penalties_and_bias_move_logits() {
    let ids = [2, 2, 0, 1, 1, 99];
    let logits = [1.0, 2.0, -1.0, 0.5];
    let adjust = |sampling: Sampling| adjusted(&logits, &SampleHow { sampling: &sampling, ids: &ids, prompt_len: 3 }).into_owned();
    assert_eq!(adjust(Sampling { repetition_penalty: 2.0, ..warm() }), [0.5, 1.0, -2.0, 0.5]);
    assert_eq!(adjust(Sampling { presence_penalty: 0.5, ..warm() }), [1.0, 1.5, -1.0, 0.5]);
    assert_eq!(adjust(Sampling { frequency_penalty: 0.25, ..warm() }), [1.0, 1.5, -1.0, 0.5]);
    assert_eq!(adjust(Sampling { logit_bias: vec![(1, -100.0), (3, 2.0), (77, 5.0)], ..warm() }), [1.0, -98.0, -1.0, 2.5]);
    // Bias first, then the penalty divides what came of it.
    assert_eq!(adjust(Sampling { logit_bias: vec![(0, 3.0)], repetition_penalty: 2.0, ..warm() }), [2.0, 1.0, -2.0, 0.5]);
    assert_eq!(adjust(Sampling { repetition_penalty: 0.0, ..warm() }), logits);
    // A prompt length past the ids counts no generated ones.
    let how = Sampling { presence_penalty: 1.0, ..warm() };
    assert_eq!(*adjusted(&logits, &SampleHow { sampling: &how, ids: &ids, prompt_len: 9 }), logits);
    let banned = Sampling { logit_bias: vec![(1, f32::NEG_INFINITY)], ..Sampling::default() };
    assert_eq!(pick(&logits, &banned, 0), 0);
}

#[test]
fn logprobs_are_of_the_raw_logits_sorted() {
    let logits = [1.0, 3.0, 2.0, 3.0, f32::NEG_INFINITY];
    let sampling = Sampling { logprobs: Some(3), logit_bias: vec![(0, 100.0)], ..Sampling::default() };
    let (token, logprobs) = choose(&logits, &SampleHow { sampling: &sampling, ids: &[0], prompt_len: 1 }, 4);
    let logprobs = logprobs.unwrap();
    let total = (1_f64.exp() + 2_f64.exp() + 2.0 * 3_f64.exp()).ln();
    assert_eq!(token, 0);
    assert!((f64::from(logprobs.chosen) - (1.0 - total)).abs() < 1e-6);
    assert_eq!(logprobs.top.iter().map(|&(id, _)| id).collect::<Vec<_>>(), [1, 3, 2]);
    for &(id, logprob) in &logprobs.top {
        assert!((f64::from(logprob) - (f64::from(logits[id as usize]) - total)).abs() < 1e-6);
    }
    let all = Sampling { logprobs: Some(20), ..Sampling::default() };
    let (_, logprobs) = choose(&logits, &SampleHow { sampling: &all, ids: &[0], prompt_len: 1 }, 4);
    let logprobs = logprobs.unwrap();
    assert_eq!(logprobs.top.len(), 5);
    assert_eq!(logprobs.top[4], (4, LOGPROB_MIN));
    let none = Sampling { logprobs: Some(0), ..Sampling::default() };
    let one = [f32::NAN, f32::INFINITY, 0.0];
    let (token, logprobs) = choose(&one, &SampleHow { sampling: &none, ids: &[0], prompt_len: 1 }, 4);
    assert_eq!((token, logprobs), (1, Some(TokenLogprobs { chosen: 0.0, top: vec![] })));
}

/// Big vocabularies walk the growing and cutting paths; compare with a full sort.
#[test]
fn a_large_vocabulary_keeps_the_right_set() {
    let logits: Vec<f32> = (0..50_000_u64).map(|i| ((i * 2_654_435_761 % 1_000_003) as f32 / 1_000_003.0) * 12.0 - 6.0).collect();
    let best = most(&logits).unwrap();
    let mut order: Vec<u32> = (0..50_000).collect();
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
    let exps: Vec<f64> = order.iter().map(|&id| f64::from(logits[id as usize] - logits[best as usize]).exp()).collect();
    let total: f64 = exps.iter().sum();
    for top_p in [0.001, 0.3, 0.9, 0.99] {
        let kept = candidates(&logits, logits[best as usize], &Sampling { top_p, ..warm() });
        let mut reached = 0.0;
        let missing = |e: &&f64| {
            reached += **e;
            reached < f64::from(top_p) * total
        };
        let want = exps.iter().take_while(missing).count() + 1;
        assert!(kept.len().abs_diff(want) <= 1, "{} kept, not {want}", kept.len());
        assert!(kept.iter().map(|&(id, _)| id).eq(order[..kept.len()].iter().copied()));
    }
}
