//! What a fault takes beside what the engine sees of it: the signal or the wake-up of a thread, and
//! the way back. That differs from machine to machine, and with how busy one is; so it is measured,
//! with a small pool of this process.

use overspill::Pool;
use overspill::config::{Config, Delivery, SwapList};
use overspill::stats::Counter;
use overspill::units::{Bytes, PAGE_SIZE};
use std::time::{Duration, Instant};

/// Where it cannot be measured, or is not yet.
pub const USUAL: Duration = Duration::from_nanos(4500);
/// What it may be at most.
const MOST: Duration = Duration::from_micros(60);
/// What a program finds gone from the caches after a fault, which a loop that only faults does not
/// (ARCHITECTURE.md, "What one run tells of other budgets").
const CACHES: Duration = Duration::from_micros(1);
/// How long that takes.
const TIME: Duration = Duration::from_millis(200);
const MEMORY: Bytes = Bytes(8 << 20);
const REGION: usize = 24 << 20;
/// The engine's histogram tells the top of each bucket.
pub const BUCKET_PART: f64 = 0.95;

/// Measures it with faults delivered in this way.
pub fn measure(delivery: Delivery) -> Duration {
    // What does not fit compressed is not to be in the way.
    let SwapList(swap) = "ram:64M".parse().expect("a device in memory");
    let config = Config { memory: MEMORY, delivery, swap, ..Config::default() };
    Pool::new(config).ok().and_then(|pool| of_pool(&pool)).unwrap_or(USUAL)
}

fn of_pool(pool: &Pool) -> Option<Duration> {
    const WORDS: usize = PAGE_SIZE / size_of::<u64>();
    let mut region = pool.map_of::<u64>(REGION / size_of::<u64>()).ok()?;
    let words = region.as_mut_slice();
    // An eighth of each page has contents that do not compress.
    let mut random = 1u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        random
    };
    words.iter_mut().step_by(8).for_each(|word| *word = next());
    let seen = || {
        let stats = pool.stats();
        (stats.fault_ns_total, stats.get(Counter::PgFault))
    };
    let (began, before) = (Instant::now(), seen());
    while began.elapsed() < TIME {
        for _ in 0..64 {
            let page = (next() >> 33) as usize % (words.len() / WORDS);
            words[page * WORDS] += 1;
        }
    }
    let (elapsed, after) = (began.elapsed(), seen());
    let (ns, faults) = (after.0 - before.0, after.1 - before.1);
    let inside = Duration::from_nanos((ns as f64 * BUCKET_PART) as u64);
    let around = elapsed.saturating_sub(inside).checked_div(faults.try_into().ok()?)?;
    Some(around.min(MOST) + CACHES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_less_than_a_fault_of_a_disk() {
        for delivery in [Delivery::Signal, Delivery::Thread] {
            let around = measure(delivery);
            assert!(around > Duration::ZERO && around <= MOST + CACHES, "{delivery:?}: {around:?}");
        }
    }
}
