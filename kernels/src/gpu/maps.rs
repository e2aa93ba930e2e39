use super::GpuError;
use super::launch::int;
use super::pack::Pack;
use super::tensor_map::{Element, Mapped, encode};
use crate::abi::{Segment, TileRange};
use crate::spec::{Dims, KeySegment, Tensor};
use crate::variant::Boxes;

/// Writes the tensor maps of a launch, where its kernel reads through them.
pub(super) struct Maps {
    pub boxes: Option<Boxes>,
    pub dims: Dims,
}

impl Maps {
    /// Byte offset in `pack` of the map of `q` or `do`.
    pub fn queries(&self, pack: &mut Pack, tensor: Tensor, tokens: usize) -> Result<Option<usize>, GpuError> {
        let (heads, element) = (self.dims.heads, Element::Input(self.dims.dtype));
        self.map(pack, |boxes| Mapped { tensor, heads, tokens, rows: boxes.q, axes: boxes.axes, element })
    }

    /// Byte offset in `pack` of the map of the fp32 `dq`.
    pub fn query_gradient(
        &self,
        pack: &mut Pack,
        tensor: Tensor,
        tokens: usize,
    ) -> Result<Option<usize>, GpuError> {
        let (heads, element) = (self.dims.heads, Element::F32);
        self.map(pack, |boxes| Mapped { tensor, heads, tokens, rows: boxes.dq, axes: boxes.axes, element })
    }

    /// A segment whose table addresses are still offsets in `pack`.
    pub fn segment(
        &self,
        pack: &mut Pack,
        segment: &KeySegment<'_>,
        ranges: &[TileRange],
    ) -> Result<Segment, GpuError> {
        let tokens = segment.positions.len();
        let tensor = |ptr| Tensor { ptr, strides: segment.strides };
        Ok(Segment {
            k: segment.k,
            v: segment.v,
            pos: pack.push(segment.positions) as u64,
            ranges: pack.push(ranges) as u64,
            ready: segment.ready.map_or(0, |flag| flag.ptr),
            ready_value: segment.ready.map_or(0, |flag| flag.value),
            len: int(tokens),
            kv: segment.strides,
            k_map: self.keys(pack, tensor(segment.k), tokens)?.unwrap_or(0) as u64,
            v_map: self.keys(pack, tensor(segment.v), tokens)?.unwrap_or(0) as u64,
        })
    }

    fn keys(&self, pack: &mut Pack, tensor: Tensor, tokens: usize) -> Result<Option<usize>, GpuError> {
        let (heads, element) = (self.dims.kv_heads, Element::Input(self.dims.dtype));
        self.map(pack, |boxes| Mapped { tensor, heads, tokens, rows: boxes.kv, axes: boxes.axes, element })
    }

    /// The byte offset of the map in `pack`, if the kernel has maps of that many rows.
    fn map(&self, pack: &mut Pack, describe: impl Fn(Boxes) -> Mapped) -> Result<Option<usize>, GpuError> {
        let mapped = self.boxes.map(describe).filter(|mapped| mapped.rows > 0);
        mapped.map(|mapped| Ok(pack.push(&encode(mapped, self.dims)?))).transpose()
    }
}
