use super::*;

const ALL: (i32, i32) = (i32::MIN, i32::MAX);

fn positions(len: usize) -> Vec<i32> {
    (0..).take(len).collect()
}

/// Deterministic numbers in [-1, 1), unrelated between seeds.
fn noise(seed: u64, len: usize) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

type Field = fn(&mut Case) -> &mut Vec<f64>;

struct Case {
    shape: Shape,
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    lo: Vec<i32>,
    hi: Vec<i32>,
    pos: Vec<i32>,
    scale: f64,
}

impl Case {
    fn random(shape: Shape) -> Self {
        Self {
            q: noise(1, shape.q_elements()),
            k: noise(2, shape.kv_elements()),
            v: noise(3, shape.kv_elements()),
            lo: vec![ALL.0; shape.q_len],
            hi: vec![ALL.1; shape.q_len],
            pos: positions(shape.kv_len),
            scale: 1.0 / (shape.head_dim as f64).sqrt(),
            shape,
        }
    }

    fn causal(mut self) -> Self {
        self.hi = positions(self.shape.q_len);
        self
    }

    fn problem(&self) -> Problem<'_, f64> {
        let Self { shape, q, k, v, lo, hi, pos, scale } = self;
        Problem { shape: *shape, q, k, v, lo, hi, key_pos: pos, scale: *scale }
    }
}

fn shape(batch: usize, q_len: usize, kv_len: usize, heads: usize, kv_heads: usize, head_dim: usize) -> Shape {
    Shape { batch, q_len, kv_len, heads, kv_heads, head_dim }
}

fn assert_close(actual: &[f64], expected: &[f64]) {
    assert_eq!(actual.len(), expected.len());
    for (index, (a, e)) in actual.iter().zip(expected).enumerate() {
        assert!((a - e).abs() <= 1e-12 * e.abs().max(1.0), "[{index}]: {a} against {e}");
    }
}

#[test]
fn two_keys_by_hand() {
    // Scores ln 1 and ln 3, so weights 1/4 and 3/4.
    let ln3 = 3f64.ln();
    let case = Case {
        shape: shape(1, 1, 2, 1, 1, 2),
        q: vec![1.0, 0.0],
        k: vec![0.0, 5.0, ln3, -7.0],
        v: vec![4.0, 0.0, 0.0, 8.0],
        lo: vec![ALL.0],
        hi: vec![ALL.1],
        pos: vec![0, 1],
        scale: 1.0,
    };
    let out = case.problem().forward().unwrap();
    assert_close(&out.o, &[1.0, 6.0]);
    assert_close(&out.lse, &[4f64.ln()]);
    // do = (1, 1): dP = (4, 8), delta = 7, dS = (1/4 * -3, 3/4 * 1) = (-3/4, 3/4).
    let grad = case.problem().backward(&[1.0, 1.0]).unwrap();
    assert_close(&grad.dq, &[0.75 * ln3, 0.75 * (-5.0 - 7.0)]);
    assert_close(&grad.dk, &[-0.75, 0.0, 0.75, 0.0]);
    assert_close(&grad.dv, &[0.25, 0.25, 0.75, 0.75]);
}

#[test]
fn sizes_of_terms_by_hand() {
    // One element a row: the means are the numbers themselves. Scores 0 and 1 of one query, q = do = 1, v = (2, 3).
    let case = Case {
        shape: shape(1, 1, 2, 1, 1, 1),
        q: vec![1.0],
        k: vec![0.0, 1.0],
        v: vec![2.0, 3.0],
        lo: vec![ALL.0],
        hi: vec![ALL.1],
        pos: vec![0, 1],
        scale: 1.0,
    };
    let (problem, row, d_o) = (case.problem(), Row { batch: 0, head: 0, token: 0 }, [1.0]);
    let sum = 1.0 + 1f64.exp();
    let (p0, p1, lse) = (1.0 / sum, 1f64.exp() / sum, sum.ln());
    let delta = 2.0 * p0 + 3.0 * p1;
    let (a0, a1) = (1.0 + lse * lse, 2.0 + lse * lse);
    let (o, of_lse) = problem.forward_terms(row);
    assert_close(&[o], &[(p0 * p0 * a0 * 4.0 + p1 * p1 * a1 * 9.0).sqrt()]);
    assert_close(&[of_lse], &[p1 * 2f64.sqrt()]);
    let g0 = p0 * (4.0 + delta * delta + a0 * (2.0 - delta).powi(2)).sqrt();
    let g1 = p1 * (9.0 + delta * delta + a1 * (3.0 - delta).powi(2)).sqrt();
    assert_close(&[problem.query_gradient_terms(&d_o, row)], &[g1]);
    let stats = QueryStats { lse: &[lse], delta: &[delta] };
    let of_key = |token| problem.key_gradient_terms(&d_o, stats, Row { token, ..row });
    assert_close(&[of_key(0).0, of_key(0).1], &[g0, p0 * a0.sqrt()]);
    assert_close(&[of_key(1).0, of_key(1).1], &[g1, p1 * a1.sqrt()]);
}

