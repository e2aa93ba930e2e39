//! A real GPU. The only unsafe code of the executor: calls of the driver whose arguments the lowering has worked out.

use std::ptr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use cudarc::driver::sys::{self, CUevent_flags, CUmemorytype, CUresult};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, result};
use ringlab_kernels::gpu::{Backward, Buffer, Cache, Device, Forward, GpuError, Strip as Rows};
use ringlab_kernels::spec::{BackwardSpec, Dims, Finished, ForwardSpec, State, Tensor};
use ringlab_kernels::variant::{Path, Step};
use ringlab_sim::plan::Rank;
use ringlab_sim::units::SimTime;

use super::command::{Address, Command, Event, Kernel, Launch, Number, Strip};
use super::device::{Fault, Gpu, RAISED, RELEASED};
use super::nccl::Comms;
use super::options::Nccl;

/// One GPU with its streams.
pub(super) struct RealGpu {
    /// Dropped first: transfers end before their streams and their memory.
    comms: OnceLock<Comms>,
    device: Device,
    ordinal: usize,
    /// Created at their first use.
    streams: Vec<OnceLock<Arc<CudaStream>>>,
    /// Whether the streams after the first go before it where CTAs wait.
    high_priority: bool,
    rescue: Arc<CudaStream>,
    buffers: Mutex<Vec<Buffer>>,
    events: Mutex<Vec<Arc<CudaEvent>>>,
    launches: Mutex<Vec<Arc<Prepared>>>,
}

/// A kernel with its arguments.
enum Prepared {
    Forward(Forward, bool),
    Backward(Backward),
    Preprocess { dims: Dims, tokens: usize, o: Tensor, d_o: Tensor, delta: Address },
    Merge { dims: Dims, tokens: usize, into: State, from: State },
    Finalise { dims: Dims, tokens: usize, state: State, out: Finished },
    Round { dims: Dims, tokens: usize, from: Tensor, to: Tensor },
    Add { dims: Dims, number: Number, strip: Strip },
}

