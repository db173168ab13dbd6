//! io_submit(2): the buffers are locked in memory until the kernel has them.
//!
//! A request that meets an absent page ends early, and the program would get a short result long after. Once submitted,
//! buffers of direct I/O are pinned, and pages that are pinned are not evicted ([`crate::dma`]); the rest is done within the
//! call.

use super::bounce::{self, Buffer};
use super::present::{self, control_blocks};
use super::{ALWAYS, Next, Record, failure, untag};
use crate::pool;
use crate::route::pages_touched;
use overspill_os::seccomp;
use std::ops::Range;

/// Most buffers that are locked for one call; more are made present only.
const MOST: usize = 256;

/// What is kept of a call in its buffer.
#[repr(C)]
#[derive(Clone, Copy)]
struct Locked {
    count: usize,
    ranges: [(usize, usize); MOST],
}

/// Prepares the call; None without memory.
pub fn begin(record: &mut Record, mut arguments: [usize; 6]) -> Option<Next> {
    let place = bounce::claim(record, size_of::<Locked>())?.array::<Locked>(1)?;
    // SAFETY: room for one; all of it is numbers.
    let locked = unsafe {
        place.write_bytes(0, 1);
        &mut *place
    };
    let [_, count, blocks, ..] = arguments;
    present::touch(blocks, count.min(1 << 16) * size_of::<usize>());
    control_blocks(blocks, count, |start, len| {
        present::touch(start, len);
        let Some(range) = pages_touched(start, len).filter(|range| pool::contains(range.start)) else { return };
        let is_new = locked.count < MOST && !pool::is_locked(range.clone());
        if is_new && pool::mlock(range.clone(), false).is_ok() {
            locked.ranges[locked.count] = (range.start, range.end);
            locked.count += 1;
        }
    });
    record.tries += 1;
    record.finish = ALWAYS;
    arguments[5] = seccomp::exempt(arguments[5]);
    Some(Next::Call(arguments))
}

/// After the call.
pub fn finish(record: &mut Record) -> Next {
    // SAFETY: made by `begin`.
    let locked = unsafe { &*Buffer::of(record).first::<Locked>() };
    for (start, end) in &locked.ranges[..locked.count] {
        let _ = pool::munlock(Range { start: *start, end: *end });
    }
    if record.result == failure(libc::EFAULT) && record.tries < present::TRIES {
        bounce::release(record);
        let mut arguments = record.arguments;
        untag(&mut arguments);
        if let Some(next) = begin(record, arguments) {
            return next;
        }
    }
    Next::Result(record.result)
}
