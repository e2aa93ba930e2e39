//! Normal random numbers, the same on every machine.

/// `len` numbers of mean 0 and variance 1 (Box-Muller over xorshift), unrelated between seeds.
pub fn normal(seed: u64, len: usize) -> Vec<f32> {
    let mut state = splitmix(seed);
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // In (0, 1]: its logarithm is finite.
        ((state >> 40) + 1) as f32 / (1u32 << 24) as f32
    };
    let mut numbers = Vec::with_capacity(len + 1);
    while numbers.len() < len {
        let (radius, angle) = ((-2.0 * uniform().ln()).sqrt(), std::f32::consts::TAU * uniform());
        numbers.extend([radius * angle.cos(), radius * angle.sin()]);
    }
    numbers.truncate(len);
    numbers
}

/// Spreads a small seed over 64 bits; never 0.
fn splitmix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_those_of_a_normal_distribution() {
        let x = normal(3, 200_000);
        let moment = |power: i32| x.iter().map(|&x| f64::from(x).powi(power)).sum::<f64>() / x.len() as f64;
        assert!(moment(1).abs() < 0.01 && (moment(2) - 1.0).abs() < 0.01 && (moment(4) - 3.0).abs() < 0.1);
        assert_ne!(normal(1, 8), normal(2, 8));
    }
}
