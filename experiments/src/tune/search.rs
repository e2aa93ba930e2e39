//! The search: candidates by their lower bounds, until no other can get in.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;
use ringlab_sim::schedule::Schedule;
use ringlab_sim::training::Training;
use ringlab_sim::units::{Bytes, SimTime};
use serde::Serialize;

use super::attention::{Key, Rings, floor};
use super::board::{Board, Costed};
use super::space::Job;

/// Rings that are simulated before the bounds are looked at again. Fixed, so that what is pruned depends on no number of
/// threads.
const RINGS_AT_ONCE: usize = 8;

/// Candidates that are listed because only their memory keeps them from being the best.
const TOO_LARGE: usize = 3;
/// Rings that are simulated to find those, at most.
const RINGS_FOR_TOO_LARGE: usize = 64;

/// What became of the candidates; all but `total` and `rings` add up to `total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, schemars::JsonSchema)]
pub struct Counts {
    /// Legal grids with their schedules and options.
    pub total: usize,
    /// Never simulated: even without staging buffers they do not fit.
    pub pruned_by_memory: usize,
    /// Never simulated: their lower bound is above what was found.
    pub pruned_by_time: usize,
    /// Costed, and too large with their staging buffers.
    pub over_memory: usize,
    /// Refused by their schedule.
    pub refused: usize,
    /// Costed, and fit.
    pub costed: usize,
    /// Not looked at, after Ctrl-C.
    pub left: usize,
    /// Rings simulated, forward and backward, for all of them.
    pub rings: usize,
}

/// What a search found.
#[derive(Debug, Clone)]
pub struct Found {
    /// The fastest ways to train that fit, the best first.
    pub best: Vec<Costed>,
    /// The fastest of each schedule that fits; those without a ring are apart.
    pub by_schedule: Vec<Costed>,
    /// Faster than the best, but too large; those that lack least first.
    pub too_large: Vec<Costed>,
    /// What became of all.
    pub counts: Counts,
    /// Why schedules refused, each reason once.
    pub reasons: Vec<String>,
}

/// How to search.
pub struct Search<'a> {
    /// Ways to train to find.
    pub keep: usize,
    /// Whether to find the best of each schedule as well, and what would be faster with more memory.
    pub thorough: bool,
    /// Ends the search with what has been found.
    pub stop: &'a AtomicBool,
    /// Told of candidates done, of how many.
    pub progress: &'a (dyn Fn(usize, usize) + Sync),
}

/// A candidate with its lower bounds.
struct Bounded {
    training: Training,
    index: usize,
    bound: SimTime,
    memory: Bytes,
    fits: bool,
}

/// The schedule of a candidate's ring, double rings whatever their window; `None` where one rank is no ring.
fn ring_schedule(training: &Training) -> Option<Schedule> {
    let schedule = match training.context.schedule {
        Schedule::DoubleRing { rail, .. } => Schedule::DoubleRing { window: None, rail },
        schedule => schedule,
    };
    (training.grid.ring > 1).then_some(schedule)
}

struct State {
    board: Board,
    schedules: BTreeMap<Option<Schedule>, Board>,
    too_large: Vec<Costed>,
    rings: Rings,
    counts: Counts,
    reasons: Vec<String>,
}

