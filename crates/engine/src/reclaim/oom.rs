//! Out of room: how long reclaim may be fruitless, and what happens then.
//!
//! Nothing may be reclaimable for a moment: a page is somebody else's, a device is being written
//! to. So a fault goes on trying, but not for ever, and not page by page for minutes either: a
//! program that does not fit makes its last pages come and go, one a second. [`OomProgress`] keeps
//! an account for the whole pool: time in which nothing was freed is added, what is freed is taken
//! off. Who has waited `oom.wait` by that account has no room.
//!
//! Then a process of the job ends, as the kernel would have it in a memory cgroup: the largest,
//! each counted as its oom_score_adj says. It is told so in the account of the job, and ends
//! itself, within a tenth of a second: its number may mean another process elsewhere. Whoever
//! found no room goes on trying.
//!
//! Locks: one over the account (`Rank::OomProgress`, a leaf).

use super::direct::NextStep;
use super::settings::OutOfRoom;
use crate::account::{Account, Member, Name, Told};
use crate::base::lockdep::Rank;
use crate::base::sync::{RankedMutex, lock};
use crate::reclaim::Reclaim;
use crate::stats::{Counter, Stats};
use crate::units::Bytes;
use overspill_os::backing::Backing;
use overspill_os::{beside, thread};
use rustix::process::{Signal, kill_process};
use std::fmt;
use std::sync::atomic::Ordering::AcqRel;
use std::time::{Duration, Instant};

/// What a freed page takes off the account: a process that frees less than 50 pages a second of
/// fruitless trying does not get anywhere.
const PAGE_WORTH: Duration = Duration::from_millis(20);
/// Most that one try counts: a process that was stopped meanwhile, or got no processor, is not out
/// of room.
const TRY_MOST: Duration = Duration::from_millis(100);
const REMEDY: &str = "Give it a larger --memory, or a larger --swap";
/// By how much slower time counts while pages are being written to devices: they will be free then.
/// A device that never answers makes a fault wait for so many times `oom.wait`.
const WRITING_SLOWER: u32 = 8;

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
}

impl Default for OomProgress {
    fn default() -> OomProgress {
        let account = RankedMutex::new(Rank::OomProgress, Fruitless::default());
        OomProgress { began: Instant::now(), account }
    }
}

