//! USP (arXiv 2405.07719): u x r ranks. Ulysses' all-to-all inside groups of u, then a zigzag ring over r groups, with
//! H/u heads and N/r tokens a rank, and the all-to-all back. The sequence is cut into 2r chunks, not 2P. Groups are
//! neighbours, which keeps the all-to-all inside a node; or, across, rings are.

use super::heads::HeadGroups;
use super::saved::Saved;
use super::step::Channel;
use super::tour::{Gradients, Site, Tour, backward, forward};
use super::unused::Unused;
use super::{Options, Schedule};
use crate::layout::{Layout, LayoutKind};
use crate::mask::Pattern;
use crate::plan::builder::PlanBuilder;
use crate::plan::{BlockId, Buf, Bufs, Heads, OpKind, Plan, Rank, Tensor};
use crate::problem::{Pass, Problem};

pub(super) fn build(
    problem: &Problem,
    layout: Layout,
    options: &Options,
    (schedule, across): (Schedule, bool),
) -> Plan {
    let mut b = options.builder(schedule.to_string(), problem, layout);
    Unused { prefetch: false, ..Unused::ALL }.note(&mut b, options);
    let grid = Grid::of(&b, across);
    let groups = HeadGroups::new(&mut b, Channel::new(options.transport, 0), |r| grid.group(grid.place(r).1));
    let tour = Tour::new((0..grid.ulysses).map(|member| grid.ring(member)).collect(), grid.ring);
    let rule = rule(&mut b, &grid, &groups, problem.pattern);
    match options.pass {
        Pass::Forward => usp_forward(&mut b, options, &groups, &tour, &rule),
        Pass::Backward => usp_backward(&mut b, options, &groups, &tour, &rule),
    }
    b.finish()
}

/// Which ranks are groups, and which rings.
struct Grid {
    ulysses: u32,
    ring: u32,
    across: bool,
}

impl Grid {
    fn of(b: &PlanBuilder, across: bool) -> Self {
        let ulysses = match b.layout().kind() {
            LayoutKind::Grouped { members, .. } => members,
            _ => 1,
        };
        Self { ulysses, ring: b.ranks() / ulysses, across }
    }

    fn rank(&self, member: u32, group: u32) -> Rank {
        if self.across { member * self.ring + group } else { group * self.ulysses + member }
    }

    /// A rank's place in its group, and its group.
    fn place(&self, r: Rank) -> (u32, u32) {
        if self.across { (r / self.ring, r % self.ring) } else { (r % self.ulysses, r / self.ulysses) }
    }

    /// The ranks of a group.
    fn group(&self, group: u32) -> Vec<Rank> {
        (0..self.ulysses).map(|member| self.rank(member, group)).collect()
    }

    /// The ranks of the ring of one member of each group.
    fn ring(&self, member: u32) -> Vec<Rank> {
        (0..self.ring).map(|group| self.rank(member, group)).collect()
    }
}

/// What rank r attends of the keys of rank s, a rank of its ring: zigzag over groups.
fn rule(
    b: &mut PlanBuilder,
    grid: &Grid,
    groups: &HeadGroups,
    pattern: Pattern,
) -> impl Fn(Rank, Rank) -> (BlockId, BlockId) + use<> {
    let ranks = 0..b.ranks();
    let whole: Vec<(BlockId, BlockId)> =
        ranks.clone().map(|r| (groups.of(r).q_block, groups.of(r).kv_block)).collect();
    let group: Vec<u32> = ranks.clone().map(|r| grid.place(r).1).collect();
    let mut chunk = |chunk: u32, heads: Heads| {
        let ranges: Vec<(u64, u64)> = b
            .layout()
            .documents()
            .iter()
            .map(|d| {
                let m = d.padded / u64::from(2 * grid.ring);
                let from = d.start + u64::from(chunk) * m;
                (from, from + m)
            })
            .collect();
        b.span(&ranges, heads)
    };
    let first_kv: Vec<BlockId> =
        ranks.clone().map(|r| chunk(group[r as usize], groups.heads_of(r, true))).collect();
    let second_q: Vec<BlockId> =
        ranks.map(|r| chunk(2 * grid.ring - 1 - group[r as usize], groups.heads_of(r, false))).collect();
    let full = pattern == Pattern::Full;
    move |r, s| {
        let (i, j) = (r as usize, s as usize);
        match group[j].cmp(&group[i]) {
            _ if full => (whole[i].0, whole[j].1),
            std::cmp::Ordering::Equal => (whole[i].0, whole[j].1),
            std::cmp::Ordering::Less => (whole[i].0, first_kv[j]),
            std::cmp::Ordering::Greater => (second_q[i], whole[j].1),
        }
    }
}

