//! The order of a persistent forward's queue: heads in sections.

use crate::spec::{Dims, Dtype};

/// Bytes of keys and values of the heads of a section: half of the L2 cache of an H100, whose two halves each keep a copy of what
/// both read.
pub const CACHE: usize = 32 << 20;
/// Query tiles a multiprocessor that a section has at least.
pub const TILES_A_MULTIPROCESSOR: usize = 4;

/// Heads, counted over the batch, that are worked on side by side in a launch over `keys` keys with `tiles` query tiles a head:
/// as many as keep their keys and values in [`CACHE`], but at least [`TILES_A_MULTIPROCESSOR`], and sections of equal size; a
/// multiple of the heads of a group.
///
/// Sizes are those of a valid launch: there are keys and tiles, and groups are equal.
pub fn heads(dims: Dims, keys: usize, tiles: usize, multiprocessors: usize) -> usize {
    let Dims { heads, kv_heads, batch, head_dim, .. } = dims;
    let (group, all) = (heads / kv_heads, heads * batch);
    let kv_head_bytes = 2 * keys * head_dim.elements() * Dtype::BYTES as usize;
    let cached = CACHE / kv_head_bytes * group;
    let filling = (TILES_A_MULTIPROCESSOR * multiprocessors).div_ceil(tiles);
    let wanted = cached.max(filling).clamp(group, all);
    let sections = all.div_ceil(wanted);
    all.div_ceil(sections).next_multiple_of(group)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::HeadDim;

    #[test]
    fn sections_are_whole_groups_that_fit_the_cache() {
        let section = |len: usize, heads_of_call, kv_heads| {
            let head_dim = HeadDim::D128;
            let dims = Dims { dtype: Dtype::Bf16, head_dim, heads: heads_of_call, kv_heads, batch: 1 };
            heads(dims, len, len.div_ceil(128), 132)
        };
        // 1 MiB of keys and values a head: all 16 fit.
        assert_eq!(section(2048, 16, 16), 16);
        // 8 MiB a head: 4 fit, but four tiles a multiprocessor take 5 heads; four equal sections.
        assert_eq!(section(16384, 16, 16), 4);
        // 12 MiB a head: 2 fit, four tiles a multiprocessor take 3: five sections of three heads, and one of one.
        assert_eq!(section(24576, 16, 16), 3);
        // 32 MiB a head: 1 fits, but four tiles a multiprocessor take 2 heads.
        assert_eq!(section(65536, 16, 16), 2);
        // Groups of 4 stay together even where one kv head is more than fits.
        assert_eq!(section(262_144, 8, 2), 4);
    }
}
