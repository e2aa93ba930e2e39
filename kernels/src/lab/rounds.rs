//! Backward launches with a few items more than multiprocessors: where items are cut, these fall into parts.

use crate::gpu::Device;
use crate::reference::{QueryStats, Row, relative_l2};
use crate::spec::{Dims, Dtype, HeadDim};

use super::check::{Outcome, bits_differ};
use super::long::{Pair, delta};
use super::ranks::{HostGradients, Mode, Ranks};
use super::tensors::Inputs;
use super::{LabError, Layout, Mask};

/// Key tiles of a kv head at one rank, the last one not full.
const KEY_TILES: usize = 16;
/// Keys of a tile.
const TILE: usize = 128;
/// Tokens of a rank.
const LEN: usize = 2000;

/// One rank starts `dk` and `dv`; of two, the second adds to what the first one started.
pub(super) fn check(device: &Device, report: &mut impl FnMut(&Outcome)) -> Result<(), LabError> {
    // One to sixteen items beyond one round.
    let kv_heads = device.multiprocessors() as usize / KEY_TILES + 1;
    for head_dim in HeadDim::ALL {
        for (group, ranks) in [(1, 1), (2, 2)] {
            let dims = Dims { dtype: Dtype::Bf16, head_dim, heads: group * kv_heads, kv_heads, batch: 1 };
            report(&case(device, dims, ranks)?);
        }
    }
    Ok(())
}

/// Some rows of every tile against the reference, all rows against sums in a fixed order, for which
/// no item is cut.
fn case(device: &Device, dims: Dims, count: usize) -> Result<Outcome, LabError> {
    let inputs = Inputs::random(dims, count * LEN, Mask::Full, 23);
    let ranks = Ranks::new(device, &inputs, Layout::Contiguous, count)?;
    let output = ranks.forward(Mode::Fused)?;
    let gradients = ranks.backward(false)?;
    let problem = inputs.problem();
    let delta = delta(&output, &inputs);
    let stats = QueryStats { lse: &output.lse, delta: &delta };
    let (mut dq, mut dk, mut dv) = (Pair::default(), Pair::default(), Pair::default());
    for row in rows(dims.heads, inputs.len) {
        dq.add(&gradients.dq, dims.heads, row, &problem.query_gradient(&inputs.d_o, row));
    }
    for row in rows(dims.kv_heads, inputs.len) {
        let (key, value) = problem.key_gradient(&inputs.d_o, stats, row);
        dk.add(&gradients.dk, dims.kv_heads, row, &key);
        dv.add(&gradients.dv, dims.kv_heads, row, &value);
    }
    let mut errors = vec![("dq", dq.error(), 8e-3), ("dk", dk.error(), 8e-3), ("dv", dv.error(), 8e-3)];
    let (ordered, again) = (ranks.backward(true)?, ranks.backward(true)?);
    for gradients in [gradients, ranks.backward(false)?] {
        errors.extend(differences(&gradients, &ordered));
    }
    let pairs = [(&ordered.dq, &again.dq), (&ordered.dk, &again.dk), (&ordered.dv, &again.dv)];
    errors.push(("bits", pairs.map(|(a, b)| bits_differ(a, b)).iter().sum(), 0.0));
    let Dims { dtype, head_dim, heads, kv_heads, .. } = dims;
    let name = format!(
        "{dtype} d{} {heads}/{kv_heads} heads {} tokens full x{count} backward, a few items beyond a round",
        head_dim.elements(),
        inputs.len
    );
    Ok(Outcome { name, errors })
}

/// Sums in another order differ in fp32; `dq` is rounded to 16 bits afterwards, where some fall to the other side.
fn differences(gradients: &HostGradients, ordered: &HostGradients) -> [(&'static str, f64, f64); 3] {
    [
        ("dq to ordered", relative_l2(&gradients.dq, &ordered.dq), 1e-3),
        ("dk to ordered", relative_l2(&gradients.dk, &ordered.dk), 1e-5),
        ("dv to ordered", relative_l2(&gradients.dv, &ordered.dv), 1e-5),
    ]
}

/// Of every tile of 128 tokens a row of every fourth head, each at another place of its tile.
fn rows(heads: usize, len: usize) -> impl Iterator<Item = Row> {
    let tiles = (0..len).step_by(TILE).enumerate();
    let row = move |head, (tile, start): (usize, usize)| {
        let inside = (head * 29 + tile * 53) % TILE.min(len - start);
        Row { batch: 0, head, token: start + inside }
    };
    tiles.flat_map(move |tile| {
        (0..heads).filter(move |head| (head + tile.0) % 4 == 0).map(move |head| row(head, tile))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tile_and_every_head_has_rows() {
        let all: Vec<Row> = rows(9, LEN).collect();
        for tile in 0..KEY_TILES {
            assert!(all.iter().any(|row| row.token / TILE == tile), "{tile}");
        }
        for head in 0..9 {
            // 16 tiles, every fourth.
            assert_eq!(all.iter().filter(|row| row.head == head).count(), 4, "{head}");
        }
        assert!(all.iter().all(|row| row.token < LEN));
    }
}
