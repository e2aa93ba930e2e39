//! Settings of NCCL: which way bytes take, and how many SMs move them.

use ringlab_sim::units::{Bytes, BytesPerSec};

use super::{Advice, Finding, Situation, Variables, finding, is_on, number};

/// NCCL's default for each connection and channel.
const BUFFER: u64 = 4 << 20;
/// Share of the SMs that a transfer may hold beside a kernel that wants all of them before it is worth a word.
const NOTICED: f64 = 0.1;
/// CTAs of a transfer that measured 7-17% exposed beside a persistent kernel.
const GENTLE: u32 = 8;

pub(super) fn of(name: &str, value: &str, all: &Variables, s: &Situation<'_>) -> Option<Finding> {
    if !name.starts_with("NCCL_") || !s.communicates() {
        return None;
    }
    if !s.uses_nccl() {
        let matters =
            matches!(name, "NCCL_P2P_DISABLE" | "NCCL_BUFFSIZE" | "NCCL_MAX_NCHANNELS" | "NCCL_MAX_CTAS");
        return matters.then(|| {
            finding(
                "no effect: this plan's messages go by copy engine, not by NCCL",
                "--transport nccl to use NCCL",
            )
        });
    }
    match name {
        "NCCL_P2P_DISABLE" if is_on(value) => Some(no_p2p(all, s)),
        "NCCL_P2P_LEVEL" if is_never(value) => Some(no_p2p(all, s)),
        "NCCL_BUFFSIZE" => buffers(value, s),
        "NCCL_MAX_NCHANNELS" | "NCCL_MAX_CTAS" => too_few(name, value, s),
        "NCCL_MIN_NCHANNELS" | "NCCL_MIN_CTAS" => too_many(value, s),
        "NCCL_IB_DISABLE" if is_on(value) && s.nodes > 1 => Some(finding(
            "transfers between nodes go through TCP sockets and host memory, a fraction of a NIC's rate",
            "0 where there is InfiniBand or RoCE",
        )),
        "NCCL_NET_GDR_LEVEL" if is_never(value) && s.nodes > 1 => Some(finding(
            "NICs do not read GPU memory: every transfer between nodes is copied through host memory",
            "unset it, or SYS (5)",
        )),
        "NCCL_SOCKET_IFNAME" if s.nodes > 1 && names_loopback(value) => Some(finding(
            format!(
                "communicators are set up over the loopback interface, which does not reach the other {} nodes",
                s.nodes - 1
            ),
            "the interface that joins the nodes, such as eth0",
        )),
        "NCCL_NVLS_ENABLE" if value.trim() != "0" => Some(multicast()),
        _ => None,
    }
}

/// `LOC`, or the number of the same level.
fn is_never(level: &str) -> bool {
    matches!(level.trim(), "LOC" | "0")
}

fn names_loopback(interfaces: &str) -> bool {
    let named = interfaces.trim_start_matches('=');
    !interfaces.starts_with('^') && named.split(',').any(|name| name.trim() == "lo")
}

fn no_p2p(all: &Variables, s: &Situation<'_>) -> Finding {
    let rate = s.cluster.fabric.nccl.bandwidth;
    let needed =
        s.needed_rate().map_or_else(String::new, |n| format!("; this plan needs {n} to stay hidden"));
    if all.get("NCCL_SHM_DISABLE").is_some_and(|v| is_on(v)) {
        return finding(
            format!(
                "with NCCL_SHM_DISABLE={}, transfers inside a node go out to the network and back instead of {rate} over \
                 its links{needed}",
                all["NCCL_SHM_DISABLE"]
            ),
            "0, and NCCL_SHM_DISABLE=0",
        );
    }
    finding(
        format!(
            "every transfer inside a node is copied through host memory, at PCIe's rate instead of {rate}{needed}"
        ),
        "0",
    )
}

