//! The attention kernels of a GPU as the cost model sees them, and which calls each is launched for.

use ringlab_kernels::sections;
use ringlab_kernels::spec::{Dtype as KernelDtype, HeadDim};
use ringlab_kernels::variant::{ForwardTiles, Grid as KernelGrid, Kernel, Target};
use ringlab_sim::config::cluster::{Grid, Items, KernelUse, Sections};
use ringlab_sim::problem::{Dtype, Pass};
use ringlab_sim::tiles::TileShape;
use ringlab_sim::units::Bytes;

use super::MachineKernel;

/// The wide kernel's calls, by the rule that launches go by.
const WIDE: KernelUse = KernelUse {
    min_keys: ForwardTiles::WIDE_MIN_KEYS as u64,
    or_visited: ForwardTiles::WIDE_VISITED.0 as f64 / ForwardTiles::WIDE_VISITED.1 as f64,
    above_keys: ForwardTiles::WIDE_ABOVE_KEYS as u64,
};

/// The order of a persistent forward's queue, by the rule that launches go by.
const SECTIONS: Sections =
    Sections { cache: Bytes(sections::CACHE as u64), items_an_sm: sections::TILES_A_MULTIPROCESSOR as u32 };

/// All of them, of the largest head dimension first; a row with a condition follows the row for all other calls. The shapes of
/// short launches have no rows: calls so short are one round of work items, from which an item and its tiles cannot be
/// told apart. The general row stands for them and is not fitted to them.
pub(super) fn all(target: Target) -> Vec<MachineKernel> {
    HeadDim::ALL.iter().rev().flat_map(|&head_dim| of(target, head_dim)).collect()
}

