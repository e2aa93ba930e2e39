//! The schedules against their definitions: proofs, bytes in closed form, legal grids, what is refused.

mod bytes;
mod proofs;
mod refused;
mod support;
