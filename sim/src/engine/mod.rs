//! The discrete-event simulator: a plan, run on modelled GPUs and links, gives a timeline.
//!
//! - **Lanes are queues.** An operation starts when the one before it on its lane has ended, what it waits for on other
//!   lanes has ended, and the host has launched it. Neighbours of one group are posted together, and the lane goes on
//!   when all of them have ended.
//! - **A transfer is a rendezvous.** It starts once its send and its receive are both posted, takes its route's latency
//!   and then moves its bytes; both operations end with it.
//! - **Links are shared max-min fairly** among the transfers that move at the time.
//! - **NCCL transfers hold SMs** and slow attention calls down; a persistent call with fixed shares waits for those that it
//!   meets, one with a queue makes them wait for its end. Transfers of high priority go before calls that have not started.
//! - **Transfers and attention calls use one memory**: each may lose a share of its speed beside the other.
//! - **The host launches in program order** and runs ahead: every kernel, copy and NCCL group costs its launch time,
//!   a copy engine's receive nothing. Finishing is fused into the last call before it: no launch, no time.
//!   Projections are not attention's: no launch, no time either.
//! - **A power limit** sets each rank's clock by how busy it is, on clusters that say how: [`Load`].
//! - **Time is whole picoseconds.** Events of one instant may be taken in any order without changing the makespan, since
//!   rates are computed when the instant is over; the order is fixed all the same, so that reruns are byte-identical.

mod fair;
mod flows;
mod grants;
mod paths;
mod power;
mod program;
mod queue;
mod recorder;
mod sms;
mod state;

use thiserror::Error;

use crate::config::cluster::{Cluster, Host, NoKernel, Power};
use crate::cost::Costs;
use crate::disturb::{Conditions, DisturbError, LinkFault};
use crate::plan::{OpId, Plan, Rank};
use crate::timeline::Timeline;
use crate::topology::{Topology, TopologyError};
use crate::units::SimTime;

pub use power::Load;
pub use recorder::{Discard, Done, Recorder};

use flows::Flows;
use paths::Paths;
use program::Tasks;
use queue::Queue;
use sms::Sms;
use state::Lanes;

/// How to simulate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SimOptions {
    /// Takes events of the same instant in a random order, by this seed, instead of the order of posting. The makespan
    /// is the same; tests hold that.
    pub shuffle_ties: Option<u64>,
    /// Decides the clock of devices with a power limit.
    pub load: Load,
}

/// Why there is no timeline.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum SimError {
    /// The ranks do not fit on the cluster.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The cluster has no kernel for the plan's heads.
    #[error(transparent)]
    Kernel(#[from] NoKernel),
    /// A cold clock of devices of which only that of sustained load is known.
    #[error("{cluster} has no [device.power], so how fast it computes after a rest is not known")]
    NoPower {
        /// The cluster.
        cluster: String,
    },
    /// A disturbance of something that does not exist.
    #[error(transparent)]
    Disturb(#[from] DisturbError),
    /// A message for which failed links leave no way.
    #[error(
        "GPU {from} cannot reach GPU {to}: a link between them has failed, and no other way leads around it"
    )]
    CutOff {
        /// The sender.
        from: Rank,
        /// The receiver.
        to: Rank,
    },
    /// A machine that was prepared for fewer ranks.
    #[error("a machine prepared for {prepared} ranks cannot run a plan of {ranks}; prepare one for {ranks}")]
    TooManyRanks {
        /// Ranks of the plan.
        ranks: u32,
        /// Ranks of the machine.
        prepared: u32,
    },
    /// More operations than can be numbered.
    #[error("a plan of {operations} operations is too large; the most is {limit}")]
    TooLarge {
        /// Operations of the plan.
        operations: usize,
        /// The most there may be.
        limit: usize,
    },
    /// A plan that speaks of things that it does not have.
    #[error("operation {op} of rank {rank} {what}; run `ringlab check` on the plan")]
    Malformed {
        /// The rank.
        rank: Rank,
        /// The operation.
        op: OpId,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Operations that wait for each other, or for a message that nobody sends.
    #[error(
        "the plan hangs: operation {op} of rank {rank} never {what}, and {left} operations are left; \
         run `ringlab check` on the plan"
    )]
    Hangs {
        /// The first rank that hangs.
        rank: Rank,
        /// Its first operation that never ends.
        op: OpId,
        /// "starts" or "meets its other side".
        what: &'static str,
        /// Operations that never end.
        left: usize,
    },
    /// A rate of zero, in a kernel or on a link.
    #[error(
        "at {after} something goes on for ever: a rate of zero among the cluster's kernels or links, or a time beyond 213 days"
    )]
    NeverEnds {
        /// The last instant at which anything ended.
        after: SimTime,
    },
}

