//! Independent rows over the machine's cores, results in row order.

use std::thread;

/// `f(0), f(1), ..., f(count - 1)`, computed on as many threads as the machine has cores.
pub(super) fn map_rows<R: Send>(count: usize, f: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let chunk = count.div_ceil(cores).max(1);
    if cores == 1 || count < 64 {
        return (0..count).map(f).collect();
    }
    let f = &f;
    thread::scope(|scope| {
        let workers: Vec<_> = (0..count)
            .step_by(chunk)
            .map(|start| scope.spawn(move || (start..count.min(start + chunk)).map(f).collect::<Vec<R>>()))
            .collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().expect("a row's computation does not panic"))
            .collect()
    })
}
