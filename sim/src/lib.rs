//! Context-parallel attention as data: masks, layouts, exact work, plans, their proofs and their simulation.

pub mod layout;
pub mod mask;
pub mod tiles;
pub mod tokens;
pub mod work;
