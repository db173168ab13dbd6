//! Mappings: raw mmap, munmap, mprotect, madvise and process_madvise, by address.
//!
//! The functions here are safe to call only in the sense that the engine owns the ranges it names:
//! each takes addresses, not pointers, and no Rust reference into such a range outlives a call (see
//! [`crate::arena`] and [`crate::table`] for the two typed views that hand out references).

use crate::process::is_here;
use crate::seccomp::change_mappings;
use crate::units::{Errno, PAGE_SIZE, check};
use crate::{confined, descriptors};
use rustix::fd::BorrowedFd;
use rustix::fs::{Mode, OFlags};
use rustix::mm::{self, MapFlags, ProtFlags};
use std::ops::Range;
use std::sync::atomic::{
    AtomicI32, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Release,
};
use syscalls::{Sysno, raw_syscall};

/// madvise(2) values, as the kernel numbers them.
#[allow(missing_docs)]
pub mod advice {
    pub const NORMAL: i32 = 0;
    pub const RANDOM: i32 = 1;
    pub const WILLNEED: i32 = 3;
    pub const DONTNEED: i32 = 4;
    pub const FREE: i32 = 8;
    pub const REMOVE: i32 = 9;
    pub const DONTFORK: i32 = 10;
    pub const DOFORK: i32 = 11;
    pub const MERGEABLE: i32 = 12;
    pub const NOHUGEPAGE: i32 = 15;
    pub const DONTDUMP: i32 = 16;
    pub const DODUMP: i32 = 17;
    pub const WIPEONFORK: i32 = 18;
    pub const KEEPONFORK: i32 = 19;
    pub const COLD: i32 = 20;
    pub const PAGEOUT: i32 = 21;
    pub const POPULATE_READ: i32 = 22;
    pub const POPULATE_WRITE: i32 = 23;
    pub const DONTNEED_LOCKED: i32 = 24;
    pub const COLLAPSE: i32 = 25;
    pub const GUARD_INSTALL: i32 = 102;
    pub const GUARD_REMOVE: i32 = 103;
}

/// Drops the pages of a range.
pub const MADV_DONTNEED: i32 = libc::MADV_DONTNEED;
/// Keeps a range free of huge pages, which could be moved only as a whole.
pub const MADV_NOHUGEPAGE: i32 = libc::MADV_NOHUGEPAGE;

/// Protection of a mapping, the PROT_* bits of mmap(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Prot(pub u32);

impl Prot {
    /// No access.
    pub const NONE: Prot = Prot(0);
    /// PROT_READ.
    pub const READ: Prot = Prot(1);
    /// PROT_READ and PROT_WRITE.
    pub const READ_WRITE: Prot = Prot(3);

    /// Whether loads are allowed: where stores are, too, but not where nothing else is than to
    /// execute, which processors with protection keys tell from reading.
    pub fn readable(self) -> bool {
        self.0 & 3 != 0
    }

    /// Whether stores are allowed.
    pub fn writable(self) -> bool {
        self.0 & 2 != 0
    }
}

/// Memory of the machine in bytes.
pub fn machine_memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram * info.mem_unit as u64
}

/// Whether the system promises only memory that it has, so that all that is mapped for writing
/// counts: `vm.overcommit_memory=2`. Who may not look takes it for lenient.
pub fn commits_strictly() -> bool {
    let setting = || std::fs::read("/proc/sys/vm/overcommit_memory");
    !confined::is_confined() && setting().is_ok_and(|text| text.trim_ascii() == b"2")
}

/// The limit of address space of this process (RLIMIT_AS), in bytes.
pub fn address_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::As).current
}

/// Addresses that are nobody's by the conventions of compilers' run-times.
const OWN: Range<usize> = 104 << 40..112 << 40;

/// Where a new mapping of the engine's own goes, as a hint: far from where the kernel puts the
/// program's. It would fill a hole there that the program has just made, and who touches that by
/// mistake is to be told so. Addresses do not come twice, and differ from run to run.
pub fn own_place(len: usize) -> *mut std::ffi::c_void {
    /// Where the loader has put this code is random, by 28 bits.
    const RANDOM_MASK: usize = (1 << 28) - 1;
    static TAKEN: AtomicUsize = AtomicUsize::new(0);
    let start = ((own_place as *const () as usize / PAGE_SIZE) & RANDOM_MASK) * (PAGE_SIZE * 2);
    let taken = TAKEN.fetch_add(
        len.next_multiple_of(PAGE_SIZE) + PAGE_SIZE,
        std::sync::atomic::Ordering::Relaxed,
    );
    (OWN.start + (start + taken) % (OWN.end - OWN.start)) as *mut _
}

