//! What is kept of a call that moves data, and the vectors that it is handed.

use super::shape::{Form, Shape};
use crate::memory::vectors::VECTOR_MAX;
use crate::pool::KernelAccess;
use crate::trap::bounce::Buffer;
use crate::trap::record::{Next, Record};
use crate::{memory, pool};
use libc::{iovec, mmsghdr, msghdr};
use overspill_os::PAGE_SIZE;

/// Where addresses of programs end.
const ADDRESSES_END: usize = 1 << 47;
/// Longest address of a socket, and most bytes of control data.
pub const ADDRESS_MAX: usize = size_of::<libc::sockaddr_storage>();
pub const CONTROL_MAX: usize = 64 << 10;
/// Pieces shorter than this are not for direct I/O.
const DIRECT_MIN: usize = 512;

/// What is kept of a call in its buffer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PendingCall {
    /// The arguments as the program means them.
    pub arguments: [usize; 6],
    /// Plain calls and vectors: the program's vector, and the one that is handed over.
    pub whole: *mut iovec,
    pub count: usize,
    pub parts: *mut iovec,
    pub parts_count: usize,
    /// Bytes to be moved, and that were moved.
    pub total: usize,
    pub done: usize,
    /// Bytes that the parts hold, and may hold at most.
    pub handed: usize,
    pub most: usize,
    /// Whether more parts follow one that was moved as a whole.
    pub goes_on: bool,
    /// What is taken of the buffer without the parts.
    pub used: usize,
    /// Messages: the program's headers, with copies of them as they were, and those that are handed
    /// over.
    pub messages: *mut Message,
    pub headers: *mut mmsghdr,
    pub timeout: [usize; 2],
    /// Bytes that the program has for an address.
    pub room: u32,
}

/// One message.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Message {
    pub original: usize,
    pub before: msghdr,
    pub whole: *mut iovec,
    pub parts_count: usize,
}

/// Bytes that a vector takes of a buffer beside its data: a piece that is for direct I/O begins
/// where it does in its page.
pub fn alignment(vector: *const iovec, count: usize) -> usize {
    let mut bytes = PAGE_SIZE;
    memory::for_each(vector as usize, count, |piece: iovec| {
        let is_aligned = piece.iov_len >= DIRECT_MIN && pool::is_stopped(piece.iov_base as usize);
        bytes += if is_aligned { PAGE_SIZE } else { 0 };
    });
    bytes
}

/// Bytes of a pending beside its data.
pub fn overhead(vectors: usize) -> usize {
    size_of::<PendingCall>() + 2 * vectors * size_of::<iovec>() + 256
}

/// The pending of a call.
pub fn pending(record: &Record) -> &'static mut PendingCall {
    // SAFETY: every function that begins a call puts its pending first into the buffer, which is
    // the calling thread's.
    unsafe { &mut *Buffer::of(record).first::<PendingCall>() }
}

pub fn new_pending(buffer: &mut Buffer, arguments: [usize; 6]) -> Option<&'static mut PendingCall> {
    let place = buffer.array::<PendingCall>(1)?;
    // SAFETY: room for a pending; zeros are null pointers and numbers.
    unsafe {
        place.write_bytes(0, 1);
        (*place).arguments = arguments;
        Some(&mut *place)
    }
}

/// Whether a piece of memory is as the call needs it. What is not managed is the kernel's affair,
/// but for what is no memory at all: the kernel sees that before it begins, and would not see it in
/// a part.
pub fn is_usable(piece: &iovec, input: bool) -> bool {
    let start = piece.iov_base as usize;
    let Some(end) = start.checked_add(piece.iov_len).filter(|end| *end <= ADDRESSES_END) else {
        return false;
    };
    let access = if input { KernelAccess::Write } else { KernelAccess::Read };
    !pool::is_stopped(start) || pool::accessible(start..end, access) >= piece.iov_len
}

/// Copies the program's vector into the buffer; None where it is not one.
pub fn copy_vector(
    buffer: &mut Buffer,
    at: usize,
    count: usize,
    input: bool,
) -> Option<*mut iovec> {
    if count > VECTOR_MAX {
        return None;
    }
    let copy = buffer.array::<iovec>(count)?;
    // SAFETY: room for so many; null pointers and zeros are some.
    let pieces = unsafe {
        copy.write_bytes(0, count);
        std::slice::from_raw_parts_mut(copy, count)
    };
    let all = memory::read_into(at, pieces) == size_of_val(pieces);
    (all && pieces.iter().all(|piece| is_usable(piece, input))).then_some(copy)
}

