//! Max-min fair rates: no flow can get more without taking it from one that has as little or less.
//!
//! Progressive filling (Bertsekas and Gallager, Data Networks, section 6.5.2): all rates rise together; when a link is
//! full its flows stop, and so does a flow that reaches its own limit. A flow so either runs at its limit or crosses a
//! full link on which no other flow has more. Flows that stop together take the same from a link one by one, so their
//! order changes nothing, not even the rounding.

/// Flows and the links that they cross, by index, and the rates that are fair to them.
#[derive(Debug, Clone, Default)]
pub(super) struct Sharing {
    capacities: Vec<f64>,
    limits: Vec<f64>,
    /// Links of all flows, flow by flow.
    crossed: Vec<u32>,
    /// Where each flow's links end in `crossed`.
    ends: Vec<u32>,
    rates: Vec<f64>,
    /// Of each link: what is left for flows whose rates still rise, how many those are, whether none is left.
    left: Vec<f64>,
    rising: Vec<u32>,
    full: Vec<bool>,
    open: Vec<u32>,
}

impl Sharing {
    /// Starts over with links of these capacities and no flow.
    pub fn reset(&mut self, capacities: impl IntoIterator<Item = f64>) {
        self.capacities.clear();
        self.capacities.extend(capacities);
        self.limits.clear();
        self.crossed.clear();
        self.ends.clear();
    }

    /// Adds a flow that can use at most `limit` and crosses `links`.
    pub fn add_flow(&mut self, limit: f64, links: impl IntoIterator<Item = u32>) {
        self.limits.push(limit);
        self.crossed.extend(links);
        self.ends.push(self.crossed.len() as u32);
    }

    /// The rate of each flow.
    pub fn fill(&mut self) -> &[f64] {
        self.start();
        let mut open = std::mem::take(&mut self.open);
        while !open.is_empty() {
            let level = self.next_level(&open);
            self.mark_full(level);
            open.retain(|&flow| !self.stop(flow as usize, level));
        }
        self.open = open;
        &self.rates
    }

    fn start(&mut self) {
        let (links, flows) = (self.capacities.len(), self.limits.len());
        self.rates.clear();
        self.rates.resize(flows, 0.0);
        self.left.clone_from(&self.capacities);
        self.full.clear();
        self.full.resize(links, false);
        self.rising.clear();
        self.rising.resize(links, 0);
        for &link in &self.crossed {
            self.rising[link as usize] += 1;
        }
        self.open.clear();
        self.open.extend(0..flows as u32);
    }

    /// The rate at which the next link is full or the next flow at its limit.
    fn next_level(&self, open: &[u32]) -> f64 {
        let limits = open.iter().map(|&flow| self.limits[flow as usize]);
        let shares = (0..self.left.len()).filter_map(|link| self.share(link));
        limits.chain(shares).fold(f64::INFINITY, f64::min)
    }

    fn share(&self, link: usize) -> Option<f64> {
        let rising = self.rising[link];
        (rising > 0).then(|| self.left[link].max(0.0) / f64::from(rising))
    }

    /// Marks the links that are full at `level`, before any flow leaves them.
    fn mark_full(&mut self, level: f64) {
        for link in 0..self.left.len() {
            self.full[link] = self.share(link).is_some_and(|share| share <= level);
        }
    }

