//! Each setting on a plan that it hurts, and on one that it does not.

use ringlab_runtime::environment::{Advice, Situation, Variables, advise, recorded};
use ringlab_sim::config::cluster::Cluster;
use ringlab_sim::engine::{Machine, SimOptions};
use ringlab_sim::mask::Pattern;
use ringlab_sim::metrics::{Metrics, RankTimes};
use ringlab_sim::plan::{Plan, Transport};
use ringlab_sim::problem::{Dtype, Pass, Problem, Shape};
use ringlab_sim::schedule::{Options, Schedule, build};
use ringlab_sim::units::SimTime;

const CLUSTER: &str = concat!(
    include_str!("../../../experiments/presets/clusters/hgx-h200.toml"),
    "\n",
    include_str!("../../../experiments/presets/parts/host-cuda.toml")
);

fn variables(text: &str) -> Variables {
    let pairs = text.split_whitespace().map(|pair| pair.split_once('=').unwrap());
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Llama-3-8B's heads, 64Ki tokens on two ranks: each sends 32Ki tokens of k and v, 8 heads of 128 in bf16, 134.2 MB.
fn plan(transport: Transport, ranks: u32) -> Plan {
    let shape = Shape { heads: 32, kv_heads: 8, head_dim: 128, dtype: Dtype::Bf16, batch: 1 };
    let problem = Problem { shape, pattern: Pattern::Causal, documents: vec![64 << 10] };
    build(Schedule::Zigzag, &problem, ranks, &Options { transport, ..Options::new(Pass::Forward) }).unwrap()
}

struct Case {
    plan: Plan,
    cluster: Cluster,
    metrics: Option<Metrics>,
}

impl Case {
    fn new(transport: Transport) -> Self {
        Self {
            plan: plan(transport, 2),
            cluster: Cluster::parse("hgx-h200", CLUSTER).unwrap(),
            metrics: None,
        }
    }

    /// Both ranks compute for `busy`.
    fn computing(mut self, busy: SimTime) -> Self {
        let timeline =
            Machine::new(&self.cluster, 2, &SimOptions::default()).unwrap().timeline(&self.plan).unwrap();
        let mut metrics = Metrics::of(&self.plan, &timeline);
        metrics.ranks = vec![RankTimes { busy, ..RankTimes::default() }; 2];
        self.metrics = Some(metrics);
        self
    }

    fn situation(&self) -> Situation<'_> {
        Situation {
            plan: &self.plan,
            metrics: self.metrics.as_ref(),
            cluster: &self.cluster,
            ranks_here: 2,
            nodes: 1,
            persistent: true,
            max_ctas: None,
        }
    }
}

/// What is said of one variable; the others keep quiet.
fn about(text: &str, situation: &Situation<'_>) -> Option<Advice> {
    let (name, value) = text.split_whitespace().next().unwrap().split_once('=').unwrap();
    let found = advise(&variables(text), situation).into_iter().find(|a| a.variable == name);
    found.inspect(|a| assert_eq!(a.value.as_deref(), Some(value)))
}

#[track_caller]
fn assert_says(text: &str, situation: &Situation<'_>, effect: &str, instead: &str) {
    let advice = about(text, situation).unwrap_or_else(|| panic!("nothing on {text}"));
    assert!(advice.effect.contains(effect), "{text}: {}", advice.effect);
    assert!(advice.instead.contains(instead), "{text}: {}", advice.instead);
}

#[test]
fn all_of_nccl_and_what_matters_of_cuda_is_recorded_in_order() {
    let all = variables(
        "PATH=/bin NCCL_DEBUG=WARN CUDA_HOME=/usr CUDA_LAUNCH_BLOCKING=0 TORCH_NCCL_X=1 NCCL_ALGO=Ring",
    );
    let names: Vec<String> = recorded(&all).into_iter().map(|v| v.name).collect();
    assert_eq!(names, ["CUDA_LAUNCH_BLOCKING", "NCCL_ALGO", "NCCL_DEBUG", "TORCH_NCCL_X"]);
}

#[test]
fn settings_that_hurt_a_plan_over_nccl() {
    let case = Case::new(Transport::Nccl);
    let s = case.situation();
    assert_says("CUDA_LAUNCH_BLOCKING=1", &s, "all communication is exposed", "unset");
    assert_says("CUDA_DEVICE_MAX_CONNECTIONS=1", &s, "posted after a kernel waits for it", "16");
    assert_says("CUDA_DEVICE_MAX_CONNECTIONS=many", &s, "default of 8", "16");
    assert_says("NCCL_P2P_DISABLE=1", &s, "through host memory", "0");
    assert_says("NCCL_P2P_LEVEL=LOC", &s, "through host memory", "0");
    assert_says("NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1", &s, "out to the network", "NCCL_SHM_DISABLE=0");
    assert_says("NCCL_ALGO=Tree", &s, "no effect", "unset");
    assert_says("NCCL_NVLS_ENABLE=1", &s, "multicast", "0");
    assert_says("NCCL_DEBUG=info", &s, "prints", "WARN");
    assert_says("NCCL_LAUNCH_MODE=GROUP", &s, "2 ranks start together", "PARALLEL");
    assert_says("TORCH_NCCL_BLOCKING_WAIT=1", &s, "no effect", "PyTorch");
    assert_says("NCCL_BUFFSIZE=65536", &s, "65.54 kB", "4194304");
    // 16 MiB for one peer and 32 channels.
    assert_says("NCCL_BUFFSIZE=16777216", &s, "1 peers and up to 32 channels: up to 536.9 MB", "unset");
    assert_says("CUDA_VISIBLE_DEVICES=0", &s, "shows 1 GPUs to a process of 2 ranks", "--virtual");
    assert_says("CUDA_VISIBLE_DEVICES=1,1", &s, "twice", "once");
    assert_says("NCCL_MIN_CTAS=32", &s, "holds 32 of 132 SMs", "copy-engine");
}