impl OomProgress {
    /// Forgets it all: something else is being done about it.
    pub fn forget(&self) {
        lock(&self.account).fruitless = Duration::ZERO;
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

/// How long one that is to end has, before another is chosen.
const END_WAIT_MS: u64 = 2000;
/// Processes that the line about an end names at most.
const NAMED_MAX: usize = 5;

/// How much would be gained by ending a process, as the kernel reckons (mm/oom_kill.c): its pages,
/// and `oom_score_adj` thousandths of all there are. `None` for one that must not be ended.
fn badness(told: &Told, all: u64) -> Option<i64> {
    const NEVER: i64 = -1000;
    let adjusted = told.adjusted.clamp(NEVER, -NEVER);
    (adjusted != NEVER).then(|| told.size as i64 + adjusted * (all as i64 / 1000))
}

impl<B: Backing> Reclaim<B> {
    /// There is no room, for as long as it is worth waiting: says so, once, and ends the process of
    /// the job by which most is gained. What the caller is to do.
    pub(crate) fn out_of_room(&self) -> NextStep {
        let sentence = "out of room: nothing more can be reclaimed, compressed or written;";
        match self.settings.oom {
            OutOfRoom::Sigbus => {
                self.base.report.once(format_args!("{sentence} the program gets SIGBUS. {REMEDY}"));
                return NextStep::OutOfRoom;
            }
            OutOfRoom::Kill => {}
        }
        // 1. One at a time: whoever is to end has some time for that.
        let account = self.memory.lease.account;
        if account.reap() > 0 {
            self.base.psi.forget_gone();
        }
        let (before, now) = (account.victim(), clock_ms());
        let own = self.memory.lease.member();
        if let Some((victim, since)) = before
            && !victim.mark().is_free()
            && now.abs_diff(since) < END_WAIT_MS
        {
            return NextStep::Pause;
        }
        // 2. The worst of those that can be ended, and were not asked to in vain; or this one.
        let victim = self.worst().or(own);
        if let Some(victim) = victim
            && !account.set_victim(before, victim, now)
        {
            return NextStep::Pause;
        }
        match victim.filter(|victim| own.is_none_or(|own| own.entry() != victim.entry())) {
            Some(victim) => {
                let (process, name) = victim.process();
                let ends = OtherEnds { account, process, name };
                thread::report(format_args!("{sentence} {ends}. {REMEDY}"));
                self.stats.add(Counter::OomKill, 1);
                victim.doom(process);
                // What it leaves is to be tried for as long again.
                self.oom_progress.forget();
                NextStep::Pause
            }
            None => {
                if !self.killing.swap(true, AcqRel) {
                    self.stats.add(Counter::OomKill, 1);
                    self.swap.publish_tiers();
                    let ends = ThisEnds { account, stats: &self.stats };
                    thread::report(format_args!("{sentence} {ends}. {REMEDY}"));
                }
                self.end();
                NextStep::OutOfRoom
            }
        }
    }

    fn worst(&self) -> Option<Member> {
        let account = self.memory.lease.account;
        let sizes: u64 = account.members().map(|member| member.told().size).sum();
        let all = sizes.max(account.budget());
        // One that has just begun cannot be told yet.
        let is_told = |member: &Member| !member.is_doomed() && member.process().0 != 0;
        let alive = account.members().filter(is_told);
        alive
            .filter_map(|member| Some((badness(&member.told(), all)?, member)))
            .max_by_key(|(badness, _)| *badness)
            .map(|(_, member)| member)
    }

    /// This process ends, if others have chosen it.
    pub(crate) fn end_if_chosen(&self) {
        if self.memory.lease.member().is_some_and(|member| member.is_doomed()) {
            self.end();
        }
    }

    fn end(&self) {
        let _ = kill_process(beside::program(), Signal::KILL);
        // Where it could not be killed the access fails.
        thread::sleep(Duration::from_secs(1));
    }
}

/// Of a clock that all processes have.
fn clock_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// What was used by this process, which ends. Like the rest of the line, it is made without a heap:
/// the caller may be in the middle of malloc.
struct ThisEnds<'a> {
    account: Account,
    stats: &'a Stats,
}

impl fmt::Display for ThisEnds<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |counter| Bytes(self.stats.get(counter));
        let pages = |counter| Bytes::from_pages(self.stats.get(counter));
        let unmanaged = bytes(Counter::UnmanagedBytes);
        write!(
            f,
            "process {} is killed (oom=kill). Of the budget of {} it had {}: {unmanaged} that are \
             not managed, {} of pages in memory, {} in the swap cache, {} compressed, which held \
             {}; on devices {} of {}",
            beside::program().as_raw_nonzero(),
            Bytes::from_pages(self.account.budget()),
            Bytes(bytes(Counter::ChargedBytes).0 + unmanaged.0),
            pages(Counter::ResidentPages),
            pages(Counter::SwapCachePages),
            bytes(Counter::CompressedPoolBytes),
            pages(Counter::CompressedPages),
            pages(Counter::DevicePages),
            bytes(Counter::DeviceCapacityBytes),
        )?;
        match self.account.members().nth(1) {
            Some(_) => write!(f, ". In the job were{}", Largest(self.account)),
            None => Ok(()),
        }
    }
}

/// Another process ends, and what was used by whom.
struct OtherEnds {
    account: Account,
    process: u32,
    name: Name,
}

/// The largest processes of a job.
struct Largest(Account);

impl fmt::Display for OtherEnds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OtherEnds { process, name, .. } = self;
        let budget = Bytes::from_pages(self.account.budget());
        write!(
            f,
            "process {process} ({name}) is killed (oom=kill). In the job, which has a budget of \
             {budget}, were{}",
            Largest(self.account)
        )
    }
}

impl fmt::Display for Largest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = None;
        for at in 0..NAMED_MAX {
            let Some((told, member)) = self.next_smaller(last) else { return Ok(()) };
            let (process, name) = member.process();
            let [size, used] = [told.size, told.used + told.unmanaged].map(Bytes::from_pages);
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma} {name} ({process}) with {size}, {used} of it in memory")?;
            last = Some((told.size, member.entry()));
        }
        let others = self.0.members().count().saturating_sub(NAMED_MAX);
        if others > 0 { write!(f, ", and {others} smaller ones") } else { Ok(()) }
    }
}

impl Largest {
    /// The largest of those that come after one of such a size and entry.
    fn next_smaller(&self, than: Option<(u64, usize)>) -> Option<(Told, Member)> {
        let members = self.0.members().map(|member| (member.told(), member));
        members
            .filter(|(told, member)| than.is_none_or(|than| (told.size, member.entry()) < than))
            .max_by_key(|(told, member)| (told.size, member.entry()))
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
