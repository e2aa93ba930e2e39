//! Which kernel of a cluster's table an attention call is launched with.

use super::Kernel;
use crate::config::cluster::{Cluster, Dtype, KernelUse, NoKernel, Pass};
use crate::tiles::TileProfile;

/// The kernels for one head dimension, element type and pass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Kernels {
    general: Kernel,
    /// The kernel of some calls, and which those are.
    conditional: Option<(KernelUse, Kernel)>,
}

impl Kernels {
    /// Those of `cluster`.
    ///
    /// # Errors
    /// [`NoKernel`] if its table has none.
    pub fn of(cluster: &Cluster, head_dim: u32, dtype: Dtype, pass: Pass) -> Result<Self, NoKernel> {
        let sms = cluster.device.sms.max(1);
        let general = cluster.kernel(head_dim, dtype, pass)?;
        let conditional = cluster.conditional_kernel(general);
        let conditional = conditional.and_then(|row| Some((row.used_for?, Kernel::new(row, sms))));
        Ok(Self { general: Kernel::new(general, sms), conditional })
    }

    /// The kernel of all calls that no other one takes.
    pub fn general(&self) -> &Kernel {
        &self.general
    }

    /// The kernel of a call over `keys` keys; `profile` counts its tiles for one head, as a kernel cuts it.
    pub fn choose(&self, keys: u64, profile: impl FnOnce(&Kernel) -> TileProfile) -> Kernel {
        let Some((used_for, conditional)) = self.conditional else { return self.general };
        let takes = used_for.takes_by_keys(keys).unwrap_or_else(|| {
            let TileProfile { total, empty, .. } = profile(&self.general);
            let visited = total.full + total.partial;
            used_for.takes(keys, visited, visited + empty)
        });
        if takes { conditional } else { self.general }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::cluster::test_text;
    use crate::mask::{Documents, Mask, Pattern};
    use crate::tiles;
    use crate::tokens::{Progression, TokenSet};
    use crate::units::FlopsPerSec;

    fn cluster() -> Cluster {
        let mut cluster = Cluster::parse("test", &test_text("")).unwrap();
        let mut wide = cluster.kernel(128, Dtype::Bf16, Pass::Forward).unwrap().clone();
        (wide.tile_kv, wide.rate) = (176, FlopsPerSec(2.0 * wide.rate.0));
        wide.used_for = Some(KernelUse { min_keys: 32 << 10, or_visited: 0.9, above_keys: 2 << 10 });
        cluster.kernels.push(wide);
        cluster
    }

    /// Keys of a tile of the kernel that a call is given.
    fn tile(pattern: Pattern, queries: Progression, keys: Progression) -> u64 {
        let kernels = Kernels::of(&cluster(), 128, Dtype::Bf16, Pass::Forward).unwrap();
        let mask = Mask::new(pattern, &Documents::single(1 << 20));
        let (q, kv) = (TokenSet::new([queries]), TokenSet::new([keys]));
        kernels.choose(kv.len(), |kernel| tiles::profile(&mask, &q, &kv, kernel.tile())).tile().kv
    }

    #[test]
    fn many_keys_or_few_skipped_tiles_take_the_row_with_the_condition() {
        let block = |first, len| Progression::contiguous(first, len);
        for (keys, full, causal) in [
            (2 << 10, 128, 128),
            ((2 << 10) + 128, 176, 128),
            (16 << 10, 176, 128),
            ((32 << 10) - 128, 176, 128),
            (32 << 10, 176, 176),
        ] {
            assert_eq!(tile(Pattern::Full, block(0, 4096), block(0, keys)), full, "full, {keys} keys");
            assert_eq!(tile(Pattern::Causal, block(0, keys), block(0, keys)), causal, "causal, {keys} keys");
        }
        // Below the diagonal nothing is skipped.
        assert_eq!(tile(Pattern::Causal, block(8192, 8192), block(0, 8192)), 176);
    }

    #[test]
    fn the_share_counts_visited_tiles_to_the_last_one() {
        // Queries [n, n + 128 r) over the keys [0, 128 * 20), causal: row i of r visits n/128 + i + 1 of 20 tiles.
        let visited = |first: u64, rows: u64| (0..rows).map(|i| first + i + 1).sum::<u64>();
        let call = |first: u64, rows: u64| {
            let queries = Progression::contiguous(128 * first, 128 * rows);
            tile(Pattern::Causal, queries, Progression::contiguous(0, 128 * 20))
        };
        // 18 of 20 is nine tenths to the tile; 17 of 20, and 18 and 17 of 40, are less.
        assert_eq!((visited(17, 1), call(17, 1)), (18, 176));
        assert_eq!((visited(16, 1), call(16, 1)), (17, 128));
        assert_eq!((visited(16, 2), call(16, 2)), (35, 128));
        assert_eq!((visited(16, 3), call(16, 3)), (54, 176), "18 of 20 on average");
    }
}
