//! Calls that read and write data: through a buffer.
//!
//! What is unmanaged of a vector stays as it is, what is managed has a piece of the buffer in its place. Input is copied out
//! when the call is over, output is copied in before. More than fits in a buffer ([`CHUNK`]) goes in parts where that cannot be
//! told from one call: output, and input from files and with MSG_WAITALL. Pieces begin at the same place in their page as the
//! memory they stand for, so that direct I/O works.

use super::bounce::{self, Buffer, CHUNK};
use super::present::{self, Access};
use super::{ALWAYS, Next, Record, is_failure};
use crate::{pool, sys};
use libc::{iovec, mmsghdr, msghdr};
use overspill_os::PAGE_SIZE;
use syscalls::{Sysno, raw_syscall};

/// How a call is handed its data.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    form: Form,
    input: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// A buffer and its length; true with an offset behind it.
    Plain(bool),
    /// A vector and its length; true with an offset behind it.
    Vector(bool),
    /// sendto and recvfrom.
    Address,
    /// sendmsg and recvmsg.
    Message,
    /// sendmmsg and recvmmsg.
    Messages,
}

/// The shape of a call that moves data; None of any other.
pub fn shape(number: i64) -> Option<Shape> {
    let (form, input) = match number {
        libc::SYS_read => (Form::Plain(false), true),
        libc::SYS_write => (Form::Plain(false), false),
        libc::SYS_pread64 => (Form::Plain(true), true),
        libc::SYS_pwrite64 => (Form::Plain(true), false),
        libc::SYS_readv => (Form::Vector(false), true),
        libc::SYS_writev => (Form::Vector(false), false),
        libc::SYS_preadv | libc::SYS_preadv2 => (Form::Vector(true), true),
        libc::SYS_pwritev | libc::SYS_pwritev2 => (Form::Vector(true), false),
        libc::SYS_recvfrom => (Form::Address, true),
        libc::SYS_sendto => (Form::Address, false),
        libc::SYS_recvmsg => (Form::Message, true),
        libc::SYS_sendmsg => (Form::Message, false),
        libc::SYS_recvmmsg => (Form::Messages, true),
        libc::SYS_sendmmsg => (Form::Messages, false),
        _ => return None,
    };
    Some(Shape { form, input })
}

/// Most elements of a vector (UIO_MAXIOV), and of what else is counted here.
const VECTOR_MAX: usize = 1024;
/// Longest address of a socket, and most bytes of control data.
const ADDRESS_MAX: usize = size_of::<libc::sockaddr_storage>();
const CONTROL_MAX: usize = 64 << 10;
/// Pieces shorter than this are not for direct I/O.
const DIRECT_MIN: usize = 512;

/// What is kept of a call in its buffer.
#[repr(C)]
#[derive(Clone, Copy)]
struct Job {
    /// The arguments as the program means them.
    arguments: [usize; 6],
    /// Plain calls and vectors: the program's vector, and the one that is handed over.
    whole: *mut iovec,
    count: usize,
    parts: *mut iovec,
    parts_count: usize,
    /// Bytes to be moved, and that were moved.
    total: usize,
    done: usize,
    /// Bytes that the parts hold.
    handed: usize,
    /// Whether more parts follow one that was moved as a whole.
    goes_on: bool,
    /// What is taken of the buffer without the parts.
    used: usize,
    /// Messages: the program's headers, with copies of them as they were, and those that are handed over.
    messages: *mut Message,
    headers: *mut mmsghdr,
    timeout: [usize; 2],
}

/// One message.
#[repr(C)]
#[derive(Clone, Copy)]
struct Message {
    original: usize,
    before: msghdr,
    whole: *mut iovec,
    parts_count: usize,
}

/// Bytes of a job beside its data.
fn overhead(vectors: usize) -> usize {
    size_of::<Job>() + 2 * vectors * size_of::<iovec>() + 256
}

