//! What comes in from a device beside the page that is missing.

mod common;

use common::pool;
use overspill::Region;
use overspill::config::{Config, Delivery};
use overspill::stats::Counter;
use overspill::units::{Bytes, PAGE_SIZE};

const WORDS: usize = PAGE_SIZE / 8;
const PAGES: usize = (24 << 20) / PAGE_SIZE;

/// A word of a page, which does not compress.
fn word(page: usize, at: usize) -> u64 {
    let seed = (page * WORDS + at) as u64;
    (seed ^ seed >> 7).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29).wrapping_mul(seed | 1)
}

fn fill(region: &mut Region) {
    for (page, words) in region.as_mut_slice::<u64>().chunks_exact_mut(WORDS).enumerate() {
        words.iter_mut().enumerate().for_each(|(at, value)| *value = word(page, at));
    }
}

/// Reads `count` pages here and there.
fn check_scattered(region: &mut Region, count: usize) {
    let words = region.as_mut_slice::<u64>();
    for page in (0..count).map(|i| i * 1013 % PAGES) {
        let at = page % WORDS;
        assert_eq!(words[page * WORDS + at], word(page, at), "page {page}");
    }
}

#[test]
fn what_has_left_comes_back_in_runs_once_there_is_room_for_it() {
    for delivery in [Delivery::Signal, Delivery::Thread] {
        let swap = vec!["ram:64M".parse().unwrap()];
        let config = Config { memory: Bytes(8 << 20), swap, delivery, ..Config::default() };
        let Some(pool) = pool(config, "compressed=0") else { return };
        let mut region = pool.map(PAGES * PAGE_SIZE).unwrap();
        fill(&mut region);
        let counters = || {
            let stats = pool.stats();
            [Counter::PgMajFault, Counter::SwapRa].map(|counter| stats.get(counter))
        };
        // Without room nothing comes with pages that are read at random.
        let before = counters();
        check_scattered(&mut region, 1000);
        let [faults, ahead] = counters();
        let faults = faults - before[0];
        assert!(faults > 500 && ahead - before[1] < faults / 4, "{faults}, {ahead} {delivery:?}");
        // With room all of it is back after few reads.
        pool.set_memory(Bytes(64 << 20)).unwrap();
        let before = counters();
        check_scattered(&mut region, PAGES);
        let [faults, ahead] = counters();
        let faults = faults - before[0];
        assert!(ahead - before[1] > PAGES as u64 / 2, "{ahead} {delivery:?}");
        assert!(faults < PAGES as u64 / 4, "{faults} major faults {delivery:?}");
        pool.check();
    }
}
