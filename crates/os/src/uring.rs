//! Batches of positioned reads and writes, several in flight at once, through io_uring or without
//! it.
//!
//! An [`Op`] borrows its buffer. [`Queue::run`] returns when every operation of the batch is
//! complete, whatever happens, so no buffer is given back while the kernel still uses it: that is
//! what makes it safe. Where io_uring is forbidden (containers), switched off or busy, the same
//! call reads and writes one after another.
//!
//! The interface of the kernel is used directly, by io_uring(7): the io-uring crate maps and closes
//! through libc symbols, which the preload library replaces, and sets errno, which belongs to the
//! program.
//!
//! Locks: the ring of a [`Queue`] lies behind a mutex that is only ever tried, never waited for;
//! nothing is locked inside it.

use crate::io::File;
use crate::units::{Errno, check};
use crate::{beside, confined, descriptors};
use rustix::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::mm::{self, MapFlags, ProtFlags};
use std::ptr::NonNull;
use std::sync::atomic::{
    AtomicBool, AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::sync::{Mutex, TryLockError};
use syscalls::{Sysno, raw_syscall};

/// The buffer of an operation, which also says its direction.
#[derive(Debug)]
pub enum Data<'a> {
    /// Read into this.
    Read(&'a mut [u8]),
    /// Write this.
    Write(&'a [u8]),
}

/// One positioned read or write.
#[derive(Debug)]
pub struct Op<'a> {
    /// Byte offset in the file.
    pub offset: u64,
    /// The buffer.
    pub data: Data<'a>,
    /// After the run: the bytes moved, fewer than the buffer has only where the file ended.
    pub result: Result<usize, Errno>,
}

impl<'a> Op<'a> {
    /// A read of all of `buffer`.
    pub fn read(offset: u64, buffer: &'a mut [u8]) -> Op<'a> {
        Op { offset, data: Data::Read(buffer), result: Ok(0) }
    }

    /// A write of all of `buffer`.
    pub fn write(offset: u64, buffer: &'a [u8]) -> Op<'a> {
        Op { offset, data: Data::Write(buffer), result: Ok(0) }
    }

    fn len(&self) -> usize {
        match &self.data {
            Data::Read(buffer) => buffer.len(),
            Data::Write(buffer) => buffer.len(),
        }
    }

    /// Does what is left of the operation by plain system calls.
    fn finish(&mut self, file: &File) {
        let done = match self.result {
            Ok(done) if done == self.len() => return,
            Ok(done) => done,
            // Failures of the way rather than of the device: the plain way may do it, or says what
            // is wrong.
            Err(Errno::AGAIN | Errno::INTR | Errno::INVAL | Errno::OPNOTSUPP | Errno::CANCELED) => {
                0
            }
            Err(_) => return,
        };
        let offset = self.offset + done as u64;
        let rest = match &mut self.data {
            Data::Read(buffer) => file.read_at(&mut buffer[done..], offset),
            Data::Write(buffer) => file.write_at(&buffer[done..], offset),
        };
        self.result = rest.map(|n| done + n);
    }
}

/// Runs batches for any number of threads, through one ring when there is one and it is free.
#[derive(Debug)]
pub struct Queue {
    entries: u32,
    allowed: bool,
    ring: Mutex<Option<Ring>>,
    /// The next batch makes the ring: most children of a fork end before they have one.
    is_due: AtomicBool,
}

impl Queue {
    /// A queue with up to `entries` operations in flight through io_uring, if `allowed` and the
    /// kernel lets us.
    pub fn new(entries: u32, allowed: bool) -> Queue {
        let ring = if allowed { Ring::new(entries).ok() } else { None };
        Queue { entries, allowed, ring: Mutex::new(ring), is_due: AtomicBool::new(false) }
    }

    /// Whether io_uring is in use.
    pub fn has_ring(&self) -> bool {
        self.ring.lock().unwrap_or_else(|e| e.into_inner()).is_some()
    }

    /// Completes all of `ops` on `file`; each has its `result` then.
    pub fn run(&self, file: &File, ops: &mut [Op<'_>]) {
        if file.is_elsewhere() {
            return beside::call(|| self.run(file, ops));
        }
        // One operation costs one system call either way, and the plain one is cheaper.
        if ops.len() > 1 {
            let mut ring = match self.ring.try_lock() {
                Ok(ring) => Some(ring),
                Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            };
            if let Some(ring) = ring.as_deref_mut() {
                if self.is_due.swap(false, Relaxed) {
                    *ring = Ring::new(self.entries).ok();
                }
                if let Some(ring) = ring {
                    ring.submit(file, ops);
                }
            }
        }
        ops.iter_mut().for_each(|op| op.finish(file));
    }

    /// In a child of a fork: leaves the parent's ring alone; its own is made when it is needed.
    pub fn renew_in_child(&self) {
        let mut ring = self.ring.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(parents) = ring.take() {
            parents.abandon();
        }
        self.is_due.store(self.allowed, Relaxed);
    }
}

/// Kernel structures of io_uring_setup(2) and io_uring_enter(2).
mod abi {
    /// Offsets of the submission queue's fields in its mapping.
    #[repr(C)]
    #[derive(Clone, Copy, Default, Debug)]
    pub struct SqOffsets {
        pub head: u32,
        pub tail: u32,
        pub ring_mask: u32,
        pub ring_entries: u32,
        pub flags: u32,
        pub dropped: u32,
        pub array: u32,
        pub reserved: u32,
        pub user_addr: u64,
    }

    /// Offsets of the completion queue's fields in its mapping.
    #[repr(C)]
    #[derive(Clone, Copy, Default, Debug)]
    pub struct CqOffsets {
        pub head: u32,
        pub tail: u32,
        pub ring_mask: u32,
        pub ring_entries: u32,
        pub overflow: u32,
        pub cqes: u32,
        pub flags: u32,
        pub reserved: u32,
        pub user_addr: u64,
    }

    /// What a ring is made with, and where its parts lie.
    #[repr(C)]
    #[derive(Clone, Copy, Default, Debug)]
    pub struct Params {
        pub sq_entries: u32,
        pub cq_entries: u32,
        pub flags: u32,
        pub sq_thread_cpu: u32,
        pub sq_thread_idle_ms: u32,
        pub features: u32,
        pub wq_fd: u32,
        pub reserved: [u32; 3],
        pub sq_off: SqOffsets,
        pub cq_off: CqOffsets,
    }

    /// A submission.
    #[repr(C)]
    #[derive(Clone, Copy, Default, Debug)]
    pub struct Sqe {
        pub opcode: u8,
        pub flags: u8,
        pub ioprio: u16,
        pub fd: i32,
        pub offset: u64,
        pub addr: u64,
        pub len: u32,
        pub rw_flags: u32,
        pub user_data: u64,
        pub rest: [u64; 3],
    }

    /// A completion.
    #[repr(C)]
    #[derive(Clone, Copy, Debug)]
    pub struct Cqe {
        pub user_data: u64,
        pub res: i32,
        pub flags: u32,
    }

    const _: () =
        assert!(size_of::<Params>() == 120 && size_of::<Sqe>() == 64 && size_of::<Cqe>() == 16);

    /// The ring begins disabled, to be restricted.
    pub const SETUP_DISABLED: u32 = 1 << 6;
    pub const REGISTER_RESTRICTIONS: usize = 11;
    pub const REGISTER_ENABLE_RINGS: usize = 12;
    /// Allows one operation.
    pub const RESTRICTION_SQE_OP: u16 = 1;

    /// The kernel's struct io_uring_restriction.
    #[repr(C)]
    pub struct Restriction {
        pub kind: u16,
        pub operation: u8,
        pub reserved: [u8; 13],
    }

    pub const OP_READ: u8 = 22;
    pub const OP_WRITE: u8 = 23;
    pub const ENTER_GETEVENTS: u32 = 1;
    pub const OFFSET_RINGS: u64 = 0;
    pub const OFFSET_SQES: u64 = 0x1000_0000;
    /// Both rings in one mapping; completions are never dropped; positioned OP_READ and OP_WRITE
    /// (Linux 5.6).
    pub const FEATURES_NEEDED: u32 = 1 | 2 | 8;
}

/// A shared mapping of a ring's memory.
#[derive(Debug)]
struct RingMapping {
    base: NonNull<u8>,
    len: usize,
}

impl RingMapping {
    fn new(fd: BorrowedFd<'_>, offset: u64, len: usize) -> Result<RingMapping, Errno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // The kernel takes no hint for the place of a ring. In a child of a fork it lies where its
        // parent's was, which is the highest hole. SAFETY: a new mapping at an address of the
        // kernel's choice replaces nothing.
        let base = unsafe {
            mm::mmap(
                std::ptr::null_mut(),
                len,
                access,
                MapFlags::SHARED | MapFlags::POPULATE,
                fd,
                offset,
            )?
        };
        let mapping = RingMapping { base: NonNull::new(base.cast()).ok_or(Errno::NOMEM)?, len };
        // A child of a fork must not be able to touch its parent's ring, by mistake or otherwise.
        crate::vm::advise(base as usize..base as usize + len, libc::MADV_DONTFORK)?;
        Ok(mapping)
    }

    /// The element of type `T` at byte `offset`.
    fn at<T>(&self, offset: usize) -> *mut T {
        assert!(offset + size_of::<T>() <= self.len);
        // SAFETY: the element lies inside the mapping, as was just checked.
        unsafe { self.base.as_ptr().add(offset).cast() }
    }

    fn counter(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: 1. the kernel keeps a 32-bit, aligned counter there, which both sides access
        // atomically; 2. the mapping lives as long as `self`.
        unsafe { &*self.at::<AtomicU32>(offset as usize) }
    }
}

impl Drop for RingMapping {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and no reference into it outlives the value.
        let unmapped = unsafe { mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Has a new ring take reads and writes only, for ever, and enables it (Linux 5.10).
fn restrict(ring: RawFd) -> Result<(), Errno> {
    let allowed = [abi::OP_READ, abi::OP_WRITE].map(|operation| abi::Restriction {
        kind: abi::RESTRICTION_SQE_OP,
        operation,
        reserved: [0; 13],
    });
    let register = |what: usize, at: usize, count: usize| {
        // SAFETY: the kernel reads so many restrictions, which live through the call.
        check(unsafe { raw_syscall!(Sysno::io_uring_register, ring, what, at, count) })
    };
    register(abi::REGISTER_RESTRICTIONS, allowed.as_ptr() as usize, allowed.len())?;
    register(abi::REGISTER_ENABLE_RINGS, 0, 0).map(drop)
}

/// An io_uring for batches: nothing is in flight between two calls of [`Ring::run`].
#[derive(Debug)]
pub struct Ring {
    // Declared, so dropped, before the descriptor.
    rings: RingMapping,
    sqes: RingMapping,
    file: File,
    params: abi::Params,
}

// SAFETY: the mappings belong to this value, and an io_uring made without flags may be used from
// any thread.
unsafe impl Send for Ring {}

impl Ring {
    /// A ring for up to `entries` operations in flight (rounded up to a power of two), which takes
    /// reads and writes only: the program could write other operations into its memory, past a
    /// filter that it has put on itself. EPERM or ENOSYS where io_uring is forbidden or the
    /// kernel's is too old.
    pub fn new(entries: u32) -> Result<Ring, Errno> {
        confined::allows_paths()?;
        let mut params = abi::Params::default();
        let fd = descriptors::open(|| {
            params = abi::Params { flags: abi::SETUP_DISABLED, ..abi::Params::default() };
            // SAFETY: the call reads and writes one live io_uring_params.
            check(unsafe { raw_syscall!(Sysno::io_uring_setup, entries, &raw mut params) })
        })? as RawFd;
        // SAFETY: the kernel has just made this descriptor for us.
        let file = File::from_fd(unsafe { OwnedFd::from_raw_fd(fd) });
        if params.features & abi::FEATURES_NEEDED != abi::FEATURES_NEEDED {
            return Err(Errno::NOSYS);
        }
        restrict(file.raw_fd()?)?;
        // SAFETY: `file` holds the descriptor open until this function's end at least.
        let borrowed = unsafe { BorrowedFd::borrow_raw(file.raw_fd()?) };
        let sq_len = params.sq_off.array as usize + params.sq_entries as usize * size_of::<u32>();
        let cq_len =
            params.cq_off.cqes as usize + params.cq_entries as usize * size_of::<abi::Cqe>();
        let rings = RingMapping::new(borrowed, abi::OFFSET_RINGS, sq_len.max(cq_len))?;
        let sqes = RingMapping::new(
            borrowed,
            abi::OFFSET_SQES,
            params.sq_entries as usize * size_of::<abi::Sqe>(),
        )?;
        // The queue names submissions by index; each place always names the submission of the same
        // index.
        for i in 0..params.sq_entries {
            rings.counter(params.sq_off.array + i * 4).store(i, Release);
        }
        Ok(Ring { rings, sqes, file, params })
    }

    /// Completes all of `ops` on `file`; each has its `result` then. Never fails as a whole: what
    /// the ring will not take is done by plain system calls.
    pub fn run(&mut self, file: &File, ops: &mut [Op<'_>]) {
        self.submit(file, ops);
        ops.iter_mut().for_each(|op| op.finish(file));
    }

    /// In a child of a fork: closes the descriptor of the parent's ring without touching its
    /// memory, which was not copied (MADV_DONTFORK): its addresses may belong to something else.
    pub fn abandon(self) {
        let Ring { rings, sqes, file, .. } = self;
        std::mem::forget((rings, sqes));
        drop(file);
    }

    /// Puts the operations through the ring, a full queue at a time, and waits for all it took.
    fn submit(&mut self, file: &File, ops: &mut [Op<'_>]) {
        let Ok(fd) = file.raw_fd() else { return };
        for ops in ops.chunks_mut(self.params.sq_entries as usize) {
            if !self.submit_queue(fd, ops) {
                return;
            }
        }
    }

    /// Returns whether the ring is worth trying for more.
    fn submit_queue(&mut self, fd: RawFd, ops: &mut [Op<'_>]) -> bool {
        let sq_head = self.rings.counter(self.params.sq_off.head);
        let sq_tail = self.rings.counter(self.params.sq_off.tail);
        let first = sq_tail.load(Acquire);
        // 1. Fill the queue. Nothing is in flight, so every place is free.
        for (i, op) in ops.iter_mut().enumerate() {
            let sqe = abi::Sqe {
                fd,
                offset: op.offset,
                len: op.len() as u32,
                user_data: i as u64,
                ..match &mut op.data {
                    Data::Read(buffer) => abi::Sqe {
                        opcode: abi::OP_READ,
                        addr: buffer.as_mut_ptr() as u64,
                        ..Default::default()
                    },
                    Data::Write(buffer) => abi::Sqe {
                        opcode: abi::OP_WRITE,
                        addr: buffer.as_ptr() as u64,
                        ..Default::default()
                    },
                }
            };
            let index = (first.wrapping_add(i as u32) & (self.params.sq_entries - 1)) as usize;
            // SAFETY: `at` checks the place; the kernel reads it only inside the io_uring_enter
            // that submits it.
            unsafe { self.sqes.at::<abi::Sqe>(index * size_of::<abi::Sqe>()).write(sqe) };
        }
        sq_tail.store(first.wrapping_add(ops.len() as u32), Release);
        // 2. Submit and wait, until nothing is in flight: the buffers are borrowed only for as
        //    long.
        let mut completed = 0;
        let mut refused = false;
        loop {
            completed += self.reap(ops);
            let taken = sq_head.load(Acquire).wrapping_sub(first) as usize;
            let flying = taken - completed;
            let more = if refused { 0 } else { ops.len() - taken };
            if flying + more == 0 {
                // 3. What the kernel would not take leaves the queue again; the caller does it the
                //    plain way.
                sq_tail.store(first.wrapping_add(taken as u32), Release);
                return !refused;
            }
            match self.enter(more as u32, (flying + more) as u32) {
                Ok(0) if more > 0 && flying == 0 => refused = true,
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) if more > 0 => refused = true,
                // Waiting is refused (a seccomp filter set meanwhile): completions still arrive, as
                // this thread passes through the kernel.
                Err(_) => rustix::thread::sched_yield(),
            }
        }
    }

    /// Takes the completions that are there; returns how many.
    fn reap(&self, ops: &mut [Op<'_>]) -> usize {
        let head = self.rings.counter(self.params.cq_off.head);
        let tail = self.rings.counter(self.params.cq_off.tail).load(Acquire);
        let mut at = head.load(Acquire);
        let mut reaped = 0;
        while at != tail {
            let index = (at & (self.params.cq_entries - 1)) as usize;
            let place = self.params.cq_off.cqes as usize + index * size_of::<abi::Cqe>();
            // SAFETY: `at` checks the place; the kernel has published this completion by moving the
            // tail past it.
            let cqe = unsafe { self.rings.at::<abi::Cqe>(place).read() };
            if let Some(op) = ops.get_mut(cqe.user_data as usize) {
                op.result = check(cqe.res as isize as usize).map_err(crate::io::limited);
            }
            at = at.wrapping_add(1);
            reaped += 1;
        }
        head.store(at, Release);
        reaped
    }

    fn enter(&self, submit: u32, wait: u32) -> Result<usize, Errno> {
        let fd = self.file.raw_fd()?;
        // SAFETY: the submissions name buffers that `submit_queue`'s caller lends until all are
        // complete.
        let ret = unsafe {
            raw_syscall!(
                Sysno::io_uring_enter,
                fd,
                submit,
                wait,
                abi::ENTER_GETEVENTS,
                0usize,
                0usize
            )
        };
        check(ret)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::IoBuffer;
    use crate::units::PAGE_SIZE;

    fn file() -> File {
        let dir = std::env::current_exe().unwrap().parent().unwrap().join("overspill-uring-tests");
        std::fs::create_dir_all(&dir).unwrap();
        File::anonymous_in(&dir).unwrap()
    }

    /// Page `i` of a pattern that no two pages share.
    fn pattern(pages: usize) -> IoBuffer {
        let mut buffer = IoBuffer::new(pages).unwrap();
        buffer
            .words_mut()
            .iter_mut()
            .enumerate()
            .for_each(|(i, w)| *w = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        buffer
    }

    /// Writes `pages` pages in scattered order, more than fit the ring at once, and reads them
    /// back.
    fn round_trip(run: &mut dyn FnMut(&File, &mut [Op<'_>])) {
        let (file, pages) = (file(), 37);
        let offset = |i: usize| ((i * 11 % pages) * PAGE_SIZE) as u64;
        let data = pattern(pages);
        let mut ops: Vec<Op<'_>> = data
            .chunks(PAGE_SIZE)
            .enumerate()
            .map(|(i, page)| Op::write(offset(i), page))
            .collect();
        run(&file, &mut ops);
        assert!(ops.iter().all(|op| op.result == Ok(PAGE_SIZE)));
        let mut back = IoBuffer::new(pages + 1).unwrap();
        let mut ops: Vec<Op<'_>> = back
            .chunks_mut(PAGE_SIZE)
            .enumerate()
            .map(|(i, page)| Op::read(offset(i), page))
            .collect();
        ops[pages].offset = (pages * PAGE_SIZE) as u64;
        run(&file, &mut ops);
        assert!(ops[..pages].iter().all(|op| op.result == Ok(PAGE_SIZE)));
        assert_eq!(ops[pages].result, Ok(0), "the file ends there");
        assert!(back[..pages * PAGE_SIZE] == data[..]);
    }

    #[test]
    fn batches_round_trip_with_and_without_a_ring() {
        let off = Queue::new(8, false);
        assert!(!off.has_ring());
        round_trip(&mut |file, ops| off.run(file, ops));
        match Ring::new(8) {
            Ok(mut ring) => round_trip(&mut |file, ops| ring.run(file, ops)),
            Err(errno) => assert!(matches!(errno, Errno::PERM | Errno::NOSYS), "{errno}"),
        }
        let on = Queue::new(8, true);
        assert_eq!(on.has_ring(), Ring::new(8).is_ok());
        round_trip(&mut |file, ops| on.run(file, ops));
        let held = on.ring.lock().unwrap();
        round_trip(&mut |file, ops| on.run(file, ops));
        drop(held);
        let had = on.has_ring();
        on.renew_in_child();
        round_trip(&mut |file, ops| on.run(file, ops));
        assert_eq!(on.has_ring(), had, "made anew");
    }

    #[test]
    fn a_ring_that_the_kernel_refuses_falls_back() {
        let Ok(mut ring) = Ring::new(8) else { return };
        // A descriptor that is no ring: io_uring_enter fails at once.
        drop(std::mem::replace(&mut ring.file, file()));
        round_trip(&mut |file, ops| ring.run(file, ops));
        assert_eq!(
            ring.rings.counter(ring.params.sq_off.head).load(Acquire),
            ring.rings.counter(ring.params.sq_off.tail).load(Acquire),
            "nothing is left queued"
        );
    }

    #[test]
    fn each_operation_has_its_own_result() {
        let file = file();
        let data = pattern(2);
        let (one, two) = data.split_at(PAGE_SIZE);
        for allowed in [false, true] {
            let queue = Queue::new(8, allowed);
            // A negative offset is refused; its neighbour is not harmed.
            let mut ops = [Op::write(u64::MAX - 4095, one), Op::write(0, two)];
            queue.run(&file, &mut ops);
            assert_eq!((ops[0].result, ops[1].result), (Err(Errno::INVAL), Ok(PAGE_SIZE)));
        }
    }
}
