use std::ffi::{CString, c_char};

use cudarc::nvrtc::{result, sys};

use super::GpuError;
use super::cache::{Cache, digest};
use crate::source;
use crate::variant::Kernel;

/// Machine code of one kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binary {
    /// A cubin for exactly one architecture.
    pub cubin: Vec<u8>,
    /// The compiler's messages, its resource report among them; empty where the cubin came from the cache.
    pub log: String,
}

/// What the assembler reports about the largest function of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resources {
    /// Registers a thread.
    pub registers: u32,
    /// Bytes a thread moves to and from local memory for want of registers, loads and stores together.
    pub spill_bytes: u32,
    /// Bytes of stack a thread.
    pub stack_bytes: u32,
}

impl Binary {
    /// Reads the resource report from the log; `None` where there is none.
    pub fn resources(&self) -> Option<Resources> {
        let [stores, loads] =
            ["bytes spill stores", "bytes spill loads"].map(|what| self.numbers_before(what));
        Some(Resources {
            registers: self.numbers_before("registers").max()?,
            spill_bytes: stores.chain(loads).sum(),
            stack_bytes: self.numbers_before("bytes stack frame").max()?,
        })
    }

    fn numbers_before(&self, what: &'static str) -> impl Iterator<Item = u32> {
        self.log.match_indices(what).filter_map(|(at, _)| {
            self.log[..at].trim_end().rsplit([' ', '\t', '\n', ',']).next()?.parse().ok()
        })
    }

    /// Lines of the log that mean a slow kernel: `setmaxnreg` ignored (C7508), `wgmma` serialised (the others).
    pub fn warnings(&self) -> Vec<&str> {
        const CODES: [&str; 6] = ["C7508", "C7510", "C7512", "C7514", "C7515", "C7517"];
        self.log.lines().filter(|line| CODES.iter().any(|code| line.contains(code))).collect()
    }
}

/// NVRTC, with an optional cache in front.
#[derive(Debug, Clone)]
pub struct Compiler {
    cache: Option<Cache>,
    version: String,
}

impl Compiler {
    /// Looks for NVRTC.
    pub fn new(cache: Option<Cache>) -> Result<Self, GpuError> {
        #[expect(unsafe_code, reason = "loads a shared library by name, whose initialisers are NVIDIA's")]
        let present = unsafe { sys::is_culib_present() };
        if !present {
            return Err(GpuError::NoNvrtc);
        }
        let (mut major, mut minor) = (0, 0);
        #[expect(unsafe_code, reason = "writes two integers that outlive the call")]
        let code = unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) };
        code.result()
            .map_err(|error| GpuError::Nvrtc { doing: "say its version", code: error.to_string() })?;
        Ok(Self { cache, version: format!("{major}.{minor}") })
    }

    /// Compiler version, as in `13.0`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Machine code of `kernel` for `architecture` (as in `sm_90a`), from the cache if it is there.
    pub fn kernel(&self, kernel: &Kernel, architecture: &str) -> Result<Binary, GpuError> {
        let source = source::unit(kernel.source).map_err(GpuError::Source)?;
        let mut options: Vec<String> = kernel.defines.iter().map(|define| format!("-D{define}")).collect();
        options.extend(["-std=c++17", "-DNDEBUG", "--ptxas-options=-v"].map(String::from));
        options.push(format!("--gpu-architecture={architecture}"));
        let key = format!("{}-{}.cubin", kernel.name, digest(&[&source, &options.join(" "), &self.version]));
        if let Some(cubin) = self.cache.as_ref().map(|cache| cache.load(&key)).transpose()?.flatten() {
            return Ok(Binary { cubin, log: String::new() });
        }
        let binary = compile(&kernel.name, architecture, &source, &options)?;
        if let Some(cache) = &self.cache {
            cache.store(&key, &binary.cubin)?;
        }
        Ok(binary)
    }
}

/// Frees the program on every way out.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        #[expect(unsafe_code, reason = "the program was created by NVRTC and is destroyed once, here")]
        // A program that cannot be destroyed leaks; nothing else depends on it.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

fn compile(name: &str, architecture: &str, source: &str, options: &[String]) -> Result<Binary, GpuError> {
    let text = |text: &str| {
        CString::new(text).map_err(|_| GpuError::Source(format!("{name} (holds a null character)")))
    };
    let failed = |doing| move |error: result::NvrtcError| GpuError::Nvrtc { doing, code: error.to_string() };
    let (source, file) = (text(source)?, text(name)?);
    let program = Program(result::create_program(&source, Some(&file)).map_err(failed("create a program"))?);
    #[expect(unsafe_code, reason = "the program is alive, and so are its source and name")]
    let compiled = unsafe { result::compile_program(program.0, options) };
    #[expect(unsafe_code, reason = "the program is alive and was compiled")]
    let log = unsafe { result::get_program_log(program.0) }.map_err(failed("give its messages"))?;
    let log = String::from_utf8_lossy(&log.iter().map(|&c| c.cast_unsigned()).collect::<Vec<u8>>())
        .trim_end_matches('\0')
        .to_owned();
    if let Err(error) = compiled {
        let log = if log.trim().is_empty() { error.to_string() } else { log };
        return Err(GpuError::Compile { name: name.to_owned(), architecture: architecture.to_owned(), log });
    }
    let mut size = 0;
    #[expect(unsafe_code, reason = "the program was compiled for a real architecture, so it has a cubin")]
    unsafe { sys::nvrtcGetCUBINSize(program.0, &raw mut size) }.result().map_err(failed("size the cubin"))?;
    let mut cubin = vec![0u8; size];
    #[expect(unsafe_code, reason = "the buffer holds as many bytes as NVRTC said it writes")]
    unsafe { sys::nvrtcGetCUBIN(program.0, cubin.as_mut_ptr().cast::<c_char>()) }
        .result()
        .map_err(failed("give the cubin"))?;
    Ok(Binary { cubin, log })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binary(log: &str) -> Binary {
        Binary { cubin: Vec::new(), log: log.into() }
    }

    #[test]
    fn resource_report_is_read() {
        let log = "ptxas info    : Compiling entry function 'f' for 'sm_80'\nptxas info    : Function properties for f\n    \
                   16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\nptxas info    : Used 255 registers, \
                   used 1 barriers, 16 bytes cumulative stack size";
        let expected = Resources { registers: 255, spill_bytes: 20, stack_bytes: 16 };
        assert_eq!(binary(log).resources(), Some(expected));
        assert_eq!(binary("").resources(), None);
    }

    #[test]
    fn serialisation_warnings_are_found() {
        // `setmaxnreg` ignored; wgmma serialised for want of registers, by other writers of its registers, and so on.
        for code in ["C7508", "C7510", "C7512", "C7514", "C7515", "C7517"] {
            let line = format!("ptxas info : ({code}) Potential Performance Loss: wgmma.mma_async");
            let log = format!("{line}\nptxas info : Used 24 registers");
            assert_eq!(binary(&log).warnings(), [line.as_str()]);
        }
        assert!(binary("ptxas info : Used 24 registers").warnings().is_empty());
    }
}
