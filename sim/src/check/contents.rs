//! What every buffer holds, operation by operation: whose tokens, and which attention calls have gone into it.
//!
//! Contributions are nodes of a growing graph, so that sending, receiving and adding copy one index.

mod projections;
mod scores;

use scores::refuse;

use super::messages::{Ends, at};
use super::order::Event;
use super::regions::{RegionId, Regions, heads_end};
use super::structure::{BACKWARD_QUERY, PREPROCESSED};
use super::terms::{At, Place, tensor_name};
use super::violation::{Findings, Violation};
use crate::plan::{BlockId, Buf, Buffer, Bufs, Heads, OpId, OpKind, Part, Plan, Rank, Role, Tensor};

/// Index of a node of the graph of contributions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeId(u32);

/// What went into a result.
#[derive(Debug, Clone, Copy)]
pub(super) enum Node {
    /// One attention call.
    Call(Rank, OpId),
    /// What was there, and what was added to those tokens of it that `added` covers.
    Sum {
        /// Before.
        base: NodeId,
        /// Added.
        added: NodeId,
        /// Where.
        region: RegionId,
    },
}

/// What a buffer holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Content {
    /// Whose tokens, which heads.
    pub region: RegionId,
    /// What has gone into it; `None` for plain tensors.
    pub node: Option<NodeId>,
    /// Of score rows, whether a softmax has been over them; of a state, whether one has begun it.
    pub normalised: bool,
}

impl Content {
    /// A tensor into which nothing goes.
    fn plain(region: RegionId) -> Self {
        Self { region, node: None, normalised: false }
    }
}

/// The buffers of all ranks after an execution.
pub(super) struct Machine<'a> {
    plan: &'a Plan,
    /// Regions met on the way.
    pub regions: Regions,
    nodes: Vec<Node>,
    buffers: Vec<Vec<Option<Content>>>,
    /// What had gone into rows when a softmax came over them.
    completed: Vec<(NodeId, RegionId)>,
}

/// Executes the events on contents.
pub(super) fn execute<'a>(
    plan: &'a Plan,
    ends: &[Ends],
    events: &[Event],
    found: &mut Findings,
) -> Machine<'a> {
    let mut machine = Machine::new(plan);
    for &event in events {
        if found.is_full() {
            break;
        }
        match event {
            Event::Kernel(rank, op) => machine.kernel(at(plan, rank, op), found),
            Event::Moved(message) => {
                let (m, ends) = (plan.message(message), ends[message as usize]);
                machine.transfer(at(plan, m.from, ends.send), at(plan, m.to, ends.recv), found);
            }
        }
    }
    if found.is_empty() {
        machine.check_outputs(found);
    }
    machine
}

impl<'a> Machine<'a> {
    fn new(plan: &'a Plan) -> Self {
        let regions = Regions::new(plan);
        let initial = |b: &Buffer| {
            let normalised = matches!(b.tensor, Tensor::Scores { .. });
            b.role.initial().map(|block| Content { normalised, ..Content::plain(regions.of_block(block)) })
        };
        let buffers = plan.programs.iter().map(|p| p.buffers.iter().map(initial).collect()).collect();
        Self { plan, regions, nodes: Vec::new(), buffers, completed: Vec::new() }
    }

    /// A node of the graph of contributions.
    pub fn node(&self, id: NodeId) -> Node {
        self.nodes[id.0 as usize]
    }

    /// What a buffer holds.
    pub fn content(&self, rank: Rank, buffer: Buf) -> Option<Content> {
        self.buffers[rank as usize][usize::from(buffer.0)]
    }

    fn push(&mut self, node: Node) -> NodeId {
        self.nodes.push(node);
        NodeId(self.nodes.len() as u32 - 1)
    }

    fn place(&self, rank: Rank, buffer: Buf) -> Place {
        let tensor = self.plan.programs[rank as usize].buffers[usize::from(buffer.0)].tensor;
        Place { rank, buffer, tensor }
    }

    fn transfer(&mut self, sent: At, received: At, found: &mut Findings) {
        let (OpKind::Send { message, buffer: from }, OpKind::Recv { buffer: to, .. }) =
            (self.kind(sent), self.kind(received))
        else {
            return;
        };
        let (message, region) =
            (self.plan.message(message), self.regions.of_block(self.plan.message(message).block));
        let content = if message.tensor.is_result() {
            let Some(content) = self.held(sent, from, region, found) else { return };
            Content { region, ..content }
        } else {
            if !self.held_parts(sent, from, message.tensor.parts(), region, found) {
                return;
            }
            Content::plain(region)
        };
        self.write(received, to, content, found);
    }

