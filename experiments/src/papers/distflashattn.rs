//! DistFlashAttn (arXiv 2310.03294v2): iterations against Megatron-LM.

use anyhow::Result;
use ringlab_sim::config::cluster::Cluster;
use ringlab_sim::config::model::Model;
use ringlab_sim::schedule::Schedule;
use ringlab_sim::training::{Checkpointing, Context, Grid, Sharding, Stack, Training, predict};
use serde::Deserialize;

use super::row::Row;
use super::setup::Setup;
use super::{printed, tokens};
use crate::presets;

#[derive(Deserialize)]
struct Table1 {
    cluster: String,
    seq_per_gpu: String,
    seq_total: String,
    model: String,
    megatron_s_per_iter: f64,
    distflashattn_s_per_iter: f64,
    speedup_printed: f64,
}

pub(super) fn distflash(gpus: u64, seq: u64) -> Training {
    Training {
        context: Context { half_partials: true, ..Context::new(Schedule::DistFlash) },
        checkpointing: Checkpointing::RematAware,
        stack: Stack::EAGER,
        ..Training::new(Grid::ring(gpus), seq, Schedule::DistFlash)
    }
}

pub(super) fn megatron(gpus: u64, seq: u64) -> Training {
    Training {
        checkpointing: Checkpointing::FullLayer,
        stack: Stack { dropout: false, ..Stack::MEGATRON },
        pad_heads: true,
        sharding: Sharding::None,
        ..Training::new(Grid::tensor(gpus), seq, Schedule::Ring)
    }
}

fn seconds(model: &Model, cluster: &Cluster, training: &Training) -> Result<f64> {
    let p = predict(model, cluster, training)?;
    if std::env::var("SHOW").is_ok() {
        let t = p.time;
        eprintln!(
            "{} {} {:?} mm {:.2} el {:.2} att {:.2} ctx {:.2} tp {:.2} dp {:.2} rec {:.2} host {:.2} opt {:.3} tot {:.2} mem {} over {:?}",
            model.name,
            training.seq,
            training.checkpointing,
            t.matmul.as_secs_f64(),
            t.elementwise.as_secs_f64(),
            t.attention.as_secs_f64(),
            t.exposed_context.as_secs_f64(),
            t.exposed_tensor.as_secs_f64(),
            t.exposed_data.as_secs_f64(),
            t.recompute.as_secs_f64(),
            t.host.as_secs_f64(),
            t.optimizer.as_secs_f64(),
            t.total.as_secs_f64(),
            p.memory.total,
            p.memory.over
        );
    }
    Ok(p.time.total.as_secs_f64())
}

pub fn rows(setup: &Setup) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for r in printed::<Table1>(include_str!("../../papers/distflashattn/table1.csv"))? {
        let name = &r.cluster[..3];
        let cluster = setup.cluster(name)?;
        let model = presets::model(&r.model)?;
        let gpus = u64::from(cluster.gpus());
        let seq = tokens(&r.seq_total)?;
        let d = seconds(&model, &cluster, &distflash(gpus, seq))?;
        let m = seconds(&model, &cluster, &megatron(gpus, seq))?;
        let case = format!("{name} {} {} a GPU", r.model, r.seq_per_gpu);
        rows.push(
            Row::new("table 1", &case, "DistFlashAttn iteration", "s").numbers(r.distflashattn_s_per_iter, d),
        );
        rows.push(Row::new("table 1", &case, "Megatron-LM iteration", "s").numbers(r.megatron_s_per_iter, m));
        rows.push(Row::new("table 1", &case, "speed-up", "x").numbers(r.speedup_printed, m / d));
    }
    Ok(rows)
}
