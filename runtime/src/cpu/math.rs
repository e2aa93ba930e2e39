//! Vector primitives that a compiler turns into SIMD without being allowed to reorder sums.

/// `sum_i a_i b_i`, in sixteen interleaved sums.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 16;
    let mut sums = [0.0f32; LANES];
    let (xs, ys) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f32 = xs.remainder().iter().zip(ys.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in xs.zip(ys) {
        for ((sum, x), y) in sums.iter_mut().zip(x).zip(y) {
            *sum += x * y;
        }
    }
    sums.iter().sum::<f32>() + rest
}

/// `sum += factor * x`.
pub(super) fn add_scaled(sum: &mut [f32], factor: f32, x: &[f32]) {
    for (total, x) in sum.iter_mut().zip(x) {
        *total += factor * x;
    }
}

/// `sum += sum_j factors_j * rows_j`, for rows of the length of `sum`, four rows in one pass over it.
pub(super) fn add_combination(sum: &mut [f32], factors: &[f32], rows: &[f32]) {
    let d = sum.len();
    let fours = factors.len() / 4 * 4;
    for (f, r) in factors[..fours].chunks_exact(4).zip(rows.chunks_exact(4 * d)) {
        let (a, rest) = r.split_at(d);
        let (b, rest) = rest.split_at(d);
        let (c, e) = rest.split_at(d);
        for ((((total, a), b), c), e) in sum.iter_mut().zip(a).zip(b).zip(c).zip(e) {
            *total += (f[0] * a + f[1] * b) + (f[2] * c + f[3] * e);
        }
    }
    for (&f, row) in factors[fours..].iter().zip(rows[fours * d..].chunks_exact(d)) {
        add_scaled(sum, f, row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_every_length_equal_the_definition() {
        for n in 0..70u16 {
            let a: Vec<f32> = (0..n).map(f32::from).collect();
            let expected: f32 = (0..n).map(|i| f32::from(i) * f32::from(i)).sum();
            assert_eq!(dot(&a, &a), expected, "length {n}");
        }
    }

    #[test]
    fn combinations_of_any_number_of_rows() {
        for n in 0..10u16 {
            let factors: Vec<f32> = (0..n).map(f32::from).collect();
            let rows: Vec<f32> = (0..n * 3).map(|i| f32::from(i % 3)).collect();
            let total: f32 = factors.iter().sum();
            let mut sum = [1.0; 3];
            add_combination(&mut sum, &factors, &rows);
            assert_eq!(sum, [1.0, 1.0 + total, 1.0 + 2.0 * total], "{n} rows");
        }
    }
}
