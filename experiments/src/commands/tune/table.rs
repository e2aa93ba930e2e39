//! The result as a person reads it.

use ringlab_sim::training::Training;
use ringlab_sim::units::{Bytes, SimTime};

use super::Answer;
use super::report::{self, checkpointing, parts, sharding, throughput};
use crate::commands::simulate::tokens;
use crate::grid::grid;
use crate::tune::{Costed, Crossover, Price, Shift};

/// A way to train in one line.
pub fn way(training: &Training) -> String {
    let g = &training.grid;
    let schedule = if g.ring > 1 { format!(", {}", training.context.schedule) } else { String::new() };
    let experts = if g.experts > 1 { format!(", experts over {}", g.experts) } else { String::new() };
    format!(
        "tp {} x ulysses {} x ring {} x pp {} x dp {}{schedule}{experts}, {} checkpointing, {} sharded",
        g.tp,
        g.ulysses,
        g.ring,
        g.pp,
        g.dp,
        checkpointing(training.checkpointing),
        sharding(training.sharding),
    )
}

/// The best, what it is made of, what it beats, and what would change it.
pub fn render(answer: &Answer<'_>) -> String {
    let Some(best) = answer.found.best.first() else { return String::new() };
    let mut text = heading(answer, best);
    text += &breakdown(best);
    text += &contenders(answer);
    if !answer.shifts.is_empty() {
        text += &outlook(&answer.shifts, best);
    }
    text += &answer.crossover.as_ref().map_or(String::new(), lengths);
    text += "\n";
    for line in remarks(answer) {
        text += &format!("  {line}\n");
    }
    text
}

fn heading(answer: &Answer<'_>, best: &Costed) -> String {
    let (job, grid) = (answer.job, &best.training.grid);
    let chunks = best.training.context.chunks;
    let mut text = format!(
        "Training {} on {} x {} ({}), {} each: sequences of {} tokens, {} an iteration\n\nbest  {}\n",
        job.model.name,
        job.gpus(),
        job.cluster.device.name,
        job.cluster.name,
        job.cluster.device.memory,
        tokens(job.seq),
        job.sequences,
        way(&best.training),
    );
    text += &format!(
        "      {} micro-batches on each of {} replicas{}; {} an iteration, {:.0} tokens/s/GPU, {} of {}\n",
        best.training.micro_batches,
        grid.dp,
        if grid.ring > 1 { format!(", ring steps in {chunks} messages") } else { String::new() },
        best.time.total,
        throughput(best, job.tokens()),
        best.memory.total,
        best.memory.capacity,
    );
    text
}

/// Parts of the time and of the memory, the larger first; of the time those of 0.05% and more.
fn breakdown(best: &Costed) -> String {
    let total = best.time.total.as_secs_f64();
    let mut times = parts(&best.time).to_vec();
    times.retain(|(_, time)| time.as_secs_f64() >= 0.0005 * total);
    times.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
    let times = times.iter().map(|(n, t)| format!("{n} {t} ({:.1}%)", 100.0 * t.as_secs_f64() / total));
    let m = &best.memory;
    let mut memory = vec![
        ("weights", m.weights),
        ("gradients", m.gradients),
        ("optimiser", m.optimizer),
        ("activations", m.activations),
        ("logits or layer at work", Bytes(m.logits.0.max(m.working.0 + m.attention.0))),
        ("runtime", m.reserved),
    ];
    memory.retain(|(_, bytes)| bytes.0 > 0);
    memory.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let memory = memory.iter().map(|(name, bytes)| format!("{name} {bytes}"));
    let joined = |items: Vec<String>| items.join(", ");
    format!("time    {}\nmemory  {}\n\n", joined(times.collect()), joined(memory.collect()))
}

