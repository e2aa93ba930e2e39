//! Section 4.5: balance, overlap, checkpointing, volumes; and the attention module of the first version.

use anyhow::{Result, bail};
use ringlab_sim::config::cluster::Cluster;
use ringlab_sim::config::model::Model;
use ringlab_sim::plan::{Plan, Tensor};
use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::Schedule;
use ringlab_sim::training::collective::Links;
use ringlab_sim::training::{Checkpointing, Context, Grid, Training, attention, predict};
use ringlab_sim::units::{Bytes, BytesPerSec, FlopsPerSec, SimTime};
use serde::Deserialize;

use super::distflash;
use crate::papers::printed;
use crate::papers::row::{Draft, Row};
use crate::papers::setup::Setup;
use crate::presets;

#[derive(Deserialize)]
struct Ablation {
    quantity: String,
    value: String,
    label: String,
}

struct Lab<'a> {
    setup: &'a Setup,
    model: Model,
}

pub fn rows(setup: &Setup) -> Result<Vec<Row>> {
    let lab = Lab { setup, model: presets::model("llama-7b")? };
    let mut rows = Vec::new();
    for r in printed::<Ablation>(include_str!("../../../papers/distflashattn/ablations.csv"))? {
        let case = r.label.split(' ').next().unwrap_or_default().to_owned();
        let draft = |unit| Row::of("ablations", &case, &r.quantity, unit);
        for (published, predicted, unit) in lab.figures(&r.quantity, &r.value)? {
            rows.push(explained(draft(unit), &r.quantity).numbers(published, predicted));
        }
    }
    rows.append(&mut lab.sends()?);
    Ok(rows)
}

