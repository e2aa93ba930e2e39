//! Exchanges as messages on the topology. The transfers of every pair are simulated, those of all groups that run side by
//! side at once, so that they share ports, NICs and spines as they would.

use super::collective::Group;
use crate::config::cluster::{Cluster, FabricTopology};
use crate::engine::{self, SimOptions};
use crate::layout::{Layout, LayoutKind};
use crate::mask::{Documents, Pattern};
use crate::plan::builder::PlanBuilder;
use crate::plan::{Buf, Bufs, Lane, OpKind, Plan, Rank, Slots, Tensor, Transport};
use crate::problem::{Dtype, Pass, Problem, Shape};
use crate::units::{Bytes, SimTime};

/// A number of one byte a token: blocks of so many tokens are messages of so many bytes.
const BYTE: Shape = Shape { heads: 1, kv_heads: 1, head_dim: 1, dtype: Dtype::Fp8, batch: 1 };

/// Pairwise all-to-all where each rank holds `each` bytes and keeps 1/n of them, in one NCCL group a rank. Never, if the
/// cluster cannot take the group.
pub fn all_to_all(cluster: &Cluster, group: Group, each: Bytes) -> SimTime {
    let part = each.0 / group.size.max(1);
    if group.size <= 1 || part == 0 {
        return SimTime::ZERO;
    }
    let groups = side_by_side(cluster, group);
    let plan = plan(&groups, part);
    let cluster = at_reached_rates(cluster);
    plan.and_then(|plan| engine::simulate(&plan, &cluster, &SimOptions::default()).ok())
        .map_or(SimTime::NEVER, |timeline| timeline.makespan)
}

/// The cluster with ports and NICs at what NCCL reaches on them: many transfers at once do not reach more than one.
fn at_reached_rates(cluster: &Cluster) -> Cluster {
    let mut cluster = cluster.clone();
    let reached = cluster.fabric.nccl.bandwidth;
    if let FabricTopology::Nvswitch { link_bandwidth } = &mut cluster.fabric.topology
        && reached < *link_bandwidth
    {
        *link_bandwidth = reached;
    }
    if let Some(network) = &mut cluster.network
        && network.transport.bandwidth < network.nic_bandwidth
    {
        network.nic_bandwidth = network.transport.bandwidth;
    }
    cluster
}

/// The groups on as many whole nodes as one of them spans.
fn side_by_side(cluster: &Cluster, group: Group) -> Vec<Vec<Rank>> {
    let (span, node) = (group.size * group.stride, u64::from(cluster.gpus_per_node));
    let ranks = span.next_multiple_of(node).min(u64::from(cluster.gpus())).max(span);
    let starts = (0..ranks / span).flat_map(|i| (0..group.stride).map(move |j| i * span + j));
    starts.map(|start| (0..group.size).map(|i| (start + i * group.stride) as Rank).collect()).collect()
}

/// Every member of a group sends `part` bytes to every other one: to the first behind it, then to the second, so that no
/// two send to the same.
fn plan(groups: &[Vec<Rank>], part: u64) -> Option<Plan> {
    let ranks = groups.iter().map(Vec::len).sum::<usize>() as u32;
    let problem =
        Problem { shape: BYTE, pattern: Pattern::Full, documents: vec![part.checked_mul(ranks.into())?] };
    let documents = Documents::single(part * u64::from(ranks));
    let layout = Layout::new(LayoutKind::Contiguous, ranks, documents).ok()?;
    let mut b = PlanBuilder::new("all-to-all".into(), Pass::Forward, &problem, layout, Transport::Nccl);
    for rank in 0..ranks {
        let own = b.block(&[Slots { rank, from: 0, to: part }], false);
        b.input(rank, Tensor::Query, own);
        b.scratch(rank, Tensor::Query, own);
    }
    let (own, arrived) = (Bufs::from(Buf(0)), Buf(1));
    for members in groups {
        let n = members.len();
        let mut ends = vec![(Vec::new(), Vec::new()); n];
        for t in 1..n {
            for i in 0..n {
                let (from, to) = (members[i], members[(i + t) % n]);
                let block = b.block(&[Slots { rank: from, from: 0, to: part }], false);
                let message = b.message(from, to, Tensor::Query, block);
                ends[i].0.push(OpKind::Send { message, buffer: own });
                ends[(i + t) % n].1.push(OpKind::Recv { message, buffer: arrived });
            }
        }
        for (&rank, (sends, recvs)) in members.iter().zip(ends) {
            let group = b.group();
            for kind in sends.into_iter().chain(recvs) {
                b.push(rank, Lane::comm(0), 0, group, kind);
            }
        }
    }
    Some(b.finish())
}