    /// Fixes the rate of `flow` if it stops at `level`.
    fn stop(&mut self, flow: usize, level: f64) -> bool {
        let from = if flow == 0 { 0 } else { self.ends[flow - 1] as usize };
        let links = &self.crossed[from..self.ends[flow] as usize];
        let stops = self.limits[flow] <= level || links.iter().any(|&link| self.full[link as usize]);
        if stops {
            self.rates[flow] = level;
            for &link in links {
                self.rising[link as usize] -= 1;
                if level.is_finite() {
                    self.left[link as usize] -= level;
                }
            }
        }
        stops
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rates(capacities: &[f64], flows: &[(f64, &[u32])]) -> Vec<f64> {
        let mut sharing = Sharing::default();
        sharing.reset(capacities.iter().copied());
        for (limit, links) in flows {
            sharing.add_flow(*limit, links.iter().copied());
        }
        sharing.fill().to_vec()
    }

    const FREE: f64 = f64::INFINITY;

    #[test]
    fn one_link_is_shared_evenly_and_what_one_leaves_goes_to_the_others() {
        assert_eq!(rates(&[12.0], &[(FREE, &[0]), (FREE, &[0]), (FREE, &[0])]), [4.0, 4.0, 4.0]);
        assert_eq!(rates(&[12.0], &[(2.0, &[0]), (FREE, &[0]), (FREE, &[0])]), [2.0, 5.0, 5.0]);
        assert_eq!(rates(&[12.0], &[(5.0, &[0])]), [5.0]);
    }

    /// Bertsekas and Gallager's parking lot: one long flow and a short one on each link.
    #[test]
    fn a_long_flow_gets_the_share_of_its_narrowest_link() {
        let flows: [(f64, &[u32]); 5] =
            [(FREE, &[0, 1, 2]), (FREE, &[0]), (FREE, &[1]), (FREE, &[1]), (FREE, &[2])];
        // Link 1 has three flows: 10 each. Links 0 and 2 give the rest to their short flows.
        assert_eq!(rates(&[30.0, 30.0, 50.0], &flows), [10.0, 20.0, 10.0, 10.0, 40.0]);
    }

    #[test]
    fn two_levels_of_bottlenecks() {
        let flows: [(f64, &[u32]); 4] = [(FREE, &[0]), (FREE, &[0, 1]), (FREE, &[1]), (7.0, &[1])];
        // Link 0: 3 and 3; link 1 has 17 left for two flows, one of which stops at 7.
        assert_eq!(rates(&[6.0, 20.0], &flows), [3.0, 3.0, 10.0, 7.0]);
    }

    #[test]
    fn ideal_links_and_no_links() {
        assert_eq!(rates(&[FREE], &[(FREE, &[0]), (5.0, &[0])]), [FREE, 5.0]);
        assert_eq!(rates(&[], &[(3.0, &[]), (FREE, &[])]), [3.0, FREE]);
    }

    proptest! {
        /// The definition: each flow runs at its limit, or crosses a saturated link on which no flow has more.
        #[test]
        fn every_flow_is_at_its_limit_or_has_a_bottleneck(
            capacities in prop::collection::vec(1u32..100, 1..8),
            flows in prop::collection::vec((1u32..60, prop::collection::btree_set(0u32..8, 1..5)), 1..14)
        ) {
            let links = capacities.len() as u32;
            let capacities: Vec<f64> = capacities.into_iter().map(f64::from).collect();
            let flows: Vec<(f64, Vec<u32>)> = flows.into_iter().map(|(limit, crossed)| {
                let mut crossed: Vec<u32> = crossed.into_iter().map(|l| l % links).collect();
                crossed.sort_unstable();
                crossed.dedup();
                (f64::from(limit), crossed)
            }).collect();
            let borrowed: Vec<(f64, &[u32])> = flows.iter().map(|(l, c)| (*l, c.as_slice())).collect();
            let rates = rates(&capacities, &borrowed);
            let on = |link: u32| flows.iter().zip(&rates).filter(move |((_, c), _)| c.contains(&link)).map(|(_, r)| *r);
            for (link, capacity) in capacities.iter().enumerate() {
                prop_assert!(on(link as u32).sum::<f64>() <= capacity * (1.0 + 1e-12));
            }
            for ((limit, crossed), &rate) in flows.iter().zip(&rates) {
                prop_assert!(rate <= *limit);
                let bottleneck = |&&link: &&u32| {
                    let used: f64 = on(link).sum();
                    used >= capacities[link as usize] * (1.0 - 1e-12) && on(link).all(|r| r <= rate * (1.0 + 1e-12))
                };
                prop_assert!(rate == *limit || crossed.iter().any(|l| bottleneck(&l)), "{:?}", rates);
            }
        }
    }
}
