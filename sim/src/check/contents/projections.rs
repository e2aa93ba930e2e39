//! Projections: what a rank's heads give to all heads' width.
//!
//! A part of the layer's output claims all heads, but what went into it are attention calls of the rank's own heads; the
//! proof of coverage looks at those, so a head of which no part was added is missing. A part of the input's gradient
//! holds dq, and dk and dv, of one call, which stands for all of them.

use super::{Content, Machine, Node, NodeId};
use crate::check::regions::{RegionId, slots_contain};
use crate::check::terms::At;
use crate::check::violation::{Findings, Violation};
use crate::plan::{BlockId, Buf, Bufs, OpId, Projection, Rank};

impl Machine<'_> {
    pub(super) fn project(&mut self, at: At, projection: &Projection, found: &mut Findings) {
        match *projection {
            Projection::Inputs { input, hidden, q, q_block, kv, kv_block } => {
                let (hidden, queries) = (self.regions.of_block(hidden), self.regions.of_block(q_block));
                self.held(at, input, hidden, found);
                self.covers(at, input.first, hidden, queries, found);
                let keys = self.regions.of_block(kv_block);
                self.write(at, q, Content::plain(queries), found);
                self.write(at, kv, Content::plain(keys), found);
            }
            Projection::Output { out, parts, hidden } => {
                if let Some(node) = self.projected(at, out, hidden, found) {
                    self.write_parts(at, parts, hidden, node, found);
                }
            }
            Projection::Gradients { dq, dkv, parts, hidden } => {
                let nodes = (self.projected(at, dq, hidden, found), self.projected(at, dkv, hidden, found));
                let (Some(query), Some(key)) = nodes else { return };
                if self.call(query).is_some() && self.call(query) == self.call(key) {
                    self.write_parts(at, parts, hidden, query, found);
                } else {
                    let what = "dq, dk and dv are not those of one attention call".into();
                    found.push(Violation::Op { at, what });
                }
            }
        }
    }

    /// What went into a result of the rank's heads, if it has all tokens of `hidden`.
    fn projected(&self, at: At, buffer: Buf, hidden: BlockId, found: &mut Findings) -> Option<NodeId> {
        let all = self.regions.of_block(hidden);
        let Some(content) = self.content(at.rank, buffer) else {
            self.report_empty(at, buffer, "what is to be projected".into(), found);
            return None;
        };
        let slots = |region: RegionId| &self.regions.get(region).slots;
        if !slots_contain(slots(content.region), slots(all)) {
            self.covers(at, buffer, content.region, all, found);
            return None;
        }
        content.node
    }

    fn call(&self, node: NodeId) -> Option<(Rank, OpId)> {
        match self.node(node) {
            Node::Call(rank, op) => Some((rank, op)),
            Node::Sum { .. } => None,
        }
    }

    fn covers(&self, at: At, buffer: Buf, held: RegionId, needed: RegionId, found: &mut Findings) {
        if !self.regions.contains(held, needed) {
            let (place, needed) = (self.place(at.rank, buffer), self.describe(buffer, at, needed));
            found.push(Violation::WrongContent { at, place, needed, held: self.regions.describe(held) });
        }
    }

    fn write_parts(&mut self, at: At, parts: Bufs, hidden: BlockId, node: NodeId, found: &mut Findings) {
        for (i, buffer) in parts.iter().enumerate() {
            let region = self.regions.part(self.plan, hidden, i as u16, parts.count);
            self.write(at, buffer, Content { node: Some(node), ..Content::plain(region) }, found);
        }
    }
}
