//! A second, independent reading of plans: every operation executed token by token, lanes advancing in a random order,
//! and every pair counted. It knows nothing of how the checker argues.
//!
//! An operation has a start and an end. What it writes is garbage in between, and what it reads must not change in
//! between; so whatever can go wrong by timing does go wrong in some order of events.

mod compute;
mod held;
mod scores;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::{
    Access, BlockId, Buf, LANES, MessageId, NO_OP, Op, OpKind, Plan, Rank, Role, Tensor,
};

use held::{Held, Point, restrict, together};

pub use held::Counts;

/// The results of an execution, by tensor.
pub type Results = BTreeMap<&'static str, Counts>;

pub fn name(tensor: Tensor) -> &'static str {
    match tensor {
        Tensor::Output | Tensor::LayerOutput => "o",
        Tensor::QueryGrad | Tensor::HiddenGrad => "dq",
        Tensor::KeyGrad => "dk",
        Tensor::ValueGrad => "dv",
        Tensor::Scores { .. } => "score rows",
        _ => "dk and dv",
    }
}

/// An operation under way: what it saw at its start.
struct Running {
    op: usize,
    reads: Vec<(usize, u64, Held)>,
    writes: Vec<(usize, u64)>,
}

/// The head of a lane, once it has started.
struct Head {
    running: Vec<Running>,
    moved: usize,
}

#[derive(Default)]
struct RankState {
    buffers: Vec<Held>,
    versions: Vec<u64>,
    /// Units (operations or groups) of each queue, and how far it is.
    queues: Vec<Vec<Vec<usize>>>,
    next: Vec<usize>,
    heads: Vec<Option<Head>>,
    ended: Vec<bool>,
}

struct Machine<'a> {
    plan: &'a Plan,
    pattern: Pattern,
    ranks: Vec<RankState>,
    /// Sends and receives that are started, by message: (rank, queue).
    posted: BTreeMap<(MessageId, bool), (usize, usize)>,
    moved: BTreeSet<MessageId>,
    /// Whether a softmax came over score rows that had not what they need.
    wrong_rows: Cell<bool>,
}

/// One possible next event.
#[derive(Clone, Copy)]
enum Step {
    Start(usize, usize),
    End(usize, usize),
    Move(MessageId),
}

/// Executes the plan in a random order. With `turns`, a rank's communication lanes run one after the other.
///
/// # Errors
/// If it gets stuck, or ends with something other than results in its outputs or inputs that are gone, or a softmax
/// came over score rows that had not all pairs of theirs, each once.
pub fn run(plan: &Plan, pattern: Pattern, seed: u64, turns: bool) -> Result<Results, String> {
    let (results, wrong_rows) = count(plan, pattern, seed, turns)?;
    if wrong_rows { Err("a softmax of incomplete rows".into()) } else { Ok(results) }
}

/// The same, but a softmax takes score rows as they are; whether one took wrong ones.
///
/// # Errors
/// The others of [`run`].
pub fn count(plan: &Plan, pattern: Pattern, seed: u64, turns: bool) -> Result<(Results, bool), String> {
    let ranks = plan.programs.iter().map(|program| {
        let buffers: Vec<Held> = program
            .buffers
            .iter()
            .map(|b| match b.role {
                Role::Input(block) | Role::Saved(block) => Held::Data(points(plan, block)),
                _ => Held::Nothing,
            })
            .collect();
        let queues = units(&program.ops, turns);
        RankState {
            versions: vec![0; buffers.len()],
            buffers,
            next: vec![0; queues.len()],
            heads: queues.iter().map(|_| None).collect(),
            queues,
            ended: vec![false; program.ops.len()],
        }
    });
    let (posted, moved, wrong_rows) = (BTreeMap::new(), BTreeSet::new(), Cell::new(false));
    let mut machine = Machine { plan, pattern, ranks: ranks.collect(), posted, moved, wrong_rows };
    let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    loop {
        let steps = machine.possible();
        if steps.is_empty() {
            let wrong_rows = machine.wrong_rows.get();
            return Ok((machine.finish()?, wrong_rows));
        }
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        machine.apply(steps[(random % steps.len() as u64) as usize]);
    }
}