#[test]
fn flat_scores_average_the_attended_values() {
    let mut case = Case::random(shape(1, 4, 4, 1, 1, 2)).causal();
    case.q = vec![0.0; 8];
    case.v = vec![1.0, 10.0, 2.0, 20.0, 3.0, 30.0, 4.0, 40.0];
    let out = case.problem().forward().unwrap();
    assert_close(&out.o, &[1.0, 10.0, 1.5, 15.0, 2.0, 20.0, 2.5, 25.0]);
    assert_close(&out.lse, &[0.0, 2f64.ln(), 3f64.ln(), 4f64.ln()]);
}

#[test]
fn query_without_keys_is_zero_and_gives_no_gradient() {
    let mut case = Case::random(shape(1, 2, 3, 1, 1, 4));
    (case.lo[1], case.hi[1]) = (2, 1);
    let out = case.problem().forward().unwrap();
    assert_eq!(out.o[4..], [0.0; 4]);
    assert_eq!(out.lse[1], f64::NEG_INFINITY);
    let grad = case.problem().backward(&noise(4, 8)).unwrap();
    assert_eq!(grad.dq[4..], [0.0; 4]);
    assert!(grad.dk.iter().chain(&grad.dv).all(|x| x.is_finite()));
}

#[test]
fn scores_far_above_the_exponent_range_stay_finite() {
    let mut case = Case::random(shape(1, 2, 2, 1, 1, 1));
    (case.q, case.k, case.v) = (vec![1000.0, -1000.0], vec![1000.0, 999.0], vec![1.0, 2.0]);
    case.scale = 1.0;
    let out = case.problem().forward().unwrap();
    assert_close(&out.o, &[1.0, 2.0]);
    assert_close(&out.lse, &[1e6, -999_000.0]);
}

#[test]
fn mask_follows_positions_not_slots() {
    // The keys' slots are permuted; every query must see the same set as before.
    let plain = Case::random(shape(1, 5, 5, 1, 1, 3)).causal();
    let slots = [3usize, 0, 4, 2, 1];
    let mut permuted = Case::random(plain.shape).causal();
    for (slot, &key) in slots.iter().enumerate() {
        permuted.pos[slot] = plain.pos[key];
        permuted.k[slot * 3..][..3].copy_from_slice(&plain.k[key * 3..][..3]);
        permuted.v[slot * 3..][..3].copy_from_slice(&plain.v[key * 3..][..3]);
    }
    let (a, b) = (plain.problem().forward().unwrap(), permuted.problem().forward().unwrap());
    assert_close(&a.o, &b.o);
    assert_close(&a.lse, &b.lse);
}

#[test]
fn sliding_window_equals_attention_over_the_cut_keys() {
    let mut windowed = Case::random(shape(1, 1, 6, 1, 1, 2));
    (windowed.lo[0], windowed.hi[0]) = (2, 4);
    let mut cut = Case::random(shape(1, 1, 3, 1, 1, 2));
    (cut.k, cut.v) = (windowed.k[4..10].to_vec(), windowed.v[4..10].to_vec());
    cut.q.clone_from(&windowed.q);
    assert_close(&windowed.problem().forward().unwrap().o, &cut.problem().forward().unwrap().o);
}

#[test]
fn grouped_heads_equal_repeated_kv_heads_and_sum_their_gradients() {
    let grouped = Case::random(shape(2, 3, 4, 4, 2, 2));
    let mut repeated = Case::random(shape(2, 3, 4, 4, 4, 2));
    let repeat = |x: &[f64]| x.chunks(2).flat_map(|row| [row, row].concat()).collect::<Vec<_>>();
    (repeated.k, repeated.v) = (repeat(&grouped.k), repeat(&grouped.v));
    let d_o = noise(5, grouped.q.len());
    let (g, r) = (grouped.problem().forward().unwrap(), repeated.problem().forward().unwrap());
    assert_close(&g.o, &r.o);
    let (g, r) = (grouped.problem().backward(&d_o).unwrap(), repeated.problem().backward(&d_o).unwrap());
    assert_close(&g.dq, &r.dq);
    let summed: Vec<f64> = r.dk.chunks(4).flat_map(|pair| [pair[0] + pair[2], pair[1] + pair[3]]).collect();
    assert_close(&g.dk, &summed);
}

