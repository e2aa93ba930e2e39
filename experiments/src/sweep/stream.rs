//! Rows in grid order from any number of threads.
//!
//! The grid is taken in batches; a batch is cut into runs of neighbours that threads work on and is written when all of
//! them are done, so memory does not grow with the grid. Batches last a fraction of a second, however heavy their
//! configurations are.

use std::ops::Range;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rayon::prelude::*;

use super::grid::Grid;
use super::worker::Worker;

/// Part `number` (from 1) of `count` equal parts of a grid: `1/4`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// From 1.
    pub number: u64,
    /// How many there are.
    pub count: u64,
}

impl Shard {
    /// All of a grid.
    pub const WHOLE: Self = Self { number: 1, count: 1 };

    /// Its rows of a grid of `len`.
    pub fn rows(self, len: u64) -> Range<u64> {
        let cut = |i: u64| (u128::from(len) * u128::from(i) / u128::from(self.count)) as u64;
        cut(self.number - 1)..cut(self.number)
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/').map(|(i, n)| (i.parse(), n.parse()));
        match numbers {
            Some((Ok(number), Ok(count))) if 1 <= number && number <= count => Ok(Self { number, count }),
            _ => Err("write i/n with i from 1 to n, such as 1/4".into()),
        }
    }
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// All rows were written.
    Complete,
    /// It was told to stop; rows before this one were written.
    Stopped {
        /// The first row that is missing.
        at: u64,
    },
}

/// Rows of a grid to be computed.
pub struct Rows<'a> {
    /// Of this grid.
    pub grid: &'a Grid,
    /// These.
    pub rows: Range<u64>,
    /// On so many threads.
    pub threads: usize,
    /// Stops at the next row once it is true.
    pub stop: &'a AtomicBool,
}

/// A batch should take about this long.
const BATCH: Duration = Duration::from_millis(250);
/// Runs of neighbours in a batch, for each thread.
const RUNS: u64 = 8;

/// Lines of neighbouring rows.
struct Lines {
    text: String,
    count: u64,
    complete: bool,
}

impl Rows<'_> {
    /// Computes the rows and gives their lines to `write`, in order; `write` also gets the number of rows.
    ///
    /// # Errors
    /// What `write` fails with, or no threads.
    pub fn run(&self, mut write: impl FnMut(&str, u64) -> Result<()>) -> Result<Ended> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(self.threads).build();
        let pool = pool.with_context(|| format!("cannot start {} threads", self.threads))?;
        let workers: Vec<_> = (0..self.threads).map(|_| Mutex::new(Worker::new(self.grid))).collect();
        let mut at = self.rows.start;
        let mut size = self.threads as u64 * RUNS;
        while at < self.rows.end {
            let start = Instant::now();
            let batch = at..self.rows.end.min(at.saturating_add(size));
            let runs = split(&batch, self.threads as u64 * RUNS);
            let lines: Vec<Lines> =
                pool.install(|| runs.into_par_iter().map(|run| self.lines(run, &workers)).collect());
            for lines in lines {
                write(&lines.text, lines.count)?;
                at += lines.count;
                if !lines.complete {
                    return Ok(Ended::Stopped { at });
                }
            }
            size = next_size(size, start.elapsed(), self.threads as u64);
        }
        Ok(Ended::Complete)
    }

    fn lines(&self, run: Range<u64>, workers: &[Mutex<Worker<'_>>]) -> Lines {
        let own = rayon::current_thread_index().unwrap_or(0);
        // Only this thread locks it; a poisoned one is as good, since machines are loaded anew for every plan.
        let mut worker = workers[own].lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut lines = Lines { text: String::new(), count: 0, complete: true };
        for index in run {
            if self.stop.load(Ordering::Relaxed) {
                lines.complete = false;
                break;
            }
            worker.append_row(index, &mut lines.text);
            lines.count += 1;
        }
        lines
    }
}

/// `rows` in at most `parts` runs of nearly equal length.
fn split(rows: &Range<u64>, parts: u64) -> Vec<Range<u64>> {
    let len = rows.end - rows.start;
    let parts = parts.min(len);
    (0..parts).map(|i| rows.start + len * i / parts..rows.start + len * (i + 1) / parts).collect()
}

fn next_size(size: u64, took: Duration, threads: u64) -> u64 {
    const MOST: u64 = 1 << 16;
    if took < BATCH / 2 {
        (size * 2).min(MOST)
    } else if took > BATCH * 2 {
        (size / 2).max(threads)
    } else {
        size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_disjoint_and_cover_the_grid() {
        for len in [0, 1, 7, 100, u64::MAX] {
            for count in [1, 2, 3, 8] {
                let mut at = 0;
                for number in 1..=count {
                    let rows = Shard { number, count }.rows(len);
                    assert_eq!(rows.start, at);
                    at = rows.end;
                }
                assert_eq!(at, len);
            }
        }
    }

    #[test]
    fn runs_cover_their_batch_in_order() {
        for (from, to) in [(0, 1), (5, 17), (3, 1003)] {
            for parts in [1, 2, 16, 5000] {
                let runs = split(&(from..to), parts);
                let rows: Vec<u64> = runs.into_iter().flatten().collect();
                assert_eq!(rows, (from..to).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn shards_are_written_as_i_of_n() {
        assert_eq!("2/3".parse(), Ok(Shard { number: 2, count: 3 }));
        for wrong in ["", "2", "0/3", "4/3", "1/0", "a/b", "1/2/3", "-1/2"] {
            assert!(wrong.parse::<Shard>().is_err(), "{wrong}");
        }
    }
}
