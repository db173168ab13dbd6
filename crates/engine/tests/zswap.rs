//! The compressed tier under random load, with every combination of its settings: each load returns
//! the last store, to the bit, while pages are evicted, written on to devices, moved together,
//! dropped, unmapped and moved, and the budget changes.
//!
//! Runs for OVERSPILL_ZSWAP_SECONDS seconds, 20 by default, in all: below a minute with a third of
//! the combinations, among which every two values of two settings meet. Debug builds check every
//! invariant when memory is given back.

mod common;

use overspill::config::{Config, Delivery, SwapList};
use overspill::stats::Snapshot;
use overspill::units::Bytes;
use overspill::{MapFlags, Pool};
use overspill_os::Errno;
use overspill_os::vm::{MADV_DONTNEED, Prot};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const THREADS: usize = 4;
const MIB: u64 = 1 << 20;
/// A device that fails now and then, in ways that lose no page.
const FAILING: &str = "ram:1G,latency=5us,faults=0.003:eio+short+full+slow+flip,seed=3";
/// mremap's MREMAP_MAYMOVE | MREMAP_FIXED.
const MOVE_THERE: u32 = 3;
/// Pages of one operation at most.
const RUN_MAX: usize = 80;

fn seconds() -> f64 {
    std::env::var("OVERSPILL_ZSWAP_SECONDS")
        .map_or(20.0, |text| text.parse().expect("a number of seconds"))
}

fn mix(seed: u64) -> u64 {
    let x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (x ^ x >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) ^ x >> 7
}

/// What pages contain: of a hundred, how many are all the same, compress well, to half, hardly; the
/// rest does not at all.
type Mix = [u64; 4];

/// The page that belongs to a seed; 0 is a page of zeros.
fn content(seed: u64, mix_of: Mix) -> [u8; PAGE] {
    let mut bytes = [0; PAGE];
    if seed == 0 {
        return bytes;
    }
    let mut kind = mix(seed) % 100;
    let kind = mix_of.iter().position(|share| {
        let found = kind < *share;
        kind = kind.wrapping_sub(*share);
        found
    });
    for (i, place) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let random = mix(seed ^ (i as u64) << 40);
        let word = match kind {
            Some(0) => mix(seed),
            Some(1) => mix(seed) ^ (i / 32) as u64,
            Some(2) if i % 2 == 0 => seed,
            Some(3) if i % 5 == 0 => seed,
            _ => random,
        };
        *place = word.to_le_bytes();
    }
    bytes
}

/// One combination of settings, and a load that fits it.
struct Case {
    delivery: Delivery,
    settings: String,
    swap: &'static str,
    /// The budget goes from one to the other and back.
    budgets: [u64; 2],
    pages: usize,
    mix: Mix,
}

/// Combinations of the settings of the tier, all or a third of them, without a device, with one,
/// and with one that is too small: there pages in slots of none change to slots of the device.
fn cases(all: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for n in 0..3 * 3 * 2 * 2 * 3 {
        let (codec, swap, keep, incompressible) = (n / 36, n / 12 % 3, n / 6 % 2, n / 3 % 2);
        if !all && (codec + swap + keep + incompressible) % 3 != n % 3 {
            continue;
        }
        let at = cases.len();
        let (codec, swap) = (["lz4", "zstd", "none"][codec], ["", "ram:1G", "ram:20M"][swap]);
        let (keep, incompressible) = (["off", "on"][keep], ["device", "keep"][incompressible]);
        let invalidate = ["always", "empty", "empty+lookup"][n % 3];
        let slots = ["own", "device"][at / 2 % 2];
        let recompress = ["off", "auto", "zstd:1"][at / 3 % 3];
        let others =
            ["", ",background=off", "", ",out=move", "", ",folio=1,swap.batch=off", ""][at % 7];
        // What finds no place on a device has to find one in memory: less of it, and easier to
        // pack.
        let (percent, pages, mix, low) = match (swap, codec) {
            ("", "none") => (60, 1600, [40, 50, 5, 0], 7),
            ("", _) => (60, 4000, [25, 50, 15, 5], 7),
            ("ram:20M", "none") => (10, 6000, [30, 50, 10, 5], 6),
            ("ram:20M", _) => (12, 7000, [20, 50, 10, 10], 6),
            _ => (10, 8000, [15, 40, 15, 15], 4),
        };
        // One in nine, another one each time: how faults come makes little difference here.
        let by_signal = (at + at / 9).is_multiple_of(9);
        cases.push(Case {
            delivery: if by_signal { Delivery::Signal } else { Delivery::Thread },
            settings: format!(
                "compressed={percent},zswap.codec={codec},zswap.keep={keep},\
                 zswap.incompressible={incompressible},zswap.invalidate={invalidate},\
                 zswap.slots={slots},zswap.recompress={recompress}{others}"
            ),
            swap: if swap == "ram:1G" && at % 2 == 1 { FAILING } else { swap },
            budgets: [8 * MIB, low * MIB],
            pages,
            mix,
        });
    }
    cases
}

