//! Vector primitives that a compiler turns into SIMD without being allowed to reorder sums.

/// Numbers that are worked on at once: the registers of a SIMD unit times the operations it keeps in flight.
const LANES: usize = 16;

/// `sum_i a_i b_i`, in sixteen interleaved sums.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
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

/// `sum += sum_j factors_j * rows_j`, for rows of the length of `sum`. The rows are summed up before they are added, so
/// that rounding grows with the number of calls and not with the number of rows.
pub(super) fn add_combination(sum: &mut [f32], factors: &[f32], rows: &[f32]) {
    let d = sum.len();
    for (i, chunk) in sum.chunks_mut(LANES).enumerate() {
        let (start, width) = (i * LANES, chunk.len());
        let mut partial = [0.0f32; LANES];
        for (&factor, row) in factors.iter().zip(rows.chunks_exact(d)) {
            match <&[f32; LANES]>::try_from(&row[start..start + width]) {
                Ok(row) => partial.iter_mut().zip(row).for_each(|(p, x)| *p += factor * x),
                Err(_) => add_scaled(&mut partial[..width], factor, &row[start..]),
            }
        }
        add_scaled(chunk, 1.0, &partial[..width]);
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
            let total: f32 = factors.iter().sum();
            for d in [1u16, 3, 16, 35] {
                let rows: Vec<f32> = (0..n * d).map(|i| f32::from(i % d)).collect();
                let expected: Vec<f32> = (0..d).map(|i| 1.0 + total * f32::from(i)).collect();
                let mut sum = vec![1.0; usize::from(d)];
                add_combination(&mut sum, &factors, &rows);
                assert_eq!(sum, expected, "{n} rows of {d}");
            }
        }
    }
}