fn units(ops: &[Op], turns: bool) -> Vec<Vec<Vec<usize>>> {
    let mut lanes: Vec<Vec<Vec<usize>>> = vec![Vec::new(); LANES];
    for (i, op) in ops.iter().enumerate() {
        let lane = &mut lanes[usize::from(op.lane.0)];
        match lane.last_mut() {
            Some(unit) if op.group != 0 && ops[unit[0]].group == op.group => unit.push(i),
            _ => lane.push(vec![i]),
        }
    }
    if turns {
        let mut all: Vec<Vec<usize>> = lanes.drain(1..).flatten().collect();
        all.sort_by_key(|unit| unit[0]);
        lanes.push(all);
    }
    lanes
}

fn points(plan: &Plan, block: BlockId) -> BTreeSet<Point> {
    tokens(plan, block).into_iter().flat_map(|x| heads(plan, block).map(move |h| (x, h))).collect()
}

/// The rows of a tensor of a block: tokens and heads; the gradient of the layer's input has those of dk and dv behind
/// those of dq.
fn rows(plan: &Plan, tensor: Tensor, block: BlockId) -> BTreeSet<Point> {
    let mut rows = points(plan, block);
    if tensor == Tensor::HiddenGrad {
        let kv_heads = plan.shape.heads..plan.shape.heads + plan.shape.kv_heads;
        rows.extend(tokens(plan, block).into_iter().flat_map(|x| kv_heads.clone().map(move |h| (x, h))));
    }
    rows
}

fn tokens(plan: &Plan, block: BlockId) -> Vec<u64> {
    let slots = &plan.block(block).slots;
    slots.iter().flat_map(|s| (s.from..s.to).map(|i| plan.layout.shard(s.rank).position(i))).collect()
}

fn heads(plan: &Plan, block: BlockId) -> std::ops::Range<u32> {
    let heads = plan.block(block).heads;
    heads.first..heads.first + heads.count
}

