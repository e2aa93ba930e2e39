use super::*;
use crate::calibrate::probes::{self, Ways};
use crate::machine::CpuMachine;
use crate::machine::{Identity, LaunchCosts, MachineError, Runs, Sizes};
use ringlab_sim::config::cluster::{Grid, Items};
use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::Plan;
use ringlab_sim::problem::Dtype;
use ringlab_sim::tiles::TileShape;

#[test]
fn what_is_calibrated_is_not_validated() {
    let machine = CpuMachine::new();
    let filter = Filter { cp: vec![2], ..Filter::default() };
    let points = matrix(&machine, &filter);
    assert!(points.len() > 40, "{}", points.len());
    let plans: Vec<Plan> = points.iter().map(|p| p.plan().unwrap()).collect();
    for plan in &plans {
        assert!(!plan.name.starts_with(probes::PREFIX), "{}", plan.name);
        assert!(plan.ranks() > 1 && plan.programs.iter().any(|p| p.ops.len() > 2), "{}", plan.name);
    }
    let shape = points[0].shape;
    let probes = [
        probes::call(shape, Pass::Forward, Pattern::Causal, 256, 2),
        probes::call(shape, Pass::Backward, Pattern::Full, 256, 2),
        probes::carried(shape, 256, 2),
        probes::message(shape, 256, Ways::Both, Transport::CopyEngine),
    ];
    for probe in probes.map(Option::unwrap) {
        assert!(probe.name.starts_with(probes::PREFIX));
        let attends = probe.op_count() > 2 * probe.messages.len();
        assert!(!attends || probe.messages.is_empty(), "{} attends and sends, as schedules do", probe.name);
        assert!(plans.iter().all(|p| p.programs != probe.programs));
    }
}

#[test]
fn a_filter_leaves_what_it_names() {
    let filter = Filter {
        schedules: vec![Schedule::Zigzag],
        sequences: vec![512],
        passes: vec![Pass::Forward],
        cp: vec![4],
        virtual_cp: vec![8],
        ..Filter::default()
    };
    let points = matrix(&CpuMachine::new(), &filter);
    assert_eq!(points.len(), 2, "plain and grouped heads; threads have no virtual ranks");
    assert!(points.iter().all(|p| p.cp == 4 && p.seq_len == 512 && p.schedule == Schedule::Zigzag));
}

#[test]
fn each_list_of_a_filter_leaves_what_it_names() {
    let point = Point::test("ring");
    let group = Point { launching: Launching::Virtual, ..point.clone() };
    let any = Filter::default;
    assert!(any().leaves(&point) && any().leaves(&group));
    let named = [
        (
            Filter { schedules: vec![Schedule::Ring], ..any() },
            Filter { schedules: vec![Schedule::Zigzag], ..any() },
        ),
        (Filter { sequences: vec![256], ..any() }, Filter { sequences: vec![512], ..any() }),
        (Filter { passes: vec![Pass::Forward], ..any() }, Filter { passes: vec![Pass::Backward], ..any() }),
        (Filter { cp: vec![2], ..any() }, Filter { cp: vec![4], ..any() }),
        (Filter { kv_heads: vec![2], ..any() }, Filter { kv_heads: vec![1], ..any() }),
        (Filter { head_dims: vec![64], ..any() }, Filter { head_dims: vec![128], ..any() }),
        (
            Filter { transports: vec![Transport::CopyEngine], ..any() },
            Filter { transports: vec![Transport::Nccl], ..any() },
        ),
        (
            Filter { launchings: vec![Launching::Stepwise], ..any() },
            Filter { launchings: vec![Launching::Fused], ..any() },
        ),
    ];
    for (own, other) in named {
        assert!(own.leaves(&point) && !other.leaves(&point), "{own:?}");
    }
    // Numbers of real ranks and of virtual ones say nothing of each other.
    assert!(Filter { virtual_cp: vec![4], ..any() }.leaves(&point));
    assert!(!Filter { virtual_cp: vec![4], ..any() }.leaves(&group));
    assert!(Filter { cp: vec![4], ..any() }.leaves(&group));
}

/// GPUs that have no NCCL.
struct WithoutNccl(Gpus);

impl Machine for WithoutNccl {
    fn identity(&self) -> Identity {
        self.0.identity()
    }

    fn kernels(&self) -> Vec<MachineKernel> {
        self.0.kernels()
    }

    fn sizes(&self) -> Sizes {
        self.0.sizes()
    }

    fn coverage(&self) -> Coverage {
        self.0.coverage()
    }

    fn run(&mut self, plan: &Plan, launching: Launching, repeats: u32) -> Result<Runs, MachineError> {
        self.0.run(plan, launching, repeats)
    }

    fn launch_costs(&mut self) -> Result<LaunchCosts, MachineError> {
        self.0.launch_costs()
    }
}

