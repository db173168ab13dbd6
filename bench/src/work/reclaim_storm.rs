//! `reclaim-storm`: groups of threads that pass messages, each with a working set in managed
//! memory, as in hackbench.

use crate::measure::*;
use overspill::units::PAGE_SIZE;
use overspill_bench::contents::{Random, WORDS, fill_random, tag};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::Builder;
use std::time::Instant;

/// Senders of a group, and receivers, as in hackbench.
const SENDERS: usize = 20;
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

/// Measures in this process, which does nothing else. `what` is how many messages go from
/// each sender to each receiver of its group.
pub fn measure_one(request: pool::Request<u32>) -> Result<Sample, Failure> {
    let began = Instant::now();
    let pool = request.pool()?;
    let (threads, messages) = (request.threads, request.what);
    let mut region = pool::map(&pool, request.bytes)?;
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
        fill_random(set.words, set.first, &mut set.random);
        filled.wait();
        start.wait();
        let (group, member) = (thread / GROUP_THREADS, thread % GROUP_THREADS);
        let sockets = group * SENDERS..(group + 1) * SENDERS;
        let done = match member.checked_sub(SENDERS) {
            None => send(&mut set, &outs[sockets], messages),
            Some(receiver) => receive(&mut set, &ins[sockets][receiver], messages * SENDERS as u32),
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
        let share = request.bytes as usize / size_of::<u64>() / threads;
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
        let before = pool.stats().counters;
        let began = Instant::now();
        start.wait();
        threads.into_iter().for_each(|thread| thread.join().expect("a panic ends the process"));
        (began.elapsed(), before)
    });
    let counted = Counted { before, after: pool.stats().counters };
    drop(region);
    drop(pool);
    pool::right(wrong.load(Relaxed))?;
    let usage = Usage::of(UsageWho::RUSAGE_SELF);
    let mut sample = told(&counted);
    let times = [
        // Seconds from the moment that all threads start to the arrival of the last message.
        ("benchmark_s", benchmark.as_secs_f64()),
        // Processor time of the process.
        ("user_s", usage.user_s),
        ("sys_s", usage.sys_s),
        // Seconds from the beginning of the process to its end.
        ("elapsed_s", began.elapsed().as_secs_f64()),
    ];
    add(&mut sample, times);
    Ok(sample)
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

/// What was counted since the threads started, and what was the most of all.
fn told(counted: &Counted) -> Sample {
    let ms = |name: &str| counted.now(name) / 1e6;
    figures([
        // Faults that had to read the device.
        ("major_faults", counted.count("pgmajfault")),
        // Most threads that reclaimed for themselves at once, the longest time that one of them did
        // so in one go, and the longest wait for a turn to.
        ("parallel_reclaimers_max", counted.now("reclaimers_max")),
        ("reclaim_ms_max", ms("direct_reclaim_ns_max")),
        ("throttle_wait_ms_max", ms("throttle_wait_ns_max")),
        // Pages that were evicted and came back within a second.
        ("refaults_1s", counted.count("refaults_1s")),
        // Pages evicted, and those of them that threads evicted for which there was no frame.
        ("evicted_pages", counted.evicted()),
        ("evicted_directly_pages", counted.count("pgsteal_direct")),
        // Times that a thread reclaimed for itself, and that one waited for its turn to.
        ("direct_reclaims", counted.count("allocstall")),
        ("throttled", counted.count("pgscan_direct_throttle")),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_go_from_page_to_page() {
        let (out, inward) = UnixStream::pair().unwrap();
        let (mut from, mut to) = (vec![0; 3 * WORDS], vec![0; 3 * WORDS]);
        let [mut sender, mut receiver] = [(&mut from, 0), (&mut to, 1)].map(|(words, at)| {
            let mut set = WorkingSet::new(words, at);
            fill_random(set.words, set.first, &mut set.random);
            set
        });
        send(&mut sender, &[out], 3).unwrap();
        receive(&mut receiver, &inward, 3).unwrap();
        assert_eq!((sender.wrong, receiver.wrong), (0, 0));
        let place = |page: &[u64]| page[MESSAGE_AT..][..MESSAGE_BYTES / 8].to_vec();
        let sent: Vec<_> = from.chunks(WORDS).map(place).collect();
        assert!(to.chunks(WORDS).map(place).any(|message| sent.contains(&message)));
        // A page of somebody else's is noticed.
        from.iter_mut().step_by(WORDS).for_each(|tag| *tag ^= 2);
        let mut set = WorkingSet::new(&mut from, 0);
        set.any();
        assert_eq!(set.wrong, 1);
    }
}
