//! GPUs around a switch that never blocks: each has one port, so a transfer crosses the sender's way out and the
//! receiver's way in.

use super::{LinkId, Links};
use crate::units::BytesPerSec;

#[derive(Debug, Clone)]
pub(super) struct Nvswitch {
    gpus: u32,
    egress: LinkId,
    ingress: LinkId,
}

impl Nvswitch {
    pub fn new(nodes: u32, gpus: u32, port: BytesPerSec, links: &mut Links) -> Self {
        let egress = links.add(nodes * gpus, port);
        let ingress = links.add(nodes * gpus, port);
        Self { gpus, egress, ingress }
    }

    pub fn route(&self, node: u32, from: u32, to: u32, out: &mut Vec<LinkId>) {
        let first = node * self.gpus;
        out.extend([self.egress + first + from, self.ingress + first + to]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_each_way_and_nothing_else_is_shared() {
        let mut links = Links::default();
        let fabric = Nvswitch::new(2, 4, BytesPerSec(450e9), &mut links);
        assert_eq!(links.capacities, vec![BytesPerSec(450e9); 16]);
        let route = |node, from, to| {
            let mut out = Vec::new();
            fabric.route(node, from, to, &mut out);
            out
        };
        assert_eq!(route(0, 1, 2)[0], route(0, 1, 3)[0], "one way out of a GPU");
        assert_eq!(route(0, 1, 2)[1], route(0, 3, 2)[1], "one way into a GPU");
        assert!(route(0, 1, 2).iter().all(|l| !route(0, 2, 1).contains(l)), "both ways at once");
        assert!(route(0, 1, 2).iter().all(|l| !route(1, 1, 2).contains(l)), "nodes apart");
    }
}
