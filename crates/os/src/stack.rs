//! Running a closure on a stack that is not managed memory.
//!
//! A program may run its threads on stacks in managed memory (coroutines, pthread_attr_setstack). Engine code
//! that holds a lock must not fault on such a stack, or the handler thread could wait for that lock. So the
//! engine's entry points move to a stack of its own first.

use crate::{Errno, PAGE_SIZE, vm};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of an engine stack: the deepest entry point needs about 8 KiB; the rest is margin for debug builds.
const STACK_BYTES: usize = 64 << 10;
/// Stacks, one for each thread that is inside the engine on a managed stack at the same time; the next one waits.
const STACKS: usize = 64;

/// A fixed set of stacks.
#[derive(Debug)]
pub struct EngineStacks {
    base: usize,
    free: AtomicU64,
}

impl EngineStacks {
    /// Reserves them; memory is used only when a stack is.
    pub fn new() -> Result<EngineStacks, Errno> {
        let slot = STACK_BYTES + PAGE_SIZE;
        let base = vm::map_metadata(STACKS * slot)?;
        for i in 0..STACKS {
            // A guard page below each stack: an overflow is a crash, not corruption.
            vm::protect(base + i * slot..base + i * slot + PAGE_SIZE, vm::Prot::NONE)?;
        }
        Ok(EngineStacks { base, free: AtomicU64::new(u64::MAX) })
    }

    /// In the child of a fork, whose only thread is on none of the stacks: frees those that threads of its parent had.
    pub fn reset_in_child(&self) {
        self.free.store(u64::MAX, Ordering::Release);
    }

    /// Runs `call` on one of the stacks and returns what it returns. All signals are blocked by the caller.
    pub fn run<F: FnOnce() -> R, R>(&self, call: F) -> R {
        let index = loop {
            let free = self.free.load(Ordering::Relaxed);
            let index = free.trailing_zeros() as usize;
            if index == STACKS {
                rustix::thread::sched_yield();
            } else if self
                .free
                .compare_exchange(free, free & !(1 << index), Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
            {
                break index;
            }
        };
        let top = self.base + (index + 1) * (STACK_BYTES + PAGE_SIZE);
        let mut job = Job { call: Some(call), result: None };
        // The job itself must not lie on the managed stack while it runs: it is moved to the top of the new one.
        let place = (top - size_of::<Job<F, R>>()) & !63;
        // SAFETY: 1. `place` lies in the stack that this thread has just claimed, aligned and large enough;
        // 2. `trampoline` is called with the stack pointer below it, on which nothing else runs; 3. it does not
        // unwind (panics abort); 4. the job is moved in before and out after, so it is dropped once.
        unsafe {
            std::ptr::write(place as *mut Job<F, R>, job);
            switch(place, place, trampoline::<F, R> as *const () as usize);
            job = std::ptr::read(place as *mut Job<F, R>);
        }
        self.free.fetch_or(1 << index, Ordering::Release);
        job.result.expect("the trampoline has run")
    }
}

struct Job<F, R> {
    call: Option<F>,
    result: Option<R>,
}

unsafe extern "C" fn trampoline<F: FnOnce() -> R, R>(job: usize) {
    // SAFETY: `run` passes the address of a live job of these types.
    let job = unsafe { &mut *(job as *mut Job<F, R>) };
    let call = job.call.take().expect("a job runs once");
    job.result = Some(call());
}

/// Calls `function(argument)` with the stack pointer at `stack` (64-byte aligned).
unsafe fn switch(stack: usize, argument: usize, function: usize) {
    // SAFETY: the caller gives a free stack and a function of the C ABI; r12 keeps the old stack pointer, which
    // the ABI preserves over the call.
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

    #[test]
    fn a_closure_runs_on_another_stack_and_returns() {
        let stacks = EngineStacks::new().unwrap();
        let here = vm::stack_address();
        let text = String::from("moved");
        let (there, text) = stacks.run(|| (vm::stack_address(), text + " back"));
        assert!(here.abs_diff(there) > STACK_BYTES);
        assert_eq!(text, "moved back");
        assert_eq!(stacks.free.load(Ordering::Relaxed), u64::MAX);
    }
}
