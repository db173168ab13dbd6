//! Buffers of unmanaged memory for calls that are under way.
//!
//! A buffer belongs to a call from its preparation to its end, which may be long after: a read that
//! blocks keeps its buffer. A call that is left by siglongjmp or by a cancellation never ends; its
//! buffer is found again when there is no other: the thread is gone, or the call's record on the
//! stack was overwritten.
//!
//! Memory is used only where a buffer was used, and those with low numbers first. Beyond the fixed
//! number a call gets a mapping of its own. No locks: words of each class say which are taken. A
//! thread begins to look at a word by its number, so that threads do not contend for one.

use super::record::Record;
use crate::{memory, pool, sys};
use overspill_os::{Errno, PAGE_SIZE, tls};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize};
use syscalls::{Sysno, raw_syscall};

/// Sizes of buffers: for structures and small data, for most reads and writes, and for large ones,
/// which are made in parts of a MiB.
const SIZES: [usize; 3] = [16 << 10, 128 << 10, LARGE];
const LARGE: usize = (1 << 20) + (64 << 10);
/// Buffers of each size: more calls at once get mappings of their own. Of small ones a server with
/// a thread for each client has one for each that waits.
const COUNTS: [usize; 3] = [1024, 256, 64];
/// A word says which of so many are taken.
const GROUP: usize = 64;
/// Buffers that are looked at, when there is no other, whether their calls have been left: some two
/// system calls each.
const LOOKS: usize = 8;
/// What is left resident of a buffer that is free, but for so many of the large ones: to have 1 MiB
/// made anew takes five times as long as to copy it.
const KEEP: usize = 128 << 10;
const KEPT_WHOLE: usize = 2;

/// Most bytes of data that go through one buffer at once; few in tests, which walk the parts of
/// large calls many times.
pub const CHUNK: usize = if cfg!(test) { 32 << 10 } else { 1 << 20 };

/// One size.
struct Class {
    base: AtomicUsize,
    groups: &'static [Group],
    /// Where to look next for calls that have been left.
    hand: AtomicUsize,
}

/// Some buffers of a size. All zeros while nobody had one: then it takes no memory.
#[repr(align(64))]
struct Group {
    /// A bit for each.
    taken: AtomicU64,
    owners: [Owner; GROUP],
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

impl Group {
    const fn new() -> Group {
        Group { taken: AtomicU64::new(0), owners: [const { Owner::nobody() }; GROUP] }
    }
}

static SMALL: [Group; COUNTS[0] / GROUP] = [const { Group::new() }; COUNTS[0] / GROUP];
static MIDDLE: [Group; COUNTS[1] / GROUP] = [const { Group::new() }; COUNTS[1] / GROUP];
static BIG: [Group; COUNTS[2] / GROUP] = [const { Group::new() }; COUNTS[2] / GROUP];
static CLASSES: [Class; 3] = [Class::new(&SMALL), Class::new(&MIDDLE), Class::new(&BIG)];
static IDS: AtomicUsize = AtomicUsize::new(1);
/// The process: a child that shares its memory (vfork) looks for threads there too.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// What stands at the beginning of a buffer.
#[repr(C)]
struct BufferHeader {
    /// Its class and number; [`MAPPED`] for a mapping of its own.
    class: usize,
    number: usize,
    /// Bytes of the buffer, and how many of them are taken.
    len: usize,
    used: usize,
}
const MAPPED: usize = usize::MAX;

/// A buffer: a small heap whose blocks are freed together.
pub struct Buffer(*mut BufferHeader);

impl Buffer {
    /// The buffer of a call, which has one.
    pub fn of(record: &Record) -> Buffer {
        Buffer(record.job as *mut BufferHeader)
    }

    fn header(&mut self) -> &mut BufferHeader {
        // SAFETY: a buffer begins with its header, and belongs to the call that is being handled.
        unsafe { &mut *self.0 }
    }

    /// Takes `len` bytes, whose address has the same remainder by `align` (a power of two) as
    /// `like`; None where they do not fit.
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
        ((self.0 as usize + size_of::<BufferHeader>()).next_multiple_of(16)) as *mut T
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

/// Reserves the addresses.
pub fn start() -> Result<(), Errno> {
    for (class, size) in CLASSES.iter().zip(SIZES) {
        class.base.store(sys::map_for_copies(size * class.groups.len() * GROUP)?, Relaxed);
    }
    PROCESS.store(rustix::process::getpid().as_raw_nonzero().get(), Relaxed);
    Ok(())
}

/// As [`start`], but once for all that a process tests: threads that have buffers keep them.
#[cfg(test)]
pub fn start_once() {
    static STARTED: std::sync::Once = std::sync::Once::new();
    STARTED.call_once(|| start().expect("addresses for the buffers"));
}

/// Gives a call a buffer with room for `bytes`; None when there is no memory.
pub fn claim(record: &mut Record, bytes: usize) -> Option<Buffer> {
    let len = bytes.checked_add(size_of::<BufferHeader>() + 16)?;
    let thread = tls::number() as u32;
    let found = CLASSES.iter().zip(SIZES).enumerate().find(|(_, (_, size))| len <= *size);
    if let Some((index, (class, size))) = found
        && let Some(number) = class.take(thread).or_else(|| {
            class.collect();
            class.take(thread)
        })
    {
        let owner = class.owner(number);
        record.id = IDS.fetch_add(1, Relaxed);
        owner.record.store(record as *const Record as usize, Relaxed);
        owner.id.store(record.id, Relaxed);
        owner.thread.store(thread, Release);
        let header =
            BufferHeader { class: index, number, len: size, used: size_of::<BufferHeader>() };
        return Some(begin(record, class.base.load(Relaxed) + number * size, header));
    }
    let len = len.checked_next_multiple_of(PAGE_SIZE)?;
    let header = BufferHeader { class: MAPPED, number: 0, len, used: size_of::<BufferHeader>() };
    Some(begin(record, sys::map_for_copies(len).ok()?, header))
}

fn begin(record: &mut Record, base: usize, header: BufferHeader) -> Buffer {
    let place = base as *mut BufferHeader;
    // SAFETY: the buffer is the calling thread's.
    unsafe { place.write(header) };
    record.job = base;
    Buffer(place)
}

/// Gives the buffer of a call back, if it has one.
pub fn release(record: &mut Record) {
    if record.job == 0 {
        return;
    }
    let base = std::mem::take(&mut record.job);
    record.id = 0;
    let mut buffer = Buffer(base as *mut BufferHeader);
    let &mut BufferHeader { class, number, len, used } = buffer.header();
    if class == MAPPED {
        // SAFETY: the mapping was made for this call, which is over.
        let _ = unsafe { sys::on_range(Sysno::munmap, base, len, 0) };
        return;
    }
    if used > KEEP && number >= KEPT_WHOLE {
        // SAFETY: as above; what is dropped are bytes of a buffer that is free.
        let _ =
            unsafe { sys::on_range(Sysno::madvise, base + KEEP, len - KEEP, libc::MADV_DONTNEED) };
    }
    let class = &CLASSES[class];
    class.owner(number).thread.store(0, Relaxed);
    class.give(number);
}

impl Class {
    const fn new(groups: &'static [Group]) -> Class {
        Class { base: AtomicUsize::new(0), groups, hand: AtomicUsize::new(0) }
    }