fn buffers(value: &str, s: &Situation<'_>) -> Option<Finding> {
    let Some(bytes) = number(value) else {
        return Some(finding("not a number of bytes: NCCL takes its default of 4 MiB", "4194304"));
    };
    if bytes < BUFFER / 4 {
        return Some(finding(
            format!(
                "buffers of {} instead of 4.194 MB: senders and receivers wait for each other more often",
                Bytes(bytes)
            ),
            "4194304, or unset",
        ));
    }
    let peers = peers(s);
    let channels = u64::from(s.cluster.fabric.nccl.sms.max(1));
    (bytes > BUFFER).then(|| {
        finding(
            format!(
                "buffers of {} for each of {peers} peers and up to {channels} channels: up to {} a GPU beside the plan's \
                 peak memory; a transfer through peer memory is no faster for it",
                Bytes(bytes),
                Bytes(bytes.saturating_mul(peers * channels))
            ),
            "4194304, or unset, inside a node",
        )
    })
}

/// Other ranks that a rank exchanges messages with, at most.
fn peers(s: &Situation<'_>) -> u64 {
    let of = |rank: u32| {
        let ends = s.plan.messages.iter().filter_map(|m| match (m.from == rank, m.to == rank) {
            (true, _) => Some(m.to),
            (_, true) => Some(m.from),
            _ => None,
        });
        ends.collect::<std::collections::BTreeSet<_>>().len() as u64
    };
    (0..s.plan.ranks()).map(of).max().unwrap_or(0)
}

fn too_few(name: &str, value: &str, s: &Situation<'_>) -> Option<Finding> {
    let Some(most) = number(value) else {
        return Some(finding("not a number: NCCL ignores it", "a number of CTAs, or unset"));
    };
    if s.max_ctas.is_some() {
        return Some(finding("no effect: --nccl-ctas wins", "one of the two"));
    }
    let (each, needed, ctas) = (s.rate_of_a_cta()?, s.needed_rate()?, s.needed_ctas()?);
    (most < u64::from(ctas)).then(|| {
        let reached = BytesPerSec(each.0 * most as f64);
        finding(
            format!(
                "{most} CTAs carry about {reached}; to hide its transfers this plan needs {needed}, its bytes a step over its \
                 compute time a step"
            ),
            format!("{name}={ctas} or more, or unset"),
        )
    })
}

fn too_many(value: &str, s: &Situation<'_>) -> Option<Finding> {
    let Some(least) = number(value) else {
        return Some(finding("not a number: NCCL ignores it", "unset it"));
    };
    let sms = s.cluster.device.sms;
    if least as f64 <= NOTICED * f64::from(sms) {
        return None;
    }
    let beside = if s.persistent {
        "a persistent attention grid beside it has fewer SMs from its first tile to its last, and the transfer is exposed \
         almost whole (94% measured with 32 CTAs)"
    } else {
        "attention beside it has that many fewer (39-66% exposed as measured with 32 CTAs)"
    };
    Some(finding(
        format!("a transfer holds {least} of {sms} SMs for as long as it moves bytes: {beside}"),
        "unset it, or --transport copy-engine, which holds none",
    ))
}

fn multicast() -> Finding {
    finding(
        "communicators reserve memory for NVLink multicast, which sends and receives do not use; runs of this project keep \
         it off",
        "0",
    )
}

/// What is not set and should be.
pub(super) fn missing(variables: &Variables, s: &Situation<'_>) -> Vec<Advice> {
    let mut advice = Vec::new();
    if !s.uses_nccl() {
        return advice;
    }
    let absent = |name: &str| !variables.contains_key(name);
    if absent("NCCL_NVLS_ENABLE") {
        let (effect, instead) = multicast();
        advice.push(Advice { variable: "NCCL_NVLS_ENABLE".into(), value: None, effect, instead });
    }
    let ctas = s.cluster.fabric.nccl.sms;
    let gentle_is_enough = s.needed_ctas().is_some_and(|n| n <= GENTLE);
    let limited = s.max_ctas.is_some() || !absent("NCCL_MAX_CTAS") || !absent("NCCL_MAX_NCHANNELS");
    if s.persistent && !limited && gentle_is_enough && ctas > GENTLE {
        let needed = s.needed_rate().map_or_else(String::new, |n| n.to_string());
        advice.push(Advice {
            variable: "NCCL_MAX_CTAS".into(),
            value: None,
            effect: format!(
                "a transfer holds up to {ctas} of {} SMs beside a persistent attention grid, 94% exposed as measured; this \
                 plan needs {needed}, which {GENTLE} CTAs carry",
                s.cluster.device.sms
            ),
            instead: format!("{GENTLE} with --nccl-priority high, or --transport copy-engine"),
        });
    }
    advice
}
