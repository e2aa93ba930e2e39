//! Plans that are correct are proven, plans that are not are refused where they break.

mod common;
mod speed;
mod valid;
