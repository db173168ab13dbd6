//! How the lease of a process follows what it needs: it grows by steps, is given back, and is taken
//! over in the child of a fork.
//!
//! Lock: that over changes of the lease, over which the limit is set with it.

use super::Memory;
use super::lease::FLOOR;
use crate::account::Member;
use overspill_os::backing::Backing;
use std::time::Duration;

/// By how many pages a lease that is smaller grows; and how long it waits before that again while
/// more is leased than there is, so that others have time to give.
const FLOOR_STEP: u64 = 128;
const FLOOR_EVERY: Duration = Duration::from_millis(50);
/// Pages by which a lease grows: a part of it, within these bounds.
const STEP_LEAST: u64 = 64;
const STEP_MOST: u64 = 1 << 14;

/// What has come of it that a process asked for more pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Growth {
    /// It has more.
    Grown,
    /// Somebody else changes the lease just now.
    UnderWay,
    /// There are none.
    Nothing,
}

impl<B: Backing> Memory<B> {
    /// By how many pages the limit grows at a time, where few are left or many: a part of what the
    /// process has for itself.
    pub fn step(&self, is_scarce: bool) -> u64 {
        (self.budget().own() / if is_scarce { 16 } else { 4 }).clamp(STEP_LEAST, STEP_MOST)
    }

    /// Leases more pages, as far as the job has some.
    pub fn grow(&self) -> Growth {
        self.lease.try_change().map_or(Growth::UnderWay, |_changing| self.grow_alone())
    }

    /// The same for who reclaims where there are none: it waits for others that change the lease.
    pub fn grow_in_turn(&self) -> Growth {
        let _changing = self.lease.change();
        self.grow_alone()
    }

    /// Under the lock.
    fn grow_alone(&self) -> Growth {
        let (limit, cap) = (self.budget().limit(), self.lease.cap());
        let Some(member) = self.lease.member() else { return Growth::Nothing };
        // 1. What it needs to run at all, as far as it uses that. Where there is too little for
        //    all, as when many begin at once, only step by step: meanwhile it reclaims for itself.
        if limit < FLOOR && (!self.lease.is_over(0) || self.lease.takes_turn(FLOOR_EVERY)) {
            let uses = self.budget().used() + self.budget().promised() + FLOOR_STEP;
            let pages = uses.max(limit + FLOOR_STEP).min(FLOOR);
            self.lease.set(pages);
            self.budget().set_limit(pages);
            return Growth::Grown;
        }
        // 2. A step, or what there is.
        let step = self.step(self.lease.is_scarce()).min(cap.saturating_sub(limit));
        let taken = match step {
            0 => 0,
            _ => member.take(STEP_LEAST.min(step), step, self.lease.reserve()),
        };
        if taken > 0 {
            self.budget().set_limit(limit + taken);
            return Growth::Grown;
        }
        member.want(step);
        self.lease.note_short();
        Growth::Nothing
    }

    /// Leases what the process needs to run at all, at once.
    pub fn have_floor(&self) {
        if self.budget().limit() < FLOOR {
            self.set_lease(FLOOR);
        }
    }

    /// How many pages may come in before others have to leave: what is free above the high
    /// watermark, and what nobody leases, as far as the lease may grow.
    pub fn room(&self) -> u64 {
        let (budget, lease) = (self.budget(), &self.lease);
        let left = lease.account.budget().saturating_sub(lease.account.leased() + lease.reserve());
        let may_grow = lease.cap().saturating_sub(budget.limit());
        budget.free_pages().saturating_sub(budget.high()) + left.min(may_grow)
    }

    /// Leases all that the job has, up to the cap, if there is nobody else; whether the limit is
    /// higher now.
    pub fn take_all(&self) -> bool {
        let _changing = self.lease.change();
        let Some(member) = self.lease.member() else { return false };
        let (limit, most) = (self.budget().limit(), self.lease.account.budget());
        let to_cap = self.lease.cap().saturating_sub(limit);
        let rest = most.saturating_sub(limit + self.lease.unmanaged()).min(to_cap);
        let taken = if rest == 0 { 0 } else { member.take(1, rest, 0) };
        if taken > 0 {
            self.budget().set_limit(limit + taken);
        }
        taken > 0
    }

