//! The order of the engine's locks, and its check in debug builds.
//!
//! Every lock has a [`Rank`]; a thread waits only for locks of a higher rank than any that it
//! holds, so no circle of waiting threads can form. A lock that is only tried may be tried in any
//! order, but what is waited for while it is held must rank above it. Pages are the one rank of
//! which a thread holds several: it waits for them in ascending order; or in any order while it
//! holds the map of regions, because then nobody else waits for a page while holding one.
//!
//! On the fault path ([`FaultPath`]) a second rule holds: nothing is waited for that a thread of
//! the program may hold while it faults ([`Rank::may_wait_for_faults`]). Such locks are tried
//! there.
//!
//! An engine thread, and a fault, holds a lock only inside of a gate ([`Rank::is_gate`]): a fork,
//! which closes all gates, then finds no lock held that its child could wait for, for ever.
//!
//! A gate that is closed is not counted as held: a fork closes gates in one call and opens them in
//! another, or in another process. In a release build everything here is empty.
//!
//! [`FaultPath`]: overspill_os::fault_path::FaultPath

#[cfg(debug_assertions)]
use overspill_os::fault_path::FaultPath;
#[cfg(debug_assertions)]
use std::cell::RefCell;

/// The locks of the engine, in the order in which a thread may wait for them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[cfg_attr(not(debug_assertions), allow(dead_code))]
pub enum Rank {
    /// Inside the gate of the program's mapping calls, which a fork closes.
    OpsGate,
    /// The map of regions: the engine's mmap_lock.
    Regions,
    /// Relations to parent and children.
    Children,
    /// Inside the gate of faults, which a fork closes last.
    FaultGate,
    /// The buffers of a fault.
    FaultContext,
    /// Inside the gate of reclaim, which a fork closes before it needs a process that does not
    /// change.
    ReclaimGate,
    /// The line of those who want to reclaim for themselves.
    Throttle,
    /// What the process did lately, for the others of its job.
    Sharing,
    /// The limit of the budget, and what it aims at.
    Limits,
    /// What of the job's budget the process may have.
    Lease,
    /// Which devices there are to be, and which are being taken out of use.
    Swaps,
    /// The buffers of reclaim, for a batch of pages.
    Batch,
    /// An extent: waited for one at a time; reclaim tries several.
    Extent,
    /// Pages, in ascending order.
    Page,
    /// A range of the compressed tier's index, one at a time.
    Zswap,
    /// A class of the zpool, one at a time.
    ZpoolClass,
    /// The empty chunks that the zpool keeps.
    ZpoolKept,
    /// The list of the swap cache.
    SwapCache,
    /// Devices that are out of use, until their files are closed.
    ClosedDevices,
    /// An entry of the table of devices.
    DeviceTable,
    /// The slots that a processor keeps.
    SlotCache,
    /// The right to take more of a device into use; held over the system calls for that.
    SlotGrowth,
    /// The slots of a device: lists of clusters, what is acquired and has disk space.
    SlotMap,
    /// A cluster of slots, one at a time.
    Cluster,
    /// The frames that a processor keeps.
    CpuLists,
    /// A zone of the frame allocator.
    FrameZone,
    /// What reclaim has cost lately for nothing.
    OomProgress,
    /// The figures about waiting for memory.
    Pressure,
    /// Advice of the program that is not followed yet.
    Advice,
}

impl Rank {
    /// Whether a fork closes it.
    #[cfg(debug_assertions)]
    fn is_gate(self) -> bool {
        matches!(self, Rank::OpsGate | Rank::FaultGate | Rank::ReclaimGate)
    }

    /// Whether a thread of the program may hold it while it faults, or while it waits for one who
    /// does: then whoever serves faults may only try it.
    #[cfg(debug_assertions)]
    fn may_wait_for_faults(self) -> bool {
        use Rank::{Children, Extent, OpsGate, Page, ReclaimGate, Regions};
        matches!(self, OpsGate | Regions | Children | ReclaimGate | Extent | Page)
    }
}

