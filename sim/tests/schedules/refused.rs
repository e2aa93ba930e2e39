//! What cannot be planned is refused with what could be.

use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::{Grid, Options, Schedule, build, grids};

use crate::support::{causal, shape};

fn refusal(schedule: Schedule, heads: u32, kv_heads: u32, ranks: u32) -> String {
    let problem = causal(shape(heads, kv_heads), 96 * u64::from(ranks));
    build(schedule, &problem, ranks, &Options::new(Pass::Forward)).unwrap_err().to_string()
}

#[test]
fn forty_heads_over_sixteen_ranks_name_the_grids_that_can() {
    let text = refusal(Schedule::Ulysses, 40, 8, 16);
    assert!(text.ends_with("grids of 16 ranks that can: 1 x 16, 2 x 8, 4 x 4, 8 x 2"), "{text}");
}

#[test]
fn thirty_three_heads_do_not_divide_and_copies_are_counted() {
    for ranks in [8, 16] {
        assert!(refusal(Schedule::Ulysses, 33, 33, ranks).contains("33 query heads"));
    }
    assert_eq!(grids(&shape(32, 4), 8)[3], Grid { ulysses: 8, ring: 1, kv_copies: 2 });
    let text = refusal(Schedule::Ulysses, 24, 4, 16);
    assert!(text.ends_with("4 x 4, 8 x 2 (2 copies of each kv head)"), "{text}");
}

#[test]
fn windows_and_grids_that_do_not_fit_name_those_that_do() {
    let window = Schedule::DoubleRing { window: Some(5), rail: false };
    let text = refusal(window, 8, 8, 12);
    assert_eq!(text, "windows of 5 ranks do not divide 12 ranks; windows that do: 1, 2, 3, 4, 6, 12");
    let grid = |u, r| Schedule::Usp { grid: Some((u, r)), across: false };
    assert_eq!(refusal(grid(2, 4), 8, 8, 12), "a grid of 2 x 4 ranks is for 8, not for 12");
    assert!(refusal(grid(3, 4), 8, 8, 12).contains("1 x 12, 2 x 6, 4 x 3"));
}

#[test]
fn megatron_needs_a_head_a_rank() {
    assert_eq!(
        refusal(Schedule::MegatronSp, 8, 8, 16),
        "megatron-sp gives every rank a head; 8 heads serve at most 8 ranks, not 16"
    );
}
