//! Between global token order and the ranks' memories.

use std::ops::Range;
use std::sync::Arc;
use std::thread;

use ringlab_sim::layout::Layout;
use ringlab_sim::plan::{Part, Plan, Rank, Role, Tensor};
use ringlab_sim::problem::{Pass, Shape};

use super::error::{Cause, RunError};
use super::memory::Memory;
use crate::inputs::{InputError, Inputs};
use crate::outcome::{Forward, Gradients, Results};
use crate::parallel;
use crate::region::Region;

/// Index of each position's token among the real tokens; `None` for padding.
pub(crate) fn real_tokens(layout: &Layout) -> Vec<Option<usize>> {
    let mut index = vec![None; layout.documents().tokens() as usize];
    let real = layout.documents().iter().flat_map(|d| d.start..d.start + d.len);
    real.enumerate().for_each(|(i, position)| index[position as usize] = Some(i));
    index
}

/// Checks that the inputs are those of the plan's problem.
pub(crate) fn check(plan: &Plan, inputs: &Inputs) -> Result<(), InputError> {
    inputs.validate()?;
    let sizes = |s: &Shape, tokens: usize| {
        format!(
            "{tokens} tokens, batch {}, {} heads over {} kv heads of {}",
            s.batch, s.heads, s.kv_heads, s.head_dim
        )
    };
    let documents = plan.layout.documents();
    let plan_sizes = sizes(&plan.shape, (documents.tokens() - documents.padding()) as usize);
    let input_sizes = sizes(&inputs.shape, inputs.tokens);
    if plan_sizes != input_sizes {
        return Err(InputError::Problem { plan: plan_sizes, inputs: input_sizes });
    }
    if plan.pass == Pass::Backward && inputs.forward.is_none() {
        return Err(InputError::NoForward);
    }
    Ok(())
}

/// A dense tensor in global token order.
#[derive(Clone, Copy)]
enum Order {
    /// `[batch][tokens][heads][width]`.
    TokenMajor,
    /// `[batch][heads][tokens]`.
    HeadMajor,
}

/// Where a row starts in a global tensor of `tokens` tokens and `heads` heads.
pub(crate) struct Global {
    order: Order,
    /// Tokens that are there; those after them are the same again.
    tokens: usize,
    heads: usize,
    width: usize,
}

impl Global {
    /// A tensor of vectors, or of one number a token and head.
    fn of(inputs: &Inputs, tokens: usize, heads: u32, scalar: bool) -> Self {
        let (order, width) =
            if scalar { (Order::HeadMajor, 1) } else { (Order::TokenMajor, inputs.shape.head_dim as usize) };
        Self { order, tokens, heads: heads as usize, width }
    }

    pub(crate) fn heads(&self) -> usize {
        self.heads
    }

    pub(crate) fn row(&self, batch: usize, token: usize, head: usize) -> Range<usize> {
        let token = token % self.tokens;
        let row = match self.order {
            Order::TokenMajor => (batch * self.tokens + token) * self.heads + head,
            Order::HeadMajor => (batch * self.heads + head) * self.tokens + token,
        };
        row * self.width..(row + 1) * self.width
    }
}

/// Fills a rank's input buffers. Rows of padding stay NaN, so that a plan that lets padding in shows.
pub(super) fn scatter(
    plan: &Plan,
    inputs: &Inputs,
    real: &[Option<usize>],
    regions: &[Arc<Region>],
    memory: &mut Memory,
) -> Result<(), Cause> {
    let buffers =
        memory.iter().filter_map(|(buf, b, _)| b.role.initial().map(|block| (buf, b.tensor, block)));
    for (buf, tensor, block) in buffers.collect::<Vec<_>>() {
        let region = &regions[block as usize];
        let mut storage = memory.take(buf, tensor)?;
        if !storage.hold(region) {
            return Err(Cause::TooSmall { buffer: buf.0 });
        }
        if matches!(tensor, Tensor::Scores { .. }) {
            let row = |batch, token, head, part| row_of(inputs, (batch, token, head), part);
            super::scores::restore(plan, &mut storage, region, real, row);
        }
        for (plane, (source, global)) in sources(inputs, tensor).into_iter().enumerate() {
            // A tensor of query heads carries the k and v of each of them.
            let group = if tensor.is_key_side() { 1 } else { inputs.shape.heads as usize / global.heads };
            for_each_row(&inputs.shape, region, |batch, (position, token), (head, h)| {
                let Some(real) = real[position] else { return };
                let row = storage.index(batch, token, h);
                storage.row_mut(plane, row).copy_from_slice(&source[global.row(batch, real, head / group)]);
            });
        }
        memory.put(buf, storage);
    }
    Ok(())
}

