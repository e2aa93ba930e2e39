//! DistFlashAttn (arXiv 2310.03294): contiguous tokens, `h = floor(P/2)` steps after the diagonal. At step t rank
//! `r >= t` does its own work (Q r, KV r-t); rank `r < t` helps with (Q (r-t) mod P, KV r) and sends the partial result
//! back. For even P ranks `r < h` idle at step h: their pairs are the other half's own work. The algorithm as printed
//! loses pairs at odd P; here nobody idles at step h then, and the last helpers' results come back after the loop.
//!
//! In the backward a helper gets q, o, do and lse and returns dq; own work returns dk and dv to the keys' owner.

mod backward;
mod forward;

use super::Options;
use super::step::{Travel, classify, clip, owner, part_sizes, shards};
use crate::layout::Layout;
use crate::mask::Pattern;
use crate::plan::builder::PlanBuilder;
use crate::plan::{BlockId, Buf, Bufs, MaskId, MessageId, OpId, Plan, Rank, Slots, Tensor};
use crate::problem::{Pass, Problem};

use super::Route;
use super::step::Channel;

pub(super) fn build(problem: &Problem, layout: Layout, options: &Options) -> Plan {
    let mut b = options.builder("dist-flash".into(), problem, layout);
    if options.chunks > 1 {
        b.note("chunks: only keys and values are cut; queries and results travel whole");
    }
    if problem.pattern != Pattern::Causal || problem.documents.len() > 1 {
        b.note("blocks without an unmasked pair are never fetched, whether or not only needed keys are asked for");
    }
    match options.pass {
        Pass::Forward => forward::build(b, options),
        Pass::Backward => backward::build(b, options),
    }
}

/// What one rank does at one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Task {
    /// Its own queries over the keys of `keys_of`.
    Own { keys_of: Rank },
    /// The queries of `queries_of` over its own keys.
    Help { queries_of: Rank },
    /// Nothing.
    Idle,
}

/// The published assignment, step t of rank r of P.
fn task(r: Rank, t: u32, ranks: u32) -> Task {
    let idles = ranks.is_multiple_of(2) && t == ranks / 2;
    match r {
        _ if r >= t => Task::Own { keys_of: r - t },
        _ if idles => Task::Idle,
        _ => Task::Help { queries_of: owner(r, t, ranks) },
    }
}

/// A task with its blocks; tasks without an unmasked pair are left out, but for the diagonal.
#[derive(Debug, Clone, Copy)]
struct Work {
    task: Task,
    q: BlockId,
    kv: BlockId,
    mask: MaskId,
}

/// The inputs that travel: keys to their next user, queries to their helper.
struct Fetch {
    ranks: u32,
    steps: u32,
    chunks: u64,
    channel: Channel,
    /// Query-side tensor that a helper gets.
    tensor: Tensor,
    q_blocks: Vec<BlockId>,
    kv_blocks: Vec<BlockId>,
    travel: Travel,
    own_q: Vec<Buf>,
    own_kv: Vec<Buf>,
    kv_stages: Vec<Vec<Bufs>>,
    q_stages: Vec<Vec<Buf>>,
}

impl Fetch {
    fn new(b: &mut PlanBuilder, options: &Options, tensor: Tensor) -> Self {
        let ranks = b.ranks();
        let (q_blocks, kv_blocks) = (shards(b, false), shards(b, true));
        let chunks = u64::from(options.chunks);
        let sizes = part_sizes(b, options, kv_blocks[0]);
        let depth = (options.prefetch.max(1) + 1).min(ranks / 2);
        let direct = Options { route: Route::Direct, ..*options };
        Self {
            ranks,
            steps: ranks / 2,
            chunks,
            channel: Channel::new(options.transport, 0),
            tensor,
            travel: Travel::new(b, &direct, false, |r, _| q_blocks[r as usize]),
            own_q: (0..ranks).map(|r| b.input(r, tensor, q_blocks[r as usize])).collect(),
            own_kv: (0..ranks).map(|r| b.input(r, Tensor::KeyValue, kv_blocks[r as usize])).collect(),
            kv_stages: (0..ranks)
                .map(|r| (0..depth).map(|_| b.scratch_parts(r, Tensor::KeyValue, &sizes)).collect())
                .collect(),
            q_stages: (0..ranks)
                .map(|r| (0..depth).map(|_| b.scratch(r, tensor, q_blocks[r as usize])).collect())
                .collect(),
            q_blocks,
            kv_blocks,
        }
    }

    /// What rank r computes at step t.
    fn work(&self, b: &mut PlanBuilder, r: Rank, t: u32) -> Option<Work> {
        let task = task(r, t, self.ranks);
        let (q, kv) = match task {
            Task::Own { keys_of } => (r, keys_of),
            Task::Help { queries_of } => (queries_of, r),
            Task::Idle => return None,
        };
        let (q, mut kv) = (self.q_blocks[q as usize], self.kv_blocks[kv as usize]);
        if let (Task::Own { keys_of }, true) = (task, t > 0 && !self.travel.is_everything()) {
            kv = clip(b, kv, self.travel.range(t, keys_of));
        }
        let mask = classify(b, q, kv).or((t == 0).then_some(MaskId::PROBLEM))?;
        Some(Work { task, q, kv, mask })
    }

