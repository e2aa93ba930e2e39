//! The search against `sim::training::predict` for every candidate, enumerated here by other means.

use std::sync::atomic::{AtomicBool, Ordering};

use ringlab_experiments::presets;
use ringlab_experiments::tune::{Found, Job, Search, Space};
use ringlab_sim::plan::Transport;
use ringlab_sim::schedule::{ALL, Schedule};
use ringlab_sim::training::{Checkpointing, Context, Grid, Prediction, Sharding, Training, predict};
use ringlab_sim::units::Bytes;

fn job(model: &str, cluster: &str, (seq, sequences): (u64, u64), memory: u64) -> Job {
    let mut cluster = presets::cluster(cluster).unwrap();
    cluster.device.memory = Bytes(memory);
    Job { model: presets::model(model).unwrap(), cluster, seq, sequences, space: Space::default() }
}

/// Every five degrees that multiply to the GPUs, with every option; most are refused.
fn everything(job: &Job) -> Vec<(Training, Prediction)> {
    let gpus = u64::from(job.cluster.gpus());
    let degrees = || 1..=gpus;
    let mut all = Vec::new();
    for tp in degrees() {
        for pp in degrees().filter(|pp| tp * pp <= gpus) {
            for dp in degrees().filter(|dp| tp * pp * dp <= gpus && job.sequences.is_multiple_of(*dp)) {
                for ulysses in degrees().filter(|u| tp * pp * dp * u <= gpus) {
                    for ring in degrees().filter(|r| tp * pp * dp * ulysses * r == gpus) {
                        let cp = ulysses * ring;
                        all.extend(options(
                            job,
                            Grid { tp, cp, ulysses, ring, dp, pp, interleave: 1, experts: 1 },
                        ));
                    }
                }
            }
        }
    }
    all
}

fn options(job: &Job, grid: Grid) -> Vec<(Training, Prediction)> {
    let mut all = Vec::new();
    let heads = [Schedule::Ulysses, Schedule::MegatronSp, Schedule::RingSelfAttention];
    let rings = ALL.into_iter().filter(|s| !heads.contains(s) && !matches!(s, Schedule::Usp { .. }));
    // A window of a whole node or ring is the zigzag ring again, so double rings are as the nodes make them.
    let window = u64::from(job.cluster.gpus_per_node) / (grid.tp * grid.ulysses);
    for schedule in rings {
        let schedule = match schedule {
            Schedule::DoubleRing { rail, .. } if window > 1 && window < grid.ring => {
                Schedule::DoubleRing { window: Some(window as u32), rail }
            }
            Schedule::DoubleRing { .. } => continue,
            schedule => schedule,
        };
        for chunks in [1, 2, 4] {
            for checkpointing in [Checkpointing::None, Checkpointing::RematAware, Checkpointing::FullLayer] {
                for sharding in [Sharding::Optimizer, Sharding::Weights] {
                    let context = Context { chunks, transport: Transport::Nccl, ..Context::new(schedule) };
                    let micro_batches = job.sequences / grid.dp;
                    let training = Training {
                        context,
                        checkpointing,
                        sharding,
                        micro_batches,
                        ..Training::new(grid, job.seq, schedule)
                    };
                    let alone = grid.ring == 1 && (schedule != Schedule::Ring || chunks > 1);
                    let unshared = grid.cp * grid.dp == 1 && sharding != Sharding::Optimizer;
                    if alone || unshared {
                        continue;
                    }
                    if let Ok(prediction) = predict(&job.model, &job.cluster, &training) {
                        all.push((training, prediction));
                    }
                }
            }
        }
    }
    all
}

fn search(job: &Job, keep: usize) -> Found {
    Search { keep, thorough: true, stop: &AtomicBool::new(false), progress: &|_, _| () }.run(job)
}

fn assert_same_optimum(job: &Job, prunes: bool) {
    let all = everything(job);
    let found = search(job, 4);
    assert_eq!(found.counts.total, all.len() + found.counts.refused, "as many candidates");
    let mut fitting: Vec<_> = all.iter().filter(|(_, p)| p.memory.over.is_none()).collect();
    fitting.sort_by_key(|(_, p)| (p.time.total, p.memory.total));
    let best = found.best[0];
    assert_eq!((best.time, best.memory), (fitting[0].1.time, fitting[0].1.memory));
    // The four best ways, each with its best options.
    let mut ways: Vec<(Grid, Schedule)> = Vec::new();
    let mut times = Vec::new();
    for (training, prediction) in &fitting {
        let way = (training.grid, training.context.schedule);
        if !ways.contains(&way) && ways.len() < 4 {
            ways.push(way);
            times.push(prediction.time.total);
        }
    }
    assert_eq!(found.best.iter().map(|c| c.time.total).collect::<Vec<_>>(), times);
    for own in &found.by_schedule {
        let same = |t: &Training| {
            let schedules = (own.training.context.schedule, t.context.schedule);
            (own.training.grid.ring > 1) == (t.grid.ring > 1) && schedules.0 == schedules.1
        };
        let best = fitting.iter().find(|(t, _)| same(t)).unwrap();
        assert_eq!(own.time.total, best.1.time.total, "{}", own.training.context.schedule);
    }
    for large in &found.too_large {
        let exact = all.iter().find(|(t, _)| *t == large.training).unwrap().1;
        assert!(exact.memory.over.is_some() && exact.time.total < best.time.total);
    }
    let c = found.counts;
    let parts = [c.pruned_by_memory, c.pruned_by_time, c.over_memory, c.refused, c.costed, c.left];
    assert_eq!(parts.iter().sum::<usize>(), c.total);
    assert_eq!(c.pruned_by_time > 0, prunes);
}

#[test]
fn a_node_has_the_optimum_of_trying_everything() {
    assert_same_optimum(&job("llama-8h", "h100-1x4-rail", (64 << 10, 4), 80_000_000_000), true);
}

#[test]
fn two_nodes_and_little_memory_have_the_optimum_of_trying_everything() {
    assert_same_optimum(&job("llama-gqa", "h100-2x2-rail", (32 << 10, 6), 60_000_000_000), true);
    assert_same_optimum(&job("llama-8h", "h100-2x2-rail", (96 << 10, 2), 45_000_000_000), true);
}

#[test]
fn sequences_that_nothing_divides_have_it_too() {
    assert_same_optimum(&job("llama-8h", "h100-1x3-rail", (10_007, 3), 80_000_000_000), false);
}

#[test]
fn how_much_is_kept_does_not_change_the_best() {
    let job = job("llama-8h", "h100-2x4-rail", (64 << 10, 8), 80_000_000_000);
    let few = search(&job, 1).best[0];
    assert_eq!(search(&job, 30).best[0], few);
}

/// Ctrl-C while the search is under way.
#[test]
fn a_stopped_search_has_the_best_so_far() {
    let job = job("llama-8h", "h100-2x4-rail", (64 << 10, 8), 80_000_000_000);
    let stop = AtomicBool::new(false);
    let progress = |done: usize, _: usize| stop.store(done > 0, Ordering::Relaxed);
    let found = Search { keep: 3, thorough: true, stop: &stop, progress: &progress }.run(&job);
    assert!(!found.best.is_empty() && found.counts.left > 0);
    assert!(found.best[0].time.total >= search(&job, 3).best[0].time.total);
}