/// The class of a lock: its rank, in debug builds.
#[derive(Clone, Copy, Debug)]
pub struct LockClass(#[cfg(debug_assertions)] Rank);

/// A lock that the calling thread holds, until this is dropped.
#[derive(Debug)]
pub struct Held(#[cfg(debug_assertions)] Rank);

#[cfg(not(debug_assertions))]
mod unchecked {
    use super::{Held, LockClass, Rank};
    use crate::units::PageIndex;

    impl LockClass {
        pub const fn new(_: Rank) -> LockClass {
            LockClass()
        }
        #[inline(always)]
        pub fn check(self) {}
        #[inline(always)]
        pub fn hold(self) -> Held {
            Held()
        }
    }

    #[inline(always)]
    pub fn check_page(_: PageIndex) {}
    #[inline(always)]
    pub fn hold_page(_: PageIndex) {}
    #[inline(always)]
    pub fn release_page(_: PageIndex) {}
    #[inline(always)]
    pub fn check_none_held() {}
}
#[cfg(not(debug_assertions))]
pub use unchecked::{check_none_held, check_page, hold_page, release_page};

#[cfg(debug_assertions)]
pub use checked::{check_none_held, check_page, hold_page, release_page};
#[cfg(debug_assertions)]
mod checked {
    use super::{FaultPath, Held, LockClass, Rank, RefCell};
    use crate::units::PageIndex;
    use overspill_os::tls;

    /// Most locks that a thread holds at once, pages apart: one of every rank.
    const LOCKS_MAX: usize = Rank::OomProgress as usize + 1;

    /// What the calling thread holds.
    struct Locks {
        ranks: [Option<Rank>; LOCKS_MAX],
        /// Pages whose locks it holds.
        pages: usize,
        /// The highest page taken since none was held.
        highest_page: PageIndex,
    }

    // Constant at first and without a destructor, so that nothing is registered or allocated for a
    // thread.
    thread_local! {
        static LOCKS: RefCell<Locks> = const { RefCell::new(Locks::NONE) };
    }

    /// Whether the caller is a thread of a model, all of which are one of the machine.
    fn in_model() -> bool {
        #[cfg(test)]
        let running = crate::base::explore::is_model_thread();
        #[cfg(not(test))]
        let running = false;
        running
    }

    /// Runs `call` on what the calling thread holds. Nothing is known of it where a process shares
    /// a thread's storage, and in a model.
    fn changed(call: impl FnOnce(&mut Locks)) {
        if !tls::is_shared() && !in_model() {
            LOCKS.with_borrow_mut(call);
        }
    }

    impl Locks {
        const NONE: Locks =
            Locks { ranks: [None; LOCKS_MAX], pages: 0, highest_page: PageIndex(0) };

        fn highest(&self) -> Option<Rank> {
            let page = (self.pages > 0).then_some(Rank::Page);
            self.ranks.iter().copied().flatten().chain(page).max()
        }

        fn check_gated(&self, wanted: Rank) {
            let is_engines = tls::is_engine_thread() || FaultPath::is_marked();
            let inside = || self.ranks.iter().flatten().any(|rank| rank.is_gate());
            assert!(
                wanted.is_gate() || !is_engines || inside(),
                "{wanted:?} is taken outside of a gate: a fork would leave it held"
            );
        }

        fn check(&self, wanted: Rank) {
            self.check_gated(wanted);
            assert!(
                !(FaultPath::is_marked() && wanted.may_wait_for_faults()),
                "{wanted:?} is waited for on the fault path"
            );
            if let Some(held) = self.highest() {
                assert!(
                    held < wanted,
                    "lock order: {wanted:?} is waited for while {held:?} is held"
                );
            }
        }
    }

    impl LockClass {
        /// The class of locks of a rank.
        pub const fn new(rank: Rank) -> LockClass {
            LockClass(rank)
        }

        /// Before a lock is waited for.
        pub fn check(self) {
            changed(|locks| locks.check(self.0));
        }

        /// After a lock was taken.
        pub fn hold(self) -> Held {
            changed(|locks| {
                locks.check_gated(self.0);
                let free = locks.ranks.iter_mut().find(|rank| rank.is_none());
                *free.expect("a thread holds no more locks than there are ranks") = Some(self.0);
            });
            Held(self.0)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            changed(|locks| {
                let held = locks.ranks.iter_mut().find(|rank| **rank == Some(self.0));
                *held.expect("a lock is given back on the thread that took it") = None;
            });
        }
    }

    /// Before the lock of a page is waited for.
    pub fn check_page(page: PageIndex) {
        changed(|locks| {
            if locks.pages == 0 || FaultPath::is_marked() {
                return locks.check(Rank::Page);
            }
            let held = locks.ranks.iter().flatten().max();
            assert!(
                held < Some(&Rank::Page),
                "lock order: {page:?} is waited for while {held:?} is held"
            );
            assert!(
                locks.highest_page < page || locks.ranks.contains(&Some(Rank::Regions)),
                "lock order: {page:?} is waited for while {:?} is held",
                locks.highest_page
            );
        });
    }

    /// After the lock of a page was taken.
    pub fn hold_page(page: PageIndex) {
        changed(|locks| {
            locks.highest_page = if locks.pages == 0 { page } else { locks.highest_page.max(page) };
            locks.pages += 1;
        });
    }

    /// Before the lock of a page is given back.
    pub fn release_page(page: PageIndex) {
        changed(|locks| {
            assert!(locks.pages > 0, "{page:?} is given back by a thread that holds no page");
            locks.pages -= 1;
        });
    }

    /// Where a fault begins: a thread that faults while it holds a lock of the engine's would wait
    /// for itself.
    pub fn check_none_held() {
        changed(|locks| {
            let held = locks.highest();
            assert!(held.is_none(), "a fault under {held:?}");
        });
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    use crate::units::PageIndex;
    use overspill_os::signal::Blocked;

    fn take(rank: Rank) -> Held {
        LockClass::new(rank).check();
        LockClass::new(rank).hold()
    }

    #[test]
    fn locks_are_taken_in_order_and_given_back_in_any() {
        let regions = take(Rank::Regions);
        let extent = take(Rank::Extent);
        let zone = take(Rank::FrameZone);
        drop(extent);
        drop(zone);
        drop(take(Rank::SwapCache));
        drop(regions);
        check_none_held();
        drop(take(Rank::Regions));
        // A lock that was tried counts as held, whatever was held before.
        let _cache = take(Rank::SwapCache);
        let _batch = LockClass::new(Rank::Batch).hold();
        drop(take(Rank::SlotMap));
    }

    #[test]
    #[should_panic(expected = "Regions is waited for while Extent is held")]
    fn the_wrong_order_is_found() {
        let _extent = take(Rank::Extent);
        take(Rank::Regions);
    }

    #[test]
    #[should_panic(expected = "SlotMap is waited for while SlotMap is held")]
    fn two_of_a_rank_are_found() {
        let _slots = take(Rank::SlotMap);
        take(Rank::SlotMap);
    }

    #[test]
    #[should_panic(expected = "Batch is waited for while Extent is held")]
    fn a_tried_lock_counts() {
        let _extent = LockClass::new(Rank::Extent).hold();
        take(Rank::Batch);
    }

    #[test]
    fn pages_ascend_unless_their_order_cannot_matter() {
        for page in [3, 4, 9].map(PageIndex) {
            check_page(page);
            hold_page(page);
        }
        drop(take(Rank::ZpoolClass));
        (0..3).for_each(|i| release_page(PageIndex(i)));
        let _regions = take(Rank::Regions);
        for page in [7, 2].map(PageIndex) {
            check_page(page);
            hold_page(page);
        }
        (0..2).for_each(|i| release_page(PageIndex(i)));
    }

    #[test]
    #[should_panic(expected = "PageIndex(4) is waited for while PageIndex(5) is held")]
    fn a_descending_page_is_found() {
        hold_page(PageIndex(5));
        check_page(PageIndex(4));
    }

    #[test]
    #[should_panic(expected = "Extent is waited for while Page is held")]
    fn an_extent_under_a_page_is_found() {
        hold_page(PageIndex(5));
        take(Rank::Extent);
    }

    #[test]
    #[should_panic(expected = "a fault under Some(SlotMap)")]
    fn a_fault_under_a_lock_is_found() {
        let _slots = take(Rank::SlotMap);
        check_none_held();
    }

    #[test]
    #[should_panic(expected = "Regions is waited for on the fault path")]
    fn the_fault_path_does_not_wait_for_the_program() {
        let _blocked = Blocked::all();
        let _path = FaultPath::enter();
        let _inside = take(Rank::FaultGate);
        drop(take(Rank::FaultContext));
        // Trying is allowed.
        drop(LockClass::new(Rank::Extent).hold());
        take(Rank::Regions);
    }

    #[test]
    #[should_panic(expected = "Page is waited for on the fault path")]
    fn the_fault_path_does_not_wait_for_a_page() {
        let _blocked = Blocked::all();
        let _path = FaultPath::enter();
        let _inside = take(Rank::FaultGate);
        hold_page(PageIndex(1));
        check_page(PageIndex(2));
    }

    #[test]
    #[should_panic(expected = "Advice is taken outside of a gate")]
    fn an_engine_thread_that_a_fork_would_not_wait_for_is_found() {
        std::thread::scope(|scope| {
            let engines = scope.spawn(|| {
                overspill_os::tls::mark_engine_thread();
                let inside = take(Rank::ReclaimGate);
                drop(take(Rank::Advice));
                drop(inside);
                take(Rank::Advice);
            });
            std::panic::resume_unwind(engines.join().unwrap_err());
        });
    }
}
