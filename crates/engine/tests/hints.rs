//! Hints of the program: what is cold, what is to leave, what is needed soon, what is to stay.

mod common;

use overspill::config::{Config, Delivery, SwapList};
use overspill::units::Bytes;
use overspill::{Advice, Pool, Region, RegionError};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;

fn pool(delivery: Delivery, settings: &str) -> Option<Pool> {
    let SwapList(swap) = "ram:64M".parse().unwrap();
    let config = Config { memory: Bytes(16 << 20), swap, delivery, ..Config::default() };
    common::pool(config, settings)
}

/// Calls `test` with a region of pages that differ, all in memory, in both deliveries and over
/// different tiers.
fn each(test: impl Fn(&Pool, &mut Region<'_>)) {
    for delivery in [Delivery::Signal, Delivery::Thread] {
        for settings in ["", "compressed=0", "out=move", "out=drop,compressed=0"] {
            let Some(pool) = pool(delivery, settings) else { return };
            let mut region = pool.map(4 * MIB).unwrap();
            let words: &mut [u64] = region.as_mut_slice();
            words.iter_mut().enumerate().for_each(|(i, word)| *word = content(i));
            // By thread the last of them may count a little later than they are there.
            wait_for(&pool, "nr_resident", |pages| pages == (4 * MIB / PAGE) as u64);
            test(&pool, &mut region);
            assert!(
                region.as_slice::<u64>().iter().enumerate().all(|(i, word)| *word == content(i)),
                "{settings}"
            );
        }
    }
}

fn content(i: usize) -> u64 {
    (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn count(pool: &Pool, name: &str) -> u64 {
    pool.stats().counters[name]
}

/// Waits until a figure is as it should be: what is not waited for happens in the background.
fn wait_for(pool: &Pool, name: &str, holds: impl Fn(u64) -> bool) {
    let began = Instant::now();
    while !holds(count(pool, name)) {
        assert!(began.elapsed() < Duration::from_secs(30), "{name} is {}", count(pool, name));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn cold_pages_go_to_the_swap_cache() {
    each(|pool, region| {
        let before = count(pool, "nr_resident");
        region.advise(MIB..2 * MIB, Advice::Cold).unwrap();
        let pages = (MIB / PAGE) as u64;
        // A page that is just being served stays.
        wait_for(pool, "pgadvised_out", |gone| gone >= pages - 8);
        assert!(count(pool, "nr_swapcached") >= pages - 8, "{:#?}", pool.stats());
        assert!(count(pool, "nr_resident") <= before - pages + 8);
    });
}

#[test]
fn pages_are_sent_out_and_brought_back() {
    each(|pool, region| {
        let (pages, stored) = ((2 * MIB / PAGE) as u64, |pool: &Pool| {
            pool.stats().counters["zswpout"] + pool.stats().counters["pswpout"]
        });
        // In place, and in the swap cache.
        region.advise(0..MIB, Advice::Cold).unwrap();
        region.advise(0..2 * MIB, Advice::PageOut).unwrap();
        assert!(stored(pool) >= pages - 8, "{:#?}", pool.stats());
        let resident = count(pool, "nr_resident");
        region.prefetch(0..2 * MIB).unwrap();
        // Some of them by the thread ahead, which may not be done with them.
        wait_for(pool, "nr_resident", |now| now >= resident + pages - 8);
        let faults = count(pool, "pgfault");
        assert!(
            region.as_slice::<u64>()[..2 * MIB / 8]
                .iter()
                .enumerate()
                .all(|(i, word)| *word == content(i))
        );
        assert!(count(pool, "pgfault") - faults <= 8, "pages that were brought in fault");
    });
}

#[test]
fn prefetching_does_not_reclaim() {
    let Some(pool) = pool(Delivery::Signal, "compressed=0") else { return };
    let mut region = pool.map(32 * MIB).unwrap();
    let words: &mut [u64] = region.as_mut_slice();
    words.iter_mut().enumerate().for_each(|(i, word)| *word = content(i));
    wait_for(&pool, "pswpout", |out| out > 3000);
    region.prefetch(0..32 * MIB).unwrap();
    let direct = count(&pool, "allocstall");
    region.prefetch(0..32 * MIB).unwrap();
    assert_eq!(count(&pool, "allocstall"), direct);
}

#[test]
fn pinned_pages_stay_and_are_not_advised_away() {
    each(|pool, region| {
        region.pin(0..MIB).unwrap();
        for what in [Advice::Cold, Advice::PageOut] {
            assert_eq!(region.advise(0..2 * MIB, what), Err(RegionError::Pinned));
        }
        pool.reclaim(Bytes(8 << 20));
        let faults = count(pool, "pgfault");
        assert!(
            region.as_slice::<u64>()[..MIB / 8]
                .iter()
                .enumerate()
                .all(|(i, word)| *word == content(i))
        );
        assert_eq!(count(pool, "pgfault"), faults, "pinned pages fault");
        region.unpin(0..MIB).unwrap();
        region.advise(0..MIB, Advice::PageOut).unwrap();
        let error = region.pin(0..4 * MIB + 1).unwrap_err();
        let says = "bytes 0 to 4194305 do not lie in a region of 4194304: name a part of it";
        assert_eq!(error.to_string(), says);
    });
}

#[test]
fn no_more_is_pinned_than_half_of_the_budget() {
    let Some(pool) = pool(Delivery::Signal, "") else { return };
    let region = pool.map(12 * MIB).unwrap();
    region.pin(0..4 * MIB).unwrap();
    let error = region.pin(0..12 * MIB).unwrap_err();
    assert_eq!(error, RegionError::PinsTooMuch { bytes: Bytes(12 << 20) });
    assert!(error.to_string().starts_with("12 MiB cannot be pinned: half"), "{error}");
    region.unpin(0..12 * MIB).unwrap();
}

#[test]
fn what_does_not_compress_moves_in_runs_whatever_lies_between() {
    let Some(pool) = pool(Delivery::Signal, "") else { return };
    let mut region = pool.map(4 * MIB).unwrap();
    // Every second page is the same word over and over but for one.
    let word = |i: usize| match i / 512 % 2 {
        0 => content(i),
        _ if i.is_multiple_of(512) => content(i),
        _ => 7,
    };
    let words: &mut [u64] = region.as_mut_slice();
    words.iter_mut().enumerate().for_each(|(i, place)| *place = word(i));
    region.advise(0..4 * MIB, Advice::PageOut).unwrap();
    let (pages, writes) = (count(&pool, "pswpout"), count(&pool, "pswpout_ops"));
    assert!(pages >= 400 && count(&pool, "zswpout") >= 400, "{:#?}", pool.stats());
    assert!(writes * 4 <= pages, "{writes} writes of {pages} pages");
    // It comes back in runs, too, where it is read in sequence.
    assert!(region.as_slice::<u64>().iter().enumerate().all(|(i, found)| *found == word(i)));
    let (pages, reads) = (count(&pool, "pswpin"), count(&pool, "pswpin_ops"));
    assert!(pages >= 400 && reads * 4 <= pages, "{reads} reads of {pages} pages");
}
