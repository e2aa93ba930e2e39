//! What operations cost on a cluster's device: attention calls by their tiles, merges by the bytes they move.

mod attention;
mod cache;
mod items;
mod kernels;
mod memory;
mod scores;
mod sections;

pub use attention::{Call, Heads, Kernel, weights};
pub use items::heads;
pub use kernels::Kernels;
pub use memory::{accumulate_bytes, merge_bytes, preprocess_bytes};
pub use sections::keys_and_values;

use crate::config::cluster::{Cluster, Items, NoKernel};
use crate::mask::Mask;
use crate::plan::{BlockId, Buf, MaskId, OpKind, Plan, Program, Scores};
use crate::tiles::{self, TileProfile, TileShape};
use crate::tokens::TokenSet;
use crate::units::{Bytes, SimTime};
use crate::work;

use cache::{Geometries, Geometry, Priced};

/// Prices operations on the devices of one cluster, and remembers the tile counts of geometries that it has seen.
#[derive(Debug, Clone)]
pub struct Costs {
    cluster: Cluster,
    geometries: Geometries,
    priced: Priced,
}

impl Costs {
    /// Prices on the devices of `cluster`.
    pub fn new(cluster: &Cluster) -> Self {
        Self { cluster: cluster.clone(), geometries: Geometries::new(true), priced: Priced::new(true) }
    }

    /// As [`Costs::new`], but the tiles of every call are counted anew: slower, with the same results.
    pub fn uncached(cluster: &Cluster) -> Self {
        Self { cluster: cluster.clone(), geometries: Geometries::new(false), priced: Priced::new(false) }
    }

    /// SMs of a device, at least one.
    pub fn sms(&self) -> u32 {
        self.cluster.device.sms.max(1)
    }

    /// The attention kernels of a plan.
    ///
    /// # Errors
    /// [`NoKernel`] if the cluster's table has none for the plan's heads, element type and pass.
    pub fn kernels(&self, plan: &Plan) -> Result<Kernels, NoKernel> {
        Kernels::of(&self.cluster, plan.shape.head_dim, plan.shape.dtype, plan.pass)
    }

    /// Which of `kernels` an attention call is launched with.
    pub fn choose(
        &mut self,
        plan: &Plan,
        kernels: &Kernels,
        (q, kv, mask): (BlockId, BlockId, MaskId),
    ) -> Kernel {
        kernels.choose(plan.block(kv).tokens.len(), |kernel| self.profile(plan, kernel, (q, kv, mask)))
    }

    /// The work items of an attention call with `kernel`, over all heads and sequences, which reads and leaves a carried
    /// state `carries` times in all; `writes`: nothing was added to its gradients of keys before.
    pub fn call(
        &mut self,
        plan: &Plan,
        kernel: &Kernel,
        (q, kv, mask): (BlockId, BlockId, MaskId),
        (carries, writes): (u32, bool),
    ) -> Call {
        let profile = self.profile(plan, kernel, (q, kv, mask));
        let (queries, keys) = (repeats(plan, q), repeats(plan, kv).max(1));
        let group = queries.div_ceil(keys);
        let heads = match kernel.items() {
            Items::QueryTiles => kernel.query_heads(&profile, (queries, group), plan.block(kv).tokens.len()),
            Items::KeyTiles => heads(Items::KeyTiles, &profile, (keys, group), self.sms(), writes),
        };
        self.priced.call(kernel, &profile, heads, carries)
    }

    /// The tiles of an attention call for one head, as `kernel` cuts it.
    fn profile(
        &mut self,
        plan: &Plan,
        kernel: &Kernel,
        (q, kv, mask): (BlockId, BlockId, MaskId),
    ) -> TileProfile {
        let by = By { tile: kernel.tile(), items: kernel.items() };
        if mask == MaskId::NONE {
            // Without a mask there is a closed form, cheaper than a look-up.
            by.profile(plan.mask(mask), &plan.block(q).tokens, &plan.block(kv).tokens)
        } else {
            self.geometry(plan, by, (q, kv, mask)).profile
        }
    }

