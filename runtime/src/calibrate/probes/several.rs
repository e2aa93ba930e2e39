//! Several calls of a rank after each other, with what schedules have around them and single calls do not: blocks of unequal
//! sizes, keys of which queries see half, messages that the next call waits for, ranks with unequal work. None is a schedule:
//! every call attends the rank's own keys.

use ringlab_sim::layout::{Layout, LayoutKind};
use ringlab_sim::mask::{Documents, Pattern};
use ringlab_sim::plan::builder::PlanBuilder;
use ringlab_sim::plan::{BlockId, Buf, MaskId, OpId, OpKind, Plan, Slots, Tensor, Transport};
use ringlab_sim::problem::{Pass, Shape};

use super::exchange::{Sent, pass_on};
use super::{PREFIX, Row, builder, gradients, problem};

/// Sizes are in these shares of a rank's tokens.
const SHARES: u64 = 16;

/// Slots of a rank from one share to another of its `tokens`.
fn slots(rank: u32, tokens: u64, (from, to): (u64, u64)) -> Slots {
    Slots { rank, from: tokens * from / SHARES, to: tokens * to / SHARES }
}

/// Four full calls over keys of unequal sizes, which hand a state on, on each of `ranks` ranks.
pub fn unequal(shape: Shape, tokens: u64, ranks: u32) -> Option<Plan> {
    let problem = problem(shape, Pattern::Full, tokens * u64::from(ranks));
    let mut b = builder("unequal calls", Pass::Forward, &problem, ranks, Transport::CopyEngine)?;
    for rank in 0..ranks {
        let mut row = Row::new(&mut b, rank, &[slots(rank, tokens, (0, 10))]);
        for keys in [(0, 3), (3, 8), (8, 11), (11, 16)] {
            row.attend(&mut b, &[slots(rank, tokens, keys)], MaskId::NONE);
        }
        row.finish(&mut b);
    }
    Some(b.finish())
}

/// Queries in two chunks: causal over two earlier chunks of keys, of which the first chunk of queries sees half, and then
/// over their own; on each of `ranks` ranks.
pub fn chunks(shape: Shape, tokens: u64, ranks: u32) -> Option<Plan> {
    let problem = problem(shape, Pattern::Causal, tokens * u64::from(ranks));
    let mut b = builder("two chunks", Pass::Forward, &problem, ranks, Transport::CopyEngine)?;
    for rank in 0..ranks {
        let [earlier, own] = [[(0, 4), (8, 12)], [(4, 8), (12, 16)]]
            .map(|chunks| chunks.map(|share| slots(rank, tokens, share)));
        let mut row = Row::new(&mut b, rank, &own);
        row.attend(&mut b, &earlier, MaskId::PROBLEM);
        row.attend(&mut b, &own, MaskId::PROBLEM);
        row.finish(&mut b);
    }
    Some(b.finish())
}

/// Tokens dealt out one by one: causal over the first part of a rank's keys, then over the others, which few of its queries
/// see; on each of `ranks` ranks.
pub fn stripes(shape: Shape, tokens: u64, ranks: u32) -> Option<Plan> {
    let problem = problem(shape, Pattern::Causal, tokens * u64::from(ranks));
    let documents = Documents::padded(&problem.documents, 1);
    let layout = Layout::new(LayoutKind::Striped { block: 1 }, ranks, documents).ok()?;
    let name = format!("{PREFIX}stripes");
    let mut b = PlanBuilder::new(name, Pass::Forward, &problem, layout, Transport::CopyEngine);
    for rank in 0..ranks {
        let mut row = Row::new(&mut b, rank, &[slots(rank, tokens, (0, 16))]);
        for keys in [(0, 10), (10, 16)] {
            row.attend(&mut b, &[slots(rank, tokens, keys)], MaskId::PROBLEM);
        }
        row.finish(&mut b);
    }
    Some(b.finish())
}

