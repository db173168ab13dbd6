//! A stand-in for the engine's pool, of the same shape, until the engine has one: kernel memory in a reserved window.

use overspill::config::Config;
use overspill_os::vm::{self, Prot};
use overspill_os::{Errno, PAGE_SIZE};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

pub struct MapFlags {
    pub noreplace: bool,
    pub locked: bool,
}

pub struct Pool {
    window: Range<usize>,
    next: AtomicUsize,
}

impl Pool {
    pub fn new(config: Config) -> Result<Pool, Errno> {
        let len = config.window.0 as usize;
        let start = vm::reserve(len, 2 << 20)?;
        Ok(Pool { window: start..start + len, next: AtomicUsize::new(start) })
    }
    pub fn window(&self) -> Range<usize> {
        self.window.clone()
    }
    pub fn mmap(&self, at: Option<usize>, len: usize, prot: Prot, _: MapFlags) -> Result<usize, Errno> {
        let len = len.next_multiple_of(PAGE_SIZE);
        let at = at.unwrap_or_else(|| self.next.fetch_add(len + PAGE_SIZE, Ordering::Relaxed));
        if at + len > self.window.end {
            return Err(Errno::NOMEM);
        }
        vm::map_fixed(at..at + len, prot)?;
        Ok(at)
    }
    pub fn surrender(&self, _: Range<usize>) -> Result<(), Errno> {
        Ok(())
    }
    pub fn munmap(&self, range: Range<usize>) -> Result<(), Errno> {
        vm::map_fixed(range, Prot::NONE)
    }
    pub fn mprotect(&self, range: Range<usize>, prot: Prot) -> Result<(), Errno> {
        vm::protect(range, prot)
    }
    pub fn madvise(&self, range: Range<usize>, advice: i32) -> Result<(), Errno> {
        vm::advise(range, advice)
    }
    pub fn mremap(&self, old: Range<usize>, new_len: usize, flags: u32, new_address: usize) -> Result<usize, Errno> {
        if flags & 2 != 0 {
            // SAFETY: the stub's own window.
            let ret = unsafe {
                syscalls::raw_syscall!(syscalls::Sysno::mremap, old.start, old.len(), new_len, flags, new_address)
            };
            return crate::sys::check(ret);
        }
        if new_len <= old.len() {
            self.munmap(old.start + new_len..old.end)?;
            return Ok(old.start);
        }
        if flags & 1 == 0 {
            return Err(Errno::NOMEM);
        }
        let to = self.mmap(None, new_len, Prot::READ_WRITE, MapFlags { noreplace: false, locked: false })?;
        // SAFETY: as above.
        let ret = unsafe { syscalls::raw_syscall!(syscalls::Sysno::mremap, old.start, old.len(), new_len, 3, to) };
        crate::sys::check(ret)
    }
    pub fn mlock(&self, _: Range<usize>, _: bool) -> Result<(), Errno> {
        Ok(())
    }
    pub fn munlock(&self, _: Range<usize>) -> Result<(), Errno> {
        Ok(())
    }
    pub fn mlockall(&self, _: u32) -> Result<(), Errno> {
        Ok(())
    }
    pub fn munlockall(&self) -> Result<(), Errno> {
        Ok(())
    }
    pub fn dma_seen(&self) {
        overspill_os::thread::report("dma seen");
    }
    pub fn count_unmanaged(&self) {}
    pub fn owns_fd(&self, _: i32) -> bool {
        false
    }
    pub fn fork_prepare_begin(&self) {}
    pub fn fork_prepare_freeze(&self) {}
    pub fn fork_parent(&self) {}
    pub fn fork_child(&self) {}
    pub fn report_exit(&self) {}
}
