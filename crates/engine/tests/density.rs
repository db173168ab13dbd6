//! What the compressed tier packs pages with, as it finds out by itself (`zswap.codec=auto`): more
//! densely where devices are slow and the pages are worth it, and not where there is none. Each
//! page is compared to the bit. What it makes of a device that is fast depends on the clock, and is
//! left to the unit tests.

mod common;

use common::pool;
use overspill::config::{Config, Delivery, SwapList};
use overspill::units::Bytes;

const PAGE: usize = 4096;
const BUDGET: Bytes = Bytes(16 << 20);
const BUDGET_PAGES: usize = 4096;

fn mix(seed: u64) -> u64 {
    let x = (seed ^ seed >> 31).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (x ^ x >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) ^ x >> 7
}

/// A page half of which repeats, so that LZ4 packs it two to one, and whose other bytes have four
/// bits each, so that Zstandard packs it nearly four to one.
fn fill(page: &mut [u8], seed: u64) {
    for (i, word) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let random = mix(seed << 20 | i as u64) & 0x0F0F_0F0F_0F0F_0F0F;
        *word = if i / 8 % 2 == 0 { seed } else { random }.to_le_bytes();
    }
}

/// Reads pages at random, with some writes among them, from a device of that kind; how many were
/// packed more densely. None where the kernel gives this user no userfaultfd.
fn packed_densely(pages: usize, settings: &str, swap: &str) -> Option<u64> {
    let swap = swap.parse::<SwapList>().unwrap().0;
    let config = Config { memory: BUDGET, swap, delivery: Delivery::Signal, ..Config::default() };
    let pool = pool(config, settings)?;
    let mut region = pool.map(pages * PAGE).unwrap();
    let bytes: &mut [u8] = region.as_mut_slice();
    let mut written = vec![0u64; pages];
    let mut expected = [0; PAGE];
    (0..pages).for_each(|page| fill(&mut bytes[page * PAGE..][..PAGE], page as u64));
    for n in 0..pages as u64 {
        let page = (mix(n) % pages as u64) as usize;
        let here = &mut bytes[page * PAGE..][..PAGE];
        fill(&mut expected, page as u64 + written[page]);
        assert!(*here == expected, "{settings}: page {page} at access {n}");
        if n % 4 == 0 {
            written[page] += 1 << 30;
            fill(here, page as u64 + written[page]);
        }
    }
    drop(region);
    assert_eq!(pool.stats().counters["fault_errors"], 0, "{settings}");
    Some(pool.stats().counters["zswpout_dense"])
}

#[test]
fn pages_are_packed_more_densely_where_that_saves_reads() {
    let slow = "ram:1G,latency=300us";
    let Some(dense) = packed_densely(4 * BUDGET_PAGES, "", slow) else { return };
    assert!(dense > 1_000, "{dense} pages");
    assert_eq!(packed_densely(4 * BUDGET_PAGES, "zswap.codec=lz4", slow), Some(0));
}

#[test]
fn they_are_not_where_no_device_is_read() {
    let Some(dense) = packed_densely(BUDGET_PAGES * 3 / 2, "", "") else { return };
    assert_eq!(dense, 0);
}
