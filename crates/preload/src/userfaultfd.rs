//! userfaultfds of the program's own, on memory that is managed.
//!
//! All managed memory is registered with the engine's userfaultfd, and memory can be with one only.
//! So the engine gives up what the program registers, and what it moves pages out of
//! ([`crate::pool::give_up`]): it is the kernel's and the program's from then on.
//!
//! In signal delivery the source of a copy may be absent, which the kernel says in one of two ways:
//! by EFAULT, or by EAGAIN and how far it came. The copy goes on from there with more of the source
//! present, so that nothing is copied twice.
//!
//! The requests come here from ioctl(2), from syscall(2) ([`crate::nested`]), and from the handler
//! of SIGSYS where the argument lies in the window ([`crate::trap`]). All others are the kernel's
//! affair.

use crate::memory::touch::{Tries, touch};
use crate::route::pages;
use crate::{memory, pool};
use overspill_os::uffd::{
    Register, Transfer, UFFDIO_COPY, UFFDIO_MOVE, UFFDIO_REGISTER, UFFDIO_UNREGISTER, UffdRange,
};
use overspill_os::{Errno, seccomp, tls};
use std::mem::offset_of;
use std::ops::Range;

/// How much of the source of a copy is made present at once.
const PRESENT_BYTES: usize = 1 << 20;

/// Makes a request of ioctl(2) if it is one of a userfaultfd that concerns managed memory.
pub fn request(fd: usize, request: usize, argument: usize) -> Option<Result<usize, Errno>> {
    if !pool::exists() || !tls::is_program() {
        return None;
    }
    // The kernel looks at 32 bits of a request. What cannot be read is the kernel's to judge.
    match request as u32 as u64 {
        UFFDIO_REGISTER => {
            let wanted: Register = memory::read(argument)?;
            inside(wanted.range)?;
            Some(register(fd, argument, wanted))
        }
        UFFDIO_UNREGISTER => {
            let range: UffdRange = memory::read(argument)?;
            inside(range)?;
            Some(unregister(fd, range))
        }
        UFFDIO_COPY if pool::signal_delivery() => {
            let wanted: Transfer = memory::read(argument)?;
            inside(UffdRange { start: wanted.src, len: wanted.len })?;
            Some(copy(fd, argument, wanted))
        }
        UFFDIO_MOVE => {
            let Transfer { src, len, .. } = memory::read(argument)?;
            let source = inside(UffdRange { start: src, len })?;
            // The kernel takes pages as they are in the page tables, and cannot tell one that is
            // out from a hole.
            each_part(source, |_| Ok(0)).err().map(Err)
        }
        _ => None,
    }
}

/// What of a range lies in the window, if any does, and the range is one at all.
fn inside(range: UffdRange) -> Option<Range<usize>> {
    let inside = pool::split(pages(range.start as usize, range.len as usize)?).inside;
    (!inside.is_empty()).then_some(inside)
}

/// Gives up what is mapped of a range in the window, and calls `each` with every part of it; the
/// last result.
fn each_part(
    range: Range<usize>,
    mut each: impl FnMut(Range<usize>) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    // What the kernel says where nothing is mapped.
    let mut result = Err(Errno::INVAL);
    let mut start = range.start;
    while start < range.end
        && let Some(part) = pool::give_up(start..range.end)?
    {
        start = part.end;
        result = Ok(each(part)?);
    }
    result
}

fn register(fd: usize, argument: usize, wanted: Register) -> Result<usize, Errno> {
    let mut whole = wanted;
    let mut ioctls = 0;
    let mut kernel = |range: Range<usize>| {
        whole.range = UffdRange { start: range.start as u64, len: range.len() as u64 };
        let result = call(fd, UFFDIO_REGISTER, &mut whole);
        ioctls = whole.ioctls;
        result
    };
    let Register { range: UffdRange { start, len }, .. } = wanted;
    let (start, len) = (start as usize, len as usize);
    let mut result = kernel(start..start + len);
    // All that the kernel looks at before is as it should be. Parts of the window that are not
    // mapped stay out of it.
    if result == Err(Errno::BUSY) {
        let parts = pool::split(start..start + len);
        let mut beside = [parts.below, parts.above].into_iter().filter(|part| !part.is_empty());
        result = beside
            .try_for_each(|part| kernel(part).map(drop))
            .and_then(|()| each_part(parts.inside, kernel));
    }
    // SAFETY: the program has handed this address to a call that writes there.
    if result.is_ok() && !unsafe { memory::write(argument + offset_of!(Register, ioctls), ioctls) }
    {
        return Err(Errno::FAULT);
    }
    result
}

/// What is managed is with no userfaultfd of the program's. The kernel has nothing to do there, and
/// before Linux 6.17 would take it off the engine's.
fn unregister(fd: usize, mut range: UffdRange) -> Result<usize, Errno> {
    let (start, len) = (range.start as usize, range.len as usize);
    if !start.is_multiple_of(overspill_os::PAGE_SIZE)
        || !len.is_multiple_of(overspill_os::PAGE_SIZE)
    {
        return call(fd, UFFDIO_UNREGISTER, &mut range);
    }
    let parts = pool::split(start..start + len);
    let kernel = |part: Range<usize>| {
        let mut range = UffdRange { start: part.start as u64, len: part.len() as u64 };
        if part.is_empty() { Ok(0) } else { call(fd, UFFDIO_UNREGISTER, &mut range) }
    };
    kernel(parts.below)?;
    let mut start = parts.inside.start;
    while start < parts.inside.end
        && let Some(part) = pool::foreign_part(start..parts.inside.end)?
    {
        start = part.end;
        kernel(part)?;
    }
    kernel(parts.above)
}

fn copy(fd: usize, argument: usize, wanted: Transfer) -> Result<usize, Errno> {
    let (mut done, mut tries) = (0, Tries::default());
    let mut result = loop {
        let (src, left) = (wanted.src + done, wanted.len - done);
        tries.touch(|_| touch(src as usize, (left as usize).min(PRESENT_BYTES)));
        let mut rest = Transfer { dst: wanted.dst + done, src, len: left, ..wanted };
        let result = call(fd, UFFDIO_COPY, &mut rest);
        let copied = rest.done.max(0) as u64;
        done += copied;
        if copied > 0 {
            tries = Tries::default();
        }
        let is_out = result == Err(Errno::FAULT) && !tries.are_over();
        if !(is_out || result == Err(Errno::AGAIN) && copied > 0) {
            break result;
        }
    };
    // The kernel tells of a part, and leaves the reason to the next copy.
    if result.is_err() && done > 0 {
        result = Err(Errno::AGAIN);
    }
    let told = match result {
        Err(errno) if done == 0 => -i64::from(errno.raw_os_error()),
        _ => done as i64,
    };
    // SAFETY: the program has handed this address to a call that writes there.
    if !unsafe { memory::write(argument + offset_of!(Transfer, done), told) } {
        return Err(Errno::FAULT);
    }
    result
}

/// A request with an argument of ours, past the filter.
fn call<T: Copy>(fd: usize, request: u64, argument: &mut T) -> Result<usize, Errno> {
    // SAFETY: the argument has the layout that the request stands for; what it does is what the
    // program has asked for.
    crate::sys::check(unsafe {
        seccomp::let_through(
            libc::SYS_ioctl as usize,
            [fd, request as usize, argument as *mut T as usize, 0, 0, 0],
        )
    })
}