/// Whether all of a range lies where the engine's own mappings do, and nobody else's.
pub fn is_own(range: &Range<usize>) -> bool {
    OWN.contains(&range.start) && range.end <= OWN.end
}

/// Reserves `len` bytes of address space, aligned to `align` (a power of two), without access and
/// without memory.
pub fn reserve(len: usize, align: usize) -> Result<usize, Errno> {
    reserve_near(std::ptr::null_mut(), len, align)
}

/// The same for the engine's own use.
pub fn reserve_own(len: usize, align: usize) -> Result<usize, Errno> {
    reserve_near(own_place(len.saturating_add(align - PAGE_SIZE)), len, align)
}

fn reserve_near(hint: *mut std::ffi::c_void, len: usize, align: usize) -> Result<usize, Errno> {
    assert!(align.is_power_of_two() && align >= PAGE_SIZE);
    // The kernel aligns to pages.
    let span = len.checked_add(align - PAGE_SIZE).ok_or(Errno::NOMEM)?;
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let base = unsafe {
        mm::mmap_anonymous(hint, span, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)?
    } as usize;
    let aligned = (base + align - 1) & !(align - 1);
    if aligned > base {
        unmap(base..aligned)?;
    }
    if base + span > aligned + len {
        unmap(aligned + len..base + span)?;
    }
    Ok(aligned)
}

/// The same at a given address, where nothing may be.
pub fn reserve_at(base: usize, len: usize) -> Result<usize, Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: a mapping that replaces nothing.
    let at =
        unsafe { mm::mmap_anonymous(base as *mut _, len, ProtFlags::empty(), flags)? } as usize;
    if at != base {
        // Before Linux 4.17 the address is a hint.
        unmap(at..at + len)?;
        return Err(Errno::EXIST);
    }
    Ok(base)
}

/// Keeps an open file in use as long as this process has its memory, also without a descriptor: so
/// are locks of it. Takes an address, and no memory.
pub fn hold_open(file: std::os::fd::BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing, and nobody can
    // access it.
    unsafe {
        mm::mmap(own_place(PAGE_SIZE), PAGE_SIZE, ProtFlags::empty(), MapFlags::SHARED, file, 0)
    }
    .map(drop)
}

/// Maps `len` bytes of private zero memory for the engine's own use (page tables of the engine, not
/// frames): readable, writable, NORESERVE, no huge pages, touched lazily, never unmapped. Not part
/// of core dumps, which a table over the whole window would make gigabytes long.
pub(crate) fn map_metadata(len: usize) -> Result<usize, Errno> {
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let base = unsafe {
        mm::mmap_anonymous(
            own_place(len),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )?
    } as usize;
    advise(base..base + len, libc::MADV_NOHUGEPAGE)?;
    advise(base..base + len, advice::DONTDUMP)?;
    Ok(base)
}

/// The flags that the kernel has for the mapping at an address.
#[cfg(test)]
pub(crate) fn flags(base: usize) -> String {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let from = maps.find(&format!("{base:x}-")).expect("it is mapped");
    let line = maps[from..].lines().find(|line| line.starts_with("VmFlags:"));
    line.expect("each mapping has flags").to_owned()
}

/// Maps a fresh private anonymous mapping over `range`, replacing what was there.
pub fn map_fixed(range: Range<usize>, prot: Prot) -> Result<(), Errno> {
    const FLAGS: i32 =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    const NO_FILE: usize = u32::MAX as usize;
    let arguments = [range.start, range.len(), prot.0 as usize, FLAGS as usize, NO_FILE, 0];
    // SAFETY: the caller owns the range (a part of the window or of the arena), so nothing of
    // Rust's lives there.
    unsafe { change_mappings(Sysno::mmap, arguments) }.map(drop)
}

/// Removes a mapping.
pub fn unmap(range: Range<usize>) -> Result<(), Errno> {
    // SAFETY: the caller owns the range; no reference into it outlives this call.
    unsafe { change_mappings(Sysno::munmap, [range.start, range.len()]) }.map(drop)
}

