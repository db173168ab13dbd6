//! What of its job's budget a process may have: a lease of pages. What it has of memory that is not
//! managed comes off it, and the rest is its limit.
//!
//! A process that needs more takes it from the [`Account`] itself, in steps that grow with what it
//! has: the background thread ahead of need, a fault without a frame at once. What it is to give
//! back is decided above ([`crate::control`]); until it has, the lease does not grow beyond its
//! *cap*. How it grows and shrinks is in [`super::growth`].
//!
//! Lock: one over changes of the lease ([`Rank::Lease`]), which a fault only tries. Over it, the
//! limit is set.

use super::settings::MEMORY_MIN;
use crate::account::{Account, Member};
use crate::base::lockdep::Rank;
use crate::base::psi::clock_us;
use crate::base::sync::{RankedGuard, RankedMutex, lock};
use overspill_os::Errno;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Pages that a process which works has whatever the others need: its reserves and one batch of
/// pages out and in.
pub const FLOOR: u64 = MEMORY_MIN.pages();
/// Pages that a process of a job begins with.
const START: u64 = 512;
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
    /// When the process last took what it needs to run at all although there is too little.
    forced_us: AtomicU64,
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
            forced_us: AtomicU64::new(0),
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

    /// From now on it is so many.
    pub(super) fn set_unmanaged(&self, pages: u64) {
        self.unmanaged.store(pages, Relaxed);
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

    /// From now on it is this one.
    pub(super) fn set_member(&self, member: Option<Member>) {
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

    /// There was nothing to take.
    pub(super) fn note_short(&self) {
        self.short.store(true, Relaxed);
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

    /// Whether more is leased than there is, or than leaves so many pages.
    pub fn is_over(&self, reserve: u64) -> bool {
        self.account.leased() + reserve > self.account.budget()
    }

    /// Whether the process may take what it needs although there is too little: once in a while.
    /// Under the lock over changes.
    pub(super) fn takes_turn(&self, every: Duration) -> bool {
        let now_us = clock_us();
        let is_due = now_us - self.forced_us.load(Relaxed) >= every.as_micros() as u64;
        if is_due {
            self.forced_us.store(now_us, Relaxed);
        }
        is_due
    }

    /// Whether nobody else leases anything.
    pub fn is_alone(&self) -> bool {
        self.account.members().nth(1).is_none()
    }
}
