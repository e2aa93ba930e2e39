//! Who a process is, and how processes meet.

mod launch;
mod meeting;