/// Changes the protection of a range.
pub fn protect(range: Range<usize>, prot: Prot) -> Result<(), Errno> {
    // SAFETY: the caller owns the range; the engine's own reads of it hold the extent lock that the
    // caller holds.
    unsafe { change_mappings(Sysno::mprotect, [range.start, range.len(), prot.0 as usize]) }
        .map(drop)
}

/// Changes the protection of a range, and its protection key.
pub fn protect_with_key(range: Range<usize>, prot: Prot, key: i32) -> Result<(), Errno> {
    let arguments = [range.start, range.len(), prot.0 as usize, key as usize];
    // SAFETY: as in `protect`.
    unsafe { change_mappings(Sysno::pkey_mprotect, arguments) }.map(drop)
}

/// mseal(2): of mappings that are the kernel's own affair.
pub fn seal(range: Range<usize>) -> Result<(), Errno> {
    // SAFETY: sealing changes no content, and the engine leaves these mappings as they are.
    unsafe { change_mappings(Sysno::mseal, [range.start, range.len(), 0]) }.map(drop)
}

/// madvise(2) with a raw advice value.
pub fn advise(range: Range<usize>, advice: i32) -> Result<(), Errno> {
    // SAFETY: madvise reads no memory of ours; advices that drop content are applied to ranges the
    // caller owns.
    unsafe { change_mappings(Sysno::madvise, [range.start, range.len(), advice as usize]) }
        .map(drop)
}

/// mremap(2) of a mapping that is the kernel's own affair, to a place that the caller owns; `flags`
/// are its flags.
pub fn remap(old: Range<usize>, new_len: usize, flags: u32, new: usize) -> Result<usize, Errno> {
    let arguments = [old.start, old.len(), new_len, flags as usize, new];
    // SAFETY: the caller owns both ranges; no reference into them outlives this call.
    unsafe { change_mappings(Sysno::mremap, arguments) }
}

/// Whether the addresses of programs and libraries are others in each process, as far as that is
/// known: in a sandbox of the program's it is not asked.
pub fn has_random_addresses() -> bool {
    const ASK: usize = 0xffff_ffff;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let open = || rustix::fs::open(c"/proc/sys/kernel/randomize_va_space", flags, Mode::empty());
    let mut text = [0; 16];
    let read = |file| rustix::io::read(file, &mut text);
    let is_everywhere = descriptors::open_path(open).and_then(read).is_ok() && text[0] != b'0';
    let is_kept = |now| now & libc::ADDR_NO_RANDOMIZE as usize == 0;
    // SAFETY: plain numbers.
    is_everywhere && check(unsafe { raw_syscall!(Sysno::personality, ASK) }).is_ok_and(is_kept)
}

/// Whether something is mapped at an address of a page.
pub fn is_mapped(page: usize) -> bool {
    residency(page..page + PAGE_SIZE, &mut [0]).is_ok()
}

/// Which pages of a range are in the page tables: bit 0 of a byte each (mincore(2) on anonymous
/// memory).
///
/// # Errors
/// Where something of it is not mapped.
pub fn residency(range: Range<usize>, pages: &mut [u8]) -> Result<(), Errno> {
    assert!(pages.len() >= range.len().div_ceil(PAGE_SIZE));
    let (start, len) = (range.start, range.len());
    // SAFETY: the kernel writes a byte for each page of the range, for which there is room.
    check(unsafe { raw_syscall!(Sysno::mincore, start, len, pages.as_mut_ptr()) }).map(drop)
}

/// Whether an access to an address ends in a signal, told by the kernel without it; if it does not,
/// the page is there. Before Linux 5.14 all of them are said to.
pub fn fails(address: usize, write: bool) -> bool {
    let page = address & !(PAGE_SIZE - 1);
    let how = if write { advice::POPULATE_WRITE } else { advice::POPULATE_READ };
    advise(page..page + PAGE_SIZE, how).is_err()
}

/// mlock(2), or mlock2(2) with MLOCK_ONFAULT: of mappings that are the kernel's own affair.
pub fn lock(range: Range<usize>, on_fault: bool) -> Result<(), Errno> {
    let (call, flags) =
        if on_fault { (Sysno::mlock2, libc::MLOCK_ONFAULT as usize) } else { (Sysno::mlock, 0) };
    // SAFETY: locking changes no content.
    unsafe { change_mappings(call, [range.start, range.len(), flags]) }.map(drop)
}