/// A pool; `None`, loudly, where the kernel gives this user no userfaultfd.
fn pool(case: &Case) -> Option<Pool> {
    let SwapList(swap) = case.swap.parse().unwrap();
    let memory = Bytes(case.budgets[0]);
    let config = Config {
        memory,
        swap,
        delivery: case.delivery,
        window: Some(Bytes(64 << 20)),
        ..Config::default()
    };
    common::pool(config, &case.settings)
}

/// One thread's pages, and what is in them.
struct Share<'a> {
    pool: &'a Pool,
    case: &'a Case,
    bytes: &'a mut [u8],
    seeds: Vec<u64>,
    rng: u64,
    remapped: u64,
}

impl Share<'_> {
    fn random(&mut self, below: usize) -> usize {
        self.rng = mix(self.rng);
        (self.rng >> 16) as usize % below
    }

    fn address(&self, page: usize) -> usize {
        self.bytes.as_ptr() as usize + page * PAGE
    }

    /// Looks at every byte of a page.
    fn verify(&self, page: usize) {
        let (is, wanted) =
            (&self.bytes[page * PAGE..][..PAGE], content(self.seeds[page], self.case.mix));
        if is != wanted {
            let at = is.iter().zip(wanted).position(|(is, wanted)| *is != wanted).unwrap();
            panic!(
                "{:?} {}: page {page} is wrong from byte {at} on",
                self.case.delivery, self.case.settings
            );
        }
    }

    fn renew(&mut self, page: usize) {
        self.seeds[page] = mix(self.rng ^ page as u64) | 1;
        let wanted = content(self.seeds[page], self.case.mix);
        self.bytes[page * PAGE..][..PAGE].copy_from_slice(&wanted);
    }

    /// Something that takes the content of pages away.
    fn take_away(&mut self, page: usize, len: usize) {
        let range = self.address(page)..self.address(page + len);
        match self.random(3) {
            0 => {
                self.pool.munmap(range.clone()).unwrap();
                self.map(range.start, len);
            }
            _ => self.pool.madvise(range, MADV_DONTNEED).unwrap(),
        }
        self.seeds[page..page + len].fill(0);
    }

    fn map(&self, at: usize, pages: usize) {
        let mapped = self.pool.mmap(Some(at), pages * PAGE, Prot::READ_WRITE, MapFlags::default());
        assert_eq!(mapped, Ok(at));
    }

    /// Moves pages to where others are, with their content.
    fn move_there(&mut self, from: usize, len: usize) {
        let to = self.random(self.seeds.len() - len);
        if from.abs_diff(to) < len {
            return;
        }
        let (old, new) = (self.address(from)..self.address(from + len), self.address(to));
        match self.pool.mremap(old.clone(), len * PAGE, MOVE_THERE, new) {
            Ok(at) => assert_eq!(at, new),
            // It reaches over several mappings.
            Err(Errno::FAULT) => return self.restore(from, to, len),
            Err(error) => panic!("{error}"),
        }
        self.map(old.start, len);
        self.remapped += len as u64;
        self.seeds.copy_within(from..from + len, to);
        self.seeds[from..from + len].fill(0);
    }

    /// A move that failed may have unmapped what it was to replace.
    fn restore(&mut self, from: usize, to: usize, len: usize) {
        (from..from + len).for_each(|page| self.verify(page));
        if !self.pool.is_mapped(self.address(to)..self.address(to + len)) {
            self.map(self.address(to), len);
            self.seeds[to..to + len].fill(0);
        }
    }

    /// Uses the pages at random and in sequence until `deadline`, then looks at everything; pages
    /// that were moved.
    fn load(&mut self, deadline: Instant) -> u64 {
        while Instant::now() < deadline {
            let (page, run) =
                (self.random(self.seeds.len()), 1 + self.random(3) / 2 * self.random(RUN_MAX));
            let run = run.min(self.seeds.len() - page);
            match self.random(32) {
                0..16 => (page..page + run).for_each(|page| self.verify(page)),
                16..24 => (page..page + run).for_each(|page| {
                    self.verify(page);
                    self.renew(page);
                }),
                24..28 => (page..page + run).for_each(|page| self.renew(page)),
                28..30 => self.take_away(page, run),
                _ => self.move_there(page, run),
            }
        }
        (0..self.seeds.len()).for_each(|page| self.verify(page));
        self.remapped
    }
}

