//! The load that goes on beside an evacuation: a thread that reads and writes pages at random, of
//! which about a third are out on another device, or on their way there.
//!
//! It pushes pages of its own out at a steady rate, so that it meets as many faults before the
//! evacuation as during it.

use crate::measure::*;
use overspill::units::PAGE_SIZE;
use overspill_bench::contents::{Random, WORDS, fill_random, tag};
use overspill_os::Errno;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Acquire, Ordering::Release};
use std::sync::mpsc::channel;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// After so many accesses,
const ACCESSES: u64 = 64;
/// so many neighbouring pages are pushed out. With a share out of f, 64 f come in for every 32 (1 -
/// f) that go out.
const PAGES_OUT: usize = 32;
/// How long it runs before it is watched,
const WARM_UP: Duration = Duration::from_millis(300);
/// and how long it is watched before the evacuation.
const BEFORE: Duration = Duration::from_millis(700);
/// Phases: the two above, the evacuation, and the end.
const WARMING_UP: usize = 0;
const WATCHED: usize = 1;
const DISTURBED: usize = 2;
const ENDED: usize = 3;

/// Memory that pages can be pushed out of.
pub trait Pageable {
    fn words(&mut self) -> &mut [u64];
    /// Pushes out the pages of a range of bytes.
    fn page_out(&self, bytes: Range<usize>) -> Result<(), Errno>;
}

/// What the load did in one phase.
#[derive(Clone, Copy, Debug)]
pub struct Phase {
    /// Accesses a second.
    pub ops_per_s: f64,
    /// The longest time that one took.
    pub longest: Duration,
    /// Processor time of its thread.
    pub usage: Usage,
}

/// What the load did before and during an evacuation.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    pub before: Phase,
    pub during: Phase,
}

/// Calls `evacuate` while the load goes on over `memory`, all of which it fills first.
pub fn beside<M: Pageable + Send, T>(
    memory: M,
    evacuate: impl FnOnce() -> Result<T, Failure>,
) -> Result<(T, Found), Failure> {
    let phase = AtomicUsize::new(WARMING_UP);
    let (ready, filled) = channel();
    std::thread::scope(|scope| {
        let phase = &phase;
        let load = scope.spawn(move || {
            let mut load = Load { memory, random: Random::new(1), wrong: 0 };
            fill_random(load.memory.words(), 0, &mut load.random);
            // Nobody listens who does not wait for it.
            let _ = ready.send(());
            load.run(phase)
        });
        // It failed if it does not say that it is ready, which joining it tells.
        let evacuated = filled.recv().ok().map(|()| {
            sleep(WARM_UP);
            phase.store(WATCHED, Release);
            sleep(BEFORE);
            phase.store(DISTURBED, Release);
            evacuate()
        });
        phase.store(ENDED, Release);
        let found = load.join().expect("a panic ends the process");
        Ok((evacuated.expect("it was ready")?, found?))
    })
}

struct Load<M> {
    memory: M,
    random: Random,
    wrong: u64,
}

impl<M: Pageable> Load<M> {
    /// Goes on until the last phase, and tells of the two that count.
    fn run(&mut self, phase: &AtomicUsize) -> Result<Found, Failure> {
        let mut at = WARMING_UP;
        let mut done: Vec<Phase> = Vec::with_capacity(ENDED);
        let (mut began, mut usage) = (Instant::now(), Usage::of(UsageWho::RUSAGE_THREAD));
        let (mut ops, mut longest) = (0, Duration::ZERO);
        loop {
            let now = Instant::now();
            if phase.load(Acquire) > at {
                let used = Usage::of(UsageWho::RUSAGE_THREAD);
                let ops_per_s = ops as f64 / (now - began).as_secs_f64();
                done.push(Phase { ops_per_s, longest, usage: used - usage });
                at += 1;
                if at == ENDED {
                    break;
                }
                (began, usage, ops, longest) = (now, used, 0, Duration::ZERO);
            }
            self.access(ops)?;
            ops += 1;
            longest = longest.max(now.elapsed());
        }
        if self.wrong > 0 {
            fail!("{} accesses of the load found other content than it wrote", self.wrong);
        }
        Ok(Found { before: done[WATCHED], during: done[DISTURBED] })
    }

    /// Reads and writes a page, and pushes out what is due. All are written, since a clean page can
    /// leave in another way: what is clean depends on how full swap space is, which an evacuation
    /// changes.
    fn access(&mut self, number: u64) -> Result<(), Failure> {
        let words = self.memory.words();
        let pages = (words.len() / WORDS) as u64;
        let at = self.random.below(pages);
        let page = &mut words[at as usize * WORDS..][..WORDS];
        self.wrong += u64::from(page[0] != tag(at));
        page[1] = number;
        if number % ACCESSES == ACCESSES - 1 {
            let first = self.random.below(pages / PAGES_OUT as u64) as usize * PAGES_OUT;
            let out = self.memory.page_out(first * PAGE_SIZE..(first + PAGES_OUT) * PAGE_SIZE);
            out.failing("the load cannot push pages out")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory of which pages that go out are checked, and that is damaged on request.
    struct Fake {
        words: Vec<u64>,
        damage: bool,
    }

    impl Pageable for Fake {
        fn words(&mut self) -> &mut [u64] {
            if self.damage && self.words[0] == tag(0) {
                self.words.fill(0);
            }
            &mut self.words
        }

        fn page_out(&self, bytes: Range<usize>) -> Result<(), Errno> {
            assert!(bytes.end <= 8 * self.words.len() && bytes.len() == PAGES_OUT * PAGE_SIZE);
            Ok(())
        }
    }

    #[test]
    fn the_load_runs_before_and_during_and_notices_what_is_wrong() {
        let fake = |damage| Fake { words: vec![0; 100 * WORDS], damage };
        let pause = Duration::from_millis(20);
        let (result, found) = beside(fake(false), || {
            sleep(pause);
            Ok(7)
        })
        .unwrap();
        assert!(
            result == 7 && found.before.ops_per_s > 0.0 && found.during.ops_per_s > 0.0,
            "{found:?}"
        );
        let Usage { user_s, sys_s, .. } = found.during.usage;
        assert!(user_s + sys_s <= 5.0 * pause.as_secs_f64(), "{found:?}");
        let failed = beside(fake(false), || Err::<(), _>(Failure::new("no room"))).unwrap_err();
        assert_eq!(failed.to_string(), "no room");
        assert!(beside(fake(true), || Ok(())).unwrap_err().to_string().contains("other content"));
    }
}
