//! What a kernel reads as one array: in place where it lies so, else packed by copies before the launch.

use std::sync::Arc;

use ringlab_sim::plan::{Buf, Bufs, Part};

use super::{Fail, Site, not_held};
use crate::cuda::command::{Address, Command, Strip};
use crate::cuda::memory::{Rows, strips};
use crate::region::Region;

/// Copies of what lay scattered, kept until one of the buffers changes.
#[derive(Default)]
pub(super) struct Packed {
    pub bytes: usize,
    kept: Vec<Kept>,
    /// Memory that is free again, with its size. All of it is used on the lane of kernels only, in order.
    free: Vec<(Address, usize)>,
}

struct Kept {
    bufs: Bufs,
    part: Part,
    region: Arc<Region>,
    rows: Rows,
}

impl Packed {
    pub fn forget(&mut self, buf: Buf) {
        let (gone, kept) =
            std::mem::take(&mut self.kept).into_iter().partition(|k| k.bufs.iter().any(|b| b == buf));
        self.kept = kept;
        let gone: Vec<Kept> = gone;
        self.free.extend(gone.into_iter().map(|k| (k.rows.at, k.rows.bytes())));
    }
}

/// An array of which a launch reads from a token and a head on.
#[derive(Debug, Clone, Copy)]
pub(super) struct View {
    pub rows: Rows,
    pub token: usize,
    pub head: usize,
}

impl Site<'_> {
    /// The rows of `region` as one array with the commands that make it so. Vectors may lie among other tokens and
    /// heads, scalars only among other heads.
    pub(super) fn view(
        &mut self,
        bufs: Bufs,
        part: Part,
        region: &Arc<Region>,
    ) -> Result<(View, Vec<Command>), Fail> {
        let pieces = self.find(bufs, part, region).ok_or(not_held(bufs.first))?;
        if let [piece] = &pieces[..]
            && let [run] = &piece.runs[..]
            && (!piece.rows.scalar || piece.rows.tokens == run.len)
        {
            return Ok((View { rows: piece.rows, token: run.from, head: piece.head }, Vec::new()));
        }
        let same = |k: &&Kept| k.bufs == bufs && k.part == part && k.region == *region;
        if let Some(kept) = self.packed.kept.iter().find(same) {
            return Ok((View { rows: kept.rows, token: 0, head: 0 }, Vec::new()));
        }
        let rows = self.room(part, region)?;
        let copies = pieces.iter().flat_map(|piece| strips(piece, (&rows, 0), region.heads()));
        let commands = copies.map(Command::Copy).collect();
        self.packed.kept.push(Kept { bufs, part, region: Arc::clone(region), rows });
        Ok((View { rows, token: 0, head: 0 }, commands))
    }

    /// The rows of `region` without a gap: where, how many bytes, and the copies that make it so, into memory of its own.
    pub(super) fn gathered(
        &mut self,
        bufs: Bufs,
        part: Part,
        region: &Arc<Region>,
    ) -> Result<(Address, usize, Vec<Command>), Fail> {
        let pieces = self.find(bufs, part, region).ok_or(not_held(bufs.first))?;
        let shape = &self.common.plan.shape;
        let mut rows = Rows::of(part, region, shape);
        let bytes = rows.bytes();
        let copies = |to: &Rows| -> Vec<Strip> {
            pieces.iter().flat_map(|piece| strips(piece, (to, 0), region.heads())).collect()
        };
        if let [whole] = copies(&rows)[..]
            && whole.rows == 1
        {
            return Ok((whole.from, bytes, Vec::new()));
        }
        self.packed.bytes += bytes;
        rows.at = self.gpu.allocate(bytes)?;
        Ok((rows.at, bytes, copies(&rows).into_iter().map(Command::Copy).collect()))
    }

    /// Memory for a packed array.
    fn room(&mut self, part: Part, region: &Region) -> Result<Rows, Fail> {
        let mut rows = Rows::of(part, region, &self.common.plan.shape);
        let bytes = rows.bytes();
        rows.at = if let Some(i) = self.packed.free.iter().position(|&(_, size)| size == bytes) {
            self.packed.free.swap_remove(i).0
        } else {
            self.packed.bytes += bytes;
            self.gpu.allocate(bytes)?
        };
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringlab_sim::plan::Heads;

    #[test]
    fn a_copy_is_forgotten_once_one_of_its_buffers_changes_and_its_memory_used_again() {
        let region = Arc::new(Region { tokens: vec![0, 1], heads: Heads { first: 0, count: 1 } });
        let rows = Rows { at: 4096, number: 2, width: 64, scalar: false, batch: 1, tokens: 2, heads: 1 };
        let kept = |first: u16| Kept {
            bufs: Bufs { first: Buf(first), count: 2 },
            part: Part::Query,
            region: Arc::clone(&region),
            rows,
        };
        let mut packed = Packed { bytes: 0, kept: vec![kept(1), kept(3)], free: Vec::new() };
        packed.forget(Buf(5));
        assert_eq!((packed.kept.len(), packed.free.len()), (2, 0));
        packed.forget(Buf(2));
        assert_eq!(packed.kept[0].bufs.first, Buf(3));
        assert_eq!(packed.free, [(4096, 2 * 64 * 2)]);
    }
}
