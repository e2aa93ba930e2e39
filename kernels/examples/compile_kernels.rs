//! Compiles every kernel of every target, without a GPU, and refuses what does not compile or would be slow: register
//! spills, ignored `setmaxnreg`, serialised `wgmma`.
//!
//! `cargo run -p ringlab-kernels --example compile_kernels -- FOLDER [NAME]` writes the cubins to FOLDER, of all kernels or
//! of those with NAME in their names. Versions of the Hopper kernels under comparison are compiled too; a spill of theirs is only shown.

use std::path::Path as FilePath;
use std::process::ExitCode;
use std::{env, fs};

use ringlab_kernels::gpu::{Binary, Compiler};
use ringlab_kernels::lab::VERSIONS;
use ringlab_kernels::variant::{Capability, Kernel, Path, Target};

/// Targets whose kernels are compiled, and whether a spill is an error there.
const TARGETS: [(Path, u32, u32, bool); 5] = [
    (Path::Hopper, 9, 0, true),
    (Path::Portable, 8, 0, true),
    (Path::Portable, 8, 9, true),
    (Path::Portable, 9, 0, true),
    // The register allocator of newer chips was not tuned for: it must compile, a spill is only shown.
    (Path::Portable, 10, 0, false),
];

fn main() -> ExitCode {
    let Some(folder) = env::args().nth(1) else {
        eprintln!("usage: compile_kernels FOLDER [NAME]");
        return ExitCode::from(2);
    };
    match run(FilePath::new(&folder), &env::args().nth(2).unwrap_or_default()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(faults) => {
            eprintln!("{faults} kernels are not fit to run");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("failed to compile the kernels: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The kernels of a target, and the Hopper ones' versions under comparison; whether it is one of these.
fn kernels(target: Target) -> Vec<(Kernel, bool)> {
    let all = Kernel::all(target);
    let compared = if target.path == Path::Hopper { VERSIONS } else { &[] };
    let versions = compared.iter().flat_map(|version| {
        all.iter().filter_map(|kernel| {
            let mut changed = kernel.clone();
            (version.change)(&mut changed);
            (changed != *kernel).then_some((changed, true))
        })
    });
    let versions: Vec<_> = versions.collect();
    all.into_iter().map(|kernel| (kernel, false)).chain(versions).collect()
}

/// The number of kernels with a fault.
fn run(folder: &FilePath, name: &str) -> Result<usize, Box<dyn std::error::Error>> {
    fs::create_dir_all(folder)?;
    let compiler = Compiler::new(None)?;
    println!("NVRTC {}", compiler.version());
    let mut faults = 0;
    for (path, major, minor, spills_matter) in TARGETS {
        let target = Target { path, capability: Capability { major, minor } };
        let wanted = |(kernel, _): &(Kernel, bool)| kernel.name.contains(name);
        for (kernel, is_version) in kernels(target).into_iter().filter(wanted) {
            let architecture = target.architecture();
            let binary = compiler.kernel(&kernel, &architecture)?;
            fs::write(folder.join(format!("{}-{architecture}.cubin", kernel.name)), &binary.cubin)?;
            let fault = fault(&binary, spills_matter && !is_version);
            faults += usize::from(fault.is_some());
            println!("{}", line(&kernel, &architecture, &binary, fault.as_deref()));
        }
    }
    Ok(faults)
}

fn fault(binary: &Binary, spills_matter: bool) -> Option<String> {
    let Some(resources) = binary.resources() else { return Some("no resource report".into()) };
    if let Some(warning) = binary.warnings().first() {
        return Some((*warning).to_owned());
    }
    (spills_matter && resources.spill_bytes > 0).then(|| "registers spill".to_owned())
}

fn line(kernel: &Kernel, architecture: &str, binary: &Binary, fault: Option<&str>) -> String {
    let resources = binary.resources().unwrap_or_default();
    let verdict = fault.map_or_else(|| "ok".to_owned(), |fault| format!("FAULT: {fault}"));
    format!(
        "{:<34} {architecture:<8} {:>3} registers {:>4} spill bytes  {verdict}",
        kernel.name, resources.registers, resources.spill_bytes
    )
}
