//! What is searched: all legal ways to share an iteration out among the GPUs of a cluster.

use ringlab_sim::config::cluster::Cluster;
use ringlab_sim::config::model::Model;
use ringlab_sim::plan::Transport;
use ringlab_sim::schedule::{self, Schedule};
use ringlab_sim::training::{Checkpointing, Context, Grid, Sharding, Training};

/// What is trained, on what.
#[derive(Debug, Clone)]
pub struct Job {
    /// The model.
    pub model: Model,
    /// The machine; its device's memory is the limit.
    pub cluster: Cluster,
    /// Tokens of a sequence.
    pub seq: u64,
    /// Sequences of an iteration, over all replicas.
    pub sequences: u64,
    /// What may be chosen.
    pub space: Space,
}

/// Degrees that a dimension of the grid may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Degrees {
    /// Whatever divides.
    Any,
    /// These.
    Only(Vec<u64>),
    /// This or more.
    AtLeast(u64),
}

impl Degrees {
    fn allow(&self, degree: u64) -> bool {
        match self {
            Self::Any => true,
            Self::Only(degrees) => degrees.contains(&degree),
            Self::AtLeast(least) => degree >= *least,
        }
    }
}

/// What may be chosen.
#[derive(Debug, Clone)]
pub struct Space {
    /// Schedules of ring ranks.
    pub schedules: Vec<Schedule>,
    /// Tensor-parallel degrees.
    pub tp: Degrees,
    /// Context-parallel degrees.
    pub cp: Degrees,
    /// Degrees of the ranks that share heads.
    pub ulysses: Degrees,
    /// Degrees of the ranks that share tokens.
    pub ring: Degrees,
    /// Pipeline stages.
    pub pp: Degrees,
    /// Replicas.
    pub dp: Degrees,
    /// Messages that a ring step's transfer is cut into.
    pub chunks: Vec<u32>,
    /// What the backward computes again.
    pub checkpointing: Vec<Checkpointing>,
    /// What is cut over the replicas.
    pub sharding: Vec<Sharding>,
    /// How the messages of a ring travel.
    pub transport: Transport,
}

/// Whether a ring of ranks that share tokens can run `schedule`: those that divide heads are the grid's Ulysses and
/// tensor degrees; whole score rows are no tiled kernel's.
pub fn rings(schedule: Schedule) -> bool {
    !matches!(
        schedule,
        Schedule::Ulysses | Schedule::MegatronSp | Schedule::Usp { .. } | Schedule::RingSelfAttention
    )
}

impl Default for Space {
    /// Everything. Checkpointing of attention alone equals none with tiled kernels, which keep no scores; sharding of
    /// gradients alone is not priced apart, since one reduction an iteration is modelled.
    fn default() -> Self {
        let any = || Degrees::Any;
        Self {
            schedules: schedule::ALL.into_iter().filter(|s| rings(*s)).collect(),
            tp: any(),
            cp: any(),
            ulysses: any(),
            ring: any(),
            pp: any(),
            dp: any(),
            chunks: vec![1, 2, 4],
            checkpointing: vec![Checkpointing::None, Checkpointing::RematAware, Checkpointing::FullLayer],
            sharding: vec![Sharding::Optimizer, Sharding::Weights],
            transport: Transport::Nccl,
        }
    }
}

impl Job {
    /// GPUs of the cluster.
    pub fn gpus(&self) -> u64 {
        u64::from(self.cluster.gpus())
    }

    /// Tokens of an iteration.
    pub fn tokens(&self) -> u64 {
        self.seq * self.sequences
    }

    /// The same tokens an iteration in sequences of `seq`.
    pub fn with_length(&self, seq: u64) -> Self {
        Self { seq, sequences: (self.tokens() / seq).max(1), ..self.clone() }
    }

    /// All legal candidates, in an order that depends on nothing but the job.
    pub fn candidates(&self) -> Vec<Training> {
        let mut all = Vec::new();
        for grid in self.grids() {
            for schedule in self.schedules(&grid) {
                self.push_options(grid, schedule, &mut all);
            }
        }
        all
    }

    fn grids(&self) -> Vec<Grid> {
        let (gpus, space) = (self.gpus(), &self.space);
        let allowed = |n: u64, degrees: &Degrees| {
            divisors(n).into_iter().filter(|d| degrees.allow(*d)).collect::<Vec<_>>()
        };
        let mut grids = Vec::new();
        for tp in allowed(gpus, &space.tp) {
            for pp in allowed(gpus / tp, &space.pp) {
                for cp in allowed(gpus / tp / pp, &space.cp) {
                    let dp = gpus / tp / pp / cp;
                    for ulysses in allowed(cp, &space.ulysses) {
                        let ring = cp / ulysses;
                        if space.dp.allow(dp) && space.ring.allow(ring) && self.sequences.is_multiple_of(dp) {
                            grids.push(Grid { tp, cp, ulysses, ring, dp, pp, interleave: 1, experts: 1 });
                        }
                    }
                }
            }
        }
        let with_experts = grids.into_iter().flat_map(|grid| self.with_experts(grid));
        with_experts.filter(|grid| grid.validate(&self.model, &self.cluster, false).is_ok()).collect()
    }

    fn with_experts(&self, grid: Grid) -> Vec<Grid> {
        let count = self.model.experts.map_or(1, |moe| moe.count);
        divisors(count).into_iter().map(|experts| Grid { experts, ..grid }).collect()
    }

    /// The schedules of a ring of this size; one of a single rank has none, and is called `ring`.
    fn schedules(&self, grid: &Grid) -> Vec<Schedule> {
        if grid.ring == 1 {
            return vec![Schedule::Ring];
        }
        self.space.schedules.iter().filter_map(|s| self.on_nodes(*s, grid)).collect()
    }

    /// A double ring with windows of the ring's ranks in a node; without such windows it is a zigzag ring.
    fn on_nodes(&self, schedule: Schedule, grid: &Grid) -> Option<Schedule> {
        let Schedule::DoubleRing { window: None, rail } = schedule else { return Some(schedule) };
        let window = u64::from(self.cluster.gpus_per_node) / grid.ring_group().stride;
        let fits = window > 1 && window < grid.ring && grid.ring.is_multiple_of(window);
        fits.then_some(Schedule::DoubleRing { window: Some(window as u32), rail })
    }

    fn push_options(&self, grid: Grid, schedule: Schedule, all: &mut Vec<Training>) {
        let space = &self.space;
        let chunks = if grid.ring == 1 { &[1][..] } else { &space.chunks };
        let shardings = if grid.replica_group().size == 1 { &space.sharding[..1] } else { &space.sharding };
        for &chunks in chunks {
            for &checkpointing in &space.checkpointing {
                for &sharding in shardings {
                    let context = Context { chunks, transport: space.transport, ..Context::new(schedule) };
                    all.push(Training {
                        context,
                        checkpointing,
                        sharding,
                        micro_batches: self.sequences / grid.dp,
                        ..Training::new(grid, self.seq, schedule)
                    });
                }
            }
        }
    }
}

fn divisors(n: u64) -> Vec<u64> {
    (1..=n).filter(|d| n.is_multiple_of(*d)).collect()
}
