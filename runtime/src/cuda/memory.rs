//! A rank's buffers on its GPU, and where the rows of a region lie in them.
//!
//! An array of vectors lies as `[batch][tokens][heads][head_dim]`, one of scalars (lse, m, l, delta) as
//! `[batch][heads][tokens]`, which is what the kernels take; both dense over the region that the buffer holds. An array
//! starts at the same address whatever the region.

use ringlab_kernels::abi::Strides;
use ringlab_kernels::spec::Tensor as Vectors;
use ringlab_sim::plan::{Buf, Buffer, Part, Program, Tensor};
use ringlab_sim::problem::Shape;

use super::command::{Address, Strip};
use crate::region::{Region, Spread};

/// Where arrays start.
const ALIGNMENT: usize = 256;

/// Bytes of one number of an array on a GPU. What is carried along takes room here, if not in the plan.
pub(super) fn number_bytes(part: Part, shape: &Shape) -> usize {
    match part {
        Part::CarriedKey | Part::CarriedValue => shape.dtype.size().0 as usize,
        Part::CarriedLse | Part::CarriedKeyGrad | Part::CarriedValueGrad => 4,
        _ => part.element_bytes(shape) as usize,
    }
}

/// Whether the plan counts no bytes for it.
pub(super) fn is_carried(part: Part, shape: &Shape) -> bool {
    part.element_bytes(shape) == 0
}

/// Whether it is one number a token and head.
fn is_scalar(part: Part, shape: &Shape) -> bool {
    part.width(shape) == 1 && shape.head_dim > 1
}

/// One buffer: the bytes of each of its arrays, one behind the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    pub tensor: Tensor,
    pub at: Address,
    /// Tokens times heads of one sequence that fit.
    pub rows: usize,
}

impl Slot {
    /// Offset of each array of a tensor with so many rows a sequence, and the end of the last.
    fn offsets(tensor: Tensor, rows: usize, shape: &Shape) -> Vec<usize> {
        let mut offsets = vec![0];
        for &part in tensor.parts() {
            let row = part.width(shape) as usize * number_bytes(part, shape);
            let end = offsets[offsets.len() - 1] + rows * shape.batch as usize * row;
            offsets.push(end.next_multiple_of(ALIGNMENT));
        }
        offsets
    }

    /// An array as it lies while the buffer holds `region`, if it has such an array.
    pub fn part(&self, part: Part, region: &Region, shape: &Shape) -> Option<Rows> {
        let i = self.tensor.parts().iter().position(|&p| p == part)?;
        let offsets = Self::offsets(self.tensor, self.rows, shape);
        Some(Rows { at: self.at + offsets[i] as u64, ..Rows::of(part, region, shape) })
    }

    pub fn bytes(&self, shape: &Shape) -> usize {
        Self::offsets(self.tensor, self.rows, shape).last().copied().unwrap_or(0)
    }
}

/// All buffers of one rank; those that nothing touches have no memory.
#[derive(Debug, Clone)]
pub(super) struct Memory {
    slots: Vec<Option<Slot>>,
}

impl Memory {
    /// Allocates what `program` needs but for `unused`; `allocate` gets the number and the size of each buffer.
    pub fn new<E>(
        program: &Program,
        shape: &Shape,
        unused: &[Buf],
        mut allocate: impl FnMut(u16, &Buffer, usize) -> Result<Address, E>,
    ) -> Result<Self, E> {
        let mut used: Vec<bool> = program.buffers.iter().map(|b| b.role.initial().is_some()).collect();
        program.ops.iter().for_each(|op| op.kind.accesses(|b, _| used[usize::from(b.0)] = true));
        for buf in unused {
            used[usize::from(buf.0)] = false;
        }
        let mut slots = Vec::new();
        for (i, (buffer, used)) in program.buffers.iter().zip(used).enumerate() {
            let rows = (buffer.bytes.0 / buffer.tensor.bytes(shape, 1, 1).0) as usize;
            let mut slot = Slot { tensor: buffer.tensor, at: 0, rows };
            if used {
                slot.at = allocate(i as u16, buffer, slot.bytes(shape))?;
            }
            slots.push(used.then_some(slot));
        }
        Ok(Self { slots })
    }