/// A cluster made ready for plans of up to a number of ranks: links, routes and costs are prepared once and shared by
/// all plans that it runs, and so is the memory.
#[derive(Debug, Clone)]
pub struct Machine {
    ranks: u32,
    host: Host,
    options: SimOptions,
    costs: Costs,
    tasks: Tasks,
    lanes: Lanes,
    flows: Flows,
    queue: Queue,
    sms: Sms,
    conditions: Option<Conditions>,
    power: Option<Power>,
    /// By rank, over the rates of the kernels; empty for those.
    speeds: Vec<f64>,
    /// By rank, what it reaches of the boosts; empty for all of it.
    reaches: Vec<f64>,
}

impl Machine {
    /// Prepares `cluster` for plans of up to `ranks` ranks.
    ///
    /// # Errors
    /// [`SimError::Topology`] if the ranks do not fit, [`SimError::NoPower`] for a cold clock that is not known.
    pub fn new(cluster: &Cluster, ranks: u32, options: &SimOptions) -> Result<Self, SimError> {
        Self::with_costs(cluster, ranks, options, Costs::new(cluster))
    }

    /// As [`Machine::new`], but without a table of geometries: slower, with the same results.
    ///
    /// # Errors
    /// As [`Machine::new`].
    pub fn uncached(cluster: &Cluster, ranks: u32, options: &SimOptions) -> Result<Self, SimError> {
        Self::with_costs(cluster, ranks, options, Costs::uncached(cluster))
    }

    fn with_costs(
        cluster: &Cluster,
        ranks: u32,
        options: &SimOptions,
        costs: Costs,
    ) -> Result<Self, SimError> {
        let topology = Topology::new(cluster, ranks)?;
        let power = cluster.device.power.clone();
        if power.is_none() && options.load == Load::Cold {
            return Err(SimError::NoPower { cluster: cluster.name.clone() });
        }
        Ok(Self {
            ranks,
            host: cluster.host.clone(),
            options: *options,
            costs,
            tasks: Tasks::default(),
            lanes: Lanes::default(),
            flows: Flows::new(Paths::new(topology, ranks)),
            queue: Queue::new(),
            sms: Sms::default(),
            conditions: None,
            power,
            speeds: Vec::new(),
            reaches: Vec::new(),
        })
    }

    /// Replaces the links by those of `cluster`, whose devices and kernels must be those of the machine's own; what is
    /// known of its plans' costs stays. Nothing disturbs it any more.
    ///
    /// # Errors
    /// [`SimError::Topology`] if the ranks do not fit; the machine is then as it was.
    pub fn relink(&mut self, cluster: &Cluster) -> Result<(), SimError> {
        let topology = Topology::new(cluster, self.ranks)?;
        self.flows = Flows::new(Paths::new(topology, self.ranks));
        self.conditions = None;
        Ok(())
    }

    /// Lets `conditions` happen to all plans that it runs from now on; with `None`, nothing any more.
    ///
    /// # Errors
    /// [`SimError::Disturb`] for links of GPUs that do not exist; the machine is then as it was.
    pub fn disturb(&mut self, conditions: Option<Conditions>) -> Result<(), SimError> {
        fn links(conditions: Option<&Conditions>) -> &[LinkFault] {
            conditions.map_or(&[], Conditions::links)
        }
        if links(self.conditions.as_ref()) != links(conditions.as_ref()) {
            let topology = self.flows.topology().with_faults(links(conditions.as_ref()))?;
            self.flows = Flows::new(Paths::new(topology, self.ranks));
        }
        self.conditions = conditions;
        Ok(())
    }

