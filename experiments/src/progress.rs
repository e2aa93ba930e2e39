//! How far a long computation is, on a terminal's standard error only.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar of `all` things, `done` of them there already, with their rate and the time that is left.
pub fn bar(what: &str, all: u64, done: u64) -> ProgressBar {
    let style = format!("{{bar:30}} {{human_pos}} of {{human_len}} {what}, {{per_sec}}, {{eta}} left");
    let bar = ProgressBar::new(all).with_position(done);
    bar.set_style(ProgressStyle::with_template(&style).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.reset_eta();
    bar
}