fn contenders(answer: &Answer<'_>) -> String {
    let header = [
        "",
        "schedule",
        "checkpointing",
        "sharded",
        "loses by",
        "tp",
        "ulysses",
        "ring",
        "pp",
        "dp",
        "chunks",
        "time",
        "vs best",
        "memory",
    ];
    let cells = report::rows(answer).into_iter().map(|r| {
        [
            r.kind.to_owned(),
            r.schedule,
            r.checkpointing.to_owned(),
            r.sharding.to_owned(),
            r.loses_by,
            r.tp.to_string(),
            r.ulysses.to_string(),
            r.ring.to_string(),
            r.pp.to_string(),
            r.dp.to_string(),
            r.chunks.to_string(),
            SimTime::from_secs_f64(r.time_s).to_string(),
            format!("{:.3}x", r.slowdown),
            Bytes(r.memory_bytes).to_string(),
        ]
    });
    grid(header, 5, cells)
}

fn rate(costed: Option<&Costed>, tokens: u64) -> String {
    costed.map_or("does not fit".into(), |c| format!("{:.0}", throughput(c, tokens)))
}

fn outlook(shifts: &[Shift], best: &Costed) -> String {
    let header = ["change", "best then", "tokens/s/GPU, same way", "best way"];
    let cells = shifts.iter().map(|shift| {
        let tokens = shift.job.tokens();
        let new = match &shift.best {
            Some(new) if shift.changes(best) => way(&new.training),
            Some(_) => "the same".into(),
            None => "nothing fits".into(),
        };
        [shift.what.clone(), new, rate(shift.same.as_ref(), tokens), rate(shift.best.as_ref(), tokens)]
    });
    "\n".to_owned() + &grid(header, 2, cells)
}

fn lengths(crossover: &Crossover) -> String {
    let header = ["sequence", "best with context parallelism", "tokens/s/GPU without", "with"];
    let cells = crossover.lengths.iter().map(|length| {
        let tokens_of_all = length.seq * length.sequences;
        [
            tokens(length.seq),
            length.shared.as_ref().map_or("-".into(), |c| way(&c.training)),
            rate(length.whole.as_ref(), tokens_of_all),
            rate(length.shared.as_ref(), tokens_of_all),
        ]
    });
    let paying: Vec<String> = crossover.lengths.iter().filter(|l| l.pays()).map(|l| tokens(l.seq)).collect();
    let from = match crossover.from() {
        Some(length) => format!("context parallelism pays from {} tokens on", tokens(length.seq)),
        None if paying.is_empty() => "context parallelism pays at none of these lengths".to_owned(),
        None => format!("context parallelism pays at {}, but not at the longest", paying.join(", ")),
    };
    format!("\n{}  {from}\n", grid(header, 2, cells))
}

fn remarks(answer: &Answer<'_>) -> Vec<String> {
    let c = &answer.found.counts;
    let mut lines = vec![format!(
        "{} candidates: {} cannot fit and {} cannot be faster by their lower bounds, {} costed, {} too large with staging, {} \
         refused{}; {} rings simulated",
        c.total,
        c.pruned_by_memory,
        c.pruned_by_time,
        c.costed,
        c.over_memory,
        c.refused,
        if c.left > 0 { format!(", {} not looked at", c.left) } else { String::new() },
        c.rings,
    )];
    lines.push(
        "loses by: the two parts of the time that are longer than the best's; a row that is too large would be faster".into(),
    );
    lines.extend(answer.price.as_ref().map(cost));
    lines.extend(answer.found.reasons.iter().map(|reason| format!("refused: {reason}")));
    lines.extend(answer.notes.iter().cloned());
    let source = &answer.job.cluster.source;
    lines.push(format!("rates and latencies: {source} (`ringlab simulate --explain` lists them)"));
    lines
}

fn cost(price: &Price) -> String {
    let mut text =
        format!("{:.4} a million tokens at {} a GPU hour", price.per_million_tokens, price.per_gpu_hour);
    if let (Some(tokens), Some(days), Some(hours), Some(run)) =
        (price.tokens, price.days, price.gpu_hours, price.run)
    {
        text += &format!("; {tokens} tokens take {days:.1} days, {hours:.0} GPU hours, {run:.0}");
    }
    text
}
