//! The best so far.

use ringlab_sim::schedule::Schedule;
use ringlab_sim::training::attention::AttentionTime;
use ringlab_sim::training::{Breakdown, Grid, Memory, Training, iteration_with, memory_with};
use ringlab_sim::units::SimTime;

use super::space::Job;

/// A candidate with its iteration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costed {
    /// What it is.
    pub training: Training,
    /// Its time.
    pub time: Breakdown,
    /// Its memory.
    pub memory: Memory,
    /// Its place among the candidates, which decides between equals.
    pub index: usize,
}

impl Costed {
    /// The iteration with attention that is known, or with a lower bound of it.
    pub fn of(job: &Job, training: Training, index: usize, attention: [AttentionTime; 2]) -> Self {
        let time = iteration_with(&job.model, &job.cluster, &training, attention);
        let memory = memory_with(&job.model, &job.cluster, &training, attention[1].buffers);
        Self { training, time, memory, index }
    }

    /// Whether the device holds it.
    pub fn fits(&self) -> bool {
        self.memory.over.is_none()
    }

    /// The faster first, then the smaller, then the earlier.
    pub fn rank(&self) -> (SimTime, u64, usize) {
        (self.time.total, self.memory.total.0, self.index)
    }

    /// What makes two candidates different ways to train, and not the same with another option.
    pub fn way(&self) -> (Grid, Schedule) {
        (self.training.grid, self.training.context.schedule)
    }
}

/// The best few ways to train, each with its best options.
#[derive(Debug, Clone)]
pub struct Board {
    keep: usize,
    rows: Vec<Costed>,
}

impl Board {
    /// Keeps `keep` of them.
    pub fn new(keep: usize) -> Self {
        Self { keep, rows: Vec::new() }
    }

    /// Takes a candidate in if it is good enough.
    pub fn enter(&mut self, new: &Costed) {
        match self.rows.iter().position(|known| known.way() == new.way()) {
            Some(at) if new.rank() < self.rows[at].rank() => self.rows[at] = *new,
            Some(_) => return,
            None => self.rows.push(*new),
        }
        self.rows.sort_by_key(Costed::rank);
        self.rows.truncate(self.keep);
    }

    /// Whether a candidate that takes at least `bound` might get in.
    pub fn wants(&self, bound: SimTime) -> bool {
        self.keep > 0 && (self.rows.len() < self.keep || self.rows[self.keep - 1].time.total >= bound)
    }

    /// The best first.
    pub fn into_rows(self) -> Vec<Costed> {
        self.rows
    }

    /// The best.
    pub fn best(&self) -> Option<&Costed> {
        self.rows.first()
    }
}
