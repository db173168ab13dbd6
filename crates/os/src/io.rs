//! Files that hold swapped pages: page-aligned buffers, direct I/O, preallocation and locks on
//! byte ranges.
//!
//! [`IoBuffer`] is the only memory that swap I/O reads into or writes from: it is the engine's own,
//! so a system call on it never faults on managed memory. [`File`] is a descriptor with positioned,
//! complete reads and writes; [`crate::uring`] puts several of them in flight. Descriptors are
//! closed by a direct system call, and a child of a fork replaces them in place ([`File::adopt`]),
//! because the numbers it inherited mean its parent's table.
//!
//! No locks here. OFD locks ([`File::try_lock`]) are the kernel's: they belong to the open file,
//! not to the process, and die with its last descriptor.

mod buffer;

use crate::process::{is_here, sibling};
use crate::units::{Errno, check};
use crate::{beside, confined, descriptors};
pub use buffer::IoBuffer;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::{AtFlags, FallocateFlags, FileType, MemfdFlags, Mode, OFlags, StatxFlags};
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Acquire, Ordering::Release};
use syscalls::{Sysno, raw_syscall};

/// Smallest unit of direct I/O, in bytes.
const SECTOR: usize = 512;

/// What a path leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A block device.
    BlockDevice,
    /// Anything else: a pipe, a socket, a character device.
    Other,
}

/// Which file one is, of all that there ever were on a machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    device: [u32; 2],
    inode: u64,
    /// When it was made, in seconds and nanoseconds; zeros where the filesystem does not say.
    made: (i64, u32),
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Identity { device: [major, minor], inode, made: (seconds, nanoseconds) } = self;
        write!(f, "{major}:{minor}:{inode}:{seconds}.{nanoseconds}")
    }
}

/// What kind of file `path` is, symbolic links followed.
pub fn kind(path: &Path) -> Result<PathKind, Errno> {
    confined::allows_paths()?;
    Ok(match FileType::from_raw_mode(rustix::fs::stat(path)?.st_mode) {
        FileType::RegularFile => PathKind::File,
        FileType::Directory => PathKind::Directory,
        FileType::BlockDevice => PathKind::BlockDevice,
        _ => PathKind::Other,
    })
}

/// The room on a filesystem.
#[derive(Clone, Copy, Debug)]
pub struct FreeSpace {
    /// Bytes that this user may still write.
    pub free_bytes: u64,
    /// Whether the filesystem keeps its files in RAM (tmpfs, ramfs).
    pub in_memory: bool,
}

/// The room on the filesystem that holds `path`.
pub fn space(path: &Path) -> Result<FreeSpace, Errno> {
    const TMPFS_MAGIC: u32 = 0x0102_1994;
    const RAMFS_MAGIC: u32 = 0x8584_58f6;
    confined::allows_paths()?;
    let fs = rustix::fs::statfs(path)?;
    Ok(FreeSpace {
        free_bytes: fs.f_bavail.saturating_mul(fs.f_frsize as u64),
        in_memory: matches!(fs.f_type as u32, TMPFS_MAGIC | RAMFS_MAGIC),
    })
}

/// The largest file that this process may write (RLIMIT_FSIZE): a write beyond it would raise
/// SIGXFSZ.
pub fn file_size_limit_bytes() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Fsize).current
}

/// Who may read and write an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rights {
    /// Whose it is.
    pub owner: u32,
    /// The bits of chmod(1).
    pub mode: u32,
    /// Whether it is a block device.
    pub is_block_device: bool,
}

impl Rights {
    /// Those of an open file, whatever its name leads to by now.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn of(file: impl AsFd) -> Result<Rights, Errno> {
        let status = rustix::fs::fstat(file)?;
        Ok(Rights {
            owner: status.st_uid,
            mode: status.st_mode & 0o7777,
            is_block_device: FileType::from_raw_mode(status.st_mode) == FileType::BlockDevice,
        })
    }
}

/// The kinds of an OFD lock on a byte range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lock {
    /// Others may hold read locks on the range too.
    Read,
    /// Nobody else holds a lock on the range.
    Write,
}

/// An open file or block device for positioned I/O.
///
/// What the program has opened before its sibling began is open in both, under the same number.
/// What the sibling opens is open there only; a thread of the program that wants it has the sibling
/// do the operation ([`beside::call`]).
#[derive(Debug)]
pub struct File {
    /// The descriptor, or -1 where a child of a fork has none.
    fd: AtomicI32,
    /// Whether it is in the sibling's table only.
    beside: AtomicBool,
}