fn usp_forward(
    b: &mut PlanBuilder,
    options: &Options,
    groups: &HeadGroups,
    tour: &Tour,
    rule: &dyn Fn(Rank, Rank) -> (BlockId, BlockId),
) {
    let ranks = 0..b.ranks();
    let q: Vec<Bufs> = ranks.clone().map(|r| groups.allocate(b, r, Tensor::Query)).collect();
    let kv: Vec<Bufs> = ranks.clone().map(|r| groups.allocate(b, r, Tensor::KeyValue)).collect();
    groups.gather(b, 0, Tensor::Query, &q);
    groups.gather(b, 0, Tensor::KeyValue, &kv);
    let sites: Vec<Site> = ranks.clone().map(|r| site(groups, r, q[r as usize], kv[r as usize])).collect();
    let out: Vec<Buf> = ranks.clone().map(|r| groups.result(b, r, Tensor::Output)).collect();
    let states = forward(b, options, tour, &sites, rule);
    for r in ranks {
        let (state, out) = (states[r as usize], out[r as usize]);
        b.compute(r, tour.length() - 1, OpKind::Finish { state, out });
    }
    groups.scatter(b, tour.length(), Tensor::Output, &out);
}

fn usp_backward(
    b: &mut PlanBuilder,
    options: &Options,
    groups: &HeadGroups,
    tour: &Tour,
    rule: &dyn Fn(Rank, Rank) -> (BlockId, BlockId),
) {
    let ranks = 0..b.ranks();
    let saved: Vec<Saved> = ranks.clone().map(|r| groups.saved(b, r)).collect();
    let d_o: Vec<Bufs> = saved.iter().map(|s| s.d_o).collect();
    groups.gather(b, 0, Tensor::OutputGrad, &d_o);
    let sites: Vec<Site> =
        (0..).zip(&saved).map(|(r, s)| site(groups, r, s.queries(), s.kv.into())).collect();
    let dq: Vec<Buf> = ranks.clone().map(|r| groups.result(b, r, Tensor::QueryGrad)).collect();
    let dkv: Vec<Buf> = ranks.clone().map(|r| groups.result(b, r, Tensor::KeyValueGrad)).collect();
    let gradients: Vec<Gradients> = ranks
        .map(|r| {
            let (i, block) = (r as usize, groups.of(r).q_block);
            let delta = b.scratch(r, Tensor::Delta, block);
            b.compute(r, 0, OpKind::Preprocess { q: saved[i].outputs(), delta, block });
            Gradients { delta, dq: dq[i], dkv: dkv[i] }
        })
        .collect();
    backward(b, options, (tour, &sites), &gradients, rule);
    groups.scatter(b, tour.length() + 1, Tensor::QueryGrad, &dq);
    groups.scatter(b, tour.length() + 1, Tensor::KeyValueGrad, &dkv);
}

fn site(groups: &HeadGroups, r: Rank, q: Bufs, kv: Bufs) -> Site {
    let me = groups.of(r);
    Site { q, q_block: me.q_block, kv, kv_block: me.kv_block }
}
