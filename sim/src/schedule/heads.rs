//! All-to-all inside groups of ranks: from a rank's own tokens with all heads to its group's tokens with a share of the
//! heads, and back. What Ulysses is, and the inner half of USP.
//!
//! A group of u ranks divides the query heads evenly. Its members need whole groups of query heads that share a kv head,
//! or query heads of one group: u divides the kv heads K, or K divides u; then u/K members get a copy of each kv head,
//! and their shares of its dk and dv are summed up at home, in fp32.

use super::saved::Saved;
use super::step::Channel;
use crate::plan::builder::PlanBuilder;
use crate::plan::{BlockId, Buf, Bufs, Heads, MessageId, OpKind, Rank, Tensor};
use crate::problem::Shape;

/// A way to share `ranks = ulysses x ring` out over heads and tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Ranks that divide the heads.
    pub ulysses: u32,
    /// Ranks that divide the tokens.
    pub ring: u32,
    /// Ranks of a head group that get a copy of the same kv head; 1 where none is replicated.
    pub kv_copies: u32,
}

/// How many members of a group of `degree` get a copy of each kv head; `None` if the heads cannot be divided so.
pub fn kv_copies(shape: &Shape, degree: u32) -> Option<u32> {
    let (h, k) = (shape.heads, shape.kv_heads);
    match degree {
        0 => None,
        _ if !h.is_multiple_of(degree) => None,
        _ if k.is_multiple_of(degree) => Some(1),
        _ => degree.is_multiple_of(k).then(|| degree / k),
    }
}

/// All grids of `ranks` ranks that divide the heads.
pub fn grids(shape: &Shape, ranks: u32) -> Vec<Grid> {
    let degrees = (1..=ranks).filter(|u| ranks.is_multiple_of(*u));
    degrees
        .filter_map(|u| kv_copies(shape, u).map(|kv_copies| Grid { ulysses: u, ring: ranks / u, kv_copies }))
        .collect()
}

/// The group of a rank, and what the rank holds of it after the all-to-all.
pub(super) struct Member {
    /// The group's ranks, in order.
    group: Vec<Rank>,
    /// The rank's own place among them.
    index: u32,
    q_heads: Heads,
    kv_heads: Heads,
    /// They, with the rank's query heads.
    pub q_block: BlockId,
    /// They, with the rank's kv heads.
    pub kv_block: BlockId,
}

/// All ranks with their groups.
pub(super) struct HeadGroups {
    channel: Channel,
    members: Vec<Member>,
}

/// A message to be pushed: its rank's end with its buffer.
type Ends<B> = Vec<Vec<(MessageId, B)>>;

impl HeadGroups {
    /// The groups of every rank; `group_of` gives a rank's group, the rank among them. Travels on `channel`.
    pub fn new(b: &mut PlanBuilder, channel: Channel, group_of: impl Fn(Rank) -> Vec<Rank>) -> Self {
        let members = (0..b.ranks()).map(|r| {
            let group = group_of(r);
            let index = group.iter().position(|&m| m == r).unwrap_or(0) as u32;
            let tokens = b.tokens_of(&group);
            let u = group.len() as u32;
            let (q_heads, kv_heads) = (share(b.shape(), u, index, false), share(b.shape(), u, index, true));
            let q_block = b.block_of_heads(&tokens, q_heads);
            let kv_block = b.block_of_heads(&tokens, kv_heads);
            Member { group, index, q_heads, kv_heads, q_block, kv_block }
        });
        let members = members.collect();
        Self { channel, members }
    }

    /// A rank's membership.
    pub fn of(&self, r: Rank) -> &Member {
        &self.members[r as usize]
    }

    /// The query heads, or the kv heads, of a rank.
    pub fn heads_of(&self, r: Rank, kv_side: bool) -> Heads {
        if kv_side { self.of(r).kv_heads } else { self.of(r).q_heads }
    }

    /// One buffer a member: the rank's own input, and room for what it gets of the others. Own tokens lie there with all
    /// heads, the others' with the rank's.
    pub fn allocate(&self, b: &mut PlanBuilder, r: Rank, tensor: Tensor) -> Bufs {
        let me = self.of(r);
        let heads = self.heads_of(r, tensor.is_key_side());
        let bufs: Vec<Buf> = me
            .group
            .iter()
            .map(|&s| {
                let shard = b.shard(s);
                if s == r {
                    let block = b.block(&[shard], tensor.is_key_side());
                    b.input(r, tensor, block)
                } else {
                    let block = b.block_of_heads(&[shard], heads);
                    b.scratch(r, tensor, block)
                }
            })
            .collect();
        Bufs { first: bufs[0], count: bufs.len() as u16 }
    }

    /// What the forward left on rank r for the backward, with room for do.
    pub fn saved(&self, b: &mut PlanBuilder, r: Rank) -> Saved {
        let blocks = (self.of(r).q_block, self.of(r).kv_block);
        Saved::new(b, r, blocks, |b| self.allocate(b, r, Tensor::OutputGrad))
    }

    /// The first all-to-all: every member's own tokens of `tensor` to all others, cut by heads. `bufs` as
    /// [`HeadGroups::allocate`] made them.
    pub fn gather(&self, b: &mut PlanBuilder, step: u32, tensor: Tensor, bufs: &[Bufs]) {
        let (mut sends, mut recvs) = self.no_ends();
        self.each_pair(|from, to| {
            let block = b.block_of_heads(&[b.shard(from)], self.heads_of(to, tensor.is_key_side()));
            let message = b.message(from, to, tensor, block);
            let buffer = |r: Rank| Buf(bufs[r as usize].first.0 + self.of(from).index as u16);
            sends[from as usize].push((message, buffer(from).into()));
            recvs[to as usize].push((message, buffer(to)));
        });
        self.exchange(b, step, &sends, &recvs);
    }

