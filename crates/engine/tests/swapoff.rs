//! Devices that are added and taken away while a pool is in use: what the program finds is what it
//! wrote.

mod common;

use common::pool;
use overspill::config::{Config, Delivery, SwapSpec};
use overspill::stats::Counter;
use overspill::swapoff::{Evacuated, Progress, SwapoffError};
use overspill::units::{Bytes, PAGE_SIZE};
use overspill::{Pool, Region};
use overspill_os::Errno;
use overspill_os::vm::MADV_DONTNEED;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{pread, pwrite};
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const WORDS: usize = PAGE_SIZE / 8;
const DELIVERIES: [Delivery; 2] = [Delivery::Signal, Delivery::Thread];

fn config(memory: u64, swap: &[&str], delivery: Delivery) -> Config {
    let swap = swap.iter().map(|text| text.parse().unwrap()).collect();
    Config { memory: Bytes(memory << 20), swap, delivery, ..Config::default() }
}

/// A page of words that follow from its number and a stamp; of three pages one compresses well, one
/// badly.
fn word(page: usize, stamp: u64, at: usize) -> u64 {
    let seed = (page as u64) << 32 | stamp;
    let random = (seed * WORDS as u64 + at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    match page % 3 {
        0 => random ^ random >> 29,
        1 => seed + (at as u64 & 7),
        _ => (seed ^ (at as u64 / 4)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20,
    }
}

fn fill(page: &mut [u64], number: usize, stamp: u64) {
    page.iter_mut().enumerate().for_each(|(at, value)| *value = word(number, stamp, at));
}

fn check(page: &[u64], number: usize, stamp: u64) {
    for (at, value) in page.iter().enumerate() {
        assert_eq!(*value, word(number, stamp, at), "word {at} of page {number}");
    }
}

fn swapoff(pool: &Pool, device: &str) -> Result<Evacuated, SwapoffError> {
    pool.swapoff(device, |_| ControlFlow::Continue(()))
}

fn used(pool: &Pool, label: &str) -> Option<u64> {
    pool.stats()
        .devices
        .iter()
        .find(|device| device.label == label)
        .map(|device| device.used_bytes >> 12)
}

/// Settings with which pages lie on devices in every way.
const WAYS: [&str; 5] = [
    "",
    "zswap.slots=device",
    "compressed=0",
    "compressed=0,clean=on,readahead=8",
    "swapoff.run=1,swapoff.depth=1,uring=off,compressed=10",
];

#[test]
fn pages_move_to_another_device_and_to_memory() {
    for delivery in DELIVERIES {
        for way in WAYS {
            let Some(pool) = pool(config(8, &["ram:64M,label=first"], delivery), way) else {
                return;
            };
            let pages = (24 << 20) / PAGE_SIZE;
            let mut region = pool.map(pages * PAGE_SIZE).unwrap();
            let words = region.as_mut_slice::<u64>();
            words
                .chunks_exact_mut(WORDS)
                .enumerate()
                .for_each(|(page, words)| fill(words, page, 0));
            // Some are read again: clean pages, and pages read ahead.
            words
                .chunks_exact(WORDS)
                .enumerate()
                .step_by(3)
                .for_each(|(page, words)| check(words, page, 0));
            let second: SwapSpec = "ram:64M,label=second".parse().unwrap();
            pool.swapon(&second).unwrap();
            let evacuated = swapoff(&pool, "first").unwrap();
            assert_eq!(
                (used(&pool, "first"), evacuated.lost_pages),
                (None, 0),
                "{way} {delivery:?}"
            );
            assert!(
                evacuated.moved_pages > 0 && evacuated.read_ops <= evacuated.read_pages,
                "{evacuated:?} {way}"
            );
            pool.check();
            words.chunks_exact(WORDS).enumerate().for_each(|(page, words)| check(words, page, 0));
            // Back into memory, for which there is room now.
            pool.set_memory(Bytes(64 << 20)).unwrap();
            swapoff(&pool, "second").unwrap();
            assert_eq!(pool.stats().devices, [], "{way}");
            words.chunks_exact(WORDS).enumerate().for_each(|(page, words)| check(words, page, 0));
        }
    }
}

#[test]
fn without_room_nothing_is_lost_and_the_device_stays() {
    for delivery in DELIVERIES {
        let Some(pool) =
            pool(config(8, &["ram:64M,label=only"], delivery), "compressed=0,background=on")
        else {
            return;
        };
        let pages = (24 << 20) / PAGE_SIZE;
        let mut region = pool.map(pages * PAGE_SIZE).unwrap();
        let words = region.as_mut_slice::<u64>();
        words.chunks_exact_mut(WORDS).enumerate().for_each(|(page, words)| fill(words, page, 7));
        let error = swapoff(&pool, "only").unwrap_err();
        assert!(
            matches!(error, SwapoffError::NoRoom { left_pages } if left_pages > 3000),
            "{error}"
        );
        words.chunks_exact_mut(WORDS).enumerate().for_each(|(page, words)| {
            check(words, page, 7);
            fill(words, page, 8);
        });
        words.chunks_exact(WORDS).enumerate().for_each(|(page, words)| check(words, page, 8));
        assert!(used(&pool, "only").is_some_and(|used| used > 3000));
        assert!(matches!(swapoff(&pool, "other"), Err(SwapoffError::Unknown(_))));
    }
}

#[test]
fn it_is_interrupted_and_taken_up_again() {
    // A device so slow that it takes a while.
    let way = "compressed=0,swapoff.run=1,swapoff.depth=1";
    let Some(pool) = pool(config(8, &["ram:64M,label=slow,latency=1ms"], Delivery::Signal), way)
    else {
        return;
    };
    let pages = (16 << 20) / PAGE_SIZE;
    let mut region = pool.map(pages * PAGE_SIZE).unwrap();
    let words = region.as_mut_slice::<u64>();
    words.chunks_exact_mut(WORDS).enumerate().for_each(|(page, words)| fill(words, page, 1));
    pool.set_memory(Bytes(64 << 20)).unwrap();
    let mut seen: Option<Progress> = None;
    let error = pool.swapoff("slow", |progress| match seen.replace(progress) {
        Some(_) if progress.moved_pages > 20 => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    let Err(SwapoffError::Interrupted { left_pages }) = error else { panic!("{error:?}") };
    let before = seen.unwrap();
    assert!(left_pages > 0 && left_pages <= before.left_pages, "{left_pages} {before:?}");
    // In use as before.
    pool.set_memory(Bytes(8 << 20)).unwrap();
    words.chunks_exact_mut(WORDS).enumerate().for_each(|(page, words)| {
        check(words, page, 1);
        fill(words, page, 2);
    });
    assert!(used(&pool, "slow").is_some_and(|used| used > left_pages / 2));
    pool.set_memory(Bytes(64 << 20)).unwrap();
    assert!(swapoff(&pool, "slow").unwrap().moved_pages > 0);
    words.chunks_exact(WORDS).enumerate().for_each(|(page, words)| check(words, page, 2));
}

/// A region whose pages have stamps that its owner knows.
struct Stamped<'a> {
    pool: &'a Pool,
    region: Region<'a>,
    /// What each page is to have: 0 is nothing, which reads as zeros.
    stamps: Vec<u64>,
    thread: u64,
    random: u64,
    /// Pages that had something else.
    wrong: u64,
}

impl<'a> Stamped<'a> {
    fn new(pool: &'a Pool, thread: u64, seed: u64) -> Stamped<'a> {
        let pages = (6 << 20) / PAGE_SIZE;
        let region = pool.map(pages * PAGE_SIZE).unwrap();
        Stamped { pool, region, stamps: vec![0; pages], thread, random: seed, wrong: 0 }
    }

    fn next(&mut self) -> usize {
        self.random =
            self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.random >> 33) as usize
    }

    /// Reads a run of pages, in sequence or here and there; gives them up, writes them anew, or
    /// leaves them.
    fn round(&mut self, round: u64) {
        let pages = self.stamps.len();
        let (from, step) = (self.next() % pages, [1, 1, 37][self.next() % 3]);
        let action = self.next() % 8;
        for page in (0..64).map(|k| (from + k * step) % pages) {
            self.read(page);
            match action {
                0 => {
                    let at = self.region.range().start + page * PAGE_SIZE;
                    self.pool.madvise(at..at + PAGE_SIZE, MADV_DONTNEED).unwrap();
                    self.stamps[page] = 0;
                }
                1..=4 => {
                    self.stamps[page] = round << 8 | self.thread << 4 | 1;
                    let words = &mut self.region.as_mut_slice::<u64>()[page * WORDS..][..WORDS];
                    fill(words, page, self.stamps[page]);
                }
                _ => {}
            }
        }
    }

    fn read(&mut self, page: usize) {
        let words = &self.region.as_slice::<u64>()[page * WORDS..][..WORDS];
        let mut words = words.iter().enumerate();
        let right = match self.stamps[page] {
            0 => words.all(|(_, value)| *value == 0),
            stamp => words.all(|(at, value)| *value == word(page, stamp, at)),
        };
        self.wrong += u64::from(!right);
    }

    fn read_all(&mut self) {
        (0..self.stamps.len()).for_each(|page| self.read(page));
    }
}

/// Takes the devices `a` and `b` away and adds them again, one at a time. Returns how many pages
/// were moved.
fn swap_devices(pool: &Pool, swapoffs: usize) -> u64 {
    let mut moved = 0;
    for number in 0..swapoffs {
        let label = ["a", "b"][number % 2];
        let evacuated = swapoff(pool, label).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(evacuated.lost_pages, 0);
        moved += evacuated.moved_pages;
        let spec = format!("ram:32M,label={label},prio=1");
        pool.swapon(&spec.parse().unwrap()).unwrap();
    }
    moved
}

/// Threads write, give up, read and write anew pages with a stamp that they know, while the devices
/// are taken away and added again, over and over: OVERSPILL_SWAPOFFS of them.
#[test]
fn no_page_is_ever_stale() {
    let swapoffs = std::env::var("OVERSPILL_SWAPOFFS").map_or(100, |count| count.parse().unwrap());
    for (way, part) in WAYS.iter().zip(1u64..) {
        let devices = ["ram:32M,label=a,prio=1", "ram:32M,label=b,prio=1"];
        let delivery = DELIVERIES[part as usize % 2];
        let Some(pool) = pool(config(8, &devices, delivery), way) else { return };
        let (over, wrong) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..3u64 {
                let (pool, over, wrong) = (&pool, &over, &wrong);
                scope.spawn(move || {
                    let mut pages = Stamped::new(pool, thread, thread + 10 * part);
                    let rounds = (1..).take_while(|_| !over.load(Relaxed));
                    rounds.for_each(|round| pages.round(round));
                    pages.read_all();
                    wrong.fetch_add(pages.wrong, Relaxed);
                });
            }
            let moved = swap_devices(&pool, swapoffs);
            over.store(true, Relaxed);
            assert!(moved > 0);
        });
        assert_eq!(wrong.load(Relaxed), 0, "wrong pages with {way}");
        pool.check();
        let left: u64 = pool.stats().get(Counter::DevicePages);
        assert_eq!(left, 0, "slots that nobody has");
    }
}

/// Pages that cannot be read are lost to whoever reads them, and to nobody else; the device goes.
#[test]
fn what_cannot_be_read_is_lost_to_its_reader_only() {
    for way in ["compressed=0", "compressed=0,clean=on,swapoff.run=8"] {
        // System calls say EFAULT of a page that is lost.
        let devices = ["ram:64M,label=bad,faults=0.9:rot,seed=3"];
        let Some(pool) = pool(config(8, &devices, Delivery::Thread), way) else { return };
        let pages = (24 << 20) / PAGE_SIZE;
        let mut region = pool.map(pages * PAGE_SIZE).unwrap();
        let words = region.as_mut_slice::<u64>();
        words.chunks_exact_mut(WORDS).enumerate().for_each(|(page, words)| fill(words, page, 5));
        pool.set_memory(Bytes(64 << 20)).unwrap();
        let evacuated = swapoff(&pool, "bad").unwrap();
        assert!(evacuated.lost_pages > 3 && evacuated.moved_pages > 2000, "{evacuated:?} {way}");
        assert_eq!(pool.stats().devices, []);
        pool.check();
        let file = memfd_create("pages", MemfdFlags::empty()).unwrap();
        let mut lost = 0;
        for page in 0..pages {
            let bytes: Vec<u8> =
                (0..WORDS).flat_map(|at| word(page, 5, at).to_le_bytes()).collect();
            let range = region.range().start + page * PAGE_SIZE;
            let mut read = vec![0; PAGE_SIZE];
            match pwrite(&file, &region.as_slice::<u8>()[page * PAGE_SIZE..][..PAGE_SIZE], 0) {
                Ok(PAGE_SIZE) => {
                    assert_eq!(pread(&file, &mut read, 0), Ok(PAGE_SIZE));
                    assert!(read == bytes, "page {page} is wrong");
                }
                Err(Errno::FAULT) => {
                    lost += 1;
                    // Given up, it is a page like any other.
                    pool.madvise(range..range + PAGE_SIZE, MADV_DONTNEED).unwrap();
                    assert_eq!(
                        pwrite(&file, &region.as_slice::<u8>()[page * PAGE_SIZE..][..PAGE_SIZE], 0),
                        Ok(PAGE_SIZE)
                    );
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(lost, evacuated.lost_pages, "{way}");
    }
}

/// Without room the program goes on as before, whatever it does meanwhile.
#[test]
fn a_program_does_not_fail_for_an_attempt_without_room() {
    for delivery in DELIVERIES {
        let Some(pool) = pool(config(8, &["ram:64M,label=only"], delivery), "compressed=0") else {
            return;
        };
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (pool, over) = (&pool, &over);
                scope.spawn(move || {
                    let pages = (8 << 20) / PAGE_SIZE;
                    let mut region = pool.map(pages * PAGE_SIZE).unwrap();
                    let words = region.as_mut_slice::<u64>();
                    let mut round = 0;
                    while !over.load(Relaxed) || round < 2 {
                        for (page, words) in words.chunks_exact_mut(WORDS).enumerate() {
                            if round > 0 {
                                check(words, page, round << 4 | thread);
                            }
                            fill(words, page, (round + 1) << 4 | thread);
                        }
                        round += 1;
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(300));
            for _ in 0..3 {
                let error = swapoff(&pool, "only").unwrap_err();
                assert!(matches!(error, SwapoffError::NoRoom { .. }), "{error}");
            }
            over.store(true, Relaxed);
        });
        pool.check();
    }
}

#[test]
fn two_devices_go_at_once() {
    let devices = ["ram:32M,label=a,prio=2", "ram:32M,label=b,prio=2", "ram:128M,label=c,prio=1"];
    let Some(pool) = pool(config(8, &devices, Delivery::Signal), "compressed=0") else { return };
    let pages = (40 << 20) / PAGE_SIZE;
    let mut region = pool.map(pages * PAGE_SIZE).unwrap();
    let words = region.as_mut_slice::<u64>();
    words.chunks_exact_mut(WORDS).enumerate().for_each(|(page, words)| fill(words, page, 9));
    std::thread::scope(|scope| {
        let both = ["a", "b"].map(|label| {
            let pool = &pool;
            scope.spawn(move || swapoff(pool, label).unwrap())
        });
        assert!(both.into_iter().all(|one| one.join().unwrap().moved_pages > 1000));
    });
    let left: Vec<String> =
        pool.stats().devices.iter().map(|device| device.label.clone()).collect();
    assert_eq!(left, ["c"]);
    words.chunks_exact(WORDS).enumerate().for_each(|(page, words)| check(words, page, 9));
}

#[test]
fn what_cannot_be_added_is_refused_with_the_reason() {
    let dir =
        std::env::current_exe().unwrap().with_file_name(format!("swapon-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = |name: &str| dir.join(name);
    let Some(pool) = pool(config(8, &[], Delivery::Signal), "") else { return };
    let refusal = |spec: SwapSpec| pool.swapon(&spec).unwrap_err().to_string();
    assert!(refusal(SwapSpec::new(path("none"))).contains("does not exist"));
    std::fs::write(path("data"), vec![7; 2 << 20]).unwrap();
    assert!(refusal(SwapSpec::new(path("data"))).contains("data"));
    std::fs::write(path("small"), vec![0; 4096]).unwrap();
    assert!(refusal(SwapSpec::new(path("small"))).contains("1 MiB"));
    std::fs::write(path("swap"), vec![0; 4 << 20]).unwrap();
    assert!(
        refusal(SwapSpec::new(path("swap"))).contains("used by others (mode 0644): chmod 0600")
    );
    std::fs::set_permissions(path("swap"), PermissionsExt::from_mode(0o600)).unwrap();
    pool.swapon(&SwapSpec::new(path("swap"))).unwrap();
    assert!(refusal(SwapSpec::new(path("swap"))).contains("in use already"));
    std::os::unix::fs::symlink(path("swap"), path("link")).unwrap();
    assert!(refusal(SwapSpec::new(path("link"))).contains("in use already"));
    // The names by which it goes.
    let uuid = pool.stats().devices[0].uuid.unwrap();
    swapoff(&pool, &uuid.to_string()).unwrap();
    pool.swapon(&SwapSpec { label: Some("mine".parse().unwrap()), ..SwapSpec::new(path("swap")) })
        .unwrap();
    assert_eq!(
        (pool.stats().devices[0].uuid, pool.stats().devices[0].priority),
        (Some(uuid), Some(-2))
    );
    swapoff(&pool, "mine").unwrap();
    pool.swapon(&SwapSpec::new(&dir)).unwrap();
    swapoff(&pool, dir.to_str().unwrap()).unwrap();
    std::fs::remove_dir_all(dir).unwrap();
}
