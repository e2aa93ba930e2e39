use std::mem::size_of_val;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, result, sys::CUdeviceptr};

use super::GpuError;
use super::error::Doing as _;

/// Plain numbers, whose every bit pattern is a value.
///
/// # Safety
/// The type has no padding and no invalid bit pattern.
#[expect(unsafe_code, reason = "implementing it promises that bytes from a device make a value")]
pub unsafe trait Plain: Copy {
    /// All bits zero.
    const ZERO: Self;
}

macro_rules! plain {
    ($($type:ty = $zero:expr),*) => {$(
        #[expect(unsafe_code, reason = "a number without padding")]
        unsafe impl Plain for $type {
            const ZERO: Self = $zero;
        }
    )*};
}
plain!(
    u8 = 0,
    u16 = 0,
    u32 = 0,
    u64 = 0,
    i32 = 0,
    f32 = 0.0,
    half::bf16 = half::bf16::ZERO,
    half::f16 = half::f16::ZERO
);

/// Device memory from `cuMemAlloc`, which peers may map; freeing it waits for the device, so no launch outlives it.
#[derive(Debug)]
pub struct Buffer {
    context: Arc<CudaContext>,
    ptr: CUdeviceptr,
    bytes: usize,
}

impl Buffer {
    /// `bytes` bytes, not initialised.
    pub fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Self, GpuError> {
        context.bind_to_thread().doing("bind the context")?;
        #[expect(
            unsafe_code,
            reason = "the memory is only reached through this buffer's checked copies and kernels"
        )]
        let ptr = unsafe { result::malloc_sync(bytes.max(1)) }.doing("allocate device memory")?;
        Ok(Self { context: Arc::clone(context), ptr, bytes })
    }

    /// A copy of `data`.
    pub fn from_slice<T: Plain>(context: &Arc<CudaContext>, data: &[T]) -> Result<Self, GpuError> {
        let buffer = Self::new(context, size_of_val(data))?;
        buffer.write(0, data)?;
        Ok(buffer)
    }

    /// Device address of its first byte.
    pub fn ptr(&self) -> u64 {
        self.ptr
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies `data` to byte `offset`, after everything the device was given before.
    pub fn write<T: Plain>(&self, offset: usize, data: &[T]) -> Result<(), GpuError> {
        let ptr = self.at(offset, size_of_val(data))?;
        self.settle()?;
        #[expect(unsafe_code, reason = "the range lies within the allocation and no kernel is running")]
        unsafe { result::memcpy_htod_sync(ptr, data) }.doing("copy to the device")
    }

    /// Copies the first `count` values back, after everything the device was given before.
    pub fn read<T: Plain>(&self, count: usize) -> Result<Vec<T>, GpuError> {
        self.read_at(0, count)
    }

    /// As [`read`](Self::read), from byte `offset` on.
    pub fn read_at<T: Plain>(&self, offset: usize, count: usize) -> Result<Vec<T>, GpuError> {
        let mut data = vec![T::ZERO; count];
        let ptr = self.at(offset, size_of_val(&data[..]))?;
        self.settle()?;
        #[expect(unsafe_code, reason = "the range lies within the allocation; any bits make a Plain value")]
        unsafe { result::memcpy_dtoh_sync(&mut data, ptr) }.doing("copy from the device")?;
        Ok(data)
    }

    /// Sets every byte to `byte`, in the order of `stream`.
    pub fn fill(&self, byte: u8, stream: &CudaStream) -> Result<(), GpuError> {
        self.fill_range(0, self.bytes, byte, stream)
    }

    pub(super) fn fill_range(
        &self,
        offset: usize,
        bytes: usize,
        byte: u8,
        stream: &CudaStream,
    ) -> Result<(), GpuError> {
        let ptr = self.at(offset, bytes)?;
        self.context.bind_to_thread().doing("bind the context")?;
        #[expect(unsafe_code, reason = "the range lies within the allocation")]
        unsafe { result::memset_d8_async(ptr, byte, bytes, stream.cu_stream()) }.doing("fill device memory")
    }

    fn settle(&self) -> Result<(), GpuError> {
        self.context.synchronize().doing("wait for the device")
    }

    fn at(&self, offset: usize, bytes: usize) -> Result<CUdeviceptr, GpuError> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(self.ptr + offset as u64),
            _ => Err(GpuError::OutOfRange { offset, bytes, capacity: self.bytes }),
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.context.record_err(self.context.bind_to_thread());
        #[expect(
            unsafe_code,
            reason = "allocated by this buffer, freed once; the call waits for running kernels"
        )]
        self.context.record_err(unsafe { result::free_sync(self.ptr) });
    }
}