    fn owner(&self, number: usize) -> &Owner {
        &self.groups[number / GROUP].owners[number % GROUP]
    }

    /// Takes a free one, by preference from the group of the thread.
    fn take(&self, thread: u32) -> Option<usize> {
        let groups = self.groups.len();
        (0..groups).map(|n| (thread as usize + n) % groups).find_map(|at| {
            let take = |taken: u64| (taken != u64::MAX).then(|| taken | (taken + 1));
            let taken = self.groups[at].taken.fetch_update(AcqRel, Acquire, take).ok()?;
            Some(at * GROUP + taken.trailing_ones() as usize)
        })
    }

    fn give(&self, number: usize) {
        self.groups[number / GROUP].taken.fetch_and(!(1 << (number % GROUP)), AcqRel);
    }

    fn is_free(&self, number: usize) -> bool {
        self.groups[number / GROUP].taken.load(Acquire) & 1 << (number % GROUP) == 0
    }

    /// Looks at some buffers, whether they are of calls that were left and never ended.
    fn collect(&self) {
        let count = self.groups.len() * GROUP;
        let first = self.hand.fetch_add(LOOKS, Relaxed);
        for number in (first..first + LOOKS).map(|n| n % count) {
            let owner = self.owner(number);
            let thread = owner.thread.load(Acquire);
            if thread == 0 || self.is_free(number) || !is_left(thread, owner) {
                continue;
            }
            // One collector gets it.
            if owner.thread.compare_exchange(thread, 0, AcqRel, Relaxed).is_ok() {
                self.give(number);
            }
        }
    }
}

fn is_left(thread: u32, owner: &Owner) -> bool {
    let pid = PROCESS.load(Relaxed);
    // SAFETY: signal 0 only asks.
    if sys::check(unsafe { raw_syscall!(Sysno::tgkill, pid, thread, 0) }) == Err(Errno::SRCH) {
        return true;
    }
    let record = owner.record.load(Relaxed);
    // A stack in managed memory may be out, or given up: that cannot be told without a fault.
    if pool::contains(record) {
        return false;
    }
    let id = memory::read::<usize>(record + std::mem::offset_of!(Record, id));
    id != Some(owner.id.load(Relaxed))
}

/// In the child of a fork, whose thread was `parent`: the buffers of other threads are free.
pub fn reset_in_child(parent: i32) {
    tls::reset_number();
    PROCESS.store(rustix::process::getpid().as_raw_nonzero().get(), Relaxed);
    let own = tls::number() as u32;
    for group in CLASSES.iter().flat_map(|class| class.groups) {
        let before = group.taken.load(Relaxed);
        let mut taken = 0;
        for (number, owner) in group.owners.iter().enumerate().filter(|(n, _)| before >> n & 1 != 0)
        {
            if owner.thread.load(Relaxed) == parent as u32 {
                owner.thread.store(own, Relaxed);
                taken |= 1 << number;
            } else {
                owner.thread.store(0, Relaxed);
            }
        }
        if before != 0 {
            group.taken.store(taken, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record::new(0, [0; 6])
    }

    #[test]
    fn buffers_are_claimed_filled_and_found_again() {
        start_once();
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
        for _ in 0..3 * COUNTS[1] {
            let mut left = self::record();
            claim(&mut left, 64 << 10).unwrap();
            seen.insert(left.job);
            left.id = 0;
        }
        assert!(seen.len() <= COUNTS[1], "{}", seen.len());
        // Those of calls that are under way are not touched.
        let mut alive: Vec<_> = (0..COUNTS[2] + 2).map(|_| self::record()).collect();
        assert!(alive.iter_mut().all(|record| claim(record, 1 << 20).is_some()));
        let places: std::collections::HashSet<_> = alive.iter().map(|record| record.job).collect();
        assert_eq!(places.len(), COUNTS[2] + 2);
        alive.iter_mut().for_each(release);
    }
}
