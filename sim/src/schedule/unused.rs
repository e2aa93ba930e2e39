//! Options that a schedule has no use for, said in the plan.

use super::{Options, Route};
use crate::plan::builder::PlanBuilder;

/// Which options have no effect.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unused {
    pub route: bool,
    pub chunks: bool,
    pub prefetch: bool,
    pub needed_only: bool,
}

impl Unused {
    /// None of them has any.
    pub const ALL: Self = Self { route: true, chunks: true, prefetch: true, needed_only: true };

    /// Notes those that are set to something else than the default.
    pub fn note(self, b: &mut PlanBuilder, options: &Options) {
        let set = [
            ("route", self.route && options.route != Route::Neighbour),
            ("chunks", self.chunks && options.chunks != 1),
            ("prefetch", self.prefetch && options.prefetch != 1),
            ("needed-only", self.needed_only && options.needed_only),
        ];
        for (name, _) in set.iter().filter(|(_, set)| *set) {
            b.note(format!("{name}: no effect on this schedule"));
        }
    }
}
