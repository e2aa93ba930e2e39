//! Checks and times the kernels on this machine's GPU.
//!
//! `lab COMMAND FOLDER [hopper|portable] [LONGEST [SHORTEST]]` writes its results to FOLDER. `check` runs every case and
//! fails if one does; `small` and `tiny` are its short forms for memory and race checkers. `bench` times the points whose
//! sequences are between SHORTEST and LONGEST tokens, `accuracy` compares on inputs that others can be run on, `versions`
//! times versions of kernels side by side, `sustain` follows their rates under lasting load.

use std::error::Error;
use std::fmt::Write as _;
use std::ops::RangeInclusive;
use std::path::Path as FilePath;
use std::process::ExitCode;
use std::{env, fs};

use ringlab_kernels::gpu::{Cache, Device};
use ringlab_kernels::lab::sustain::{self, Series, SmiLog};
use ringlab_kernels::lab::{
    CheckOptions, Mask, Point, Timing, VERSIONS, accuracy, bench, check, compare, points,
};
use ringlab_kernels::spec::HeadDim;
use ringlab_kernels::variant::{Kernel, Path};

const REPEATS: usize = 10;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("failed to run the lab: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether everything passed.
fn run(arguments: &[String]) -> Result<bool, Box<dyn Error>> {
    let (command, folder) = match arguments {
        [command, folder, ..] => (command.as_str(), FilePath::new(folder)),
        _ => {
            return Err(
                "usage: lab check|small|tiny|bench|accuracy|versions|sustain FOLDER [hopper|portable] [LONGEST [SHORTEST]]"
                    .into()
            );
        }
    };
    let path = match arguments.get(2).map(String::as_str) {
        None => None,
        Some("hopper") => Some(Path::Hopper),
        Some("portable") => Some(Path::Portable),
        Some(other) => {
            return Err(format!("`{other}` is no family of kernels; say hopper or portable").into());
        }
    };
    let longest = arguments.get(3).map_or(Ok(65536), |text| text.parse())?;
    let shortest = arguments.get(4).map_or(Ok(1), |text| text.parse())?;
    fs::create_dir_all(folder)?;
    let device = Device::open_with(0, path, Some(Cache::from_env()))?;
    eprintln!("{} ({}), {} kernels", device.name()?, device.target().capability, device.target().path);
    match command {
        "check" => run_check(&device, folder, CheckOptions::FULL),
        "small" => run_check(&device, folder, CheckOptions::SMALL),
        "tiny" => run_check(&device, folder, CheckOptions::TINY),
        "versions" => run_versions(&device, folder).map(|()| true),
        "sustain" => run_sustain(&device, folder).map(|()| true),
        "bench" => run_bench(&device, folder, shortest..=longest).map(|()| true),
        "accuracy" => run_accuracy(&device, folder).map(|()| true),
        other => Err(format!(
            "`{other}` is no command; say check, small, tiny, bench, accuracy, versions or sustain"
        )
        .into()),
    }
}

fn run_check(device: &Device, folder: &FilePath, options: CheckOptions) -> Result<bool, Box<dyn Error>> {
    let (mut log, mut cases, mut failed) = (String::new(), 0, 0);
    let result = check(device, options, &mut |outcome| {
        cases += 1;
        if !outcome.passed() {
            failed += 1;
            if failed <= 40 {
                println!("{outcome}");
            }
        }
        // Writing to a String does not fail.
        let _ = writeln!(log, "{outcome}");
    });
    fs::write(folder.join(format!("check-{}.txt", device.target().path)), log)?;
    let failures = result?;
    println!("{}: {cases} cases, {failures} failures", device.target().path);
    Ok(failures == 0)
}

fn run_bench(
    device: &Device,
    folder: &FilePath,
    lengths: RangeInclusive<usize>,
) -> Result<(), Box<dyn Error>> {
    let mut csv = String::from(
        "implementation,kernel,pass,dtype,head_dim,heads,kv_heads,batch,len,mask,layout,ranks,scope,tflops,median_ms,min_ms,\
         max_ms,repeats,device,cuda\n",
    );
    for point in points(&lengths) {
        for timing in bench(device, point, REPEATS)? {
            println!("{}", summary(&timing));
            csv.push_str(&row(device, &timing)?);
        }
    }
    fs::write(folder.join(format!("bench-{}.csv", device.target().path)), csv)?;
    Ok(())
}

fn summary(timing: &Timing) -> String {
    let point = timing.point;
    format!(
        "d{:<3} len {:>5} batch {} group {} {:<10} {:<10} x{} {:<6} {:<8} {:>6.1} TFLOP/s {:>8.3} ms  {}",
        point.head_dim.elements(),
        point.len,
        point.batch,
        point.group,
        point.mask,
        point.layout,
        point.ranks,
        point.scope,
        timing.pass,
        timing.tflops(),
        timing.median(),
        timing.kernel
    )
}

fn row(device: &Device, timing: &Timing) -> Result<String, Box<dyn Error>> {
    let point = timing.point;
    let heads = 2048 / point.head_dim.elements();
    let times = &timing.milliseconds;
    Ok(format!(
        "ringlab-{},{},{},bf16,{},{heads},{},{},{},{},{},{},{},{:.1},{},{},{},{},{},{}\n",
        device.target().path,
        timing.kernel,
        timing.pass,
        point.head_dim.elements(),
        heads / point.group,
        point.batch,
        point.len,
        point.mask,
        point.layout,
        point.ranks,
        point.scope,
        timing.tflops(),
        timing.median(),
        times[0],
        times[times.len() - 1],
        times.len(),
        device.name()?,
        device.driver_version()?
    ))
}

fn run_versions(device: &Device, folder: &FilePath) -> Result<(), Box<dyn Error>> {
    const ROUNDS: usize = 5;
    let path = device.target().path;
    let lengths: &[usize] = match path {
        Path::Hopper => &[1024, 2048, 4096, 8192, 16384],
        Path::Portable => &[16384],
    };
    let mut csv = String::from("version,pass,head_dim,len,batch,mask,tflops,ratio\n");
    let mut versions = Vec::new();
    for version in VERSIONS {
        let concerns = |kernel: &Kernel| {
            let mut changed = kernel.clone();
            (version.change)(&mut changed);
            changed != *kernel
        };
        if !Kernel::all(device.target()).iter().any(concerns) {
            continue;
        }
        let changed = Device::open_with(0, Some(path), Some(Cache::from_env()))?.with_change(version.change);
        let mut shown = 0;
        if version.checked {
            let failures = check(&changed, CheckOptions::SMALL, &mut |outcome| {
                if !outcome.passed() && shown < 3 {
                    shown += 1;
                    println!("{} {outcome}", version.name);
                }
            })?;
            println!("{}: {failures} failures", version.name);
        }
        versions.push((version.name, changed));
    }
    for head_dim in HeadDim::ALL {
        for &len in lengths {
            for mask in [Mask::Full, Mask::Causal] {
                let point = Point { mask, batch: (16384 / len).max(1), ..Point::causal(head_dim, len) };
                for row in compare(device, &versions, point, ROUNDS)? {
                    let shape = format!("{},{len},{},{mask}", head_dim.elements(), point.batch);
                    let line =
                        format!("{},{},{shape},{:.1},{:.3}\n", row.version, row.pass, row.tflops, row.ratio);
                    print!("{line}");
                    csv.push_str(&line);
                }
            }
        }
    }
    fs::write(folder.join(format!("versions-{path}.csv")), csv)?;
    Ok(())
}

fn run_sustain(device: &Device, folder: &FilePath) -> Result<(), Box<dyn Error>> {
    let mut smi = SmiLog::start(&folder.join("sustain-smi.csv"))?;
    if smi.is_none() {
        println!("no nvidia-smi: clocks and power are not logged");
    }
    let mut csv = String::from(Series::COLUMNS);
    println!("TFLOP/s within 5 ms and at 20, 50, 100, 300 and 1000 ms of load");
    for case in sustain::cases() {
        sustain::measure(device, case, &mut |series| {
            println!("{}", rates(series));
            csv.push_str(&series.csv());
        })?;
    }
    if let Some(end) = smi.as_mut().and_then(SmiLog::ended) {
        println!("nvidia-smi ended early ({end}): clocks and power are not logged to the end");
    }
    fs::write(folder.join(format!("sustain-{}.csv", device.target().path)), csv)?;
    Ok(())
}

fn rates(series: &Series) -> String {
    let point = series.point;
    let mut line = format!(
        "d{:<3} len {:>5} {:<6} {:<8} idle {:>4.1}%",
        point.head_dim.elements(),
        point.len,
        point.mask,
        series.pass,
        series.idle_percent()
    );
    let at = [20.0, 50.0, 100.0, 300.0, 1000.0].map(|ms| series.rate_at(ms));
    for rate in [series.rate_within(5.0)].into_iter().chain(at) {
        // Writing to a String does not fail.
        let _ = write!(line, " {rate:>6}");
    }
    format!("{line}  {}", series.kernel)
}

fn run_accuracy(device: &Device, folder: &FilePath) -> Result<(), Box<dyn Error>> {
    let mut csv = String::from("implementation,problem,tensor,relative_l2\n");
    for row in accuracy(device, &folder.join("problems"))? {
        let line =
            format!("ringlab-{},{},{},{:.4e}\n", device.target().path, row.problem, row.tensor, row.error);
        print!("{line}");
        csv.push_str(&line);
    }
    fs::write(folder.join(format!("accuracy-{}.csv", device.target().path)), csv)?;
    Ok(())
}