/// munlock(2).
pub fn unlock(range: Range<usize>) -> Result<(), Errno> {
    // SAFETY: unlocking changes no content.
    unsafe { change_mappings(Sysno::munlock, [range.start, range.len()]) }.map(drop)
}

/// Waits until nobody writes any more to a page of this process that was found in the page tables
/// before this call: ptrace(2) and `/proc/PID/mem` find a page and write to it under one read lock
/// of the address space, whatever the page tables say meanwhile.
///
/// munlock(2) takes the write lock before it looks for mappings, and there are none at an address
/// that no process has.
pub fn settle_writers() {
    const NOWHERE: usize = 1 << 56;
    let unlocked = unlock(NOWHERE..NOWHERE + PAGE_SIZE);
    debug_assert_eq!(unlocked, Err(Errno::NOMEM));
}

/// Drops the pages of many ranges with one TLB flush where the kernel has process_madvise on the
/// own process (Linux 6.13 and later, PIDFD_SELF since 6.14), else range by range. Returns the
/// number of system calls made.
pub fn drop_ranges(ranges: &[IoVec]) -> Result<usize, Errno> {
    const PIDFD_SELF_THREAD_GROUP: isize = -10001;
    let mut done = 0;
    let mut calls = 0;
    for batch in ranges.chunks(1024) {
        let bytes: usize = batch.iter().map(|v| v.len).sum();
        if VECTOR_DROP.load(std::sync::atomic::Ordering::Relaxed) {
            // SAFETY: IoVec has the layout of struct iovec; the ranges belong to the caller, whose
            // pages they drop.
            let ret = unsafe {
                raw_syscall!(
                    Sysno::process_madvise,
                    PIDFD_SELF_THREAD_GROUP,
                    batch.as_ptr(),
                    batch.len(),
                    libc::MADV_DONTNEED,
                    0
                )
            };
            calls += 1;
            match check(ret) {
                Ok(n) if n == bytes => {
                    done += batch.len();
                    continue;
                }
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => VECTOR_DROP.store(false, std::sync::atomic::Ordering::Relaxed),
            }
        }
        // One range at a time; repeating a range that was already dropped is harmless.
        for v in batch {
            advise(v.base..v.base + v.len, libc::MADV_DONTNEED)?;
            calls += 1;
            done += 1;
        }
    }
    debug_assert_eq!(done, ranges.len());
    Ok(calls)
}

/// Whether [`drop_ranges`] still expects process_madvise to work; cleared at its first refusal.
static VECTOR_DROP: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(true);

/// Forces [`drop_ranges`] to a call a range, as on kernels without process_madvise for the own
/// process.
pub fn disable_vector_drop() {
    VECTOR_DROP.store(false, std::sync::atomic::Ordering::Relaxed);
}

/// A range in the layout of struct iovec.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IoVec {
    /// First byte.
    pub base: usize,
    /// Length in bytes.
    pub len: usize,
}

/// Gives the memory of a table back that has a private mapping of its own: it is zero again. Where
/// that fails, `clear` is to do it.
pub(crate) fn forget(base: usize, bytes: usize, clear: impl FnOnce()) {
    if advise(base..base + bytes.next_multiple_of(PAGE_SIZE), MADV_DONTNEED).is_err() {
        clear();
    }
}

/// Copies one page of managed memory. The page is present: moved in, or write-protected under its
/// page lock.
///
/// The program may take a protected page back and write to it meanwhile; the copy is then a
/// mixture, which the caller finds out from the page word and throws away.
pub fn copy_page(address: usize, out: &mut [u8; PAGE_SIZE]) {
    debug_assert!(address.is_multiple_of(PAGE_SIZE));
    // SAFETY: 1. the caller holds the page's extent lock, so the page stays mapped and readable; 2.
    // `out` is one page of our own; 3. the copy is made by the instruction, outside the language's
    // memory model, so that a racing write of the program gives mixed bytes and nothing worse.
    unsafe {
        std::arch::asm!(
            "rep movsq",
            inout("rcx") PAGE_SIZE / 8 => _,
            inout("rsi") address => _,
            inout("rdi") out.as_mut_ptr() => _,
            options(nostack, preserves_flags)
        );
    }
}

/// Reads one byte at an address, so that the page is brought in if it is absent.
pub fn touch(address: usize) {
    // SAFETY: the caller names mapped, readable memory; the value read is thrown away.
    unsafe { std::ptr::read_volatile(address as *const u8) };
}

