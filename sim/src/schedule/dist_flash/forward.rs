//! The forward: helpers return (o, m, l), which the queries' owner merges one step later.

use super::{Fetch, Task, Work};
use crate::plan::builder::PlanBuilder;
use crate::plan::{Buf, Bufs, MessageId, OpId, OpKind, Plan, Rank, Tensor};
use crate::schedule::Options;
use crate::schedule::step::Channel;

struct Buffers {
    state: Buf,
    out: Buf,
    /// States of other ranks' queries, by step parity.
    helped: [Buf; 2],
    /// Helpers' results, by step parity.
    results: [Buf; 2],
}

pub(super) fn build(mut b: PlanBuilder, options: &Options) -> Plan {
    let fetch = Fetch::new(&mut b, options, Tensor::Query);
    let buffers: Vec<Buffers> = (0..b.ranks()).map(|r| allocate(&mut b, r, &fetch)).collect();
    let channel = Channel::new(options.transport, 1);
    let mut returned = Vec::new();
    fetch.each_step(
        &mut b,
        options.prefetch,
        |b, r, t, work| attend(b, &fetch, &buffers, r, t, work),
        |b, t, work| {
            merge(b, &buffers, t, &returned);
            returned = send_results(b, channel, &buffers, t, work);
        },
    );
    merge(&mut b, &buffers, fetch.steps + 1, &returned);
    for (r, buffers) in buffers.iter().enumerate() {
        b.compute(r as Rank, fetch.steps, OpKind::Finish { state: buffers.state, out: buffers.out });
    }
    b.finish()
}

fn allocate(b: &mut PlanBuilder, r: Rank, fetch: &Fetch) -> Buffers {
    let block = fetch.q_blocks[r as usize];
    Buffers {
        state: b.scratch(r, Tensor::State, block),
        out: b.output(r, Tensor::Output, block),
        helped: [(); 2].map(|()| b.scratch(r, Tensor::State, block)),
        results: [(); 2].map(|()| b.scratch(r, Tensor::State, block)),
    }
}

fn attend(b: &mut PlanBuilder, fetch: &Fetch, buffers: &[Buffers], r: Rank, t: u32, work: Work) -> OpId {
    let own = &buffers[r as usize];
    let helps = matches!(work.task, Task::Help { .. });
    let state = if helps { own.helped[t as usize % 2] } else { own.state };
    let (q, kv) = fetch.inputs(r, t, work.task);
    let init = helps || t == 0;
    b.compute(
        r,
        t,
        OpKind::Attend { q: q.into(), kv, state, q_block: work.q, kv_block: work.kv, mask: work.mask, init },
    )
}

/// Sends the helpers' results of step t home; returns the ranks that get one.
fn send_results(
    b: &mut PlanBuilder,
    channel: Channel,
    buffers: &[Buffers],
    t: u32,
    work: &[Option<Work>],
) -> Vec<Rank> {
    let mut sends: Vec<Option<(MessageId, Bufs)>> = vec![None; buffers.len()];
    let mut recvs: Vec<Option<(MessageId, Buf)>> = vec![None; buffers.len()];
    let mut homes = Vec::new();
    let parity = t as usize % 2;
    for (r, work) in work.iter().enumerate() {
        let Some(Work { task: Task::Help { queries_of }, q, .. }) = *work else { continue };
        let message = b.message(r as Rank, queries_of, Tensor::State, q);
        sends[r] = Some((message, buffers[r].helped[parity].into()));
        recvs[queries_of as usize] = Some((message, buffers[queries_of as usize].results[parity]));
        homes.push(queries_of);
    }
    for (r, (send, recv)) in sends.iter().zip(&recvs).enumerate() {
        channel.exchange(b, (r as Rank, t), send.as_slice(), recv.as_slice(), None);
    }
    homes
}

/// Merges at step t what was sent home at step t - 1.
fn merge(b: &mut PlanBuilder, buffers: &[Buffers], t: u32, homes: &[Rank]) {
    for &r in homes {
        let own = &buffers[r as usize];
        let from = own.results[(t as usize + 1) % 2];
        b.compute(r, t, OpKind::Merge { from, into: own.state });
    }
}
