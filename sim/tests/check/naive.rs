//! A second, independent reading of plans: every operation executed token by token, lanes advancing in a random order,
//! and every pair counted. It knows nothing of how the checker argues.
//!
//! An operation has a start and an end. What it writes is garbage in between, and what it reads must not change in
//! between; so whatever can go wrong by timing does go wrong in some order of events.

mod scores;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::{
    Access, BlockId, Buf, Bufs, LANES, MaskId, MessageId, NO_OP, Op, OpKind, Plan, Projection, Rank, Role,
    Tensor,
};

use crate::judge::allows;

/// A token and a head.
pub type Point = (u64, u32);
/// For each token and head of a result, how often each partner went into it: keys with their kv head for o and dq,
/// queries with their head for dk and dv.
pub type Counts = BTreeMap<Point, BTreeMap<Point, u32>>;

#[derive(Clone, Debug, PartialEq)]
enum Held {
    Nothing,
    Garbage,
    Data(BTreeSet<Point>),
    Result(Counts),
    /// A state that a softmax has begun.
    Begun(Counts),
}

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

    /// What an operation writes, in the order of its writes; `None` if it does not find what it needs.
    fn compute(&self, rank: usize, running: &Running) -> Option<Vec<Held>> {
        let reads: Vec<&Held> = running.reads.iter().map(|(_, _, held)| held).collect();
        match self.ops(rank)[running.op].kind {
            OpKind::Attend { q, q_block, kv_block, mask, init, .. } => {
                let (queries, inputs) = (usize::from(q.count), reads.len() - usize::from(!init));
                self.have_parts(rank, &running.reads[..queries], q_block, &["q"])?;
                self.have(&reads[queries..inputs], kv_block)?;
                let mut state = if init { zeros(points(self.plan, q_block)) } else { counts(reads[inputs])? };
                self.attend(q_block, kv_block, mask, |q, k| {
                    *state.get_mut(&q)?.entry(k).or_default() += 1;
                    Some(())
                })?;
                points(self.plan, q_block)
                    .iter()
                    .all(|p| state.contains_key(p))
                    .then_some(vec![Held::Result(state)])
            }
            OpKind::AttendBackward { .. } => self.attend_backward(rank, running, &reads),
            OpKind::Preprocess { block, .. } => {
                self.have_parts(rank, &running.reads, block, &["o", "do"])?;
                Some(vec![Held::Data(points(self.plan, block))])
            }
            OpKind::Merge { .. } => {
                let (from, into) = (counts(reads[0])?, counts(reads[1])?);
                from.keys().eq(into.keys()).then(|| vec![Held::Result(sum(&from, into))])
            }
            OpKind::Accumulate { .. } => Some(vec![Held::Result(sum(&counts(reads[0])?, counts(reads[1])?))]),
            OpKind::Finish { .. } => match reads[0] {
                Held::Result(counts) | Held::Begun(counts) => Some(vec![Held::Result(counts.clone())]),
                _ => None,
            },
            OpKind::Project(projection) => self.project(&projection, &reads),
            OpKind::Scores(op) => self.scores(rank, &op, running, &reads),
            OpKind::Send { .. } => Some(Vec::new()),
            OpKind::Recv { .. } => Some(vec![reads[0].clone()]),
        }
    }

    fn attend_backward(&self, rank: usize, running: &Running, reads: &[&Held]) -> Option<Vec<Held>> {
        let OpKind::AttendBackward {
            q, kv, dkv, q_block, kv_block, dkv_block, mask, init_dq, init_dkv, ..
        } = self.ops(rank)[running.op].kind
        else {
            return None;
        };
        let (qs, kvs) = (usize::from(q.count), usize::from(kv.count));
        self.have_parts(rank, &running.reads[..qs], q_block, &["q", "do", "lse"])?;
        self.have(&reads[qs..=qs], q_block)?;
        self.have(&reads[qs + 1..=qs + kvs], kv_block)?;
        let mut rest = reads[qs + 1 + kvs..].iter();
        let mut dq = if init_dq { zeros(points(self.plan, q_block)) } else { counts(rest.next()?)? };
        let n = usize::from(dkv.count);
        let mut parts = Vec::new();
        for part in self.shares(dkv_block, n)? {
            let part: BTreeSet<Point> =
                part.iter().flat_map(|&x| heads(self.plan, dkv_block).map(move |h| (x, h))).collect();
            let held = if init_dkv { zeros(part.clone()) } else { counts(rest.next()?)? };
            if !part.iter().all(|p| held.contains_key(p)) {
                return None;
            }
            parts.push((part, held));
        }
        if !points(self.plan, q_block).iter().all(|p| dq.contains_key(p)) {
            return None;
        }
        if !points(self.plan, kv_block).iter().all(|p| parts.iter().any(|(part, _)| part.contains(p))) {
            return None;
        }
        self.attend(q_block, kv_block, mask, |q, k| {
            *dq.get_mut(&q)?.entry(k).or_default() += 1;
            let part = parts.iter_mut().find(|(part, _)| part.contains(&k))?;
            *part.1.get_mut(&k)?.entry(q).or_default() += 1;
            Some(())
        })?;
        let dkv = parts.into_iter().map(|(_, held)| Held::Result(held));
        Some([Held::Result(dq)].into_iter().chain(dkv).collect())
    }

    /// What a projection writes: plain rows, or rows of all heads that are empty but for the heads it has.
    fn project(&self, projection: &Projection, reads: &[&Held]) -> Option<Vec<Held>> {
        let spread = |tensor, parts: Bufs, hidden, known: &Counts| -> Option<Vec<Held>> {
            let shares = self.shares(hidden, usize::from(parts.count))?;
            let part = |share: Vec<u64>| {
                let all = rows(self.plan, tensor, hidden).into_iter().filter(|(x, _)| share.contains(x));
                let row = |p: Point| (p, known.get(&p).cloned().unwrap_or_default());
                let tokens: BTreeSet<u64> = known.keys().map(|(x, _)| *x).collect();
                share.iter().all(|x| tokens.contains(x)).then(|| Held::Result(all.map(row).collect()))
            };
            shares.into_iter().map(part).collect()
        };
        match *projection {
            Projection::Inputs { hidden, q_block, kv_block, .. } => {
                self.have(reads, hidden)?;
                let (queries, all) = (tokens(self.plan, q_block), tokens(self.plan, hidden));
                let inside =
                    queries == tokens(self.plan, kv_block) && queries.iter().all(|x| all.contains(x));
                let written = [q_block, kv_block].map(|block| Held::Data(points(self.plan, block)));
                inside.then(|| written.to_vec())
            }
            Projection::Output { parts, hidden, .. } => {
                spread(Tensor::LayerOutput, parts, hidden, &counts(reads[0])?)
            }
            Projection::Gradients { parts, hidden, .. } => {
                let (mut known, keys) = (counts(reads[0])?, counts(reads[1])?);
                let shifted = keys.into_iter().map(|((x, h), row)| ((x, self.plan.shape.heads + h), row));
                known.extend(shifted);
                spread(Tensor::HiddenGrad, parts, hidden, &known)
            }
        }
    }

    /// A block's tokens, whole or owner by owner, each owner's in equal parts.
    fn shares(&self, block: BlockId, n: usize) -> Option<Vec<Vec<u64>>> {
        let all = tokens(self.plan, block);
        if n == 1 {
            return Some(vec![all]);
        }
        let mut by_owner: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for x in all {
            by_owner.entry(self.plan.layout.locate(x)?.0).or_default().push(x);
        }
        let each = if by_owner.is_empty() { n } else { n / by_owner.len() };
        let mut parts: Vec<Vec<u64>> = by_owner
            .into_values()
            .flat_map(|own| {
                (0..each).map(move |i| own[own.len() * i / each..own.len() * (i + 1) / each].to_vec())
            })
            .collect();
        (parts.len() <= n).then(|| {
            parts.resize(n, Vec::new());
            parts
        })
    }

    /// Calls `f` for every pair of a block that a mask allows.
    fn attend(
        &self,
        q_block: BlockId,
        kv_block: BlockId,
        mask: MaskId,
        mut f: impl FnMut(Point, Point) -> Option<()>,
    ) -> Option<()> {
        let group = self.plan.shape.heads / self.plan.shape.kv_heads;
        let (q_heads, k_heads) = (heads(self.plan, q_block), heads(self.plan, kv_block));
        let used: BTreeSet<u32> = q_heads.clone().map(|h| h / group).collect();
        if used != k_heads.collect() {
            return None;
        }
        for q in tokens(self.plan, q_block) {
            for k in tokens(self.plan, kv_block) {
                let allowed = match mask {
                    MaskId::PROBLEM => allows(self.plan, self.pattern, q, k),
                    MaskId::NONE => true,
                    other => self.plan.mask(other).allows(q, k),
                };
                for h in q_heads.clone().filter(|_| allowed) {
                    f((q, h), (k, h / group))?;
                }
            }
        }
        Some(())
    }

    /// Whether the buffers that were read have all of the block, of each array that is named.
    fn have_parts(
        &self,
        rank: usize,
        reads: &[(usize, u64, Held)],
        block: BlockId,
        names: &[&str],
    ) -> Option<()> {
        let tensor = |buffer: usize| self.plan.programs[rank].buffers[buffer].tensor;
        names.iter().try_for_each(|name| {
            let with = reads.iter().filter(|(b, _, _)| arrays(tensor(*b)).contains(name));
            self.have(&with.map(|(_, _, held)| held).collect::<Vec<_>>(), block)
        })
    }

    fn have(&self, held: &[&Held], block: BlockId) -> Option<()> {
        let mut all = BTreeSet::new();
        for held in held {
            let Held::Data(data) = held else { return None };
            all.extend(data.iter().copied());
        }
        points(self.plan, block).is_subset(&all).then_some(())
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

/// What a query-side tensor consists of.
fn arrays(tensor: Tensor) -> &'static [&'static str] {
    match tensor {
        Tensor::Query => &["q"],
        Tensor::KeyValue => &["k", "v"],
        Tensor::Key => &["k"],
        Tensor::Value => &["v"],
        Tensor::Output => &["o", "lse"],
        Tensor::OutputGrad => &["do"],
        Tensor::BackwardQuery => &["q", "do", "lse"],
        Tensor::QuerySide => &["q", "o", "do", "lse"],
        _ => &[],
    }
}