#[test]
fn settings_that_hurt_nothing_keep_quiet() {
    let case = Case::new(Transport::Nccl);
    let s = case.situation();
    for fine in [
        "CUDA_LAUNCH_BLOCKING=0",
        "CUDA_DEVICE_MAX_CONNECTIONS=32",
        "NCCL_P2P_DISABLE=0",
        "NCCL_P2P_LEVEL=NVL",
        "NCCL_NVLS_ENABLE=0",
        "NCCL_DEBUG=WARN",
        "NCCL_BUFFSIZE=4194304",
        "NCCL_MIN_CTAS=4",
        "NCCL_IB_DISABLE=1",
        "NCCL_NET_GDR_LEVEL=LOC",
        "NCCL_SOCKET_IFNAME=lo",
        "CUDA_VISIBLE_DEVICES=0,1",
        "CUDA_MODULE_LOADING=LAZY",
    ] {
        assert_eq!(about(fine, &s), None);
    }
}

#[test]
fn settings_of_the_network_matter_between_nodes_only() {
    let case = Case::new(Transport::Nccl);
    let s = Situation { nodes: 2, ..case.situation() };
    assert_says("NCCL_IB_DISABLE=1", &s, "TCP", "0");
    assert_says("NCCL_NET_GDR_LEVEL=0", &s, "through host memory", "SYS");
    assert_says("NCCL_SOCKET_IFNAME=lo", &s, "the other 1 nodes", "eth0");
    assert_eq!(about("NCCL_SOCKET_IFNAME=^lo,docker0", &s), None);
    assert_eq!(about("NCCL_NET_GDR_LEVEL=5", &s), None);
}

#[test]
fn copy_engines_do_not_care_for_nccl() {
    let case = Case::new(Transport::CopyEngine);
    assert_says("NCCL_P2P_DISABLE=1", &case.situation(), "no effect", "--transport nccl");
    assert_eq!(about("NCCL_NVLS_ENABLE=1", &case.situation()), None);
    assert!(advise(&Variables::new(), &case.situation()).iter().all(|a| !a.variable.starts_with("NCCL")));
}

#[test]
fn a_plan_without_messages_only_minds_blocking_launches() {
    let mut case = Case::new(Transport::Nccl);
    case.plan = plan(Transport::Nccl, 1);
    let s = Situation { ranks_here: 1, ..case.situation() };
    assert_says("CUDA_LAUNCH_BLOCKING=1", &s, "launch times add", "unset");
    for quiet in ["NCCL_P2P_DISABLE=1", "CUDA_DEVICE_MAX_CONNECTIONS=1", "NCCL_MAX_CTAS=1"] {
        assert_eq!(about(quiet, &s), None);
    }
    assert!(advise(&Variables::new(), &s).is_empty());
}

#[test]
fn the_needed_rate_is_bytes_over_compute_time() {
    // 134.2 MB in 1 ms are 134.2 GB/s. A CTA of this cluster's NCCL carries 1/32 of its bandwidth.
    let case = Case::new(Transport::Nccl).computing(SimTime(1_000_000_000));
    let s = case.situation();
    let each = case.cluster.fabric.nccl.bandwidth.0 / 32.0;
    let needed = (134_217_728.0 / 1e-3 / each).ceil() as u32;
    assert!((10..20).contains(&needed), "{needed}");
    assert_says(
        &format!("NCCL_MAX_CTAS={}", needed - 1),
        &s,
        "needs 134.2 GB/s",
        &format!("NCCL_MAX_CTAS={needed} or more"),
    );
    assert_eq!(about(&format!("NCCL_MAX_CTAS={needed}"), &s), None);
    assert_says("NCCL_MAX_NCHANNELS=1", &s, "1 CTAs carry", "NCCL_MAX_NCHANNELS=");
    let flagged = Situation { max_ctas: Some(8), ..s };
    assert_says("NCCL_MAX_CTAS=1", &flagged, "--nccl-ctas wins", "one of the two");
    // Without times there is no rate to hold it against.
    assert_eq!(about("NCCL_MAX_CTAS=1", &Case::new(Transport::Nccl).situation()), None);
}

#[test]
fn what_is_missing_is_said_where_it_hurts() {
    let missing = |s: &Situation<'_>| -> Vec<String> {
        let advice = advise(&Variables::new(), s);
        assert!(advice.iter().all(|a| a.value.is_none()));
        advice.into_iter().map(|a| a.variable).collect()
    };
    let slow = Case::new(Transport::Nccl).computing(SimTime(10_000_000_000));
    assert_eq!(
        missing(&slow.situation()),
        ["NCCL_NVLS_ENABLE", "NCCL_MAX_CTAS", "CUDA_DEVICE_MAX_CONNECTIONS"]
    );
    let stepwise = Situation { persistent: false, ..slow.situation() };
    assert_eq!(missing(&stepwise), ["NCCL_NVLS_ENABLE", "CUDA_DEVICE_MAX_CONNECTIONS"]);
    // 134.2 GB/s take more than 8 CTAs: the advice would make it worse.
    let fast = Case::new(Transport::Nccl).computing(SimTime(1_000_000_000));
    assert_eq!(missing(&fast.situation()), ["NCCL_NVLS_ENABLE", "CUDA_DEVICE_MAX_CONNECTIONS"]);
}