/// Bytes of a vector of the program's or of ours; None where it cannot be read, or is longer than
/// can be.
pub fn total(vector: *const iovec, count: usize) -> Option<usize> {
    let mut total = Some(0usize);
    let whole = memory::for_each(vector as usize, count, |piece: iovec| {
        total = total.and_then(|sum| sum.checked_add(piece.iov_len));
    });
    total.filter(|_| whole)
}

/// Fills `parts` with what of `whole` comes after `skip` bytes, its managed pieces replaced by
/// pieces of the buffer, for at most `most` bytes. Returns the elements and bytes.
pub fn replace(
    buffer: &mut Buffer,
    whole: *const iovec,
    count: usize,
    parts: *mut iovec,
    mut skip: usize,
    most: usize,
    shape: Shape,
) -> (usize, usize) {
    let (mut n, mut bytes) = (0, 0);
    let aligned = matches!(shape.form, Form::Plain(_) | Form::Vector(_));
    for i in 0..count {
        // SAFETY: `whole` has `count` elements.
        let piece = unsafe { *whole.add(i) };
        let start = piece.iov_base as usize + skip.min(piece.iov_len);
        let left = piece.iov_len - skip.min(piece.iov_len);
        skip -= skip.min(piece.iov_len);
        let mut len = left.min(most - bytes);
        let mut base = start;
        if pool::is_stopped(start) && len == 0 {
            // Nothing is moved there, but the call would be stopped for the address.
            base = parts as usize;
        } else if pool::is_stopped(start) {
            let align = if aligned && len >= DIRECT_MIN { PAGE_SIZE } else { 1 };
            // Whole pages of a piece that does not fit, so that what follows is aligned as well.
            let room = buffer.rest().saturating_sub(PAGE_SIZE);
            if room < len {
                len = room / PAGE_SIZE * PAGE_SIZE;
            }
            let Some(place) = buffer.take(len, align, start) else { break };
            if !shape.input {
                // SAFETY: the program may read these bytes, and the place is as long.
                unsafe { std::ptr::copy_nonoverlapping(start as *const u8, place as *mut u8, len) };
            }
            base = place;
        }
        // SAFETY: `parts` has as many elements as `whole`.
        unsafe { parts.add(n).write(iovec { iov_base: base as *mut _, iov_len: len }) };
        n += 1;
        bytes += len;
        if len < left {
            break;
        }
    }
    (n, bytes)
}

/// Copies `len` bytes of input out of the parts, which began `skip` bytes into `whole`.
pub fn copy_out(whole: *const iovec, count: usize, parts: *const iovec, skip: usize, len: usize) {
    let (mut skip, mut len, mut part) = (skip, len, 0);
    for i in 0..count {
        // SAFETY: both have as many elements as `replace` went through.
        let piece = unsafe { *whole.add(i) };
        let (start, left) = (
            piece.iov_base as usize + skip.min(piece.iov_len),
            piece.iov_len - skip.min(piece.iov_len),
        );
        skip -= skip.min(piece.iov_len);
        if len == 0 {
            break;
        }
        // SAFETY: as above.
        let from = unsafe { *parts.add(part) };
        part += 1;
        let bytes = left.min(from.iov_len).min(len);
        if from.iov_base as usize != start {
            // SAFETY: the kernel has filled these bytes, and the program may write to the others.
            unsafe {
                std::ptr::copy_nonoverlapping(from.iov_base as *const u8, start as *mut u8, bytes)
            };
        }
        len -= bytes;
    }
}

impl PendingCall {
    /// Notes that so many bytes of what was handed over were moved; whether the call is made again
    /// for the rest.
    pub fn moved(&mut self, bytes: usize) -> bool {
        self.done += bytes;
        self.goes_on && bytes == self.handed && bytes > 0 && self.done < self.total
    }

    /// A part failed: the call tells what was transferred before it, else the failure.
    pub fn end_early(&self, failure: usize) -> Next {
        Next::Result(if self.done > 0 { self.done } else { failure })
    }
}

/// Whether the program may access managed memory in this way.
pub fn usable(start: usize, len: usize, write: bool) -> Option<()> {
    let access = if write { KernelAccess::Write } else { KernelAccess::Read };
    (pool::accessible(start..start.checked_add(len)?, access) >= len).then_some(())
}