/// Prepares a call; None where its memory is not as it should be.
pub fn begin(record: &mut Record, shape: Shape, arguments: [usize; 6]) -> Option<Next> {
    match shape.form {
        Form::Plain(_) | Form::Vector(_) => begin_vector(record, shape, arguments),
        Form::Address => begin_address(record, shape, arguments),
        Form::Message | Form::Messages => begin_messages(record, shape, arguments),
    }
}

/// After the call.
pub fn finish(record: &mut Record, shape: Shape) -> Next {
    match shape.form {
        Form::Plain(_) | Form::Vector(_) => finish_vector(record, shape),
        Form::Address => finish_address(record, shape),
        Form::Message | Form::Messages => finish_messages(record, shape),
    }
}

/// The job of a call.
fn job(record: &Record) -> &'static mut Job {
    // SAFETY: every function that begins a call puts its job first into the buffer, which is the calling thread's.
    unsafe { &mut *Buffer::of(record).first::<Job>() }
}

fn new_job(buffer: &mut Buffer, arguments: [usize; 6]) -> Option<&'static mut Job> {
    let place = buffer.array::<Job>(1)?;
    // SAFETY: room for a job; zeros are null pointers and numbers.
    unsafe {
        place.write_bytes(0, 1);
        (*place).arguments = arguments;
        Some(&mut *place)
    }
}

/// Whether a piece of memory is as the call needs it; what is not managed is the kernel's affair.
fn is_usable(piece: &iovec, input: bool) -> bool {
    let start = piece.iov_base as usize;
    let access = if input { Access::Write } else { Access::Read };
    !pool::contains(start) || pool::accessible(start..start.saturating_add(piece.iov_len), access) >= piece.iov_len
}

/// Copies the program's vector into the buffer; None where it is not one.
fn copy_vector(buffer: &mut Buffer, at: usize, count: usize, input: bool) -> Option<*mut iovec> {
    if count > VECTOR_MAX || !present::readable::<iovec>(at, count) {
        return None;
    }
    let copy = buffer.array::<iovec>(count)?;
    for i in 0..count {
        // SAFETY: the vector can be read, and the copy has as many elements.
        let piece = unsafe {
            copy.add(i).write((at as *const iovec).add(i).read_unaligned());
            &*copy.add(i)
        };
        if !is_usable(piece, input) {
            return None;
        }
    }
    Some(copy)
}

/// Bytes of a vector; None where it is longer than can be.
fn total(vector: *const iovec, count: usize) -> Option<usize> {
    // SAFETY: a vector of ours.
    (0..count).try_fold(0usize, |sum, i| sum.checked_add(unsafe { (*vector.add(i)).iov_len }))
}