/// A file that may not grow (RLIMIT_FSIZE, which the program may lower) is like a full disk. The
/// signal that the kernel sends for it is not the program's: it is taken back, all signals being
/// blocked where the engine writes.
pub(crate) fn limited(errno: Errno) -> Errno {
    if errno != Errno::FBIG {
        return errno;
    }
    let (set, time) = (1u64 << (libc::SIGXFSZ - 1), [0i64; 2]);
    // SAFETY: the kernel reads a set of 8 bytes and a time, both alive.
    unsafe { raw_syscall!(Sysno::rt_sigtimedwait, &raw const set, 0, time.as_ptr(), 8) };
    Errno::NOSPC
}

impl File {
    /// Opens `path` to read and write, past the page cache where the filesystem allows it
    /// (O_DIRECT); makes the file, for this user only, if `create` and it does not exist.
    pub fn open(path: &Path, create: bool) -> Result<File, Errno> {
        let create = if create { OFlags::CREATE } else { OFlags::empty() };
        open_direct(path, create | OFlags::NOCTTY)
    }

    /// Opens block device `path` exclusively for a moment: EBUSY if it is mounted or a swap area in
    /// use.
    pub fn claim_block_device(path: &Path) -> Result<(), Errno> {
        open_direct(path, OFlags::EXCL).map(drop)
    }

