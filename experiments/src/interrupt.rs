//! Ctrl-C as a flag that long work looks at between its steps. SIGTERM, which batch systems send, is taken as Ctrl-C.

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
    on_stop(move || on_signal.0.store(true, Ordering::Relaxed))?;
    Ok(stop)
}

/// Calls `stop` at every Ctrl-C and SIGTERM from now on.
pub fn on_stop(stop: impl Fn() + Clone + Send + 'static) -> Result<()> {
    #[cfg(unix)]
    {
        let signals = signal_hook::iterator::Signals::new([signal_hook::consts::SIGTERM]);
        let (mut signals, stop) = (signals.context("cannot catch SIGTERM")?, stop.clone());
        std::thread::spawn(move || signals.forever().for_each(|_| stop()));
    }
    ctrlc::set_handler(stop).context("cannot catch Ctrl-C")
}
