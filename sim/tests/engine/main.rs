//! The simulator against closed forms, hand-computed cases and bounds.

mod ideal_limits;
mod support;
