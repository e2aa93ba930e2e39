//! Projections with the identity for their weights: q stands for the layer's input and dq for its gradient, o for a
//! rank's part of the output; what belongs to them goes along.

use ringlab_sim::plan::{BlockId, Buf, Bufs, Part, Projection, Tensor};

use super::error::Cause;
use super::operations::{hold, not_held};
use super::rank::Runner;
use crate::region::Region;

impl Runner<'_> {
    pub(super) fn project(&mut self, projection: &Projection) -> Result<(), Cause> {
        match *projection {
            Projection::Inputs { input, q, q_block, kv, kv_block, .. } => {
                self.project_inputs(input, (q, Tensor::Query, q_block))?;
                self.project_inputs(input, (kv, Tensor::KeyValue, kv_block))
            }
            Projection::Output { out, parts, hidden } => {
                let same = [(Part::Output, Part::Output), (Part::Lse, Part::CarriedLse)];
                self.project_part((out, Tensor::Output, &same), (parts, Tensor::LayerOutput, hidden), true)
            }
            Projection::Gradients { dq, dkv, parts, hidden } => {
                let to = (parts, Tensor::HiddenGrad, hidden);
                let queries = [(Part::QueryGrad, Part::HiddenGrad)];
                self.project_part((dq, Tensor::QueryGrad, &queries), to, true)?;
                let keys = [(Part::KeyGrad, Part::CarriedKeyGrad), (Part::ValueGrad, Part::CarriedValueGrad)];
                self.project_part((dkv, Tensor::KeyValueGrad, &keys), to, false)
            }
        }
    }

    /// Writes q, or k and v, of a block from the layer's input.
    fn project_inputs(
        &mut self,
        input: Bufs,
        (to, tensor, block): (Buf, Tensor, BlockId),
    ) -> Result<(), Cause> {
        let (shape, region) = (self.shared.plan.shape, &self.shared.regions[block as usize]);
        let (group, first) = (if tensor.is_key_side() { shape.group() } else { 1 }, region.heads.first);
        let mut target = self.memory.take(to, tensor)?;
        hold(&mut target, region, to)?;
        // One query head of each kv head carries its k and v.
        let heads = ringlab_sim::plan::Heads { first: first * group, count: region.heads.count * group };
        let wide = Region { tokens: region.tokens.clone(), heads };
        let source = self.operand(input, &wide, Tensor::Hidden.parts())?;
        for (plane, &part) in tensor.parts().iter().enumerate() {
            let from = match part {
                Part::Key => Part::CarriedKey,
                Part::Value => Part::CarriedValue,
                other => other,
            };
            for batch in 0..shape.batch as usize {
                for (token, head) in region.rows() {
                    let row = target.index(batch, token, head);
                    let source = source.row(from, batch, token, head * group as usize);
                    target.row_mut(plane, row).copy_from_slice(source);
                }
            }
        }
        self.memory.put(to, target);
        Ok(())
    }

    /// Writes a result of the rank's heads into parts of all heads' width, which start as zero if `init`. A kv head lies
    /// at the first of its query heads.
    fn project_part(
        &mut self,
        (from, tensor, same): (Buf, Tensor, &[(Part, Part)]),
        (parts, wide, hidden): (Bufs, Tensor, BlockId),
        init: bool,
    ) -> Result<(), Cause> {
        let shape = self.shared.plan.shape;
        let group = if tensor.is_key_side() { shape.group() as usize } else { 1 };
        for (i, buf) in parts.iter().enumerate() {
            let mut target =
                if init { self.zeroed(wide, (parts, i), hidden)? } else { self.memory.take(buf, wide)? };
            let source = self.memory.get(from, tensor)?;
            let heads = source.held().ok_or(not_held(from))?.heads;
            let tokens = target.held().ok_or(not_held(buf))?.tokens.clone();
            let region = Region { tokens, heads };
            let at = source.held().and_then(|held| held.locate(&region)).ok_or(not_held(from))?;
            for &(part, carried) in same {
                let (Some(plane), Some(into)) = (source.plane(part), target.plane(carried)) else { continue };
                for batch in 0..shape.batch as usize {
                    for (token, head) in region.rows() {
                        let row = target.index(batch, token, (heads.first as usize + head) * group);
                        let from = source.index(batch, at.tokens[token], at.head + head);
                        target.row_mut(into, row).copy_from_slice(source.row(plane, from));
                    }
                }
            }
            self.memory.put(buf, target);
        }
        Ok(())
    }
}
