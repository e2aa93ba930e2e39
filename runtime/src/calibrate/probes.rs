//! The plans that a calibration measures: attention calls of ranks that have nothing to do with each other, single messages
//! between two, the two beside each other, steps that stream memory, and several of all these. None of them is a schedule:
//! nothing attends what a message brings.

mod exchange;
pub mod several;

use exchange::{Sent, pass_on};
use ringlab_sim::layout::{Layout, LayoutKind};
use ringlab_sim::mask::{Documents, Pattern};
use ringlab_sim::plan::builder::PlanBuilder;
use ringlab_sim::plan::{BlockId, Buf, Bufs, Lane, MaskId, OpId, OpKind, Plan, Slots, Tensor, Transport};
use ringlab_sim::problem::{Pass, Problem, Shape};

/// What every probe's name begins with.
pub const PREFIX: &str = "probe:";

/// Who sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ways {
    /// Rank 0 to rank 1.
    One,
    /// Both at once.
    Both,
}

fn builder(
    name: &str,
    pass: Pass,
    problem: &Problem,
    ranks: u32,
    transport: Transport,
) -> Option<PlanBuilder> {
    let documents = Documents::padded(&problem.documents, 1);
    let layout = Layout::new(LayoutKind::Contiguous, ranks, documents).ok()?;
    Some(PlanBuilder::new(format!("{PREFIX}{name}"), pass, problem, layout, transport))
}

fn problem(shape: Shape, pattern: Pattern, tokens: u64) -> Problem {
    Problem { shape, pattern, documents: vec![tokens] }
}

/// One attention call of `tokens` queries over as many keys on each of `ranks` ranks at the same time.
pub fn call(shape: Shape, pass: Pass, pattern: Pattern, tokens: u64, ranks: u32) -> Option<Plan> {
    let problem = problem(shape, pattern, tokens * u64::from(ranks));
    let mut b = builder(&format!("call {pattern}"), pass, &problem, ranks, Transport::CopyEngine)?;
    for rank in 0..ranks {
        own_call(&mut b, rank, pass, pattern);
    }
    Some(b.finish())
}

/// The same between two small exchanges of `ranks` ranks in a ring: the call waits for what the first brings, and the second
/// for the call. Nothing moves while it runs.
pub fn between(shape: Shape, pass: Pass, pattern: Pattern, tokens: u64, ranks: u32) -> Option<Plan> {
    let problem = problem(shape, pattern, tokens * u64::from(ranks));
    let name = format!("call {pattern} between messages");
    let mut b = builder(&name, pass, &problem, ranks, Transport::CopyEngine)?;
    let few = |rank| Slots { rank, from: 0, to: (tokens / SMALL).max(1) };
    let mut sent = Vec::new();
    for rank in 0..ranks {
        let (tensor, block) = (Tensor::KeyValue, b.block(&[few(rank)], true));
        sent.push(Sent { tensor, block, buffer: b.input(rank, tensor, block), after: None });
    }
    let received = pass_on(&mut b, 0, &sent, Transport::CopyEngine);
    for ((rank, own), received) in (0..ranks).zip(&mut sent).zip(received) {
        let call = own_call(&mut b, rank, pass, pattern);
        b.wait(rank, call, received);
        own.after = Some(call);
    }
    pass_on(&mut b, 1, &sent, Transport::CopyEngine);
    Some(b.finish())
}

/// One call of a rank's queries over its own keys.
fn own_call(b: &mut PlanBuilder, rank: u32, pass: Pass, pattern: Pattern) -> OpId {
    let mask = if pattern == Pattern::Full { MaskId::NONE } else { MaskId::PROBLEM };
    let shard = b.shard(rank);
    match pass {
        Pass::Forward => forward_call(b, (shard, shard), mask),
        Pass::Backward => backward_call(b, shard, mask),
    }
}

/// One call of some queries of a rank over some of its keys.
fn forward_call(b: &mut PlanBuilder, (queries, keys): (Slots, Slots), mask: MaskId) -> OpId {
    let rank = queries.rank;
    let (q_block, kv_block) = (b.block(&[queries], false), b.block(&[keys], true));
    let q = b.input(rank, Tensor::Query, q_block).into();
    let kv = b.input(rank, Tensor::KeyValue, kv_block).into();
    let state = b.scratch(rank, Tensor::State, q_block);
    let out = b.output(rank, Tensor::Output, q_block);
    let call = b.compute(rank, 0, OpKind::Attend { q, kv, state, q_block, kv_block, mask, init: true });
    b.compute(rank, 0, OpKind::Finish { state, out });
    call
}

fn backward_call(b: &mut PlanBuilder, shard: Slots, mask: MaskId) -> OpId {
    let rank = shard.rank;
    let (q_block, kv_block) = (b.block(&[shard], false), b.block(&[shard], true));
    let kv = b.input(rank, Tensor::KeyValue, kv_block).into();
    let dkv = b.output(rank, Tensor::KeyValueGrad, kv_block);
    let dq = b.output(rank, Tensor::QueryGrad, q_block);
    backward_of(b, (q_block, kv_block), (kv, dkv), dq, mask)
}