    /// A buffer for a result of the group's tokens and the rank's heads, of which its own tokens stay.
    pub fn result(&self, b: &mut PlanBuilder, r: Rank, tensor: Tensor) -> Buf {
        let me = self.of(r);
        let block = if tensor.is_key_side() { me.kv_block } else { me.q_block };
        let own = b.block_of_heads(&[b.shard(r)], self.heads_of(r, tensor.is_key_side()));
        b.output_within(r, tensor, block, own)
    }

    /// The second all-to-all: results, from buffers as [`HeadGroups::result`] made them, to the tokens' owners. Heads of
    /// which several members have a share are summed up.
    pub fn scatter(&self, b: &mut PlanBuilder, step: u32, tensor: Tensor, results: &[Buf]) {
        let (mut sends, mut recvs) = self.no_ends();
        let mut homes: Vec<Vec<(Heads, Buf)>> = (0..b.ranks())
            .map(|r| vec![(self.heads_of(r, tensor.is_key_side()), results[r as usize])])
            .collect();
        let mut sums = Vec::new();
        self.each_pair(|from, to| {
            let heads = self.heads_of(from, tensor.is_key_side());
            let block = b.block_of_heads(&[b.shard(to)], heads);
            let message = b.message(from, to, tensor, block);
            let homes = &mut homes[to as usize];
            let into = match homes.iter().find(|(h, _)| *h == heads) {
                None => {
                    let home = b.output(to, tensor, block);
                    homes.push((heads, home));
                    home
                }
                Some(&(_, into)) => {
                    let share = b.scratch(to, tensor, block);
                    sums.push((to, OpKind::Accumulate { from: share, into }));
                    share
                }
            };
            sends[from as usize].push((message, results[from as usize].into()));
            recvs[to as usize].push((message, into));
        });
        self.exchange(b, step, &sends, &recvs);
        for (rank, sum) in sums {
            b.compute(rank, step, sum);
        }
    }

    fn no_ends(&self) -> (Ends<Bufs>, Ends<Buf>) {
        (vec![Vec::new(); self.members.len()], vec![Vec::new(); self.members.len()])
    }

    /// Calls `f(from, to)` for every two members of every group, round by round: in round t each member sends to the
    /// t-th behind it, so that no two send to the same.
    fn each_pair(&self, mut f: impl FnMut(Rank, Rank)) {
        let largest = self.members.iter().map(|m| m.group.len()).max().unwrap_or(0);
        for t in 1..largest {
            for (r, me) in self.members.iter().enumerate().filter(|(_, m)| t < m.group.len()) {
                f(r as Rank, me.group[(me.index as usize + t) % me.group.len()]);
            }
        }
    }

    fn exchange(&self, b: &mut PlanBuilder, step: u32, sends: &Ends<Bufs>, recvs: &Ends<Buf>) {
        for (r, (sends, recvs)) in sends.iter().zip(recvs).enumerate() {
            self.channel.exchange(b, (r as Rank, step), sends, recvs, None);
        }
    }
}

/// The heads of member `index` of `u`: an equal share of the query heads, and the kv heads that they need.
fn share(shape: &Shape, u: u32, index: u32, kv_side: bool) -> Heads {
    let count = shape.heads / u;
    let first = index * count;
    if kv_side {
        Heads { first: first / shape.group(), count: count.div_ceil(shape.group()) }
    } else {
        Heads { first, count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Dtype;

    fn shape(heads: u32, kv_heads: u32) -> Shape {
        Shape { heads, kv_heads, head_dim: 128, dtype: Dtype::Bf16, batch: 1 }
    }

    #[test]
    fn forty_heads_on_eight_kv_heads_on_sixteen_ranks() {
        let legal: Vec<_> =
            grids(&shape(40, 8), 16).iter().map(|g| (g.ulysses, g.ring, g.kv_copies)).collect();
        assert_eq!(legal, [(1, 16, 1), (2, 8, 1), (4, 4, 1), (8, 2, 1)]);
        let of_32: Vec<_> = grids(&shape(32, 8), 16).iter().map(|g| (g.ulysses, g.kv_copies)).collect();
        assert_eq!(of_32, [(1, 1), (2, 1), (4, 1), (8, 1), (16, 2)]);
    }

    /// A degree is legal if and only if every member gets as many query heads, and as many of each kv head it needs.
    #[test]
    fn legal_degrees_are_those_with_equal_whole_shares() {
        for k in 1..=12 {
            for group in 1..=6 {
                let s = shape(k * group, k);
                for u in 1..=s.heads {
                    let even = s.heads.is_multiple_of(u);
                    let uses = |i: u32| -> Vec<usize> {
                        let heads = i * (s.heads / u)..(i + 1) * (s.heads / u);
                        let kv: Vec<u32> = heads.map(|h| h / group).collect();
                        kv.chunk_by(|a, b| a == b).map(<[u32]>::len).collect()
                    };
                    let uniform = |i| uses(i).windows(2).all(|w| w[0] == w[1]) && uses(i) == uses(0);
                    let legal = even && (0..u).all(uniform);
                    assert_eq!(kv_copies(&s, u).is_some(), legal, "H {} K {k} u {u}", s.heads);
                }
            }
        }
    }
}
