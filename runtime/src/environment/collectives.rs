//! Settings that have no effect here, and those that cost time on the host.

use super::{Finding, Situation, finding};

pub(super) fn of(name: &str, value: &str, s: &Situation<'_>) -> Option<Finding> {
    if name.starts_with("TORCH_NCCL_") {
        return Some(finding("no effect: PyTorch has no part in this", "leave it to PyTorch's runs"));
    }
    if !s.uses_nccl() {
        return None;
    }
    match name {
        "NCCL_ALGO" | "NCCL_PROTO" => Some(finding(
            "no effect: it chooses among ways of collectives, and this plan's messages are sends and receives",
            "unset it",
        )),
        "NCCL_DEBUG" if matches!(value.to_ascii_uppercase().as_str(), "TRACE" | "INFO") => Some(finding(
            "NCCL prints on standard output while communicators are made, and under TRACE at every call, on the lane of the \
             host's launches",
            "WARN for measurements",
        )),
        "NCCL_LAUNCH_MODE" if value.eq_ignore_ascii_case("GROUP") && s.ranks_here > 1 => Some(finding(
            format!(
                "the transfers of a process's {} ranks start together: each waits for the slowest rank's launch",
                s.ranks_here
            ),
            "PARALLEL",
        )),
        _ => None,
    }
}
