//! Projections with the identity for their weights, as on the CPU: copies. q stands for the layer's input and dq for its
//! gradient, o for a rank's part of the output; what belongs to them goes along.

use std::sync::Arc;

use ringlab_sim::plan::{Buf, Bufs, Heads, Part, Projection, Tensor};

use super::{Fail, Site, not_held};
use crate::cuda::command::{Command, Kernel};
use crate::cuda::memory::{Piece, Rows, strips};
use crate::region::Region;

impl Site<'_> {
    pub(super) fn project(&mut self, projection: &Projection) -> Result<Vec<Command>, Fail> {
        match *projection {
            Projection::Inputs { input, q, q_block, kv, kv_block, .. } => {
                let mut commands = self.project_inputs(input, (q, Tensor::Query, q_block))?;
                commands.extend(self.project_inputs(input, (kv, Tensor::KeyValue, kv_block))?);
                Ok(commands)
            }
            Projection::Output { out, parts, hidden } => {
                let mut commands = self.zero_parts(parts, hidden)?;
                let same = [(Part::Output, Part::Output), (Part::Lse, Part::CarriedLse)];
                commands.extend(self.project_parts(out, &same, parts)?);
                Ok(commands)
            }
            Projection::Gradients { dq, dkv, parts, hidden } => {
                let mut commands = self.zero_parts(parts, hidden)?;
                commands.extend(self.project_parts(dq, &[(Part::QueryGrad, Part::HiddenGrad)], parts)?);
                let keys = [(Part::KeyGrad, Part::CarriedKeyGrad), (Part::ValueGrad, Part::CarriedValueGrad)];
                commands.extend(self.project_parts(dkv, &keys, parts)?);
                Ok(commands)
            }
        }
    }

    fn zero_parts(&mut self, parts: Bufs, hidden: u32) -> Result<Vec<Command>, Fail> {
        let zeroed = (0..parts.count).map(|i| self.zero_part((parts, i), hidden));
        Ok(zeroed.collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// Copies q, or k and v, of a block out of the layer's input, where one query head of each kv head carries its k
    /// and v.
    fn project_inputs(
        &mut self,
        input: Bufs,
        (to, tensor, block): (Buf, Tensor, u32),
    ) -> Result<Vec<Command>, Fail> {
        self.expect(to, tensor)?;
        let region = Arc::clone(self.region(block));
        self.hold(to, &region)?;
        let group = if tensor.is_key_side() { self.common.plan.shape.group() } else { 1 };
        let mut commands = Vec::new();
        for &part in tensor.parts() {
            let from = match part {
                Part::Key => Part::CarriedKey,
                Part::Value => Part::CarriedValue,
                other => other,
            };
            let target = self.now(to, part)?;
            for (wide, head, count) in blocks(region.heads, group) {
                let wanted = Region { tokens: region.tokens.clone(), heads: wide };
                let pieces = self.find(input, from, &wanted).ok_or(not_held(input.first))?;
                commands.extend(pieces.iter().flat_map(|piece| strips(piece, (&target, head), count)));
            }
        }
        Ok(commands.into_iter().map(Command::Copy).collect())
    }

    /// Copies a result of the rank's heads to parts of all heads' width. A kv head lies at the first of its query heads.
    fn project_parts(&mut self, from: Buf, same: &[(Part, Part)], parts: Bufs) -> Result<Vec<Command>, Fail> {
        let source = self.held(from)?;
        let key_side = self.memory.slot(from).is_some_and(|slot| slot.tensor.is_key_side());
        let group = if key_side { self.common.plan.shape.group() } else { 1 };
        let mut commands = Vec::new();
        for buf in parts.iter() {
            let target = self.held(buf)?;
            let region = Region { tokens: target.tokens.clone(), heads: source.heads };
            for &(part, into) in same {
                let to = self.now(buf, into)?;
                for piece in self.find(from.into(), part, &region).ok_or(not_held(from))? {
                    for (wide, head, count) in blocks(source.heads, group) {
                        let piece = Piece { head: piece.head + head, ..piece.clone() };
                        let at = (wide.first - target.heads.first) as usize;
                        if part == Part::QueryGrad {
                            commands.extend(self.round(&piece, (&to, at), count)?);
                        } else {
                            commands.extend(strips(&piece, (&to, at), count).into_iter().map(Command::Copy));
                        }
                    }
                }
            }
        }
        Ok(commands)
    }

    /// Rounds `heads` heads of a piece into an array of the element type.
    fn round(
        &self,
        piece: &Piece,
        (to, to_head): (&Rows, usize),
        heads: usize,
    ) -> Result<Vec<Command>, Fail> {
        let launches = piece.runs.iter().map(|run| {
            self.launch(&Kernel::Round {
                dims: self.dims(heads, heads, self.batch()),
                tokens: run.len,
                from: piece.rows.vectors(0, run.from, piece.head),
                to: to.vectors(0, run.to, to_head),
            })
        });
        launches.collect()
    }
}

/// Heads that lie together where each stands at the first of `group` heads: the wide ones, the first of the narrow ones
/// counted from theirs, and how many.
fn blocks(heads: Heads, group: u32) -> Vec<(Heads, usize, usize)> {
    if group == 1 {
        return vec![(heads, 0, heads.count as usize)];
    }
    let one = |i: u32| (Heads { first: (heads.first + i) * group, count: 1 }, i as usize, 1);
    (0..heads.count).map(one).collect()
}
