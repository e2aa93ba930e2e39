//! One module a command.

pub mod bench;
pub mod calibrate;
pub mod check;
pub mod completions;
pub mod explore;
pub mod layout;
pub mod paper;
pub mod plot;
pub mod presets;
pub mod run;
pub mod schema;
pub mod simulate;
pub mod sweep;
pub mod train;
pub mod tune;
pub mod validate;

/// How a command that had good input ended.
pub enum Outcome {
    /// As expected.
    Fine,
    /// A proof failed, an error is above its bound.
    Failed,
    /// Ctrl-C stopped it; what was done is kept.
    Interrupted,
}