    fn kind(&self, at: At) -> OpKind {
        self.plan.programs[at.rank as usize].ops[at.op as usize].kind
    }

    fn kernel(&mut self, at: At, found: &mut Findings) {
        match self.kind(at) {
            OpKind::Attend { q, kv, state, q_block, kv_block, init, .. } => {
                self.operands(at, (q, q_block, &[Part::Query]), (kv, kv_block), found);
                let region = self.regions.of_block(q_block);
                if !init && self.is_normalised(at, state) == Some(true) {
                    refuse(at, "it adds to a state that a softmax has begun", found);
                }
                self.add_call(at, state, region, init, found);
            }
            OpKind::AttendBackward { .. } => self.attend_backward(at, found),
            OpKind::Preprocess { q, delta, block } => {
                let region = self.regions.of_block(block);
                self.held_parts(at, q, PREPROCESSED, region, found);
                self.write(at, delta, Content::plain(region), found);
            }
            OpKind::Merge { from, into } | OpKind::Accumulate { from, into } => {
                self.sum(at, from, into, found);
            }
            OpKind::Finish { state, out } => match self.content(at.rank, state) {
                Some(content) => self.write(at, out, content, found),
                None => self.report_empty(at, state, "a result to normalise".into(), found),
            },
            OpKind::Project(projection) => self.project(at, &projection, found),
            OpKind::Scores(op) => self.scores(at, &op, found),
            OpKind::Send { .. } | OpKind::Recv { .. } => {}
        }
    }

    fn attend_backward(&mut self, at: At, found: &mut Findings) {
        let OpKind::AttendBackward {
            q,
            delta,
            kv,
            dq,
            dkv,
            q_block,
            kv_block,
            dkv_block,
            init_dq,
            init_dkv,
            ..
        } = self.kind(at)
        else {
            return;
        };
        self.operands(at, (q, q_block, BACKWARD_QUERY), (kv, kv_block), found);
        let (queries, keys) = (self.regions.of_block(q_block), self.regions.of_block(kv_block));
        self.held(at, delta.into(), queries, found);
        self.add_call(at, dq, queries, init_dq, found);
        let covered = self.regions.of_block(dkv_block);
        if !self.regions.contains(covered, keys) {
            let (needed, held) = (self.describe(dkv.first, at, keys), self.regions.describe(covered));
            let place = self.place(at.rank, dkv.first);
            found.push(Violation::WrongContent { at, place, needed, held });
        }
        for (i, buffer) in dkv.iter().enumerate() {
            let part = self.regions.part(self.plan, dkv_block, i as u16, dkv.count);
            self.add_call(at, buffer, part, init_dkv, found);
        }
    }

    /// Checks the queries, keys and heads of an attention call.
    fn operands(&self, at: At, q: (Bufs, BlockId, &[Part]), kv: (Bufs, BlockId), found: &mut Findings) {
        self.held_parts(at, q.0, q.2, self.regions.of_block(q.1), found);
        self.held(at, kv.0, self.regions.of_block(kv.1), found);
        self.matching_heads(at, (q.1, kv.1), found);
    }

    fn matching_heads(&self, at: At, (q, kv): (BlockId, BlockId), found: &mut Findings) {
        let (queries, keys) = (self.plan.block(q).heads, self.plan.block(kv).heads);
        let group = self.plan.shape.group();
        let first = queries.first / group;
        let needed = Heads { first, count: heads_end(queries).div_ceil(group) - first };
        if keys != needed {
            let show = |h: Heads| format!("{}..{}", h.first, heads_end(h));
            let (queries, keys, needed) = (show(queries), show(keys), show(needed));
            found.push(Violation::Heads { at, queries, keys, needed, group });
        }
    }

    /// Adds the call `at` to a result, which must cover `region`.
    fn add_call(&mut self, at: At, buffer: Buf, region: RegionId, init: bool, found: &mut Findings) {
        let call = self.push(Node::Call(at.rank, at.op));
        if init {
            self.write(at, buffer, Content { node: Some(call), ..Content::plain(region) }, found);
        } else if let Some(content) = self.held(at, buffer.into(), region, found) {
            self.add(at, buffer, content, call, region);
        }
    }

    fn add(&mut self, at: At, buffer: Buf, content: Content, added: NodeId, region: RegionId) {
        let node = content.node.map(|base| self.push(Node::Sum { base, added, region })).or(Some(added));
        self.buffers[at.rank as usize][usize::from(buffer.0)] = Some(Content { node, ..content });
    }

