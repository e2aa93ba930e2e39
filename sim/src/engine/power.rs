//! Clocks under a power limit: how fast a rank computes follows from how busy it is, and that from how fast all compute.
//!
//! Each run of a plan gives every rank's busy share, the part of its SMs' time in which its calls multiply matrices
//! ([`Call::activity`](crate::cost::Call::activity)), and [`Power::speed`] the speeds of the next run. Communication that nothing hides damps this: a faster rank is less
//! busy, and faster again, by about 0.4 of the step before. After two steps the limit is therefore extrapolated by
//! Aitken's delta-squared, and one more run corrects it.
//!
//! One busy share stands for a whole pass, as if it were repeated for ever: what the limiter does within its averaging
//! time, about a second, is not modelled.

use serde::Serialize;

use super::{Discard, Done, Machine, Recorder, SimError, run};
use crate::config::cluster::Power;
use crate::plan::{Plan, Rank};
use crate::units::{Bytes, SimTime};

/// How the devices were loaded before the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// By the same plan, again and again: the power limit sets the clock.
    #[default]
    Sustained,
    /// Not at all: the clock is at its highest, as in the first 75 ms after a rest.
    Cold,
    /// By all ranks on the first GPU, one operation after the other, with copies within its memory for messages.
    Virtual,
}

/// A step of all speeds that ends the search.
const TOLERANCE: f64 = 1e-4;
/// Runs before the one that counts.
const PROBES: usize = 3;

/// Finds the speeds at which the machine's ranks run `plan`.
pub(super) fn settle(plan: &Plan, machine: &mut Machine) -> Result<(), SimError> {
    machine.speeds.clear();
    machine.reaches.clear();
    let Some(power) = machine.power.clone() else { return Ok(()) };
    if !power.cold_speeds.is_empty() {
        machine.speeds.resize(plan.ranks() as usize, power.boost);
        let lasts = run(plan, machine, &mut Discard, None)?;
        machine.reaches.extend((0..plan.ranks()).map(|rank| power.reach_of(rank, lasts)));
        machine.speeds.clear();
    }
    if machine.options.load == Load::Cold {
        let reach = |rank| machine.reaches.get(rank as usize).copied().unwrap_or(1.0);
        machine.speeds.extend((0..plan.ranks() as usize).map(|rank| power.boost * reach(rank as Rank)));
        return Ok(());
    }
    machine.speeds.extend((0..plan.ranks()).map(|rank| power.speed_of(rank, 1.0)));
    if machine.options.load == Load::Virtual {
        let speed = one_by_one(plan, machine, &power)?;
        machine.speeds.fill(speed);
        return Ok(());
    }
    let mut before: Option<Vec<f64>> = None;
    for _ in 0..PROBES {
        let next = probe(plan, machine, &power)?;
        let old = std::mem::replace(&mut machine.speeds, next);
        if old.iter().zip(&machine.speeds).all(|(a, b)| (a - b).abs() <= TOLERANCE) {
            break;
        }
        match before.take() {
            None => before = Some(old),
            Some(older) => {
                for ((rank, speed), (a, b)) in (0..).zip(&mut machine.speeds).zip(older.into_iter().zip(old))
                {
                    let slowest = power.speed_of(rank, 1.0);
                    *speed = limit(a, b, *speed).clamp(slowest, power.boost.max(slowest));
                }
            }
        }
    }
    Ok(())
}

/// Runs `plan` at the present speeds; returns those that its busy shares allow.
fn probe(plan: &Plan, machine: &mut Machine, power: &Power) -> Result<Vec<f64>, SimError> {
    let makespan = run(plan, machine, &mut Discard, None)?.0 as f64;
    let share = |rank| if makespan > 0.0 { machine.tasks.multiplying(plan, rank) / makespan } else { 0.0 };
    Ok((0..plan.ranks()).map(|rank| power.speed_of(rank, share(rank).min(1.0))).collect())
}

/// The speed of the first GPU where it runs all ranks: it rests while it copies their messages.
fn one_by_one(plan: &Plan, machine: &mut Machine, power: &Power) -> Result<f64, SimError> {
    const STEPS: usize = 8;
    machine.speeds.fill(1.0);
    let mut busy = Busy(vec![SimTime::ZERO; plan.ranks() as usize]);
    run(plan, machine, &mut busy, None)?;
    let computing = busy.0.iter().map(|t| t.0 as f64).sum::<f64>();
    let multiplying = (0..plan.ranks()).map(|rank| machine.tasks.multiplying(plan, rank)).sum::<f64>();
    let bytes: Bytes = plan.messages.iter().map(|m| m.bytes).sum();
    let copying = machine.costs.copy_time(bytes).0 as f64;
    let mut speed = 1.0;
    for _ in 0..STEPS {
        let all = computing / speed + copying;
        speed = power.speed_of(0, if all > 0.0 { (multiplying / speed / all).min(1.0) } else { 1.0 });
    }
    Ok(speed)
}

/// Where three steps of a geometric approach lead; the last of them if they do not approach anything.
fn limit(first: f64, second: f64, third: f64) -> f64 {
    let (step, next) = (second - first, third - second);
    if next.abs() < step.abs() { third + next * next / (step - next) } else { third }
}

/// Adds up the time of each rank's compute lane.
struct Busy(Vec<SimTime>);

impl Recorder for Busy {
    fn record(&mut self, done: Done) {
        if done.lane.is_compute() {
            self.0[done.rank as usize] += done.end.saturating_sub(done.start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_geometric_approach_ends_at_its_limit() {
        // 1.2 - 0.2 x 0.4^n.
        assert!((limit(1.0, 1.12, 1.168) - 1.2).abs() < 1e-12);
        // From both sides in turn: 1.1 + 0.1 x (-1/2)^n.
        assert!((limit(1.2, 1.05, 1.125) - 1.1).abs() < 1e-12);
        assert_eq!(limit(1.0, 1.1, 1.1), 1.1);
        assert_eq!(limit(1.0, 1.0, 1.1), 1.1);
    }
}
