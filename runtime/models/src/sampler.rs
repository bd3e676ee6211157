//! How the next token is chosen: a pure function of logits, parameters, the ids so far, and (seed, position).
//!
//! Order: logit bias, repetition, presence and frequency penalties, then the likeliest token if the temperature is 0;
//! otherwise temperature, top-k, top-p, min-p, and a draw. There is no random state: the number drawn is ChaCha8 keyed by
//! the seed, at the position. So whichever node samples a position again draws the same token (P2).
//!
//! Ties go to the lower id. A NaN counts as less than anything, minus infinity included (N4). The exponential is our own;
//! sums are in f64: over all tokens in sixteen lanes by id and then lane 0 to 15, over a kept set in the order stated at
//! the place. Log-probabilities come from the logits as the model gave them.

mod order;

use std::borrow::Cow;

use mesh_core::generation::{Sampling, TokenLogprobs};
use mesh_core::ports::SampleHow;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::compute::Level;
use crate::math::exp_all;
use order::{Likeliest, likeliest, most};

/// Log-probabilities are not reported below this, so that they stay finite numbers in JSON.
pub const LOGPROB_MIN: f32 = -9999.0;

/// Chooses the token at `position` from `logits`, one for each token of the vocabulary. Nothing in the parameters can
/// make it fail: values out of range act like the nearest sensible one, ids outside the vocabulary are passed over.
#[must_use]
pub fn choose(logits: &[f32], how: &SampleHow<'_>, position: u32) -> (u32, Option<TokenLogprobs>) {
    let sampling = how.sampling;
    let adjusted = adjusted(logits, how);
    let token = match most(&adjusted) {
        // No number among the logits, or greedy. A temperature that is NaN or negative is greedy too.
        None => 0,
        Some(best) if sampling.temperature > 0.0 => draw(&adjusted, best, sampling, position),
        Some(best) => best,
    };
    (token, sampling.logprobs.map(|top| logprobs(logits, token, top)))
}

/// Log-probabilities of `token` and of the `top` likeliest, before anything was done to the logits.
fn logprobs(logits: &[f32], token: u32, top: u8) -> TokenLogprobs {
    let Some(best) = most(logits) else { return TokenLogprobs { chosen: LOGPROB_MIN, top: Vec::new() } };
    let max = logits[best as usize];
    let total = libm::log(sum(&weights(logits.to_vec(), max, 1.0)));
    let of = |id: u32| match logits.get(id as usize) {
        Some(&logit) if logit == max => -total as f32,
        Some(&logit) => LOGPROB_MIN.max((f64::from(logit) - f64::from(max) - total) as f32),
        None => LOGPROB_MIN,
    };
    let mut heads = likeliest(logits, usize::from(top));
    heads.truncate(usize::from(top));
    TokenLogprobs { chosen: of(token), top: heads.into_iter().map(|id| (id, of(id))).collect() }
}

/// The logits after bias and penalties; the given ones where there are none.
fn adjusted<'a>(logits: &'a [f32], how: &SampleHow<'_>) -> Cow<'a, [f32]> {
    let Sampling { repetition_penalty: repeat, presence_penalty: presence, frequency_penalty: frequency, logit_bias, .. } = how.sampling;
    let repeats = *repeat != 1.0 && *repeat > 0.0;
    let counts = *presence != 0.0 || *frequency != 0.0;
    if logit_bias.is_empty() && !repeats && !counts {
        return Cow::Borrowed(logits);
    }
    let mut logits = logits.to_vec();
    for &(id, bias) in logit_bias {
        if let Some(logit) = logits.get_mut(id as usize) {
            *logit += bias;
        }
    }
    if repeats {
        for id in distinct(how.ids, logits.len()) {
            let logit = &mut logits[id as usize];
            *logit = if *logit > 0.0 { *logit / repeat } else { *logit * repeat };
        }
    }
    if counts {
        let generated = how.ids.get(how.prompt_len as usize..).unwrap_or(&[]);
        let mut times = vec![0_u32; logits.len()];
        generated.iter().filter_map(|&id| times.get_mut(id as usize).map(|n| *n += 1)).for_each(drop);
        for id in distinct(generated, logits.len()) {
            logits[id as usize] -= presence + frequency * times[id as usize] as f32;
        }
    }
    Cow::Owned(logits)
}

