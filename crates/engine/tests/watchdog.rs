//! Random loads at eight times the memory: none ever stands still.
//!
//! Six loads by default, OVERSPILL_WATCHDOG_LOADS for another number. A load stands still when none
//! of its threads gets on for [`STILL_MAX`], by the clock of a watcher that does not count the time
//! in which it did not run itself: on a machine that has no time for anybody nothing is proved.

use overspill::config::{Config, Delivery};
use overspill::units::Bytes;
use overspill::{Error, Pool};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const WORDS: usize = PAGE / 8;
/// Longest time in which no thread of a load gets on.
const STILL_MAX: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_millis(100);
/// Touches of pages in a load, of all threads together, beside one of each page.
const TOUCHES: usize = 20_000;
/// Longest that a load may go on: it stops then, since how fast it is, is not what is tested.
const LONGEST: Duration = Duration::from_secs(6);

fn loads() -> u64 {
    std::env::var("OVERSPILL_WATCHDOG_LOADS")
        .map_or(6, |text| text.parse().expect("a number of loads"))
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB) ^ x >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// A load, all of it by chance.
#[derive(Debug)]
struct Load {
    delivery: Delivery,
    settings: String,
    swap: &'static str,
    memory: u64,
    threads: usize,
    /// Of a hundred pages, how many do not compress.
    random_pages: u64,
    /// Of a hundred touches, how many write.
    writes: usize,
    /// Of a hundred touches, how many go to a sixteenth of the pages.
    hot: usize,
    sequential: bool,
}

impl Load {
    fn of(seed: u64) -> Load {
        let mut random = Random(seed);
        let settings = [
            random.one_of(&["background=on", "background=off"]),
            random.one_of(&[
                "reclaim.max=auto",
                "reclaim.max=1",
                "reclaim.max=8",
                "reclaim.max=off",
            ]),
            random.one_of(&["reclaim.recheck=wake", "reclaim.recheck=timed"]),
            random.one_of(&["compressed=50", "compressed=0", "compressed=20"]),
            random.one_of(&["out=auto", "out=move", "out=drop"]),
            random.one_of(&["folio=16", "folio=1"]),
            random.one_of(&["readahead=8", "readahead=64", "readahead=1"]),
            random.one_of(&["watermark=auto", "watermark=8%/9%/10%"]),
        ];
        Load {
            delivery: random.one_of(&[Delivery::Signal, Delivery::Thread]),
            settings: settings.join(","),
            swap: random.one_of(&[
                "ram:1G",
                "ram:1G,latency=200us",
                "ram:1G,faults=0.003:eio+short+full+slow,seed=1",
            ]),
            memory: random.one_of(&[4, 8, 16]) << 20,
            threads: random.one_of(&[1, 3, 16, 80]),
            random_pages: random.one_of(&[0, 50, 100]),
            writes: random.one_of(&[0, 50, 100]),
            hot: random.one_of(&[0, 90]),
            sequential: random.below(4) == 0,
        }
    }

    /// What page `number` holds behind its first word.
    fn fill(&self, page: &mut [u64], number: u64) {
        let mut random = Random(number);
        let compresses = random.next() % 100 >= self.random_pages;
        page.iter_mut().for_each(|word| *word = if compresses { number } else { random.next() });
    }

    /// One thread's part.
    fn run(&self, words: &mut [u64], thread: usize, progress: &AtomicU64, stop: &AtomicBool) {
        let pages = words.len() / WORDS;
        let first = (thread * pages) as u64;
        let mut versions = vec![0u64; pages];
        let mut random = Random(!(thread as u64));
        for (page, words) in words.chunks_exact_mut(WORDS).enumerate() {
            self.fill(words, first + page as u64);
            words[0] = 0;
            progress.fetch_add(1, Relaxed);
            if stop.load(Relaxed) {
                return;
            }
        }
        for touch in 0..TOUCHES / self.threads {
            let range = if random.below(100) < self.hot { (pages / 16).max(1) } else { pages };
            let page = if self.sequential { touch % range } else { random.below(range) };
            let words = &mut words[page * WORDS..][..WORDS];
            assert_eq!(words[0], versions[page], "page {page} of thread {thread} of {self:?}");
            if random.below(100) < self.writes {
                (versions[page], words[0]) = (touch as u64, touch as u64);
            }
            progress.fetch_add(1, Relaxed);
            if stop.load(Relaxed) {
                return;
            }
        }
    }
}

/// Ends the process if a load stands still; returns when it has ended.
fn watch(
    load: &Load,
    pool: &Pool,
    progress: &AtomicU64,
    stop: &AtomicBool,
    ended: impl Fn() -> bool,
) {
    let (mut last, mut still) = (0, Duration::ZERO);
    let began = Instant::now();
    while !ended() {
        let slept = Instant::now();
        std::thread::sleep(TICK);
        let now = progress.load(Relaxed);
        if now != last {
            (last, still) = (now, Duration::ZERO);
        } else if slept.elapsed() < 2 * TICK {
            still += TICK;
        }
        if still > STILL_MAX {
            eprintln!("{load:?} stands still after {now} touches: {:#?}", pool.stats());
            std::process::abort();
        }
        if began.elapsed() > LONGEST {
            stop.store(true, Relaxed);
        }
    }
}

/// A load in this process; ends it if the load stands still.
fn run(seed: u64) {
    let load = Load::of(seed);
    let mut config =
        Config { memory: Bytes(load.memory), delivery: load.delivery, ..Config::default() };
    config.swap = vec![load.swap.parse().unwrap()];
    config.window = Some(Bytes(1 << 30));
    config.apply_with_baselines(&load.settings).unwrap();
    let pool = match Pool::new(config) {
        Ok(pool) => pool,
        Err(error @ Error::NoUserfaultfd { .. }) => return eprintln!("SKIPPED: {error}"),
        Err(error) => panic!("{error}"),
    };
    let mut region = pool.map(8 * load.memory as usize).unwrap();
    let share = region.as_slice::<u64>().len() / load.threads / WORDS * WORDS;
    let (progress, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (load, progress, stop) = (&load, &progress, &stop);
        let threads: Vec<_> =
            (region.as_mut_slice::<u64>().chunks_exact_mut(share).take(load.threads).enumerate())
                .map(|(thread, words)| scope.spawn(move || load.run(words, thread, progress, stop)))
                .collect();
        watch(load, &pool, progress, stop, || threads.iter().all(|thread| thread.is_finished()));
    });
    let stats = pool.stats();
    assert_eq!(
        (stats.counters["fault_errors"], stats.counters["nr_reclaimers"]),
        (0, 0),
        "{load:?}"
    );
    assert!(progress.into_inner() > 0, "{load:?}");
}

/// Each in a process of its own: one has room for so many pools and no more.
#[test]
fn random_loads_never_stand_still() {
    const LOAD: &str = "OVERSPILL_TEST_LOAD";
    if let Ok(seed) = std::env::var(LOAD) {
        return run(seed.parse().unwrap());
    }
    for seed in 0..loads() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "random_loads_never_stand_still", "--nocapture"])
            .env(LOAD, seed.to_string());
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "load {seed}: {}: {said}", output.status);
        if said.contains("SKIPPED") {
            return eprintln!("{said}");
        }
    }
}
