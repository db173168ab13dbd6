//! Verified load on devices that fail at random: no wrong byte ever, and errors only where data
//! truly is gone.
//!
//! Runs for OVERSPILL_FAULT_SECONDS seconds, 5 by default, in all.

mod common;

use overspill::Pool;
use overspill::config::{Config, Delivery, SwapList};
use overspill::units::Bytes;
use overspill_os::Errno;
use overspill_os::vm::MADV_DONTNEED;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{pread, pwrite};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const PAGES: usize = 16 << 10;
const THREADS: usize = 4;
/// Faults that are over when an operation is repeated, or that leave the page where it was.
const TRANSIENT: &str = "0.004:eio+short+full+slow+flip";
/// Faults that lose pages.
const LOSING: &str = "0.1:short+flip+rot";

fn seconds() -> f64 {
    std::env::var("OVERSPILL_FAULT_SECONDS")
        .map_or(5.0, |text| text.parse().expect("a number of seconds"))
}

/// A pool of 16 MiB over two devices that fail; `None`, loudly, where the kernel gives this user no
/// userfaultfd.
fn pool(delivery: Delivery, settings: &str, faults: &str) -> Option<Pool> {
    let devices = format!(
        "ram:2G,prio=1,latency=10us,faults={faults},seed=1,ram:2G,prio=1,faults={faults},seed=2"
    );
    let SwapList(swap) = devices.parse().unwrap();
    let config = Config {
        memory: Bytes(16 << 20),
        swap,
        delivery,
        window: Some(Bytes(1 << 30)),
        ..Config::default()
    };
    common::pool(config, settings)
}

fn mix(seed: u64) -> u64 {
    let x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (x ^ x >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) ^ x >> 7
}

/// The word at `i` of a page in a generation; generation 0 is a page of zeros. Three in four do not
/// compress.
fn word(page: usize, generation: u32, i: usize) -> u64 {
    let stamp = mix((page as u64) << 32 | u64::from(generation));
    match (generation, stamp % 4) {
        (0, _) => 0,
        (_, 0) => stamp ^ (i / 32) as u64,
        _ => mix(stamp ^ i as u64),
    }
}

/// How a thread gets at its pages.
enum Access {
    /// As any program does: a page that is gone ends it with SIGBUS.
    Direct,
    /// By system calls, which say EFAULT of a page that is gone: what passes through this file.
    Calls(OwnedFd),
}

/// One thread's pages, and what is in them.
struct Share<'a> {
    pool: &'a Pool,
    bytes: &'a mut [u8],
    first: usize,
    generations: Vec<u32>,
    access: Access,
    rng: u64,
    gone: u64,
}

