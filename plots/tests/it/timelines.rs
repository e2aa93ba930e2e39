//! Timelines of real plans under the simplest costs: attention takes its unmasked pairs, a transfer its bytes.

use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::{LANES, MessageId, NO_OP, Op, OpKind, Plan, Rank};
use ringlab_sim::problem::{Dtype, Pass, Problem, Shape};
use ringlab_sim::schedule::{Options, Schedule, build};
use ringlab_sim::timeline::{Span, SpanKind, Timeline};
use ringlab_sim::units::{Bytes, SimTime};
use ringlab_sim::work;

/// A causal forward of `tokens` tokens a rank.
pub fn plan(schedule: Schedule, ranks: u32, pass: Pass, tokens: u64) -> Plan {
    let shape = Shape { heads: 32, kv_heads: 8, head_dim: 128, dtype: Dtype::Bf16, batch: 1 };
    let documents = vec![tokens * u64::from(ranks)];
    let problem = Problem { shape, pattern: Pattern::Causal, documents };
    build(schedule, &problem, ranks, &Options::new(pass)).unwrap()
}

/// Schedules that take any number of ranks.
const SCHEDULES: [Schedule; 4] =
    [Schedule::Ring, Schedule::Zigzag, Schedule::Striped { block: 1 }, Schedule::DistFlash];

/// Plans of all of them.
pub fn plans(ranks: u32, pass: Pass) -> Vec<Plan> {
    SCHEDULES.into_iter().map(|schedule| plan(schedule, ranks, pass, 1024)).collect()
}

fn duration(plan: &Plan, kind: &OpKind) -> u64 {
    let tokens = plan.layout.tokens_per_rank();
    match *kind {
        OpKind::Attend { q_block, kv_block, mask, .. }
        | OpKind::AttendBackward { q_block, kv_block, mask, .. } => {
            let (q, kv) = (&plan.block(q_block).tokens, &plan.block(kv_block).tokens);
            work::pairs(plan.mask(mask), q, kv) as u64 * 100
        }
        OpKind::Send { message, .. } | OpKind::Recv { message, .. } => plan.message(message).bytes.0 * 10,
        _ => tokens * 4000,
    }
}

/// Where a rank's program is: for each lane the next operation.
struct State<'a> {
    plan: &'a Plan,
    /// Operations of each rank and lane, in order.
    lanes: Vec<[Vec<u32>; LANES]>,
    next: Vec<[usize; LANES]>,
    ends: Vec<Vec<Option<u64>>>,
    /// When each message's sender and receiver were ready.
    ready: Vec<[Option<u64>; 2]>,
}

impl<'a> State<'a> {
    fn new(plan: &'a Plan) -> Self {
        let lanes = plan.programs.iter().map(|p| {
            let mut lanes: [Vec<u32>; LANES] = Default::default();
            for (i, op) in p.ops.iter().enumerate() {
                lanes[usize::from(op.lane.0)].push(i as u32);
            }
            lanes
        });
        Self {
            plan,
            lanes: lanes.collect(),
            next: vec![[0; LANES]; plan.programs.len()],
            ends: plan.programs.iter().map(|p| vec![None; p.ops.len()]).collect(),
            ready: vec![[None; 2]; plan.messages.len()],
        }
    }

    /// When the next operation of a lane could start, if all that it waits for has ended.
    fn start(&self, rank: usize, lane: usize, op: &Op) -> Option<u64> {
        let position = self.next[rank][lane];
        let before = position.checked_sub(1).map(|p| self.lanes[rank][lane][p]);
        let waits = op.waits.iter().copied().filter(|w| *w != NO_OP).chain(before);
        waits.map(|w| self.ends[rank][w as usize]).try_fold(0, |latest, end| end.map(|e| latest.max(e)))
    }

    /// When a transfer starts: both ends are ready.
    fn meeting(&mut self, message: MessageId, kind: SpanKind, start: u64) -> Option<u64> {
        let ends = &mut self.ready[message as usize];
        ends[usize::from(kind == SpanKind::Recv)] = Some(start);
        Some(ends[0]?.max(ends[1]?))
    }

    fn step(&mut self, rank: usize, lane: usize) -> Option<Span> {
        let id = *self.lanes[rank][lane].get(self.next[rank][lane])?;
        let op = self.plan.programs[rank].ops[id as usize];
        let kind = SpanKind::of(&op.kind);
        let mut start = self.start(rank, lane, &op)?;
        let mut bytes = Bytes(0);
        if let Some(message) = op.kind.message() {
            start = self.meeting(message, kind, start)?;
            bytes = self.plan.message(message).bytes;
        }
        let end = start + duration(self.plan, &op.kind);
        self.ends[rank][id as usize] = Some(end);
        self.next[rank][lane] += 1;
        let flops = if kind == SpanKind::Attend { (end - start) as f64 } else { 0.0 };
        let (start, end) = (SimTime(start), SimTime(end));
        Some(Span {
            rank: rank as Rank,
            lane: op.lane,
            op: id,
            step: op.step,
            kind,
            start,
            end,
            bytes,
            flops,
        })
    }
}

/// Runs a plan.
pub fn simulate(plan: &Plan) -> Timeline {
    let mut state = State::new(plan);
    let mut spans = Vec::new();
    loop {
        let before = spans.len();
        for rank in 0..plan.programs.len() {
            for lane in 0..LANES {
                while let Some(span) = state.step(rank, lane) {
                    spans.push(span);
                }
            }
        }
        if spans.len() == before {
            break;
        }
    }
    assert_eq!(spans.len(), plan.op_count(), "{} does not end", plan.name);
    spans.sort_by_key(|s: &Span| (s.end, s.rank));
    let makespan = spans.iter().map(|s| s.end).max().unwrap_or(SimTime::ZERO);
    Timeline { ranks: plan.programs.len() as u32, spans, makespan }
}

/// 1 - busy / (P makespan).
pub fn bubble(timeline: &Timeline) -> f64 {
    let compute = timeline.spans.iter().filter(|s| !s.kind.is_transfer());
    let busy: f64 = compute.map(|s| s.duration().0 as f64).sum();
    1.0 - busy / (f64::from(timeline.ranks) * timeline.makespan.0 as f64)
}
