//! Who sees whom: changing one token changes exactly the rows that the mask says, bit by bit, and no others.

use std::collections::BTreeSet;

use ringlab_runtime::inputs::Inputs;
use ringlab_sim::mask::Pattern;
use ringlab_sim::problem::{Pass, Problem, Shape};
use ringlab_sim::schedule::Schedule;

use crate::support::{SCHEDULES, allows, backward, forward, options, problem, shape};

const RANKS: u32 = 4;
const DOCUMENTS: [u64; 3] = [20, 29, 15];
/// A token inside the second document.
const TOKEN: usize = 31;

/// Whether `q` attends `k`, by definition.
fn attends(problem: &Problem, q: usize, k: usize) -> bool {
    let document = |x: usize| {
        let mut ends = problem.documents.iter().scan(0, |end, len| {
            *end += *len as usize;
            Some(*end)
        });
        ends.position(|end| x < end)
    };
    document(q) == document(k)
        && match problem.pattern {
            Pattern::Full => true,
            Pattern::Causal => k <= q,
            Pattern::Window(w) => k <= q && q - k < w as usize,
        }
}

/// One row of every token's tensors.
struct Rows {
    o: Vec<Vec<f32>>,
    dq: Vec<Vec<f32>>,
    dk: Vec<Vec<f32>>,
    dv: Vec<Vec<f32>>,
}

fn rows(tensor: &[f32], width: u32) -> Vec<Vec<f32>> {
    tensor.chunks_exact(width as usize).map(<[f32]>::to_vec).collect()
}

fn run(schedule: Schedule, problem: &Problem, inputs: &Inputs) -> Rows {
    let Shape { heads, kv_heads, head_dim: d, .. } = problem.shape;
    let options = options(Pass::Forward);
    let result = forward(schedule, problem, RANKS, &options, inputs);
    let o = rows(&result.o, heads * d);
    let g = backward(schedule, problem, RANKS, &options, &inputs.clone().with_forward(result));
    Rows { o, dq: rows(&g.dq, heads * d), dk: rows(&g.dk, kv_heads * d), dv: rows(&g.dv, kv_heads * d) }
}

fn changed(a: &[Vec<f32>], b: &[Vec<f32>]) -> BTreeSet<usize> {
    (0..a.len()).filter(|&i| a[i] != b[i]).collect()
}

fn check(schedule: Schedule, problem: &Problem) {
    let inputs = Inputs::random(3, problem).unwrap();
    let mut other = inputs.clone();
    let width = (problem.shape.kv_heads * problem.shape.head_dim) as usize;
    for x in &mut other.k[TOKEN * width..(TOKEN + 1) * width] {
        *x += 0.5;
    }
    for x in &mut other.v[TOKEN * width..(TOKEN + 1) * width] {
        *x += 0.5;
    }
    let (before, after) = (run(schedule, problem, &inputs), run(schedule, problem, &other));
    let n = problem.tokens() as usize;
    let seers: BTreeSet<usize> = (0..n).filter(|&q| attends(problem, q, TOKEN)).collect();
    let seen_together: BTreeSet<usize> =
        (0..n).filter(|&k| seers.iter().any(|&q| attends(problem, q, k))).collect();
    let context = format!("{schedule}, {}", problem.pattern);
    assert_eq!(changed(&before.o, &after.o), seers, "o: {context}");
    assert_eq!(changed(&before.dv, &after.dv), seen_together, "dv: {context}");
    assert_eq!(changed(&before.dk, &after.dk), seen_together, "dk: {context}");
    assert!(changed(&before.dq, &after.dq).is_subset(&seers), "dq: {context}");
    assert!(changed(&before.dq, &after.dq).len() + 1 >= seers.len(), "dq: {context}");
}

#[test]
fn a_token_reaches_just_the_rows_that_may_see_it() {
    for pattern in [Pattern::Causal, Pattern::Full, Pattern::Window(6)] {
        for schedule in SCHEDULES.into_iter().filter(|&s| allows(s, pattern)) {
            check(schedule, &problem(shape(2, 1, 8, 1), pattern, &DOCUMENTS));
        }
    }
}

#[test]
fn sequences_of_a_batch_do_not_meet() {
    let problem = problem(shape(2, 1, 8, 2), Pattern::Causal, &[64]);
    let inputs = Inputs::random(3, &problem).unwrap();
    let mut other = inputs.clone();
    let half = other.k.len() / 2;
    other.k[half..].iter_mut().for_each(|x| *x += 0.5);
    for schedule in SCHEDULES {
        let o = |inputs: &Inputs| forward(schedule, &problem, RANKS, &options(Pass::Forward), inputs).o;
        let (before, after) = (o(&inputs), o(&other));
        let half = before.len() / 2;
        assert_eq!(before[..half], after[..half], "{schedule}");
        assert_ne!(before[half..], after[half..], "{schedule}");
    }
}
