//! The simulator against closed forms, hand-computed cases and bounds.

mod calls;
mod errors;
mod fluid;
mod ideal_limits;
mod launches;
mod linked;
mod links;
mod network;
mod one_way;
mod overlap;
mod power;
mod priority;
mod random_plans;
mod sms;
mod support;
