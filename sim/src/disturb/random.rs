//! Random numbers as a function of what they are for.

/// A place in the tree of draws. Equal paths from equal seeds give equal numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key(u64);

/// SplitMix64's finaliser (Steele, Lea and Flood, OOPSLA 2014).
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Key {
    pub fn new(seed: u64) -> Self {
        Self(mix(seed.wrapping_add(GOLDEN)))
    }

    /// The branch `part` of this place.
    pub fn with(self, part: u64) -> Self {
        Self(mix(self.0 ^ mix(part.wrapping_add(GOLDEN))))
    }

    /// Uniform below `count`, but for a bias of `count / 2^64`.
    pub fn below(self, count: u64) -> u64 {
        ((u128::from(mix(self.0)) * u128::from(count)) >> 64) as u64
    }

    /// Uniform in (0, 1).
    fn uniform(self) -> f64 {
        ((mix(self.0) >> 12) as f64 + 0.5) / (1_u64 << 52) as f64
    }

    /// Normal with mean 0 and deviation 1 (Box and Muller).
    pub fn normal(self) -> f64 {
        let (radius, angle) = (self.with(0).uniform(), self.with(1).uniform());
        libm::sqrt(-2.0 * libm::log(radius)) * libm::cos(std::f64::consts::TAU * angle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u64 = 200_000;

    #[test]
    fn normals_have_the_moments_and_tails_of_a_normal() {
        let key = Key::new(7);
        let draws: Vec<f64> = (0..DRAWS).map(|i| key.with(i).normal()).collect();
        let moment = |k: i32| draws.iter().map(|z| z.powi(k)).sum::<f64>() / DRAWS as f64;
        // Five standard errors of the mean of z^k.
        for (k, expected, error) in
            [(1, 0.0, 1.0), (2, 1.0, 2f64.sqrt()), (3, 0.0, 15f64.sqrt()), (4, 3.0, 96f64.sqrt())]
        {
            let off = (moment(k) - expected).abs();
            assert!(off < 5.0 * error / (DRAWS as f64).sqrt(), "moment {k} off by {off}");
        }
        let above = draws.iter().filter(|z| **z > 1.959_964).count() as f64 / DRAWS as f64;
        assert!((above - 0.025).abs() < 5.0 * (0.025 * 0.975 / DRAWS as f64).sqrt(), "{above}");
    }

    #[test]
    fn choices_are_even_and_branches_independent() {
        let key = Key::new(3);
        let mut counts = [0_u32; 7];
        (0..70_000).for_each(|i| counts[key.with(i).below(7) as usize] += 1);
        assert!(counts.iter().all(|c| c.abs_diff(10_000) < 500), "{counts:?}");
        let products = (0..DRAWS).map(|i| key.with(i).normal() * key.with(i + 1).normal());
        assert!((products.sum::<f64>() / DRAWS as f64).abs() < 5.0 / (DRAWS as f64).sqrt());
        assert_ne!(key.with(1).with(2), key.with(2).with(1));
    }
}
