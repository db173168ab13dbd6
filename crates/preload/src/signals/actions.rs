//! What the program has set for each signal whose handler is called by one of ours
//! ([`super::handlers`]).
//!
//! The table is written under a lock with all signals blocked, held over a fork, and read by
//! handlers without one.

use overspill_os::lock::RawLock;
use overspill_os::signal::Blocked;
use std::sync::atomic::{
    AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release, fence,
};

/// Signals and one more: they begin at 1.
pub const SIGNALS: usize = 65;

/// What the program has set for a signal. The count is odd while it is written.
pub struct Entry {
    count: AtomicU32,
    handler: AtomicUsize,
    flags: AtomicI32,
    mask: AtomicU64,
}

/// That of each signal, by its number.
pub static ENTRIES: [Entry; SIGNALS] = [const {
    Entry {
        count: AtomicU32::new(0),
        handler: AtomicUsize::new(0),
        flags: AtomicI32::new(0),
        mask: AtomicU64::new(0),
    }
}; SIGNALS];
static WRITING: RawLock = RawLock::new();
/// The process whose table this is. The child of a vfork shares it with its parent, but not the
/// parent's actions.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// A copy of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Handler, or SIG_DFL or SIG_IGN.
    pub handler: usize,
    /// SA_* flags.
    pub flags: i32,
    /// Signals blocked during the handler, as the kernel's set.
    pub mask: u64,
}

impl Entry {
    /// Notes what the program wants from now on.
    pub fn write(&self, wanted: Wanted) {
        let _blocked = Blocked::all();
        WRITING.with(|| {
            self.count.fetch_add(1, Relaxed);
            fence(Release);
            self.handler.store(wanted.handler, Relaxed);
            self.flags.store(wanted.flags, Relaxed);
            self.mask.store(wanted.mask, Relaxed);
            self.count.fetch_add(1, Release);
        });
    }

    /// What it wants now.
    pub fn read(&self) -> Wanted {
        loop {
            let before = self.count.load(Acquire);
            let wanted = Wanted {
                handler: self.handler.load(Relaxed),
                flags: self.flags.load(Relaxed),
                mask: self.mask.load(Relaxed),
            };
            fence(Acquire);
            if before.is_multiple_of(2) && self.count.load(Relaxed) == before {
                return wanted;
            }
            std::hint::spin_loop();
        }
    }
}

/// The process is this one: at the start, and in the child of a fork.
pub fn begin_process() {
    OWNER.store(rustix::process::getpid().as_raw_nonzero().get(), Relaxed);
}

/// Whether the caller is a child that shares its parent's memory.
pub fn is_borrowed() -> bool {
    OWNER.load(Relaxed) != rustix::process::getpid().as_raw_nonzero().get()
}

/// Before a fork, all signals blocked: nobody is writing the table.
pub fn fork_prepare() {
    WRITING.lock();
}

/// After a fork, in parent and child.
pub fn fork_done() {
    WRITING.unlock();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn readers_see_whole_entries() {
        static ENTRY: Entry = Entry {
            count: AtomicU32::new(0),
            handler: AtomicUsize::new(0),
            flags: AtomicI32::new(0),
            mask: AtomicU64::new(0),
        };
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..20_000 {
                    ENTRY.write(Wanted { handler: n, flags: n as i32, mask: n as u64 });
                }
                stop.store(true, Relaxed);
            });
            while !stop.load(Relaxed) {
                let Wanted { handler, flags, mask } = ENTRY.read();
                assert!(handler == flags as usize && handler == mask as usize);
            }
        });
    }
}
