//! There is no room: which process of the job ends, and what is said about it.
//!
//! As the kernel would have it in a memory cgroup: the largest, each counted as its oom_score_adj
//! says. It is told so in the account of the job, and ends itself, within a tenth of a second: its
//! number may mean another process elsewhere. Whoever found no room goes on trying.
//!
//! What is said is made without a heap: the caller may be in the middle of malloc.

use crate::account::{Account, Member, Mood, Name, Told};
use crate::base::psi::clock_us;
use crate::reclaim::Reclaim;
use crate::reclaim::direct::NextStep;
use crate::reclaim::settings::OutOfRoom;
use crate::stats::{Counter, Stats};
use crate::units::Bytes;
use overspill_os::backing::Backing;
use overspill_os::{beside, thread};
use std::fmt;
use std::sync::atomic::Ordering::AcqRel;
use std::time::Duration;

/// What a job can be given, by the options of the command.
const OF_JOB: &str = "Give it a larger --memory, or a larger --swap";
/// What a pool of a library can be given.
const OF_POOL: &str = "Give the pool a larger budget, or more swap";
/// How long one that is to end has, before another is chosen.
const END_WAIT_MS: u64 = 2000;
/// Pages that a process leases and does not use which are worth waiting for.
const UNUSED_LEAST: u64 = 256;
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
        // A lower limit that cannot be reached is soon given up, and what processes have that rest
        // soon given back.
        let is_to_come = || self.oom_progress.waits_for_leases(self.is_unused_leased());
        if self.memory.lease.is_pressed() || is_to_come() {
            self.oom_progress.forget();
            return NextStep::Pause;
        }
        let sentence = "out of room: nothing more can be reclaimed, compressed or written;";
        let remedy = if self.memory.lease.has_whole { OF_POOL } else { OF_JOB };
        match self.settings.oom {
            OutOfRoom::Sigbus => {
                self.base.report.once(format_args!("{sentence} the program gets SIGBUS. {remedy}"));
                return NextStep::OutOfRoom;
            }
            OutOfRoom::Kill => {}
        }
        // 1. One at a time: whoever is to end has some time for that.
        let account = self.memory.lease.account;
        self.reap();
        let (before, now) = (account.victim(), clock_us() / 1000);
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
                thread::report(format_args!("{sentence} {ends}. {remedy}"));
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
                    thread::report(format_args!("{sentence} {ends}. {remedy}"));
                }
                self.end();
                NextStep::OutOfRoom
            }
        }
    }

    /// Whether processes that do not work lease more than they use: they are about to give it.
    fn is_unused_leased(&self) -> bool {
        self.memory.lease.account.members().any(|member| {
            let Told { mood, used, unmanaged, .. } = member.told();
            matches!(mood, Mood::AtRest | Mood::Stuck)
                && member.lease() > used + unmanaged + UNUSED_LEAST
        })
    }

    /// Takes back what processes of the job leased that are gone.
    pub(crate) fn reap(&self) {
        if self.memory.lease.account.reap() > 0 {
            self.base.psi.forget_gone();
        }
    }

    fn worst(&self) -> Option<Member> {
        let account = self.memory.lease.account;
        let sizes: u64 = account.members().map(|member| member.told().size).sum();
        let all = sizes.max(account.budget());
        // One that has just begun cannot be told yet; one without an engine is small, and not told.
        let is_told = |member: &Member| {
            let told = !member.is_doomed() && member.process().0 != 0;
            told && member.told().mood != Mood::Dormant
        };
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
        beside::kill_program();
        // Where it could not be killed the access fails.
        thread::sleep(Duration::from_secs(1));
    }
}

/// What was used by this process, which ends.
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

    #[test]
    fn the_largest_is_the_worst_but_for_what_it_says_itself() {
        let told = |size, adjusted| Told { size, adjusted, ..Told::default() };
        assert!(badness(&told(200, 0), 1000) > badness(&told(100, 0), 1000));
        assert!(badness(&told(200, 0), 1000) < badness(&told(100, 101), 1000));
        assert!(badness(&told(0, -999), 1000) < badness(&told(1, -998), 1000));
        assert_eq!(badness(&told(200, -1000), 1000), None, "never");
    }
}
