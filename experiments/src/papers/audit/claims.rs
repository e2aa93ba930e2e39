//! The claims, and the arithmetic for each.

mod striped;

use anyhow::{Context as _, Result};
use ringlab_sim::bound::{self, RingStep, min_block_tokens};
use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::{Plan, Transport};
use ringlab_sim::problem::{Dtype, Pass, Problem, Shape};
use ringlab_sim::schedule::{self, Options, Schedule};
use ringlab_sim::units::{Bytes, BytesPerSec, FlopsPerSec};
use serde::Serialize;

use crate::papers::guides::balance_bound;
use crate::papers::{self, Cell, Paper, Row};

/// What became of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Finding {
    /// Arithmetic or the source contradicts it.
    Refuted,
    /// It is right as far as it goes.
    Holds,
}

impl Finding {
    /// The word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Refuted => "refuted",
            Self::Holds => "holds",
        }
    }
}

/// One claim of a guide.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Claim {
    /// What it is about.
    pub subject: String,
    /// Which guide.
    pub guide: &'static str,
    /// The claim, restated.
    pub claim: String,
    /// What became of it.
    pub finding: Finding,
    /// The numbers.
    pub arithmetic: String,
    /// What the figure really is, where it is somebody's.
    pub belongs_to: Option<String>,
}

const DFA: &str = "guide to DistFlashAttn";
const FLASH: &str = "guide to FlashAttention";

fn refuted(
    subject: &str,
    guide: &'static str,
    claim: &str,
    arithmetic: String,
    belongs: Option<&str>,
) -> Claim {
    Claim {
        subject: subject.to_owned(),
        guide,
        claim: claim.to_owned(),
        finding: Finding::Refuted,
        arithmetic,
        belongs_to: belongs.map(str::to_owned),
    }
}

/// All claims, in the order of the guides.
pub fn all() -> Result<Vec<Claim>> {
    let papers = papers::run("all")?.papers;
    let paper = |name: &str| papers.iter().find(|p| p.name == name).context("a paper");
    let mut claims = venue();
    claims.push(speedups(paper("distflashattn")?)?);
    claims.push(speedup_table(paper("guides")?)?);
    claims.push(falling_ring(paper("guides")?)?);
    claims.push(folded());
    claims.push(idle(8));
    claims.push(zero_buffers()?);
    claims.push(megatron_pattern());
    claims.push(head_constraint());
    claims.push(overlap());
    claims.push(striped::table());
    claims.push(striped::bubbles());
    claims.push(striped::block());
    claims.push(striped::overlap_always()?);
    claims.push(flash_attention());
    Ok(claims)
}

fn venue() -> Vec<Claim> {
    vec![
        refuted(
            "venue",
            DFA,
            "published at SOSP 2024",
            "the record of arXiv 2310.03294v2 names the Conference on Language Modeling".to_owned(),
            Some("COLM 2024"),
        ),
        refuted(
            "two-level rings",
            DFA,
            "DistFlashAttn has topology-aware hierarchical rings",
            "the plan of the paper's algorithm sends every message directly from owner to user; no message of it is \
             forwarded, so nothing is hierarchical"
                .to_owned(),
            Some("double rings are LoongTrain's (arXiv 2406.18485)"),
        ),
    ]
}

fn number(row: &Row, cell: Cell) -> f64 {
    cell.number().unwrap_or(row.bound.unwrap_or(f64::NAN))
}

fn find<'a>(paper: &'a Paper, table: &str, quantity: &str) -> Result<Vec<&'a Row>> {
    let rows: Vec<&Row> =
        paper.rows.iter().filter(|r| r.table == table && r.quantity.starts_with(quantity)).collect();
    (!rows.is_empty()).then_some(rows).with_context(|| format!("rows of {table}, {quantity}"))
}