/// Three full calls on each of `ranks` ranks, of more queries on every other rank. Beside the second all keys and values of a rank
/// go to the next rank, where nothing reads them; the third waits for their arrival.
pub fn exchange(shape: Shape, tokens: u64, ranks: u32, over: Transport) -> Option<Plan> {
    let problem = problem(shape, Pattern::Full, tokens * u64::from(ranks));
    let name = match over {
        Transport::CopyEngine => "calls and a copy",
        Transport::Nccl => "calls and NCCL",
    };
    let mut b = builder(name, Pass::Forward, &problem, ranks, over)?;
    let [first, second, third] = [(0, 6), (6, 10), (10, 16)];
    let (mut rows, mut sent) = (Vec::new(), Vec::new());
    for rank in 0..ranks {
        let queries = (0, if rank % 2 == 0 { 12 } else { 8 });
        let mut row = Row::new(&mut b, rank, &[slots(rank, tokens, queries)]);
        let keys = b.block(&[b.shard(rank)], true);
        let buffer = b.input(rank, Tensor::KeyValue, keys);
        let after = row.attend(&mut b, &[slots(rank, tokens, first)], MaskId::NONE);
        sent.push(Sent { tensor: Tensor::KeyValue, block: keys, buffer, after: Some(after) });
        rows.push(row);
    }
    let received = pass_on(&mut b, 1, &sent, over);
    for (mut row, received) in rows.into_iter().zip(received) {
        row.attend(&mut b, &[slots(row.rank, tokens, second)], MaskId::NONE);
        let last = row.attend(&mut b, &[slots(row.rank, tokens, third)], MaskId::NONE);
        b.wait(row.rank, last, received);
        row.finish(&mut b);
    }
    Some(b.finish())
}

/// Row sums, a full backward call over earlier keys, a causal one over all keys up to the queries' end, and the first one's
/// gradients of keys added to the second one's; on each of `ranks` ranks, of more queries on every other one. If there are
/// several, the first one's gradients also go to the next rank, beside the second call, and the addition waits for those that
/// arrive, which nothing reads.
pub fn backward(shape: Shape, tokens: u64, ranks: u32) -> Option<Plan> {
    let problem = problem(shape, Pattern::Causal, tokens * u64::from(ranks));
    let mut b = builder("backward calls", Pass::Backward, &problem, ranks, Transport::CopyEngine)?;
    let (mut rows, mut sent) = (Vec::new(), Vec::new());
    for rank in 0..ranks {
        let row = Gradients::new(&mut b, rank, tokens, if rank % 2 == 0 { 6 } else { 12 });
        b.compute(rank, 0, OpKind::Preprocess { q: row.q.into(), delta: row.delta, block: row.q_block });
        let after = row.attend(&mut b, (row.earlier, row.added), true);
        sent.push(Sent {
            tensor: Tensor::KeyValueGrad,
            block: row.earlier,
            buffer: row.added,
            after: Some(after),
        });
        rows.push(row);
    }
    let received = if ranks > 1 { pass_on(&mut b, 1, &sent, Transport::CopyEngine) } else { Vec::new() };
    for row in &rows {
        row.attend(&mut b, (row.all, row.kept), false);
        let sum = b.compute(row.rank, 2, OpKind::Accumulate { from: row.added, into: row.kept });
        if let Some(&received) = received.get(row.rank as usize) {
            b.wait(row.rank, sum, received);
        }
    }
    Some(b.finish())
}

/// A rank's buffers of a backward over the keys before its queries, and over all.
struct Gradients {
    rank: u32,
    q_block: BlockId,
    q: Buf,
    delta: Buf,
    dq: Buf,
    earlier: BlockId,
    added: Buf,
    all: BlockId,
    kept: Buf,
}

impl Gradients {
    /// Queries from share `first` on.
    fn new(b: &mut PlanBuilder, rank: u32, tokens: u64, first: u64) -> Self {
        let q_block = b.block(&[slots(rank, tokens, (first, SHARES))], false);
        let [earlier, all] = [first, SHARES].map(|to| b.block(&[slots(rank, tokens, (0, to))], true));
        Self {
            rank,
            q_block,
            q: b.input(rank, Tensor::QuerySide, q_block),
            delta: b.scratch(rank, Tensor::Delta, q_block),
            dq: b.output(rank, Tensor::QueryGrad, q_block),
            earlier,
            added: b.scratch(rank, Tensor::KeyValueGrad, earlier),
            all,
            kept: b.output(rank, Tensor::KeyValueGrad, all),
        }
    }

    /// The call over these keys, whose gradients start in `dkv`; without a mask if it is the first.
    fn attend(&self, b: &mut PlanBuilder, (kv_block, dkv): (BlockId, Buf), init_dq: bool) -> OpId {
        let kv = b.input(self.rank, Tensor::KeyValue, kv_block);
        let &Self { q, delta, dq, q_block, .. } = self;
        let mask = if init_dq { MaskId::NONE } else { MaskId::PROBLEM };
        let kind = gradients((q.into(), delta, q_block), (kv.into(), kv_block), (dq, dkv), (mask, init_dq));
        b.compute(self.rank, u32::from(!init_dq), kind)
    }
}