    /// Pushes the messages that bring every rank its inputs for step t. All of a rank's wait for `after` of that rank.
    fn exchange(&self, b: &mut PlanBuilder, t: u32, after: &[Option<OpId>]) {
        let mut sends: Vec<Vec<(MessageId, Bufs)>> = vec![Vec::new(); self.ranks as usize];
        let mut recvs: Vec<Vec<(MessageId, Buf)>> = vec![Vec::new(); self.ranks as usize];
        for r in 0..self.ranks {
            let Some(work) = self.work(b, r, t) else { continue };
            match work.task {
                Task::Own { keys_of } => {
                    let (from, to) = self.travel.range(t, keys_of);
                    let block = b.block(&[Slots { rank: keys_of, from, to }], true);
                    for (k, into) in self.kv_stage(r, t).iter().enumerate() {
                        let part = b.part(block, k as u64, self.chunks);
                        let message = b.message(keys_of, r, Tensor::KeyValue, part);
                        sends[keys_of as usize].push((message, self.own_kv[keys_of as usize].into()));
                        recvs[r as usize].push((message, into));
                    }
                }
                Task::Help { queries_of } => {
                    let message = b.message(queries_of, r, self.tensor, work.q);
                    sends[queries_of as usize].push((message, self.own_q[queries_of as usize].into()));
                    recvs[r as usize].push((message, self.q_stage(r, t)));
                }
                Task::Idle => {}
            }
        }
        for r in 0..self.ranks {
            let i = r as usize;
            self.channel.exchange(b, (r, t), &sends[i], &recvs[i], after[i]);
        }
    }

    /// Step by step: inputs travel, every rank does its task with `attend`, and `bring_home` takes what helpers have done.
    fn each_step(
        &self,
        b: &mut PlanBuilder,
        prefetch: u32,
        attend: impl Fn(&mut PlanBuilder, Rank, u32, Work) -> OpId,
        mut bring_home: impl FnMut(&mut PlanBuilder, u32, &[Option<Work>]),
    ) {
        let mut done: Vec<Option<OpId>> = vec![None; self.ranks as usize];
        let free = done.clone();
        for t in 0..=self.steps {
            if t < self.steps && prefetch > 0 {
                self.exchange(b, t + 1, &free);
            }
            let work: Vec<Option<Work>> = (0..self.ranks).map(|r| self.work(b, r, t)).collect();
            for (r, work) in work.iter().enumerate() {
                done[r] = work.map(|w| attend(b, r as Rank, t, w)).or(done[r]);
            }
            bring_home(b, t, &work);
            if t < self.steps && prefetch == 0 {
                self.exchange(b, t + 1, &done);
            }
        }
    }

    /// Where rank r finds the queries and the keys of its task at step t.
    fn inputs(&self, r: Rank, t: u32, task: Task) -> (Buf, Bufs) {
        let (q, kv) = (self.own_q[r as usize], self.own_kv[r as usize]);
        match task {
            Task::Own { .. } if t > 0 => (q, self.kv_stage(r, t)),
            Task::Help { .. } => (self.q_stage(r, t), kv.into()),
            _ => (q, kv.into()),
        }
    }

    fn kv_stage(&self, r: Rank, t: u32) -> Bufs {
        let stages = &self.kv_stages[r as usize];
        stages[(t as usize - 1) % stages.len()]
    }

    fn q_stage(&self, r: Rank, t: u32) -> Buf {
        let stages = &self.q_stages[r as usize];
        stages[(t as usize - 1) % stages.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (own) and [help] pairs of step t, by rank, as published.
    fn row(t: u32, ranks: u32) -> Vec<String> {
        let cell = |r| match task(r, t, ranks) {
            Task::Own { keys_of } => format!("({r},{keys_of})"),
            Task::Help { queries_of } => format!("[{queries_of},{r}]"),
            Task::Idle => "idle".into(),
        };
        (0..ranks).map(cell).collect()
    }

    #[test]
    fn the_published_examples() {
        assert_eq!(row(1, 4), ["[3,0]", "(1,0)", "(2,1)", "(3,2)"]);
        assert_eq!(row(2, 4), ["idle", "idle", "(2,0)", "(3,1)"]);
        assert_eq!(row(1, 5), ["[4,0]", "(1,0)", "(2,1)", "(3,2)", "(4,3)"]);
        assert_eq!(row(2, 5), ["[3,0]", "[4,1]", "(2,0)", "(3,1)", "(4,2)"]);
        assert_eq!(row(3, 8), ["[5,0]", "[6,1]", "[7,2]", "(3,0)", "(4,1)", "(5,2)", "(6,3)", "(7,4)"]);
    }
}