    pub fn slot(&self, buf: Buf) -> Option<&Slot> {
        self.slots.get(usize::from(buf.0)).and_then(Option::as_ref)
    }

    pub fn slots(&self) -> impl Iterator<Item = (Buf, &Slot)> {
        self.slots.iter().enumerate().filter_map(|(i, s)| s.as_ref().map(|s| (Buf(i as u16), s)))
    }
}

/// One array, dense over a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rows {
    pub at: Address,
    /// Bytes of a number.
    pub number: usize,
    pub width: usize,
    pub scalar: bool,
    pub batch: usize,
    pub tokens: usize,
    pub heads: usize,
}

impl Rows {
    /// An array of a region, at address 0.
    pub fn of(part: Part, region: &Region, shape: &Shape) -> Self {
        Self {
            at: 0,
            number: number_bytes(part, shape),
            width: part.width(shape) as usize,
            scalar: is_scalar(part, shape),
            batch: shape.batch as usize,
            tokens: region.tokens.len(),
            heads: region.heads(),
        }
    }

    pub fn index(&self, batch: usize, token: usize, head: usize) -> usize {
        if self.scalar {
            (batch * self.heads + head) * self.tokens + token
        } else {
            (batch * self.tokens + token) * self.heads + head
        }
    }

    /// Address of the row of a token and head.
    pub fn row(&self, batch: usize, token: usize, head: usize) -> Address {
        self.at + (self.index(batch, token, head) * self.width * self.number) as u64
    }

    pub fn bytes(&self) -> usize {
        self.batch * self.tokens * self.heads * self.width * self.number
    }

    /// The vectors from this row on.
    pub fn vectors(&self, batch: usize, token: usize, head: usize) -> Vectors {
        let strides = Strides::dense(self.tokens, self.heads, self.width);
        Vectors { ptr: self.row(batch, token, head), strides }
    }
}

/// Consecutive tokens of a region, and where they lie in another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub from: usize,
    pub to: usize,
    pub len: usize,
}

/// What of a region lies in one array: `from` counts the array's tokens, `to` the region's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub buf: Buf,
    pub rows: Rows,
    /// Index in the array of the region's first head.
    pub head: usize,
    pub runs: Vec<Run>,
}

/// The pieces of `region` in arrays of buffers that hold these regions; `None` if a token or head is missing or there twice.
pub(super) fn pieces(region: &Region, held: &[(Buf, Rows, &Region)]) -> Option<Vec<Piece>> {
    let regions: Vec<&Region> = held.iter().map(|(.., r)| *r).collect();
    let spread = Spread::find(region, &regions)?;
    let mut runs: Vec<Vec<Run>> = vec![Vec::new(); held.len()];
    for (to, &(part, from)) in spread.at.iter().enumerate() {
        match runs[part].last_mut() {
            Some(run) if run.from + run.len == from && run.to + run.len == to => run.len += 1,
            _ => runs[part].push(Run { from, to, len: 1 }),
        }
    }
    let all = held.iter().zip(runs).zip(spread.heads);
    let all = all.map(|((&(buf, rows, _), runs), head)| Piece { buf, rows, head, runs });
    Some(all.filter(|p| !p.runs.is_empty()).collect())
}

/// Runs whose ends are counted by another region, in which token i lies at `at[i]`.
pub(super) fn moved(runs: &[Run], at: &[usize]) -> Vec<Run> {
    let mut all: Vec<Run> = Vec::new();
    for run in runs {
        for i in 0..run.len {
            let (from, to) = (run.from + i, at[run.to + i]);
            match all.last_mut() {
                Some(last) if last.from + last.len == from && last.to + last.len == to => last.len += 1,
                _ => all.push(Run { from, to, len: 1 }),
            }
        }
    }
    all
}

