//! Buffers of unmanaged memory for calls that are under way.
//!
//! A buffer belongs to a call from its preparation to its end, which may be long after: a read that blocks keeps its
//! buffer. A call that is left by siglongjmp or by a cancellation never ends; its buffer is found again when there is no
//! other: the thread is gone, or the call's record on the stack was overwritten.
//!
//! Memory is used only where a buffer was used, and those with low numbers first. Beyond the fixed number a call gets a mapping
//! of its own. No locks: a word a class says which are free.

use super::Record;
use crate::{pool, sys};
use overspill_os::{Errno, PAGE_SIZE};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};
use syscalls::{Sysno, raw_syscall};

/// Sizes of buffers: for structures and small data, for most reads and writes, and for large ones, which are made in
/// parts of a MiB.
const SIZES: [usize; 3] = [16 << 10, 128 << 10, LARGE];
const LARGE: usize = (1 << 20) + (64 << 10);
/// Buffers of a size: more calls at once get mappings of their own.
const COUNT: usize = 64;
/// What is left resident of a buffer that is free.
const KEEP: usize = 128 << 10;

/// Most bytes of data that go through one buffer at once.
pub const CHUNK: usize = 1 << 20;

/// One size.
struct Class {
    base: AtomicUsize,
    free: AtomicU64,
    owners: [Owner; COUNT],
}

/// Whose a buffer is.
struct Owner {
    thread: AtomicU32,
    record: AtomicUsize,
    id: AtomicUsize,
}

impl Owner {
    const fn nobody() -> Owner {
        Owner { thread: AtomicU32::new(0), record: AtomicUsize::new(0), id: AtomicUsize::new(0) }
    }
}

static CLASSES: [Class; 3] = [const {
    Class { base: AtomicUsize::new(0), free: AtomicU64::new(0), owners: [const { Owner::nobody() }; COUNT] }
}; 3];
static IDS: AtomicUsize = AtomicUsize::new(1);

/// What stands at the beginning of a buffer.
#[repr(C)]
struct Header {
    /// Its class and number; [`MAPPED`] for a mapping of its own.
    class: usize,
    number: usize,
    /// Bytes of the buffer, and how many of them are taken.
    len: usize,
    used: usize,
}
const MAPPED: usize = usize::MAX;

/// A buffer: a small heap whose blocks are freed together.
pub struct Buffer(*mut Header);

impl Buffer {
    /// The buffer of a call, which has one.
    pub fn of(record: &Record) -> Buffer {
        Buffer(record.job as *mut Header)
    }

    fn header(&mut self) -> &mut Header {
        // SAFETY: a buffer begins with its header, and belongs to the call that is being handled.
        unsafe { &mut *self.0 }
    }

    /// Takes `len` bytes, whose address has the same remainder by `align` (a power of two) as `like`; None where they do not
    /// fit.
    pub fn take(&mut self, len: usize, align: usize, like: usize) -> Option<usize> {
        let base = self.0 as usize;
        let header = self.header();
        let free = base + header.used;
        let start = free + (like.wrapping_sub(free) & (align - 1));
        let end = start.checked_add(len)? - base;
        (end <= header.len).then(|| {
            header.used = end;
            start
        })
    }

    /// Takes room for `count` values.
    pub fn array<T: Copy>(&mut self, count: usize) -> Option<*mut T> {
        self.take(count.checked_mul(size_of::<T>())?, 16, 0).map(|start| start as *mut T)
    }

    /// The first block of a buffer, as somebody took it.
    pub fn first<T>(&self) -> *mut T {
        ((self.0 as usize + size_of::<Header>()).next_multiple_of(16)) as *mut T
    }

    /// How much is taken, to go back to with [`Buffer::cut`].
    pub fn used(&mut self) -> usize {
        self.header().used
    }

    /// Gives up what was taken since.
    pub fn cut(&mut self, used: usize) {
        self.header().used = used;
    }

    /// Bytes that are not taken.
    pub fn rest(&mut self) -> usize {
        let header = self.header();
        header.len - header.used
    }
}

fn map(len: usize) -> Result<usize, Errno> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    unsafe { sys::mmap(0, len, prot, flags, -1, 0) }
}

/// Reserves the addresses.
pub fn start() -> Result<(), Errno> {
    for (class, size) in CLASSES.iter().zip(SIZES) {
        class.base.store(map(size * COUNT)?, Relaxed);
        class.free.store(u64::MAX, Relaxed);
    }
    Ok(())
}

/// Gives a call a buffer with room for `bytes`; None when there is no memory.
pub fn claim(record: &mut Record, bytes: usize) -> Option<Buffer> {
    let len = bytes + size_of::<Header>() + 16;
    let id = IDS.fetch_add(1, Relaxed);
    for (index, (class, size)) in CLASSES.iter().zip(SIZES).enumerate() {
        if len > size {
            continue;
        }
        if let Some(number) = class.take().or_else(|| {
            class.collect();
            class.take()
        }) {
            let owner = &class.owners[number];
            owner.record.store(record as *const Record as usize, Relaxed);
            owner.id.store(id, Relaxed);
            owner.thread.store(overspill_os::thread::id() as u32, Relaxed);
            let header = Header { class: index, number, len: size, used: size_of::<Header>() };
            return Some(begin(record, class.base.load(Relaxed) + number * size, header, id));
        }
        break;
    }
    let len = len.next_multiple_of(PAGE_SIZE);
    let header = Header { class: MAPPED, number: 0, len, used: size_of::<Header>() };
    Some(begin(record, map(len).ok()?, header, id))
}

