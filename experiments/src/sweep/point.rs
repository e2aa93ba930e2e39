//! One configuration of a grid, and the fields that it is made of.

use ringlab_sim::config::cluster::{Cluster, FabricTopology, Priority};
use ringlab_sim::config::model::Model;
use ringlab_sim::disturb::Jitter;
use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::Transport;
use ringlab_sim::problem::{Dtype, Pass, Problem, Shape};
use ringlab_sim::schedule::{Options, Route, Schedule};
use ringlab_sim::units::BytesPerSec;

use crate::nccl::Asked;

/// Tokens of the sequence if neither the sweep nor the mask's documents say.
const DEFAULT_SEQ: u64 = 128 << 10;

/// A mask as a sweep names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mask {
    /// As written.
    pub text: String,
    /// Inside a document.
    pub pattern: Pattern,
    /// Lengths of packed documents.
    pub documents: Option<Vec<u64>>,
}

/// One value of one field. Clusters, models and masks are indices into the grid's lists.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Setting {
    /// Which cluster.
    Cluster(usize),
    /// Which model.
    Model(usize),
    /// Rate between GPUs of a node.
    LinkBandwidth(BytesPerSec),
    /// Rate of a NIC.
    NicBandwidth(BytesPerSec),
    /// Context-parallel degree P.
    Cp(u32),
    /// Tokens of the sequence N.
    Seq(u64),
    /// Which mask.
    Mask(usize),
    /// Sequences in a batch.
    Batch(u32),
    /// Element type.
    Dtype(Dtype),
    /// Query heads.
    Heads(u32),
    /// Key/value heads.
    KvHeads(u32),
    /// Head dimension.
    HeadDim(u32),
    /// Which schedule.
    Schedule(Schedule),
    /// Tokens of a stripe, for striped schedules.
    Stripe(u64),
    /// Forward, backward, or both.
    Pass(&'static [Pass]),
    /// How messages travel.
    Transport(Transport),
    /// The most CTAs of an NCCL transfer.
    NcclCtas(u32),
    /// Priority of NCCL transfers.
    NcclPriority(Priority),
    /// From whom keys and values come.
    Route(Route),
    /// Messages a transfer is cut into.
    Chunks(u32),
    /// Steps that transfers may run ahead.
    Prefetch(u32),
    /// Only send what the mask needs.
    NeededOnly(bool),
    /// Pad what the layout does not divide.
    Pad(bool),
    /// Which stragglers.
    Straggler(usize),
    /// How single operations spread.
    Jitter(Jitter),
    /// Which slow links.
    SlowLink(usize),
    /// Which failed links.
    FailedLink(usize),
    /// How often a disturbed run is repeated.
    Repeats(u32),
    /// Decides what happens in each repeat.
    Seed(u64),
}

/// One configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// Index of the cluster.
    pub cluster: usize,
    /// Index of the model.
    pub model: usize,
    /// Rates that replace the cluster's.
    pub rates: Rates,
    /// Context-parallel degree P.
    pub cp: u32,
    /// Tokens; `None` is the default, or what the documents add up to.
    pub seq: Option<u64>,
    /// Index of the mask; `None` is the model's own.
    pub mask: Option<usize>,
    /// Element type.
    pub dtype: Dtype,
    /// Sequences in a batch.
    pub batch: u32,
    /// Query heads, key/value heads and head dimension that replace the model's.
    pub sizes: [Option<u32>; 3],
    /// Which schedule.
    pub schedule: Schedule,
    /// Tokens of a stripe.
    pub stripe: Option<u64>,
    /// The passes that follow each other.
    pub passes: &'static [Pass],
    /// All else that a schedule understands; its pass is set by `passes`.
    pub options: Options,
    /// Settings of NCCL that replace the cluster's.
    pub nccl: Asked,
    /// What goes wrong.
    pub trouble: Trouble,
}

/// What goes wrong. Stragglers and links are indices into the grid's lists.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trouble {
    /// Which stragglers.
    pub straggler: Option<usize>,
    /// How single operations spread.
    pub jitter: Jitter,
    /// Which slow links.
    pub slow_link: Option<usize>,
    /// Which failed links.
    pub failed_link: Option<usize>,
    /// How often a disturbed run is repeated.
    pub repeats: u32,
    /// Decides what happens in each repeat.
    pub seed: u64,
}

impl Default for Trouble {
    fn default() -> Self {
        let jitter = Jitter::default();
        Self { straggler: None, jitter, slow_link: None, failed_link: None, repeats: 1, seed: 0 }
    }
}

/// Rates that replace a cluster's.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Rates {
    /// Between GPUs of a node.
    pub link: Option<BytesPerSec>,
    /// Of a NIC.
    pub nic: Option<BytesPerSec>,
}

impl Default for Point {
    fn default() -> Self {
        Self {
            cluster: 0,
            model: 0,
            rates: Rates::default(),
            cp: 8,
            seq: None,
            mask: None,
            dtype: Dtype::Bf16,
            batch: 1,
            sizes: [None; 3],
            schedule: Schedule::Ring,
            stripe: None,
            passes: &[Pass::Forward],
            options: Options::new(Pass::Forward),
            nccl: Asked::default(),
            trouble: Trouble::default(),
        }
    }
}