/// Row sums and gradients of some queries over some keys, of the rank of the queries; the call of the gradients.
fn backward_of(
    b: &mut PlanBuilder,
    (q_block, kv_block): (BlockId, BlockId),
    (kv, dkv): (Bufs, Buf),
    dq: Buf,
    mask: MaskId,
) -> OpId {
    let rank = b.slots(q_block)[0].rank;
    let q = b.input(rank, Tensor::QuerySide, q_block).into();
    let delta = b.scratch(rank, Tensor::Delta, q_block);
    b.compute(rank, 0, OpKind::Preprocess { q, delta, block: q_block });
    b.compute(rank, 0, gradients((q, delta, q_block), (kv, kv_block), (dq, dkv), (mask, true)))
}

/// A backward call whose gradients of keys start with it, and those of queries if `init_dq`.
fn gradients(
    (q, delta, q_block): (Bufs, Buf, BlockId),
    (kv, kv_block): (Bufs, BlockId),
    (dq, dkv): (Buf, Buf),
    (mask, init_dq): (MaskId, bool),
) -> OpKind {
    let (dkv, dkv_block, init_dkv) = (dkv.into(), kv_block, true);
    OpKind::AttendBackward { q, delta, kv, dq, dkv, q_block, kv_block, dkv_block, mask, init_dq, init_dkv }
}

/// A forward state of some queries of a rank, and the calls that go into it.
struct Row {
    rank: u32,
    q_block: BlockId,
    q: Buf,
    state: Buf,
    out: Buf,
    calls: u32,
}

impl Row {
    fn new(b: &mut PlanBuilder, rank: u32, queries: &[Slots]) -> Self {
        let q_block = b.block(queries, false);
        let q = b.input(rank, Tensor::Query, q_block);
        let state = b.scratch(rank, Tensor::State, q_block);
        let out = b.output(rank, Tensor::Output, q_block);
        Self { rank, q_block, q, state, out, calls: 0 }
    }

    /// The next call, over these keys of the rank.
    fn attend(&mut self, b: &mut PlanBuilder, keys: &[Slots], mask: MaskId) -> OpId {
        let &mut Self { rank, q_block, q, state, calls, .. } = self;
        let kv_block = b.block(keys, true);
        let kv = b.input(rank, Tensor::KeyValue, kv_block).into();
        self.calls += 1;
        let kind = OpKind::Attend { q: q.into(), kv, state, q_block, kv_block, mask, init: calls == 0 };
        b.compute(rank, calls, kind)
    }

    fn finish(self, b: &mut PlanBuilder) {
        b.compute(self.rank, self.calls, OpKind::Finish { state: self.state, out: self.out });
    }
}

/// Full attention of `tokens` queries over the first `keys` of as many keys: many work items of few tiles.
pub fn rectangle(shape: Shape, tokens: u64, keys: u64) -> Option<Plan> {
    let problem = problem(shape, Pattern::Full, tokens);
    let mut b = builder("rectangle", Pass::Forward, &problem, 1, Transport::CopyEngine)?;
    let part = |to| Slots { rank: 0, from: 0, to };
    forward_call(&mut b, (part(tokens), part(keys)), MaskId::NONE);
    Some(b.finish())
}

/// Full attention of `tokens / calls` queries over `calls` equal blocks of keys, one call each: all but the first take
/// up a carried state, all but the last leave one.
pub fn carried(shape: Shape, tokens: u64, calls: u64) -> Option<Plan> {
    let problem = problem(shape, Pattern::Full, tokens);
    let mut b = builder("carried state", Pass::Forward, &problem, 1, Transport::CopyEngine)?;
    let part = |i: u64| Slots { rank: 0, from: tokens * i / calls, to: tokens * (i + 1) / calls };
    let mut row = Row::new(&mut b, 0, &[part(0)]);
    for i in 0..calls {
        row.attend(&mut b, &[part(i)], MaskId::NONE);
    }
    row.finish(&mut b);
    Some(b.finish())
}

/// Keys and values of `tokens` tokens sent between two ranks.
pub fn message(shape: Shape, tokens: u64, ways: Ways, transport: Transport) -> Option<Plan> {
    let problem = problem(shape, Pattern::Full, 2 * tokens);
    let mut b = builder(&format!("message {ways:?}").to_lowercase(), Pass::Forward, &problem, 2, transport)?;
    let senders: &[u32] = if ways == Ways::One { &[0] } else { &[0, 1] };
    let group = b.group();
    for &from in senders {
        send(&mut b, (from, 1 - from), transport, group);
    }
    Some(b.finish())
}

/// Keys and values of `tokens` tokens sent by copy engine from each first rank of `ways` to the second, of `ranks` ranks and all
/// at once.
pub fn copies(shape: Shape, tokens: u64, ranks: u32, ways: &[(u32, u32)]) -> Option<Plan> {
    let problem = problem(shape, Pattern::Full, tokens * u64::from(ranks));
    let mut b = builder("copies", Pass::Forward, &problem, ranks, Transport::CopyEngine)?;
    let group = b.group();
    for &way in ways {
        send(&mut b, way, Transport::CopyEngine, group);
    }
    Some(b.finish())
}

