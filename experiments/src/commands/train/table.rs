//! An iteration as a person reads it.

use ringlab_sim::schedule::Schedule;
use ringlab_sim::training::{Breakdown, LONGEST, Memory, Moment, Training};
use ringlab_sim::units::{Bytes, SimTime};

use super::Iteration;
use crate::grid::grid;

/// The parts of the time, in order; they add up to the iteration.
pub fn times(t: &Breakdown) -> Vec<(&'static str, SimTime)> {
    vec![
        ("matrix products", t.matmul),
        ("element-wise kernels", t.elementwise),
        ("attention", t.attention),
        ("context parallelism, exposed", t.exposed_context),
        ("tensor parallelism, exposed", t.exposed_tensor),
        ("experts' exchanges, exposed", t.exposed_experts),
        ("weights and gradients, exposed", t.exposed_data),
        ("pipeline transfers", t.exposed_pipeline),
        ("pipeline bubble", t.bubble),
        ("recomputation", t.recompute),
        ("host", t.host),
        ("optimiser", t.optimizer),
    ]
}

/// The parts of the memory, in order. Logits are gone before a layer is at work, so the larger of both counts.
pub fn memory(m: &Memory) -> Vec<(&'static str, Bytes)> {
    vec![
        ("weights", m.weights),
        ("gradients", m.gradients),
        ("optimiser state", m.optimizer),
        ("activations", m.activations),
        ("attention staging", m.attention),
        ("layer at work", m.working),
        ("logits", m.logits),
        ("runtime", m.reserved),
    ]
}

/// How the context-parallel ranks share the sequence; not all schedules make rings of them.
fn context(training: &Training) -> String {
    let (ulysses, ring, schedule) = (training.grid.ulysses, training.grid.ring, training.context.schedule);
    match schedule {
        Schedule::Ulysses | Schedule::Usp { .. } | Schedule::MegatronSp if ulysses == 1 => {
            schedule.to_string()
        }
        Schedule::Ulysses | Schedule::Usp { .. } | Schedule::MegatronSp => {
            format!("ulysses {ulysses} x {schedule} of {ring} ranks")
        }
        _ => format!("ulysses {ulysses} x ring {ring}, {schedule}"),
    }
}

/// Time, memory, and with `over_time` the moments.
pub fn table(iteration: &Iteration, over_time: bool) -> String {
    let mut text = heading(iteration) + "\n";
    text += &time_table(&iteration.prediction.time);
    text += "\n";
    text += &memory_table(&iteration.prediction.memory);
    if over_time {
        text += "\n";
        text += &moments(&iteration.moments);
    }
    text + "\n" + &notes(iteration)
}

/// What is computed, and on what.
fn heading(iteration: &Iteration) -> String {
    let Iteration { model, cluster, training, .. } = iteration;
    let grid = &training.grid;
    format!(
        "One iteration of {} on {} x {} ({})\n\
         tp {} x cp {} ({}) x dp {} x pp {}, {} sequences of {} tokens\n",
        model.name,
        grid.gpus(),
        cluster.device.name,
        cluster.name,
        grid.tp,
        grid.cp,
        context(training),
        grid.dp,
        grid.pp,
        training.micro_batch * training.micro_batches * grid.dp,
        training.seq,
    )
}

fn time_table(time: &Breakdown) -> String {
    let share = |t: SimTime| format!("{:.1}%", 100.0 * t.as_secs_f64() / time.total.as_secs_f64());
    let mut rows: Vec<[String; 3]> = times(time)
        .into_iter()
        .filter(|(_, t)| *t > SimTime::ZERO)
        .map(|(part, t)| [part.to_owned(), t.to_string(), share(t)])
        .collect();
    rows.push(["iteration".into(), time.total.to_string(), share(time.total)]);
    grid(["time", "", "share"], 1, rows)
}

fn memory_table(of: &Memory) -> String {
    let mut rows: Vec<[String; 2]> = memory(of)
        .into_iter()
        .filter(|(_, b)| b.0 > 0)
        .map(|(part, b)| [part.to_owned(), b.to_string()])
        .collect();
    rows.push(["peak".into(), of.total.to_string()]);
    rows.push(["device".into(), of.capacity.to_string()]);
    grid(["memory of the fullest GPU", ""], 1, rows)
}

/// Whether it fits, how long a sequence would, the rate, and what was padded.
fn notes(iteration: &Iteration) -> String {
    let (over, longest) = (iteration.prediction.memory.over, &iteration.longest);
    let fits = over.map_or("it fits".to_owned(), |over| format!("out of memory, {over} too much"));
    let mut text = format!(
        "  {fits}; longest sequence that fits: {} tokens ({} as a power of two)\n",
        longest.exact, longest.power_of_two
    );
    if longest.exact + longest.multiple > LONGEST {
        text += &format!("  sequences of more than {LONGEST} tokens are not looked for\n");
    }
    text += &format!(
        "  {:.0} tokens a second; MFU {:.1}%: FLOPs of the model, without recomputation, over the bf16 peak\n",
        iteration.rate(),
        100.0 * iteration.mfu()
    );
    if iteration.padding() > 0 {
        let layout = iteration.training.context.schedule.layout();
        text += &format!("  padding to fit the {layout} layout: {} tokens a sequence\n", iteration.padding());
    }
    text + "  peak: logits are gone before a layer is at work, so the larger of both counts\n"
}

fn moments(moments: &[Moment]) -> String {
    let header = ["phase", "layers kept", "at", "activations", "attention", "at work", "logits", "total"];
    let rows = moments.iter().map(|m| {
        let phase = format!("{:?}", m.phase).to_lowercase();
        let bytes = [m.activations, m.attention, m.working, m.logits, m.total()].map(|b| b.to_string());
        let [activations, attention, working, logits, total] = bytes;
        [phase, m.layers.to_string(), m.at.to_string(), activations, attention, working, logits, total]
    });
    grid(header, 1, rows)
}
