//! A grid of chips with one link to each neighbour, each way. Routes go dimension by dimension, the first first, and
//! around the ends of a dimension where these are joined and that is shorter; upwards when both ways are equally long.

use super::{LinkId, Links, TopologyError};
use crate::units::BytesPerSec;

#[derive(Debug, Clone)]
pub(super) struct Torus {
    chips: u32,
    dims: Vec<u32>,
    wraparound: bool,
    first: LinkId,
}

impl Torus {
    pub fn new(
        nodes: u32,
        chips: u32,
        dims: &[u32],
        wraparound: bool,
        link: BytesPerSec,
        links: &mut Links,
    ) -> Result<Self, TopologyError> {
        let product = dims.iter().fold(1_u64, |all, &d| all.saturating_mul(u64::from(d)));
        if product != u64::from(chips) {
            return Err(TopologyError::TorusShape {
                dims: dims.to_vec(),
                chips: product,
                gpus_per_node: chips,
            });
        }
        let first = links.add(nodes * chips * 2 * dims.len() as u32, link);
        Ok(Self { chips, dims: dims.to_vec(), wraparound, first })
    }

    pub fn route(&self, node: u32, from: u32, to: u32, out: &mut Vec<LinkId>) {
        let mut at = from;
        let mut stride = 1;
        for (dimension, &extent) in self.dims.iter().enumerate() {
            let (mut here, there) = (at / stride % extent, to / stride % extent);
            let upwards = self.goes_up(here, there, extent);
            while here != there {
                out.push(self.link(node, at, dimension, upwards));
                let next = if upwards { here + 1 } else { here + extent - 1 } % extent;
                at = at - here * stride + next * stride;
                here = next;
            }
            stride *= extent;
        }
    }

    fn goes_up(&self, here: u32, there: u32, extent: u32) -> bool {
        if self.wraparound { (there + extent - here) % extent * 2 <= extent } else { there > here }
    }

    /// The link that leaves `chip` along `dimension`.
    fn link(&self, node: u32, chip: u32, dimension: usize, upwards: bool) -> LinkId {
        let of_chip = (node * self.chips + chip) * 2 * self.dims.len() as u32;
        self.first + of_chip + 2 * dimension as u32 + u32::from(!upwards)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn torus(dims: &[u32], wraparound: bool) -> Torus {
        let chips = dims.iter().product();
        Torus::new(1, chips, dims, wraparound, BytesPerSec(90e9), &mut Links::default()).unwrap()
    }

    fn hops(fabric: &Torus, from: u32, to: u32) -> usize {
        let mut out = Vec::new();
        fabric.route(0, from, to, &mut out);
        out.len()
    }

    #[test]
    fn hops_are_the_distance_on_the_grid() {
        let dims = [4_u32, 3, 2];
        for wraparound in [false, true] {
            let fabric = torus(&dims, wraparound);
            for (a, b) in (0..24).flat_map(|a| (0..24).map(move |b| (a, b))) {
                let mut stride = 1;
                let distance: u32 = dims
                    .iter()
                    .map(|n| {
                        let apart = (a / stride % n).abs_diff(b / stride % n);
                        stride *= n;
                        if wraparound { apart.min(n - apart) } else { apart }
                    })
                    .sum();
                assert_eq!(hops(&fabric, a, b), distance as usize, "{a} to {b}, wraparound {wraparound}");
            }
        }
    }

    #[test]
    fn the_first_dimension_is_walked_first_and_links_are_directed() {
        let fabric = torus(&[4, 4], true);
        let mut out = Vec::new();
        fabric.route(0, 0, 5, &mut out);
        assert_eq!(out, [fabric.link(0, 0, 0, true), fabric.link(0, 1, 1, true)]);
        out.clear();
        fabric.route(0, 0, 3, &mut out);
        assert_eq!(out, [fabric.link(0, 0, 0, false)], "around the end");
        out.clear();
        fabric.route(0, 0, 2, &mut out);
        assert_eq!(out, [fabric.link(0, 0, 0, true), fabric.link(0, 1, 0, true)], "upwards in a tie");
    }

    #[test]
    fn a_grid_of_another_size_is_refused() {
        let refused = Torus::new(1, 8, &[4, 4], true, BytesPerSec(1.0), &mut Links::default());
        assert_eq!(
            refused.err(),
            Some(TopologyError::TorusShape { dims: vec![4, 4], chips: 16, gpus_per_node: 8 })
        );
    }
}
