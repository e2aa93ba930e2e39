//! The event queue: events by (time, order of posting), for a clock that never goes back.
//!
//! A radix heap (Ahuja, Mehlhorn, Orlin and Tarjan 1990): an event lies in the bucket of the highest bit in which its
//! time differs from the clock. Advancing takes the lowest bucket that holds anything, moves the clock to its earliest
//! event and deals the bucket out again, always into lower ones. Equal times share a bucket from their posting on, in
//! the order of posting, so no sequence number is stored. Posting is O(1); an event moves at most 64 times, and the
//! many equal times of a regular plan move together.

/// Events of 64-bit times in picoseconds.
#[derive(Debug, Clone)]
pub(super) struct Queue {
    now: u64,
    /// Bucket 0 holds the present; bucket `i` times that differ from it in bit `i - 1` and none above.
    buckets: Vec<Vec<(u64, u32)>>,
    /// Events of bucket 0 that were taken.
    taken: usize,
    /// Bit `i - 1` is set if bucket `i` holds an event.
    occupied: u64,
    /// State of the generator that picks among equal times; `None` for the order of posting.
    shuffle: Option<u64>,
    spare: Vec<(u64, u32)>,
}

impl Queue {
    /// An empty queue at time 0.
    pub fn new() -> Self {
        Self {
            now: 0,
            buckets: vec![Vec::new(); 65],
            taken: 0,
            occupied: 0,
            shuffle: None,
            spare: Vec::new(),
        }
    }

    /// Empties the queue and sets the clock to 0. With a seed, equal times come in a random order.
    pub fn reset(&mut self, shuffle: Option<u64>) {
        self.buckets.iter_mut().for_each(Vec::clear);
        (self.now, self.taken, self.occupied) = (0, 0, 0);
        // The generator needs a state that is not zero.
        self.shuffle = shuffle.map(|seed| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    }

    /// The clock.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Posts an event; a time in the past counts as the present.
    pub fn push(&mut self, time: u64, event: u32) {
        let time = time.max(self.now);
        let bucket = (64 - (time ^ self.now).leading_zeros()) as usize;
        self.buckets[bucket].push((time, event));
        if bucket > 0 {
            self.occupied |= 1 << (bucket - 1);
        }
    }

    /// The next event of the present.
    pub fn pop_present(&mut self) -> Option<u32> {
        let present = &mut self.buckets[0];
        if self.taken == present.len() {
            present.clear();
            self.taken = 0;
            return None;
        }
        if let Some(state) = &mut self.shuffle {
            let left = (present.len() - self.taken) as u64;
            let pick = self.taken + (xorshift(state) % left) as usize;
            present.swap(self.taken, pick);
        }
        self.taken += 1;
        Some(present[self.taken - 1].1)
    }

    /// Whether nothing is left in the present.
    pub fn present_is_empty(&self) -> bool {
        self.taken == self.buckets[0].len()
    }

    /// Moves the clock to the next event, of which there must be none in the present; false if there is none at all.
    pub fn advance(&mut self) -> bool {
        if self.occupied == 0 {
            return false;
        }
        let lowest = self.occupied.trailing_zeros() as usize + 1;
        self.occupied &= self.occupied - 1;
        std::mem::swap(&mut self.spare, &mut self.buckets[lowest]);
        self.now = self.spare.iter().map(|e| e.0).min().unwrap_or(self.now);
        let mut events = std::mem::take(&mut self.spare);
        for (time, event) in events.drain(..) {
            self.push(time, event);
        }
        self.spare = events;
        true
    }
}

/// Marsaglia's 64-bit generator.
fn xorshift(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn drain(queue: &mut Queue) -> Vec<(u64, u32)> {
        let mut out = Vec::new();
        loop {
            while let Some(event) = queue.pop_present() {
                out.push((queue.now(), event));
            }
            if !queue.advance() {
                return out;
            }
        }
    }

    proptest! {
        /// Each event posts others as it is taken; the whole order is that of a sort by (time, order of posting).
        #[test]
        fn events_come_by_time_and_then_in_order_of_posting(
            first in prop::collection::vec(0u64..50, 1..40),
            later in prop::collection::vec((0usize..60, prop_oneof![Just(0u64), 0u64..40, 0u64..1 << 45]), 0..60)
        ) {
            let mut queue = Queue::new();
            let mut posted: Vec<(u64, u32)> = Vec::new();
            for &time in &first {
                queue.push(time, posted.len() as u32);
                posted.push((time, posted.len() as u32));
            }
            let mut taken = Vec::new();
            loop {
                while let Some(event) = queue.pop_present() {
                    for (_, delay) in later.iter().filter(|(when, _)| *when == taken.len()) {
                        queue.push(queue.now() + delay, posted.len() as u32);
                        posted.push((queue.now() + delay, posted.len() as u32));
                    }
                    taken.push((queue.now(), event));
                }
                if !queue.advance() {
                    break;
                }
            }
            posted.sort_unstable();
            prop_assert_eq!(taken, posted);
        }
    }

    #[test]
    fn shuffling_changes_only_the_order_of_equal_times() {
        let mut queue = Queue::new();
        let events: Vec<(u64, u32)> = (0..200).map(|i| (u64::from(i % 4) * 1000, i)).collect();
        let order = |seed, queue: &mut Queue| {
            queue.reset(seed);
            for &(time, event) in &events {
                queue.push(time, event);
            }
            drain(queue)
        };
        let plain = order(None, &mut queue);
        let mut shuffled = order(Some(7), &mut queue);
        assert_ne!(plain, shuffled);
        assert!(shuffled.is_sorted_by_key(|e| e.0));
        shuffled.sort_unstable();
        assert_eq!(plain, shuffled);
    }

    #[test]
    fn the_far_end_of_time_has_a_bucket() {
        let mut queue = Queue::new();
        queue.push(u64::MAX, 1);
        queue.push(0, 0);
        assert_eq!(drain(&mut queue), [(0, 0), (u64::MAX, 1)]);
    }
}
