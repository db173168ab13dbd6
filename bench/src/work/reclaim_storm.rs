//! `reclaim-storm`: groups of threads that pass messages, each with a working set in managed
//! memory, as in hackbench.

use crate::measure::counters::{Counted, add};
use crate::measure::usage::{Usage, UsageWho};
use crate::measure::{Failure, Sample, pool};
use overspill::units::PAGE_SIZE;
use overspill_bench::contents::{Random, WORDS, tag};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Seconds from the moment that all threads start to the arrival of the last message.
pub const BENCHMARK: &str = "benchmark_s";
/// Processor time of the process in user mode, in seconds.
pub const USER: &str = "user_s";
/// Processor time of the process in the kernel, in seconds.
pub const SYS: &str = "sys_s";
/// Seconds from the beginning of the process to its end.
pub const ELAPSED: &str = "elapsed_s";
/// Faults that had to read the device, from the moment that all threads start.
pub const MAJOR: &str = "major_faults";
/// Most threads that reclaimed for themselves at once.
pub const PARALLEL: &str = "parallel_reclaimers_max";
/// The longest time that one of them did so in one go, in milliseconds.
pub const RECLAIM_MS: &str = "reclaim_ms_max";
/// Pages that were evicted and came back within a second.
pub const REFAULTS: &str = "refaults_1s";
/// The longest wait for a turn to reclaim, in milliseconds.
pub const WAIT_MS: &str = "throttle_wait_ms_max";
/// Pages evicted.
pub const EVICTED: &str = "evicted_pages";
/// Those of them that threads evicted for which there was no frame.
pub const EVICTED_DIRECT: &str = "evicted_directly_pages";
/// Times that a thread reclaimed for itself.
pub const STALLS: &str = "direct_reclaims";
/// Times that a thread waited for its turn to.
pub const THROTTLED: &str = "throttled";
/// Senders of a group, and receivers, as in hackbench.
const SENDERS: usize = 20;
/// Threads of a group.
pub const GROUP_THREADS: usize = 2 * SENDERS;
/// Bytes of a message, as in hackbench.
pub const MESSAGE_BYTES: usize = 100;
/// What is the same in all steps: every page that leaves goes to the device.
pub const SETTINGS: &str = "compressed=0,zswap.recompress=off";
/// By what share of the budget the working sets exceed it: an eighth.
const EXCESS: u64 = 8;
/// Where messages lie in a page, in words; its first word tells whether it is the right page.
const MESSAGE_AT: usize = 8;
const MESSAGE_WORDS: usize = MESSAGE_BYTES.div_ceil(8);
/// Stack of a thread, which is not managed memory.
const STACK_BYTES: usize = 256 << 10;

/// What to measure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// Settings of the pool.
    pub settings: String,
    /// Groups of threads.
    pub groups: usize,
    /// The budget in bytes.
    pub memory: u64,
    /// Messages from each sender to each receiver of its group.
    pub messages: u32,
    /// The swap device.
    pub device: String,
}

/// What the threads use in all.
pub fn used_bytes(memory: u64, groups: usize) -> u64 {
    let threads = (groups * GROUP_THREADS) as u64;
    let page = PAGE_SIZE as u64;
    (memory + memory / EXCESS).div_ceil(threads * page) * threads * page
}

/// One thread's pages.
struct WorkingSet<'a> {
    words: &'a mut [u64],
    first: u64,
    random: Random,
    wrong: u64,
}

