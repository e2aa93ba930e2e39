//! Closed forms: what no machine can beat. The oracle that simulations are held against.
//!
//! Work is counted in unmasked (query, key) pairs of one head, exactly: the causal diagonal block of c tokens has
//! `c (c + 1) / 2` of them. For large c that is half a `c x c` block, and the balances become the fractions that the
//! papers print.

use crate::schedule::Schedule;
use crate::units::{BytesPerSec, FlopsPerSec};

/// Pairs that the busiest rank computes of P heads under a causal mask, `c` tokens a rank on `ranks` ranks: P heads, since
/// schedules that divide heads need as many. For zigzag `c` is even, for stripes a multiple of the block.
///
/// | schedule | in blocks of c x c, a head | limit of the balance |
/// |---|---|---|
/// | ring, all-gather | P - 1/2 | P/(2P-1) |
/// | zigzag, all-gather zigzag, double ring, Ulysses, Megatron-SP, USP | P/2 | 1 |
/// | striped, block b | P/2 (1 + b/c) and less than that | 1 |
/// | DistFlashAttn, P even | P/2 + 1/2 | P/(P+1) |
/// | DistFlashAttn, P odd | P/2 | 1 |
/// | Ring Self-Attention, which computes masked pairs too | P | 1/2 |
pub fn critical_pairs(schedule: Schedule, ranks: u32, c: u64) -> u128 {
    let (p, c) = (u128::from(ranks), u128::from(c));
    let diagonal = c * (c + 1) / 2;
    match schedule {
        Schedule::Ring | Schedule::Burst { zigzag: false } | Schedule::AllGather { zigzag: false } => {
            p * ((p - 1) * c * c + diagonal)
        }
        Schedule::RingSelfAttention => p * p * c * c,
        Schedule::DistFlash => p * (p / 2 * c * c + diagonal),
        Schedule::Zigzag
        | Schedule::Burst { zigzag: true }
        | Schedule::AllGather { zigzag: true }
        | Schedule::DoubleRing { .. } => p * zigzag(p, c),
        Schedule::Striped { block } => {
            let b = u128::from(block);
            let n = c / b;
            let blocks_below = n * (n - 1) / 2 * b * b;
            let own = blocks_below + n * b * (b + 1) / 2;
            p * (own + (p - 1) * (blocks_below + n * b * b))
        }
        Schedule::Usp { grid, .. } => {
            let (u, r) = grid.map_or((1, p), |(u, r)| (u128::from(u), u128::from(r)));
            r * zigzag(r, u * c)
        }
        Schedule::Ulysses | Schedule::MegatronSp => p * c * (p * c + 1) / 2,
    }
}

/// Pairs of one head on a rank of a zigzag ring of `p` ranks with `c` tokens each.
fn zigzag(p: u128, c: u128) -> u128 {
    let m = c / 2;
    m * m + m * (m + 1) + (p - 1) * 2 * m * m
}

/// Mean work a rank over that of the busiest one, under a causal mask: 1 is perfect balance.
pub fn balance(schedule: Schedule, ranks: u32, c: u64) -> f64 {
    let n = u128::from(ranks) * u128::from(c);
    (n * (n + 1) / 2) as f64 / critical_pairs(schedule, ranks, c) as f64
}

/// The most that `schedule` can gain over the contiguous ring by balance alone, under a causal mask: `2 - 1/P` at most.
pub fn speedup_over_ring(schedule: Schedule, ranks: u32, c: u64) -> f64 {
    critical_pairs(Schedule::Ring, ranks, c) as f64 / critical_pairs(schedule, ranks, c) as f64
}

/// What a ring step computes and moves: the terms of the overlap bound.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RingStep {
    /// Reached rate of attention.
    pub compute: FlopsPerSec,
    /// Reached rate of the link, one way.
    pub link: BytesPerSec,
    /// Bytes of an element of K and V.
    pub element_bytes: u64,
    /// Query heads over kv heads, H/K.
    pub group: u32,
    /// Share of a c x c block that a step computes: 1 for a full block, 1/2 for zigzag and stripes under a causal mask.
    pub block_share: f64,
}

