//! Every wait of a lowered plan is needed: without it, and with one stream or another as late as can be, the numbers are
//! wrong.

use std::collections::BTreeSet;

use ringlab_sim::mask::Pattern;
use ringlab_sim::plan::{Access, Op, OpKind, Plan};
use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::{self, Schedule};

use super::support::{Case, TOLERANCE, members, plan_of, problem, quick, shape};
use super::world::Trouble;
use crate::cuda::command::{Command, Post};
use crate::cuda::prepare::Session;
use crate::cuda::{Copies, Mode, Options};
use crate::inputs::Inputs;

/// A post of a member's program.
type Node = (usize, usize);

/// Everything that goes on only after `from` has been reached, by streams, events and flags, without the post `without`.
fn after(posts: &[Vec<Post>], from: Node, without: Node) -> BTreeSet<Node> {
    let matches = |a: &Command, b: &Command| match (a, b) {
        (Command::Record(x), Command::Await(y)) => x == y,
        (Command::RaiseFlag(x), Command::AwaitFlag(y)) => x == y,
        _ => false,
    };
    let mut reached = BTreeSet::from([from]);
    let mut open = vec![from];
    while let Some((g, i)) = open.pop() {
        let post = &posts[g][i];
        let mut later =
            (i + 1..posts[g].len()).filter(|&j| posts[g][j].stream == post.stream).map(|j| (g, j));
        // A stream goes on past a wait that is not there.
        let next = later.find(|&n| n != without);
        let woken = posts.iter().enumerate().flat_map(|(h, others)| {
            let same_gpu = move |c: &Command| !matches!(c, Command::Await(_)) || h == g;
            let wakes = move |p: &Post| same_gpu(&p.command) && matches(&post.command, &p.command);
            others.iter().enumerate().filter(move |(_, p)| wakes(p)).map(move |(j, _)| (h, j))
        });
        let new = next.into_iter().chain(woken).filter(|&n| n != without && reached.insert(n));
        open.extend(new.collect::<Vec<_>>());
    }
    reached
}

/// Whether a wait orders anything: memory is touched after it that is not touched after its cause in another way.
fn matters(posts: &[Vec<Post>], cause: Node, wait: Node) -> bool {
    let (g, i) = wait;
    let next = (i + 1..posts[g].len()).find(|&j| posts[g][j].stream == posts[g][i].stream);
    let Some(next) = next.map(|j| (g, j)) else { return false };
    let touches = |&&(g, i): &&Node| matches!(posts[g][i].command, Command::Copy(_) | Command::Launch(_));
    let anyway = after(posts, cause, wait);
    after(posts, next, wait).iter().filter(touches).any(|node| !anyway.contains(node))
}

/// Flags of pulled messages that are waited for although nothing is written: to the buffer before it is read, or after.
fn idle(plan: &Plan, session: &Session<'_>) -> Vec<Command> {
    let mut flags = Vec::new();
    for program in &plan.programs {
        for (i, op) in program.ops.iter().enumerate() {
            let OpKind::Send { message, buffer } = op.kind else { continue };
            let written = |ops: &[Op]| {
                let mut found = false;
                for op in ops {
                    op.kind.accesses(|b, access| {
                        found |= access != Access::Read && buffer.iter().any(|x| x == b);
                    });
                }
                found
            };
            let m = plan.message(message);
            let (free, sent) = (session.flags.free(m.from, message), session.flags.sent(m.to, message));
            flags.extend((!written(&program.ops[i + 1..])).then_some(Command::AwaitFlag(free)));
            flags.extend((!written(&program.ops[..i])).then_some(Command::AwaitFlag(sent)));
        }
    }
    flags
}

/// What a wait waits for.
fn cause(posts: &[Vec<Post>], (g, i): Node) -> Option<Node> {
    let find = |g: usize, wanted: Command| posts[g].iter().position(|p| p.command == wanted).map(|i| (g, i));
    match posts[g][i].command {
        Command::Await(event) => find(g, Command::Record(event)),
        Command::AwaitFlag(flag) => (0..posts.len()).find_map(|h| find(h, Command::RaiseFlag(flag))),
        _ => None,
    }
}

/// Drops each wait in turn; how many were needed.
fn drop_each(case: &Case, plan: &Plan, inputs: &Inputs, how: &Options) -> usize {
    let session = |trouble| Session::new(plan, inputs, how, members(plan.ranks(), 3, trouble)).unwrap();
    let whole = session(Trouble::default());
    let original: Vec<Vec<Post>> = whole.programs.iter().map(|p| p.posts.clone()).collect();
    let idle = if how.copies == Copies::Pull { idle(plan, &whole) } else { Vec::new() };
    let used = original.iter().enumerate().flat_map(|(g, posts)| posts.iter().map(move |p| (g, p.stream)));
    let streams: BTreeSet<(usize, usize)> = used.collect();
    let mut needed = 0;
    for (g, posts) in original.iter().enumerate() {
        for (i, post) in posts.iter().enumerate() {
            let matters = cause(&original, (g, i)).is_some_and(|cause| matters(&original, cause, (g, i)));
            if !matters || idle.contains(&post.command) {
                continue;
            }
            let is_wrong = |lazy: (usize, usize)| {
                let mut broken = session(Trouble { lazy: Some(lazy), ..Trouble::default() });
                broken.programs[g].posts.remove(i);
                broken.run().map_or(true, |run| case.errors(&run).worst() > TOLERANCE)
            };
            let wrong = streams.iter().copied().any(is_wrong);
            assert!(
                wrong,
                "{} of {}: rank {g} does without {:?}, post {i}",
                plan.pass, plan.name, post.command
            );
            needed += 1;
        }
    }
    needed
}

fn check(schedule: Schedule, options: schedule::Options, how: &Options) {
    let case = Case::new(problem(shape(2, 2, 1), Pattern::Causal, &[24]), 11);
    let mut inputs = case.inputs.clone();
    let mut needed = 0;
    for pass in [Pass::Forward, Pass::Backward] {
        let plan = plan_of(schedule, &case.problem, 3, &schedule::Options { pass, ..options });
        let session = Session::new(&plan, &inputs, how, members(3, 1, Trouble::default())).unwrap();
        let run = session.run().unwrap();
        needed += drop_each(&case, &plan, &inputs, how);
        inputs.forward = run.outcome.results.forward().cloned().or(inputs.forward.take());
    }
    assert!(needed > 10, "{schedule}: only {needed} waits were tried");
}

fn plan_options() -> schedule::Options {
    schedule::Options::new(Pass::Forward)
}

#[test]
fn of_a_ring() {
    check(Schedule::Zigzag, plan_options(), &quick());
    check(Schedule::Striped { block: 1 }, plan_options(), &Options { copies: Copies::Pull, ..quick() });
}

#[test]
fn of_gradients_that_leave_in_parts() {
    check(Schedule::Striped { block: 1 }, schedule::Options { chunks: 2, ..plan_options() }, &quick());
}

#[test]
fn of_fused_launches() {
    let prefetch = schedule::Options { prefetch: 2, ..plan_options() };
    for copies in [Copies::Push, Copies::Pull] {
        check(Schedule::Zigzag, prefetch, &Options { mode: Mode::FusedSegments, copies, ..quick() });
    }
}

#[test]
fn of_helpers_and_queries_on_the_way() {
    check(Schedule::DistFlash, plan_options(), &quick());
    check(Schedule::Burst { zigzag: true }, plan_options(), &quick());
}