    /// How fast each rank computed in the last plan that ran, over the rates of the kernels, by the power limit; empty on
    /// a cluster without one.
    pub fn speeds(&self) -> &[f64] {
        &self.speeds
    }

    /// Runs `plan` with the computations of `measured`, a timeline of the same plan, on this machine's links: what a group of
    /// devices would take of which only single ones were measured. They have their clock already: the power limit does
    /// nothing here.
    ///
    /// # Errors
    /// [`SimError`] if the plan does not fit the machine or never ends.
    pub fn replay(&mut self, plan: &Plan, measured: &Timeline) -> Result<Timeline, SimError> {
        self.speeds.clear();
        self.reaches.clear();
        let mut done = Vec::with_capacity(plan.op_count());
        let makespan = run(plan, self, &mut done, Some(measured))?;
        recorder::timeline(plan, &mut self.costs, done, makespan)
    }

    /// Runs `plan` and keeps all its spans; [`simulate_with`] a [`Discard`] keeps none and is faster.
    ///
    /// # Errors
    /// [`SimError`] if the plan does not fit the machine or never ends.
    pub fn timeline(&mut self, plan: &Plan) -> Result<Timeline, SimError> {
        let mut done = Vec::with_capacity(plan.op_count());
        let makespan = simulate_with(plan, self, &mut done)?;
        recorder::timeline(plan, &mut self.costs, done, makespan)
    }
}

/// Runs `plan` on `cluster`, rank r on GPU r.
///
/// # Errors
/// [`SimError`] if the plan does not fit the cluster or never ends.
pub fn simulate(plan: &Plan, cluster: &Cluster, options: &SimOptions) -> Result<Timeline, SimError> {
    Machine::new(cluster, plan.ranks(), options)?.timeline(plan)
}

/// Runs `plan` on a machine that is used again and again; returns the makespan and tells `recorder` of every operation,
/// once: a power limit takes up to three runs more, which it is not told of.
///
/// # Errors
/// [`SimError`] if the plan does not fit the machine or never ends.
pub fn simulate_with<R: Recorder>(
    plan: &Plan,
    machine: &mut Machine,
    recorder: &mut R,
) -> Result<SimTime, SimError> {
    power::settle(plan, machine)?;
    run(plan, machine, recorder, None)
}

fn run<R: Recorder>(
    plan: &Plan,
    machine: &mut Machine,
    recorder: &mut R,
    measured: Option<&Timeline>,
) -> Result<SimTime, SimError> {
    let Machine {
        ranks,
        host,
        options,
        costs,
        tasks,
        lanes,
        flows,
        queue,
        sms,
        conditions,
        speeds,
        reaches,
        ..
    } = machine;
    if plan.ranks() > *ranks {
        return Err(SimError::TooManyRanks { ranks: plan.ranks(), prepared: *ranks });
    }
    tasks.load(plan, costs, host)?;
    if let Some(measured) = measured {
        tasks.replace(measured);
    }
    lanes.load(tasks, plan.messages.len());
    flows.reset(plan.transport, plan.ranks());
    if conditions.is_some() || !speeds.is_empty() {
        let disturbed = |rank, op| conditions.as_ref().map_or(1.0, |c| c.of_operation(rank, op));
        let of = |list: &[f64], rank: Rank| list.get(rank as usize).copied().unwrap_or(1.0);
        tasks.stretch(plan, |rank, op, boost| {
            let clock = boost.map_or(1.0, |boost| of(speeds, rank).min(boost * of(reaches, rank)));
            disturbed(rank, op) / clock
        });
    }
    if conditions.is_some()
        && let Some(m) = plan.messages.iter().find(|m| flows.are_apart(m.from, m.to))
    {
        return Err(SimError::CutOff { from: m.from, to: m.to });
    }
    queue.reset(options.shuffle_ties);
    let sms = flows.interfere().then(|| {
        sms.reset(plan.ranks(), costs.sms());
        sms
    });
    state::Run { plan, tasks, lanes, flows, queue, sms, conditions: conditions.as_ref(), recorder }.run()
}