fn begin(record: &mut Record, base: usize, header: Header, id: usize) -> Buffer {
    let place = base as *mut Header;
    // SAFETY: the buffer is the calling thread's.
    unsafe { place.write(header) };
    (record.job, record.id) = (base, id);
    Buffer(place)
}

/// Gives the buffer of a call back, if it has one.
pub fn release(record: &mut Record) {
    if record.job == 0 {
        return;
    }
    let base = std::mem::take(&mut record.job);
    record.id = 0;
    let mut buffer = Buffer(base as *mut Header);
    let &mut Header { class, number, len, used } = buffer.header();
    if class == MAPPED {
        // SAFETY: the mapping was made for this call, which is over.
        let _ = unsafe { sys::on_range(Sysno::munmap, base, len, 0) };
        return;
    }
    if used > KEEP {
        // SAFETY: as above; what is dropped are bytes of a buffer that is free.
        let _ = unsafe { sys::on_range(Sysno::madvise, base + KEEP, len - KEEP, libc::MADV_DONTNEED) };
    }
    let class = &CLASSES[class];
    class.owners[number].thread.store(0, Relaxed);
    class.free.fetch_or(1 << number, AcqRel);
}

impl Class {
    fn take(&self) -> Option<usize> {
        let free = self.free.fetch_update(AcqRel, Acquire, |free| (free != 0).then(|| free & (free - 1))).ok()?;
        Some(free.trailing_zeros() as usize)
    }

    /// Finds the buffers of calls that were left and never ended.
    fn collect(&self) {
        for (number, owner) in self.owners.iter().enumerate() {
            let thread = owner.thread.load(Acquire);
            if thread == 0 || self.free.load(Acquire) & 1 << number != 0 || !is_left(thread, owner) {
                continue;
            }
            // One collector gets it.
            if owner.thread.compare_exchange(thread, 0, AcqRel, Relaxed).is_ok() {
                self.free.fetch_or(1 << number, AcqRel);
            }
        }
    }
}

fn is_left(thread: u32, owner: &Owner) -> bool {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: signal 0 only asks.
    if sys::check(unsafe { raw_syscall!(Sysno::tgkill, pid, thread, 0) }) == Err(Errno::SRCH) {
        return true;
    }
    let record = owner.record.load(Relaxed);
    // A stack in managed memory may be out, or given up: that cannot be told without a fault.
    if pool::contains(record) {
        return false;
    }
    let (mut id, place) = (0usize, record + std::mem::offset_of!(Record, id));
    let (local, remote) = ([&raw mut id as usize, size_of::<usize>()], [place, size_of::<usize>()]);
    let (local, remote) = (local.as_ptr(), remote.as_ptr());
    // SAFETY: the kernel writes the word, or says that there is nothing to read.
    let ret = unsafe { raw_syscall!(Sysno::process_vm_readv, pid, local, 1, remote, 1, 0) };
    match sys::check(ret) {
        Ok(_) => id != owner.id.load(Relaxed),
        Err(errno) => errno == Errno::FAULT,
    }
}

/// In the child of a fork, whose thread was `parent`: the buffers of other threads are free.
pub fn reset_in_child(parent: i32) {
    let own = overspill_os::thread::id() as u32;
    for class in &CLASSES {
        if class.base.load(Relaxed) == 0 {
            continue;
        }
        let mut free = 0;
        for (number, owner) in class.owners.iter().enumerate() {
            if owner.thread.load(Relaxed) == parent as u32 {
                owner.thread.store(own, Relaxed);
            } else {
                owner.thread.store(0, Relaxed);
                free |= 1 << number;
            }
        }
        class.free.store(free, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record { rip: 0, arguments: [0; 6], flags: 0, finish: 0, result: 0, number: 0, job: 0, tries: 0, id: 0 }
    }

    #[test]
    fn buffers_are_claimed_filled_and_found_again() {
        start().unwrap();
        let mut record = record();
        let mut buffer = claim(&mut record, 9000).unwrap();
        let first = buffer.array::<u64>(3).unwrap();
        assert_eq!(first, Buffer::of(&record).first());
        let data = buffer.take(5000, PAGE_SIZE, 0x123).unwrap();
        assert_eq!(data % PAGE_SIZE, 0x123);
        assert_eq!(buffer.take(SIZES[0], 1, 0), None);
        release(&mut record);
        release(&mut record);
        // Calls that never end, whose records are gone, keep no buffer from others for long.
        let mut seen = std::collections::HashSet::new();
        for _ in 0..3 * COUNT {
            let mut left = self::record();
            claim(&mut left, 64 << 10).unwrap();
            seen.insert(left.job);
            left.id = 0;
        }
        assert!(seen.len() <= COUNT, "{}", seen.len());
        // Those of calls that are under way are not touched.
        let mut alive: Vec<_> = (0..COUNT + 2).map(|_| self::record()).collect();
        assert!(alive.iter_mut().all(|record| claim(record, 1 << 20).is_some()));
        let places: std::collections::HashSet<_> = alive.iter().map(|record| record.job).collect();
        assert_eq!(places.len(), COUNT + 2);
        alive.iter_mut().for_each(release);
    }
}
