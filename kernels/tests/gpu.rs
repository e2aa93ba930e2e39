//! The kernels on a real GPU. `cargo test -p ringlab-kernels -- --ignored` runs them.

use ringlab_kernels::gpu::{Cache, Device, GpuError};
use ringlab_kernels::lab::{CheckOptions, check};
use ringlab_kernels::variant::{Path, PathError};

fn check_path(path: Path) {
    let device = match Device::open_with(0, Some(path), Some(Cache::from_env())) {
        Ok(device) => device,
        Err(GpuError::Path(PathError::NotHopper(capability))) => {
            eprintln!("left out: this GPU has compute capability {capability}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let mut failed = Vec::new();
    let failures = check(&device, CheckOptions::QUICK, &mut |outcome| {
        if !outcome.passed() {
            failed.push(outcome.to_string());
        }
    })
    .expect("every case runs");
    assert_eq!(failures, 0, "{}", failed.join("\n"));
}

#[test]
#[ignore = "needs an NVIDIA GPU of compute capability 8.0 or above"]
fn portable_kernels_equal_the_reference() {
    check_path(Path::Portable);
}

#[test]
#[ignore = "needs an NVIDIA GPU of compute capability 9.0"]
fn hopper_kernels_equal_the_reference() {
    check_path(Path::Hopper);
}

#[test]
fn a_machine_without_a_driver_is_told_what_to_install() {
    match Device::count() {
        Err(error @ GpuError::NoDriver) => assert!(error.to_string().contains("install the NVIDIA driver")),
        Ok(_) | Err(GpuError::Driver { .. }) => eprintln!("left out: this machine has a driver"),
        Err(error) => panic!("{error}"),
    }
}