/// Fills `parts` with what of `whole` comes after `skip` bytes, its managed pieces replaced by pieces of the buffer, for at most
/// `most` bytes. Returns the elements and bytes.
fn replace(
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
        if pool::contains(start) && len == 0 {
            // Nothing is moved there, but the call would be stopped for the address.
            base = parts as usize;
        } else if pool::contains(start) {
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
fn copy_out(whole: *const iovec, count: usize, parts: *const iovec, skip: usize, len: usize) {
    let (mut skip, mut len, mut part) = (skip, len, 0);
    for i in 0..count {
        // SAFETY: both have as many elements as `replace` went through.
        let piece = unsafe { *whole.add(i) };
        let (start, left) =
            (piece.iov_base as usize + skip.min(piece.iov_len), piece.iov_len - skip.min(piece.iov_len));
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
            unsafe { std::ptr::copy_nonoverlapping(from.iov_base as *const u8, start as *mut u8, bytes) };
        }
        len -= bytes;
    }
}

// ---- read, write, and with vectors and offsets.

fn begin_vector(record: &mut Record, shape: Shape, arguments: [usize; 6]) -> Option<Next> {
    let plain = matches!(shape.form, Form::Plain(_));
    let count = if plain { 1 } else { arguments[2] };
    if count > VECTOR_MAX {
        return None;
    }
    let single = iovec { iov_base: arguments[1] as *mut _, iov_len: arguments[2] };
    let bytes = if plain {
        is_usable(&single, shape.input).then_some(arguments[2])?
    } else {
        present::readable::<iovec>(arguments[1], count).then_some(())?;
        total(arguments[1] as *const iovec, count)?
    };
    // Each piece may need a page more to begin where it should.
    let room = bytes.min(CHUNK) + (count * PAGE_SIZE).min(CHUNK / 2) + PAGE_SIZE;
    let mut buffer = bounce::claim(record, overhead(count) + room)?;
    let job = new_job(&mut buffer, arguments)?;
    job.whole = if plain {
        let whole = buffer.array::<iovec>(1)?;
        // SAFETY: room for one.
        unsafe { whole.write(single) };
        whole
    } else {
        copy_vector(&mut buffer, arguments[1], count, shape.input)?
    };
    job.count = count;
    job.parts = buffer.array::<iovec>(count)?;
    job.total = total(job.whole, count)?;
    job.used = buffer.used();
    job.goes_on = !shape.input || job.total > CHUNK && is_file(arguments[0]);
    Some(hand_over(record, shape))
}

/// Makes the call for what has not been moved yet.
fn hand_over(record: &mut Record, shape: Shape) -> Next {
    let mut buffer = Buffer::of(record);
    let job = job(record);
    buffer.cut(job.used);
    let most = (job.total - job.done).min(CHUNK);
    let (count, bytes) = replace(&mut buffer, job.whole, job.count, job.parts, job.done, most, shape);
    (job.parts_count, job.handed) = (count, bytes);
    record.finish = ALWAYS;
    let mut arguments = job.arguments;
    let offset = match shape.form {
        Form::Plain(offset) => {
            // SAFETY: a plain call has one part.
            let part = unsafe { *job.parts };
            (arguments[1], arguments[2]) = (part.iov_base as usize, part.iov_len);
            offset
        }
        Form::Vector(offset) => {
            (arguments[1], arguments[2]) = (job.parts as usize, count);
            offset
        }
        _ => false,
    };
    // -1 is the file's own position (preadv2).
    if offset && arguments[3] != usize::MAX {
        arguments[3] += job.done;
    }
    Next::Call(arguments)
}

impl Job {
    /// A part failed: the call tells what was transferred before it, else the failure.
    fn end_early(&self, failure: usize) -> Next {
        Next::Result(if self.done > 0 { self.done } else { failure })
    }
}

fn finish_vector(record: &mut Record, shape: Shape) -> Next {
    let job = job(record);
    let result = record.result;
    if is_failure(result) {
        return job.end_early(result);
    }
    if shape.input {
        copy_out(job.whole, job.count, job.parts, job.done, result.min(job.handed));
    }
    job.done += result;
    if job.goes_on && result == job.handed && result > 0 && job.done < job.total {
        return hand_over(record, shape);
    }
    Next::Result(job.done)
}

/// Whether a descriptor is that of a file or a disk, from which a read is as long as it can be.
fn is_file(fd: usize) -> bool {
    // SAFETY: a zeroed stat is valid, and the kernel fills it.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        let ret = raw_syscall!(Sysno::fstat, fd, &raw mut stat);
        sys::check(ret).is_ok() && matches!(stat.st_mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFBLK)
    }
}

/// Whether a descriptor is a socket on which data are a stream, so that parts do not show.
fn is_stream(fd: usize) -> bool {
    let (mut kind, mut len) = (0i32, size_of::<i32>() as u32);
    // SAFETY: the kernel writes one integer.
    let ret =
        unsafe { raw_syscall!(Sysno::getsockopt, fd, libc::SOL_SOCKET, libc::SO_TYPE, &raw mut kind, &raw mut len) };
    sys::check(ret).is_ok() && kind == libc::SOCK_STREAM
}

// ---- sendto, recvfrom.

