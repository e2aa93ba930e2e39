//! A call cut into launches that a kernel can do: equal groups of query heads on each kv head, and arrays of scalars that
//! hold just the launch's heads of each sequence.

use ringlab_sim::plan::Heads;

/// Sequences and heads of one launch; heads are counted from the call's first query and kv head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slice {
    pub batch: usize,
    pub batches: usize,
    pub q_head: usize,
    pub q_heads: usize,
    pub kv_head: usize,
    pub kv_heads: usize,
}

/// The launches of a call of `batch` sequences, `group` query heads a kv head. `widths` are the heads of the arrays of
/// scalars. `None` if a kv head is missing.
pub(super) fn slices(q: Heads, kv: Heads, group: u32, batch: usize, widths: &[usize]) -> Option<Vec<Slice>> {
    let owner = |head: u32| (q.first + head) / group;
    let last = q.count.checked_sub(1)?;
    if owner(0) < kv.first || owner(last) >= kv.first + kv.count {
        return None;
    }
    let used = owner(last) - owner(0) + 1;
    let each = q.count / used;
    let uniform = q.count.is_multiple_of(used) && (0..q.count).all(|h| owner(h) - owner(0) == h / each);
    let slice = |(q_head, q_heads): (u32, u32), kv_heads: u32| Slice {
        batch: 0,
        batches: batch,
        q_head: q_head as usize,
        q_heads: q_heads as usize,
        kv_head: (owner(q_head) - kv.first) as usize,
        kv_heads: kv_heads as usize,
    };
    let by_heads: Vec<Slice> = if uniform {
        vec![slice((0, q.count), used)]
    } else {
        let heads: Vec<u32> = (0..q.count).collect();
        heads.chunk_by(|&a, &b| owner(a) == owner(b)).map(|c| slice((c[0], c.len() as u32), 1)).collect()
    };
    let split = |s: Slice| {
        let whole = batch == 1 || widths.iter().all(|&width| width == s.q_heads);
        let parts = if whole { vec![(0, batch)] } else { (0..batch).map(|b| (b, 1)).collect() };
        parts.into_iter().map(move |(batch, batches)| Slice { batch, batches, ..s })
    };
    Some(by_heads.into_iter().flat_map(split).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heads(first: u32, count: u32) -> Heads {
        Heads { first, count }
    }

    #[test]
    fn equal_groups_are_one_launch() {
        let all = slices(heads(0, 8), heads(0, 2), 4, 3, &[8]).unwrap();
        assert_eq!(all, [Slice { batch: 0, batches: 3, q_head: 0, q_heads: 8, kv_head: 0, kv_heads: 2 }]);
        // Two query heads of one group of four.
        let part = slices(heads(6, 2), heads(1, 1), 4, 1, &[2]).unwrap();
        assert_eq!(part, [Slice { batch: 0, batches: 1, q_head: 0, q_heads: 2, kv_head: 0, kv_heads: 1 }]);
    }

    #[test]
    fn unequal_groups_are_a_launch_a_kv_head() {
        // Heads 1 to 3 of groups of three: 1 and 2 read kv head 0, 3 reads kv head 1.
        let all = slices(heads(1, 3), heads(0, 2), 3, 1, &[3]).unwrap();
        assert_eq!(
            all.iter().map(|s| (s.q_head, s.q_heads, s.kv_head)).collect::<Vec<_>>(),
            [(0, 2, 0), (2, 1, 1)]
        );
    }

    #[test]
    fn some_heads_of_an_array_of_scalars_are_a_launch_a_sequence() {
        let all = slices(heads(0, 2), heads(0, 2), 1, 2, &[4, 2]).unwrap();
        assert_eq!(all.iter().map(|s| (s.batch, s.batches)).collect::<Vec<_>>(), [(0, 1), (1, 1)]);
    }

    #[test]
    fn a_missing_kv_head_is_found() {
        assert_eq!(slices(heads(0, 8), heads(0, 1), 4, 1, &[]), None);
        assert_eq!(slices(heads(0, 0), heads(0, 1), 4, 1, &[]), None);
    }
}
