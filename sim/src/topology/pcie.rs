//! A PCIe box: GPUs below switches, switches below the host bridge. Peers below one switch meet there; others cross both
//! switches' uplinks, which the GPUs below them share.

use super::{LinkId, Links, TopologyError};
use crate::units::BytesPerSec;

#[derive(Debug, Clone)]
pub(super) struct Pcie {
    gpus: u32,
    gpus_per_switch: u32,
    switches: u32,
    gpu_up: LinkId,
    gpu_down: LinkId,
    switch_up: LinkId,
    switch_down: LinkId,
}

impl Pcie {
    /// `rates`: a GPU's lanes, and a switch's way to the host bridge.
    pub fn new(
        nodes: u32,
        gpus: u32,
        gpus_per_switch: u32,
        rates: (BytesPerSec, BytesPerSec),
        links: &mut Links,
    ) -> Result<Self, TopologyError> {
        if gpus_per_switch == 0 {
            return Err(TopologyError::NotPositive("gpus_per_switch"));
        }
        let switches = gpus.div_ceil(gpus_per_switch);
        let gpu_up = links.add(nodes * gpus, rates.0);
        let gpu_down = links.add(nodes * gpus, rates.0);
        let switch_up = links.add(nodes * switches, rates.1);
        let switch_down = links.add(nodes * switches, rates.1);
        Ok(Self { gpus, gpus_per_switch, switches, gpu_up, gpu_down, switch_up, switch_down })
    }

    pub fn route(&self, node: u32, from: u32, to: u32, out: &mut Vec<LinkId>) {
        let through_host = from / self.gpus_per_switch != to / self.gpus_per_switch;
        self.leave(node, from, through_host, out);
        self.enter(node, to, through_host, out);
    }

    /// From a GPU to its switch, and on to the host bridge.
    pub fn leave(&self, node: u32, gpu: u32, to_host: bool, out: &mut Vec<LinkId>) {
        out.push(self.gpu_up + node * self.gpus + gpu);
        if to_host {
            out.push(self.switch_up + self.switch(node, gpu));
        }
    }

    /// From the host bridge, or only from its switch, to a GPU.
    pub fn enter(&self, node: u32, gpu: u32, from_host: bool, out: &mut Vec<LinkId>) {
        if from_host {
            out.push(self.switch_down + self.switch(node, gpu));
        }
        out.push(self.gpu_down + node * self.gpus + gpu);
    }

    fn switch(&self, node: u32, gpu: u32) -> u32 {
        node * self.switches + gpu / self.gpus_per_switch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn box_of(gpus: u32, per_switch: u32) -> (Pcie, Links) {
        let mut links = Links::default();
        let rates = (BytesPerSec(32e9), BytesPerSec(25e9));
        (Pcie::new(1, gpus, per_switch, rates, &mut links).unwrap(), links)
    }

    fn route(fabric: &Pcie, from: u32, to: u32) -> Vec<LinkId> {
        let mut out = Vec::new();
        fabric.route(0, from, to, &mut out);
        out
    }

    #[test]
    fn peers_below_one_switch_do_not_cross_the_host_bridge() {
        let (fabric, links) = box_of(8, 4);
        assert_eq!(route(&fabric, 0, 3).len(), 2);
        let far = route(&fabric, 0, 4);
        let rates: Vec<f64> = far.iter().map(|&l| links.capacities[l as usize].0 / 1e9).collect();
        assert_eq!(rates, [32.0, 25.0, 25.0, 32.0]);
    }

    #[test]
    fn gpus_below_a_switch_share_its_uplink_and_directions_do_not() {
        let (fabric, _) = box_of(8, 4);
        assert_eq!(route(&fabric, 0, 4)[1], route(&fabric, 3, 7)[1]);
        assert_ne!(route(&fabric, 0, 4)[1], route(&fabric, 4, 0)[1]);
        assert!(route(&fabric, 0, 4).iter().all(|l| !route(&fabric, 4, 0).contains(l)));
    }

    #[test]
    fn a_last_switch_may_have_fewer_gpus() {
        let (fabric, links) = box_of(5, 2);
        let used: Vec<LinkId> = (0..5)
            .flat_map(|a| (0..5).filter(move |b| *b != a).map(move |b| (a, b)))
            .flat_map(|(a, b)| route(&fabric, a, b))
            .collect();
        assert_eq!(used.iter().max().map(|l| *l as usize + 1), Some(links.capacities.len()));
        assert!(matches!(
            Pcie::new(1, 4, 0, (BytesPerSec(1.0), BytesPerSec(1.0)), &mut Links::default()),
            Err(TopologyError::NotPositive("gpus_per_switch"))
        ));
    }
}