fn begin_address(record: &mut Record, shape: Shape, arguments: [usize; 6]) -> Option<Next> {
    let [fd, start, len, flags, address, address_len] = arguments;
    if !shape.input && flags & libc::MSG_ZEROCOPY as usize != 0 {
        return None;
    }
    let single = iovec { iov_base: start as *mut _, iov_len: len };
    is_usable(&single, shape.input).then_some(())?;
    let parts = len > CHUNK && is_stream(fd);
    let room = if parts { CHUNK } else { len };
    let mut buffer = bounce::claim(record, overhead(1) + room + ADDRESS_MAX + 2 * PAGE_SIZE)?;
    let job = new_job(&mut buffer, arguments)?;
    job.whole = buffer.array::<iovec>(1)?;
    job.parts = buffer.array::<iovec>(1)?;
    // SAFETY: room for one.
    unsafe { job.whole.write(single) };
    (job.count, job.total) = (1, len);
    job.goes_on = parts && (!shape.input || flags & libc::MSG_WAITALL as usize != 0);
    // The address and its length: as they are where they are not managed.
    job.timeout = [address, address_len];
    if shape.input {
        if pool::contains(address_len) {
            usable(address_len, size_of::<u32>(), true)?;
            let copy = buffer.array::<u32>(1)?;
            // SAFETY: the program may read it.
            unsafe { copy.write((address_len as *const u32).read_unaligned()) };
            job.timeout[1] = copy as usize;
        }
        if pool::contains(address) && job.timeout[1] != 0 {
            // SAFETY: the program's length, or the copy of it.
            let len = unsafe { (job.timeout[1] as *const u32).read_unaligned() } as usize;
            usable(address, len.min(ADDRESS_MAX), true)?;
            job.timeout[0] = buffer.array::<u8>(ADDRESS_MAX)? as usize;
        }
    } else if pool::contains(address) {
        let len = address_len as u32 as usize;
        if len > ADDRESS_MAX {
            return Some(Next::Result(super::failure(libc::EINVAL)));
        }
        usable(address, len, false)?;
        let copy = buffer.array::<u8>(ADDRESS_MAX)?;
        // SAFETY: the program may read so many bytes.
        unsafe { std::ptr::copy_nonoverlapping(address as *const u8, copy, len) };
        job.timeout[0] = copy as usize;
    }
    job.used = buffer.used();
    Some(hand_over_address(record, shape))
}

/// Whether the program may access managed memory in this way.
fn usable(start: usize, len: usize, write: bool) -> Option<()> {
    let access = if write { Access::Write } else { Access::Read };
    (pool::accessible(start..start.checked_add(len)?, access) >= len).then_some(())
}

fn hand_over_address(record: &mut Record, shape: Shape) -> Next {
    let mut buffer = Buffer::of(record);
    let job = job(record);
    buffer.cut(job.used);
    let most = if job.goes_on { (job.total - job.done).min(CHUNK) } else { job.total.min(buffer.rest()) };
    let (_, bytes) = replace(&mut buffer, job.whole, 1, job.parts, job.done, most, shape);
    job.handed = bytes;
    record.finish = ALWAYS;
    // SAFETY: one part.
    let part = unsafe { *job.parts };
    let [fd, _, _, flags, _, _] = job.arguments;
    Next::Call([fd, part.iov_base as usize, part.iov_len, flags, job.timeout[0], job.timeout[1]])
}

fn finish_address(record: &mut Record, shape: Shape) -> Next {
    let job = job(record);
    let result = record.result;
    if is_failure(result) {
        return job.end_early(result);
    }
    if shape.input {
        copy_out(job.whole, 1, job.parts, job.done, result.min(job.handed));
        let [_, _, _, _, address, address_len] = job.arguments;
        if job.timeout[1] != 0 {
            // SAFETY: the kernel has written the length; the program may write to both, as was checked.
            unsafe {
                let len = (job.timeout[1] as *const u32).read_unaligned();
                if job.timeout[0] != address {
                    let before =
                        if job.timeout[1] == address_len { len } else { (address_len as *const u32).read_unaligned() };
                    let bytes = (len.min(before) as usize).min(ADDRESS_MAX);
                    std::ptr::copy_nonoverlapping(job.timeout[0] as *const u8, address as *mut u8, bytes);
                }
                if job.timeout[1] != address_len {
                    (address_len as *mut u32).write_unaligned(len);
                }
            }
        }
    }
    job.done += result;
    if job.goes_on && result == job.handed && result > 0 && job.done < job.total {
        return hand_over_address(record, shape);
    }
    Next::Result(job.done)
}