    /// A new file in directory `dir` that has no name and is gone with its last descriptor.
    pub fn anonymous_in(dir: &Path) -> Result<File, Errno> {
        match open_direct(dir, OFlags::TMPFILE) {
            // Filesystems without O_TMPFILE, and kernels that take it for an attempt to write a
            // directory.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {
                File::unlinked_in(dir)
            }
            other => other,
        }
    }

    /// A new file of `len` bytes in memory, without a name: a hole that takes memory where it is
    /// written.
    pub fn in_memory(len: u64) -> Result<File, Errno> {
        let make = || rustix::fs::memfd_create(c"overspill-ram", MemfdFlags::CLOEXEC);
        let file = File::from_fd(descriptors::open(make)?);
        file.set_len(len)?;
        Ok(file)
    }

    fn unlinked_in(dir: &Path) -> Result<File, Errno> {
        let mut random = [0u8; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let path = dir.join(format!(".overspill-{:016x}", u64::from_ne_bytes(random)));
        let file = open_direct(&path, OFlags::CREATE | OFlags::EXCL)?;
        rustix::fs::unlinkat(rustix::fs::CWD, &path, AtFlags::empty())?;
        Ok(file)
    }

    /// Opens it once more: a new open file, with locks of its own, on the same inode, also if that
    /// has no name any more. In the table of the calling thread, also where it is open in the
    /// sibling's only.
    pub fn reopen(&self) -> Result<File, Errno> {
        let path = match self.is_elsewhere() {
            true => format!("/proc/{}/fd/{}", sibling()?.as_raw_nonzero(), self.fd.load(Acquire)),
            false => format!("/proc/thread-self/fd/{}", self.raw_fd()?),
        };
        open_direct(Path::new(&path), OFlags::empty())
    }

    /// Who may read and write it.
    pub fn rights(&self) -> Result<Rights, Errno> {
        Rights::of(self.fd()?)
    }

    /// Which file it is, of all that there ever were, as far as the filesystem knows when it was
    /// made.
    pub fn identity(&self) -> Result<Identity, Errno> {
        confined::allows_paths()?;
        let wanted = StatxFlags::INO | StatxFlags::BTIME;
        let found = rustix::fs::statx(self.fd()?, c"", AtFlags::EMPTY_PATH, wanted)?;
        Ok(Identity {
            device: [found.stx_dev_major, found.stx_dev_minor],
            inode: found.stx_ino,
            made: (found.stx_btime.tv_sec, found.stx_btime.tv_nsec),
        })
    }

    /// Takes over a descriptor; its number may change ([`descriptors::take`]).
    pub fn from_fd(fd: OwnedFd) -> File {
        File { fd: AtomicI32::new(descriptors::take(fd)), beside: AtomicBool::new(is_here()) }
    }

    /// Gives the descriptor up to the caller; `None` if this file has none.
    pub fn into_fd(self) -> Option<OwnedFd> {
        let raw = self.fd.swap(-1, Acquire);
        // SAFETY: the descriptor was this value's own, and -1 in its place keeps the drop from
        // closing it.
        (raw >= 0).then(|| unsafe { OwnedFd::from_raw_fd(raw) })
    }

    /// In a child of a fork: goes on with `fd` (with none, all I/O fails with EBADF). The old
    /// number is forgotten and not closed: it belongs to the parent's table of descriptors, and may
    /// be another file in this one's.
    pub fn adopt(&self, fd: Option<OwnedFd>) {
        self.fd.store(fd.map_or(-1, IntoRawFd::into_raw_fd), Release);
        self.beside.store(is_here(), Release);
    }

    /// Whether the calling thread's table lacks the descriptor, which the sibling's has.
    pub fn is_elsewhere(&self) -> bool {
        self.beside.load(Acquire) && !is_here()
    }

    /// The descriptor's number; EBADF if this file has none in the table of the calling thread.
    pub fn raw_fd(&self) -> Result<RawFd, Errno> {
        match self.fd.load(Acquire) {
            -1 => Err(Errno::BADF),
            _ if self.is_elsewhere() => Err(Errno::BADF),
            fd => Ok(fd),
        }
    }

    pub(crate) fn fd(&self) -> Result<BorrowedFd<'_>, Errno> {
        // SAFETY: the number is not -1, and stays open as long as `self`: only the drop and
        // `into_fd`, which take the value itself, end it.
        self.raw_fd().map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Reads until `buffer` is full or the file ends; returns the bytes read.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
        if self.is_elsewhere() {
            return beside::call(|| self.read_at(buffer, offset));
        }
        let mut done = 0;
        while done < buffer.len() {
            match rustix::io::pread(self.fd()?, &mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => {
                    done += n;
                    // A file that ends inside a sector has ended: direct I/O would refuse to go on
                    // from there.
                    if n % SECTOR != 0 {
                        break;
                    }
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }

    /// Writes all of `buffer`; returns the bytes written, fewer only if the kernel takes no more
    /// without saying why.
    pub fn write_at(&self, buffer: &[u8], offset: u64) -> Result<usize, Errno> {
        if self.is_elsewhere() {
            return beside::call(|| self.write_at(buffer, offset));
        }
        let mut done = 0;
        while done < buffer.len() {
            match rustix::io::pwrite(self.fd()?, &buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(limited(errno)),
            }
        }
        Ok(done)
    }

    /// Sets aside disk space for a range and extends the file over it. ENOSPC and EDQUOT if there
    /// is none, EOPNOTSUPP where the filesystem cannot.
    pub fn allocate(&self, range: Range<u64>) -> Result<(), Errno> {
        if self.is_elsewhere() {
            return beside::call(|| self.allocate(range));
        }
        loop {
            match rustix::fs::fallocate(
                self.fd()?,
                FallocateFlags::empty(),
                range.start,
                range.end - range.start,
            ) {
                Err(Errno::INTR) => {}
                other => return other.map_err(limited),
            }
        }
    }

    /// Gives the disk space of a range back; it reads as zeros. EOPNOTSUPP where the filesystem
    /// cannot.
    pub fn punch(&self, range: Range<u64>) -> Result<(), Errno> {
        if self.is_elsewhere() {
            return beside::call(|| self.punch(range));
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(self.fd()?, flags, range.start, range.end - range.start)
    }

    /// Tells a block device, or the filesystem of a file, that what a range holds is not needed any
    /// more. Of a file it reads as zeros afterwards, of a block device as anything. EOPNOTSUPP
    /// where that cannot be said.
    pub fn discard(&self, range: Range<u64>) -> Result<(), Errno> {
        if self.is_elsewhere() {
            return beside::call(|| self.discard(range));
        }
        // _IO(0x12, 119) of linux/fs.h.
        const BLKDISCARD: usize = 0x1277;
        if FileType::from_raw_mode(rustix::fs::fstat(self.fd()?)?.st_mode) != FileType::BlockDevice
        {
            return self.punch(range);
        }
        let range = [range.start, range.end - range.start];
        // SAFETY: the ioctl reads two live 64-bit words.
        let ret = unsafe {
            raw_syscall!(Sysno::ioctl, self.fd()?.as_raw_fd(), BLKDISCARD, range.as_ptr())
        };
        check(ret).map(drop)
    }

    /// A duplicate of the descriptor: the same open file. In the table of the calling thread, also
    /// where it is open in the sibling's only.
    pub fn duplicate(&self) -> Result<File, Errno> {
        if self.is_elsewhere() {
            return descriptors::duplicate(sibling()?, self.fd.load(Acquire)).map(File::from_fd);
        }
        let fd = self.fd()?;
        descriptors::open(|| rustix::io::fcntl_dupfd_cloexec(fd, 0)).map(File::from_fd)
    }

    /// Makes the file `len` bytes long, with a hole where it grows.
    pub fn set_len(&self, len: u64) -> Result<(), Errno> {
        rustix::fs::ftruncate(self.fd()?, len)
    }

    /// Length of a regular file, and how much of it has disk space already, in bytes.
    pub fn len_and_allocated_bytes(&self) -> Result<(u64, u64), Errno> {
        let stat = rustix::fs::fstat(self.fd()?)?;
        Ok((stat.st_size as u64, stat.st_blocks as u64 * 512))
    }

    /// Size of a block device in bytes.
    pub fn block_device_bytes(&self) -> Result<u64, Errno> {
        // _IOR(0x12, 114, size_t) of linux/fs.h.
        const BLKGETSIZE64: usize = 0x8008_1272;
        let mut bytes = 0u64;
        // SAFETY: the ioctl writes eight bytes to a live u64.
        let ret = unsafe {
            raw_syscall!(Sysno::ioctl, self.fd()?.as_raw_fd(), BLKGETSIZE64, &raw mut bytes)
        };
        check(ret).map(|_| bytes)
    }

    /// Takes an OFD lock on `range` without waiting, or changes the kind of one that this file
    /// holds; `false` if another open file's lock is in the way.
    pub fn try_lock(&self, range: Range<u64>, lock: Lock) -> Result<bool, Errno> {
        match self.fcntl_lock(libc::F_OFD_SETLK, range, lock_type(lock)) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Gives the locks on `range` back.
    pub fn unlock(&self, range: Range<u64>) -> Result<(), Errno> {
        self.fcntl_lock(libc::F_OFD_SETLK, range, libc::F_UNLCK).map(drop)
    }

    /// Whether [`File::try_lock`] would succeed, without taking the lock; an error where the
    /// filesystem has no locks.
    pub fn could_lock(&self, range: Range<u64>, lock: Lock) -> Result<bool, Errno> {
        let found = self.fcntl_lock(libc::F_OFD_GETLK, range, lock_type(lock))?;
        Ok(i32::from(found) == libc::F_UNLCK)
    }

    fn fcntl_lock(&self, command: i32, range: Range<u64>, lock: i32) -> Result<i16, Errno> {
        if self.is_elsewhere() {
            return beside::call(|| self.fcntl_lock(command, range, lock));
        }
        let mut flock = libc::flock {
            l_type: lock as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: range.start as i64,
            l_len: (range.end - range.start) as i64,
            l_pid: 0,
        };
        // SAFETY: fcntl reads and writes one live struct flock, which has 64-bit offsets on 64-bit
        // machines.
        let ret =
            unsafe { raw_syscall!(Sysno::fcntl, self.fd()?.as_raw_fd(), command, &raw mut flock) };
        check(ret).map(|_| flock.l_type)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if let Ok(fd) = self.raw_fd() {
            descriptors::close(fd);
            if is_here() && !self.beside.load(Acquire) {
                descriptors::leave_to_program(fd);
            }
        }
    }
}

fn lock_type(lock: Lock) -> i32 {
    match lock {
        Lock::Read => libc::F_RDLCK,
        Lock::Write => libc::F_WRLCK,
    }
}

/// Opens with O_DIRECT, or without where the filesystem refuses that.
fn open_direct(path: &Path, flags: OFlags) -> Result<File, Errno> {
    let flags = flags | OFlags::RDWR | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let open = || match rustix::fs::open(path, flags | OFlags::DIRECT, mode) {
        // The refused attempt may have made the file: then it is this call's own, and O_EXCL has
        // done its work.
        Err(Errno::INVAL) if flags.contains(OFlags::CREATE) => {
            rustix::fs::open(path, flags - OFlags::EXCL, mode)
        }
        Err(Errno::INVAL) => rustix::fs::open(path, flags, mode),
        other => other,
    };
    descriptors::open_path(open).map(File::from_fd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::PAGE_SIZE;

    fn disk() -> std::path::PathBuf {
        // Not temp_dir(), which may be in memory: target/ is on a disk.
        let dir = std::env::current_exe().unwrap().parent().unwrap().join("overspill-io-tests");
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn an_anonymous_file_round_trips_and_leaves_no_name() {
        let dir = disk().join("anonymous");
        std::fs::create_dir_all(&dir).unwrap();
        for file in [File::anonymous_in(&dir).unwrap(), File::unlinked_in(&dir).unwrap()] {
            let mut out = IoBuffer::new(3).unwrap();
            out.iter_mut().enumerate().for_each(|(i, b)| *b = (i / 7) as u8);
            assert_eq!(file.write_at(&out, 8 * PAGE_SIZE as u64), Ok(out.len()));
            let mut back = IoBuffer::new(3).unwrap();
            assert_eq!(file.read_at(&mut back, 8 * PAGE_SIZE as u64), Ok(back.len()));
            assert!(out[..] == back[..]);
            assert_eq!(
                file.read_at(&mut back, 10 * PAGE_SIZE as u64),
                Ok(PAGE_SIZE),
                "the file ends there"
            );
            assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_nameless_file_can_be_reopened_with_locks_of_its_own() {
        let file = File::anonymous_in(&disk()).unwrap();
        let again = file.reopen().unwrap();
        assert_eq!(file.try_lock(0..100, Lock::Write), Ok(true));
        assert_eq!(again.could_lock(50..60, Lock::Read), Ok(false));
        assert_eq!(again.try_lock(50..60, Lock::Read), Ok(false));
        assert_eq!(again.try_lock(100..200, Lock::Write), Ok(true));
        // A write lock becomes a read lock without a gap; then both may hold it, and neither may
        // write-lock it.
        assert_eq!(file.try_lock(0..100, Lock::Read), Ok(true));
        assert_eq!(again.try_lock(0..100, Lock::Read), Ok(true));
        assert_eq!(file.try_lock(0..100, Lock::Write), Ok(false));
        drop(again);
        assert_eq!(file.try_lock(0..200, Lock::Write), Ok(true), "locks die with the open file");
        file.unlock(0..200).unwrap();
        assert_eq!(file.reopen().unwrap().could_lock(0..200, Lock::Write), Ok(true));
    }

    #[test]
    fn adopting_forgets_the_old_number_and_none_gives_ebadf() {
        let file = File::anonymous_in(&disk()).unwrap();
        let old = file.raw_fd().unwrap();
        let parent = File::from_fd(rustix::io::dup(file.fd().unwrap()).unwrap());
        file.adopt(file.reopen().unwrap().into_fd());
        // The old number is still open, as it is in a parent's table.
        // SAFETY: so it is, until the end of this test.
        assert!(rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(old) }).is_ok());
        assert_eq!(file.write_at(&IoBuffer::new(1).unwrap(), 0), Ok(PAGE_SIZE));
        assert_eq!(parent.len_and_allocated_bytes().unwrap().0, PAGE_SIZE as u64);
        // SAFETY: nothing else uses the number that `adopt` forgot.
        drop(File::from_fd(unsafe { OwnedFd::from_raw_fd(old) }));
        file.adopt(None);
        assert_eq!(file.read_at(&mut IoBuffer::new(1).unwrap(), 0), Err(Errno::BADF));
    }

    #[test]
    fn allocation_takes_disk_space_and_set_len_does_not() {
        let file = File::anonymous_in(&disk()).unwrap();
        file.set_len(64 << 20).unwrap();
        assert_eq!(file.len_and_allocated_bytes(), Ok((64 << 20, 0)));
        match file.allocate(1 << 20..2 << 20) {
            Ok(()) => assert!(file.len_and_allocated_bytes().unwrap().1 >= 1 << 20),
            Err(errno) => assert_eq!(errno, Errno::OPNOTSUPP),
        }
    }

    #[test]
    fn kinds_and_memory_filesystems_are_told_apart() {
        assert_eq!(kind(&disk()), Ok(PathKind::Directory));
        assert_eq!(kind(&std::env::current_exe().unwrap()), Ok(PathKind::File));
        assert_eq!(kind(Path::new("/dev/null")), Ok(PathKind::Other));
        assert_eq!(kind(&disk().join("absent")), Err(Errno::NOENT));
        assert!(!space(&disk()).unwrap().in_memory && space(&disk()).unwrap().free_bytes > 0);
        if std::fs::read_to_string("/proc/mounts").unwrap().contains(" /dev/shm tmpfs") {
            assert!(space(Path::new("/dev/shm")).unwrap().in_memory);
            let file = File::anonymous_in(Path::new("/dev/shm")).unwrap();
            assert_eq!(file.write_at(&IoBuffer::new(1).unwrap(), 0), Ok(PAGE_SIZE));
        }
    }
}
