//! Settings of NCCL, of the commands that run or predict its transfers.

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use ringlab_sim::config::cluster::{NcclLimit, NcclSettings, Priority};

use super::numbers::whole;
use crate::nccl::Asked;

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum PriorityArg {
    /// Streams like any other.
    Normal,
    /// Transfers' CTAs go before those of waiting kernels.
    High,
}

impl From<PriorityArg> for Priority {
    fn from(arg: PriorityArg) -> Self {
        match arg {
            PriorityArg::Normal => Self::Normal,
            PriorityArg::High => Self::High,
        }
    }
}

/// How NCCL transfers are set up.
#[derive(Args, Clone, Copy, Default)]
pub struct NcclArgs {
    /// Most CTAs, and so SMs, of an NCCL transfer; predicted where the cluster has [[fabric.nccl.limits]] for so many [default:
    /// NCCL's choice].
    #[arg(id = "nccl_ctas", long = "nccl-ctas", value_name = "N", help_heading = "GPUs", value_parser = whole::<u32>(1..=u64::from(NcclLimit::MOST_CTAS)))]
    pub ctas: Option<u32>,
    /// Priority of the streams of NCCL transfers [default: normal; of simulate, the cluster's].
    #[arg(
        id = "nccl_priority",
        value_name = "PRIORITY",
        long = "nccl-priority",
        value_enum,
        help_heading = "GPUs"
    )]
    pub priority: Option<PriorityArg>,
}

impl NcclArgs {
    /// The settings, the default for those that were not given.
    pub fn settings(&self) -> NcclSettings {
        NcclSettings { ctas: self.ctas, priority: self.priority.map(Priority::from).unwrap_or_default() }
    }

    /// Those that were given.
    pub fn asked(&self) -> Asked {
        Asked { ctas: self.ctas, priority: self.priority.map(Priority::from) }
    }

    /// The names of those that were given.
    pub fn given(&self) -> [(&'static str, bool); 2] {
        [("--nccl-ctas", self.ctas.is_some()), ("--nccl-priority", self.priority.is_some())]
    }

    /// Whether any was given.
    pub fn is_given(&self) -> bool {
        self.given().iter().any(|(_, given)| *given)
    }

    /// Refuses them where not all messages go by NCCL.
    pub fn check(&self, is_nccl: bool) -> Result<()> {
        if self.is_given() && !is_nccl {
            bail!("--nccl-ctas and --nccl-priority are for NCCL transfers; add --transport nccl");
        }
        Ok(())
    }
}