impl Point {
    /// Gives one field its value.
    pub fn set(&mut self, setting: Setting) {
        match setting {
            Setting::Cluster(i) => self.cluster = i,
            Setting::Model(i) => self.model = i,
            Setting::LinkBandwidth(rate) => self.rates.link = Some(rate),
            Setting::NicBandwidth(rate) => self.rates.nic = Some(rate),
            Setting::Cp(cp) => self.cp = cp,
            Setting::Seq(tokens) => self.seq = Some(tokens),
            Setting::Mask(i) => self.mask = Some(i),
            Setting::Batch(batch) => self.batch = batch,
            Setting::Dtype(dtype) => self.dtype = dtype,
            Setting::Heads(n) => self.sizes[0] = Some(n),
            Setting::KvHeads(n) => self.sizes[1] = Some(n),
            Setting::HeadDim(n) => self.sizes[2] = Some(n),
            Setting::Schedule(schedule) => self.schedule = schedule,
            Setting::Stripe(tokens) => self.stripe = Some(tokens),
            Setting::Pass(passes) => self.passes = passes,
            Setting::Transport(transport) => self.options.transport = transport,
            Setting::NcclCtas(ctas) => self.nccl.ctas = Some(ctas),
            Setting::NcclPriority(priority) => self.nccl.priority = Some(priority),
            Setting::Route(route) => self.options.route = route,
            Setting::Chunks(chunks) => self.options.chunks = chunks,
            Setting::Prefetch(steps) => self.options.prefetch = steps,
            Setting::NeededOnly(flag) => self.options.needed_only = flag,
            Setting::Pad(flag) => self.options.pad = flag,
            Setting::Straggler(i) => self.trouble.straggler = Some(i),
            Setting::Jitter(jitter) => self.trouble.jitter = jitter,
            Setting::SlowLink(i) => self.trouble.slow_link = Some(i),
            Setting::FailedLink(i) => self.trouble.failed_link = Some(i),
            Setting::Repeats(count) => self.trouble.repeats = count,
            Setting::Seed(seed) => self.trouble.seed = seed,
        }
    }

    /// Refuses changes to `cluster` that would change nothing.
    ///
    /// # Errors
    /// The reason.
    pub fn check_changes(&self, cluster: &Cluster) -> Result<(), String> {
        if self.rates.nic.is_some() && cluster.network.is_none() {
            return Err(format!(
                "the cluster {} has no network whose nic_bandwidth could be set",
                cluster.name
            ));
        }
        if self.nccl != Asked::default() && self.options.transport != Transport::Nccl {
            return Err(
                "nccl_ctas and nccl_priority are for NCCL transfers, those of transport = \"nccl\"".into()
            );
        }
        Ok(())
    }

    /// `cluster` as the sweep changes it.
    ///
    /// # Errors
    /// The reason if it does not know a limit of NCCL.
    pub fn changed(&self, cluster: &Cluster) -> Result<Cluster, String> {
        self.nccl.apply(&self.rates.apply(cluster)).map_err(|e| e.to_string())
    }

    /// The schedule, striped ones with the stripe that was asked for.
    pub fn schedule(&self) -> Schedule {
        match (self.schedule, self.stripe) {
            (Schedule::Striped { .. }, Some(block)) => Schedule::Striped { block },
            (schedule, _) => schedule,
        }
    }

    /// Heads and sizes, those of `model` where the sweep does not say.
    pub fn shape(&self, model: &Model) -> Shape {
        let size = |given: Option<u32>, of_model: u64| {
            given.unwrap_or_else(|| u32::try_from(of_model).unwrap_or(u32::MAX))
        };
        Shape {
            heads: size(self.sizes[0], model.heads),
            kv_heads: size(self.sizes[1], model.kv_heads),
            head_dim: size(self.sizes[2], model.head_dim),
            dtype: self.dtype,
            batch: self.batch,
        }
    }

    /// What is to be computed.
    ///
    /// # Errors
    /// The reason if the documents of the mask do not add up to the sequence.
    pub fn problem(&self, model: &Model, mask: Option<&Mask>) -> Result<Problem, String> {
        let pattern = match (mask, model.sliding_window) {
            (Some(mask), _) => mask.pattern,
            (None, Some(window)) => Pattern::Window(window.0),
            (None, None) => Pattern::Causal,
        };
        let documents = match (mask.and_then(|m| m.documents.clone()), self.seq) {
            (None, seq) => vec![seq.unwrap_or(DEFAULT_SEQ)],
            (Some(documents), seq) => {
                let sum: u64 = documents.iter().sum();
                if let Some(seq) = seq.filter(|&seq| seq != sum) {
                    return Err(format!(
                        "the documents of the mask have {sum} tokens, but the sequence has {seq}"
                    ));
                }
                documents
            }
        };
        Ok(Problem { shape: self.shape(model), pattern, documents })
    }
}

impl Rates {
    /// `cluster` with these rates. A link's rate is what one transfer reaches and what the link carries; a PCIe switch's
    /// way to the host bridge keeps its ratio to a link.
    pub fn apply(&self, cluster: &Cluster) -> Cluster {
        let mut cluster = cluster.clone();
        if let Some(rate) = self.link {
            let fabric = &mut cluster.fabric;
            (fabric.copy.bandwidth, fabric.nccl.bandwidth) = (rate, rate);
            for limit in &mut fabric.nccl.limits {
                limit.bandwidth.0 = limit.bandwidth.0.min(rate.0);
            }
            match &mut fabric.topology {
                FabricTopology::Nvswitch { link_bandwidth }
                | FabricTopology::Torus { link_bandwidth, .. } => {
                    *link_bandwidth = rate;
                }
                FabricTopology::Pcie { link_bandwidth, host_bridge_bandwidth, .. } => {
                    host_bridge_bandwidth.0 *= rate.0 / link_bandwidth.0;
                    *link_bandwidth = rate;
                }
            }
        }
        if let (Some(rate), Some(network)) = (self.nic, &mut cluster.network) {
            (network.nic_bandwidth, network.transport.bandwidth) = (rate, rate);
        }
        cluster
    }
}
