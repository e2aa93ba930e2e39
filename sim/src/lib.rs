//! Context-parallel attention as data: masks, layouts, exact work, plans, their proofs and their simulation.

pub mod bound;
pub mod check;
pub mod config;
pub mod cost;
pub mod disturb;
pub mod engine;
pub mod interval;
pub mod layout;
pub mod mask;
pub mod metrics;
pub mod plan;
pub mod problem;
pub mod schedule;
pub mod tiles;
pub mod timeline;
pub mod tokens;
pub mod topology;
pub mod training;
pub mod units;
pub mod work;
