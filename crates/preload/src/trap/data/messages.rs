//! sendmsg, recvmsg, sendmmsg and recvmmsg: each message in copies of its header and of all that it
//! names.

use super::descriptor::is_stream;
use super::pending::{
    ADDRESS_MAX, CONTROL_MAX, Message, PendingCall, copy_out, copy_vector, new_pending, pending,
    replace, total, usable,
};
use super::shape::{Form, Shape};
use crate::memory::vectors::VECTOR_MAX;
use crate::sys::{failure, is_failure};
use crate::trap::bounce::{self, Buffer, CHUNK};
use crate::trap::record::{ALWAYS, Next, Record};
use crate::{memory, pool};
use libc::{iovec, mmsghdr, msghdr};
use overspill_os::PAGE_SIZE;
use std::mem::offset_of;

/// The messages of a call, where the program has them.
struct Messages {
    fd: usize,
    list: usize,
    /// Bytes of an element of the list.
    each: usize,
    /// Whether the call has a list, not one message.
    many: bool,
}

impl Messages {
    /// Those of a call with these arguments.
    fn of(shape: Shape, [fd, list, ..]: [usize; 6]) -> Messages {
        let many = shape.form == Form::Messages;
        let each = if many { size_of::<mmsghdr>() } else { size_of::<msghdr>() };
        Messages { fd, list, each, many }
    }

    /// Where a message is.
    fn at(&self, i: usize) -> usize {
        self.list + i * self.each
    }

    /// The header of a message.
    fn header(&self, i: usize) -> Option<msghdr> {
        let at = self.at(i);
        if pool::is_stopped(at) {
            usable(at, self.each, true)?;
        }
        memory::read::<msghdr>(at)
    }

    /// How many bytes of a message that has so many go at once: a single one on a stream may go in
    /// parts.
    fn at_once(&self, bytes: usize) -> usize {
        if self.many || bytes <= CHUNK || !is_stream(self.fd) { bytes } else { CHUNK }
    }

    /// How much room copies of the first of them take, and how many these are: as many as fit, and
    /// one in any case. None where one of them is not as it should be.
    fn measure(&self, wanted: usize) -> Option<(usize, usize)> {
        let (mut room, mut count) = (size_of::<PendingCall>() + 256, 0);
        for i in 0..wanted {
            let header = self.header(i)?;
            let vectors = header.msg_iovlen;
            if vectors > VECTOR_MAX || header.msg_controllen > CONTROL_MAX {
                return None;
            }
            let beside = 2 * vectors * size_of::<iovec>()
                + header.msg_controllen
                + ADDRESS_MAX
                + size_of::<Message>()
                + size_of::<mmsghdr>()
                + 256;
            let data = self.at_once(total(header.msg_iov, vectors)?);
            let more = data.checked_add(beside + room)?;
            if count > 0 && more > CHUNK {
                break;
            }
            room = more;
            count += 1;
        }
        Some((room, count))
    }

    /// Copies message `i` and all that it names, into the buffer and the pending.
    fn copy(
        &self,
        i: usize,
        shape: Shape,
        buffer: &mut Buffer,
        pending: &mut PendingCall,
    ) -> Option<()> {
        let before = self.header(i)?;
        let vectors = before.msg_iovlen;
        let whole = copy_vector(buffer, before.msg_iov as usize, vectors, shape.input)?;
        let parts = buffer.array::<iovec>(vectors)?;
        let mut copy = before;
        if pool::is_stopped(before.msg_name as usize) {
            let len = (before.msg_namelen as usize).min(ADDRESS_MAX);
            let name = before.msg_name as usize;
            copy.msg_name = copy_block(buffer, name, len, ADDRESS_MAX, shape.input)? as *mut _;
        }
        if pool::is_stopped(before.msg_control as usize) {
            let len = before.msg_controllen;
            let control = before.msg_control as usize;
            copy.msg_control = copy_block(buffer, control, len, len, shape.input)? as *mut _;
        }
        let bytes = total(whole, vectors)?;
        let most = self.at_once(bytes);
        pending.used = buffer.used();
        let (parts_count, handed) = replace(buffer, whole, vectors, parts, 0, most, shape);
        (copy.msg_iov, copy.msg_iovlen) = (parts, parts_count);
        (pending.total, pending.handed) = (bytes, handed);
        let original = self.at(i);
        // SAFETY: the pending has room for so many.
        unsafe {
            pending.messages.add(i).write(Message {
                original,
                before,
                whole,
                parts_count: vectors,
            });
            let place = pending.headers.add(i);
            place.write(std::mem::zeroed());
            (*place).msg_hdr = copy;
        }
        Some(())
    }
}

