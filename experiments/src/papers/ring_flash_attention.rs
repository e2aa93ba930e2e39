//! ring-flash-attention's README: how much of one GPU's rate eight GPUs keep.

use anyhow::{Result, bail};
use ringlab_sim::mask::Pattern;
use ringlab_sim::problem::{Dtype, Pass, Problem, Shape};
use ringlab_sim::schedule::Schedule;
use ringlab_sim::training::Grid;
use ringlab_sim::training::collective::Links;
use ringlab_sim::units::Bytes;
use serde::Deserialize;

use super::merging::{Merging, seconds};
use super::printed;
use super::row::Row;
use super::setup::Setup;

const RANKS: u64 = 8;
const TOKENS: u64 = 8192;
const SHAPE: Shape = Shape { heads: 32, kv_heads: 8, head_dim: 128, dtype: Dtype::Bf16, batch: 1 };

#[derive(Deserialize)]
struct Point {
    api: String,
    pass: String,
    r#impl: String,
    iters_per_s: f64,
    pct_of_theoretic: Option<f64>,
}

/// The documents of the variable-length benchmark, as fractions of 8K tokens; the repository's list holds four.
const DOCUMENTS: [&[u64]; 4] = [&[8192], &[256, 7392, 544], &[4096, 4096], &[3104, 3200, 1600, 288]];

struct Bench<'a> {
    setup: &'a Setup,
    passes: &'static [Pass],
    documents: Vec<Vec<u64>>,
}

impl Bench<'_> {
    fn merging(&self) -> Result<Merging> {
        Ok(Merging {
            output: self.setup.value("bytes a merged element moves")?,
            gradient: self.setup.value("bytes an accumulated gradient element moves")?,
        })
    }

    fn run(&self, schedule: Schedule, ranks: u64) -> Result<f64> {
        let cluster = self.setup.cluster("8xA100")?;
        let mut total = 0.0;
        for lengths in &self.documents {
            let documents = lengths.iter().map(|n| n * ranks).collect();
            let problem = Problem { shape: SHAPE, pattern: Pattern::Causal, documents };
            for &pass in self.passes {
                total += seconds(&cluster, schedule, &problem, ranks as u32, pass, self.merging()?)?;
            }
        }
        Ok(total / self.documents.len() as f64)
    }

    /// Llama 3's variant: all keys gathered head by head, then one call; the last rank has 2P - 1 of P^2 half blocks.
    fn all_gather(&self, one: f64) -> Result<f64> {
        let cluster = self.setup.cluster("8xA100")?;
        let kv = Bytes(2 * u64::from(SHAPE.kv_heads * SHAPE.head_dim) * 2 * TOKENS * RANKS);
        let gather = Links::new(&cluster).all_gather(Grid::ring(RANKS).ring_group(), kv).as_secs_f64();
        // The first head's gather is exposed; the backward gathers again and scatters gradients.
        let exposed = gather / f64::from(SHAPE.kv_heads) * if self.passes.len() == 1 { 1.0 } else { 3.0 };
        Ok(one * (2 * RANKS - 1) as f64 + exposed)
    }
}

const ODD: &str = "the repository's stripes attend 8191 of 8192 tokens after the first step, which takes FlashAttention-2's \
                   path for uneven lengths; the kernel table does not have it";

pub fn rows(setup: &Setup) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for r in printed::<Point>(include_str!("../../papers/ring-flash-attention/a100.csv"))? {
        let bench = Bench {
            setup,
            passes: if r.pass == "fwd" { &[Pass::Forward] } else { &[Pass::Forward, Pass::Backward] },
            documents: if r.api == "batch" {
                vec![vec![TOKENS]]
            } else {
                DOCUMENTS.map(<[u64]>::to_vec).to_vec()
            },
        };
        let one = bench.run(Schedule::Ring, 1)?;
        let time = match r.r#impl.as_str() {
            "flash_attn_1gpu" => one,
            "theoretic_div8" => continue,
            "ring" => bench.run(Schedule::Ring, RANKS)?,
            "zigzag" => bench.run(Schedule::Zigzag, RANKS)?,
            "stripe" => bench.run(Schedule::Striped { block: 1 }, RANKS)?,
            "llama3_allgather" => bench.all_gather(one)?,
            other => bail!("no implementation {other:?}"),
        };
        let case = format!("{}, {}, {}", r.api, r.pass, r.r#impl);
        let stripes = r.r#impl == "stripe";
        let row = |what, unit| {
            let draft = Row::of("README", &case, what, unit);
            if stripes { draft.because(ODD) } else { draft }
        };
        rows.push(row("iterations", "1/s").numbers(r.iters_per_s, 1.0 / time));
        if let Some(percent) = r.pct_of_theoretic {
            rows.push(row("of one GPU's rate / 8", "%").numbers(percent, 100.0 * RANKS as f64 * one / time));
        }
    }
    Ok(rows)
}
