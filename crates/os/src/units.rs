//! The size of a page, and error numbers.

/// Size of a page and of a page frame in bytes.
pub const PAGE_SIZE: usize = 4096;
/// log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;

/// An error number of the kernel.
pub type Errno = rustix::io::Errno;

/// What a raw system call has returned: a value, or an error number below zero.
pub(crate) fn check(ret: usize) -> Result<usize, Errno> {
    if ret > -4096isize as usize {
        Err(Errno::from_raw_os_error(-(ret as isize) as i32))
    } else {
        Ok(ret)
    }
}