/// Prepares a call.
pub fn begin(record: &mut Record, shape: Shape, mut arguments: [usize; 6]) -> Option<Next> {
    let messages = Messages::of(shape, arguments);
    let many = messages.many;
    let flags = arguments[if many { 3 } else { 2 }];
    if !shape.input && flags & libc::MSG_ZEROCOPY as usize != 0 {
        return None;
    }
    // 1. How much room do they take?
    let wanted = if many { (arguments[2] as u32 as usize).min(VECTOR_MAX) } else { 1 };
    let (room, count) = messages.measure(wanted)?;
    let mut buffer = bounce::claim(record, room + PAGE_SIZE)?;
    let pending = new_pending(&mut buffer, arguments)?;
    pending.count = count;
    pending.messages = buffer.array::<Message>(count)?;
    pending.headers = buffer.array::<mmsghdr>(count)?;
    // 2. A copy of each.
    for i in 0..count {
        messages.copy(i, shape, &mut buffer, pending)?;
    }
    pending.goes_on = !many && !shape.input && pending.handed < pending.total;
    // 3. The call.
    arguments[1] = pending.headers as usize;
    if many {
        arguments[2] = count;
        if pool::is_stopped(arguments[4]) && shape.input {
            usable(arguments[4], size_of::<libc::timespec>(), true)?;
            let copy = buffer.array::<libc::timespec>(1)?;
            // SAFETY: the program may read it.
            unsafe { copy.write((arguments[4] as *const libc::timespec).read_unaligned()) };
            pending.timeout = [arguments[4], copy as usize];
            arguments[4] = copy as usize;
        }
    }
    record.finish = ALWAYS;
    Some(Next::Call(arguments))
}

/// A copy of `len` bytes in a block of `room`.
fn copy_block(
    buffer: &mut Buffer,
    start: usize,
    len: usize,
    room: usize,
    write: bool,
) -> Option<*mut u8> {
    usable(start, len, write)?;
    let copy = buffer.array::<u8>(room)?;
    // SAFETY: the program may read so many bytes, and the block has room for them.
    unsafe { std::ptr::copy_nonoverlapping(start as *const u8, copy, len) };
    Some(copy)
}

/// After the call.
pub fn finish(record: &mut Record, shape: Shape) -> Next {
    let many = shape.form == Form::Messages;
    let pending = pending(record);
    let result = record.result;
    if pending.timeout[0] != 0 {
        // SAFETY: the program may write there, as was checked.
        unsafe {
            (pending.timeout[0] as *mut libc::timespec)
                .write_unaligned((pending.timeout[1] as *const libc::timespec).read())
        };
    }
    if is_failure(result) {
        return pending.end_early(result);
    }
    let mut written = true;
    for i in 0..if many { result.min(pending.count) } else { 1 } {
        // SAFETY: made by [`begin`]; the program may write to all of it that is managed, as was
        // checked.
        unsafe {
            let Message { original, before, whole, parts_count } = *pending.messages.add(i);
            let mmsghdr { msg_hdr: after, msg_len } = *pending.headers.add(i);
            if many {
                written &= memory::write(original + offset_of!(mmsghdr, msg_len), msg_len);
            }
            if !shape.input {
                continue;
            }
            let len = if many { msg_len as usize } else { result };
            let handed = total(after.msg_iov, after.msg_iovlen).unwrap_or(0);
            copy_out(whole, parts_count, after.msg_iov, 0, len.min(handed));
            let copy = |from: usize, to: usize, len: usize| {
                if from != to {
                    std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len);
                }
            };
            let name =
                (after.msg_namelen as usize).min(before.msg_namelen as usize).min(ADDRESS_MAX);
            copy(after.msg_name as usize, before.msg_name as usize, name);
            let control = after.msg_controllen.min(before.msg_controllen);
            copy(after.msg_control as usize, before.msg_control as usize, control);
            written &= memory::write(original + offset_of!(msghdr, msg_namelen), after.msg_namelen)
                && memory::write(
                    original + offset_of!(msghdr, msg_controllen),
                    after.msg_controllen,
                )
                && memory::write(original + offset_of!(msghdr, msg_flags), after.msg_flags);
        }
    }
    if !written {
        return Next::Result(failure(libc::EFAULT));
    }
    if pending.moved(result) {
        return send_more(record, shape);
    }
    Next::Result(if many { result } else { pending.done })
}

/// The rest of a message on a stream: bytes without control data, which went with the first of
/// them.
fn send_more(record: &mut Record, shape: Shape) -> Next {
    let mut buffer = Buffer::of(record);
    let pending = pending(record);
    // SAFETY: made by [`begin`], one of each.
    unsafe {
        let Message { whole, parts_count, .. } = *pending.messages;
        let header = &mut (*pending.headers).msg_hdr;
        buffer.cut(pending.used);
        let most = (pending.total - pending.done).min(pending.handed);
        let (count, bytes) =
            replace(&mut buffer, whole, parts_count, header.msg_iov, pending.done, most, shape);
        (header.msg_iovlen, pending.handed) = (count, bytes);
        (header.msg_control, header.msg_controllen) = (std::ptr::null_mut(), 0);
        let [fd, _, flags, ..] = pending.arguments;
        Next::Call([fd, pending.headers as usize, flags, 0, 0, 0])
    }
}
