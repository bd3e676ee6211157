//! The likeliest of many tokens, without sorting them all. Order: greater logit, then lower id; NaN last (N4).

/// The likeliest token; `None` if no logit is a number.
pub(super) fn most(logits: &[f32]) -> Option<u32> {
    // Two passes: the first has no index to carry, so compilers vectorise it.
    let mut lanes = [f32::NEG_INFINITY; 16];
    let (lines, tail) = logits.as_chunks::<16>();
    for line in lines {
        for (lane, &logit) in lanes.iter_mut().zip(line) {
            *lane = if logit > *lane { logit } else { *lane };
        }
    }
    let max = lanes.iter().chain(tail).fold(f32::NEG_INFINITY, |max, &x| if x > max { x } else { max });
    logits.iter().position(|&logit| logit == max).map(|id| id as u32)
}

/// The `count` likeliest, likeliest first; fewer if there are fewer.
pub(super) fn likeliest(logits: &[f32], count: usize) -> Vec<u32> {
    first_keys(logits, count).into_iter().map(|key| key as u32).collect()
}

/// Ever more of the likeliest.
pub(super) struct Likeliest<'a> {
    logits: &'a [f32],
}

impl<'a> Likeliest<'a> {
    /// Of these.
    pub(super) fn new(logits: &'a [f32]) -> Self {
        Self { logits }
    }

    /// As many of the likeliest as `enough` says; it is shown some of them, likeliest first, and says `None` to see more.
    pub(super) fn until(self, enough: impl Fn(&[u32]) -> Option<usize>) -> Vec<u32> {
        let mut count = 128;
        loop {
            let mut ids = likeliest(self.logits, count);
            match enough(&ids) {
                Some(len) => {
                    ids.truncate(len);
                    return ids;
                }
                None if ids.len() == self.logits.len() => return ids,
                None => count *= 8,
            }
        }
    }
}

/// Sort key: lower is likelier, and the low half is the id.
fn key(logit: f32, id: usize) -> u64 {
    u64::from(!rank(logit)) << 32 | id as u64
}

/// Unsigned integers in the order of floats: NaN lowest, both zeros equal.
fn rank(x: f32) -> u32 {
    if x.is_nan() {
        return 0;
    }
    let bits = (x + 0.0).to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 0x8000_0000 }
}

/// The `count` lowest keys in order. A buffer of twice that many is cut in half whenever it is full; what is not below
/// the greatest key kept is passed over, which soon is nearly everything.
fn first_keys(logits: &[f32], count: usize) -> Vec<u64> {
    let count = count.min(logits.len());
    if count == 0 {
        return Vec::new();
    }
    let room = (count * 2).max(64);
    let mut keys = Vec::with_capacity(room);
    let mut bound = u64::MAX;
    for (id, &logit) in logits.iter().enumerate() {
        let key = key(logit, id);
        if key < bound {
            keys.push(key);
            if keys.len() == room {
                let (_, &mut last, _) = keys.select_nth_unstable(count - 1);
                bound = last;
                keys.truncate(count);
            }
        }
    }
    keys.sort_unstable();
    keys.truncate(count);
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn floats_rank_in_order() {
        let rising = [f32::NAN, f32::NEG_INFINITY, f32::MIN, -1.0, -1e-45, 0.0, 1e-45, 1.0, f32::MAX, f32::INFINITY];
        assert!(rising.windows(2).all(|two| rank(two[0]) < rank(two[1])));
        assert_eq!(rank(-0.0), rank(0.0));
        assert_eq!(rank(-f32::NAN), 0);
    }

    proptest! {
        #[test]
        fn likeliest_is_a_prefix_of_the_full_order(
            picks in proptest::collection::vec(0_usize..8, 1..600), count in 0_usize..700
        ) {
            let values = [f32::NAN, f32::NEG_INFINITY, -2.0, -0.0, 0.0, 1.5, 7.25, f32::INFINITY];
            let logits: Vec<f32> = picks.iter().map(|&i| values[i]).collect();
            let mut all: Vec<u32> = (0..logits.len() as u32).collect();
            // The plain meaning: NaN last, then descending, then by id.
            all.sort_by(|&a, &b| {
                let (x, y) = (logits[a as usize], logits[b as usize]);
                x.is_nan().cmp(&y.is_nan()).then(y.partial_cmp(&x).unwrap_or(std::cmp::Ordering::Equal)).then(a.cmp(&b))
            });
            prop_assert_eq!(likeliest(&logits, count), &all[..count.min(all.len())]);
            prop_assert_eq!(most(&logits), Some(all[0]).filter(|&id| !logits[id as usize].is_nan()));
            let third = all.len().div_ceil(3);
            let until = Likeliest::new(&logits).until(|ids| (ids.len() >= third).then_some(third));
            prop_assert_eq!(until, &all[..third]);
        }
    }
}
