//! Threads that start together, work until they are told to stop or are done, and are timed.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What the threads of one run did.
#[derive(Debug)]
pub struct Timed<T> {
    /// What each returned.
    pub results: Vec<T>,
    /// From the start of the first to the end of the last.
    pub elapsed: Duration,
}

/// Runs `work` on `count` threads that start together; its argument becomes true once `time` has
/// passed, when it is to come to an end. With `pinned`, thread i stays on the i-th of the
/// processors that this process may use, in turn.
pub fn run<T: Send>(
    count: usize,
    pinned: bool,
    time: Duration,
    work: impl Fn(&AtomicBool) -> T + Sync,
) -> Timed<T> {
    with_items(&mut vec![(); count], pinned, time, |(), stop| work(stop))
}

/// Runs `work` on a pinned thread for each of `items`, until each is done with its own.
pub fn each<I: Send, T: Send>(items: &mut [I], work: impl Fn(&mut I) -> T + Sync) -> Timed<T> {
    with_items(items, true, Duration::ZERO, |item, _| work(item))
}

/// Runs `work` on a thread that stays on its processor.
pub fn alone<T: Send>(work: impl Fn() -> T + Sync) -> T {
    each(&mut [()], |()| work()).results.pop().expect("one thread has one result")
}

fn with_items<I: Send, T: Send>(
    items: &mut [I],
    pinned: bool,
    time: Duration,
    work: impl Fn(&mut I, &AtomicBool) -> T + Sync,
) -> Timed<T> {
    let cpus = if pinned { allowed_cpus() } else { Vec::new() };
    let (start, stop) = (Barrier::new(items.len() + 1), AtomicBool::new(false));
    let body = |index: usize, item: &mut I| {
        if !cpus.is_empty() {
            pin(cpus[index % cpus.len()]);
        }
        start.wait();
        let began = Instant::now();
        let result = work(item, &stop);
        (result, began, Instant::now())
    };
    let done: Vec<(T, Instant, Instant)> = std::thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = items
            .iter_mut()
            .enumerate()
            .map(|(index, item)| scope.spawn(move || body(index, item)))
            .collect();
        start.wait();
        std::thread::sleep(time);
        stop.store(true, Relaxed);
        threads.into_iter().map(|thread| thread.join().expect("a panic ends the process")).collect()
    });
    let began = done.iter().map(|(_, began, _)| *began).min().expect("there are threads");
    let ended = done.iter().map(|(_, _, ended)| *ended).max().expect("there are threads");
    Timed { results: done.into_iter().map(|(result, ..)| result).collect(), elapsed: ended - began }
}

/// The processors that this process may use; none if the kernel does not say.
fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// Keeps the calling thread on a processor. One that was taken away meanwhile is no reason to stop.
fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    let _ = sched_setaffinity(None, &set);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn threads_overlap_until_told_to_stop_and_the_time_covers_all() {
        let inside = AtomicUsize::new(0);
        let timed = run(5, false, Duration::from_millis(2), |stop| {
            let began = Instant::now();
            inside.fetch_add(1, Relaxed);
            // Threads one after another would wait here for ever.
            while inside.load(Relaxed) < 5 || !stop.load(Relaxed) {
                std::thread::yield_now();
            }
            began.elapsed()
        });
        assert_eq!(timed.results.len(), 5);
        assert!(timed.results.iter().all(|own| timed.elapsed >= *own), "{timed:?}");
    }

    #[test]
    fn each_item_is_worked_on_once_by_threads_on_the_allowed_processors_in_turn() {
        let cpus = allowed_cpus();
        let mut items: Vec<usize> = (0..cpus.len() + 1).collect();
        let timed = each(&mut items, |item| {
            *item += 1;
            allowed_cpus()
        });
        assert!(items.into_iter().eq(1..cpus.len() + 2));
        let expected = cpus.iter().chain(&cpus[..1]).map(|cpu| vec![*cpu]);
        assert!(timed.results.into_iter().eq(expected));
    }
}