// ---- sendmsg, recvmsg, sendmmsg, recvmmsg.

fn begin_messages(record: &mut Record, shape: Shape, mut arguments: [usize; 6]) -> Option<Next> {
    let many = shape.form == Form::Messages;
    let flags = arguments[if many { 3 } else { 2 }];
    if !shape.input && flags & libc::MSG_ZEROCOPY as usize != 0 {
        return None;
    }
    let wanted = if many { (arguments[2] as u32 as usize).min(VECTOR_MAX) } else { 1 };
    let (list, each) = (arguments[1], if many { size_of::<mmsghdr>() } else { size_of::<msghdr>() });
    let header = |i: usize| {
        let at = list + i * each;
        // SAFETY: it can be read.
        usable_or_foreign(at, each, true).map(|()| unsafe { (at as *const msghdr).read_unaligned() })
    };
    // 1. How much room do they take? As many as fit, and one in any case.
    let (mut room, mut count) = (size_of::<Job>() + 256, 0);
    for i in 0..wanted {
        let header = header(i)?;
        let vectors = header.msg_iovlen;
        if vectors > VECTOR_MAX
            || header.msg_controllen > CONTROL_MAX
            || !present::readable::<iovec>(header.msg_iov as usize, vectors) && vectors > 0
        {
            return None;
        }
        let bytes = total(header.msg_iov, vectors)?;
        let bytes = if many || bytes <= CHUNK || !is_stream(arguments[0]) { bytes } else { CHUNK };
        let more = bytes
            + 2 * vectors * size_of::<iovec>()
            + header.msg_controllen
            + ADDRESS_MAX
            + size_of::<Message>()
            + size_of::<mmsghdr>()
            + 256;
        if count > 0 && room + more > CHUNK {
            break;
        }
        room += more;
        count += 1;
    }
    let mut buffer = bounce::claim(record, room + PAGE_SIZE)?;
    let job = new_job(&mut buffer, arguments)?;
    job.count = count;
    job.messages = buffer.array::<Message>(count)?;
    job.headers = buffer.array::<mmsghdr>(count)?;
    // 2. A copy of each.
    for i in 0..count {
        let before = header(i)?;
        let vectors = before.msg_iovlen;
        let whole = copy_vector(&mut buffer, before.msg_iov as usize, vectors, shape.input)?;
        let parts = buffer.array::<iovec>(vectors)?;
        let mut copy = before;
        if pool::contains(before.msg_name as usize) {
            let len = (before.msg_namelen as usize).min(ADDRESS_MAX);
            copy.msg_name = copy_block(&mut buffer, before.msg_name as usize, len, ADDRESS_MAX, shape.input)? as *mut _;
        }
        if pool::contains(before.msg_control as usize) {
            let len = before.msg_controllen;
            copy.msg_control = copy_block(&mut buffer, before.msg_control as usize, len, len, shape.input)? as *mut _;
        }
        let bytes = total(whole, vectors)?;
        let most = if many || bytes <= CHUNK || !is_stream(arguments[0]) { bytes } else { CHUNK };
        let (parts_count, handed) = replace(&mut buffer, whole, vectors, parts, 0, most, shape);
        (copy.msg_iov, copy.msg_iovlen) = (parts, parts_count);
        (job.total, job.handed) = (bytes, handed);
        // SAFETY: room for so many.
        unsafe {
            job.messages.add(i).write(Message { original: list + i * each, before, whole, parts_count: vectors });
            let place = job.headers.add(i);
            place.write(std::mem::zeroed());
            (*place).msg_hdr = copy;
        }
    }
    job.goes_on = !many && !shape.input && job.handed < job.total;
    // 3. The call.
    arguments[1] = job.headers as usize;
    if many {
        arguments[2] = count;
        if pool::contains(arguments[4]) && shape.input {
            usable(arguments[4], size_of::<libc::timespec>(), true)?;
            let copy = buffer.array::<libc::timespec>(1)?;
            // SAFETY: the program may read it.
            unsafe { copy.write((arguments[4] as *const libc::timespec).read_unaligned()) };
            job.timeout = [arguments[4], copy as usize];
            arguments[4] = copy as usize;
        }
    }
    record.finish = ALWAYS;
    Some(Next::Call(arguments))
}

