//! sendto and recvfrom.

use super::descriptor::is_stream;
use super::pending::{
    ADDRESS_MAX, copy_out, is_usable, new_pending, overhead, pending, replace, usable,
};
use super::shape::Shape;
use crate::sys::{failure, is_failure};
use crate::trap::bounce::{self, Buffer, CHUNK};
use crate::trap::present::NOWHERE;
use crate::trap::record::{ALWAYS, Next, Record};
use crate::{memory, pool};
use libc::iovec;
use overspill_os::PAGE_SIZE;

/// Prepares a call.
pub fn begin(record: &mut Record, shape: Shape, arguments: [usize; 6]) -> Option<Next> {
    let [fd, start, len, flags, address, address_len] = arguments;
    if !shape.input && flags & libc::MSG_ZEROCOPY as usize != 0 {
        return None;
    }
    let single = iovec { iov_base: start as *mut _, iov_len: len };
    is_usable(&single, shape.input).then_some(())?;
    let parts = len > CHUNK && is_stream(fd);
    let room = match pool::is_stopped(start) {
        true if parts => CHUNK,
        true => len,
        false => 0,
    };
    let mut buffer = bounce::claim(record, overhead(1) + room + ADDRESS_MAX + 2 * PAGE_SIZE)?;
    let pending = new_pending(&mut buffer, arguments)?;
    pending.whole = buffer.array::<iovec>(1)?;
    pending.parts = buffer.array::<iovec>(1)?;
    // SAFETY: room for one.
    unsafe { pending.whole.write(single) };
    (pending.count, pending.total) = (1, len);
    pending.goes_on = parts && (!shape.input || flags & libc::MSG_WAITALL as usize != 0);
    // The address and its length: as they are where they are not managed.
    pending.timeout = [address, address_len];
    if shape.input {
        // Where the length is not there the kernel says so, when it comes to that.
        if pool::is_stopped(address_len) && usable(address_len, size_of::<u32>(), true).is_none() {
            pending.timeout[1] = NOWHERE;
        } else if (pool::is_stopped(address) || pool::is_stopped(address_len))
            && let Some(len) = memory::read::<u32>(address_len)
        {
            // The kernel writes how long the address is in place of how much room there is for it.
            let copy = buffer.array::<u32>(1)?;
            // SAFETY: room for one.
            unsafe { copy.write(len) };
            (pending.timeout[1], pending.room) = (copy as usize, len);
        }
        if pool::is_stopped(address) && pending.timeout[1] == 0 {
            pending.timeout[0] = NOWHERE;
        } else if pool::is_stopped(address) {
            usable(address, (pending.room as usize).min(ADDRESS_MAX), true)?;
            pending.timeout[0] = buffer.array::<u8>(ADDRESS_MAX)? as usize;
        }
    } else if pool::is_stopped(address) {
        let len = address_len as u32 as usize;
        if len > ADDRESS_MAX {
            return Some(Next::Result(failure(libc::EINVAL)));
        }
        usable(address, len, false)?;
        let copy = buffer.array::<u8>(ADDRESS_MAX)?;
        // SAFETY: the program may read so many bytes.
        unsafe { std::ptr::copy_nonoverlapping(address as *const u8, copy, len) };
        pending.timeout[0] = copy as usize;
    }
    pending.used = buffer.used();
    Some(hand_over(record, shape))
}

fn hand_over(record: &mut Record, shape: Shape) -> Next {
    let mut buffer = Buffer::of(record);
    let pending = pending(record);
    buffer.cut(pending.used);
    let most =
        if pending.goes_on { (pending.total - pending.done).min(CHUNK) } else { pending.total };
    let (_, bytes) =
        replace(&mut buffer, pending.whole, 1, pending.parts, pending.done, most, shape);
    pending.handed = bytes;
    record.finish = ALWAYS;
    // SAFETY: one part.
    let part = unsafe { *pending.parts };
    let [fd, _, _, flags, _, _] = pending.arguments;
    Next::Call([
        fd,
        part.iov_base as usize,
        part.iov_len,
        flags,
        pending.timeout[0],
        pending.timeout[1],
    ])
}

/// After the call.
pub fn finish(record: &mut Record, shape: Shape) -> Next {
    let pending = pending(record);
    let result = record.result;
    if is_failure(result) {
        return pending.end_early(result);
    }
    if shape.input {
        copy_out(pending.whole, 1, pending.parts, pending.done, result.min(pending.handed));
        let [_, _, _, _, address, address_len] = pending.arguments;
        if address != 0 && pending.timeout[1] != address_len {
            let [copy, len] = pending.timeout;
            // SAFETY: the kernel has written both copies; the program has as much room for the
            // address as was checked, and has handed over the place of the length.
            unsafe {
                let len = (len as *const u32).read();
                if copy != address {
                    let bytes = (len.min(pending.room) as usize).min(ADDRESS_MAX);
                    std::ptr::copy_nonoverlapping(copy as *const u8, address as *mut u8, bytes);
                }
                if !memory::write(address_len, len) {
                    return Next::Result(failure(libc::EFAULT));
                }
            }
        }
    }
    if pending.moved(result) { hand_over(record, shape) } else { Next::Result(pending.done) }
}
