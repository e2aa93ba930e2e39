//! Independent work over all cores; results do not depend on how many there are.

use std::thread;

/// Elements below which another thread costs more than it does.
const LEAST: usize = 1 << 14;

/// Threads that run at once.
pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Calls `f` with the index of every whole chunk and the chunk.
pub(crate) fn for_chunks<T: Send>(data: &mut [T], chunk: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    let chunk = chunk.max(1);
    let each = (data.len() / chunk).div_ceil(cores()).max(LEAST.div_ceil(chunk));
    let work = |share: usize, part: &mut [T]| {
        part.chunks_exact_mut(chunk).enumerate().for_each(|(i, c)| f(share * each + i, c));
    };
    if data.len() <= each * chunk {
        return work(0, data);
    }
    thread::scope(|scope| {
        let work = &work;
        let parts = data.chunks_mut(each * chunk).enumerate();
        let threads: Vec<_> = parts.map(|(share, part)| scope.spawn(move || work(share, part))).collect();
        // Dropped handles detach: glibc may then free another thread's stack (bug 19951), and joins of others fail.
        // A panic is a defect of what was called, and goes on.
        for thread in threads {
            thread.join().unwrap_or_else(|e| std::panic::resume_unwind(e));
        }
    });
}

/// So many times `value`. All cores touch the memory first, which is what takes the time.
pub(crate) fn filled<T: Copy + Default + Send + Sync>(count: usize, value: T) -> Vec<T> {
    let mut data = vec![T::default(); count];
    for_chunks(&mut data, LEAST, |_, part| part.fill(value));
    let whole = count / LEAST * LEAST;
    data[whole..].fill(value);
    data
}

/// `f` of every item, in order.
pub(crate) fn map<T: Sync, R: Send>(items: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let each = items.len().div_ceil(cores()).max(1);
    thread::scope(|scope| {
        let f = &f;
        let parts: Vec<_> = items
            .chunks(each)
            .map(|part| scope.spawn(move || part.iter().map(f).collect::<Vec<R>>()))
            .collect();
        // A panic is a defect of what was called, and goes on.
        parts
            .into_iter()
            .flat_map(|part| part.join().unwrap_or_else(|e| std::panic::resume_unwind(e)))
            .collect()
    })
}

/// Whether `f` is true of an element.
pub(crate) fn any<T: Sync>(data: &[T], f: impl Fn(&T) -> bool + Sync) -> bool {
    let parts: Vec<&[T]> = data.chunks(data.len().div_ceil(cores()).max(LEAST)).collect();
    // Without a way out in the middle a block is compared by vector instructions.
    let block = |part: &[T]| part.iter().fold(false, |found, x| found | f(x));
    map(&parts, |part| part.chunks(LEAST).any(block)).contains(&true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_visited_once_whatever_the_length() {
        for count in [0, 1, 5, LEAST - 1, LEAST, LEAST + 1, 7 * LEAST + 3] {
            let mut data = vec![0_usize; 3 * count];
            for_chunks(&mut data, 3, |i, chunk| chunk.iter_mut().for_each(|x| *x += i + 1));
            assert!(data.iter().enumerate().all(|(i, &x)| x == i / 3 + 1), "{count}");
            assert_eq!(filled(count, 7_u8), vec![7; count]);
            let squares = map(&data, |x| x * x);
            assert!(squares.iter().zip(&data).all(|(s, x)| *s == x * x), "{count}");
        }
    }

    #[test]
    fn the_last_element_is_found() {
        let mut data = filled(3 * LEAST + 1, 0.0_f32);
        assert!(!any(&data, |x| x.is_nan()));
        data[3 * LEAST] = f32::NAN;
        assert!(any(&data, |x| x.is_nan()));
        assert!(!any(&[], |x: &f32| x.is_nan()));
    }
}
