//! How the GPUs of a cluster are shared out: tensor x Ulysses x ring x data x pipeline.
//!
//! Ranks are numbered with the tensor group fastest, then Ulysses, ring, data and pipeline, so that the groups that talk
//! most sit closest together.

use serde::Serialize;
use thiserror::Error;

use super::collective::Group;
use crate::config::cluster::Cluster;
use crate::config::model::Model;

/// Degrees of parallelism; their product is the number of GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Grid {
    /// Tensor-parallel degree.
    pub tp: u64,
    /// Context-parallel degree, `ulysses * ring`.
    pub cp: u64,
    /// Ranks that share heads by all-to-all.
    pub ulysses: u64,
    /// Ranks that share tokens by a ring or by DistFlashAttn.
    pub ring: u64,
    /// Replicas.
    pub dp: u64,
    /// Pipeline stages.
    pub pp: u64,
    /// Pieces of each stage in an interleaved pipeline; 1 is plain 1F1B.
    pub interleave: u64,
    /// Ranks that share the experts of a mixture; 1 keeps all of them on every rank.
    pub experts: u64,
}

/// Why a grid is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GridError {
    /// A model of which too little is known: its configuration leaves out what attention does not need.
    #[error("the model's configuration does not give `{0}`, which an iteration depends on; add it")]
    Unknown(&'static str),
    /// A degree of zero.
    #[error("the {0} degree must be at least 1")]
    Zero(&'static str),
    /// Ulysses times ring is not the context-parallel degree.
    #[error("ulysses {ulysses} x ring {ring} is not cp {cp}; legal for {heads} heads with tp {tp}: {legal}")]
    Context {
        /// Ulysses degree asked for.
        ulysses: u64,
        /// Ring degree asked for.
        ring: u64,
        /// Context-parallel degree asked for.
        cp: u64,
        /// Query heads.
        heads: u64,
        /// Tensor-parallel degree.
        tp: u64,
        /// The legal pairs.
        legal: String,
    },
    /// Heads that the ranks cannot share evenly.
    #[error(
        "{heads} heads cannot be shared by tp {tp} x ulysses {ulysses}; legal (ulysses x ring) on cp {cp}: {legal} \
         (or pad the heads)"
    )]
    Heads {
        /// Query heads.
        heads: u64,
        /// Tensor-parallel degree.
        tp: u64,
        /// Ulysses degree.
        ulysses: u64,
        /// Context-parallel degree.
        cp: u64,
        /// The legal pairs.
        legal: String,
    },
    /// Degrees whose product is not the number of GPUs.
    #[error(
        "tp {tp} x cp {cp} x dp {dp} x pp {pp} is {product} GPUs, but cluster `{cluster}` has {gpus}; \
         with this tp, cp and pp legal dp: {legal}"
    )]
    Gpus {
        /// Tensor-parallel degree.
        tp: u64,
        /// Context-parallel degree.
        cp: u64,
        /// Replicas.
        dp: u64,
        /// Pipeline stages.
        pp: u64,
        /// GPUs that the grid needs.
        product: u64,
        /// Name of the cluster.
        cluster: String,
        /// GPUs of the cluster.
        gpus: u64,
        /// The data-parallel degree that fits, or "none".
        legal: String,
    },
    /// Groups that straddle nodes unevenly.
    #[error("a tensor group of {tp} does not tile nodes of {gpus_per_node} GPUs; legal: {legal}")]
    Nodes {
        /// Tensor-parallel degree.
        tp: u64,
        /// GPUs of a node.
        gpus_per_node: u64,
        /// Degrees that do.
        legal: String,
    },
    /// Layers that the stages cannot share evenly.
    #[error(
        "{layers} layers cannot be cut into pp {pp} x {interleave} equal pieces; legal products: {legal}"
    )]
    Layers {
        /// Layers of the model.
        layers: u64,
        /// Pipeline stages.
        pp: u64,
        /// Pieces of each stage.
        interleave: u64,
        /// Divisors of the number of layers.
        legal: String,
    },
    /// Experts that the ranks cannot share evenly.
    #[error("{count} experts cannot be shared by {degree} ranks of {replicas}; legal: {legal}")]
    Experts {
        /// Experts of a layer.
        count: u64,
        /// Degree asked for.
        degree: u64,
        /// Ranks that could share them, cp * dp.
        replicas: u64,
        /// Degrees that are legal.
        legal: String,
    },
}

impl Grid {
    /// One GPU.
    pub const ONE: Self = Self { tp: 1, cp: 1, ulysses: 1, ring: 1, dp: 1, pp: 1, interleave: 1, experts: 1 };

    /// Context parallelism alone, by a ring.
    pub fn ring(ranks: u64) -> Self {
        Self { cp: ranks, ring: ranks, ..Self::ONE }
    }

    /// Context parallelism alone, by Ulysses.
    pub fn ulysses(ranks: u64) -> Self {
        Self { cp: ranks, ulysses: ranks, ..Self::ONE }
    }

    /// Tensor parallelism alone.
    pub fn tensor(ranks: u64) -> Self {
        Self { tp: ranks, ..Self::ONE }
    }

    /// GPUs needed.
    pub fn gpus(&self) -> u64 {
        self.tp * self.cp * self.dp * self.pp
    }

    /// The tensor-parallel group.
    pub fn tensor_group(&self) -> Group {
        Group { size: self.tp, stride: 1 }
    }

