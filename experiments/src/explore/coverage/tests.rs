use super::*;
use crate::runfile::{Entry, Value, run_args};
use crate::setup::Files;

fn setup(cp: &str, mask: &str) -> Setup {
    let entry = |key: &str, text: &str| Entry { key: key.into(), value: Value::Text(text.into()) };
    let args = run_args(&[entry("cp", cp), entry("mask", mask)]).unwrap().setup;
    Setup::resolve(&args, 1 << 17, Files::Refused).unwrap()
}

fn matrix(cp: &str, mask: &str, schedule: Schedule) -> Coverage {
    coverage(&setup(cp, mask), schedule, Pass::Forward).unwrap().unwrap()
}

#[test]
fn the_causal_triangle_is_covered_and_nothing_else() {
    for schedule in schedule::ALL {
        let m = matrix("4", "causal", schedule);
        assert_eq!(m.side, 32);
        for (i, (&rank, &step)) in m.rank.iter().zip(&m.step).enumerate() {
            let (q, kv) = (i as u64 / m.side, i as u64 % m.side);
            assert_eq!(rank >= 0, kv <= q, "{schedule} q {q} kv {kv}");
            assert_eq!(rank >= 0, step >= 0);
        }
    }
}

#[test]
fn owners_and_steps_are_those_of_the_papers() {
    let ring = matrix("4", "full", Schedule::Ring);
    let zigzag = matrix("4", "causal", Schedule::Zigzag);
    let striped = matrix("4", "causal", Schedule::Striped { block: 1 });
    for position in 0..32u64 {
        let chunk = position as u32 / 4;
        assert_eq!(ring.owner[position as usize], position as u32 / 8);
        assert_eq!(zigzag.owner[position as usize], chunk.min(7 - chunk));
        assert_eq!(striped.owner[position as usize], position as u32 % 4);
    }
    // In step t rank r has the keys of rank r - t.
    for (i, &step) in ring.step.iter().enumerate() {
        let (q, kv) = (i as i32 / 32 / 8, i as i32 % 32 / 8);
        assert_eq!(step, (q - kv).rem_euclid(4));
        assert_eq!(ring.rank[i], q);
    }
}

#[test]
fn windows_and_documents_shrink_in_proportion() {
    let window = matrix("4", "window:16Ki", Schedule::Ring);
    let last_row = &window.rank[31 * 32..];
    assert_eq!(last_row.iter().filter(|&&r| r >= 0).count(), 4, "16Ki of 128Ki are 4 of 32");
    assert_eq!(shrink_documents(&[30_000, 90_000, 11_072], 32), [7, 22, 3]);
    assert_eq!(shrink_documents(&[1, 1, 1_000_000], 8), [8]);
    assert_eq!(matrix("1", "causal", Schedule::Ring).side, 32);
    assert!(coverage(&setup("65", "causal"), Schedule::Ring, Pass::Forward).unwrap().is_none());
}

#[test]
fn stripes_shrink_in_proportion() {
    let shrunk = |block| shrink_stripes(Schedule::Striped { block }, 4096.0, 8);
    assert_eq!(shrunk(1), Schedule::Striped { block: 1 });
    assert_eq!(shrunk(8192), Schedule::Striped { block: 2 });
    assert_eq!(shrunk(1 << 30), Schedule::Striped { block: 8 });
    assert_eq!(shrink_stripes(Schedule::Zigzag, 4096.0, 8), Schedule::Zigzag);
}