impl Search<'_> {
    /// Searches the space of `job`.
    pub fn run(&self, job: &Job) -> Found {
        let bounded = bounded(job);
        let mut state = State {
            board: Board::new(self.keep),
            schedules: BTreeMap::new(),
            too_large: Vec::new(),
            rings: Rings::default(),
            counts: Counts { total: bounded.len(), ..Counts::default() },
            reasons: Vec::new(),
        };
        let (fitting, large): (Vec<_>, Vec<_>) = bounded.into_iter().partition(|b| b.fits);
        state.counts.pruned_by_memory = large.len();
        let mut rest = &fitting[..];
        while !rest.is_empty() && !self.stop.load(Ordering::Relaxed) {
            let batch = self.next_batch(&mut rest, &mut state);
            state.cost(job, &batch);
            (self.progress)(state.counts.total - rest.len(), state.counts.total);
        }
        state.counts.left = rest.len();
        let too_large = if self.thorough { self.too_large(job, &large, &mut state) } else { Vec::new() };
        let mut by_schedule: Vec<Costed> = state.schedules.into_values().flat_map(Board::into_rows).collect();
        by_schedule.sort_by_key(Costed::rank);
        let best = state.board.into_rows();
        Found { best, by_schedule, too_large, counts: state.counts, reasons: state.reasons }
    }

    /// The next candidates that might get in, with at most so many rings that are not known.
    fn next_batch<'b>(&self, rest: &mut &'b [Bounded], state: &mut State) -> Vec<&'b Bounded> {
        let (mut batch, mut missing) = (Vec::new(), Vec::new());
        while let Some((next, others)) = rest.split_first() {
            if !self.wanted(state, next) {
                state.counts.pruned_by_time += 1;
                *rest = others;
                continue;
            }
            let key = Key::of(&next.training);
            if !state.rings.knows(&next.training) && !missing.contains(&key) {
                if missing.len() == RINGS_AT_ONCE {
                    break;
                }
                missing.push(key);
            }
            batch.push(next);
            *rest = others;
        }
        state.counts.rings += missing.len();
        batch
    }

    fn wanted(&self, state: &mut State, candidate: &Bounded) -> bool {
        let one = usize::from(self.thorough);
        let schedule = ring_schedule(&candidate.training);
        let own = state.schedules.entry(schedule).or_insert_with(|| Board::new(one));
        state.board.wants(candidate.bound) || own.wants(candidate.bound)
    }

    /// Candidates that would beat the best with more memory, those that need least of it first.
    fn too_large(&self, job: &Job, large: &[Bounded], state: &mut State) -> Vec<Costed> {
        let Some(limit) = state.board.best().map(|b| b.time.total) else { return Vec::new() };
        let mut found = std::mem::take(&mut state.too_large);
        found.retain(|costed| costed.time.total < limit);
        let mut near: Vec<&Bounded> = large.iter().filter(|b| b.bound < limit).collect();
        near.sort_by_key(|b| (b.memory, b.bound, b.index));
        let before = state.counts.rings;
        for candidate in near {
            let enough = found.len() >= TOO_LARGE || state.counts.rings >= before + RINGS_FOR_TOO_LARGE;
            if enough || self.stop.load(Ordering::Relaxed) {
                break;
            }
            if !state.rings.knows(&candidate.training) {
                state.counts.rings += 1;
                state.rings.learn(job, &[candidate.training]);
            }
            if let Some(Ok(attention)) = state.rings.attention(job, &candidate.training) {
                let costed = Costed::of(job, candidate.training, candidate.index, attention);
                if costed.time.total < limit && !found.iter().any(|known| known.way() == costed.way()) {
                    found.push(costed);
                }
            }
        }
        found.sort_by_key(|costed| (costed.memory.total, costed.rank()));
        found.truncate(TOO_LARGE);
        found
    }
}

/// All candidates, those with the least bound first.
fn bounded(job: &Job) -> Vec<Bounded> {
    let bound = |(index, training): (usize, Training)| {
        let least = Costed::of(job, training, index, floor(job, &training));
        Bounded { training, index, bound: least.time.total, memory: least.memory.total, fits: least.fits() }
    };
    let mut all: Vec<Bounded> = job.candidates().into_par_iter().enumerate().map(bound).collect();
    all.sort_by_key(|b| (b.bound, b.index));
    all
}

impl State {
    fn cost(&mut self, job: &Job, batch: &[&Bounded]) {
        let trainings: Vec<Training> = batch.iter().map(|b| b.training).collect();
        self.rings.learn(job, &trainings);
        for candidate in batch {
            match self.rings.attention(job, &candidate.training) {
                Some(Ok(attention)) => {
                    self.enter(&Costed::of(job, candidate.training, candidate.index, attention));
                }
                Some(Err(reason)) => {
                    self.refuse(format!("{}: {reason}", candidate.training.context.schedule));
                }
                None => self.refuse("a ring was not simulated".into()),
            }
        }
    }

    fn enter(&mut self, costed: &Costed) {
        if !costed.fits() {
            self.counts.over_memory += 1;
            return self.too_large.push(*costed);
        }
        self.counts.costed += 1;
        self.board.enter(costed);
        if let Some(own) = self.schedules.get_mut(&ring_schedule(&costed.training)) {
            own.enter(costed);
        }
    }

    fn refuse(&mut self, reason: String) {
        self.counts.refused += 1;
        if !self.reasons.contains(&reason) {
            self.reasons.push(reason);
        }
    }
}
