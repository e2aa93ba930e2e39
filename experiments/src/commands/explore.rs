//! `ringlab explore`: the page.

use anyhow::Result;

use super::Outcome;
use crate::args::ExploreArgs;
use crate::explore;

/// Serves until the process is stopped.
pub fn run(args: &ExploreArgs) -> Result<Outcome> {
    explore::serve(args.listen, args.port)?;
    Ok(Outcome::Fine)
}