/// Names what was being done where the driver refuses.
trait Doing<T> {
    fn doing(self, doing: &'static str) -> Result<T, GpuError>;
}

impl<T> Doing<T> for Result<T, DriverError> {
    fn doing(self, doing: &'static str) -> Result<T, GpuError> {
        self.map_err(|source| GpuError::Driver { doing, source })
    }
}

impl RealGpu {
    /// Opens a GPU with so many streams.
    pub fn open(
        ordinal: usize,
        path: Option<Path>,
        streams: usize,
        high_priority: bool,
    ) -> Result<Self, GpuError> {
        let device = Device::open_with(ordinal, path, Some(Cache::from_env()))?;
        let context = device.context();
        #[expect(
            unsafe_code,
            reason = "no slice of this context is shared between streams: streams wait by events"
        )]
        unsafe {
            context.disable_event_tracking();
        }
        let rescue = context.new_stream().doing("create a stream")?;
        Ok(Self {
            ordinal,
            streams: (0..streams).map(|_| OnceLock::new()).collect(),
            high_priority,
            rescue,
            buffers: Mutex::default(),
            events: Mutex::default(),
            launches: Mutex::default(),
            comms: OnceLock::new(),
            device,
        })
    }

    pub fn context(&self) -> &Arc<CudaContext> {
        self.device.context()
    }

    /// Joins a group; see [`Comms::join`].
    pub fn join(
        &self,
        id: &[u8; 128],
        place: (Rank, u32),
        streams: &[usize],
        (options, limit): (&Nccl, Duration),
    ) -> Result<(), Fault> {
        self.context().bind_to_thread().doing("bind the context")?;
        let comms = Comms::join(id, place, streams, options, limit);
        let comms = comms.map_err(|(doing, code)| Fault::Nccl(doing, code))?;
        // A GPU joins once.
        let _ = self.comms.set(comms);
        Ok(())
    }

    /// Lets this GPU reach the memory of another; false if it cannot.
    pub fn enable_peer(&self, peer: &Self) -> Result<bool, GpuError> {
        let mut can = 0;
        #[expect(unsafe_code, reason = "writes one integer; both devices are open")]
        unsafe {
            sys::cuDeviceCanAccessPeer(&raw mut can, self.context().cu_device(), peer.context().cu_device())
        }
        .result()
        .doing("ask for peer access")?;
        if can == 0 {
            return Ok(false);
        }
        self.context().bind_to_thread().doing("bind the context")?;
        #[expect(unsafe_code, reason = "both contexts live as long as their devices")]
        let answer = unsafe { sys::cuCtxEnablePeerAccess(peer.context().cu_ctx(), 0) };
        match answer {
            CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(true),
            other => other.result().doing("enable peer access").map(|()| true),
        }
    }

    pub fn stream(&self, index: usize) -> Result<&Arc<CudaStream>, GpuError> {
        let slot = self.streams.get(index).ok_or(GpuError::Poisoned)?;
        if slot.get().is_none() {
            let context = self.context();
            let created = if self.high_priority && index > 0 {
                context.bind_to_thread().doing("bind the context")?;
                let (_, greatest) = result::stream::get_priority_range().doing("ask for priorities")?;
                context.new_stream_with_priority(greatest)
            } else {
                context.new_stream()
            };
            // Another thread may have been first; its stream is as good.
            let _ = slot.set(created.doing("create a stream")?);
        }
        slot.get().ok_or(GpuError::Poisoned)
    }

    fn event_of(&self, event: Event) -> Result<Arc<CudaEvent>, GpuError> {
        let events = self.events.lock().map_err(|_| GpuError::Poisoned)?;
        events.get(event.0).cloned().ok_or(GpuError::Poisoned)
    }

    fn prepared(&self, kernel: &Kernel<'_>) -> Result<Prepared, GpuError> {
        let step = |step, dims| self.device.load_step(step, dims);
        Ok(match *kernel {
            Kernel::Forward(ref spec) => self.forward(spec)?,
            Kernel::Backward(ref spec) => self.backward(spec)?,
            Kernel::Preprocess { dims, tokens, o, d_o, delta } => {
                step(Step::Preprocess, dims)?;
                Prepared::Preprocess { dims, tokens, o, d_o, delta }
            }
            Kernel::Merge { dims, tokens, into, from } => {
                step(Step::Merge, dims)?;
                Prepared::Merge { dims, tokens, into, from }
            }
            Kernel::Finalise { dims, tokens, state, out } => {
                step(Step::Finalise, dims)?;
                Prepared::Finalise { dims, tokens, state, out }
            }
            Kernel::Round { dims, tokens, from, to } => {
                step(Step::Convert, dims)?;
                Prepared::Round { dims, tokens, from, to }
            }
            Kernel::Add { dims, number, strip } => {
                step(if number == Number::F32 { Step::Add } else { Step::AddRounded }, dims)?;
                Prepared::Add { dims, number, strip }
            }
        })
    }

    fn forward(&self, spec: &ForwardSpec<'_>) -> Result<Prepared, GpuError> {
        let waits = spec.segments.iter().any(|s| s.ready.is_some());
        Ok(Prepared::Forward(Forward::prepare(&self.device, spec)?, waits))
    }

    fn backward(&self, spec: &BackwardSpec<'_>) -> Result<Prepared, GpuError> {
        Ok(Prepared::Backward(Backward::prepare(&self.device, spec)?))
    }

    fn launch(&self, stream: &CudaStream, launch: Launch) -> Result<(), GpuError> {
        let prepared = {
            let launches = self.launches.lock().map_err(|_| GpuError::Poisoned)?;
            launches.get(launch.0).cloned().ok_or(GpuError::Poisoned)?
        };
        let device = &self.device;
        match *prepared {
            Prepared::Forward(ref forward, _) => forward.launch(stream),
            Prepared::Backward(ref backward) => backward.launch(stream),
            Prepared::Preprocess { dims, tokens, o, d_o, delta } => {
                device.preprocess(stream, (dims, tokens), o, d_o, delta)
            }
            Prepared::Merge { dims, tokens, into, from } => device.merge(stream, (dims, tokens), into, from),
            Prepared::Finalise { dims, tokens, state, out } => {
                device.finalise(stream, (dims, tokens), state, out)
            }
            Prepared::Round { dims, tokens, from, to } => {
                device.convert(stream, dims, [tokens, dims.heads], (from, to), 1.0)
            }
            Prepared::Add { dims, number, strip } => {
                let bytes = number.bytes();
                let rows = |ptr, pitch: usize| Rows { ptr, pitch: pitch / bytes };
                let both = (rows(strip.to, strip.to_pitch), rows(strip.from, strip.from_pitch));
                let rounded = number == Number::Rounded;
                device.add(stream, (dims, rounded), [strip.rows, strip.row_bytes / bytes], both)
            }
        }
    }

    fn copy(stream: &CudaStream, strip: Strip) -> Result<(), GpuError> {
        if strip.rows == 1 {
            #[expect(unsafe_code, reason = "both ranges lie in allocations that outlive the stream")]
            return unsafe {
                sys::cuMemcpyDtoDAsync_v2(strip.to, strip.from, strip.row_bytes, stream.cu_stream())
            }
            .result()
            .doing("copy between GPUs");
        }
        let copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: CUmemorytype::CU_MEMORYTYPE_UNIFIED,
            srcHost: ptr::null(),
            srcDevice: strip.from,
            srcArray: ptr::null_mut(),
            srcPitch: strip.from_pitch,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: CUmemorytype::CU_MEMORYTYPE_UNIFIED,
            dstHost: ptr::null_mut(),
            dstDevice: strip.to,
            dstArray: ptr::null_mut(),
            dstPitch: strip.to_pitch,
            WidthInBytes: strip.row_bytes,
            Height: strip.rows,
        };
        #[expect(unsafe_code, reason = "both ranges lie in allocations that outlive the stream")]
        unsafe { sys::cuMemcpy2DAsync_v2(&raw const copy, stream.cu_stream()) }
            .result()
            .doing("copy rows between GPUs")
    }
}

