//! Running a closure on a stack that is not managed memory.
//!
//! A program may run its threads on stacks in managed memory (coroutines, pthread_attr_setstack).
//! Engine code that holds a lock must not fault on such a stack, or the handler thread could wait
//! for that lock. So the engine's entry points move to a stack of its own first.

use crate::units::{Errno, PAGE_SIZE};
use crate::vm;
use rustix::thread::{Timespec, futex};
use std::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::SeqCst,
};

/// Bytes of an engine stack: the deepest entry point needs about 8 KiB; the rest is margin for
/// debug builds.
const STACK_BYTES: usize = 64 << 10;
/// With the guard page below it.
const SLOT_BYTES: usize = PAGE_SIZE + STACK_BYTES;
/// Longest sleep without a look for a free stack: nothing is known to need it.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// A fixed set of stacks, one for each thread that is inside the engine at the same time; the next
/// one waits.
#[derive(Debug)]
pub struct EngineStacks {
    base: usize,
    count: usize,
    /// A bit for each that is free, the first in the lowest bit of the first word.
    free: Box<[AtomicU64]>,
    /// Likewise, for each that has its guard page: most are never used, and each is two mappings
    /// for the kernel.
    guarded: Box<[AtomicU64]>,
    /// Likewise, for each that costs memory: it was used since it was forgotten.
    used: Box<[AtomicU64]>,
    /// Threads that wait, and how often one was woken.
    waiting: AtomicU32,
    woken: AtomicU32,
}

