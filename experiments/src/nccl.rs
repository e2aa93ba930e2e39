//! Settings of NCCL as results show them.

use ringlab_sim::config::Keyword;
use ringlab_sim::config::cluster::{NcclSettings, Priority};
use serde::Serialize;

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