impl Gpu for RealGpu {
    fn allocate(&self, bytes: usize) -> Result<Address, GpuError> {
        let buffer = Buffer::new(self.context(), bytes)?;
        let at = buffer.ptr();
        self.buffers.lock().map_err(|_| GpuError::Poisoned)?.push(buffer);
        Ok(at)
    }

    fn memory(&self) -> Result<(u64, u64), GpuError> {
        let (free, total) = self.context().mem_get_info().doing("ask for free memory")?;
        Ok((free as u64, total as u64))
    }

    fn upload(&self, to: Address, data: &[u8]) -> Result<(), GpuError> {
        self.context().bind_to_thread().doing("bind the context")?;
        #[expect(unsafe_code, reason = "the range lies in an allocation of this GPU; nothing runs yet")]
        unsafe { result::memcpy_htod_sync(to, data) }.doing("copy to the device")
    }

    fn download(&self, from: Address, data: &mut [u8]) -> Result<(), GpuError> {
        self.context().bind_to_thread().doing("bind the context")?;
        #[expect(unsafe_code, reason = "the range lies in an allocation of this GPU; its streams have ended")]
        unsafe { result::memcpy_dtoh_sync(data, from) }.doing("copy from the device")
    }

    fn prepare(&self, kernel: &Kernel<'_>) -> Result<Launch, GpuError> {
        let prepared = Arc::new(self.prepared(kernel)?);
        let mut launches = self.launches.lock().map_err(|_| GpuError::Poisoned)?;
        launches.push(prepared);
        Ok(Launch(launches.len() - 1))
    }

