//! Out of room: how long reclaim may be fruitless.
//!
//! Nothing may be reclaimable for a moment: a page is somebody else's, a device is being written
//! to. So a fault goes on trying, but not for ever, and not page by page for minutes either: a
//! program that does not fit makes its last pages come and go, one a second. [`OomProgress`] keeps
//! an account for the whole pool: time in which nothing was freed is added, what is freed is taken
//! off. Who has waited `oom.wait` by that account has no room.
//! What happens then is in [`victim`].
//!
//! Locks: one over the account (`Rank::OomProgress`, a leaf).

pub mod victim;

use crate::base::lockdep::Rank;
use crate::base::sync::{RankedMutex, lock};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What a freed page takes off the account: a process that frees less than 50 pages a second of
/// fruitless trying does not get anywhere.
const PAGE_WORTH: Duration = Duration::from_millis(20);
/// Most that one try counts: a process that was stopped meanwhile, or got no processor, is not out
/// of room.
const TRY_MOST: Duration = Duration::from_millis(100);
/// By how much slower time counts while pages are being written to devices: they will be free then.
/// A device that never answers makes a fault wait for so many times `oom.wait`.
const WRITING_SLOWER: u32 = 8;

/// How many times `oom.wait` is waited for what others are about to give.
const LEASE_WAITS: u32 = 2;

/// What reclaim has cost lately for nothing.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Fruitless {
    fruitless: Duration,
    /// Up to when time has been counted.
    until: Duration,
}

impl Fruitless {
    /// A thread has tried from `from` to `now` and freed so many pages, while pages were `writing`
    /// to devices or not; how long it has all been fruitless.
    fn note(&mut self, from: Duration, now: Duration, freed: usize, writing: bool) -> Duration {
        // 1. Nobody tried for a while: there was room.
        self.fruitless = self.fruitless.saturating_sub(from.saturating_sub(self.until));
        // 2. Time counts once, however many try.
        let time = now.saturating_sub(from.max(self.until)).min(TRY_MOST);
        self.until = self.until.max(now);
        match freed {
            0 => self.fruitless += if writing { time / WRITING_SLOWER } else { time },
            pages => self.take_off(pages),
        }
        self.fruitless
    }

    /// So many pages were freed, by whomever.
    fn take_off(&mut self, pages: usize) {
        let worth = PAGE_WORTH.saturating_mul(u32::try_from(pages).unwrap_or(u32::MAX));
        self.fruitless = self.fruitless.saturating_sub(worth);
    }
}

/// The account of the pool: how far it is on its way to being out of memory.
#[derive(Debug)]
pub(crate) struct OomProgress {
    began: Instant,
    account: RankedMutex<Fruitless>,
    /// How often in a row there was no room but what others were about to give.
    waits: AtomicU32,
}

impl Default for OomProgress {
    fn default() -> OomProgress {
        let account = RankedMutex::new(Rank::OomProgress, Fruitless::default());
        OomProgress { began: Instant::now(), account, waits: AtomicU32::new(0) }
    }
}

impl OomProgress {
    /// Forgets it all: something else is being done about it.
    pub fn forget(&self) {
        lock(&self.account).fruitless = Duration::ZERO;
    }

    /// There is no room. Whether it is worth to wait for what others lease in vain, if they do.
    pub fn waits_for_leases(&self, do_they: bool) -> bool {
        if !do_they {
            self.waits.store(0, Relaxed);
        }
        do_they && self.waits.fetch_add(1, Relaxed) < LEASE_WAITS
    }

    /// Notes what came of trying since `from`, while pages were `writing` to devices or not; how
    /// long it has all been fruitless.
    pub fn note(&self, from: Instant, freed: usize, writing: bool) -> Duration {
        let [from, now] = [from, Instant::now()].map(|at| at.saturating_duration_since(self.began));
        lock(&self.account).note(from, now, freed, writing)
    }

    /// Whether reclaim has lately been fruitless for so long.
    pub fn is_beyond(&self, limit: Duration) -> bool {
        let now = self.began.elapsed();
        let account = lock(&self.account);
        account.fruitless.saturating_sub(now.saturating_sub(account.until)) > limit
    }

    /// Notes that others than those who try have freed pages, or that one who tried has found some.
    pub fn freed(&self, pages: usize) {
        if pages > 0 {
            lock(&self.account).take_off(pages);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Notes a try of so long that freed some pages, or tries that were fruitless.
    fn step(account: &mut Fruitless, from: u64, now: u64, freed: usize) -> u64 {
        let longest = if freed > 0 { now - from } else { 100 };
        let tries = (from..now).step_by(longest as usize).map(|at| (at, (at + longest).min(now)));
        let noted = tries.map(|(from, now)| account.note(ms(from), ms(now), freed, false)).last();
        noted.expect("a try takes time").as_millis() as u64
    }

    #[test]
    fn a_process_that_was_stopped_is_not_out_of_room() {
        let mut account = Fruitless::default();
        assert_eq!(account.note(ms(10), ms(3_600_000), 0, false), TRY_MOST);
    }

    #[test]
    fn only_fruitless_time_counts() {
        let mut account = Fruitless::default();
        assert_eq!(step(&mut account, 0, 500, 0), 500);
        // A slow device: five seconds for a few pages are worth the wait.
        assert_eq!(step(&mut account, 500, 5500, 32), 0);
        assert_eq!(step(&mut account, 5500, 6000, 0), 500);
        assert_eq!(step(&mut account, 6000, 6001, 1), 480);
    }

    #[test]
    fn many_who_try_count_as_one() {
        let mut account = Fruitless::default();
        for thread in 0..20 {
            assert_eq!(step(&mut account, thread, 1000 + thread, 0), 1000 + thread);
        }
    }

    #[test]
    fn a_trickle_is_no_progress_and_a_stream_is() {
        let until_out_of_room = |every_ms: u64| {
            let mut account = Fruitless::default();
            (1..100_000).find(|i| {
                let now = i * every_ms;
                step(&mut account, now - every_ms, now - 1, 0);
                step(&mut account, now - 1, now, 1) >= 2000
            })
        };
        // A page a second: after three.
        assert_eq!(until_out_of_room(1000).map(|pages| pages * 1000), Some(3000));
        // Twenty a second: after a few seconds. A hundred a second: never.
        assert!(until_out_of_room(50).is_some_and(|pages| pages * 50 < 4000));
        assert_eq!(until_out_of_room(10), None);
    }

    /// Those who try find everything in the hands of the background thread, which frees it for
    /// them.
    #[test]
    fn what_others_free_is_progress_too() {
        let mut account = Fruitless::default();
        for i in 0..10_000 {
            assert!(step(&mut account, i, i + 1, 0) < 40, "after {i} ms");
            if i % 20 == 0 {
                account.take_off(2);
            }
        }
    }

    #[test]
    fn time_without_anybody_in_need_is_forgiven() {
        let mut account = Fruitless::default();
        assert_eq!(step(&mut account, 0, 1900, 0), 1900);
        assert_eq!(step(&mut account, 2900, 3000, 0), 1000);
        assert_eq!(step(&mut account, 60_000, 60_100, 0), 100);
    }

    #[test]
    fn a_device_that_is_being_written_to_is_waited_for_but_not_for_ever() {
        let mut account = Fruitless::default();
        for at in (0..15_900).step_by(100) {
            assert!(account.note(ms(at), ms(at + 100), 0, true) < ms(2000));
        }
        assert!(account.note(ms(15_900), ms(16_000), 0, true) >= ms(2000));
    }
}
