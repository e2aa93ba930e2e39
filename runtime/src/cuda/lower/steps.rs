//! The steps around attention: row sums, merging, adding, finishing.

use std::sync::Arc;

use ringlab_sim::plan::{Buf, Bufs, Part, Tensor};

use super::{Fail, Site, not_held};
use crate::cuda::command::{Command, Kernel, Number, Strip};
use crate::cuda::memory::{moved, number_bytes, strips};

/// Bytes of a row that the adding kernel takes at most: it counts columns in 32 bits.
const LONGEST: usize = 1 << 30;

/// A row cut into rows of at most so many bytes.
fn parts(strip: Strip, longest: usize) -> Vec<Strip> {
    if strip.rows != 1 || strip.row_bytes <= longest {
        return vec![strip];
    }
    let part = |at: usize| {
        let bytes = longest.min(strip.row_bytes - at);
        let (to, from) = (strip.to + at as u64, strip.from + at as u64);
        Strip { to, from, rows: 1, row_bytes: bytes, to_pitch: bytes, from_pitch: bytes }
    };
    (0..strip.row_bytes).step_by(longest).map(part).collect()
}

impl Site<'_> {
    pub(super) fn preprocess(&mut self, q: Bufs, delta: Buf, block: u32) -> Result<Vec<Command>, Fail> {
        self.expect(delta, Tensor::Delta)?;
        let region = Arc::clone(self.region(block));
        self.hold(delta, &region)?;
        let (o, mut commands) = self.view(q, Part::Output, &region)?;
        let (d_o, packing) = self.view(q, Part::OutputGrad, &region)?;
        commands.extend(packing);
        let heads = region.heads();
        commands.push(self.launch(&Kernel::Preprocess {
            dims: self.dims(heads, heads, self.batch()),
            tokens: region.tokens.len(),
            o: o.rows.vectors(0, o.token, o.head),
            d_o: d_o.rows.vectors(0, d_o.token, d_o.head),
            delta: self.now(delta, Part::Delta)?.at,
        })?);
        Ok(commands)
    }

    pub(super) fn merge(&mut self, from: Buf, into: Buf) -> Result<Vec<Command>, Fail> {
        self.expect(from, Tensor::State)?;
        self.expect(into, Tensor::State)?;
        let region = self.held(from)?;
        if region != self.held(into)? {
            return Err(Fail::Unsupported("the merge kernel takes two states of the same queries"));
        }
        let heads = region.heads();
        let kernel = Kernel::Merge {
            dims: self.dims(heads, heads, self.batch()),
            tokens: region.tokens.len(),
            into: self.state_rows(into, &region)?.from(0, 0),
            from: self.state_rows(from, &region)?.from(0, 0),
        };
        self.changed(into);
        Ok(vec![self.launch(&kernel)?])
    }

    pub(super) fn accumulate(&mut self, from: Buf, into: Buf) -> Result<Vec<Command>, Fail> {
        let tensor = self.memory.slot(from).ok_or(not_held(from))?.tensor;
        self.expect(into, tensor)?;
        let (region, whole) = (self.held(from)?, self.held(into)?);
        let place = whole.locate(&region).ok_or(not_held(into))?;
        let dims = self.dims(region.heads(), region.heads(), self.batch());
        let mut commands = Vec::new();
        for &part in tensor.parts() {
            let to = self.now(into, part)?;
            for mut piece in self.find(from.into(), part, &region).ok_or(not_held(from))? {
                piece.runs = moved(&piece.runs, &place.tokens);
                let number = if number_bytes(part, &self.common.plan.shape) == 4 {
                    Number::F32
                } else {
                    Number::Rounded
                };
                let all = strips(&piece, (&to, place.head), region.heads());
                for strip in all.into_iter().flat_map(|strip| parts(strip, LONGEST)) {
                    commands.push(self.launch(&Kernel::Add { dims, number, strip })?);
                }
            }
        }
        self.changed(into);
        Ok(commands)
    }

    pub(super) fn finish(&mut self, state: Buf, out: Buf) -> Result<Vec<Command>, Fail> {
        self.expect(state, Tensor::State)?;
        self.expect(out, Tensor::Output)?;
        let region = self.held(state)?;
        let heads = region.heads();
        let kernel = Kernel::Finalise {
            dims: self.dims(heads, heads, self.batch()),
            tokens: region.tokens.len(),
            state: self.state_rows(state, &region)?.from(0, 0),
            out: self.out_rows(out, &region)?.from(0, 0),
        };
        Ok(vec![self.launch(&kernel)?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_rows_are_cut_and_nothing_is_lost() {
        let row = Strip { to: 1000, from: 0, rows: 1, row_bytes: 80, to_pitch: 80, from_pitch: 80 };
        let cut: Vec<_> = parts(row, 32).iter().map(|s| (s.to, s.from, s.row_bytes)).collect();
        assert_eq!(cut, [(1000, 0, 32), (1032, 32, 32), (1064, 64, 16)]);
        assert_eq!(parts(row, 80), [row]);
    }
}
