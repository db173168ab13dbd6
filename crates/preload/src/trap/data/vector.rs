//! read and write, and the same with vectors and offsets.

use super::descriptor::{is_file, is_of_messages};
use super::pending::{
    alignment, copy_out, copy_vector, is_usable, new_pending, overhead, pending, replace, total,
};
use super::shape::{Form, Shape};
use crate::memory::vectors::VECTOR_MAX;
use crate::sys::is_failure;
use crate::trap::bounce::{self, Buffer, CHUNK};
use crate::trap::record::{ALWAYS, Next, Record};
use libc::iovec;
use overspill_os::PAGE_SIZE;

/// Prepares a call.
pub fn begin(record: &mut Record, shape: Shape, arguments: [usize; 6]) -> Option<Next> {
    let plain = matches!(shape.form, Form::Plain(_));
    let count = if plain { 1 } else { arguments[2] };
    if count > VECTOR_MAX {
        return None;
    }
    let single = iovec { iov_base: arguments[1] as *mut _, iov_len: arguments[2] };
    let bytes = if plain {
        is_usable(&single, shape.input).then_some(arguments[2])?
    } else {
        total(arguments[1] as *const iovec, count)?
    };
    let alignment =
        if plain { 2 * PAGE_SIZE } else { alignment(arguments[1] as *const iovec, count) };
    let most = if bytes > CHUNK && is_of_messages(arguments[0]) { bytes } else { CHUNK };
    let room = bytes.min(most).checked_add(alignment + overhead(count))?;
    let mut buffer = bounce::claim(record, room)?;
    let pending = new_pending(&mut buffer, arguments)?;
    pending.whole = if plain {
        let whole = buffer.array::<iovec>(1)?;
        // SAFETY: room for one.
        unsafe { whole.write(single) };
        whole
    } else {
        copy_vector(&mut buffer, arguments[1], count, shape.input)?
    };
    (pending.count, pending.most) = (count, most);
    pending.parts = buffer.array::<iovec>(count)?;
    pending.total = total(pending.whole, count)?;
    pending.used = buffer.used();
    pending.goes_on = !shape.input || pending.total > CHUNK && is_file(arguments[0]);
    Some(hand_over(record, shape))
}

/// Makes the call for what has not been moved yet.
fn hand_over(record: &mut Record, shape: Shape) -> Next {
    let mut buffer = Buffer::of(record);
    let pending = pending(record);
    buffer.cut(pending.used);
    let most = (pending.total - pending.done).min(pending.most);
    let (count, bytes) = replace(
        &mut buffer,
        pending.whole,
        pending.count,
        pending.parts,
        pending.done,
        most,
        shape,
    );
    (pending.parts_count, pending.handed) = (count, bytes);
    record.finish = ALWAYS;
    let mut arguments = pending.arguments;
    let offset = match shape.form {
        Form::Plain(offset) => {
            // SAFETY: a plain call has one part.
            let part = unsafe { *pending.parts };
            (arguments[1], arguments[2]) = (part.iov_base as usize, part.iov_len);
            offset
        }
        Form::Vector(offset) => {
            (arguments[1], arguments[2]) = (pending.parts as usize, count);
            offset
        }
        _ => false,
    };
    // -1 is the file's own position (preadv2).
    if offset && arguments[3] != usize::MAX {
        arguments[3] += pending.done;
    }
    Next::Call(arguments)
}

/// After the call.
pub fn finish(record: &mut Record, shape: Shape) -> Next {
    let pending = pending(record);
    let result = record.result;
    if is_failure(result) {
        return pending.end_early(result);
    }
    if shape.input {
        copy_out(
            pending.whole,
            pending.count,
            pending.parts,
            pending.done,
            result.min(pending.handed),
        );
    }
    if pending.moved(result) { hand_over(record, shape) } else { Next::Result(pending.done) }
}