fn usable_or_foreign(start: usize, len: usize, write: bool) -> Option<()> {
    if pool::contains(start) { usable(start, len, write) } else { (start != 0).then_some(()) }
}

/// A copy of `len` bytes in a block of `room`.
fn copy_block(buffer: &mut Buffer, start: usize, len: usize, room: usize, write: bool) -> Option<*mut u8> {
    usable(start, len, write)?;
    let copy = buffer.array::<u8>(room)?;
    // SAFETY: the program may read so many bytes, and the block has room for them.
    unsafe { std::ptr::copy_nonoverlapping(start as *const u8, copy, len) };
    Some(copy)
}

fn finish_messages(record: &mut Record, shape: Shape) -> Next {
    let many = shape.form == Form::Messages;
    let job = job(record);
    let result = record.result;
    if job.timeout[0] != 0 {
        // SAFETY: the program may write there, as was checked.
        unsafe {
            (job.timeout[0] as *mut libc::timespec).write_unaligned((job.timeout[1] as *const libc::timespec).read())
        };
    }
    if is_failure(result) {
        return job.end_early(result);
    }
    for i in 0..if many { result.min(job.count) } else { 1 } {
        // SAFETY: made by `begin_messages`; the program may write to all of it, as was checked.
        unsafe {
            let Message { original, before, whole, parts_count } = *job.messages.add(i);
            let mmsghdr { msg_hdr: after, msg_len } = *job.headers.add(i);
            if many {
                (*(original as *mut mmsghdr)).msg_len = msg_len;
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
            let name = (after.msg_namelen as usize).min(before.msg_namelen as usize).min(ADDRESS_MAX);
            copy(after.msg_name as usize, before.msg_name as usize, name);
            let control = after.msg_controllen.min(before.msg_controllen);
            copy(after.msg_control as usize, before.msg_control as usize, control);
            let header = &mut *(original as *mut msghdr);
            (header.msg_namelen, header.msg_controllen) = (after.msg_namelen, after.msg_controllen);
            header.msg_flags = after.msg_flags;
        }
    }
    job.done += result;
    if job.goes_on && result == job.handed && job.done < job.total {
        return send_more(record, shape);
    }
    Next::Result(if many { result } else { job.done })
}

/// The rest of a message on a stream: bytes without control data, which went with the first of them.
fn send_more(record: &mut Record, shape: Shape) -> Next {
    let mut buffer = Buffer::of(record);
    let job = job(record);
    // SAFETY: made by `begin_messages`, one of each.
    unsafe {
        let Message { whole, parts_count, .. } = *job.messages;
        let header = &mut (*job.headers).msg_hdr;
        // The data are the last block of the buffer.
        let used = buffer.used() - job.handed;
        buffer.cut(used);
        let most = (job.total - job.done).min(job.handed);
        let (count, bytes) = replace(&mut buffer, whole, parts_count, header.msg_iov, job.done, most, shape);
        (header.msg_iovlen, job.handed) = (count, bytes);
        (header.msg_control, header.msg_controllen) = (std::ptr::null_mut(), 0);
        let [fd, _, flags, ..] = job.arguments;
        Next::Call([fd, job.headers as usize, flags, 0, 0, 0])
    }
}