    fn event(&self) -> Result<Event, GpuError> {
        let timed = Some(CUevent_flags::CU_EVENT_DEFAULT);
        let event = self.context().new_event(timed).doing("create an event")?;
        let mut events = self.events.lock().map_err(|_| GpuError::Poisoned)?;
        events.push(Arc::new(event));
        Ok(Event(events.len() - 1))
    }

    fn post(&self, index: usize, command: &Command) -> Result<(), Fault> {
        let stream = self.stream(index)?;
        let raw = stream.cu_stream();
        self.context().bind_to_thread().doing("bind the context")?;
        match *command {
            Command::Await(event) => stream.wait(self.event_of(event)?.as_ref()).doing("wait for an event"),
            Command::Record(event) => self.event_of(event)?.record(stream).doing("record an event"),
            Command::AwaitFlag(at) => {
                let at_least = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;
                #[expect(
                    unsafe_code,
                    reason = "the flag is four bytes of an allocation that outlives the stream"
                )]
                unsafe { sys::cuStreamWaitValue32_v2(raw, at, RAISED, at_least) }
                    .result()
                    .doing("wait for a flag")
            }
            Command::RaiseFlag(at) => {
                let visible = sys::CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32;
                #[expect(
                    unsafe_code,
                    reason = "the flag is four bytes of an allocation that outlives the stream"
                )]
                unsafe { sys::cuStreamWriteValue32_v2(raw, at, RAISED, visible) }
                    .result()
                    .doing("raise a flag")
            }
            Command::Copy(strip) => Self::copy(stream, strip),
            Command::Fill { at, bytes, byte } =>
            {
                #[expect(unsafe_code, reason = "the range lies in an allocation of this GPU")]
                unsafe { result::memset_d8_async(at, byte, bytes, raw) }.doing("fill device memory")
            }
            Command::Launch(launch) => self.launch(stream, launch),
            Command::Exchange(ref parcels) => {
                let comms = self.comms.get().ok_or(GpuError::Poisoned)?;
                return comms
                    .exchange(index, parcels, stream)
                    .map_err(|(doing, code)| Fault::Nccl(doing, code));
            }
        }
        .map_err(Fault::Gpu)
    }

    fn is_done(&self, event: Event) -> Result<bool, GpuError> {
        self.event_of(event)?.try_is_complete().doing("run what was posted")
    }

    fn elapsed(&self, from: Event, to: Event) -> Result<SimTime, GpuError> {
        const PS_PER_MS: f64 = 1e9;
        let ms =
            self.event_of(from)?.elapsed_ms(self.event_of(to)?.as_ref()).doing("read an event's time")?;
        Ok(SimTime((f64::from(ms).max(0.0) * PS_PER_MS) as u64))
    }

    fn release(&self, flags: Address, count: usize) -> Result<(), GpuError> {
        if let Some(comms) = self.comms.get() {
            comms.abort();
        }
        self.context().bind_to_thread().doing("bind the context")?;
        let visible = sys::CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32;
        for i in 0..count as u64 {
            // By the stream itself, not by a kernel: a launch that waits may hold every SM.
            #[expect(unsafe_code, reason = "the flags are an allocation of this GPU")]
            unsafe {
                sys::cuStreamWriteValue32_v2(self.rescue.cu_stream(), flags + 4 * i, RELEASED, visible)
            }
            .result()
            .doing("release a flag")?;
        }
        Ok(())
    }

    fn check(&self) -> Result<(), GpuError> {
        let launches = self.launches.lock().map_err(|_| GpuError::Poisoned)?;
        launches.iter().try_for_each(|launch| match launch.as_ref() {
            Prepared::Forward(forward, true) => forward.check_ready(),
            _ => Ok(()),
        })
    }

    fn ordinal(&self) -> usize {
        self.ordinal
    }

    fn name(&self) -> Result<String, GpuError> {
        self.device.name()
    }

    fn driver(&self) -> Result<String, GpuError> {
        self.device.driver_version()
    }
}
