//! Pictures and files of simulated timelines.

mod areas;
mod chart;
mod exports;
mod gantt;
mod picture;
mod timelines;