/// The global tensors of an input buffer's planes.
fn sources(inputs: &Inputs, tensor: Tensor) -> Vec<(&[f32], Global)> {
    tensor.parts().iter().filter_map(|&part| source(inputs, part)).collect()
}

/// The global tensor of one array of an input buffer.
pub(crate) fn source(inputs: &Inputs, part: Part) -> Option<(&[f32], Global)> {
    let Shape { heads, kv_heads, .. } = inputs.shape;
    let (data, heads): (&[f32], u32) = match (part, &inputs.forward) {
        (Part::Query, _) => (&inputs.q, heads),
        (Part::Key | Part::CarriedKey, _) => (&inputs.k, kv_heads),
        (Part::Value | Part::CarriedValue, _) => (&inputs.v, kv_heads),
        (Part::OutputGrad, _) => (&inputs.d_o, heads),
        (Part::Output, Some(forward)) => (&forward.o, heads),
        (Part::Lse, Some(forward)) => (&forward.lse, heads),
        _ => return None,
    };
    Some((data, Global::of(inputs, inputs.stored(), heads, part == Part::Lse)))
}

/// A row of an input, of a real token and a query head.
fn row_of(inputs: &Inputs, (batch, token, head): (usize, usize, usize), part: Part) -> &[f32] {
    let group = inputs.shape.heads as usize;
    source(inputs, part).map_or(&[], |(data, global)| {
        let head = head / (group / global.heads);
        &data[global.row(batch, token, head)]
    })
}

/// Calls `f(batch, (position, its index in the region), (head, its index in the region))` for every row of a region.
fn for_each_row(shape: &Shape, region: &Region, mut f: impl FnMut(usize, (usize, usize), (usize, usize))) {
    for batch in 0..shape.batch as usize {
        for (token, &position) in region.tokens.iter().enumerate() {
            for head in 0..region.heads() {
                f(batch, (position as usize, token), (region.heads.first as usize + head, head));
            }
        }
    }
}

/// One plane of a result in the making.
struct Target {
    part: Part,
    /// What stands for it in a tensor of all heads' width.
    carried: Part,
    global: Global,
    /// What padding rows must hold.
    padding: f32,
    data: Vec<f32>,
}

impl Target {
    fn new(inputs: &Inputs, (part, carried): (Part, Part), heads: u32, scalar: bool) -> Self {
        let global = Global::of(inputs, inputs.tokens, heads, scalar);
        let rows = inputs.shape.batch as usize * inputs.tokens * heads as usize;
        let padding = if scalar { f32::NEG_INFINITY } else { 0.0 };
        Self { part, carried, padding, data: parallel::filled(rows * global.width, f32::NAN), global }
    }
}

/// Collects the results of all ranks, and counts padding rows that are not what they must be.
pub(super) fn gather(
    plan: &Plan,
    inputs: &Inputs,
    real: &[Option<usize>],
    regions: &[Arc<Region>],
    memories: &[Memory],
) -> Result<(Results, usize), RunError> {
    let mut targets = Targets::new(plan, inputs);
    for (rank, memory) in memories.iter().enumerate() {
        for (buf, buffer, storage) in memory.iter() {
            let Role::Output(block) = buffer.role else { continue };
            let unwritten = RunError::Unwritten { rank: rank as Rank, buffer: buf.0 };
            let region = &regions[block as usize];
            let block = storage.and_then(|s| s.extract(region)).ok_or(unwritten)?;
            let read = |plane: usize, (batch, token, head): (usize, usize, usize), into: &mut [f32]| {
                into.copy_from_slice(block.row(plane, block.index(batch, token, head)));
            };
            targets.collect(&plan.shape, (buffer.tensor, region), real, read);
        }
    }
    Ok(targets.finish(plan.pass))
}

/// The results of a pass in the making.
pub(crate) struct Targets {
    all: Vec<Target>,
    wrong: usize,
}

impl Targets {
    /// Nothing yet: every number is NaN.
    pub(crate) fn new(plan: &Plan, inputs: &Inputs) -> Self {
        let (h, k) = (plan.shape.heads, plan.shape.kv_heads);
        let target = |parts, heads, scalar| Target::new(inputs, parts, heads, scalar);
        let all = match plan.pass {
            Pass::Forward => vec![
                target((Part::Output, Part::Output), h, false),
                target((Part::Lse, Part::CarriedLse), h, true),
            ],
            Pass::Backward => vec![
                target((Part::QueryGrad, Part::HiddenGrad), h, false),
                target((Part::KeyGrad, Part::CarriedKeyGrad), k, false),
                target((Part::ValueGrad, Part::CarriedValueGrad), k, false),
            ],
        };
        Self { all, wrong: 0 }
    }

