//! Points that are run on a machine.

use anyhow::{Result, bail};
use ringlab_runtime::machine::Machine;
use ringlab_runtime::validate::{self, Filter, Point};
use ringlab_sim::config::cluster::{Cluster, NcclSettings};

use super::{Validation, bar, choices, filter};
use crate::args::{LoadArg, MachineArg, TransportArg, ValidateArgs};
use crate::limit::Limit;
use crate::{interrupt, measured, presets};

/// Predicts, runs and compares every point of the matrix.
pub fn validate(args: &ValidateArgs) -> Result<Validation> {
    let settings = nccl_settings(args)?;
    let cluster = presets::cluster(&args.cluster)?.with_nccl(settings)?;
    let mut machine = measured::machine(args.backend, is_cold(args, &cluster)?)?;
    if !machine.set_nccl(settings) {
        bail!("--nccl-ctas and --nccl-priority are for machines with NCCL, and here is none");
    }
    measured::check_cluster(&cluster, machine.as_ref())?;
    let real = real_ranks(args, machine.as_ref())?;
    let filter = filter(args, real)?;
    let points = validate::matrix(machine.as_ref(), &filter);
    if points.is_empty() {
        let of_all = Filter { cp: filter.cp, virtual_cp: filter.virtual_cp, ..Filter::default() };
        let all = validate::matrix(machine.as_ref(), &of_all);
        bail!("no point of this machine's matrix is left; {}", choices(&all));
    }
    let (stop, bar) = (interrupt::flag()?, bar(points.len() as u64));
    let (mut limit, mut is_limited) = (Limit::new(args.limit), false);
    let mut progress = |i: usize, point: &Point| {
        bar.set_position(i as u64);
        bar.set_message(point.to_string());
        is_limited = !limit.allows_next();
        !is_limited && !stop.is_set()
    };
    let report = validate::validate(machine.as_mut(), &cluster, &points, &mut progress)?;
    bar.finish_and_clear();
    Ok(Validation {
        cluster: cluster.name,
        machine: machine.identity().to_string(),
        measured_in: None,
        nccl: args.nccl.is_given().then_some(settings),
        report,
        asked: points.len(),
        limit: is_limited.then(|| limit.text()),
        is_interrupted: stop.is_set(),
    })
}

/// How NCCL is set up, in what is predicted and in what is run.
fn nccl_settings(args: &ValidateArgs) -> Result<NcclSettings> {
    if args.backend == MachineArg::Cpu && args.nccl.is_given() {
        bail!("--nccl-ctas and --nccl-priority are for GPUs only; add --backend cuda");
    }
    args.nccl.check(matches!(args.transport[..], [TransportArg::Nccl]))?;
    Ok(args.nccl.settings())
}

/// Whether short runs are measured after a rest.
fn is_cold(args: &ValidateArgs, cluster: &Cluster) -> Result<bool> {
    let is_known = cluster.device.power.is_some();
    match args.load {
        Some(_) if args.backend == MachineArg::Cpu => {
            bail!("--load is for GPUs (--backend cuda): nothing is known of a power limit of this processor")
        }
        Some(LoadArg::Cold) if !is_known => {
            bail!("{} has no [device.power], so how fast it computes after a rest is not known", cluster.name)
        }
        load => {
            if args.backend == MachineArg::Cuda && !is_known {
                say!(
                    "{} has no [device.power]: long runs are predicted at the rates of short ones, which are measured after a rest",
                    cluster.name
                );
            }
            Ok(load != Some(LoadArg::Sustained))
        }
    }
}

/// Ranks on devices of their own; none where there is one device and virtual ranks were asked for.
fn real_ranks(args: &ValidateArgs, machine: &dyn Machine) -> Result<Vec<u32>> {
    let devices = machine.identity().devices;
    if !args.virtual_cp.is_empty() && !machine.has_virtual() {
        bail!(
            "virtual ranks are for GPUs (--backend cuda); threads run any number of ranks with `ringlab run`"
        );
    }
    if args.cp.is_empty() {
        return Ok(match (machine.has_virtual(), devices) {
            (true, 0..2) => Vec::new(),
            (true, _) => validate::ranks(devices),
            (false, _) => vec![checked(devices, machine)?],
        });
    }
    args.cp.iter().map(|&cp| checked(cp, machine)).collect()
}

/// A number of ranks that the machine has devices for.
fn checked(cp: u32, machine: &dyn Machine) -> Result<u32> {
    let devices = machine.identity().devices;
    if cp < 2 || cp > devices {
        let on_one = "virtual ranks on one GPU (--virtual 4,8) show the computations, ";
        let on_one = if machine.has_virtual() { on_one } else { "" };
        bail!(
            "--cp {cp} cannot be validated on {devices} devices: a schedule needs two, each its own device; \
             {on_one}`ringlab run` and `ringlab simulate` take any number"
        );
    }
    Ok(cp)
}
