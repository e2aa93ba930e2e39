//! What a rank posts at once: one operation, or a group of neighbours on a lane.

use crate::plan::{LANES, Op, OpId, Program};

/// An operation or a group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Posting {
    /// Where it runs.
    pub lane: usize,
    /// How many come before it on its lane.
    pub position: u32,
    first: u32,
    end: u32,
}

/// A rank's postings, in the order of their first operations.
pub(super) struct Postings {
    list: Vec<Posting>,
    members: Vec<OpId>,
    of: Vec<u32>,
}

impl Postings {
    /// Cuts a program into postings. Lanes must be valid.
    pub fn new(program: &Program) -> Self {
        let mut list: Vec<Posting> = Vec::new();
        let mut open: [Option<(u32, u32)>; LANES] = [None; LANES];
        let mut length = [0; LANES];
        let mut of = Vec::with_capacity(program.ops.len());
        for op in &program.ops {
            let lane = usize::from(op.lane.0);
            let joined = open[lane].filter(|&(group, _)| op.group != 0 && group == op.group);
            let posting = joined.map_or(list.len() as u32, |(_, posting)| posting);
            if joined.is_none() {
                list.push(Posting { lane, position: length[lane], first: 0, end: 0 });
                length[lane] += 1;
                open[lane] = Some((op.group, posting));
            }
            list[posting as usize].end += 1;
            of.push(posting);
        }
        let members = sort_members(&mut list, &of);
        Self { list, members, of }
    }

    /// All of them.
    pub fn list(&self) -> &[Posting] {
        &self.list
    }

    /// The posting that an operation belongs to.
    pub fn of(&self, op: OpId) -> u32 {
        self.of[op as usize]
    }

    /// The operations of a posting.
    pub fn members(&self, posting: u32) -> &[OpId] {
        let Posting { first, end, .. } = self.list[posting as usize];
        &self.members[first as usize..end as usize]
    }

    /// The operations that a posting's members wait for: (member, wait).
    pub fn waits<'a>(&'a self, ops: &'a [Op], posting: u32) -> impl Iterator<Item = (OpId, OpId)> + 'a {
        self.members(posting).iter().flat_map(move |&member| {
            let waits = ops[member as usize].waits;
            waits.into_iter().filter(|&w| w != crate::plan::NO_OP).map(move |w| (member, w))
        })
    }
}

/// Lists the operations posting by posting. On entry each posting's `end` is its number of members.
fn sort_members(list: &mut [Posting], of: &[u32]) -> Vec<OpId> {
    let mut start = 0;
    for posting in &mut *list {
        let count = posting.end;
        (posting.first, posting.end) = (start, start);
        start += count;
    }
    let mut members = vec![0; of.len()];
    for (op, &posting) in of.iter().enumerate() {
        let end = &mut list[posting as usize].end;
        members[*end as usize] = op as OpId;
        *end += 1;
    }
    members
}