fn speedups(paper: &Paper) -> Result<Claim> {
    let rsa = find(paper, "table 3", "speed-up")?;
    let rsa: Vec<String> = rsa
        .iter()
        .map(|r| format!("{:.2}x (model {:.2}x)", number(r, r.published), number(r, r.predicted)))
        .collect();
    let ring = find(paper, "ablations", "balanced over unbalanced")?[0];
    Ok(refuted(
        "baselines of 4.45x and 1.67x",
        DFA,
        "up to 4.45x over Ring Attention and 1.67x over Megatron-SP",
        format!(
            "over an unbalanced ring balance allows {:.3}x at P = 8 and {:.3}x at P = 64, never 4.45x; the model gives \
             {:.2}x on attention at P = 8. Against Ring Self-Attention, which keeps the scores in memory, the paper has {}",
            balance_bound(8),
            balance_bound(64),
            number(ring, ring.predicted),
            rsa.join(" and ")
        ),
        Some(
            "4.45x-5.64x: Ring Self-Attention (table 3). 1.67x: the authors' own unbalanced ring, attention forward \
              (section 4.5). Megatron-LM: 1.24x-2.01x (table 1)",
        ),
    ))
}

fn speedup_table(guides: &Paper) -> Result<Claim> {
    let rows = find(guides, DFA, "speed-up over the ring")?;
    let bound = balance_bound(64);
    let beyond: Vec<String> = rows
        .iter()
        .map(|r| number(r, r.published))
        .filter(|x| *x > bound)
        .map(|x| format!("{x:.2}x"))
        .collect();
    let predicted: Vec<String> = rows
        .iter()
        .map(|r| r.predicted.number().map_or("out of memory".to_owned(), |x| format!("{x:.2}x")))
        .collect();
    Ok(refuted(
        "LLaMA-3-70B on 64 H100",
        DFA,
        "1.67x to 4.45x over Ring Attention, growing with the sequence",
        format!(
            "{} exceed 2 - 1/64 = {bound:.3}, the most that balance gains even if all 64 GPUs form one ring; the model \
             gives {} at tensor degree 8",
            beyond.join(", "),
            predicted.join(", ")
        ),
        Some("no paper has this table"),
    ))
}

fn falling_ring(guides: &Paper) -> Result<Claim> {
    let rows = find(guides, DFA, "Ring Attention")?;
    let text = |r: &&Row| r.predicted.number().map_or("out of memory".to_owned(), |x| format!("{x:.0}"));
    let predicted: Vec<String> = rows.iter().map(text).collect();
    Ok(refuted(
        "a ring that slows down with length",
        DFA,
        "Ring Attention falls from 285 to 120 TFLOP/s a GPU as the sequence grows from 32K to 512K",
        format!(
            "a step computes c^2 and moves c, so longer blocks hide more of the same imbalance, which does not depend on \
             the length: the model gives {} TFLOP/s",
            predicted.join(", ")
        ),
        None,
    ))
}

fn plan(schedule: Schedule, ranks: u32, transport: Transport) -> Result<Plan> {
    let shape = Shape { heads: 8, kv_heads: 8, head_dim: 128, dtype: Dtype::Bf16, batch: 1 };
    let problem = Problem { shape, pattern: Pattern::Causal, documents: vec![u64::from(ranks) * 8192] };
    Ok(schedule::build(schedule, &problem, ranks, &Options { transport, ..Options::new(Pass::Forward) })?)
}

fn folded() -> Claim {
    let c = 8192;
    let percent = |schedule| 100.0 * bound::balance(schedule, 8, c);
    refuted(
        "folded chunks",
        DFA,
        "DistFlashAttn gives rank i the chunks i and 2P-1-i and is then perfectly balanced",
        format!(
            "that layout is balanced to {:.1}%, but it is not DistFlashAttn's, which keeps contiguous chunks and lets idle \
             ranks compute for later ones: {:.1}% at P = 8, P/(P+1), with P/2 idle slots of the P(P/2+1) in its loop",
            percent(Schedule::Zigzag),
            percent(Schedule::DistFlash)
        ),
        Some("the zigzag layout of Llama 3 (arXiv 2407.21783) and of ring-flash-attention"),
    )
}

fn idle(p: u32) -> Claim {
    let q = f64::from(p);
    Claim {
        subject: "half of the ring's compute idles".to_owned(),
        guide: DFA,
        claim: "utilisation (P+1)/(2P), up to 50% wasted".to_owned(),
        finding: Finding::Holds,
        arithmetic: format!(
            "with the diagonal counted as a full block {:.1}% at P = {p}; a kernel that skips half of it reaches P/(2P-1) \
             = {:.1}%",
            100.0 * (q + 1.0) / (2.0 * q),
            100.0 * q / (2.0 * q - 1.0)
        ),
        belongs_to: None,
    }
}

