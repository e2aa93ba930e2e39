//! Attention kernels beyond those of the cluster presets, from published figures or measurements.
//!
//! Each row is a fit of the work-item model of [`KernelRow`] with 128 x 128 tiles, heads x dimension = 2048 and 16K
//! tokens a call, items longest first on the SMs; the fixed time of an item is shared by prologue and epilogue. Where a
//! backward is published without a mask only, partial tiles cost what they cost in the forward.

use serde::Serialize;

use crate::config::cluster::Items;
use crate::config::cluster::{Cluster, Dtype, Grid, KernelRow, Pass};
use crate::units::{FlopsPerSec, SimTime};

/// An implementation on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum KernelFamily {
    /// FlashAttention on A100.
    FlashAttention1A100,
    /// FlashAttention-2 on H100.
    FlashAttention2H100,
    /// cuDNN 9 on H100.
    CudnnH100,
    /// cuDNN 9.19 on H200.
    CudnnH200,
}

/// Head dimension, pass, TFLOP/s, cost of a partial tile, fixed nanoseconds of an item.
type Fit = (u32, Pass, f64, f64, u64);

const HALVED: &str = "DERIVED: FlashAttention-2's fit on A100 at half the rate; its paper (arXiv 2307.08691) gives about 2x \
                      over FlashAttention";
const FA2_BARS: &str = "DERIVED: fit to FlashAttention-2's bars in the FlashAttention-3 paper's H100 figures (arXiv \
                        2407.08608), rms error 3.2% and 3.9% forward, 0.2% and 0.3% backward";
const CUDNN_BARS: &str = "DERIVED: fit to cuDNN's bars in the FlashAttention-3 paper's H100 figures (arXiv 2407.08608), rms \
                          error 2.8%, 5.0% and 5.8% forward, 1.8% and 2.0% backward";
const CUDNN_MEASURED: &str = "DERIVED: fit to cuDNN 9.19 measured on an H200 (2026-11), sequences 2K to 64K, rms error 1.7% \
                              and 3.8% forward, 1.1% and 3.5% backward";

impl KernelFamily {
    /// All families.
    pub const ALL: [Self; 4] =
        [Self::FlashAttention1A100, Self::FlashAttention2H100, Self::CudnnH100, Self::CudnnH200];

    /// Name of the implementation.
    pub fn name(self) -> &'static str {
        match self {
            Self::FlashAttention1A100 => "FlashAttention",
            Self::FlashAttention2H100 => "FlashAttention-2",
            Self::CudnnH100 | Self::CudnnH200 => "cuDNN",
        }
    }

    fn fits(self) -> (&'static [Fit], &'static str) {
        use Pass::{Backward, Forward};
        match self {
            Self::FlashAttention1A100 => (
                &[
                    (64, Forward, 97.1, 1.19, 2900),
                    (64, Backward, 85.4, 1.19, 8890),
                    (128, Forward, 109.8, 1.31, 6460),
                    (128, Backward, 96.5, 1.31, 13170),
                ],
                HALVED,
            ),
            Self::FlashAttention2H100 => (
                &[
                    (64, Forward, 322.9, 1.76, 569),
                    (64, Backward, 305.3, 1.76, 8931),
                    (128, Forward, 369.9, 1.82, 1460),
                    (128, Backward, 339.3, 1.82, 17440),
                ],
                FA2_BARS,
            ),
            Self::CudnnH100 => (
                &[
                    (64, Forward, 415.1, 1.48, 955),
                    (64, Backward, 465.3, 1.48, 7872),
                    (128, Forward, 600.0, 1.85, 848),
                    (128, Backward, 558.5, 1.85, 14582),
                    (256, Forward, 568.0, 1.81, 1766),
                ],
                CUDNN_BARS,
            ),
            Self::CudnnH200 => (
                &[
                    (64, Forward, 480.0, 3.35, 472),
                    (64, Backward, 455.3, 4.28, 1675),
                    (128, Forward, 639.3, 3.47, 317),
                    (128, Backward, 564.2, 2.77, 19397),
                ],
                CUDNN_MEASURED,
            ),
        }
    }

    /// The rows of the kernel table.
    pub fn rows(self) -> Vec<KernelRow> {
        let (fits, source) = self.fits();
        fits.iter().map(|fit| self.row(*fit, source)).collect()
    }

    fn row(self, (head_dim, pass, tera_flops, partial_tile_cost, fixed_ns): Fit, source: &str) -> KernelRow {
        let half = SimTime(fixed_ns * 1000 / 2);
        let persistent = matches!(self, Self::CudnnH100 | Self::CudnnH200) && pass == Pass::Forward;
        KernelRow {
            name: self.name().to_owned(),
            head_dim,
            dtype: Dtype::Bf16,
            pass,
            tile_q: 128,
            tile_kv: 128,
            rate: FlopsPerSec(tera_flops * 1e12),
            partial_tile_cost,
            prologue: half,
            epilogue: half,
            call: SimTime::ZERO,
            carry: SimTime::ZERO,
            items: Items::QueryTiles,
            grid: if persistent { Grid::Persistent } else { Grid::PerItem },
            source: source.to_owned(),
            boost: None,
            linked: None,
            used_for: None,
            sections: None,
        }
    }

    /// The cluster with these kernels instead of its own.
    pub fn on(self, cluster: &Cluster) -> Cluster {
        Cluster { kernels: self.rows(), ..cluster.clone() }
    }
}