/// Keys and values of all of a rank's tokens to another one.
fn send(b: &mut PlanBuilder, (from, to): (u32, u32), transport: Transport, group: u32) {
    let shard = b.shard(from);
    let block = b.block(&[shard], true);
    let (source, target) = (b.input(from, Tensor::KeyValue, block), b.scratch(to, Tensor::KeyValue, block));
    let message = b.message(from, to, Tensor::KeyValue, block);
    let receives = Lane::comm(u8::from(transport == Transport::CopyEngine));
    b.push(from, Lane::comm(0), 0, group, OpKind::Send { message, buffer: source.into() });
    b.push(to, receives, 0, group, OpKind::Recv { message, buffer: target });
}

/// Which is first where a call and a message run beside each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum First {
    /// Both are free to start at once; a call needs less preparation.
    Call,
    /// The message moves when the call starts, which waits for a small call that leaves most SMs free.
    Message,
}

/// How many times as many queries as its small first call a rank has.
const SMALL: u64 = 256;

/// Full attention of a rank's `tokens` queries over its first `keys` keys on both of two ranks, and beside it the keys and
/// values of all of its tokens on their way to the other rank, where nothing reads them; without a message if `transport`
/// is `None`.
pub fn beside(
    shape: Shape,
    (tokens, keys): (u64, u64),
    first: First,
    transport: Option<Transport>,
) -> Option<Plan> {
    let problem = problem(shape, Pattern::Full, 2 * tokens);
    let name = match transport {
        None => "call without a message",
        Some(Transport::CopyEngine) => "call beside a copy",
        Some(Transport::Nccl) => "call beside NCCL",
    };
    let over = transport.unwrap_or(Transport::CopyEngine);
    let mut b = builder(name, Pass::Forward, &problem, 2, over)?;
    let small = if first == First::Message { (tokens / SMALL).max(1) } else { 0 };
    let group = b.group();
    for rank in 0..2 {
        let part = |from, to| Slots { rank, from, to };
        if small > 0 {
            forward_call(&mut b, (part(0, small), part(0, tokens)), MaskId::NONE);
        }
        forward_call(&mut b, (part(small, tokens), part(0, keys)), MaskId::NONE);
    }
    if transport.is_some() {
        for from in 0..2 {
            send(&mut b, (from, 1 - from), over, group);
        }
    }
    Some(b.finish())
}

/// Two states of the same `tokens` queries, each of a call over few keys, and one merged into the other.
pub fn merge(shape: Shape, tokens: u64) -> Option<Plan> {
    let problem = problem(shape, Pattern::Full, tokens);
    let mut b = builder("merge", Pass::Forward, &problem, 1, Transport::CopyEngine)?;
    let q_block = b.block(&[b.shard(0)], false);
    let q = b.input(0, Tensor::Query, q_block);
    let states = [(); 2].map(|()| b.scratch(0, Tensor::State, q_block));
    let out = b.output(0, Tensor::Output, q_block);
    let few = (tokens / SMALL).max(1);
    for (i, &state) in (0..).zip(&states) {
        let keys = Slots { rank: 0, from: i * few, to: (i + 1) * few };
        let kv_block = b.block(&[keys], true);
        let kv = b.input(0, Tensor::KeyValue, kv_block);
        let (q, kv, mask, init) = (q.into(), kv.into(), MaskId::NONE, true);
        b.compute(0, 0, OpKind::Attend { q, kv, state, q_block, kv_block, mask, init });
    }
    b.compute(0, 1, OpKind::Merge { from: states[1], into: states[0] });
    b.compute(0, 1, OpKind::Finish { state: states[0], out });
    Some(b.finish())
}

/// Gradients of `tokens` keys by a call of as many queries and by one of few, and the second's added to the first's.
pub fn accumulate(shape: Shape, tokens: u64) -> Option<Plan> {
    let problem = problem(shape, Pattern::Full, tokens);
    let mut b = builder("accumulate", Pass::Backward, &problem, 1, Transport::CopyEngine)?;
    let (all, kv_block) = (b.block(&[b.shard(0)], false), b.block(&[b.shard(0)], true));
    let few = b.block(&[Slots { rank: 0, from: 0, to: (tokens / SMALL).max(1) }], false);
    let kv = b.input(0, Tensor::KeyValue, kv_block).into();
    let kept = b.output(0, Tensor::KeyValueGrad, kv_block);
    let added = b.scratch(0, Tensor::KeyValueGrad, kv_block);
    let (dq, dq_of_few) = (b.output(0, Tensor::QueryGrad, all), b.scratch(0, Tensor::QueryGrad, few));
    backward_of(&mut b, (all, kv_block), (kv, kept), dq, MaskId::NONE);
    backward_of(&mut b, (few, kv_block), (kv, added), dq_of_few, MaskId::NONE);
    b.compute(0, 1, OpKind::Accumulate { from: added, into: kept });
    Some(b.finish())
}
