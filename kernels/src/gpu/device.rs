use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::{CUdevice_attribute as Attribute, CUfunction_attribute_enum as FunctionAttribute};
use cudarc::driver::{CudaContext, CudaFunction, CudaModule, sys};
use cudarc::nvrtc::Ptx;

use super::error::Doing as _;
use super::{Cache, Compiler, GpuError};
use crate::variant::{Capability, Kernel, Path, SharedMemory, Target};

/// Dynamic shared memory that a kernel gets without asking.
const SHARED_BY_DEFAULT: u32 = 48 << 10;

/// One GPU with its compiled kernels.
#[derive(Debug)]
pub struct Device {
    context: Arc<CudaContext>,
    compiler: Compiler,
    target: Target,
    multiprocessors: u32,
    functions: Mutex<HashMap<String, Loaded>>,
    change: Option<fn(&mut Kernel)>,
}

/// A kernel on the device.
#[derive(Debug, Clone)]
pub(super) struct Loaded {
    pub function: CudaFunction,
    /// Dynamic shared memory of a CTA.
    pub shared_bytes: u32,
}

impl Device {
    /// Opens GPU `ordinal` with the fastest kernels it runs, cached in the default folder.
    pub fn open(ordinal: usize) -> Result<Self, GpuError> {
        Self::open_with(ordinal, None, Some(Cache::from_env()))
    }

    /// Opens GPU `ordinal` with the kernels of `path` (`None`: the fastest it runs) and a cache, if any.
    pub fn open_with(ordinal: usize, path: Option<Path>, cache: Option<Cache>) -> Result<Self, GpuError> {
        let count = Self::count()?;
        if ordinal >= count {
            return Err(GpuError::NoDevice { ordinal, count });
        }
        let compiler = Compiler::new(cache)?;
        let context = CudaContext::new(ordinal).doing("open the device")?;
        let (major, minor) = context.compute_capability().doing("ask for the compute capability")?;
        let capability = Capability { major: major.unsigned_abs(), minor: minor.unsigned_abs() };
        let path = Path::choose(capability, path)?;
        let multiprocessors = context
            .attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
            .doing("count the multiprocessors")?
            .unsigned_abs();
        let target = Target { path, capability };
        Ok(Self { context, compiler, target, multiprocessors, functions: Mutex::default(), change: None })
    }

    /// Every kernel is passed through `change` before it is compiled: versions of a kernel side by side in one run.
    pub fn with_change(self, change: fn(&mut Kernel)) -> Self {
        Self { functions: Mutex::default(), change: Some(change), ..self }
    }

    /// `kernel` as this device compiles and launches it.
    pub(super) fn changed(&self, mut kernel: Kernel) -> Kernel {
        if let Some(change) = self.change {
            change(&mut kernel);
        }
        kernel
    }

    /// GPUs of this machine; an error where there is no driver.
    pub fn count() -> Result<usize, GpuError> {
        #[expect(unsafe_code, reason = "loads a shared library by name, whose initialisers are NVIDIA's")]
        let present = unsafe { sys::is_culib_present() };
        if !present {
            return Err(GpuError::NoDriver);
        }
        match cudarc::driver::result::init().and_then(|()| CudaContext::device_count()) {
            Ok(count) => Ok(count.unsigned_abs() as usize),
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE => Ok(0),
            Err(source) => Err(GpuError::Driver { doing: "count the devices", source }),
        }
    }

    /// The CUDA context.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// The vendor's name of the device.
    pub fn name(&self) -> Result<String, GpuError> {
        self.context.name().doing("ask for the device's name")
    }

    /// Version of the driver's CUDA, as in `13.0`.
    pub fn driver_version(&self) -> Result<String, GpuError> {
        let mut version = 0;
        #[expect(unsafe_code, reason = "writes one integer that outlives the call")]
        unsafe { sys::cuDriverGetVersion(&raw mut version) }
            .result()
            .doing("ask for the driver's version")?;
        Ok(format!("{}.{}", version / 1000, version % 1000 / 10))
    }

    /// Version of the compiler of its kernels, as in `13.0`.
    pub fn compiler_version(&self) -> &str {
        self.compiler.version()
    }

    /// The family of kernels that its launches use, and its compute capability.
    pub fn target(&self) -> Target {
        self.target
    }

    /// Its multiprocessors.
    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// `kernel`, compiled and loaded at its first use.
    pub(super) fn function(&self, kernel: &Kernel) -> Result<Loaded, GpuError> {
        let mut functions = self.functions.lock().map_err(|_| GpuError::Poisoned)?;
        if let Some(loaded) = functions.get(&kernel.name) {
            return Ok(loaded.clone());
        }
        let binary = self.compiler.kernel(kernel, &self.target.architecture())?;
        let module = self.context.load_module(Ptx::from_binary(binary.cubin)).doing("load a kernel")?;
        let function = module.load_function(kernel.entry).doing("find a kernel's entry")?;
        let shared_bytes = match kernel.shared {
            SharedMemory::Bytes(bytes) => bytes,
            SharedMemory::Symbol(name) => self.integer(&module, name)?,
        };
        if shared_bytes > SHARED_BY_DEFAULT {
            let attribute = FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            function
                .set_attribute(attribute, shared_bytes.cast_signed())
                .doing("raise a kernel's shared memory")?;
        }
        let loaded = Loaded { function, shared_bytes };
        functions.insert(kernel.name.clone(), loaded.clone());
        Ok(loaded)
    }

    /// Value of the integer `name` of a module.
    fn integer(&self, module: &Arc<CudaModule>, name: &str) -> Result<u32, GpuError> {
        let stream = self.context.default_stream();
        let bytes = module.get_global(name, &stream).doing("find a kernel's shared memory size")?;
        let bytes = stream.clone_dtoh(&bytes).doing("read a kernel's shared memory size")?;
        let bytes: [u8; 4] =
            bytes.try_into().map_err(|_| GpuError::Source(format!("{name} as an integer")))?;
        Ok(u32::from_le_bytes(bytes))
    }
}
