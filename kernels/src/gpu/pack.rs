use std::mem::size_of_val;
use std::slice;
use std::sync::Arc;

use cudarc::driver::CudaContext;

use super::buffer::Plain;
use super::{Buffer, GpuError};
use crate::abi::{Segment, Strides, TileRange};

/// Alignment of every table: what a tensor map asks for.
const ALIGN: usize = 128;

#[expect(unsafe_code, reason = "four integers without padding")]
unsafe impl Plain for TileRange {
    const ZERO: Self = Self { first: 0, full_first: 0, full_last: 0, last: 0 };
}
#[expect(unsafe_code, reason = "eight-byte fields and two four-byte ones side by side: no padding")]
unsafe impl Plain for Segment {
    const ZERO: Self = Self {
        k: 0,
        v: 0,
        pos: 0,
        ranges: 0,
        ready: 0,
        ready_value: 0,
        len: 0,
        kv: Strides { batch: 0, token: 0, head: 0 },
        k_map: 0,
        v_map: 0,
    };
}

/// Small tables laid out for one allocation and one copy.
#[derive(Debug, Default)]
pub(super) struct Pack {
    bytes: Vec<u8>,
}

impl Pack {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Appends `data`; its byte offset.
    pub(super) fn push<T: Plain>(&mut self, data: &[T]) -> usize {
        #[expect(unsafe_code, reason = "a Plain value has no padding, so all of its bytes are initialised")]
        let bytes = unsafe { slice::from_raw_parts(data.as_ptr().cast::<u8>(), size_of_val(data)) };
        let offset = self.align();
        self.bytes.extend_from_slice(bytes);
        offset
    }

    /// Appends `words` 32-bit zeros; their byte offset.
    pub(super) fn zeros(&mut self, words: usize) -> usize {
        let offset = self.align();
        self.bytes.resize(offset + 4 * words, 0);
        offset
    }

    /// Uploads everything, the segments last with their offsets turned into addresses; the buffer and the address of
    /// the segments.
    pub(super) fn upload(
        mut self,
        context: &Arc<CudaContext>,
        mut segments: Vec<Segment>,
    ) -> Result<(Buffer, u64), GpuError> {
        let offset = self.align();
        let buffer = Buffer::new(context, offset + size_of_val(&segments[..]))?;
        for segment in &mut segments {
            segment.pos += buffer.ptr();
            segment.ranges += buffer.ptr();
            // Offset 0 is the scratch range, so a map there means none.
            for map in [&mut segment.k_map, &mut segment.v_map] {
                *map = if *map == 0 { 0 } else { *map + buffer.ptr() };
            }
        }
        self.push(&segments);
        buffer.write(0, &self.bytes)?;
        let address = buffer.ptr() + offset as u64;
        Ok((buffer, address))
    }

    fn align(&mut self) -> usize {
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGN), 0);
        self.bytes.len()
    }
}