/// Waits until nothing is stored any more: what was on its way to a device when it was given up is
/// given back after that.
fn nothing_left(pool: &Pool, name: &str) -> Snapshot {
    let start = Instant::now();
    loop {
        let stats = pool.stats();
        let left =
            ["nr_swap_used", "zswap_stored_pages", "zswap_stored_bytes", "zswap_same_filled_pages"];
        let left: Vec<_> = left.into_iter().filter(|name| stats.counters[*name] > 0).collect();
        if left.is_empty() {
            return stats;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{name}: {left:?} is left: {stats:#?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Loads a pool for a time; how many pages were moved, and the statistics.
fn load(case: &Case, time: Duration, seed: u64) -> Option<(u64, Snapshot)> {
    let pool = pool(case)?;
    let deadline = Instant::now() + time;
    let mut region = pool.map(case.pages / THREADS * THREADS * PAGE).unwrap();
    let bytes: &mut [u8] = region.as_mut_slice();
    let share = case.pages / THREADS;
    let going = AtomicUsize::new(THREADS);
    let remapped = std::thread::scope(|scope| {
        let load = |(t, bytes)| {
            let rng = mix(seed * THREADS as u64 + t as u64);
            let mut share =
                Share { pool: &pool, case, bytes, seeds: vec![0; share], rng, remapped: 0 };
            let going = &going;
            scope.spawn(move || {
                let remapped = share.load(deadline);
                going.fetch_sub(1, Relaxed);
                remapped
            })
        };
        let threads: Vec<_> = bytes.chunks_mut(share * PAGE).enumerate().map(load).collect();
        for budget in case.budgets.iter().cycle().skip(1) {
            if going.load(Relaxed) == 0 || threads.iter().any(|thread| thread.is_finished()) {
                break;
            }
            std::thread::sleep(Duration::from_millis(15));
            pool.set_memory(Bytes(*budget)).unwrap();
        }
        threads.into_iter().map(|thread| thread.join().expect("no page is wrong")).sum()
    });
    drop(region);
    let name = format!("{:?} {} {}", case.delivery, case.settings, case.swap);
    let stats = nothing_left(&pool, &name);
    let get = |name: &str| stats.counters[name];
    assert_eq!(get("fault_errors"), 0, "{name}");
    assert!(get("charged_peak_bytes") <= case.budgets[0], "{name}: {}", get("charged_peak_bytes"));
    Some((remapped, stats))
}

#[test]
fn each_load_returns_the_last_store() {
    let cases = cases(seconds() >= 60.0);
    let time = Duration::from_secs_f64(seconds() / cases.len() as f64);
    let mut total = BTreeMap::<&str, u64>::new();
    for (i, case) in cases.iter().enumerate() {
        // To make a pool, look at every page once more and check everything is part of the time.
        let most = time.saturating_sub(Duration::from_millis(400)).max(time / 2);
        let Some((remapped, stats)) = load(case, most, i as u64 + 1) else {
            assert_eq!(i, 0, "a pool could be made before");
            return;
        };
        let used = [
            "swap_write_errors",
            "swap_read_retries",
            "zswpout",
            "zswpin",
            "zswpwb",
            "zswap_recompressed",
            "zswap_reject",
            "zswap_erased",
            "pswpout",
            "pswpin",
            "wp_fault",
        ];
        for name in used.into_iter().chain(["clean_dropped", "clean_written", "same_filled_out"]) {
            *total.entry(name).or_default() += stats.counters[name];
        }
        *total.entry("pages moved").or_default() += remapped;
        let kept = stats.counters["clean_dropped"] + stats.counters["clean_written"];
        if case.settings.contains("keep=off") && case.swap.is_empty() {
            assert_eq!(kept, 0, "{}", case.settings);
        }
    }
    eprintln!("{} cases, {time:?} each: {total:?}", cases.len());
    total.iter().for_each(|(name, count)| assert!(*count > 0, "{name}: nothing of it was tested"));
}

fn wait_for(pool: &Pool, what: &str, holds: impl Fn(&Snapshot) -> bool) -> Snapshot {
    let start = Instant::now();
    loop {
        let stats = pool.stats();
        if holds(&stats) {
            return stats;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{what}: {stats:#?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The compressed tier has its share of the budget, also of one that has become smaller: what it
/// holds beyond goes on to devices. When it is larger again the tier fills it.
#[test]
fn the_tier_follows_the_budget() {
    for (delivery, settings, swap) in [
        (Delivery::Thread, "compressed=50", "ram:1G"),
        (Delivery::Signal, "compressed=50,zswap.incompressible=keep,zswap.keep=on", "ram:1G"),
        (Delivery::Thread, "compressed=50,background=off", "ram:1G"),
        (Delivery::Signal, "compressed=50,zswap.codec=none", "ram:1G"),
        (Delivery::Thread, "compressed=80", ""),
    ] {
        let settings = settings.to_owned();
        let (pages, contents) =
            if swap.is_empty() { (6000, [10, 90, 0, 0]) } else { (16_000, [0, 50, 40, 10]) };
        let case =
            Case { delivery, settings, swap, budgets: [24 * MIB, 8 * MIB], pages, mix: contents };
        let Some(pool) = pool(&case) else { return };
        let name = format!("{delivery:?} {} {swap}", case.settings);
        let mut region = pool.map(pages * PAGE).unwrap();
        let bytes: &mut [u8] = region.as_mut_slice();
        let mut share =
            Share { pool: &pool, case: &case, bytes, seeds: vec![0; pages], rng: 1, remapped: 0 };
        (0..pages).for_each(|page| share.renew(page));
        let tier = |stats: &Snapshot| stats.counters["zswap_pool_bytes"];
        let percent = if swap.is_empty() { 80 } else { 50 };
        for budget in [24, 8, 24, 8].map(|mib| mib * MIB) {
            pool.set_memory(Bytes(budget)).unwrap();
            for page in 0..pages {
                share.verify(page);
                share.renew(page);
            }
            let stats = wait_for(&pool, &format!("{name}: {budget} bytes"), |stats| {
                let get = |name: &str| stats.counters[name];
                get("limit_bytes") == budget
                    && get("charged_bytes") <= budget
                    && tier(stats) <= budget * percent / 100
            });
            // It is made use of: all of it where what it holds goes on to devices, else what the
            // pages need.
            let fills = if swap.is_empty() { 1 } else { budget * percent / 100 / 2 };
            assert!(tier(&stats) >= fills, "{name}: {budget}: {stats:#?}");
        }
        drop(region);
        let stats = nothing_left(&pool, &name);
        assert_eq!(stats.counters["fault_errors"], 0, "{name}");
        assert!(stats.counters["charged_peak_bytes"] <= 24 * MIB, "{name}: {stats:#?}");
    }
}

/// What is compressed takes no room on a device while it has slots of its own. What goes on is
/// written in runs, in whatever order it left memory, and is all that the device holds.
#[test]
fn a_device_holds_what_is_written_to_it() {
    for slots in ["own", "device"] {
        let settings =
            format!("compressed=80,zswap.codec=lz4,zswap.keep=off,clean=off,zswap.slots={slots}");
        let (pages, budgets) = (4001, [16 * MIB, 8 * MIB]);
        let case = Case {
            delivery: Delivery::Signal,
            settings,
            swap: "ram:1G",
            budgets,
            pages,
            mix: [0, 0, 100, 0],
        };
        let Some(pool) = pool(&case) else { return };
        let mut region = pool.map(pages * PAGE).unwrap();
        let bytes: &mut [u8] = region.as_mut_slice();
        let mut share =
            Share { pool: &pool, case: &case, bytes, seeds: vec![0; pages], rng: 1, remapped: 0 };
        // In an order in which neighbours are far from one another.
        (0..pages).for_each(|n| share.renew(n * 1009 % pages));
        let before = pool.stats().counters;
        // The tier takes them all, but where reclaim found no frame for a chunk just then.
        let refused = before["zswap_reject"];
        assert!(before["zswpout"] > 0 && before["pswpout"] <= refused, "{slots}: {before:#?}");
        assert!(refused < pages as u64 / 20, "{slots}: {before:#?}");
        match slots {
            "own" => assert_eq!(before["nr_swap_used"], before["pswpout"], "{before:#?}"),
            _ => assert!(before["nr_swap_used"] > 0, "{before:#?}"),
        }
        pool.set_memory(Bytes(budgets[1])).unwrap();
        let after = wait_for(&pool, slots, |stats| {
            let get = |name: &str| stats.counters[name];
            // A batch on its way has its slots and is not counted yet.
            let holds_what_was_written = slots == "device" || get("nr_swap_used") == get("pswpout");
            get("charged_bytes") <= budgets[1]
                && get("limit_bytes") == budgets[1]
                && holds_what_was_written
        });
        let [written, writes] = ["pswpout", "pswpout_ops"].map(|name| after.counters[name]);
        assert!(written > 500, "{slots}: {after:#?}");
        assert!(slots == "device" || writes * 8 <= written, "{after:#?}");
        (0..pages).for_each(|page| share.verify(page));
        drop(region);
        nothing_left(&pool, slots);
    }
}
