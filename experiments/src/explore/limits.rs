//! What one request may ask for, so that none can hang the server.

use anyhow::{Result, bail};
use ringlab_sim::schedule::Schedule;

use crate::setup::Setup;

/// Bytes of a request.
pub const BODY_BYTES: usize = 256 << 10;
/// Context-parallel degree.
pub const RANKS: u32 = 256;
/// Tokens of the sequence.
pub const TOKENS: u64 = 64 << 20;
/// Packed documents.
pub const DOCUMENTS: usize = 1024;
/// Sequences in a batch.
pub const BATCH: u32 = 64;
/// Schedules.
pub const SCHEDULES: usize = 16;
/// Operations of all plans.
pub const OPERATIONS: u64 = 2_000_000;

/// Refuses what is too much for a page that answers at once.
pub fn check(setup: &Setup) -> Result<()> {
    let documents = setup.problem.documents.len();
    let too_much = [
        (u64::from(setup.cp), u64::from(RANKS), "ranks (cp)"),
        (setup.problem.tokens(), TOKENS, "tokens (seq)"),
        (documents as u64, DOCUMENTS as u64, "documents"),
        (u64::from(setup.problem.shape.batch), u64::from(BATCH), "sequences in a batch"),
        (setup.schedules.len() as u64, SCHEDULES as u64, "schedules"),
        (operations(setup), OPERATIONS, "operations, about"),
    ];
    for (asked, most, what) in too_much {
        if asked > most {
            bail!("{what}: {asked} asked for, this page takes up to {most}; `ringlab simulate` takes more");
        }
    }
    Ok(())
}

/// Operations that the plans will have, roughly: every rank sees every other's keys, and a transfer is two operations
/// for each chunk.
fn operations(setup: &Setup) -> u64 {
    let ranks = u64::from(setup.cp);
    let passes = setup.passes.len() as u64;
    let each = ranks * ranks * (1 + 2 * u64::from(setup.chunks()));
    let plans = setup.schedules.len() as u64 + u64::from(!setup.schedules.contains(&Schedule::Ring));
    each * passes * plans
}
