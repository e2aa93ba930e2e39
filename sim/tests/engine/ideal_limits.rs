//! Where links and launches cost nothing and a pair takes a picosecond, makespans are the papers' unit counts.

use ringlab_sim::engine::{Discard, Machine, SimOptions, simulate, simulate_with};
use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::{Options, Route, Schedule};
use ringlab_sim::units::{FlopsPerSec, SimTime};

use crate::support;

const CHUNK: u64 = 12;
const HEADS: u32 = 3;

/// Runs the schedule on `ranks` ranks in all its transfer variants, and expects the same makespan of each.
fn expect_makespan(schedule: Schedule, ranks: u32, pairs: u64) {
    let problem = support::causal(CHUNK * u64::from(ranks), support::shape(HEADS, support::HEAD_DIM));
    for pass in [Pass::Forward, Pass::Backward] {
        for route in [Route::Neighbour, Route::Direct] {
            for (chunks, prefetch, needed_only) in [(1, 1, false), (1, 0, false), (3, 2, false), (1, 1, true)]
            {
                let options = Options { route, chunks, prefetch, needed_only, ..Options::new(pass) };
                let plan = support::build(schedule, &problem, ranks, &options);
                let mut machine =
                    Machine::new(&support::ideal(ranks), ranks, &SimOptions::default()).unwrap();
                let makespan = simulate_with(&plan, &mut machine, &mut Discard).unwrap();
                assert_eq!(
                    makespan,
                    SimTime(pairs * u64::from(HEADS)),
                    "{schedule} {pass} on {ranks} ranks, {route:?}, {chunks} chunks, prefetch {prefetch}, needed only {needed_only}"
                );
            }
        }
    }
}

/// (P-1) full blocks and the diagonal on the last rank.
#[test]
fn ring() {
    let c = CHUNK;
    for ranks in 1..=16 {
        expect_makespan(Schedule::Ring, ranks, (u64::from(ranks) - 1) * c * c + c * (c + 1) / 2);
    }
}

/// Two triangles and a square of half-chunks at step 0, then half a block at each step.
#[test]
fn zigzag() {
    let (c, m) = (CHUNK, CHUNK / 2);
    for ranks in 1..=16 {
        let own = m * (m + 1) + m * m;
        expect_makespan(Schedule::Zigzag, ranks, own + (u64::from(ranks) - 1) * c * c / 2);
    }
}

/// The last rank attends with the diagonal at every step.
#[test]
fn striped() {
    let c = CHUNK;
    for ranks in 1..=16 {
        expect_makespan(Schedule::Striped { block: 1 }, ranks, u64::from(ranks) * c * (c + 1) / 2);
    }
}

/// floor(P/2) full blocks after the diagonal, for even and for odd P.
#[test]
fn dist_flash() {
    let c = CHUNK;
    for ranks in 1..=16 {
        expect_makespan(Schedule::DistFlash, ranks, u64::from(ranks / 2) * c * c + c * (c + 1) / 2);
    }
}

/// Of every rank, the durations of its attention calls in order.
fn calls(schedule: Schedule, ranks: u32, pass: Pass) -> Vec<Vec<u64>> {
    let problem = support::causal(CHUNK * u64::from(ranks), support::shape(1, support::HEAD_DIM));
    let plan = support::build(schedule, &problem, ranks, &Options::new(pass));
    let timeline = simulate(&plan, &support::ideal(ranks), &SimOptions::default()).unwrap();
    let of = |rank| {
        let mine = timeline.spans.iter().filter(move |s| s.rank == rank && s.flops > 0.0);
        mine.map(|s| s.duration().0).collect()
    };
    (0..ranks).map(of).collect()
}

#[test]
fn zigzag_ranks_are_equal_at_every_step() {
    for (ranks, pass) in [(2, Pass::Forward), (7, Pass::Forward), (8, Pass::Backward)] {
        let calls = calls(Schedule::Zigzag, ranks, pass);
        assert!(calls.iter().all(|rank| *rank == calls[0]), "{calls:?}");
        assert_eq!(calls[0].len(), ranks as usize);
    }
}

#[test]
fn striped_steps_have_the_diagonal_or_not() {
    let c = CHUNK;
    for pass in [Pass::Forward, Pass::Backward] {
        for (r, steps) in calls(Schedule::Striped { block: 1 }, 5, pass).into_iter().enumerate() {
            let expected: Vec<u64> =
                (0..5).map(|t| if t <= r { c * (c + 1) / 2 } else { c * (c - 1) / 2 }).collect();
            assert_eq!(steps, expected, "rank {r}");
        }
    }
}

#[test]
fn dist_flash_ranks_share_the_work_as_published() {
    let (full, diagonal) = (CHUNK * CHUNK, CHUNK * (CHUNK + 1) / 2);
    for ranks in [4_u32, 5, 8, 9] {
        let half = ranks as usize / 2;
        for (r, steps) in calls(Schedule::DistFlash, ranks, Pass::Forward).into_iter().enumerate() {
            let idles = ranks.is_multiple_of(2) && r < half;
            let mut expected = vec![full; half + 1 - usize::from(idles)];
            expected[0] = diagonal;
            assert_eq!(steps, expected, "rank {r} of {ranks}");
        }
    }
}

/// All pairs, masked or not, at the rate of matrix products: 4 D FLOPs a pair forward, 8 D backward, which has its
/// probabilities already.
#[test]
fn ring_self_attention() {
    for ranks in 1..=16_u64 {
        let tokens = CHUNK * ranks;
        let problem = support::causal(tokens, support::shape(HEADS, support::HEAD_DIM));
        for (pass, products) in [(Pass::Forward, 2.0), (Pass::Backward, 4.0)] {
            let plan =
                support::build(Schedule::RingSelfAttention, &problem, ranks as u32, &Options::new(pass));
            let mut cluster = support::ideal(ranks as u32);
            // A product of a pair of one head takes a nanosecond.
            cluster.device.reached.matmul = FlopsPerSec(2.0 * f64::from(support::HEAD_DIM) * 1e9);
            let makespan = simulate(&plan, &cluster, &SimOptions::default()).unwrap().makespan;
            let pairs = (CHUNK * tokens * u64::from(HEADS)) as f64;
            assert_eq!(makespan, SimTime((products * pairs * 1000.0) as u64), "{pass} on {ranks}");
        }
    }
}