    /// Leases as much as a limit of so many pages takes, whatever the others have: less than
    /// before, or what it has to.
    pub fn set_lease(&self, pages: u64) {
        let _changing = self.lease.change();
        // The limit is never above the lease.
        let limit = self.budget().limit();
        let set_limit = || self.budget().set_limit(pages);
        if pages < limit {
            set_limit();
        }
        self.lease.set(pages);
        if pages > limit {
            set_limit();
        }
    }

    /// Gives back what is more than enough for the moment.
    pub fn trim_lease(&self) {
        let enough = self.budget().enough(self.shared()).max(FLOOR);
        if enough < self.budget().limit() {
            self.set_lease(enough);
        }
    }

    /// Notes how many pages of this process are not managed by now. They are leased whatever the
    /// others have: what that is too much, all give ([`crate::control`]).
    pub fn set_unmanaged(&self, pages: u64) {
        let _changing = self.lease.change();
        self.lease.set_unmanaged(pages);
        self.lease.set(self.budget().limit());
    }

    /// In the child of a fork: the entry is that which its parent took for it, or one that it can
    /// find itself.
    pub fn adopt_lease(&self, member: Option<Member>) {
        member.iter().for_each(Member::adopt);
        self.lease.set_member(member);
        self.lease.set_cap(u64::MAX);
        self.note_shared();
        self.budget().set_limit(self.lease.limit());
    }

    /// Before its thread holds the entry: another one, if somebody took this process for gone.
    pub fn keep_lease(&self) -> Option<Member> {
        let member = self.lease.member();
        if member.is_some_and(|member| member.mark().is_own()) {
            return member;
        }
        let member = self.lease.account.enter();
        self.lease.set_member(member);
        self.lease.set(self.budget().limit());
        member
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::Account;
    use crate::config::Config;
    use crate::memory::settings::MemorySettings;
    use crate::stats::Stats;
    use crate::units::Bytes;
    use overspill_os::backing::simulated::SimulatedTables;

    fn memory(settings: &MemorySettings) -> Memory<SimulatedTables> {
        let tables = || Ok(SimulatedTables::new(true, || {}, || true));
        Memory::over(settings, Stats::anonymous().unwrap(), tables).unwrap()
    }

    /// Many that begin at once would each have what it needs to run, and together more than there
    /// is, before any of them can give something.
    #[test]
    fn where_there_is_too_little_a_process_gets_what_it_needs_step_by_step() {
        let account = Account::without_job(4 * FLOOR).unwrap();
        let config = Config { memory: Bytes::from_pages(4 * FLOOR), ..Config::default() };
        let settings = MemorySettings { account: Some(account), ..config.memory() };
        let memory = memory(&settings);
        let begins_with = memory.budget().limit();
        let grown = || memory.budget().limit() - begins_with;
        // 1. As long as there is enough, as often as it asks.
        (0..2).for_each(|_| assert_eq!(memory.grow(), Growth::Grown));
        assert_eq!(grown(), 2 * FLOOR_STEP);
        // 2. Others have all of it: once, and not again at once.
        let other = account.enter().unwrap();
        other.set(4 * FLOOR);
        assert_eq!([memory.grow(), memory.grow()], [Growth::Grown, Growth::Nothing]);
        assert_eq!(grown(), 3 * FLOOR_STEP);
        // 3. What pages that stay in memory need it has at once.
        memory.have_floor();
        assert_eq!((memory.budget().limit(), memory.grow()), (FLOOR, Growth::Nothing));
        // 4. And the others can have as much.
        other.set(0);
        assert_eq!(memory.grow(), Growth::Grown);
        assert!(memory.budget().limit() > FLOOR);
    }

    #[test]
    fn a_process_that_goes_on_asking_has_what_it_needs_in_the_end() {
        let account = Account::without_job(FLOOR).unwrap();
        let settings = MemorySettings { account: Some(account), ..Config::default().memory() };
        let memory = memory(&settings);
        account.enter().unwrap().set(2 * FLOOR);
        while memory.budget().limit() < FLOOR {
            assert_ne!(memory.grow(), Growth::UnderWay);
            std::thread::sleep(FLOOR_EVERY / 8);
        }
    }
}
