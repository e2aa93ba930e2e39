//! The plans that a calibration ends with.

use ringlab_sim::config::cluster::{Grid, Items};
use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::Plan;
use ringlab_sim::problem::{Dtype, Pass};
use ringlab_sim::tiles::TileShape;
use ringlab_sim::timeline::{Span, SpanKind};

use super::support::{quick, run};
use crate::calibrate::{checks, probes};
use crate::cuda::{Copies, Options};
use crate::machine::{
    Identity, LaunchCosts, Launching, Machine, MachineError, MachineKernel, Runs, Sizes, inputs,
};

/// Three GPUs by name only, with sizes that made-up ones can compute.
struct Small;

impl Machine for Small {
    fn identity(&self) -> Identity {
        Identity { device: "made up".into(), devices: 3, versions: String::new() }
    }

    fn kernels(&self) -> Vec<MachineKernel> {
        let kernel = |pass| MachineKernel {
            name: "made up".into(),
            head_dim: 64,
            dtype: Dtype::Fp16,
            pass,
            tile: TileShape { q: 128, kv: 128 },
            items: Items::QueryTiles,
            grid: Grid::PersistentQueue,
            used_for: None,
            sections: None,
            fitted_above: 0,
        };
        vec![kernel(Pass::Forward), kernel(Pass::Backward)]
    }

    fn sizes(&self) -> Sizes {
        Sizes {
            heads: 2,
            grouped_kv_heads: 1,
            calls: vec![128],
            messages: Vec::new(),
            sequences: Vec::new(),
            repeats: 1,
        }
    }

    fn has_nccl(&self) -> bool {
        true
    }

    fn run(&mut self, _: &Plan, _: Launching, _: u32) -> Result<Runs, MachineError> {
        unreachable!("nothing runs here")
    }

    fn launch_costs(&mut self) -> Result<LaunchCosts, MachineError> {
        unreachable!("nothing runs here")
    }
}

#[test]
fn check_plans_run_as_they_are() {
    let plans = checks::plans(&Small);
    assert_eq!(plans.len(), 18);
    for (title, plan) in plans {
        crate::cuda::check(&plan).unwrap();
        assert_eq!(crate::cuda::carried_bytes(&plan), 0, "{title}");
        let inputs = inputs(&plan).unwrap();
        for copies in [Copies::Push, Copies::Pull] {
            let done = run(&plan, &inputs, &Options { copies, ..quick() }, 7);
            let done = done.unwrap_or_else(|error| panic!("{title}: {error}"));
            assert_eq!(done.outcome.bytes_moved, plan.bytes_moved(), "{title}");
            let attends = plan.programs.iter().flat_map(|p| &p.ops).filter(|op| op.kind.attended().is_some());
            let spans = &done.outcome.timeline.spans;
            let calls =
                spans.iter().filter(|s| matches!(s.kind, SpanKind::Attend | SpanKind::AttendBackward));
            assert_eq!(calls.count(), attends.count(), "{title}");
        }
    }
}

#[test]
fn copies_between_all_pairs_run_as_they_are() {
    let shape = Small.kernels()[0].shape(1);
    for ways in [&[(0, 2), (2, 0)][..], &[(1, 2), (2, 1)], &[(0, 1), (1, 2), (2, 0)]] {
        let plan = probes::copies(shape, 64, 3, ways).unwrap();
        crate::cuda::check(&plan).unwrap();
        let inputs = inputs(&plan).unwrap();
        for copies in [Copies::Push, Copies::Pull] {
            let done = run(&plan, &inputs, &Options { copies, ..quick() }, 7).unwrap();
            assert_eq!(done.outcome.bytes_moved, plan.bytes_moved());
            let received = done.outcome.timeline.spans.iter().filter(|s| s.kind == SpanKind::Recv);
            assert_eq!(received.count(), ways.len());
        }
    }
}

#[test]
fn calls_between_messages_run_after_one_and_before_the_other() {
    for (pass, pattern) in [(Pass::Forward, Pattern::Causal), (Pass::Backward, Pattern::Full)] {
        let plan = probes::between(Small.kernels()[0].shape(2), pass, pattern, 256, 3).unwrap();
        crate::cuda::check(&plan).unwrap();
        assert_eq!(crate::cuda::carried_bytes(&plan), 0);
        let inputs = inputs(&plan).unwrap();
        for copies in [Copies::Push, Copies::Pull] {
            let done = run(&plan, &inputs, &Options { copies, ..quick() }, 7).unwrap();
            assert_eq!(done.outcome.bytes_moved, plan.bytes_moved());
            for rank in 0..3 {
                let of = |is: fn(&Span) -> bool| {
                    let spans = done.outcome.timeline.spans.iter();
                    spans.filter(|s| s.rank == rank && is(s)).copied().collect::<Vec<_>>()
                };
                let calls = of(|s| matches!(s.kind, SpanKind::Attend | SpanKind::AttendBackward));
                let [call] = &calls[..] else { panic!("{calls:?}") };
                let before = of(|s| s.kind == SpanKind::Recv && s.step == 0);
                let after = of(|s| s.kind == SpanKind::Send && s.step == 1);
                assert_eq!((before.len(), after.len()), (1, 1));
                assert!(
                    before[0].end <= call.start && call.end <= after[0].start,
                    "{before:?} {call:?} {after:?}"
                );
            }
        }
    }
}
