//! FlashAttention kernels for any token layout, the typed launch specs in front of them, and the f64 reference they
//! are held against.

pub mod abi;
pub mod gpu;
mod items;
pub mod lab;
pub mod reference;
pub mod sections;
pub mod source;
pub mod spec;
pub mod tiles;
pub mod variant;
