//! A pool in its own process, in both deliveries, on the real userfaultfd.

mod common;

use overspill::Pool;
use overspill::config::{Config, Delivery};
use overspill::stats::{FaultSource, Snapshot};
use overspill::units::Bytes;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

/// A pool of 16 MiB; `None`, loudly, where the kernel gives this user no userfaultfd.
fn pool(delivery: Delivery, settings: &str) -> Option<Pool> {
    pool_of(16 * MIB, delivery, settings)
}

fn pool_of(memory: usize, delivery: Delivery, settings: &str) -> Option<Pool> {
    let mut config = Config { memory: Bytes(memory as u64), delivery, ..Config::default() };
    config.swap = vec![env!("CARGO_TARGET_TMPDIR").parse().unwrap()];
    config.window = Some(Bytes(4 << 30));
    common::pool(config, settings)
}

fn mix(seed: u64) -> u64 {
    let x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (x ^ x >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}

/// A third of the pages compresses well, a third badly, a third is one value.
fn value(i: usize) -> u64 {
    match (i / 512) % 3 {
        0 => mix(i as u64),
        1 => (i as u64) / 7,
        _ => 0x0101_0101_0101_0101u64.wrapping_mul((i / 512) as u64 % 200),
    }
}

fn write_and_check(delivery: Delivery, settings: &str, size: usize) {
    let Some(pool) = pool(delivery, settings) else { return };
    let mut region = pool.map(size).unwrap();
    let values: &mut [u64] = region.as_mut_slice();
    // Sequential writes, sequential reads, random updates, a check of everything.
    values.iter_mut().enumerate().for_each(|(i, v)| *v = value(i));
    for (i, v) in values.iter().enumerate() {
        assert_eq!(*v, value(i), "at {i}");
    }
    let mut rng = 1;
    for _ in 0..size / 8192 {
        rng = mix(rng);
        let i = rng as usize % values.len();
        assert_eq!(values[i], value(i), "at {i}");
        values[i] = value(i);
    }
    values.iter().enumerate().for_each(|(i, v)| assert_eq!(*v, value(i), "at {i}"));
    let (stats, kinds) = settled(&pool);
    let get = |name: &str| stats.counters[name];
    assert!(get("charged_peak_bytes") <= 16 << 20, "{stats:#?}");
    // Each of the three sequential passes evicts what the budget does not hold.
    assert!(
        get("out_moved") + get("out_dropped") > 2 * (size as u64 - (16 << 20)) / 4096,
        "{stats:#?}"
    );
    assert_eq!(get("fault_errors"), 0);
    // Who waits for a device or for room is seen to wait.
    let [zero, .., device, _] = kinds;
    assert!(
        zero > 0 && device <= get("pgmajfault") && (device == 0) == (get("pgmajfault") == 0),
        "{stats:#?}"
    );
    let [some, full] = [stats.pressure.some.total_us, stats.pressure.full.total_us];
    assert!(full <= some && (some > 0) == (device + get("allocstall") > 0), "{stats:#?}");
}

/// The statistics of a pool, and its faults by where their pages came from, once the last of them
/// is counted: by thread that is a little later than it is served. Each fault is of a kind.
fn settled(pool: &Pool) -> (Snapshot, [u64; 5]) {
    let began = Instant::now();
    loop {
        let stats = pool.stats();
        let kinds = FaultSource::ALL.map(|source| stats.latency.of(source).count());
        if kinds.iter().sum::<u64>() == stats.counters["pgfault"] {
            return (stats, kinds);
        }
        assert!(began.elapsed() < Duration::from_secs(10), "{stats:#?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Where few pages of each extent are in memory, those of several leave with one flush.
#[test]
fn scattered_pages_leave_together() {
    let Some(pool) = pool_of(4 * MIB, Delivery::Signal, "compressed=85,zswap.keep=off") else {
        return;
    };
    let mut region = pool.map(32 * MIB).unwrap();
    // A page takes some 250 bytes.
    let content =
        |page: usize, i: usize| if i < 25 { mix((page << 10 | i) as u64) } else { page as u64 };
    let values: &mut [u64] = region.as_mut_slice();
    values.iter_mut().enumerate().for_each(|(i, v)| *v = content(i / 512, i % 512));
    let counts = || ["out_dropped", "out_dropped_batches"].map(|name| pool.stats().counters[name]);
    let before = counts();
    for n in 0..20_000 {
        let page = mix(n) as usize % 8192;
        values[page * 512 + 511] = page as u64;
        assert_eq!(values[page * 512 + 7], content(page, 7), "page {page}");
    }
    let [dropped, batches] = [0, 1].map(|i| counts()[i] - before[i]);
    assert!(dropped > 10_000 && dropped > 12 * batches, "{dropped} pages in {batches} batches");
}

/// A system call that writes to a pinned page must not meet a protected one, whatever leaves around
/// it.
#[test]
fn pinned_pages_stay_writable() {
    let Some(pool) = pool_of(4 * MIB, Delivery::Signal, "") else { return };
    let mut region = pool.map(32 * MIB).unwrap();
    let values: &mut [u64] = region.as_mut_slice();
    values.chunks_exact_mut(512).enumerate().for_each(|(page, words)| words.fill(mix(page as u64)));
    let start = values.as_ptr().addr();
    let pinned = || (5..8192).step_by(128);
    pinned().for_each(|page| {
        pool.mlock(start + page * 4096..start + (page + 1) * 4096, false).unwrap()
    });
    let faults = || pool.stats().counters["pgfault"];
    for n in 0..20_000 {
        let page = mix(n) as usize % 8192;
        values[page * 512] = mix(page as u64);
        if n % 64 == 0 {
            let before = faults();
            pinned().for_each(|page| values[page * 512 + 1] = mix(page as u64));
            assert_eq!(faults(), before, "a pinned page was protected");
        }
    }
    values
        .chunks_exact(512)
        .enumerate()
        .for_each(|(page, words)| assert_eq!(words[..2], [mix(page as u64); 2]));
}

/// What the kernel is at stays, whoever else holds it or has locked it, until all have let go.
#[test]
fn what_is_held_stays_until_it_is_released_as_often() {
    for delivery in [Delivery::Signal, Delivery::Thread] {
        let Some(pool) = pool_of(4 * MIB, delivery, "folio=1") else { return };
        let mut region = pool.map(32 * MIB).unwrap();
        let values: &mut [u64] = region.as_mut_slice();
        values
            .chunks_exact_mut(512)
            .enumerate()
            .for_each(|(page, words)| words.fill(mix(page as u64)));
        let start = values.as_ptr().addr();
        let pages =
            |pages: std::ops::Range<usize>| start + pages.start * 4096..start + pages.end * 4096;
        // The handler thread counts a fault when whoever had it goes on already.
        let faults = || {
            let count = || pool.stats().counters["pgfault"];
            let pause = || std::thread::sleep(std::time::Duration::from_millis(5));
            let counts = std::iter::repeat_with(|| (count(), pause(), count()));
            counts.map(|(before, (), after)| (before, after)).find(|(a, b)| a == b).unwrap().0
        };
        // Whether each of the first four pages faults after all others were used.
        let fault = || {
            values.chunks_exact(512).skip(4).for_each(|words| _ = std::hint::black_box(words[0]));
            [0, 1, 2, 3].map(|page| {
                let before = faults();
                assert_eq!(values[page * 512], mix(page as u64));
                faults() > before
            })
        };
        pool.hold(pages(0..2)).unwrap();
        pool.hold(pages(1..3)).unwrap();
        pool.hold(pages(1..3)).unwrap();
        assert_eq!(fault(), [false, false, false, true], "{delivery:?}: held");
        pool.mlock(pages(0..3), false).unwrap();
        pool.munlock(pages(0..3)).unwrap();
        pool.madvise(pages(0..3), overspill_os::vm::advice::PAGEOUT).unwrap();
        pool.release(pages(1..3));
        assert_eq!(
            fault(),
            [false, false, false, true],
            "{delivery:?}: released once, and locked meanwhile"
        );
        pool.release(pages(0..2));
        assert!(fault()[0] && !fault()[1], "{delivery:?}: one of two has released");
        pool.mlock(pages(2..3), false).unwrap();
        pool.release(pages(1..3));
        let [_, second, third, _] = fault();
        assert!(second && !third, "{delivery:?}: released, and locked");
        pool.munlock(pages(2..3)).unwrap();
        assert!(fault()[2], "{delivery:?}: unlocked");
        assert!(pool.hold(pages(0..1000)).is_err(), "more than half of the budget");
        // What was unmapped is nobody's.
        pool.hold(pages(0..1)).unwrap();
        drop(region);
        pool.release(pages(0..1));
        pool.check();
    }
}

#[test]
fn signal_delivery() {
    write_and_check(Delivery::Signal, "", 96 * MIB);
}

#[test]
fn thread_delivery() {
    write_and_check(Delivery::Thread, "", 96 * MIB);
}

#[test]
fn every_codec() {
    for codec in ["zstd:1", "zstd:12", "none"] {
        write_and_check(Delivery::Signal, &format!("zswap.codec={codec}"), 40 * MIB);
    }
}

fn every_way_in_and_out(delivery: Delivery) {
    for settings in
        ["out=move", "out=drop", "in=copy", "in=move", "folio=1", "background=off", "compressed=0"]
    {
        eprintln!("{delivery:?} {settings}");
        write_and_check(delivery, settings, 40 * MIB);
    }
}

#[test]
fn every_way_in_and_out_by_signal() {
    every_way_in_and_out(Delivery::Signal);
}

#[test]
fn every_way_in_and_out_by_thread() {
    every_way_in_and_out(Delivery::Thread);
}

#[test]
fn locked_pages_are_brought_in() {
    for delivery in [Delivery::Signal, Delivery::Thread] {
        let Some(pool) = pool(delivery, "") else { return };
        let mut region = pool.map(64 * MIB).unwrap();
        let range = region.range();
        let values: &mut [u64] = region.as_mut_slice();
        values.iter_mut().enumerate().for_each(|(i, v)| *v = mix(i as u64));
        // The first pages are long gone by now.
        pool.mlock(range.start..range.start + MIB, false).unwrap();
        let faults = |pool: &Pool| pool.stats().counters["pgfault"];
        // Who serves a fault counts it after the thread goes on.
        std::thread::sleep(std::time::Duration::from_millis(100));
        let before = faults(&pool);
        values[..MIB / 8]
            .iter()
            .enumerate()
            .for_each(|(i, v)| assert_eq!(*v, mix(i as u64), "at {i}"));
        assert_eq!(faults(&pool), before, "{delivery:?}: locked pages fault");
    }
}

#[test]
fn pages_dropped_behind_the_engines_back_read_as_zeros() {
    for delivery in [Delivery::Signal, Delivery::Thread] {
        let Some(pool) = pool(delivery, "") else { return };
        let mut region = pool.map(MIB).unwrap();
        let range = region.range();
        let values: &mut [u64] = region.as_mut_slice();
        values.fill(7);
        overspill_os::vm::advise(
            range.start..range.start + MIB / 2,
            overspill_os::vm::MADV_DONTNEED,
        )
        .unwrap();
        // By a read in one page, a write in the next.
        assert_eq!(values[0], 0);
        values[600] = 9;
        assert_eq!((values[601], values[600], values[MIB / 8 - 1]), (0, 9, 7));
    }
}

/// Counters that change all the time, a few to a page and of all threads on every page: a page that
/// is stored as it was before a write, and then dropped, shows in one of them.
#[test]
fn no_increment_is_lost() {
    const THREADS: usize = 4;
    const PAGES: usize = 6_000;
    let mut taken_back = 0;
    for delivery in [Delivery::Signal, Delivery::Thread] {
        for settings in ["out=drop", ""] {
            let Some(pool) = pool(delivery, settings) else { return };
            let mut region = pool.map(PAGES * 4096).unwrap();
            let counters: &mut [u64] = region.as_mut_slice();
            let mut shares: Vec<Vec<&mut u64>> =
                (0..THREADS).map(|_| Vec::with_capacity(PAGES)).collect();
            for page in counters.chunks_mut(512) {
                let mut first = page.iter_mut();
                shares.iter_mut().for_each(|share| share.push(first.next().unwrap()));
            }
            std::thread::scope(|scope| {
                for (t, mut share) in shares.into_iter().enumerate() {
                    scope.spawn(move || {
                        let mut expected = vec![0u64; share.len()];
                        let mut rng = t as u64 + 1;
                        for _ in 0..60_000 {
                            rng = mix(rng);
                            let i = rng as usize % share.len();
                            assert_eq!(*share[i], expected[i], "{delivery:?} {settings}: page {i}");
                            *share[i] += 1;
                            expected[i] += 1;
                        }
                    });
                }
            });
            taken_back += pool.stats().counters["wp_fault"];
        }
    }
    assert!(taken_back > 0, "no page was written to while it was being evicted");
}

#[test]
fn many_threads_share_a_region() {
    for delivery in [Delivery::Signal, Delivery::Thread] {
        let Some(pool) = pool(delivery, "") else { return };
        let mut region = pool.map(64 * MIB).unwrap();
        let values: &mut [u64] = region.as_mut_slice();
        let share = values.len() / 8;
        std::thread::scope(|scope| {
            for (t, part) in values.chunks_mut(share).enumerate() {
                scope.spawn(move || {
                    let mut rng = t as u64 + 1;
                    part.iter_mut().enumerate().for_each(|(i, v)| *v = mix((t * share + i) as u64));
                    for _ in 0..3_000 {
                        rng = mix(rng);
                        let i = rng as usize % part.len();
                        assert_eq!(part[i], mix((t * share + i) as u64));
                        part[i] = mix((t * share + i) as u64);
                    }
                });
            }
        });
        values.iter().enumerate().for_each(|(i, v)| assert_eq!(*v, mix(i as u64), "at {i}"));
    }
}

#[test]
fn a_window_that_is_too_large_says_so() {
    let window = Some(Bytes(Config::WINDOW_MAX.0 + (2 << 20)));
    let config = Config { memory: Config::MEMORY_MIN, window, ..Config::default() };
    let error = Pool::new(config).expect_err("a window above the largest");
    assert!(error.to_string().contains("the largest possible is 8 TiB"), "{error}");
}