/// The copies that bring `heads` heads of a piece to an array, whose head `to_head` is the first.
pub(super) fn strips(piece: &Piece, (to, to_head): (&Rows, usize), heads: usize) -> Vec<Strip> {
    let from = &piece.rows;
    let mut all: Vec<Strip> = Vec::new();
    for batch in 0..from.batch {
        for run in &piece.runs {
            let strip = Strip {
                to: to.row(batch, run.to, to_head),
                from: from.row(batch, run.from, piece.head),
                rows: if from.scalar { heads } else { run.len },
                row_bytes: from.width * from.number * if from.scalar { run.len } else { heads },
                to_pitch: to.width * to.number * if from.scalar { to.tokens } else { to.heads },
                from_pitch: from.width * from.number * if from.scalar { from.tokens } else { from.heads },
            };
            append(&mut all, strip);
        }
    }
    all
}

/// Adds a copy, joined with the one before where both go on without a gap.
fn append(all: &mut Vec<Strip>, mut strip: Strip) {
    if strip.rows == 1 || (strip.to_pitch == strip.row_bytes && strip.from_pitch == strip.row_bytes) {
        let bytes = strip.bytes();
        strip = Strip { rows: 1, row_bytes: bytes, to_pitch: bytes, from_pitch: bytes, ..strip };
        if let Some(last) = all.last_mut()
            && last.rows == 1
            && (last.to + last.row_bytes as u64, last.from + last.row_bytes as u64) == (strip.to, strip.from)
        {
            let bytes = last.row_bytes + bytes;
            *last = Strip { row_bytes: bytes, to_pitch: bytes, from_pitch: bytes, ..*last };
            return;
        }
    }
    all.push(strip);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringlab_sim::plan::Heads;

    fn region(tokens: std::ops::Range<u64>, first: u32, count: u32) -> Region {
        Region { tokens: tokens.collect(), heads: Heads { first, count } }
    }

    fn rows(scalar: bool, region: &Region) -> Rows {
        let (width, number) = if scalar { (1, 4) } else { (64, 2) };
        Rows { at: 0, number, width, scalar, batch: 2, tokens: region.tokens.len(), heads: region.heads() }
    }

    #[test]
    fn whole_arrays_are_one_copy() {
        let held = region(8..16, 0, 4);
        for scalar in [false, true] {
            let rows = rows(scalar, &held);
            let pieces = pieces(&held, &[(Buf(0), rows, &held)]).unwrap();
            let strips = strips(&pieces[0], (&Rows { at: 4096, ..rows }, 0), 4);
            assert_eq!(strips.len(), 1);
            assert_eq!((strips[0].from, strips[0].to, strips[0].bytes()), (0, 4096, rows.bytes()));
        }
    }

    #[test]
    fn some_heads_of_some_tokens_are_rows_apart() {
        let (held, wanted) = (region(8..16, 0, 4), region(10..13, 2, 1));
        let from = rows(false, &held);
        let pieces = pieces(&wanted, &[(Buf(0), from, &held)]).unwrap();
        assert_eq!(pieces[0].runs, [Run { from: 2, to: 0, len: 3 }]);
        let to = rows(false, &wanted);
        let strips = strips(&pieces[0], (&to, 0), 1);
        // 128 bytes a head, 512 a token, 4096 a sequence.
        let strip =
            Strip { to: 0, from: 2 * 512 + 2 * 128, rows: 3, row_bytes: 128, to_pitch: 128, from_pitch: 512 };
        assert_eq!(strips, [strip, Strip { to: 3 * 128, from: strip.from + 4096, ..strip }]);
    }

    #[test]
    fn scalars_of_a_head_lie_together() {
        let (held, wanted) = (region(0..8, 0, 4), region(4..8, 1, 2));
        let from = rows(true, &held);
        let pieces = pieces(&wanted, &[(Buf(0), from, &held)]).unwrap();
        let to = rows(true, &wanted);
        let strips = strips(&pieces[0], (&to, 0), 2);
        let strip = Strip { to: 0, from: 4 * (8 + 4), rows: 2, row_bytes: 16, to_pitch: 16, from_pitch: 32 };
        assert_eq!(strips, [strip, Strip { to: 32, from: strip.from + 4 * 32, ..strip }]);
    }
}
