//! Attention of candidates: simulated once for all that share it, and a lower bound before that.

use std::collections::BTreeMap;

use rayon::prelude::*;
use ringlab_sim::bound;
use ringlab_sim::config::cluster::KernelRow;
use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::Schedule;
use ringlab_sim::training::attention::{self, AttentionTime};
use ringlab_sim::training::{Training, TrainingError};
use ringlab_sim::units::{Bytes, SimTime};

use super::space::Job;

const PASSES: [Pass; 2] = [Pass::Forward, Pass::Backward];

/// What a ring's simulation depends on, for one job: heads of a rank, ranks and their distance, and the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    parts: u64,
    ring: u64,
    schedule: Schedule,
    chunks: u32,
}

impl Key {
    /// That of a candidate.
    pub fn of(training: &Training) -> Self {
        let grid = &training.grid;
        let parts = grid.tp * grid.ulysses;
        Self { parts, ring: grid.ring, schedule: training.context.schedule, chunks: training.context.chunks }
    }
}

/// Rings that have been simulated; the exchange of heads is not in them.
#[derive(Debug, Default)]
pub struct Rings {
    known: BTreeMap<Key, Result<[AttentionTime; 2], TrainingError>>,
}

impl Rings {
    /// Simulates the rings of `candidates` that are not known yet, on all cores.
    pub fn learn(&mut self, job: &Job, candidates: &[Training]) {
        let mut missing: BTreeMap<Key, &Training> = BTreeMap::new();
        for training in candidates {
            let key = Key::of(training);
            if !self.known.contains_key(&key) {
                missing.entry(key).or_insert(training);
            }
        }
        let missing: Vec<(Key, &Training)> = missing.into_iter().collect();
        let simulate = |(key, training): &(Key, &Training)| (*key, simulated(job, training));
        self.known.par_extend(missing.par_iter().map(simulate));
    }

    /// Whether the ring of a candidate has been simulated.
    pub fn knows(&self, training: &Training) -> bool {
        self.known.contains_key(&Key::of(training))
    }

    /// Both passes of a candidate's attention, with the exchange of heads; `None` before its ring is learnt.
    pub fn attention(
        &self,
        job: &Job,
        training: &Training,
    ) -> Option<Result<[AttentionTime; 2], TrainingError>> {
        let ring = self.known.get(&Key::of(training))?.clone();
        let exchange = attention::exchange_heads(&job.model, &job.cluster, training);
        let with = |time: AttentionTime| AttentionTime { exposed: time.exposed + exchange, ..time };
        Some(ring.map(|passes| passes.map(with)))
    }
}

fn simulated(job: &Job, training: &Training) -> Result<[AttentionTime; 2], TrainingError> {
    let pass = |pass| attention::ring_time(&job.model, &job.cluster, training, pass);
    Ok([pass(Pass::Forward)?, pass(Pass::Backward)?])
}

/// Attention that no simulation undercuts: the busiest rank's unmasked pairs at the kernel's rate and the highest clock,
/// and the exchange of heads.
pub fn floor(job: &Job, training: &Training) -> [AttentionTime; 2] {
    let exposed = attention::exchange_heads(&job.model, &job.cluster, training);
    PASSES.map(|pass| AttentionTime {
        compute: least_compute(job, training, pass),
        exposed,
        buffers: Bytes(0),
    })
}

fn least_compute(job: &Job, training: &Training, pass: Pass) -> SimTime {
    let shape = attention::shape(&job.model, training);
    let Ok(kernel) = job.cluster.kernel(shape.head_dim, shape.dtype, pass) else { return SimTime::ZERO };
    let heads = f64::from(shape.heads) * f64::from(shape.batch);
    let pairs = busiest_pairs(training) * heads;
    let flops = pairs * pass.flops_per_pair(kernel.head_dim) as f64;
    // Of two kernels the faster one may take all calls.
    let seconds = |row: &KernelRow| flops * row.partial_tile_cost.min(1.0) / row.rate.0;
    let boost = job.cluster.device.power.as_ref().map_or(1.0, |power| power.boost);
    let seconds =
        job.cluster.conditional_kernel(kernel).map_or(f64::INFINITY, seconds).min(seconds(kernel)) / boost;
    // A little less, so that no rounding lifts it above what is simulated.
    SimTime((seconds * (1.0 - 1e-9) * 1e12) as u64)
}

/// Unmasked pairs of one head on the busiest rank, at least.
fn busiest_pairs(training: &Training) -> f64 {
    let (seq, ring, schedule) = (training.seq, training.grid.ring, training.context.schedule);
    let mean = (u128::from(seq) * u128::from(seq + 1) / 2) as f64 / ring as f64;
    let block = if let Schedule::Striped { block } = schedule { block } else { 1 };
    if !seq.is_multiple_of(2 * ring * block) {
        return mean;
    }
    let critical = bound::critical_pairs(schedule, ring as u32, seq / ring) / u128::from(ring);
    mean.max(critical as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presets;
    use crate::tune::Costed;
    use crate::tune::space::Space;
    use ringlab_sim::config::cluster::{Cluster, KernelUse, Power};
    use ringlab_sim::problem::Dtype;

    type Change = fn(&mut Cluster);

    /// A second kernel that takes all forward calls, in half the time.
    fn add_faster_kernel(cluster: &mut Cluster) {
        let mut faster = cluster.kernel(128, Dtype::Bf16, Pass::Forward).unwrap().clone();
        faster.rate.0 *= 2.0;
        faster.used_for = Some(KernelUse { min_keys: 1, or_visited: 1.0, above_keys: 0 });
        cluster.kernels.push(faster);
    }

    /// A clock that rises where devices rest.
    fn add_power_limit(cluster: &mut Cluster) {
        cluster.device.power = Some(Power {
            boost: 1.5,
            idle: 0.17,
            exponent: 1.0,
            speeds: Vec::new(),
            cold_speeds: Vec::new(),
            source: "test".into(),
        });
    }

    /// On links that are slow, fast and free, with two kernels, and with a clock that rises: the bound of every candidate is
    /// at most what it takes.
    #[test]
    fn nothing_undercuts_its_bound() {
        let model = presets::model("llama-8h").unwrap();
        let as_it_is = |_: &mut Cluster| ();
        let changes: [(&str, u64, Change); 5] = [
            ("h100-2x4-rail", 24 << 10, as_it_is),
            ("pcie-8x-a100", 16_000, as_it_is),
            ("pcie-8x-a100", 16_000, add_power_limit),
            ("ideal", 8 << 10, as_it_is),
            ("ideal", 8 << 10, add_faster_kernel),
        ];
        for (name, seq, change) in changes {
            let mut cluster = presets::cluster(name).unwrap();
            change(&mut cluster);
            cluster.gpus_per_node = cluster.gpus_per_node.min(8);
            let job = Job { model: model.clone(), cluster, seq, sequences: 8, space: Space::default() };
            let candidates = job.candidates();
            let mut rings = Rings::default();
            rings.learn(&job, &candidates);
            let mut compared = 0;
            for training in candidates {
                let Some(Ok(exact)) = rings.attention(&job, &training) else { continue };
                let (exact, least) = (
                    Costed::of(&job, training, 0, exact),
                    Costed::of(&job, training, 0, floor(&job, &training)),
                );
                assert!(least.time.total <= exact.time.total, "{name}: {training:?}");
                assert!(least.memory.total <= exact.memory.total, "{name}: {training:?}");
                compared += 1;
            }
            assert!(compared > 500, "{compared}");
        }
    }
}
