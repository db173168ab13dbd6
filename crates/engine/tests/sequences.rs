//! A program that goes through memory in sequence, in whatever direction: its pages come in many at
//! a time, and are right.

mod common;

use common::pool;
use overspill::config::{Config, Delivery, SwapList};
use overspill::units::Bytes;

const PAGE: usize = 4096;
const PAGES: usize = 8_000;

/// No page compresses, each is of its own.
fn fill(page: &mut [u8], mut state: u64) {
    for word in page.as_chunks_mut::<8>().0 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        *word = state.to_le_bytes();
    }
}

/// Faults of a pass over all pages in this order, each of which is looked at and written to, and
/// pages that came in ahead of it: by signal and by thread.
fn faults(settings: &str, order: &[usize]) -> Option<[[u64; 2]; 2]> {
    let mut faults = [[0; 2]; 2];
    for (delivery, faults) in [Delivery::Signal, Delivery::Thread].into_iter().zip(&mut faults) {
        let swap = "ram:1G".parse::<SwapList>().unwrap().0;
        let config = Config { memory: Bytes(16 << 20), swap, delivery, ..Config::default() };
        let pool = pool(config, settings)?;
        let mut region = pool.map(PAGES * PAGE).unwrap();
        let bytes: &mut [u8] = region.as_mut_slice();
        bytes.chunks_exact_mut(PAGE).enumerate().for_each(|(n, page)| fill(page, n as u64));
        let counts = || ["pgfault", "swap_ahead"].map(|name| pool.stats().counters[name]);
        let before = counts();
        let mut expected = [0; PAGE];
        for n in order {
            let page = &mut bytes[n * PAGE..][..PAGE];
            fill(&mut expected, *n as u64);
            assert!(*page == expected, "{delivery:?}: page {n}");
            page[8] = std::hint::black_box(page[8]);
        }
        let after = counts();
        *faults = std::array::from_fn(|i| after[i] - before[i]);
    }
    Some(faults)
}

#[test]
fn upwards_downwards_and_from_both_ends() {
    let both = (0..PAGES).map(|n| if n % 2 == 0 { n / 2 } else { PAGES - 1 - n / 2 });
    let orders: [(&str, Vec<usize>); 3] = [
        ("up", (0..PAGES).collect()),
        ("down", (0..PAGES).rev().collect()),
        ("from both ends", both.collect()),
    ];
    let ahead_is_off = "compressed=0,ahead=off";
    for settings in ["compressed=0", ahead_is_off, "compressed=0,readahead=1", "compressed=50"] {
        let mut all_ahead = 0;
        for (name, order) in &orders {
            let Some(counts) = faults(settings, order) else { return };
            for [faults, ahead] in counts {
                assert!(faults < PAGES as u64 / 6, "{settings}: {name}: {counts:?}");
                all_ahead += ahead;
            }
        }
        let is_right = match settings {
            _ if settings == ahead_is_off => all_ahead == 0,
            _ => all_ahead > 0 || settings == "compressed=50",
        };
        assert!(is_right, "{settings}: {all_ahead} pages ahead of the program");
    }
}