impl<'a> WorkingSet<'a> {
    fn new(words: &'a mut [u64], thread: usize) -> WorkingSet<'a> {
        let first = (thread * words.len() / WORDS) as u64;
        WorkingSet { words, first, random: Random::new(!(thread as u64)), wrong: 0 }
    }

    /// Random bytes in every page, behind its tag.
    fn fill(&mut self) {
        for (page, number) in self.words.chunks_exact_mut(WORDS).zip(self.first..) {
            page.fill_with(|| self.random.next());
            page[0] = tag(number);
        }
    }

    /// The place of a message in any page.
    fn any(&mut self) -> &mut [u64] {
        let at = self.random.below((self.words.len() / WORDS) as u64);
        let page = &mut self.words[at as usize * WORDS..][..WORDS];
        self.wrong += u64::from(page[0] != tag(self.first + at));
        &mut page[MESSAGE_AT..MESSAGE_AT + MESSAGE_WORDS]
    }
}

/// A message on the stack: a system call that is handed managed memory fails where it is not
/// resident.
type Message = [u8; MESSAGE_BYTES];

fn send(set: &mut WorkingSet<'_>, to: &[UnixStream], messages: u32) -> std::io::Result<()> {
    for _ in 0..messages {
        for mut receiver in to {
            let mut message: Message = [0; MESSAGE_BYTES];
            let words = set.any();
            message
                .chunks_mut(8)
                .zip(words)
                .for_each(|(to, from)| to.copy_from_slice(&from.to_le_bytes()[..to.len()]));
            receiver.write_all(&message)?;
        }
    }
    Ok(())
}

fn receive(set: &mut WorkingSet<'_>, mut from: &UnixStream, messages: u32) -> std::io::Result<()> {
    for _ in 0..messages {
        let mut message: Message = [0; MESSAGE_BYTES];
        from.read_exact(&mut message)?;
        let words = set.any();
        words
            .iter_mut()
            .zip(message.as_chunks::<8>().0)
            .for_each(|(to, from)| *to = u64::from_le_bytes(*from));
    }
    Ok(())
}

/// Measures in this process, which does nothing else.
pub fn measure_one(request: Request) -> Result<Sample, Failure> {
    let began = Instant::now();
    let settings = [SETTINGS, &request.settings].join(",");
    let pool = pool::open(request.memory, Some(&request.device), &settings)?;
    let threads = request.groups * GROUP_THREADS;
    let used = used_bytes(request.memory, request.groups) as usize;
    let mut region = pool::map(&pool, used as u64)?;
    raise_file_limit();
    let pairs = (0..threads / 2).map(|_| UnixStream::pair()).collect::<Result<Vec<_>, _>>();
    let pairs = pairs.map_err(|error| {
        Failure::new(format!("no sockets: {error}; raise the limit of open files"))
    })?;
    let (outs, ins): (Vec<UnixStream>, Vec<UnixStream>) = pairs.into_iter().unzip();
    // 1. Every thread fills its pages, and waits for the others.
    let (filled, start) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
    let wrong = AtomicU64::new(0);
    let body = |thread: usize, words: &mut [u64]| {
        let mut set = WorkingSet::new(words, thread);
        set.fill();
        filled.wait();
        start.wait();
        let (group, member) = (thread / GROUP_THREADS, thread % GROUP_THREADS);
        let sockets = group * SENDERS..(group + 1) * SENDERS;
        let done = match member.checked_sub(SENDERS) {
            None => send(&mut set, &outs[sockets], request.messages),
            Some(receiver) => {
                receive(&mut set, &ins[sockets][receiver], request.messages * SENDERS as u32)
            }
        };
        wrong.fetch_add(set.wrong, Relaxed);
        if let Err(error) = done {
            // The others would wait for ever.
            give_up(&Failure::new(format!("a message did not arrive: {error}")));
        }
    };
    // 2. All at once.
    let (benchmark, before) = std::thread::scope(|scope| {
        let body = &body;
        let share = used / size_of::<u64>() / threads;
        let threads: Vec<_> = (region.as_mut_slice::<u64>().chunks_exact_mut(share).enumerate())
            .map(|(thread, words)| {
                let thread = Builder::new()
                    .stack_size(STACK_BYTES)
                    .spawn_scoped(scope, move || body(thread, words));
                thread.unwrap_or_else(|error| {
                    give_up(&Failure::new(format!("no more threads can be had: {error}")))
                })
            })
            .collect();
        filled.wait();
        let before = pool.stats();
        let began = Instant::now();
        start.wait();
        threads.into_iter().for_each(|thread| thread.join().expect("a panic ends the process"));
        (began.elapsed(), before)
    });
    let after = pool.stats();
    drop(region);
    drop(pool);
    pool::right(wrong.load(Relaxed))?;
    let usage = Usage::of(UsageWho::RUSAGE_SELF)?;
    let times = Times { benchmark, usage, elapsed: began.elapsed() };
    Ok(figures(times, Counted { before: &before.counters, after: &after.counters }))
}

fn give_up(failure: &Failure) -> ! {
    failure.say();
    std::process::exit(1);
}

/// Two sockets for each pair of threads are more than most users have by default, and fewer than
/// they may have.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// What took how long.
#[derive(Clone, Copy, Debug)]
struct Times {
    /// See [`BENCHMARK`].
    benchmark: Duration,
    /// See [`USER`] and [`SYS`].
    usage: Usage,
    /// See [`ELAPSED`].
    elapsed: Duration,
}

/// All figures of a measurement; counting began when the threads started.
fn figures(times: Times, counted: Counted<'_>) -> Sample {
    let ms = |name: &str| counted.now(name) / 1e6;
    let mut sample = Sample::new();
    let figures = [
        (BENCHMARK, times.benchmark.as_secs_f64()),
        (USER, times.usage.user.as_secs_f64()),
        (SYS, times.usage.sys.as_secs_f64()),
        (ELAPSED, times.elapsed.as_secs_f64()),
        (MAJOR, counted.count("pgmajfault")),
        (PARALLEL, counted.now("reclaimers_max")),
        (RECLAIM_MS, ms("direct_reclaim_ns_max")),
        (REFAULTS, counted.count("refaults_1s")),
        (WAIT_MS, ms("throttle_wait_ns_max")),
        (EVICTED, counted.evicted()),
        (EVICTED_DIRECT, counted.count("pgsteal_direct")),
        (STALLS, counted.count("allocstall")),
        (THROTTLED, counted.count("pgscan_direct_throttle")),
    ];
    add(&mut sample, figures);
    sample
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::counters::Counters;

    #[test]
    fn working_sets_exceed_the_budget_by_an_eighth_in_whole_pages_each() {
        assert_eq!(used_bytes(64 << 20, 1), 72 * (1 << 20) / (40 * 4096) * (40 * 4096) + 40 * 4096);
        assert!(
            used_bytes(128 << 20, 30) >= 144 << 20
                && used_bytes(128 << 20, 30).is_multiple_of(1200 * 4096)
        );
    }

    #[test]
    fn messages_go_from_page_to_page() {
        let (out, inward) = UnixStream::pair().unwrap();
        let (mut from, mut to) = (vec![0; 3 * WORDS], vec![0; 3 * WORDS]);
        let [mut sender, mut receiver] = [(&mut from, 0), (&mut to, 1)].map(|(words, at)| {
            let mut set = WorkingSet::new(words, at);
            set.fill();
            set
        });
        send(&mut sender, &[out], 3).unwrap();
        receive(&mut receiver, &inward, 3).unwrap();
        assert_eq!((sender.wrong, receiver.wrong), (0, 0));
        let place = |page: &[u64]| page[MESSAGE_AT..][..MESSAGE_BYTES / 8].to_vec();
        let sent: Vec<_> = from.chunks(WORDS).map(place).collect();
        assert!(to.chunks(WORDS).map(place).any(|message| sent.contains(&message)));
        // A page of somebody else's is noticed.
        from[0] ^= 2;
        from[WORDS] ^= 2;
        from[2 * WORDS] ^= 2;
        let mut set = WorkingSet::new(&mut from, 0);
        set.any();
        assert_eq!(set.wrong, 1);
    }

    #[test]
    fn events_are_counted_from_the_start_and_maxima_are_what_they_are() {
        let before: Counters =
            [("pgmajfault", 10), ("reclaimers_max", 2), ("pgsteal_direct", 5)].into();
        let after = [
            ("pgmajfault", 110),
            ("reclaimers_max", 4),
            ("pgsteal_direct", 15),
            ("pgsteal_kswapd", 30),
            ("direct_reclaim_ns_max", 2_500_000),
        ];
        let times = Times {
            benchmark: Duration::from_secs(1),
            usage: Usage { user: Duration::from_secs(2), sys: Duration::from_secs(3) },
            elapsed: Duration::from_secs(4),
        };
        let after = after.into();
        let sample = figures(times, Counted { before: &before, after: &after });
        let get = |name: &str| sample[name];
        assert_eq!((get(BENCHMARK), get(USER), get(SYS), get(ELAPSED)), (1.0, 2.0, 3.0, 4.0));
        assert_eq!((get(MAJOR), get(PARALLEL), get(RECLAIM_MS)), (100.0, 4.0, 2.5));
        assert_eq!((get(EVICTED), get(EVICTED_DIRECT), get(WAIT_MS)), (40.0, 10.0, 0.0));
    }
}