/// What several buffers hold together; a result only if it is in one.
fn together(held: impl Iterator<Item = Held>) -> Held {
    held.reduce(|a, b| match (a, b) {
        (Held::Data(mut a), Held::Data(b)) => {
            a.extend(b);
            Held::Data(a)
        }
        _ => Held::Garbage,
    })
    .unwrap_or(Held::Nothing)
}

fn zeros(points: BTreeSet<Point>) -> Counts {
    points.into_iter().map(|p| (p, BTreeMap::new())).collect()
}

fn counts(held: &Held) -> Option<Counts> {
    match held {
        Held::Result(counts) => Some(counts.clone()),
        _ => None,
    }
}

fn sum(from: &Counts, mut into: Counts) -> Counts {
    for (point, row) in &mut into {
        for (&partner, &n) in from.get(point).into_iter().flatten() {
            *row.entry(partner).or_default() += n;
        }
    }
    into
}

/// What is held of these points; garbage if one is missing.
fn restrict(held: &Held, points: &BTreeSet<Point>) -> Held {
    match held {
        Held::Data(data) if points.is_subset(data) => Held::Data(points.clone()),
        Held::Result(counts) if points.iter().all(|p| counts.contains_key(p)) => {
            Held::Result(points.iter().map(|p| (*p, counts[p].clone())).collect())
        }
        Held::Begun(counts) if points.iter().all(|p| counts.contains_key(p)) => {
            Held::Begun(points.iter().map(|p| (*p, counts[p].clone())).collect())
        }
        _ => Held::Garbage,
    }
}
