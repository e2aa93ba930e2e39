//! Ctrl-C as a flag that long work looks at between its steps. SIGTERM and SIGHUP are taken as Ctrl-C: batch systems send them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

/// Set by the first Ctrl-C.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Whether Ctrl-C was pressed.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// The flag itself.
    pub fn flag(&self) -> &AtomicBool {
        &self.0
    }
}

/// Catches Ctrl-C from now on.
pub fn flag() -> Result<Stop> {
    let stop = Stop::default();
    let on_signal = stop.clone();
    ctrlc::set_handler(move || on_signal.0.store(true, Ordering::Relaxed)).context("cannot catch Ctrl-C")?;
    Ok(stop)
}
