//! The backward: helpers return dq to the queries' owner, own work returns dk and dv to the keys' owner; both are added
//! one step later.

use super::{Fetch, Task, Work};
use crate::plan::builder::PlanBuilder;
use crate::plan::{BlockId, Buf, Bufs, MessageId, OpId, OpKind, Plan, Rank, Tensor};
use crate::schedule::Options;
use crate::schedule::step::Channel;

struct Buffers {
    delta: Buf,
    dq: Buf,
    dkv: Buf,
    /// delta of queries that this rank helps with.
    helped_delta: Buf,
    /// Gradients for other ranks, and from them, by step parity.
    dq_out: [Buf; 2],
    dkv_out: [Buf; 2],
    dq_in: [Buf; 2],
    dkv_in: [Buf; 2],
}

/// A gradient on its way home.
struct Return {
    to: Rank,
    from: Buf,
    into: Buf,
}

pub(super) fn build(mut b: PlanBuilder, options: &Options) -> Plan {
    let fetch = Fetch::new(&mut b, options, Tensor::QuerySide);
    let buffers: Vec<Buffers> = (0..b.ranks()).map(|r| allocate(&mut b, r, &fetch)).collect();
    let channel = Channel::new(options.transport, 1);
    for (r, own) in buffers.iter().enumerate() {
        b.compute(
            r as Rank,
            0,
            OpKind::Preprocess { q: fetch.own_q[r].into(), delta: own.delta, block: fetch.q_blocks[r] },
        );
    }
    let mut returned = Vec::new();
    fetch.each_step(
        &mut b,
        options.prefetch,
        |b, r, t, work| attend(b, &fetch, &buffers[r as usize], r, t, work),
        |b, t, work| {
            accumulate(b, t, &buffers, &returned);
            returned = send_home(b, &fetch, channel, &buffers, t, work);
        },
    );
    accumulate(&mut b, fetch.steps + 1, &buffers, &returned);
    b.finish()
}

fn allocate(b: &mut PlanBuilder, r: Rank, fetch: &Fetch) -> Buffers {
    let (q, kv) = (fetch.q_blocks[r as usize], fetch.kv_blocks[r as usize]);
    let mut pair = |tensor, block| [(); 2].map(|()| b.scratch(r, tensor, block));
    let (dq_out, dq_in) = (pair(Tensor::QueryGrad, q), pair(Tensor::QueryGrad, q));
    let (dkv_out, dkv_in) = (pair(Tensor::KeyValueGrad, kv), pair(Tensor::KeyValueGrad, kv));
    Buffers {
        delta: b.scratch(r, Tensor::Delta, q),
        dq: b.output(r, Tensor::QueryGrad, q),
        dkv: b.output(r, Tensor::KeyValueGrad, kv),
        helped_delta: b.scratch(r, Tensor::Delta, q),
        dq_out,
        dkv_out,
        dq_in,
        dkv_in,
    }
}

fn attend(b: &mut PlanBuilder, fetch: &Fetch, own: &Buffers, r: Rank, t: u32, work: Work) -> OpId {
    let parity = t as usize % 2;
    let helps = matches!(work.task, Task::Help { .. });
    let (q, kv) = fetch.inputs(r, t, work.task);
    if helps {
        b.compute(r, t, OpKind::Preprocess { q: q.into(), delta: own.helped_delta, block: work.q });
    }
    let returns_dkv = !helps && t > 0;
    let kind = OpKind::AttendBackward {
        q: q.into(),
        delta: if helps { own.helped_delta } else { own.delta },
        kv,
        dq: if helps { own.dq_out[parity] } else { own.dq },
        dkv: if returns_dkv { own.dkv_out[parity] } else { own.dkv }.into(),
        q_block: work.q,
        kv_block: work.kv,
        dkv_block: work.kv,
        mask: work.mask,
        init_dq: helps || t == 0,
        init_dkv: returns_dkv || t == 0,
    };
    b.compute(r, t, kind)
}

/// Sends the gradients of step t that belong to other ranks home.
fn send_home(
    b: &mut PlanBuilder,
    fetch: &Fetch,
    channel: Channel,
    buffers: &[Buffers],
    t: u32,
    work: &[Option<Work>],
) -> Vec<Return> {
    let parity = t as usize % 2;
    let mut sends: Vec<Vec<(MessageId, Bufs)>> = vec![Vec::new(); buffers.len()];
    let mut recvs: Vec<Vec<(MessageId, Buf)>> = vec![Vec::new(); buffers.len()];
    let mut returns = Vec::new();
    for (r, work) in work.iter().enumerate() {
        let Some((back, tensor, block)) = gradient(buffers, fetch, r, parity, t, *work) else { continue };
        let message = b.message(r as Rank, back.to, tensor, block);
        sends[r].push((message, back.from.into()));
        recvs[back.to as usize].push((message, back.into));
        returns.push(back);
    }
    for r in 0..buffers.len() {
        channel.exchange(b, (r as Rank, t), &sends[r], &recvs[r], None);
    }
    returns
}

/// What rank r's work of step t returns, if to another rank.
fn gradient(
    buffers: &[Buffers],
    fetch: &Fetch,
    r: usize,
    parity: usize,
    t: u32,
    work: Option<Work>,
) -> Option<(Return, Tensor, BlockId)> {
    let work = work?;
    match work.task {
        Task::Own { keys_of } if t > 0 => {
            let (from, into) = (buffers[r].dkv_out[parity], buffers[keys_of as usize].dkv_in[parity]);
            Some((Return { to: keys_of, from, into }, Tensor::KeyValueGrad, work.kv))
        }
        Task::Help { queries_of: to } => {
            let (from, into) = (buffers[r].dq_out[parity], buffers[to as usize].dq_in[parity]);
            Some((Return { to, from, into }, Tensor::QueryGrad, fetch.q_blocks[to as usize]))
        }
        _ => None,
    }
}

/// Adds at step t what was sent home at step t - 1.
fn accumulate(b: &mut PlanBuilder, t: u32, buffers: &[Buffers], returns: &[Return]) {
    for back in returns {
        let own = &buffers[back.to as usize];
        let into = if own.dq_in.contains(&back.into) { own.dq } else { own.dkv };
        b.compute(back.to, t, OpKind::Accumulate { from: back.into, into });
    }
}