fn zero_buffers() -> Result<Claim> {
    let plan = plan(Schedule::DistFlash, 8, Transport::CopyEngine)?;
    let scratch = plan.programs.iter().map(|p| {
        let kept = p.buffers.iter().filter(|b| b.role != ringlab_sim::plan::Role::Scratch).map(|b| b.bytes.0);
        p.peak_memory().0 - kept.sum::<u64>()
    });
    let kv = plan.messages.iter().map(|m| m.bytes.0).next().unwrap_or(0);
    let most = scratch.max().unwrap_or(0);
    Ok(refuted(
        "zero-memory buffers",
        DFA,
        "no memory beyond one GPU's FlashAttention, whatever the cluster",
        format!(
            "a block is received while the one before it is read, so both exist: the plan for 8 heads of 128 and 8K tokens \
             a rank needs {} of scratch, {:.1} times one k-and-v block",
            Bytes(most),
            most as f64 / kv.max(1) as f64
        ),
        None,
    ))
}

fn megatron_pattern() -> Claim {
    let (n, d) = (131_072.0, 8192.0);
    let bytes = n * d * 2.0 * 7.0 / 8.0;
    refuted(
        "Megatron's collectives",
        DFA,
        "Megatron-LM SP uses all-to-all collectives before and after attention",
        format!(
            "it gathers and scatters whole activations: at 128K tokens, hidden 8192 and tp 8 every all-gather passes \
             (t-1)/t * N * d * 2 = {:.2} GB through each GPU, where an all-to-all of the same tensor would send {:.2} GB",
            bytes / 1e9,
            bytes / 8.0 / 1e9
        ),
        Some("all-to-all is DeepSpeed-Ulysses'"),
    )
}

fn head_constraint() -> Claim {
    let pad = |ranks: u64| 100.0 * (33u64.next_multiple_of(ranks) as f64 / 33.0 - 1.0);
    refuted(
        "heads",
        DFA,
        "Megatron-SP and Ulysses need at least P heads",
        format!(
            "they need a multiple of P, or padding: 33 heads become 40 on 8 ranks ({:.1}% more work) and 48 on 16 \
             ({:.1}%); with 8 kv heads more than 8 ranks also repeat k and v",
            pad(8),
            pad(16)
        ),
        None,
    )
}

fn overlap() -> Claim {
    let step = |compute, link, group, share| {
        min_block_tokens(&RingStep {
            compute: FlopsPerSec(compute),
            link: BytesPerSec(link),
            element_bytes: 2,
            group,
            block_share: share,
        })
    };
    refuted(
        "least block to hide a transfer",
        DFA,
        "2,197 tokens over NVLink and 19,780 over InfiniBand on H100 hide everything; NVLink has 450 GB/s both ways",
        format!(
            "the arithmetic is right for MHA and full blocks at datasheet rates ({:.0} and {:.0}); 450 GB/s is each way, \
             and with what FlashAttention-3 and a copy engine reach (650 TFLOP/s, 369 GB/s) it is {:.0}; Llama 3's four \
             query heads a kv head and half blocks of a balanced causal ring make it {:.0}",
            step(989e12, 450e9, 1, 1.0),
            step(989e12, 50e9, 1, 1.0),
            step(650e12, 369e9, 1, 1.0),
            step(650e12, 369e9, 4, 0.5)
        ),
        None,
    )
}

fn flash_attention() -> Claim {
    refuted(
        "what FlashAttention-2 is",
        FLASH,
        "optimised for Hopper and written in Triton",
        "its published A100 kernels reach 203 of 312 TFLOP/s (65%), on H100 the same code 338 of 989 (34%): it does not use \
         Hopper's instructions; FlashAttention-3 does and reaches about twice that"
            .to_owned(),
        Some("CUDA C++ with CUTLASS; the Hopper version is FlashAttention-3 (arXiv 2407.08608)"),
    )
}