impl EngineStacks {
    /// Reserves so many; memory is used only when a stack is.
    pub fn new(count: usize) -> Result<EngineStacks, Errno> {
        let base = vm::map_metadata(count * SLOT_BYTES)?;
        let bits = || (0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let stacks = EngineStacks {
            base,
            count,
            free: bits(),
            guarded: bits(),
            used: bits(),
            waiting: AtomicU32::new(0),
            woken: AtomicU32::new(0),
        };
        stacks.reset_in_child();
        Ok(stacks)
    }

    /// In the child of a fork, whose only thread is on none of the stacks: frees those that threads
    /// of its parent had.
    pub fn reset_in_child(&self) {
        for (word, first) in self.free.iter().zip((0..self.count).step_by(64)) {
            let stacks = (self.count - first).min(64);
            word.store(u64::MAX >> (64 - stacks), SeqCst);
        }
        self.waiting.store(0, SeqCst);
    }

    /// Takes a stack, the first that is free: it is the one that was used lately.
    fn try_claim(&self) -> Option<usize> {
        self.free.iter().enumerate().find_map(|(at, word)| {
            let take = |free: u64| (free != 0).then(|| free & (free - 1));
            let free = word.fetch_update(SeqCst, Relaxed, take).ok()?;
            Some(at * 64 + free.trailing_zeros() as usize)
        })
    }

    fn claim(&self) -> usize {
        loop {
            if let Some(index) = self.try_claim() {
                return index;
            }
            // Counted before another look: who frees a stack looks at the count afterwards.
            self.waiting.fetch_add(1, SeqCst);
            let woken = self.woken.load(Acquire);
            let found = self.try_claim();
            if found.is_none() {
                let _ = futex::wait(&self.woken, futex::Flags::PRIVATE, woken, Some(&LOOK_EVERY));
            }
            self.waiting.fetch_sub(1, SeqCst);
            if let Some(index) = found {
                return index;
            }
        }
    }

    /// Has a guard page below a stack that was claimed: an overflow is a crash, not corruption.
    fn guard(&self, index: usize) {
        if !self.has(&self.guarded, index) {
            let page = self.base + index * SLOT_BYTES;
            // Where there may be no more mappings it goes without.
            let _ = vm::protect(page..page + PAGE_SIZE, vm::Prot::NONE);
            self.guarded[index / 64].fetch_or(1 << (index % 64), Relaxed);
        }
    }

    /// Gives back the memory of the stacks that nobody is on.
    pub fn forget(&self) {
        for index in (0..self.count).filter(|index| self.has(&self.used, *index)) {
            let (word, bit) = (&self.free[index / 64], 1 << (index % 64));
            if word.fetch_and(!bit, SeqCst) & bit != 0 {
                self.used[index / 64].fetch_and(!bit, Relaxed);
                // What a stack holds that nobody is on is of no use: nothing is to be cleared.
                let base = self.base + index * SLOT_BYTES + PAGE_SIZE;
                vm::forget(base, SLOT_BYTES - PAGE_SIZE, || ());
                self.release(index);
            }
        }
    }

    fn has(&self, words: &[AtomicU64], index: usize) -> bool {
        words[index / 64].load(Relaxed) >> (index % 64) & 1 != 0
    }

    fn release(&self, index: usize) {
        self.free[index / 64].fetch_or(1 << (index % 64), SeqCst);
        if self.waiting.load(SeqCst) > 0 {
            self.woken.fetch_add(1, SeqCst);
            let _ = futex::wake(&self.woken, futex::Flags::PRIVATE, 1);
        }
    }

    /// Runs `call` on one of the stacks and returns what it returns. All signals are blocked by the
    /// caller.
    pub fn run<F: FnOnce() -> R, R>(&self, call: F) -> R {
        let index = self.claim();
        self.guard(index);
        if !self.has(&self.used, index) {
            self.used[index / 64].fetch_or(1 << (index % 64), Relaxed);
        }
        let top = self.base + (index + 1) * SLOT_BYTES;
        let mut work = Work { call: Some(call), result: None };
        // The work itself must not lie on the managed stack while it runs: it is moved to the top
        // of the new one.
        let place = (top - size_of::<Work<F, R>>()) & !63;
        // SAFETY: 1. `place` lies in the stack that this thread has just claimed, aligned and large
        // enough;
        // 2. `trampoline` is called with the stack pointer below it, on which nothing else runs; 3.
        //    it does not unwind (panics abort); 4. the work is moved in before and out after, so it
        //    is dropped once.
        unsafe {
            std::ptr::write(place as *mut Work<F, R>, work);
            switch(place, place, trampoline::<F, R> as *const () as usize);
            work = std::ptr::read(place as *mut Work<F, R>);
        }
        self.release(index);
        work.result.expect("the trampoline has run")
    }
}

struct Work<F, R> {
    call: Option<F>,
    result: Option<R>,
}

unsafe extern "C" fn trampoline<F: FnOnce() -> R, R>(work: usize) {
    // SAFETY: `run` passes the address of a live work of these types.
    let work = unsafe { &mut *(work as *mut Work<F, R>) };
    let call = work.call.take().expect("a work runs once");
    work.result = Some(call());
}

/// Calls `function(argument)` with the stack pointer at `stack` (64-byte aligned).
unsafe fn switch(stack: usize, argument: usize, function: usize) {
    // SAFETY: the caller gives a free stack and a function of the C ABI; r12 keeps the old stack
    // pointer, which the ABI preserves over the call.
    unsafe {
        std::arch::asm!(
            "mov r12, rsp",
            "mov rsp, rsi",
            "call rdx",
            "mov rsp, r12",
            out("r12") _,
            inout("rdi") argument => _,
            inout("rsi") stack => _,
            inout("rdx") function => _,
            clobber_abi("C"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls;

    #[test]
    fn a_closure_runs_on_another_stack_and_returns() {
        let stacks = EngineStacks::new(65).unwrap();
        let here = tls::stack_address();
        let text = String::from("moved");
        let (there, text) = stacks.run(|| (tls::stack_address(), text + " back"));
        assert!(here.abs_diff(there) > STACK_BYTES);
        assert_eq!(text, "moved back");
        assert_eq!(
            stacks.free.iter().map(|word| word.load(Relaxed)).collect::<Vec<_>>(),
            [u64::MAX, 1]
        );
    }

    #[test]
    fn stacks_that_nobody_is_on_are_given_back() {
        let stacks = EngineStacks::new(3).unwrap();
        let is_there = |index: usize| {
            let mut residency = 0u8;
            let page = stacks.base + (index + 1) * SLOT_BYTES - PAGE_SIZE;
            let (page, len) = (page as *mut std::ffi::c_void, PAGE_SIZE);
            // SAFETY: the kernel writes a byte for one page.
            assert_eq!(unsafe { libc::mincore(page, len, &mut residency) }, 0);
            residency & 1 != 0
        };
        stacks.run(|| {
            stacks.run(|| ());
            assert!(is_there(0) && is_there(1) && !is_there(2));
            stacks.forget();
            assert!(is_there(0) && !is_there(1), "one that somebody is on stays");
        });
        stacks.forget();
        assert!(!is_there(0));
        assert_eq!(stacks.run(|| 7), 7);
    }

    #[test]
    fn more_threads_than_stacks_take_turns() {
        let stacks = EngineStacks::new(2).unwrap();
        let inside = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let others = stacks.run(|| {
                            let others = inside.fetch_add(1, SeqCst);
                            rustix::thread::sched_yield();
                            inside.fetch_sub(1, SeqCst);
                            others
                        });
                        assert!(others < 2, "{others} others have a stack of two");
                    }
                });
            }
        });
        assert_eq!((stacks.free[0].load(Relaxed), stacks.waiting.load(Relaxed)), (3, 0));
    }
}
