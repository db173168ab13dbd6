//! Which way a call goes.

use super::record::{ALWAYS, Next, Record};
use super::{bounce, data, hooks, present, structures, submit};
use crate::memory::touch::Tries;
use crate::sys::failure;
use crate::userfaultfd;

/// The ways.
enum Way {
    Data(data::Shape),
    Structures(&'static [structures::Argument]),
    Submit,
    Present,
}

fn of(number: usize) -> Way {
    if let Some(shape) = data::shape(number as i64) {
        Way::Data(shape)
    } else if let Some(list) = structures::list(number as i64) {
        Way::Structures(list)
    } else if number as i64 == libc::SYS_io_submit {
        Way::Submit
    } else {
        Way::Present
    }
}

/// Prepares a call that is made with buffers or copies; None where it is not of that kind, or its
/// memory not as it should be.
pub fn copy(record: &mut Record, arguments: [usize; 6]) -> Option<Next> {
    match of(record.number) {
        Way::Data(shape) => data::begin(record, shape, arguments),
        Way::Structures(list) => structures::begin(record, list, arguments),
        Way::Submit | Way::Present => None,
    }
}

/// Whether a call that could not be prepared is made no more than once: what the kernel fails with
/// EFAULT, since the program may not access the memory, it has done all the same.
fn is_once(number: usize, arguments: &[usize; 6]) -> bool {
    match of(number) {
        Way::Data(shape) => shape.is_once(),
        Way::Structures(list) => structures::measure(list, arguments).is_none(),
        Way::Submit | Way::Present => false,
    }
}

/// Prepares a call.
pub fn begin(record: &mut Record, arguments: [usize; 6]) -> Next {
    let [first, second, third, ..] = arguments;
    if record.number as i64 == libc::SYS_ioctl
        && let Some(result) = userfaultfd::request(first, second, third)
    {
        return Next::Result(result.unwrap_or_else(|errno| failure(errno.raw_os_error())));
    }
    // SAFETY: the call is the program's.
    if let Some(result) = unsafe { hooks::change_mappings(record.number, arguments) } {
        return Next::Result(result.unwrap_or_else(|errno| failure(errno.raw_os_error())));
    }
    // SAFETY: the call is the program's.
    if let Some(arguments) = unsafe { hooks::led(record.number, arguments) } {
        return present::call(record, arguments);
    }
    let prepared = match of(record.number) {
        Way::Submit => submit::begin(record, arguments),
        _ => copy(record, arguments),
    };
    if prepared.is_none() {
        // It cannot be done with a buffer: the program's mistake, or something that nobody does.
        bounce::release(record);
        if is_once(record.number, &arguments) {
            record.tries = Tries::LAST;
        }
    }
    prepared.unwrap_or_else(|| present::call(record, arguments))
}

/// Looks at a call that was made.
pub fn finish(record: &mut Record) -> Next {
    if record.finish != ALWAYS {
        return present::again(record);
    }
    match of(record.number) {
        Way::Data(shape) => data::finish(record, shape),
        Way::Structures(list) => structures::finish(record, list),
        Way::Submit => submit::finish(record),
        Way::Present => Next::Result(record.result),
    }
}