impl Share<'_> {
    fn random(&mut self, below: usize) -> usize {
        self.rng = mix(self.rng);
        (self.rng >> 16) as usize % below
    }

    fn expected(&self, page: usize) -> [u8; PAGE] {
        let mut bytes = [0; PAGE];
        for (i, place) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *place = word(self.first + page, self.generations[page], i).to_le_bytes();
        }
        bytes
    }

    fn page(&mut self, page: usize) -> &mut [u8] {
        &mut self.bytes[page * PAGE..][..PAGE]
    }

    /// Looks at every byte of a page.
    fn verify(&mut self, page: usize) {
        let (expected, mut read) = (self.expected(page), [0; PAGE]);
        match &self.access {
            Access::Direct => read.copy_from_slice(&self.bytes[page * PAGE..][..PAGE]),
            Access::Calls(file) => match pwrite(file, &self.bytes[page * PAGE..][..PAGE], 0) {
                Ok(PAGE) => assert_eq!(pread(file, &mut read, 0), Ok(PAGE)),
                Err(Errno::FAULT) => return self.give_up(page),
                other => panic!("{other:?}"),
            },
        }
        assert!(read == expected, "page {page} is wrong");
    }

    /// Puts the content of its next generation into a page.
    fn renew(&mut self, page: usize) {
        self.generations[page] += 1;
        let expected = self.expected(page);
        match &self.access {
            Access::Direct => self.page(page).copy_from_slice(&expected),
            Access::Calls(file) => {
                pwrite(file, &expected, 0).unwrap();
                match pread(file, &mut self.bytes[page * PAGE..][..PAGE], 0) {
                    Ok(PAGE) => {}
                    Err(Errno::FAULT) => self.give_up(page),
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    /// A page whose content is gone is one of zeros again.
    fn give_up(&mut self, page: usize) {
        self.gone += 1;
        let at = self.page(page).as_ptr() as usize;
        self.pool.madvise(at..at + PAGE, MADV_DONTNEED).unwrap();
        self.generations[page] = 0;
    }

    /// Reads and writes at random and in sequence until `deadline`, then looks at everything.
    fn load(&mut self, deadline: Instant) -> u64 {
        let pages = self.generations.len();
        while Instant::now() < deadline {
            let (page, run) = (self.random(pages), 1 + self.random(4) / 3 * self.random(100));
            let write = self.random(2) == 0;
            for page in page..(page + run).min(pages) {
                self.verify(page);
                if write {
                    self.renew(page);
                }
            }
        }
        (0..pages).for_each(|page| self.verify(page));
        self.gone
    }
}

/// Loads a pool for a time; returns how many pages were gone, and its statistics.
fn load(
    delivery: Delivery,
    settings: &str,
    faults: &str,
    time: Duration,
) -> Option<(u64, overspill::stats::Snapshot)> {
    let pool = pool(delivery, settings, faults)?;
    let mut region = pool.map(PAGES * PAGE).unwrap();
    let deadline = Instant::now() + time;
    let bytes: &mut [u8] = region.as_mut_slice();
    let share = PAGES / THREADS;
    let gone = std::thread::scope(|scope| {
        let load = |(t, bytes)| {
            let access = if faults == TRANSIENT {
                Access::Direct
            } else {
                Access::Calls(memfd_create(c"page", MemfdFlags::CLOEXEC).unwrap())
            };
            let (first, generations) = (t * share, vec![0; share]);
            let mut share = Share {
                pool: &pool,
                bytes,
                first,
                generations,
                access,
                rng: t as u64 + 1,
                gone: 0,
            };
            scope.spawn(move || share.load(deadline))
        };
        let threads: Vec<_> = bytes.chunks_mut(share * PAGE).enumerate().map(load).collect();
        threads.into_iter().map(|thread| thread.join().expect("no page is wrong")).sum()
    });
    drop(region);
    let stats = pool.stats();
    let get = |name: &str| stats.counters[name];
    eprintln!(
        "{delivery:?} '{settings}' {faults}, {time:?}: {gone} pages gone; out {} pages, in {}; \
         read again {}, wrong checksums {}, failed reads {}, failed writes {}, bad slots {}",
        get("pswpout"),
        get("pswpin"),
        get("swap_read_retries"),
        get("swap_checksum_errors"),
        get("swap_read_errors"),
        get("swap_write_errors"),
        stats.devices.iter().map(|device| device.bad_slots).sum::<u64>(),
    );
    assert_eq!(get("nr_swap_used"), 0, "a slot is lost");
    assert_eq!(
        stats.devices.iter().map(|device| device.pages_written).sum::<u64>(),
        get("pswpout")
    );
    Some((gone, stats))
}

#[test]
fn no_wrong_byte_ever() {
    let time = Duration::from_secs_f64(seconds() / 4.0);
    let (mut retries, mut checksums, mut writes) = (0, 0, 0);
    for (delivery, settings) in [
        (Delivery::Thread, "compressed=0"),
        (Delivery::Signal, "compressed=0"),
        (Delivery::Thread, ""),
    ] {
        let Some((_, stats)) = load(delivery, settings, TRANSIENT, time) else { return };
        let get = |name: &str| stats.counters[name];
        assert_eq!((get("swap_read_errors"), get("fault_errors")), (0, 0), "nothing is gone");
        retries += get("swap_read_retries");
        checksums += get("swap_checksum_errors");
        writes += get("swap_write_errors");
    }
    assert!(retries > 0 && checksums > 0 && writes > 0, "nothing failed, so nothing was tested");
    let Some((gone, stats)) = load(Delivery::Thread, "compressed=0", LOSING, time) else { return };
    let get = |name: &str| stats.counters[name];
    assert!(gone > 0 && get("fault_errors") == gone, "{gone} {}", get("fault_errors"));
    // Each of them was read twice at least.
    assert!(get("swap_checksum_errors") >= 2 * gone && get("swap_read_errors") >= gone);
}