fn of(target: Target, head_dim: HeadDim) -> Vec<MachineKernel> {
    let dtype = KernelDtype::Bf16;
    let row = |pass, kernel: &Kernel, items| MachineKernel {
        name: kernel.name.clone(),
        head_dim: head_dim.elements() as u32,
        dtype: Dtype::Bf16,
        pass,
        tile: TileShape { q: kernel.tile_q as u64, kv: kernel.tile_kv as u64 },
        items,
        grid: if kernel.grid == KernelGrid::Persistent { Grid::PersistentQueue } else { Grid::PerItem },
        used_for: None,
        sections: None,
        fitted_above: 0,
    };
    let forward = |tiles| Kernel::forward(target, dtype, head_dim, tiles);
    let forward_row = |kernel: &Kernel| {
        let sections = (kernel.grid == KernelGrid::Persistent).then_some(SECTIONS);
        MachineKernel { sections, ..row(Pass::Forward, kernel, Items::QueryTiles) }
    };
    let [general, wide, short] =
        [ForwardTiles::General, ForwardTiles::Wide, ForwardTiles::Short].map(forward);
    let fitted_above = if short == general { 0 } else { ForwardTiles::SHORT_MAX_KEYS as u64 };
    let mut rows = vec![MachineKernel { fitted_above, ..forward_row(&general) }];
    if wide != general {
        rows.push(MachineKernel { used_for: Some(WIDE), ..forward_row(&wide) });
    }
    let backward = Kernel::backward(target, dtype, head_dim);
    rows.push(row(Pass::Backward, &backward, Items::KeyTiles));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringlab_kernels::spec::Dims;
    use ringlab_kernels::tiles::{Intervals, key_ranges};
    use ringlab_kernels::variant::{Capability, Path, Visits};
    use ringlab_sim::cost;
    use ringlab_sim::mask::{Documents, Mask, Pattern};
    use ringlab_sim::tiles;
    use ringlab_sim::tokens::{Progression, TokenSet};

    const H200: Capability = Capability { major: 9, minor: 0 };

    fn hopper() -> Vec<MachineKernel> {
        all(Target { path: Path::Hopper, capability: H200 })
    }

    #[test]
    fn only_the_hopper_forward_for_heads_of_128_has_two_rows() {
        let rows = hopper();
        let shown: Vec<_> =
            rows.iter().map(|k| (k.head_dim, k.pass, k.tile.kv, k.used_for, k.fitted_above)).collect();
        let expected = [
            (128, Pass::Forward, 128, None, 0),
            (128, Pass::Forward, 176, Some(WIDE), 0),
            (128, Pass::Backward, 128, None, 0),
            (64, Pass::Forward, 128, None, 1024),
            (64, Pass::Backward, 128, None, 0),
        ];
        assert_eq!(shown, expected);
        let portable = all(Target { path: Path::Portable, capability: H200 });
        assert!(portable.len() == 4 && portable.iter().all(|k| k.used_for.is_none() && k.fitted_above == 0));
    }

    #[test]
    fn only_the_hopper_forwards_go_in_sections() {
        let sections = Some(Sections { cache: Bytes(33_554_432), items_an_sm: 4 });
        for row in hopper() {
            assert_eq!(row.sections, sections.filter(|_| row.pass == Pass::Forward), "{}", row.name);
        }
        let portable = all(Target { path: Path::Portable, capability: H200 });
        assert!(portable.iter().all(|row| row.sections.is_none()));
    }

    #[test]
    fn the_cost_model_expects_the_sections_that_are_launched() {
        let mut sizes = std::collections::BTreeSet::new();
        for row in hopper().iter().filter(|row| row.pass == Pass::Forward) {
            for keys in (1..80).map(|i| i * 1024).chain([1, 100, 1000, 12_345, 1 << 20, 1 << 27]) {
                for queries in [1, 500, keys.min(1 << 20), 4 * keys.min(1 << 20)] {
                    for (heads, kv_heads, batch, sms) in [
                        (16, 16, 1, 132),
                        (16, 4, 1, 132),
                        (8, 1, 3, 114),
                        (12, 12, 2, 78),
                        (40, 8, 1, 132),
                        (1, 1, 1, 1),
                    ] {
                        let head_dim = HeadDim::try_from(row.head_dim as usize).unwrap();
                        let dims = Dims { dtype: KernelDtype::Bf16, head_dim, heads, kv_heads, batch };
                        let tiles = (queries as usize).div_ceil(row.tile.q as usize);
                        let launched = sections::heads(dims, keys as usize, tiles, sms);
                        let bytes = cost::keys_and_values(keys, row.head_dim, row.dtype);
                        let group = (heads / kv_heads) as u64;
                        let expected = cost::Heads::separate((heads * batch) as u64).in_sections(
                            row.sections.unwrap(),
                            (group, bytes),
                            tiles as u64,
                            sms as u32,
                        );
                        assert_eq!(
                            expected.section,
                            Some(launched as u64),
                            "{}: {queries} x {keys}, {dims:?}",
                            row.name
                        );
                        sizes.insert(launched);
                    }
                }
            }
        }
        assert!(sizes.len() > 10, "{sizes:?}");
    }

    /// What the launch counts, as it counts it: from positions and one interval a query.
    fn launched(head_dim: HeadDim, mask: &Mask, q: &TokenSet, kv: &TokenSet) -> ForwardTiles {
        let bounds = |pos| mask.interval(pos).map_or((0, -1), |(lo, end)| (lo as i32, end as i32 - 1));
        let (lo, hi): (Vec<i32>, Vec<i32>) = q.iter().map(bounds).unzip();
        let keys: Vec<i32> = kv.iter().map(|pos| pos as i32).collect();
        let ranges = key_ranges(Intervals { lo: &lo, hi: &hi }, Visits::TILE, &keys, Visits::TILE);
        let mut visits = Visits::default();
        visits.add(keys.len(), &ranges);
        ForwardTiles::choose(head_dim, visits)
    }

    #[test]
    fn the_general_row_is_fitted_to_calls_that_run_its_kernel() {
        let rows = hopper();
        let general = rows.iter().find(|k| (k.head_dim, k.pass) == (64, Pass::Forward)).unwrap();
        for keys in [1, 300, 1023, 1024, 1025, 2048, 8192] {
            let block = TokenSet::new([Progression::contiguous(0, keys)]);
            for pattern in [Pattern::Full, Pattern::Causal, Pattern::Window(100)] {
                let mask = Mask::new(pattern, &Documents::single(keys));
                let tiles = launched(HeadDim::D64, &mask, &block, &block);
                let target = Target { path: Path::Hopper, capability: H200 };
                let kernel = Kernel::forward(target, KernelDtype::Bf16, HeadDim::D64, tiles);
                assert_eq!(kernel.name == general.name, keys > general.fitted_above, "{pattern}, {keys}");
            }
        }
    }

    #[test]
    fn the_cost_model_expects_the_kernel_that_is_launched() {
        let rows = hopper();
        let (general, wide) = (&rows[0], &rows[1]);
        assert_eq!(general.tile, TileShape { q: Visits::TILE as u64, kv: Visits::TILE as u64 });
        let block = |first: u64, len: u64| TokenSet::new([Progression::contiguous(first, len)]);
        let zigzag = |rank: u64| {
            let chunk = |i| Progression::contiguous(i * 4096, 4096);
            TokenSet::new([chunk(rank), chunk(7 - rank)])
        };
        let striped =
            |rank, width| TokenSet::new([Progression::new(rank * width, width, 4 * width, 8192 / width)]);
        let mut sets = vec![(block(0, 1000), block(0, 1000)), (block(0, 32 << 10), block(0, 32 << 10))];
        for keys in [2047, 2048, 2049, 4096, 4100] {
            sets.push((block(0, 4096), block(0, keys)));
            sets.push((block(8192, 300), block(0, keys)));
        }
        for rank in 0..4 {
            sets.push((zigzag(rank), zigzag((rank + 1) % 4)));
            sets.push((striped(rank, 1), striped(3 - rank, 1)));
            sets.push((striped(rank, 128), striped(3 - rank, 128)));
        }
        // Nine tenths of the tiles to the tile, and one row less.
        sets.extend([(block(17 * 128, 128), block(0, 20 * 128)), (block(16 * 128, 128), block(0, 20 * 128))]);
        let (mut wides, mut narrows) = (0, 0);
        for pattern in [Pattern::Full, Pattern::Causal, Pattern::Window(3000)] {
            let mask = Mask::new(pattern, &Documents::single(32 << 10));
            for (i, (q, kv)) in sets.iter().enumerate() {
                let profile = tiles::profile(&mask, q, kv, general.tile);
                let visited = profile.total.full + profile.total.partial;
                let expects = wide.used_for.unwrap().takes(kv.len(), visited, visited + profile.empty);
                let is_wide = launched(HeadDim::D128, &mask, q, kv) == ForwardTiles::Wide;
                assert_eq!(expects, is_wide, "{pattern}, set {i}");
                *if is_wide { &mut wides } else { &mut narrows } += 1;
            }
        }
        assert!(wides > 10 && narrows > 10, "{wides} wide, {narrows} narrow");
    }
}
