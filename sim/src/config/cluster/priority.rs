//! Which of two waiting kernels gets free SMs first.

use super::Cluster;
use crate::config::field::{Keyword, text_is_name};

/// Priority of the streams of transfers that hold SMs, beside attention calls on streams of normal priority. What has its
/// SMs keeps them in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Priority {
    /// Free SMs go to what became ready first; a transfer is ready when its latency has passed.
    #[default]
    Normal,
    /// Free SMs go to the transfer from the moment when both its sides are posted.
    High,
}

impl Priority {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(super) fn is_normal(&self) -> bool {
        *self == Self::Normal
    }
}

impl Keyword for Priority {
    const NAMES: &'static [(&'static str, Self)] = &[("normal", Self::Normal), ("high", Self::High)];
}

text_is_name!(Priority);

impl Cluster {
    /// Lets NCCL transfers inside nodes and between them have streams of `priority`.
    pub fn set_nccl_priority(&mut self, priority: Priority) {
        self.fabric.nccl.priority = priority;
        if let Some(network) = &mut self.network {
            network.transport.priority = priority;
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::cluster::test_text;
    use crate::config::error::ConfigError;

    pub const NETWORK: &str = r#"
        [network]
        nic_bandwidth = "400 Gb/s"
        nics_per_node = 8
        topology = { kind = "rail-optimised" }
        spine_latency = "1 us"
        gpudirect = true
        source = "test"

        [network.transport]
        bandwidth = "48 GB/s"
        latency = "14 us"
        sms = 2
        source = "test"
    "#;

    /// With `line` in the section `of`.
    fn with(of: &str, line: &str) -> Result<Cluster, ConfigError> {
        let (text, header) = (test_text(NETWORK), format!("[{of}]"));
        assert!(text.contains(&header), "{of}");
        Cluster::parse("c.toml", &text.replacen(&header, &format!("{header}\n{line}"), 1))
    }

    fn priorities(cluster: &Cluster) -> [Priority; 3] {
        let network = cluster.network.as_ref().unwrap();
        [cluster.fabric.copy.priority, cluster.fabric.nccl.priority, network.transport.priority]
    }

    #[test]
    fn each_transport_by_nccl_has_one_and_reads_back() {
        use Priority::{High, Normal};
        for (of, line, expected) in [
            ("fabric.nccl", "", [Normal; 3]),
            ("fabric.nccl", "priority = \"normal\"", [Normal; 3]),
            ("fabric.nccl", "priority = \"high\"", [Normal, High, Normal]),
            ("network.transport", "priority = \"high\"", [Normal, Normal, High]),
        ] {
            let cluster = with(of, line).unwrap();
            assert_eq!(priorities(&cluster), expected, "{of} {line}");
            let written = cluster.to_toml();
            assert_eq!(written.matches("priority = \"high\"").count(), line.matches("high").count());
            assert!(!written.contains("normal"));
            assert_eq!(Cluster::parse("again", &written).unwrap(), cluster);
        }
        let mut cluster = with("fabric.nccl", "").unwrap();
        cluster.set_nccl_priority(High);
        assert_eq!(priorities(&cluster), [Normal, High, High]);
        cluster.set_nccl_priority(Normal);
        assert_eq!(cluster, with("fabric.nccl", "").unwrap());
    }

    #[test]
    fn other_words_and_copy_engines_are_refused() {
        let error = with("fabric.nccl", "priority = \"hihg\"").unwrap_err();
        assert_eq!(
            (error.message(), error.hint()),
            (
                "`fabric.nccl.priority` is the text \"hihg\", expected one of \"normal\", \"high\"",
                Some("did you mean \"high\"?")
            )
        );
        let error = with("network.transport", "priority = 1").unwrap_err();
        assert_eq!(
            error.message(),
            "`network.transport.priority` is 1, expected one of \"normal\", \"high\""
        );
        let error = with("fabric.copy", "priority = \"high\"").unwrap_err();
        assert_eq!(error.message(), "`fabric.copy.priority` has no use: copy engines hold no SM");
        assert_eq!(error.hint(), Some("put it into [fabric.nccl]"));
    }
}