/// Makes `len` bytes of the calling thread's stack below here present and writable, so that no
/// fault is taken on it for the next calls. Does nothing harmful on ordinary stacks.
#[inline(never)]
pub fn touch_own_stack() {
    const BYTES: usize = 48 << 10;
    let mut space = std::mem::MaybeUninit::<[u8; BYTES]>::uninit();
    for offset in (0..BYTES).step_by(PAGE_SIZE).chain([BYTES - 1]) {
        // SAFETY: the write is inside the local array.
        unsafe { std::ptr::write_volatile(space.as_mut_ptr().cast::<u8>().add(offset), 0) };
    }
    // The page of the caller's frame too.
    let here = std::hint::black_box(&space) as *const _ as usize + BYTES;
    touch(here);
}

/// Simulates a write to every page of a range without changing content (MADV_POPULATE_WRITE), which
/// makes pages that are shared after a fork the process's own.
pub fn make_exclusive(range: Range<usize>) -> Result<(), Errno> {
    const MADV_POPULATE_WRITE: i32 = 23;
    advise(range, MADV_POPULATE_WRITE)
}

/// Moves the resident pages and the mapping of `old` to `new` (same length, both owned by the
/// caller); `old` stays mapped and registered, as holes. `new` is not registered afterwards, and
/// carries [`advice::RANDOM`].
///
/// That advice, which means nothing for anonymous memory, keeps the kernel from joining `new` with
/// mappings beside it that look the same: it takes the moved mapping's registration away, and would
/// take it from all that it was joined with. Their absent pages would read as zeros. For the same
/// reason nothing else in the window may have the advice.
pub fn remap_pages(old: Range<usize>, new: usize) -> Result<(), Errno> {
    const MREMAP_MAYMOVE: usize = 1;
    const MREMAP_FIXED: usize = 2;
    const MREMAP_DONTUNMAP: usize = 4;
    let flags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
    advise(old.clone(), advice::RANDOM)?;
    let arguments = [old.start, old.len(), old.len(), flags, new];
    // SAFETY: both ranges are owned by the caller, who holds their extent locks.
    let moved = unsafe { change_mappings(Sysno::mremap, arguments) };
    advise(old, advice::NORMAL)?;
    moved.map(drop)
}

/// Reads this process's memory past its protection, through /proc/self/mem: for pages under
/// PROT_NONE.
#[derive(Debug)]
pub struct ForceReader {
    /// The descriptor in the table of the program, and in that of its sibling.
    tables: [AtomicI32; 2],
}

impl ForceReader {
    /// No descriptor yet.
    const NONE: i32 = -1;

    /// Opens nothing yet.
    pub const fn new() -> ForceReader {
        ForceReader { tables: [const { AtomicI32::new(ForceReader::NONE) }; 2] }
    }

    /// Copies one page, or says why not. Opened at first use, in the table of the calling thread.
    pub fn copy_page(&self, address: usize, out: &mut [u8; PAGE_SIZE]) -> Result<(), Errno> {
        let own = &self.tables[usize::from(is_here())];
        let fd = match own.load(Acquire) {
            ForceReader::NONE => ForceReader::open(own)?,
            fd => fd,
        };
        // SAFETY: the descriptor is open for as long as the process has this address space.
        let file = unsafe { BorrowedFd::borrow_raw(fd) };
        match rustix::io::pread(file, &mut out[..], address as u64)? {
            PAGE_SIZE => Ok(()),
            _ => Err(Errno::FAULT),
        }
    }

    fn open(own: &AtomicI32) -> Result<i32, Errno> {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let opened =
            descriptors::open_path(|| rustix::fs::open("/proc/self/mem", flags, Mode::empty()))?;
        let opened = descriptors::take(opened);
        // Of two threads that open it the first is right.
        let raced = own.compare_exchange(ForceReader::NONE, opened, AcqRel, Acquire);
        Ok(raced.map_or_else(
            |fd| {
                descriptors::close(opened);
                fd
            },
            |_| opened,
        ))
    }

    /// In the child of a fork: such a file shows the memory of the process that opened it.
    pub fn reset_in_child(&self) {
        let [programs, siblings] = &self.tables;
        siblings.store(ForceReader::NONE, Release);
        let parents = programs.swap(ForceReader::NONE, AcqRel);
        if parents != ForceReader::NONE {
            descriptors::close(parents);
        }
    }
}

impl Default for ForceReader {
    fn default() -> ForceReader {
        ForceReader::new()
    }
}