#[test]
fn nothing_goes_by_nccl_where_there_is_none() {
    for gpus in [2, 4] {
        let filter = Filter { cp: vec![gpus], ..Filter::default() };
        let by_nccl = |points: Vec<Point>| points.iter().any(|p| p.transport == Transport::Nccl);
        assert!(by_nccl(matrix(&Gpus(gpus), &filter)));
        assert!(!by_nccl(matrix(&WithoutNccl(Gpus(gpus)), &filter)), "{gpus} GPUs");
    }
}

/// GPUs by name only, so many.
pub struct Gpus(pub u32);

impl Machine for Gpus {
    fn identity(&self) -> Identity {
        Identity { device: "made up".into(), devices: self.0, versions: String::new() }
    }

    fn kernels(&self) -> Vec<MachineKernel> {
        let kernel = |head_dim, pass| MachineKernel {
            name: "made up".into(),
            head_dim,
            dtype: Dtype::Bf16,
            pass,
            tile: TileShape { q: 128, kv: 128 },
            items: Items::QueryTiles,
            grid: Grid::Persistent,
            used_for: None,
            sections: None,
            fitted_above: 0,
        };
        [128, 64].into_iter().flat_map(|d| [kernel(d, Pass::Forward), kernel(d, Pass::Backward)]).collect()
    }

    fn sizes(&self) -> Sizes {
        let sequences = crate::machine::GPU_SEQUENCES.map(|n| n << 10).to_vec();
        Sizes {
            heads: 16,
            grouped_kv_heads: 4,
            calls: Vec::new(),
            messages: Vec::new(),
            sequences,
            repeats: 5,
        }
    }

    fn coverage(&self) -> Coverage {
        Coverage::Selected
    }

    fn takes(&self, plan: &Plan) -> bool {
        crate::cuda::check(plan).is_ok()
    }

    fn has_nccl(&self) -> bool {
        true
    }

    fn has_fused(&self) -> bool {
        true
    }

    fn has_virtual(&self) -> bool {
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
fn two_gpus_vary_each_thing_by_itself() {
    let points = matrix(&Gpus(2), &Filter { cp: vec![2], ..Filter::default() });
    let real = points.iter().filter(|p| p.launching != Launching::Virtual).count();
    assert!((80..=110).contains(&real), "{real} points of two ranks");
    assert!((0..points.len()).all(|i| !points[..i].contains(&points[i])), "none is twice");
    let has = |of: &dyn Fn(&Point) -> bool| points.iter().any(of);
    for kib in [8, 16, 32, 64, 128, 256] {
        for pass in [Pass::Forward, Pass::Backward] {
            assert!(has(&|p| p.seq_len == kib << 10 && p.pass == pass), "{kib}Ki {pass}");
        }
    }
    assert_eq!(points.iter().filter(|p| p.seq_len == 512 << 10).count(), 2);
    assert!(has(&|p| p.shape.head_dim == 64) && has(&|p| p.shape.kv_heads == 4));
    assert!(has(&|p| p.transport == Transport::Nccl && p.pass == Pass::Backward));
    assert!(has(&|p| p.launching == Launching::FusedQueries && p.chunks == 4));
    for cp in [4, 8, 16, 64] {
        assert!(has(&|p| p.launching == Launching::Virtual && p.cp == cp), "{cp} virtual ranks");
    }
    let filter = Filter { cp: vec![2], transports: vec![Transport::Nccl], ..Filter::default() };
    assert!(matrix(&Gpus(2), &filter).iter().all(|p| p.transport == Transport::Nccl && p.cp == 2));
}

#[test]
fn a_third_of_the_matrix_has_some_of_everything() {
    let points = matrix(&Gpus(2), &Filter { cp: vec![2], ..Filter::default() });
    let cut = &points[..points.len() / 3];
    for pass in [Pass::Forward, Pass::Backward] {
        let share = cut.iter().filter(|p| p.pass == pass).count() as f64 / cut.len() as f64;
        assert!((0.3..0.7).contains(&share), "{pass}: {share}");
    }
    for launching in [Launching::Stepwise, Launching::Fused, Launching::FusedQueries, Launching::Virtual] {
        assert!(cut.iter().any(|p| p.launching == launching), "{launching:?}");
    }
    assert!(cut.iter().any(|p| p.transport == Transport::Nccl));
    let schedules = |points: &[Point]| {
        let mut names: Vec<String> = points.iter().map(|p| p.schedule.to_string()).collect();
        names.sort();
        names.dedup();
        names.len()
    };
    assert!(2 * schedules(cut) > schedules(&points), "{} of {}", schedules(cut), schedules(&points));
    for class in points.iter().map(Point::class) {
        let lengths: Vec<u64> = points.iter().filter(|p| p.class() == class).map(|p| p.seq_len).collect();
        assert!(lengths.is_sorted(), "{class}: {lengths:?}");
    }
}

#[test]
fn spread_orders_begin_everywhere() {
    assert_eq!(spread(8), [0, 4, 2, 6, 1, 5, 3, 7]);
    assert_eq!(spread(5), [0, 4, 2, 1, 3]);
    assert_eq!((spread(1), spread(0)), (vec![0], vec![]));
}