/// Published, predicted, unit.
type Figure = (f64, f64, &'static str);

fn explained(draft: Draft, quantity: &str) -> Draft {
    match quantity {
            "idle fraction balanced" => draft.because(
                "the paper divides P/2 idle pairs by P^2; of the P (P/2 + 1) step-slots that its loop has, they are \
                 1/(P+2)",
            ),
            "comm volume Megatron-LM" => draft.because(
                "the paper counts each collective as N d; forward 4, backward 6 and 4 more when recomputed",
            ),
            _ => draft,
        }
}

impl Lab<'_> {
    fn figures(&self, quantity: &str, value: &str) -> Result<Vec<Figure>> {
        let number = || value.split('.').count() <= 2 && value.parse::<f64>().is_ok();
        let p = 8.0;
        Ok(match quantity {
            "unbalanced ring attention-forward speed-up vs 1 GPU" => {
                vec![(value.parse()?, self.forward_speedup(Schedule::Ring)?, "x")]
            }
            "balanced attention-forward speed-up expected"
            | "balanced attention-forward speed-up measured saturation" => {
                vec![(value.parse()?, self.forward_speedup(Schedule::DistFlash)?, "x")]
            }
            "balanced over unbalanced" => {
                let gain =
                    self.forward_speedup(Schedule::DistFlash)? / self.forward_speedup(Schedule::Ring)?;
                vec![(value.parse()?, gain, "x")]
            }
            "comm overhead without overlap" => vec![(value.parse()?, self.overhead(128, 0)?, "% of compute")],
            "comm overhead with overlap" => vec![(value.parse()?, self.overhead(128, 1)?, "% of compute")],
            "overlap end-to-end gain" => vec![(value.parse()?, self.overlap_gain(128)?, "x")],
            "checkpointing end-to-end gain" => vec![(value.parse()?, self.checkpoint_gain()?, "x")],
            "comm overhead 512K 33 -> 1" => vec![(33.0, self.overhead(512, 0)?, "% of compute")],
            "comm volume DistFlashAttn fwd / bwd / total" => {
                let (there, back) = (self.volume(Pass::Forward)?, self.volume(Pass::Backward)?);
                vec![(1.0, there, "N d"), (2.0, back, "N d"), (3.0, there + back, "N d")]
            }
            "padding waste 33H" if value == "45.5" => vec![(45.5, padding(16), "%")],
            "padding waste 33H" => vec![(21.2, padding(8), "%")],
            "idle fraction unbalanced ring" => {
                vec![((p * p - p) / (2.0 * p * p), self.idle(Schedule::Ring)?, "")]
            }
            "idle fraction balanced" => vec![(1.0 / (2.0 * p), self.idle(Schedule::DistFlash)?, "")],
            "idle fraction of the real balanced loop (P even)" => {
                vec![(1.0 / (p + 2.0), self.idle(Schedule::DistFlash)?, "")]
            }
            "comm volume Megatron-LM" => vec![(14.0, 4.0 + 6.0 + 4.0, "N d")],
            // Single digits of percent: two readings of one chart, compared in `overhead` above.
            "comm overhead with overlap in longer settings" => Vec::new(),
            other if number() => bail!("no prediction for ablation {other:?}"),
            _ => Vec::new(),
        })
    }

    fn attention(&self, cluster: &Cluster, schedule: Schedule, ranks: u64, seq: u64) -> Result<SimTime> {
        let training = Training {
            context: Context { schedule, ..distflash(ranks, seq).context },
            ..distflash(ranks, seq)
        };
        Ok(attention::time(&self.model, cluster, &training, Pass::Forward)?.total())
    }

    /// Attention forward on eight GPUs over one, at 256K tokens in total.
    fn forward_speedup(&self, schedule: Schedule) -> Result<f64> {
        let cluster = self.setup.cluster("1x8")?;
        let seq = 256 * 1024;
        let one = self.attention(&cluster, Schedule::Ring, 1, seq)?;
        Ok(one.as_secs_f64() / self.attention(&cluster, schedule, 8, seq)?.as_secs_f64())
    }

    fn iteration(&self, kilo_tokens: u64, prefetch: u32) -> Result<(f64, f64)> {
        let training = distflash(16, kilo_tokens * 1024);
        let training = Training { context: Context { prefetch, ..training.context }, ..training };
        let time = predict(&self.model, &self.setup.cluster("2x8")?, &training)?.time;
        Ok((time.total.as_secs_f64(), time.exposed_context.as_secs_f64()))
    }

    /// Exposed communication over the rest of an iteration on two nodes, in percent.
    fn overhead(&self, kilo_tokens: u64, prefetch: u32) -> Result<f64> {
        let (total, exposed) = self.iteration(kilo_tokens, prefetch)?;
        Ok(100.0 * exposed / (total - exposed))
    }

    fn overlap_gain(&self, kilo_tokens: u64) -> Result<f64> {
        Ok(self.iteration(kilo_tokens, 0)?.0 / self.iteration(kilo_tokens, 1)?.0)
    }

    fn checkpoint_gain(&self) -> Result<f64> {
        let cluster = self.setup.cluster("1x8")?;
        let ours = distflash(8, 256 * 1024);
        let full = Training { checkpointing: Checkpointing::FullLayer, ..ours };
        Ok(super::seconds(self.setup, &self.model, &cluster, &full)?
            / super::seconds(self.setup, &self.model, &cluster, &ours)?)
    }

    fn plan(&self, schedule: Schedule, ranks: u64, pass: Pass) -> Result<Plan> {
        let training = distflash(ranks, ranks * 1024);
        let training = Training { context: Context { schedule, ..training.context }, ..training };
        Ok(attention::plan(&training, attention::shape(&self.model, &training), pass)?)
    }

    /// Elements that a rank sends on average, over N d, in the limit of many ranks (64).
    fn volume(&self, pass: Pass) -> Result<f64> {
        let plan = self.plan(Schedule::DistFlash, 64, pass)?;
        let n = plan.layout.documents().tokens();
        let all = n * u64::from(plan.shape.heads * plan.shape.head_dim) * plan.shape.dtype.size().0;
        Ok(plan.bytes_moved().0 as f64 / 64.0 / all as f64)
    }

    /// Step-slots without work over all step-slots of the loop, eight ranks.
    fn idle(&self, schedule: Schedule) -> Result<f64> {
        let plan = self.plan(schedule, 8, Pass::Forward)?;
        let attends = plan.programs.iter().flat_map(|p| &p.ops).filter(|op| op.lane.is_compute());
        let mut slots: Vec<(usize, u32)> = Vec::new();
        for (rank, program) in plan.programs.iter().enumerate() {
            let kernels =
                program.ops.iter().filter(|op| matches!(op.kind, ringlab_sim::plan::OpKind::Attend { .. }));
            slots.extend(kernels.map(|op| (rank, op.step)));
        }
        slots.sort_unstable();
        slots.dedup();
        let steps = attends.map(|op| op.step).max().unwrap_or(0) + 1;
        let steps = if schedule == Schedule::Ring { 8 } else { steps.min(5) };
        Ok(1.0 - slots.len() as f64 / f64::from(8 * steps))
    }

    fn sends(&self) -> Result<Vec<Row>> {
        let plan = self.plan(Schedule::DistFlash, 8, Pass::Forward)?;
        let mut rows = Vec::new();
        for r in printed::<Sends>(include_str!("../../../papers/distflashattn/sends_p8.csv"))? {
            let sent = |tensor| {
                plan.messages.iter().filter(|m| m.from == r.rank && m.tensor == tensor).count() as f64
            };
            let case = format!("P=8 rank {}", r.rank);
            let cells = [
                ("messages with k and v", r.kv, Tensor::KeyValue),
                ("messages with q", r.q, Tensor::Query),
                ("messages with partial o", r.o_returns, Tensor::State),
            ];
            for (what, printed, tensor) in cells {
                rows.push(Row::of("sends", &case, what, "").numbers(printed, sent(tensor)));
            }
        }
        Ok(rows)
    }
}

