//! From operations to bodies, member by member, each in its program's order; then from bodies to programs.

use std::sync::Arc;

use ringlab_sim::plan::{Bufs, OpId, OpKind, Part, Rank, Transport};

use super::command::Strip;
use super::error::CudaError;
use super::flags::Flags;
use super::folds::Folds;
use super::lanes::{Arranging, Body, Program, ends};
use super::lower::{Common, Site};
use super::memory::Memory;
use super::options::{Copies, Options};
use super::prepare::Member;
use crate::region::Region;

/// What all members are lowered with.
pub(super) struct Lowering<'a> {
    pub common: &'a Common<'a>,
    pub options: &'a Options,
    pub members: &'a [Member],
    pub are_virtual: bool,
    pub memories: &'a [Memory],
    pub folds: &'a [Folds],
    pub flags: &'a Flags,
}

/// All members' bodies, by member and operation.
pub(super) struct Lowered {
    pub bodies: Vec<Vec<Body>>,
    /// By message: its copies.
    strips: Vec<Vec<Strip>>,
    /// By member: bytes of packed copies.
    pub packed: Vec<usize>,
    /// By member and buffer: what it holds in the end.
    pub held: Vec<Vec<Option<Arc<Region>>>>,
}

impl Lowering<'_> {
    pub fn run(&self) -> Result<Lowered, CudaError> {
        let messages = self.common.plan.messages.len();
        let mut all = Lowered {
            bodies: Vec::new(),
            strips: vec![Vec::new(); messages],
            packed: Vec::new(),
            held: Vec::new(),
        };
        let ends = ends(self.common.plan);
        for (member, memory) in self.members.iter().zip(self.memories) {
            let folds = &self.folds[member.rank as usize];
            let mut site = Site::new(self.common, member.rank, member.gpu.as_ref(), memory, folds);
            site.ready_limit = self.options.timeout;
            self.arrivals(&mut site);
            let ops = &self.common.plan.programs[member.rank as usize].ops;
            let mut bodies = Vec::new();
            for (i, op) in (0..).zip(ops) {
                bodies.push(match op.kind {
                    OpKind::Send { message, buffer } if self.by_nccl() => {
                        let (before, parcels) = site.send_parcels(i, (message, buffer))?;
                        Body::Parcels { before, parcels }
                    }
                    OpKind::Recv { message, buffer } if self.by_nccl() => {
                        site.receive(i, message, buffer)?;
                        Body::Parcels {
                            before: Vec::new(),
                            parcels: site.receive_parcels(i, message, buffer)?,
                        }
                    }
                    OpKind::Send { message, buffer } => {
                        let strips = self.send(&site, i, (message, buffer), ends[message as usize][1])?;
                        all.strips[message as usize].clone_from(&strips);
                        Body::Send { message, strips }
                    }
                    OpKind::Recv { message, buffer } => {
                        site.receive(i, message, buffer)?;
                        Body::Recv { message }
                    }
                    _ => Body::Compute(site.compute(i)?),
                });
            }
            all.bodies.push(bodies);
            all.packed.push(site.packed_bytes());
            all.held.push(site.into_held());
        }
        Ok(all)
    }

    /// Whether messages go through NCCL: virtual ranks copy.
    fn by_nccl(&self) -> bool {
        self.common.plan.transport == Transport::Nccl && !self.are_virtual
    }

    /// The flags that fused launches wait for: one for every receive, not only for those that the plan's calls name. A call
    /// names the last chunk of its lane; a launch on the device would read the ones before as soon as it starts.
    fn arrivals(&self, site: &mut Site<'_>) {
        let (plan, rank) = (self.common.plan, site.rank);
        let Some(&last) = site.folds.followers.values().flatten().max() else { return };
        let ops = &plan.programs[rank as usize].ops;
        for (w, op) in (0..last).zip(ops) {
            let OpKind::Recv { message, .. } = op.kind else { continue };
            let flag = match self.options.copies {
                Copies::Push => self.flags.sent(rank, message),
                Copies::Pull => self.flags.landed(rank, message),
            };
            site.arrived.insert(w, flag);
        }
    }

    /// The copies of a message to where its receiver has room for it.
    fn send(
        &self,
        site: &Site<'_>,
        op: OpId,
        (message, bufs): (u32, Bufs),
        recv: Option<(Rank, OpId)>,
    ) -> Result<Vec<Strip>, CudaError> {
        let plan = self.common.plan;
        let region = &self.common.regions[plan.message(message).block as usize];
        let into = |part: Part| {
            let (rank, recv) = recv?;
            let OpKind::Recv { buffer, .. } = plan.programs[rank as usize].ops[recv as usize].kind else {
                return None;
            };
            let member = self.members.iter().position(|m| m.rank == rank)?;
            self.memories[member].slot(buffer)?.part(part, region, &plan.shape)
        };
        Ok(site.send(op, (message, bufs), into)?.0)
    }

    pub fn arrange(&self, lowered: &Lowered) -> Result<Vec<Program>, CudaError> {
        let ends = ends(self.common.plan);
        let programs = self.members.iter().zip(&lowered.bodies).map(|(member, bodies)| {
            let arranging = Arranging {
                plan: self.common.plan,
                rank: member.rank,
                gpu: member.gpu.as_ref(),
                folds: &self.folds[member.rank as usize],
                flags: self.flags,
                copies: self.options.copies,
                strips: &lowered.strips,
                ends: &ends,
            };
            arranging.arrange(bodies)
        });
        programs.collect()
    }
}