impl Machine<'_> {
    fn ops(&self, rank: usize) -> &[Op] {
        &self.plan.programs[rank].ops
    }

    fn possible(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (r, rank) in self.ranks.iter().enumerate() {
            for (q, queue) in rank.queues.iter().enumerate() {
                let Some(unit) = queue.get(rank.next[q]) else { continue };
                match &rank.heads[q] {
                    None => {
                        let met = |&op: &usize| {
                            let waits = self.ops(r)[op].waits;
                            waits.iter().all(|&w| w == NO_OP || rank.ended[w as usize])
                        };
                        if unit.iter().all(met) {
                            steps.push(Step::Start(r, q));
                        }
                    }
                    Some(head) => {
                        let transfers = unit.iter().filter(|&&op| self.ops(r)[op].kind.message().is_some());
                        if head.moved == transfers.count() {
                            steps.push(Step::End(r, q));
                        }
                    }
                }
            }
        }
        let ready = self
            .posted
            .keys()
            .filter(|(m, send)| *send && self.posted.contains_key(&(*m, false)) && !self.moved.contains(m));
        steps.extend(ready.map(|&(m, _)| Step::Move(m)));
        steps
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Start(rank, queue) => self.start(rank, queue),
            Step::End(rank, queue) => self.end(rank, queue),
            Step::Move(message) => self.transfer(message),
        }
    }

    fn start(&mut self, rank: usize, queue: usize) {
        let unit = self.ranks[rank].queues[queue][self.ranks[rank].next[queue]].clone();
        let mut running = Vec::new();
        for op in unit {
            let kind = self.ops(rank)[op].kind;
            let state = &mut self.ranks[rank];
            let (mut reads, mut writes) = (Vec::new(), Vec::new());
            kind.accesses(|Buf(b), access| {
                let b = usize::from(b);
                if access != Access::Write {
                    reads.push((
                        b,
                        state.versions[b] + u64::from(access == Access::Update),
                        state.buffers[b].clone(),
                    ));
                }
                if access != Access::Read {
                    state.versions[b] += 1;
                    state.buffers[b] = Held::Garbage;
                    writes.push((b, state.versions[b]));
                }
            });
            match kind {
                OpKind::Send { message, .. } => drop(self.posted.insert((message, true), (rank, queue))),
                OpKind::Recv { message, .. } => drop(self.posted.insert((message, false), (rank, queue))),
                _ => {}
            }
            running.push(Running { op, reads, writes });
        }
        self.ranks[rank].heads[queue] = Some(Head { running, moved: 0 });
    }

    fn transfer(&mut self, message: MessageId) {
        self.moved.insert(message);
        let m = self.plan.message(message);
        let ((from, from_queue), (to, to_queue)) =
            (self.posted[&(message, true)], self.posted[&(message, false)]);
        let of = |rank: usize, head: &Head| {
            let mine = |r: &&Running| self.plan.programs[rank].ops[r.op].kind.message() == Some(message);
            head.running.iter().position(|r| mine(&r)).unwrap()
        };
        let sender = self.ranks[from].heads[from_queue].as_mut().unwrap();
        sender.moved += 1;
        let sources = sender.running[of(from, sender)].reads.clone();
        let intact =
            sources.iter().all(|(buffer, version, _)| self.ranks[from].versions[*buffer] == *version);
        let held = together(sources.into_iter().map(|(_, _, held)| held));
        let wrong_place = from as Rank != m.from || to as Rank != m.to;
        let payload = if intact && !wrong_place {
            restrict(&held, &rows(self.plan, m.tensor, m.block))
        } else {
            Held::Garbage
        };
        let receiver = self.ranks[to].heads[to_queue].as_mut().unwrap();
        receiver.moved += 1;
        let index = of(to, receiver);
        receiver.running[index].reads.push((usize::MAX, 0, payload));
    }

    fn end(&mut self, rank: usize, queue: usize) {
        let head = self.ranks[rank].heads[queue].take().unwrap();
        for running in &head.running {
            let state = &self.ranks[rank];
            let changed = running.reads.iter().any(|&(b, v, _)| b != usize::MAX && state.versions[b] != v);
            let results = if changed { None } else { self.compute(rank, running) };
            let state = &mut self.ranks[rank];
            for (i, &(b, version)) in running.writes.iter().enumerate() {
                let alone = state.versions[b] == version;
                state.versions[b] += 1;
                let result = results.as_ref().filter(|_| alone).map(|r| r[i].clone());
                state.buffers[b] = result.unwrap_or(Held::Garbage);
            }
            state.ended[running.op] = true;
        }
        self.ranks[rank].next[queue] += 1;
    }

    fn finish(self) -> Result<Results, String> {
        // What is stuck elsewhere can have left a rank that ended without its results.
        for (r, rank) in self.ranks.iter().enumerate() {
            if let Some(op) = rank.ended.iter().position(|&e| !e) {
                return Err(format!("stuck: rank {r} never ends op {op}"));
            }
        }
        let mut results = Results::new();
        for (r, rank) in self.ranks.iter().enumerate() {
            for (i, buffer) in self.plan.programs[r].buffers.iter().enumerate() {
                match (buffer.role, &rank.buffers[i]) {
                    (Role::Input(block) | Role::Saved(block), held)
                        if *held != Held::Data(points(self.plan, block)) =>
                    {
                        return Err(format!("rank {r} buffer {i}: the input is gone"));
                    }
                    (Role::Output(block), held) => {
                        let part = restrict(held, &rows(self.plan, buffer.tensor, block));
                        let Held::Result(part) = part else {
                            return Err(format!("rank {r} buffer {i}: no result"));
                        };
                        let query_heads = self.plan.shape.heads;
                        for ((x, h), row) in part {
                            let (name, point) = if h < query_heads || buffer.tensor != Tensor::HiddenGrad {
                                (name(buffer.tensor), (x, h))
                            } else {
                                ("dk and dv", (x, h - query_heads))
                            };
                            let all = results.entry(name).or_default();
                            if all.insert(point, row).is_some() {
                                return Err(format!("two results for {point:?}"));
                            }
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(results)
    }
}
