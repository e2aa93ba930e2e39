//! A limit on the time of long work that is made of steps.

use std::time::{Duration, Instant};

/// Says before which step to stop: before the first that would end after the limit if it took as long as the longest so
/// far.
#[derive(Debug)]
pub struct Limit {
    start: Instant,
    limit: Option<Duration>,
    /// Beginning of the step that is under way, since the start.
    step: Option<Duration>,
    longest: Duration,
}

impl Limit {
    /// Counts from now on.
    pub fn new(limit: Option<Duration>) -> Self {
        Self { start: Instant::now(), limit, step: None, longest: Duration::ZERO }
    }

    /// Begins a step, and ends the one before: whether there is time for it.
    pub fn allows_next(&mut self) -> bool {
        self.allows_at(self.start.elapsed())
    }

    fn allows_at(&mut self, now: Duration) -> bool {
        if let Some(before) = self.step.replace(now) {
            self.longest = self.longest.max(now.saturating_sub(before));
        }
        self.limit.is_none_or(|limit| now + self.longest < limit)
    }

    /// The limit, for people.
    pub fn text(&self) -> String {
        self.limit
            .map_or_else(|| "no limit".into(), |limit| format!("the limit of {} s", limit.as_secs_f64()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(limit: Option<u64>, begins: &[u64]) -> Vec<bool> {
        let mut limit = Limit::new(limit.map(Duration::from_secs));
        begins.iter().map(|&s| limit.allows_at(Duration::from_secs(s))).collect()
    }

    #[test]
    fn the_longest_step_so_far_must_still_fit() {
        // Steps of 2, 5 and 1 s after 3 s of preparation: at 5 there are 2 to spare, at 10 and 11 the longest took 5.
        assert_eq!(at(Some(16), &[3, 5, 10, 11]), [true, true, true, false]);
        assert_eq!(at(Some(15), &[3, 5, 10]), [true, true, false]);
        assert_eq!(at(Some(0), &[0]), [false]);
        assert_eq!(at(None, &[0, 1_000_000]), [true, true]);
    }
}
