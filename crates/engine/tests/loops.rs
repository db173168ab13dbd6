//! A program that goes round in less than the budget, beside memory that it has left: all that it
//! goes round in comes to be resident, although no page of it comes back before all of it has left.
//! One that goes round in more is told how much memory would have kept its pages.

mod common;

use common::pool;
use overspill::config::{Config, Delivery, SwapList};
use overspill::units::Bytes;

const PAGE: usize = 4096;
const BUDGET: Bytes = Bytes(16 << 20);
/// Most of what the budget leaves the compressed tier, and less than half of the budget.
const COLD_PAGES: usize = 6_400;
const ROUND_PAGES: usize = 1_800;

/// Three words in five are numbers in order, the others random.
fn fill(page: &mut [u8], mut state: u64) {
    for (i, word) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        *word = if i % 5 < 2 { state } else { i as u64 }.to_le_bytes();
    }
}

fn goes_round(delivery: Delivery, writes: bool) {
    let swap = "ram:1G".parse::<SwapList>().unwrap().0;
    let config = Config { memory: BUDGET, swap, delivery, ..Config::default() };
    let Some(pool) = pool(config, "") else { return };
    let mut region = pool.map((ROUND_PAGES + COLD_PAGES) * PAGE).unwrap();
    let bytes: &mut [u8] = region.as_mut_slice();
    let mut faults = Vec::new();
    let mut sum = 0u64;
    for (n, page) in bytes.chunks_exact_mut(PAGE).enumerate() {
        fill(page, n as u64);
    }
    for round in 0..60u64 {
        let before = pool.stats().counters["pgfault"];
        for i in 0..ROUND_PAGES {
            let at = i * 1009 % ROUND_PAGES * PAGE;
            sum += u64::from(bytes[at]);
            bytes[at + 1] ^= u8::from(writes) * round as u8;
        }
        faults.push(pool.stats().counters["pgfault"] - before);
    }
    let last: u64 = faults[40..].iter().sum();
    assert!(last < ROUND_PAGES as u64 / 2, "{delivery:?}: faults of each round: {faults:?}");
    // What it has left is as it was, and so is what it went round in.
    let mut expected = [0; PAGE];
    let changed = (0..60).fold(0, |sum, round| sum ^ (u8::from(writes) * round));
    for (n, page) in bytes.chunks_exact(PAGE).enumerate() {
        fill(&mut expected, n as u64);
        expected[1] ^= if n < ROUND_PAGES { changed } else { 0 };
        assert!(*page == expected, "page {n}");
    }
    assert!(sum > 0);
}

#[test]
fn what_a_program_goes_round_in_becomes_resident() {
    for delivery in [Delivery::Signal, Delivery::Thread] {
        goes_round(delivery, false);
        goes_round(delivery, true);
    }
}

/// Each page of a loop comes back when all the others were used, so all of it would have to fit:
/// that is what is told, in a budget that is much smaller and from the first turn on.
#[test]
fn a_loop_tells_how_large_it_is() {
    const PAGES: usize = 8_000;
    for delivery in [Delivery::Signal, Delivery::Thread] {
        let swap = "ram:1G".parse::<SwapList>().unwrap().0;
        let config = Config { memory: BUDGET, swap, delivery, ..Config::default() };
        let Some(pool) = pool(config, "") else { return };
        let [mut region, mut other] = [PAGES, PAGES / 2].map(|n| pool.map(n * PAGE).unwrap());
        for region in [&mut region, &mut other] {
            let pages = region.as_mut_slice().chunks_exact_mut(PAGE);
            pages.enumerate().for_each(|(n, page)| fill(page, n as u64));
        }
        // What is given up is away no more.
        drop(other);
        let bytes: &mut [u8] = region.as_mut_slice();
        for _ in 0..5 {
            bytes.chunks_exact_mut(PAGE).for_each(|page| page[0] ^= 1);
        }
        let (mut all, mut near) = (0, 0);
        for (from, to, count) in pool.stats().stack_distances.curve() {
            let is_near = to > 0.75 * PAGES as f64 && from < 1.25 * PAGES as f64;
            (all, near) = (all + count, near + u64::from(is_near) * count);
        }
        assert!(all > PAGES as u64 && near * 10 > all * 8, "{delivery:?}: {near} of {all}");
    }
}
