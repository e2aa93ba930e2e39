//! Settings of NCCL as they are asked for, and as results show them.

use ringlab_sim::config::Keyword;
use ringlab_sim::config::cluster::{Cluster, NcclSettings, Priority, UnknownLimit};
use serde::Serialize;

/// Settings that take the place of a cluster's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Asked {
    /// The most CTAs of a transfer.
    pub ctas: Option<u32>,
    /// Of the streams.
    pub priority: Option<Priority>,
}

impl Asked {
    /// `cluster` with these settings.
    ///
    /// # Errors
    /// A limit on CTAs that it does not know.
    pub fn apply(&self, cluster: &Cluster) -> Result<Cluster, UnknownLimit> {
        let mut cluster = match self.ctas {
            Some(ctas) => cluster.with_nccl_limit(ctas)?,
            None => cluster.clone(),
        };
        if let Some(priority) = self.priority {
            cluster.set_nccl_priority(priority);
        }
        Ok(cluster)
    }
}

/// Settings with which NCCL transfers were run or predicted.
#[derive(Serialize, schemars::JsonSchema)]
pub struct Nccl {
    /// The most CTAs of a transfer; `null` for NCCL's choice.
    ctas: Option<u32>,
    /// Of the streams: `normal` or `high`.
    priority: &'static str,
}

impl From<NcclSettings> for Nccl {
    fn from(NcclSettings { ctas, priority }: NcclSettings) -> Self {
        Self { ctas, priority: priority.name() }
    }
}

impl Nccl {
    /// What is not the default, behind a comma: `, NCCL transfers of at most 8 CTAs at high priority`.
    pub fn text(&self) -> String {
        let limit = self.ctas.map_or(String::new(), |ctas| format!(" of at most {ctas} CTAs"));
        let at = if self.priority == Priority::High.name() { " at high priority" } else { "" };
        if limit.is_empty() && at.is_empty() { String::new() } else { format!(", NCCL transfers{limit}{at}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_set_is_said() {
        let said = |ctas, priority| Nccl::from(NcclSettings { ctas, priority }).text();
        assert_eq!(said(None, Priority::Normal), "");
        assert_eq!(said(Some(8), Priority::Normal), ", NCCL transfers of at most 8 CTAs");
        assert_eq!(said(None, Priority::High), ", NCCL transfers at high priority");
        assert_eq!(said(Some(8), Priority::High), ", NCCL transfers of at most 8 CTAs at high priority");
    }
}
