//! Happens-before inside a rank, by the transitive closure of its lanes and waits: slow, and independent of clocks.

use ringlab_sim::plan::{Access, LANES, NO_OP, Op, Plan};

/// Pairs of operations of a rank that use a buffer, of which one writes, and that nothing orders: (rank, op, op).
pub fn races(plan: &Plan) -> Vec<(u32, u32, u32)> {
    let mut out = Vec::new();
    for (rank, program) in plan.programs.iter().enumerate() {
        let before = closure(&program.ops);
        for (later, b) in program.ops.iter().enumerate() {
            for (earlier, a) in program.ops[..later].iter().enumerate() {
                if conflict(a, b) && !before[earlier][later] {
                    out.push((rank as u32, earlier as u32, later as u32));
                }
            }
        }
    }
    out
}

fn conflict(a: &Op, b: &Op) -> bool {
    let mut found = false;
    a.kind.accesses(|x, how| {
        b.kind.accesses(|y, other| {
            found |= x == y && (how != Access::Read || other != Access::Read);
        });
    });
    found
}

/// `[i][j]`: operation i has ended before operation j starts.
fn closure(ops: &[Op]) -> Vec<Vec<bool>> {
    let n = ops.len();
    // Operations of one group start and end together.
    let mut unit: Vec<usize> = (0..n).collect();
    for lane in 0..LANES {
        let on_lane: Vec<usize> = (0..n).filter(|&i| usize::from(ops[i].lane.0) == lane).collect();
        for two in on_lane.windows(2) {
            if ops[two[0]].group != 0 && ops[two[0]].group == ops[two[1]].group {
                unit[two[1]] = unit[two[0]];
            }
        }
    }
    let mut before = vec![vec![false; n]; n];
    for j in 0..n {
        for i in 0..n {
            let same_lane = ops[i].lane == ops[j].lane && i < j && unit[i] != unit[j];
            if same_lane || ops[j].waits.iter().any(|&w| w != NO_OP && unit[w as usize] == unit[i]) {
                (0..n).filter(|&k| unit[k] == unit[j]).for_each(|k| before[i][k] = true);
            }
        }
    }
    for k in 0..n {
        let through = before[k].clone();
        for row in before.iter_mut().filter(|row| row[k]) {
            row.iter_mut().zip(&through).for_each(|(direct, &also)| *direct |= also);
        }
    }
    before
}