/// The smallest block c, in tokens, whose forward hides the transfer of its keys and values.
///
/// A step computes `4 c^2 D H share` FLOPs and moves `2 c D K e` bytes, so it is hidden from
/// `c = F e / (2 B (H/K) share)` on. With MHA, 16 bits and full blocks that is Ring Attention's F/B (arXiv 2310.01889,
/// section 3), where F and B should be reached rates, not a datasheet's.
pub fn min_block_tokens(step: &RingStep) -> f64 {
    let per_flop = step.element_bytes as f64 / (2.0 * f64::from(step.group) * step.block_share);
    step.compute.0 / step.link.0 * per_flop
}

/// The set-up of a training step in Striped Attention's closed form (arXiv 2311.09431, section 4).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StripedStep {
    /// Sequence length in tokens.
    pub tokens: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Width of the feed-forward layer; the paper counts two of its matrices.
    pub intermediate: u64,
    /// Entries of the vocabulary.
    pub vocab: u64,
    /// Layers.
    pub layers: u64,
    /// Sequence-parallel degree.
    pub ranks: u64,
    /// How much slower attention's FLOPs are than a matrix product's: 2 on A100, where attention ran in TF32, 1 on TPU.
    pub attention_slowdown: f64,
}

/// The theoretical maximum speed-up of a whole training step over Ring Attention:
/// `(1 + r (N - 1/2)/N) / (1 + r/2)`, r being the time of attention over a full block against everything else.
pub fn striped_maximum(step: &StripedStep) -> f64 {
    let (d, ff, n) = (step.hidden as f64, step.intermediate as f64, step.ranks as f64);
    let attention = 4.0 * step.tokens as f64 * d * step.attention_slowdown;
    let matrices = 2.0 * (4.0 * d * d + 2.0 * d * ff) + 2.0 * step.vocab as f64 * d / step.layers as f64;
    let r = attention / matrices;
    (1.0 + r * (n - 0.5) / n) / (1.0 + r / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mask::Pattern;
    use crate::plan::{OpKind, Scores};
    use crate::problem::{Dtype, Pass, Problem, Shape};
    use crate::schedule::{Options, build};
    use crate::work;

    fn shape(heads: u32) -> Shape {
        Shape { heads, kv_heads: heads, head_dim: 64, dtype: Dtype::Bf16, batch: 1 }
    }

    /// Pairs of P heads of the busiest rank, summed over the plan's own calls.
    fn busiest(schedule: Schedule, ranks: u32, c: u64) -> u128 {
        let problem =
            Problem { shape: shape(ranks), pattern: Pattern::Causal, documents: vec![c * u64::from(ranks)] };
        let plan = build(schedule, &problem, ranks, &Options::new(Pass::Forward)).unwrap();
        let of_op = |kind: &OpKind| match *kind {
            OpKind::Attend { q_block, kv_block, mask, .. } => {
                let (q, kv) = (plan.block(q_block), plan.block(kv_block));
                work::pairs(plan.mask(mask), &q.tokens, &kv.tokens) * u128::from(q.heads.count)
            }
            OpKind::Scores(Scores::Score { q_block, kv_block, .. }) => {
                let (q, kv) = (plan.block(q_block), plan.block(kv_block));
                u128::from(q.tokens.len() * kv.tokens.len() * u64::from(q.heads.count))
            }
            _ => 0,
        };
        plan.programs.iter().map(|p| p.ops.iter().map(|op| of_op(&op.kind)).sum()).max().unwrap()
    }

    #[test]
    fn plans_have_the_published_critical_work() {
        for p in 1..=16u32 {
            for c in [8, 24] {
                let grids = (1..=p).filter(|u| p.is_multiple_of(*u)).map(|u| Some((u, p / u)));
                let grids = grids.map(|grid| Schedule::Usp { grid, across: false });
                for s in crate::schedule::ALL.into_iter().chain(grids) {
                    let named = s.on(&shape(p), p, 8);
                    assert_eq!(critical_pairs(named, p, c), busiest(s, p, c), "{s} P {p} c {c}");
                }
                let striped = Schedule::Striped { block: 4 };
                assert_eq!(critical_pairs(striped, p, c), busiest(striped, p, c), "{striped} P {p} c {c}");
            }
        }
    }

    #[test]
    fn balances_tend_to_the_published_fractions() {
        let c = 1 << 24;
        for p in 2..=64 {
            let q = f64::from(p);
            let helpers = if p % 2 == 0 { q / (q + 1.0) } else { 1.0 };
            let expected = [
                (Schedule::Ring, q / (2.0 * q - 1.0)),
                (Schedule::Zigzag, 1.0),
                (Schedule::Striped { block: 1 }, 1.0),
                (Schedule::DistFlash, helpers),
                (Schedule::Ulysses, 1.0),
                (Schedule::MegatronSp, 1.0),
                (Schedule::RingSelfAttention, 0.5),
                (Schedule::AllGather { zigzag: false }, q / (2.0 * q - 1.0)),
                (Schedule::AllGather { zigzag: true }, 1.0),
                (Schedule::DoubleRing { window: None, rail: false }, 1.0),
                (Schedule::Usp { grid: None, across: false }, 1.0),
            ];
            for (schedule, fraction) in expected {
                assert!((balance(schedule, p, c) - fraction).abs() < 1e-6, "{schedule} P {p}");
            }
            assert!((speedup_over_ring(Schedule::Zigzag, p, c) - (2.0 - 1.0 / q)).abs() < 1e-6);
        }
    }

    #[test]
    fn the_guides_minimum_blocks() {
        let h100 = |link| RingStep {
            compute: FlopsPerSec(989e12),
            link: BytesPerSec(link),
            element_bytes: 2,
            group: 1,
            block_share: 1.0,
        };
        assert_eq!(min_block_tokens(&h100(450e9)).floor(), 2197.0);
        assert_eq!(min_block_tokens(&h100(50e9)).round(), 19780.0);
        let llama3 = RingStep { group: 4, block_share: 0.5, ..h100(450e9) };
        assert_eq!(min_block_tokens(&llama3).floor(), 1098.0, "GQA divides by H/K, causal doubles");
    }

    #[derive(serde::Deserialize)]
    struct Row {
        hardware: String,
        model: String,
        seq_parallel: u64,
        n_seq: u64,
        #[serde(rename = "TMS_printed")]
        printed: f64,
    }

    #[derive(serde::Deserialize)]
    struct ModelRow {
        model: String,
        n_vocab: u64,
        d_model: u64,
        d_ff: u64,
        n_layer: u64,
    }

    #[test]
    fn striped_maxima_equal_all_printed_values() {
        let models = include_bytes!("../../experiments/papers/striped/models.csv");
        let models: Vec<ModelRow> =
            csv::Reader::from_reader(&models[..]).deserialize().map(Result::unwrap).collect();
        let rows = include_bytes!("../../experiments/papers/striped/speedups.csv");
        let rows: Vec<Row> = csv::Reader::from_reader(&rows[..]).deserialize().map(Result::unwrap).collect();
        assert_eq!(rows.len(), 137);
        for row in rows {
            let m = models.iter().find(|m| m.model == row.model).unwrap();
            let step = StripedStep {
                tokens: row.n_seq,
                hidden: m.d_model,
                intermediate: m.d_ff,
                vocab: m.n_vocab,
                layers: m.n_layer,
                ranks: row.seq_parallel,
                attention_slowdown: if row.hardware.starts_with("A100") { 2.0 } else { 1.0 },
            };
            let rounded = (striped_maximum(&step) * 100.0).round() / 100.0;
            let (hardware, model, n) = (&row.hardware, &row.model, row.n_seq);
            assert!(
                (rounded - row.printed).abs() < 1e-9,
                "{hardware} {model} {n}: {rounded} vs {}",
                row.printed
            );
        }
    }
}