    /// Takes in a block of a tensor; `read` gives the row of a plane and of a sequence, token and head of the region.
    pub(crate) fn collect(
        &mut self,
        shape: &Shape,
        (tensor, region): (Tensor, &Region),
        real: &[Option<usize>],
        read: impl Fn(usize, (usize, usize, usize), &mut [f32]) + Sync,
    ) {
        for target in &mut self.all {
            let plane = |part| tensor.parts().iter().position(|&p| p == part);
            let Some(plane) = plane(target.part).or(plane(target.carried)) else { continue };
            // A tensor of all heads' width holds dk and dv at query heads, the shares of a kv head to be added up.
            let widened = target.global.heads != shape.heads as usize && !tensor.is_key_side();
            let group = if widened { shape.group() as usize } else { 1 };
            let read = |row: (usize, usize, usize), into: &mut [f32]| read(plane, row, into);
            self.wrong += Collecting { region, real, group, padding: target.padding, read }.all(target);
        }
    }

    /// The results, and how many padding rows are not what they must be.
    pub(crate) fn finish(self, pass: Pass) -> (Results, usize) {
        let mut data = self.all.into_iter().map(|t| t.data);
        let mut next = || data.next().unwrap_or_default();
        let results = match pass {
            Pass::Forward => Results::Forward(Forward { o: next(), lse: next() }),
            Pass::Backward => Results::Backward(Gradients { dq: next(), dk: next(), dv: next() }),
        };
        (results, self.wrong)
    }
}

/// A block on its way into a target.
struct Collecting<'a, R> {
    region: &'a Region,
    real: &'a [Option<usize>],
    /// Heads of the block that add up to one of the target.
    group: usize,
    /// What padding rows must hold.
    padding: f32,
    read: R,
}

impl<R: Fn((usize, usize, usize), &mut [f32]) + Sync> Collecting<'_, R> {
    /// Takes in all real rows; returns how many of the padding rows are wrong.
    fn all(&self, target: &mut Target) -> usize {
        let Target { global, data, .. } = target;
        let sequence = global.tokens * global.heads * global.width;
        let tokens = self.region.tokens.len();
        if sequence == 0 || tokens == 0 {
            return 0;
        }
        let sequences = data.chunks_exact_mut(sequence).enumerate();
        if matches!(global.order, Order::HeadMajor) {
            return sequences.map(|(batch, data)| self.rows(batch, 0..tokens, (global, 0), data)).sum();
        }
        let shares = self.shares(tokens * global.heads * global.width, global.tokens);
        thread::scope(|scope| {
            let mut workers = Vec::new();
            for (batch, mut rest) in sequences {
                let mut from = 0;
                for (own, end) in &shares {
                    let (part, after) = rest.split_at_mut((end - from) * global.heads * global.width);
                    let (global, own, first) = (&*global, own.clone(), from);
                    workers.push(scope.spawn(move || self.rows(batch, own, (global, first), part)));
                    (rest, from) = (after, *end);
                }
            }
            // A panic is a defect of `read`, and goes on.
            let wrong =
                workers.into_iter().map(|w| w.join().unwrap_or_else(|e| std::panic::resume_unwind(e)));
            wrong.sum()
        })
    }

    /// Tokens of the region for each thread, with the end of the target's tokens that they lie in: both rise.
    fn shares(&self, numbers: usize, end: usize) -> Vec<(Range<usize>, usize)> {
        const LEAST: usize = 1 << 16;
        let tokens = &self.region.tokens;
        let threads = numbers.div_ceil(LEAST).clamp(1, parallel::cores());
        let each = tokens.len().div_ceil(threads);
        let share = |from: usize| {
            let to = tokens.len().min(from + each);
            let next = tokens[to..].iter().find_map(|&position| self.real[position as usize]);
            (from..to, next.unwrap_or(end))
        };
        (0..tokens.len()).step_by(each).map(share).collect()
    }

    /// Takes in some tokens of a sequence; `data` starts at the target's token `first`.
    fn rows(
        &self,
        batch: usize,
        tokens: Range<usize>,
        (global, first): (&Global, usize),
        data: &mut [f32],
    ) -> usize {
        let mut row = vec![0.0; global.width];
        let start = global.row(0, first, 0).start;
        let mut wrong = 0;
        for token in tokens {
            for head in 0..self.region.heads() {
                let Some(real) = self.real[self.region.tokens[token] as usize] else {
                    (self.read)((batch, token, head), &mut row);
                    wrong += usize::from(row.iter().any(|&x| x != self.padding));
                    continue;
                };
                let at = self.region.heads.first as usize + head;
                let into = global.row(0, real, at / self.group);
                let into = &mut data[into.start - start..into.end - start];
                if at.is_multiple_of(self.group) {
                    (self.read)((batch, token, head), into);
                } else {
                    (self.read)((batch, token, head), &mut row);
                    into.iter_mut().zip(&row).for_each(|(sum, x)| *sum += x);
                }
            }
        }
        wrong
    }
}