#[test]
fn gradients_equal_central_differences() {
    let mut case = Case::random(shape(2, 5, 6, 4, 2, 3)).causal();
    case.lo = vec![0, 0, 1, 2, 5];
    let d_o = noise(6, case.q.len());
    let grad = case.problem().backward(&d_o).unwrap();
    let loss = |case: &Case| {
        let out = case.problem().forward().unwrap();
        out.o.iter().zip(&d_o).map(|(o, g)| o * g).sum::<f64>()
    };
    let fields: [(Field, &[f64]); 3] =
        [(|c| &mut c.q, &grad.dq), (|c| &mut c.k, &grad.dk), (|c| &mut c.v, &grad.dv)];
    for (field, expected) in fields {
        for (index, &value) in expected.iter().enumerate() {
            let h = 1e-5;
            let x = field(&mut case)[index];
            field(&mut case)[index] = x + h;
            let above = loss(&case);
            field(&mut case)[index] = x - h;
            let below = loss(&case);
            field(&mut case)[index] = x;
            let slope = (above - below) / (2.0 * h);
            assert!((slope - value).abs() < 1e-8, "[{index}]: {value} against {slope}");
        }
    }
}

#[test]
fn single_rows_equal_the_whole() {
    let case = Case::random(shape(2, 40, 33, 4, 2, 8)).causal();
    let problem = case.problem();
    let d_o = noise(7, case.q.len());
    let (out, grad) = (problem.forward().unwrap(), problem.backward(&d_o).unwrap());
    let row = Row { batch: 1, head: 3, token: 17 };
    let start = ((40 + 17) * 4 + 3) * 8;
    assert_eq!(problem.forward_row(row), (out.o[start..start + 8].to_vec(), out.lse[(4 + 3) * 40 + 17]));
    assert_eq!(problem.query_gradient(&d_o, row), grad.dq[start..start + 8]);
    let mut delta = vec![0.0; out.lse.len()];
    for (index, total) in delta.iter_mut().enumerate() {
        let (batch, head, token) = (index / 160, index / 40 % 4, index % 40);
        let start = ((batch * 40 + token) * 4 + head) * 8;
        *total = (start..start + 8).map(|e| out.o[e] * d_o[e]).sum();
    }
    let stats = QueryStats { lse: &out.lse, delta: &delta };
    let (dk, dv) = problem.key_gradient(&d_o, stats, Row { batch: 1, head: 1, token: 5 });
    let start = ((33 + 5) * 2 + 1) * 8;
    assert_close(&dk, &grad.dk[start..start + 8]);
    assert_close(&dv, &grad.dv[start..start + 8]);
}

#[test]
fn f32_inputs_are_taken_as_they_are() {
    let case = Case::random(shape(1, 3, 3, 1, 1, 4));
    let narrow = |x: &[f64]| x.iter().map(|&x| x as f32).collect::<Vec<f32>>();
    let widen = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
    let (q, k, v) = (narrow(&case.q), narrow(&case.k), narrow(&case.v));
    let p = case.problem();
    let single = Problem {
        q: &q[..],
        k: &k[..],
        v: &v[..],
        shape: p.shape,
        lo: p.lo,
        hi: p.hi,
        key_pos: p.key_pos,
        scale: p.scale,
    };
    let (q, k, v) = (widen(&q), widen(&k), widen(&v));
    assert_eq!(single.forward().unwrap(), Problem { q: &q, k: &k, v: &v, ..p }.forward().unwrap());
}

#[test]
fn wrong_lengths_and_heads_are_named() {
    let case = Case::random(shape(1, 3, 3, 2, 1, 4));
    let mut problem = case.problem();
    problem.k = &problem.k[1..];
    assert_eq!(problem.forward().unwrap_err().to_string(), "`k` has 11 elements, the shape needs 12");
    let mut problem = case.problem();
    problem.shape.kv_heads = 3;
    assert_eq!(problem.forward(), Err(ReferenceError::Heads { heads: 2, kv_heads: 3 }));
    assert_eq!(
        case.problem().backward(&[]),
        Err(ReferenceError::Length { name: "d_o", expected: 24, actual: 0 })
    );
}

#[test]
fn relative_error_by_hand() {
    assert_eq!(relative_l2(&[3.0, 5.0], &[3.0, 4.0]), 0.2);
    assert_eq!(relative_l2(&[0.5], &[0.0]), 0.5);
    assert!(relative_l2(&[f64::NAN], &[1.0]).is_nan());
    assert!(relative_l2(&[1.0], &[1.0, 2.0]).is_nan());
}