#[derive(Deserialize)]
struct Sends {
    rank: u32,
    #[serde(rename = "kv_sends")]
    kv: f64,
    #[serde(rename = "q_sends")]
    q: f64,
    o_returns: f64,
}

fn padding(gpus: u64) -> f64 {
    100.0 * (33u64.next_multiple_of(gpus) as f64 / 33.0 - 1.0)
}

/// The cluster with kernels that take no time: what is left is communication.
fn only_links(cluster: &Cluster) -> Cluster {
    let mut links = cluster.clone();
    for row in &mut links.kernels {
        (row.rate, row.prologue, row.epilogue) = (FlopsPerSec(f64::INFINITY), SimTime::ZERO, SimTime::ZERO);
    }
    links.device.reached.hbm = BytesPerSec(f64::INFINITY);
    links
}

const QUERY_SIDE: &str = "a quarter of the kv heads shrinks k and v, not the queries, outputs and gradients that helpers \
                          exchange; the printed halving leaves less for those than their bytes over one NIC a GPU";

#[derive(Deserialize)]
struct Module {
    quantity: String,
    ms: f64,
}

/// LightSeq, the first version of the paper: one attention module, forward and backward, 4K tokens a GPU on two nodes.
pub fn lightseq(setup: &Setup) -> Result<Vec<Row>> {
    let cluster = setup.cluster("2x8")?;
    let links = only_links(&cluster);
    let training = distflash(16, 64 * 1024);
    let (mha, gqa) = (presets::model("llama-7b")?, presets::model("llama-gqa")?);
    let both = |model: &Model, on: &Cluster| -> Result<(f64, f64)> {
        let there = attention::time(model, on, &training, Pass::Forward)?;
        let back = attention::time(model, on, &training, Pass::Backward)?;
        Ok((
            1e3 * (there.total() + back.total()).as_secs_f64(),
            1e3 * (there.compute + back.compute).as_secs_f64(),
        ))
    };
    let (communication, (total, compute)) = (both(&mha, &links)?.0, both(&mha, &cluster)?);
    let mut rows = Vec::new();
    for r in printed::<Module>(include_str!("../../../papers/lightseq/attention_module.csv"))? {
        let predicted = match r.quantity.as_str() {
            "DFA/LightSeq communication MHA" => communication,
            "DFA/LightSeq compute" => compute,
            "time hidden by overlap" => communication + compute - total,
            "total with overlap" => total,
            "net communication overhead" => total - compute,
            "LightSeq communication GQA" => both(&gqa, &links)?.0,
            _ => megatron_module(&cluster, &mha),
        };
        let draft = Row::of("attention module", "2x8 LLaMA-7B, 4K a GPU", &r.quantity, "ms");
        rows.push(draft.because(QUERY_SIDE).numbers(r.ms, predicted));
    }
    Ok(rows)
}

/// All-gather before and reduce-scatter after the module: one of each forward, one of each and a second all-gather
/// backward.
fn megatron_module(cluster: &Cluster, model: &Model) -> f64 {
    let payload = Bytes(64 * 1024 * model.hidden * 2);
    let once = Links::new(cluster).all_gather(Grid::tensor(16).tensor_group(), payload);
    1e3 * (once * 5).as_secs_f64()
}