    /// FLOPs of an attention call by the mask's area, over all heads and sequences.
    pub fn flops(&mut self, plan: &Plan, kernel: &Kernel, q: BlockId, kv: BlockId, mask: MaskId) -> f64 {
        let pairs = if mask == MaskId::NONE {
            work::pairs(plan.mask(mask), &plan.block(q).tokens, &plan.block(kv).tokens)
        } else {
            let by = By { tile: kernel.tile(), items: kernel.items() };
            self.geometry(plan, by, (q, kv, mask)).pairs
        };
        let each = plan.pass.flops_per_pair(plan.shape.head_dim);
        pairs as f64 * each as f64 * repeats(plan, q) as f64
    }

    /// Time of an operation that streams device memory; zero for one that does not.
    pub fn memory_time(&self, plan: &Plan, program: &Program, kind: &OpKind) -> SimTime {
        let moved = moved_bytes(plan, program, kind);
        if moved == Bytes(0) {
            return SimTime::ZERO;
        }
        let reached = &self.cluster.device.reached;
        reached.call + moved / reached.hbm
    }

    /// Time of a copy within a device's memory, which reads and writes.
    pub fn copy_time(&self, bytes: Bytes) -> SimTime {
        Bytes(bytes.0.saturating_mul(2)) / self.cluster.device.reached.hbm
    }

    /// Time of an operation on score rows.
    pub fn scores_time(&self, plan: &Plan, program: &Program, op: &Scores) -> SimTime {
        scores::time(&self.cluster.device.reached, plan, program, op)
    }

    fn geometry(&mut self, plan: &Plan, by: By, (q, kv, mask): (BlockId, BlockId, MaskId)) -> Geometry {
        let (q, kv, on) = (&plan.block(q).tokens, &plan.block(kv).tokens, plan.mask(mask));
        let count = || Geometry { profile: by.profile(on, q, kv), pairs: work::pairs(on, q, kv) };
        self.geometries.get_or_insert(on, q, kv, by, count)
    }
}

/// Bytes of device memory that an operation reads and writes; zero for one that does more than streaming them.
pub fn moved_bytes(plan: &Plan, program: &Program, kind: &OpKind) -> Bytes {
    let bytes = |buffer: Buf| program.buffers[usize::from(buffer.0)].bytes;
    match *kind {
        OpKind::Merge { from, into } => merge_bytes(bytes(from).min(bytes(into))),
        OpKind::Accumulate { from, into } => accumulate_bytes(bytes(from).min(bytes(into))),
        OpKind::Preprocess { delta, .. } => preprocess_bytes(&plan.shape, bytes(delta)),
        _ => Bytes(0),
    }
}

/// How work is cut into items and tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct By {
    tile: TileShape,
    items: Items,
}

impl By {
    fn profile(self, mask: &Mask, q: &TokenSet, kv: &TokenSet) -> TileProfile {
        profile((self.items, self.tile), mask, q, kv)
    }
}

/// The tiles of queries over keys for one head, in a kernel of such items and tiles.
pub fn profile((items, tile): (Items, TileShape), mask: &Mask, q: &TokenSet, kv: &TokenSet) -> TileProfile {
    match items {
        Items::QueryTiles => tiles::profile(mask, q, kv, tile),
        Items::KeyTiles => tiles::key_profile(mask, q, kv, tile),
    }
}

/// How often a call does the work of one head of one sequence.
fn repeats(plan: &Plan, q: BlockId) -> u64 {
    u64::from(plan.block(q).heads.count) * u64::from(plan.shape.batch)
}

/// Whole picoseconds, rounded up; within the rounding error of a few `f64` operations of a whole number it is that
/// number, as in [`SimTime`]'s own quotients. [`SimTime::NEVER`] for what is not finite.
fn whole_picoseconds(ps: f64) -> SimTime {
    if !ps.is_finite() {
        return SimTime::NEVER;
    }
    let nearest = ps.round();
    let is_whole = (ps - nearest).abs() <= ps * (4.0 * f64::EPSILON);
    SimTime(if is_whole { nearest } else { ps.ceil() } as u64)
}
