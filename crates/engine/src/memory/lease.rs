//! What of its job's budget a process may have: a lease of pages. What it has of memory that is not
//! managed comes off it, and the rest is its limit.
//!
//! A process that needs more takes it from the [`Account`] itself, in steps that grow with what it
//! has: the background thread ahead of need, a fault without a frame at once. What it is to give
//! back is decided above ([`crate::control`]); until it has, the lease does not grow beyond its
//! *cap*.
//!
//! Lock: one over changes of the lease ([`Rank::Lease`]), which a fault only tries. Over it, the
//! limit is set.

use super::Memory;
use crate::account::{Account, Member};
use crate::base::lockdep::Rank;
use crate::base::sync::{RankedGuard, RankedMutex, lock};
use overspill_os::Errno;
use overspill_os::backing::Backing;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Pages that a process which works has whatever the others need: its reserves and one batch of
/// pages out and in.
pub const FLOOR: u64 = super::MEMORY_MIN.pages();
/// By how many pages a lease that is smaller grows.
const FLOOR_STEP: u64 = 128;
/// Pages that a process of a job begins with.
const START: u64 = 512;
/// Pages by which a lease grows: a part of it, within these bounds.
const STEP_LEAST: u64 = 64;
const STEP_MOST: u64 = 1 << 14;
/// The part of the budget that is left when it is scarce.
const SCARCE_PART: u64 = 8;
/// What nobody takes while there are several processes, for those that begin or wake up: this part
/// of the budget, within these bounds.
const RESERVE_PART: u64 = 32;
const RESERVE_LEAST: u64 = 64;
const RESERVE_MOST: u64 = 1024;

/// A process's part of its job's budget.
#[derive(Debug)]
pub struct Lease {
    /// The job's.
    pub account: Account,
    /// Its entry there, or 0: without one it has [`FLOOR`] pages.
    entry: AtomicUsize,
    changing: RankedMutex<()>,
    /// Whether who is alone has all of the budget.
    pub has_whole: bool,
    /// How far the limit may grow.
    cap: AtomicU64,
    /// Whether pages are to be reclaimed to reach a lower limit.
    pressed: AtomicBool,
    /// Whether there was nothing to take since somebody looked.
    short: AtomicBool,
    /// Pages of the process that are not managed.
    unmanaged: AtomicU64,
    /// Whether another process's turn has come to have its pages in memory.
    gives_way: AtomicBool,
    /// Processes of the job that are at work, this one among them.
    at_work: AtomicUsize,
}

impl Lease {
    /// That of a process that begins. One of a job leases by what it uses, as others may begin at
    /// any time, and what it does not use is there for them at once. Without a job there are only
    /// its own children: it has all of the budget.
    pub(super) fn begin(account: Option<Account>, budget: u64) -> Result<Lease, Errno> {
        let has_whole = account.is_none();
        let account = account.map_or_else(|| Account::without_job(budget), Ok)?;
        if account.budget() == 0 {
            account.set_budget(budget);
        }
        let member = account.enter();
        let pages = if has_whole { budget } else { START.min(budget) };
        member.iter().for_each(|member| member.set(pages));
        Ok(Lease {
            account,
            has_whole,
            entry: AtomicUsize::new(member.map_or(0, |member| member.entry())),
            changing: RankedMutex::new(Rank::Lease, ()),
            cap: AtomicU64::new(u64::MAX),
            pressed: AtomicBool::new(false),
            short: AtomicBool::new(false),
            unmanaged: AtomicU64::new(0),
            gives_way: AtomicBool::new(false),
            at_work: AtomicUsize::new(1),
        })
    }

    /// Pages of it that are for memory which is managed.
    pub fn limit(&self) -> u64 {
        self.member().map_or(FLOOR, |member| member.lease().saturating_sub(self.unmanaged()))
    }

    /// Pages of it that are taken by memory which is not.
    pub fn unmanaged(&self) -> u64 {
        self.unmanaged.load(Relaxed)
    }

    /// The lock over changes; for a fault if it is free.
    pub(super) fn try_change(&self) -> Option<RankedGuard<'_, ()>> {
        self.changing.try_lock()
    }

    pub(super) fn change(&self) -> RankedGuard<'_, ()> {
        lock(&self.changing)
    }

    /// Has the lease be for a limit of so many pages.
    pub(super) fn set(&self, limit: u64) {
        self.member().iter().for_each(|member| member.set(limit + self.unmanaged()));
    }

    /// The entry.
    pub fn member(&self) -> Option<Member> {
        self.account.member(self.entry.load(Relaxed))
    }

    fn set_member(&self, member: Option<Member>) {
        self.entry.store(member.map_or(0, |member| member.entry()), Relaxed);
    }

    /// How far the limit may grow.
    pub fn cap(&self) -> u64 {
        self.cap.load(Relaxed)
    }

    /// From now on the limit grows to so many pages at most.
    pub fn set_cap(&self, pages: u64) {
        self.cap.store(pages, Relaxed);
    }

    /// Whether the limit is on its way down: that there is no room says nothing then.
    pub fn is_pressed(&self) -> bool {
        self.pressed.load(Relaxed)
    }

    /// From now on it is, or no more.
    pub fn set_pressed(&self, pressed: bool) {
        self.pressed.store(pressed, Relaxed);
    }

    /// Whether more was needed than there was, since the last time that somebody asked.
    pub fn was_short(&self) -> bool {
        self.short.swap(false, Relaxed)
    }

    /// Whether another process's turn has come to have its pages in memory: whoever waits for a
    /// page here lets it have the processor first.
    pub fn gives_way(&self) -> bool {
        self.gives_way.load(Relaxed)
    }

    /// From now on it has, or no more.
    pub fn set_gives_way(&self, gives_way: bool) {
        self.gives_way.store(gives_way, Relaxed);
    }

    /// How many processes of the job are at work, this one among them.
    pub fn at_work(&self) -> usize {
        self.at_work.load(Relaxed)
    }

    /// From now on it is so many.
    pub fn set_at_work(&self, count: usize) {
        self.at_work.store(count, Relaxed);
    }

    /// What nobody takes, for those that begin.
    pub fn reserve(&self) -> u64 {
        if self.is_alone() {
            return 0;
        }
        (self.account.budget() / RESERVE_PART).clamp(RESERVE_LEAST, RESERVE_MOST)
    }

    /// Whether there are others, and little of the budget is left that nobody leases.
    pub fn is_scarce(&self) -> bool {
        let budget = self.account.budget();
        !self.is_alone() && self.account.leased() + budget / SCARCE_PART > budget
    }

    /// Whether nobody else leases anything.
    pub fn is_alone(&self) -> bool {
        self.account.members().nth(1).is_none()
    }
}

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
        self.lease.changing.try_lock().map_or(Growth::UnderWay, |_changing| self.grow_alone())
    }

    /// The same for who reclaims where there are none: it waits for others that change the lease.
    pub fn grow_in_turn(&self) -> Growth {
        let _changing = lock(&self.lease.changing);
        self.grow_alone()
    }

    /// Under the lock.
    fn grow_alone(&self) -> Growth {
        let (limit, cap) = (self.budget().limit(), self.lease.cap());
        let Some(member) = self.lease.member() else { return Growth::Nothing };
        // 1. What it needs to run at all, as far as it uses that.
        if limit < FLOOR {
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
        self.lease.short.store(true, Relaxed);
        Growth::Nothing
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
        let _changing = lock(&self.lease.changing);
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
        let _changing = lock(&self.lease.changing);
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
        let _changing = lock(&self.lease.changing);
        self.lease.unmanaged.store(pages, Relaxed);
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
