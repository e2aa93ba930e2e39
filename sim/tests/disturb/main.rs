//! Disturbances against closed forms: stragglers, spreads, slow links, ways around failed ones.

mod links;
mod spread;
mod stragglers;
#[path = "../engine/support.rs"]
mod support;

use ringlab_sim::config::cluster::Cluster;
use ringlab_sim::disturb::Disturbance;
use ringlab_sim::engine::{Discard, Machine, SimError, SimOptions, simulate_with};
use ringlab_sim::plan::Plan;

/// The makespan of one repeat, in picoseconds.
fn makespan(plan: &Plan, cluster: &Cluster, disturbance: &Disturbance, seed: u64, repeat: u64) -> u64 {
    disturbed(plan, cluster, disturbance, seed, repeat).unwrap()
}

fn disturbed(
    plan: &Plan,
    cluster: &Cluster,
    disturbance: &Disturbance,
    seed: u64,
    repeat: u64,
) -> Result<u64, SimError> {
    let mut machine = Machine::new(cluster, plan.ranks(), &SimOptions::default())?;
    machine.disturb(Some(disturbance.draw(plan.ranks(), seed, repeat)?))?;
    Ok(simulate_with(plan, &mut machine, &mut Discard)?.0)
}

fn calm(plan: &Plan, cluster: &Cluster) -> u64 {
    makespan(plan, cluster, &Disturbance::default(), 0, 0)
}
