//! Plans that are correct are proven, plans that are not are refused where they break.

mod broken_buffers;
mod broken_pairs;
mod broken_transfers;
mod common;
mod judge;
mod malformed;
mod mutated;
mod mutations;
mod naive;
mod orders;
mod shapes;
mod speed;
mod valid;
