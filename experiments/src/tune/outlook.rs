//! What another machine or another length would change.

use std::sync::atomic::Ordering;

use super::board::Costed;
use super::lengths::with_links;
use super::search::Search;
use super::space::{Degrees, Job, Space};

/// One thing changed.
#[derive(Debug, Clone)]
pub struct Shift {
    /// What, in words.
    pub what: String,
    /// The changed job.
    pub job: Job,
    /// The old best way there; `None` if it is not legal or does not fit.
    pub same: Option<Costed>,
    /// The best way there; `None` if nothing fits.
    pub best: Option<Costed>,
}

impl Shift {
    /// Whether another way is the best: another grid, schedule, checkpointing, sharding or chunking.
    pub fn changes(&self, old: &Costed) -> bool {
        let choice =
            |c: &Costed| (c.training.grid, c.training.context, c.training.checkpointing, c.training.sharding);
        self.best.as_ref().is_none_or(|new| choice(new) != choice(old))
    }
}

/// Links and the sequence at half and at twice what they are, each for itself.
pub fn sensitivity(job: &Job, old: &Costed, search: &Search<'_>) -> Vec<Shift> {
    let mut shifts = Vec::new();
    for (what, changed) in changes(job) {
        if search.stop.load(Ordering::Relaxed) {
            break;
        }
        let search = Search { keep: 1, thorough: false, ..*search };
        let same = search.run(&only(&changed, old)).best.first().copied();
        let best = search.run(&changed).best.first().copied();
        if !search.stop.load(Ordering::Relaxed) {
            shifts.push(Shift { what, job: changed, same, best });
        }
    }
    shifts
}

fn changes(job: &Job) -> Vec<(String, Job)> {
    let mut all = Vec::new();
    let mut links = |what: &str, inside, between| {
        let cluster = with_links(&job.cluster, inside, between);
        all.push((what.to_owned(), Job { cluster, ..job.clone() }));
    };
    if job.cluster.gpus_per_node > 1 {
        links("links inside a node x 1/2", 0.5, 1.0);
        links("links inside a node x 2", 2.0, 1.0);
    }
    if job.cluster.nodes > 1 {
        links("links between nodes x 1/2", 1.0, 0.5);
        links("links between nodes x 2", 1.0, 2.0);
    }
    if job.seq.is_multiple_of(2) {
        all.push(("sequence x 1/2".into(), job.with_length(job.seq / 2)));
    }
    all.push(("sequence x 2".into(), job.with_length(job.seq * 2)));
    all
}

/// The job with nothing but the old way to choose.
fn only(job: &Job, old: &Costed) -> Job {
    let (grid, context) = (&old.training.grid, &old.training.context);
    let one = |n: u64| Degrees::Only(vec![n]);
    let space = Space {
        schedules: vec![context.schedule],
        tp: one(grid.tp),
        cp: one(grid.cp),
        ulysses: one(grid.ulysses),
        ring: one(grid.ring),
        pp: one(grid.pp),
        dp: one(grid.dp),
        chunks: vec![context.chunks],
        checkpointing: vec![old.training.checkpointing],
        sharding: vec![old.training.sharding],
        transport: context.transport,
    };
    Job { space, ..job.clone() }
}
