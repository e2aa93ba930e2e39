//! Unified sequence parallelism: one forward call, Ulysses degree times ring degree = 8.

use anyhow::{Context, Result, bail};
use ringlab_sim::config::cluster::{Cluster, Pass};
use ringlab_sim::mask::Pattern;
use ringlab_sim::problem::{Dtype, Problem, Shape};
use ringlab_sim::schedule::Schedule;
use ringlab_sim::training::collective::Links;
use ringlab_sim::training::{Grid, attention};
use ringlab_sim::units::{Bytes, FlopsPerSec};
use serde::Deserialize;

use super::merging::{Merging, seconds};
use super::row::{Cell, Row};
use super::setup::Setup;
use super::{printed, tokens};

const GPUS: u32 = 8;

#[derive(Deserialize)]
struct Point {
    kv_group: u32,
    batch: u32,
    seq: String,
    heads: u32,
    head_size: u32,
    ulysses_degree: u32,
    ring_impl: String,
    layout: String,
    iters_per_s: String,
}

/// The machine with a kernel for heads of 32, which the kernel paper does not print.
fn machine(setup: &Setup) -> Result<Cluster> {
    let mut cluster = setup.cluster("8xA100")?;
    let row = cluster.kernels.iter().find(|row| row.head_dim == 64 && row.pass == Pass::Forward);
    let mut row = row.context("a forward kernel for heads of 64")?.clone();
    row.head_dim = 32;
    row.rate = FlopsPerSec(1e12 * setup.value("FlashAttention-2 forward at head dimension 32, TFLOP/s")?);
    cluster.kernels.push(row);
    Ok(cluster)
}

impl Point {
    fn schedule(&self) -> Result<Schedule> {
        Ok(match self.ring_impl.as_str() {
            "basic" => Schedule::Ring,
            "zigzag" => Schedule::Zigzag,
            "stripe" => Schedule::Striped { block: 1 },
            other => bail!("no ring {other:?}"),
        })
    }

    /// Exchanges of q, k, v and o between the Ulysses ranks.
    fn exchanges(&self, cluster: &Cluster, seq: u64) -> f64 {
        let u = u64::from(self.ulysses_degree);
        let kv = u64::from(self.heads / self.kv_group).max(u);
        let token = u64::from(self.head_size) * 2 * seq / u64::from(GPUS) * u64::from(self.batch);
        let group = Grid::ulysses(u).ulysses_group();
        let links = Links::new(cluster);
        let there = links.all_to_all(group, Bytes(token * (u64::from(self.heads) + 2 * kv)));
        (there + links.all_to_all(group, Bytes(token * u64::from(self.heads)))).as_secs_f64()
    }

    fn time(&self, setup: &Setup, cluster: &Cluster) -> Result<f64> {
        let (u, seq) = (self.ulysses_degree, tokens(&self.seq)?);
        let heads = self.heads / u;
        let kv_heads = (self.heads / self.kv_group / u).max(1);
        let (head_dim, batch) = (self.head_size, self.batch);
        let shape = Shape { heads, kv_heads, head_dim, dtype: Dtype::Bf16, batch };
        let problem = Problem { shape, pattern: Pattern::Causal, documents: vec![seq] };
        let ring = GPUS / u;
        let merging = Merging { output: setup.value("bytes a merged element moves")?, gradient: 0.0 };
        let part = attention::part_of(
            cluster,
            ringlab_sim::training::collective::Group { size: u64::from(ring), stride: u64::from(u) },
        );
        let device = seconds(&part, self.schedule()?, &problem, ring, Pass::Forward, merging)?;
        let host = setup.value("host milliseconds of a call")? / 1e3;
        Ok(host.max(device + self.exchanges(cluster, seq)))
    }
}

const NOISE: &str = "below 8K tokens calls last as long as the host takes, which the table itself gives as 1.7 to 5.3 ms for \
                     equal work; a basic ring at 128K varies by 1.5x between its two layouts";

pub fn rows(setup: &Setup) -> Result<Vec<Row>> {
    let cluster = machine(setup)?;
    let mut rows = Vec::new();
    for r in printed::<Point>(include_str!("../../papers/usp/a100_nvlink.csv"))? {
        let case = format!(
            "{} tokens, batch {}, {}/{} heads of {}, ulysses {} x ring {}, {}, {}",
            r.seq,
            r.batch,
            r.heads,
            r.heads / r.kv_group,
            r.head_size,
            r.ulysses_degree,
            GPUS / r.ulysses_degree,
            r.ring_impl,
            r.layout
        );
        let published = Cell::parse(&r.iters_per_s).context("iterations a second")?;
        let plain = r.ulysses_degree == 8 && r.ring_impl == "basic" && r.layout == "nopack" && r.heads == 32;
        let fitted = plain && (r.seq == "512" || (r.seq == "128K" && r.head_size == 32));
        let predicted = Cell::Number(1.0 / r.time(setup, &cluster)?);
        let table = if matches!(r.seq.as_str(), "512" | "8K") { "host-bound" } else { "device-bound" };
        let draft = Row::of(table, case, "iterations", "1/s").fitted(fitted);
        // Nothing accounts for the rows at 32K, three times slower than their work.
        let draft = if r.seq == "32K" { draft } else { draft.because(NOISE) };
        rows.push(draft.judge(published, predicted));
    }
    Ok(rows)
}
