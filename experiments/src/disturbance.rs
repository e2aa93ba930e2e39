//! Repeats of a disturbed run: how long they take, and which of them is the median.

use ringlab_sim::disturb::{Conditions, DisturbError, Disturbance, Percentiles};
use ringlab_sim::engine::{Discard, Machine, SimError, simulate_with};
use ringlab_sim::plan::Plan;
use ringlab_sim::units::SimTime;

/// A disturbance and how often it is tried.
#[derive(Debug, Clone, PartialEq)]
pub struct Repeats {
    /// What may happen.
    pub disturbance: Disturbance,
    /// How many repeats.
    pub count: u32,
    /// Decides what happens in each.
    pub seed: u64,
}

/// How the makespans of all repeats spread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// Over the repeats, passes added up.
    pub percentiles: Percentiles,
    /// The first repeat that takes as long as the median.
    pub median: u32,
}

impl Repeats {
    /// What happens in one pass of one repeat.
    ///
    /// # Errors
    /// As [`Disturbance::draw`].
    pub fn conditions(&self, ranks: u32, repeat: u32, pass: usize) -> Result<Conditions, DisturbError> {
        self.disturbance.draw(ranks, self.seed, u64::from(repeat) << 8 | pass as u64)
    }

    /// Runs all repeats of plans that follow each other, with a call of `repeated` after each. The machine is calm afterwards.
    ///
    /// # Errors
    /// As [`simulate_with`], or a straggler or link that does not exist.
    pub fn spread<'a>(
        &self,
        machine: &mut Machine,
        plans: &(impl Iterator<Item = &'a Plan> + Clone),
        repeated: impl Fn(),
    ) -> Result<Spread, SimError> {
        let mut repeat = |repeat: u32| {
            let mut total = SimTime::ZERO;
            for (pass, plan) in plans.clone().enumerate() {
                machine.disturb(Some(self.conditions(plan.ranks(), repeat, pass)?))?;
                total += simulate_with(plan, machine, &mut Discard)?;
            }
            repeated();
            Ok::<_, SimError>(total)
        };
        let makespans = (0..self.count.max(1)).map(&mut repeat).collect::<Result<Vec<_>, _>>();
        machine.disturb(None)?;
        let makespans = makespans?;
        let percentiles = Percentiles::of(&makespans).unwrap_or(Percentiles {
            p5: SimTime::ZERO,
            p50: SimTime::ZERO,
            p95: SimTime::ZERO,
            p99: SimTime::ZERO,
        });
        let median = makespans.iter().position(|m| *m == percentiles.p50).unwrap_or(0) as u32;
        Ok(Spread { percentiles, median })
    }
}