/// Each id below `len` once, in order of first sight.
fn distinct(ids: &[u32], len: usize) -> Vec<u32> {
    let mut seen = vec![false; len];
    ids.iter().copied().filter(|&id| seen.get_mut(id as usize).is_some_and(|seen| !std::mem::replace(seen, true))).collect()
}

/// Draws a token. `best` is the likeliest.
fn draw(logits: &[f32], best: u32, how: &Sampling, position: u32) -> u32 {
    let max = logits[best as usize];
    let mut kept = candidates(logits, max, how);
    if how.min_p > 0.0 {
        // The likeliest has weight 1. It stays even if it is not likely enough for a min-p above 1.
        kept.retain(|&(id, weight)| weight >= how.min_p || id == best);
    }
    // Walked by id, whatever selected the set.
    kept.sort_unstable_by_key(|&(id, _)| id);
    let total: f64 = kept.iter().fold(0.0, |sum, &(_, weight)| sum + f64::from(weight));
    let target = uniform(how.seed, position) * total;
    let mut reached = 0.0;
    for &(id, weight) in &kept {
        reached += f64::from(weight);
        if reached > target {
            return id;
        }
    }
    // The target was rounded up to the total.
    kept.iter().rev().find(|(_, weight)| *weight > 0.0).map_or(best, |&(id, _)| id)
}

/// Ids and weights that temperature, top-k and top-p leave.
fn candidates(logits: &[f32], max: f32, how: &Sampling) -> Vec<(u32, f32)> {
    let top_k = how.top_k as usize;
    // Off for NaN.
    let nucleus = how.top_p < 1.0;
    if top_k > 0 && top_k < logits.len() {
        let ids = likeliest(logits, top_k);
        let weights = weights(ids.iter().map(|&id| logits[id as usize]).collect(), max, how.temperature);
        let total = weights.iter().fold(0.0, |sum, &weight| sum + f64::from(weight));
        let mut kept: Vec<(u32, f32)> = ids.into_iter().zip(weights).collect();
        if nucleus {
            let enough = prefix(kept.iter().map(|&(_, weight)| weight), f64::from(how.top_p) * total);
            kept.truncate(enough.unwrap_or(kept.len()));
        }
        return kept;
    }
    let all = weights(logits.to_vec(), max, how.temperature);
    if !nucleus {
        return all.into_iter().enumerate().map(|(id, weight)| (id as u32, weight)).collect();
    }
    let enough = f64::from(how.top_p) * sum(&all);
    let heads = Likeliest::new(logits).until(|ids| prefix(ids.iter().map(|&id| all[id as usize]), enough));
    heads.into_iter().map(|id| (id, all[id as usize])).collect()
}

/// How many of the weights, from the first on, reach `enough` together: at least one. `None` if all do not.
fn prefix(weights: impl Iterator<Item = f32>, enough: f64) -> Option<usize> {
    let mut reached = 0.0;
    for (index, weight) in weights.enumerate() {
        reached += f64::from(weight);
        if reached >= enough {
            return Some(index + 1);
        }
    }
    None
}

/// e^((logit - max) / temperature): 1 for the greatest, whatever the temperature and even if it is infinite; 0 for NaN.
fn weights(mut logits: Vec<f32>, max: f32, temperature: f32) -> Vec<f32> {
    for logit in &mut logits {
        let scaled = (*logit - max) / temperature;
        *logit = if *logit == max {
            0.0
        } else if scaled.is_nan() {
            f32::NEG_INFINITY
        } else {
            scaled
        };
    }
    exp_all(Level::Avx2, &mut logits);
    logits
}

/// Sum in sixteen lanes by index, then lane 0 to 15.
fn sum(weights: &[f32]) -> f64 {
    let mut lanes = [0.0_f64; 16];
    let (lines, tail) = weights.as_chunks::<16>();
    for line in lines {
        for (lane, &weight) in lanes.iter_mut().zip(line) {
            *lane += f64::from(weight);
        }
    }
    for (lane, &weight) in lanes.iter_mut().zip(tail) {
        *lane += f64::from(weight);
    }
    lanes.iter().fold(0.0, |sum, lane| sum + lane)
}

/// The random number of a position, in 0..1: the first 53 bits of the ChaCha8 stream `position` under the seed's key.
fn uniform(seed: u64, position: u32) -> f64 {
    let mut key = *b"\0\0\0\0\0\0\0\0mesh sampler, version 1.";
    key[..8].copy_from_slice(&seed.to_le_bytes());
    let mut random = ChaCha8Rng::from_seed(key);
    random.set_stream(u64::from(position));
    (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests;