    /// The group that exchanges heads.
    pub fn ulysses_group(&self) -> Group {
        Group { size: self.ulysses, stride: self.tp }
    }

    /// The group that shares tokens.
    pub fn ring_group(&self) -> Group {
        Group { size: self.ring, stride: self.tp * self.ulysses }
    }

    /// The ranks with the same weights: context and data parallel ones.
    pub fn replica_group(&self) -> Group {
        Group { size: self.cp * self.dp, stride: self.tp }
    }

    /// The ranks that share experts.
    pub fn expert_group(&self) -> Group {
        Group { size: self.experts, stride: self.tp }
    }

    /// Query heads of a rank; with padding the next multiple of `tp * ulysses` is shared.
    pub fn heads_per_rank(&self, heads: u64) -> u64 {
        heads.div_ceil(self.tp * self.ulysses)
    }

    /// Checks the grid against a model and a cluster.
    ///
    /// # Errors
    /// [`GridError`] with what would be legal.
    pub fn validate(&self, model: &Model, cluster: &Cluster, pad_heads: bool) -> Result<(), GridError> {
        check_known(model)?;
        self.check_degrees()?;
        self.check_heads(model, pad_heads)?;
        self.check_gpus(cluster)?;
        self.check_layers(model)?;
        self.check_experts(model)
    }

    fn check_degrees(&self) -> Result<(), GridError> {
        let degrees = [
            (self.tp, "tensor"),
            (self.cp, "context"),
            (self.ulysses, "ulysses"),
            (self.ring, "ring"),
            (self.dp, "data"),
            (self.pp, "pipeline"),
            (self.interleave, "interleave"),
            (self.experts, "expert"),
        ];
        match degrees.iter().find(|(degree, _)| *degree == 0) {
            Some((_, what)) => Err(GridError::Zero(what)),
            None => Ok(()),
        }
    }

    fn check_heads(&self, model: &Model, pad_heads: bool) -> Result<(), GridError> {
        let Self { tp, cp, ulysses, ring, .. } = *self;
        let heads = model.heads;
        let legal = || joined(legal_contexts(heads, tp, cp).into_iter().map(|(u, r)| format!("{u}x{r}")));
        if ulysses * ring != cp {
            return Err(GridError::Context { ulysses, ring, cp, heads, tp, legal: legal() });
        }
        if !pad_heads && !heads.is_multiple_of(tp * ulysses) {
            return Err(GridError::Heads { heads, tp, ulysses, cp, legal: legal() });
        }
        Ok(())
    }

    fn check_gpus(&self, cluster: &Cluster) -> Result<(), GridError> {
        let (gpus, product) = (u64::from(cluster.gpus()), self.gpus());
        let Self { tp, cp, dp, pp, .. } = *self;
        if gpus != product {
            let rest = tp * cp * pp;
            let legal = if gpus.is_multiple_of(rest) { (gpus / rest).to_string() } else { "none".to_owned() };
            let cluster = cluster.name.clone();
            return Err(GridError::Gpus { tp, cp, dp, pp, product, cluster, gpus, legal });
        }
        let per_node = u64::from(cluster.gpus_per_node);
        if !per_node.is_multiple_of(tp) && !tp.is_multiple_of(per_node) {
            let legal = joined(divisors(per_node).into_iter().map(|d| d.to_string()));
            return Err(GridError::Nodes { tp, gpus_per_node: per_node, legal });
        }
        Ok(())
    }

    fn check_layers(&self, model: &Model) -> Result<(), GridError> {
        let (layers, pieces) = (model.layers, self.pp * self.interleave);
        if layers.is_multiple_of(pieces) {
            return Ok(());
        }
        let legal = joined(divisors(layers).into_iter().map(|d| d.to_string()));
        Err(GridError::Layers { layers, pp: self.pp, interleave: self.interleave, legal })
    }

    fn check_experts(&self, model: &Model) -> Result<(), GridError> {
        let count = model.experts.map_or(1, |moe| moe.count);
        let (degree, replicas) = (self.experts, self.cp * self.dp);
        let fits = |e: u64| count.is_multiple_of(e) && replicas.is_multiple_of(e);
        if fits(degree) {
            return Ok(());
        }
        let legal = joined(divisors(count).into_iter().filter(|&e| fits(e)).map(|d| d.to_string()));
        Err(GridError::Experts { count, degree, replicas, legal })
    }
}

fn check_known(model: &Model) -> Result<(), GridError> {
    let sizes = [(model.intermediate, "intermediate_size"), (model.vocab, "vocab_size")];
    sizes.iter().find(|(size, _)| *size == 0).map_or(Ok(()), |(_, name)| Err(GridError::Unknown(name)))
}

/// The (ulysses, ring) pairs that `heads` query heads allow without padding.
pub fn legal_contexts(heads: u64, tp: u64, cp: u64) -> Vec<(u64, u64)> {
    divisors(cp).into_iter().filter(|u| heads.is_multiple_of(tp * u)).map(|u| (u, cp / u)).collect()
}

fn divisors(n: u64) -> Vec<u64> {
    (1..=n).filter(|d| n.is_multiple_of(*d)).collect()
}

fn joined(parts: impl Iterator<Item = String>) -> String {
    let parts: Vec<String> = parts.collect();
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
}
