//! The training iteration against published counts, formulas and closed forms.

mod collectives;
mod grids;
mod iteration;
mod memory;
mod support;