    fn sum(&mut self, at: At, from: Buf, into: Buf, found: &mut Findings) {
        let Some(added) = self.content(at.rank, from) else {
            return self.report_empty(at, from, "what is to be added".into(), found);
        };
        let Some(content) = self.content(at.rank, into) else {
            return self.report_empty(at, into, "what is to be added to".into(), found);
        };
        let merges = matches!(self.kind(at), OpKind::Merge { .. });
        if merges && (content.normalised || added.normalised) {
            refuse(at, "it merges a state that a softmax has begun", found);
        }
        if merges && content.region != added.region {
            let needed = self.describe(from, at, content.region);
            let (place, held) = (self.place(at.rank, from), self.regions.describe(added.region));
            found.push(Violation::WrongContent { at, place, needed, held });
        }
        if let Some(node) = added.node {
            self.add(at, into, content, node, added.region);
        }
    }

    /// What the first of `bufs` holds, if together they hold all of `needed`.
    fn held(&self, at: At, bufs: Bufs, needed: RegionId, found: &mut Findings) -> Option<Content> {
        self.held_in(at, bufs.first, bufs.iter(), needed, found)
    }

    /// Whether `bufs` together hold all of `needed` of each part; a buffer may have several, or one.
    fn held_parts(&self, at: At, bufs: Bufs, parts: &[Part], needed: RegionId, found: &mut Findings) -> bool {
        let has = |b: &Buf, part| self.place(at.rank, *b).tensor.parts().contains(part);
        parts.iter().all(|part| {
            let with = bufs.iter().filter(|b| has(b, part));
            self.held_in(at, bufs.first, with, needed, found).is_some()
        })
    }

    fn held_in(
        &self,
        at: At,
        named: Buf,
        bufs: impl Iterator<Item = Buf>,
        needed: RegionId,
        found: &mut Findings,
    ) -> Option<Content> {
        let mut regions = Vec::new();
        let mut first = None;
        for buffer in bufs {
            let Some(content) = self.content(at.rank, buffer) else {
                self.report_empty(at, buffer, self.describe(buffer, at, needed), found);
                return None;
            };
            first = first.or(Some(content));
            regions.push(content.region);
        }
        if self.regions.cover(&regions, needed) {
            return first;
        }
        let held: Vec<String> = regions.iter().map(|&r| self.regions.describe(r)).collect();
        let (place, needed) = (self.place(at.rank, named), self.describe(named, at, needed));
        found.push(Violation::WrongContent { at, place, needed, held: held.join(" and ") });
        None
    }

    fn write(&mut self, at: At, buffer: Buf, content: Content, found: &mut Findings) {
        let held = &self.plan.programs[at.rank as usize].buffers[usize::from(buffer.0)];
        let (tokens, heads) = self.regions.size(content.region);
        let (bytes, room) = (held.tensor.bytes(&self.plan.shape, tokens, heads), held.bytes);
        if held.role.initial().is_some() {
            found.push(Violation::InputOverwritten { at, place: self.place(at.rank, buffer) });
        }
        if bytes > room {
            found.push(Violation::TooLarge { at, place: self.place(at.rank, buffer), bytes, room });
        }
        self.buffers[at.rank as usize][usize::from(buffer.0)] = Some(content);
    }

    fn describe(&self, buffer: Buf, at: At, region: RegionId) -> String {
        format!("{} of {}", tensor_name(self.place(at.rank, buffer).tensor), self.regions.describe(region))
    }

    fn report_empty(&self, at: At, buffer: Buf, needed: String, found: &mut Findings) {
        found.push(Violation::Uninitialised { at, place: self.place(at.rank, buffer), needed });
    }

    fn check_outputs(&self, found: &mut Findings) {
        for (rank, program) in self.plan.programs.iter().enumerate() {
            for (i, buffer) in program.buffers.iter().enumerate() {
                let Role::Output(block) = buffer.role else { continue };
                let (needed, buf) = (self.regions.of_block(block), Buf(i as u16));
                let held = self.content(rank as Rank, buf).map(|c| c.region);
                if !held.is_some_and(|held| self.regions.contains(held, needed)) {
                    let held = held.map_or("nothing".into(), |held| self.regions.describe(held));
                    let (place, needed) = (self.place(rank as Rank, buf), self.regions.describe(needed));
                    found.push(Violation::NoResult { place, needed, held });
                }
            }
        }
    }
}
