//! io_submit(2): the buffers are held in memory until the kernel has them.
//!
//! A request that meets an absent page ends early, and the program would get a short result long
//! after. Once submitted, buffers of direct I/O are pinned, and pages that are pinned are not
//! evicted ([`crate::dma`]); the rest is done within the call.
//!
//! The kernel says how many requests it has taken, and not why it has not taken the next: perhaps
//! what describes that was absent, as there were too many to hold. So the others are submitted by
//! themselves, and what becomes of those tells.

use super::bounce::{self, Buffer};
use super::present::control_blocks;
use super::record::{ALWAYS, Next, Record, untag};
use crate::memory::touch::{Tries, touch};
use crate::pool;
use crate::route::pages_touched;
use crate::sys::{failure, is_failure};
use overspill_os::seccomp;
use std::ops::Range;

/// Most buffers that are held for one call; more are made present only.
const MOST: usize = 256;

/// What is kept of a call in its buffer.
#[repr(C)]
#[derive(Clone, Copy)]
struct HeldBuffers {
    /// Requests that the kernel has taken before.
    done: usize,
    count: usize,
    ranges: [(usize, usize); MOST],
}

/// Prepares the call; None without memory.
pub fn begin(record: &mut Record, arguments: [usize; 6]) -> Option<Next> {
    submit(record, arguments, 0)
}

/// Prepares the call for all requests but the first `done`.
fn submit(record: &mut Record, mut arguments: [usize; 6], done: usize) -> Option<Next> {
    let place = bounce::claim(record, size_of::<HeldBuffers>())?.array::<HeldBuffers>(1)?;
    // SAFETY: room for one; all of it is numbers.
    let held = unsafe {
        place.write_bytes(0, 1);
        &mut *place
    };
    held.done = done;
    arguments[1] -= done;
    arguments[2] += done * size_of::<usize>();
    let [_, count, blocks, ..] = arguments;
    let mut hold = |start: usize, len: usize| {
        touch(start, len);
        let Some(range) = pages_touched(start, len).map(|range| pool::split(range).inside) else {
            return;
        };
        if range.is_empty() {
            return;
        }
        let known = held.ranges[..held.count]
            .iter()
            .any(|(start, end)| *start <= range.start && range.end <= *end);
        if !known && held.count < MOST && pool::hold(range.clone()) {
            held.ranges[held.count] = (range.start, range.end);
            held.count += 1;
        }
    };
    record.tries.touch(|_| {
        hold(blocks, count.min(1 << 16) * size_of::<usize>());
        control_blocks(blocks, count, hold);
    });
    record.finish = ALWAYS;
    arguments[5] = seccomp::exempt(arguments[5]);
    Some(Next::Call(arguments))
}

/// After the call.
pub fn finish(record: &mut Record) -> Next {
    // SAFETY: made by `begin`.
    let held = unsafe { &*Buffer::of(record).first::<HeldBuffers>() };
    for (start, end) in &held.ranges[..held.count] {
        pool::release(Range { start: *start, end: *end });
    }
    let mut arguments = record.arguments;
    untag(&mut arguments);
    let (before, left) = (held.done, arguments[1] - held.done);
    let taken = if is_failure(record.result) { 0 } else { record.result };
    if taken > 0 {
        record.tries = Tries::default();
    }
    let absent = record.result == failure(libc::EFAULT) || (1..left).contains(&taken);
    if absent && !record.tries.are_over() {
        bounce::release(record);
        if let Some(next) = submit(record, arguments, before + taken) {
            return next;
        }
    }
    Next::Result(if before + taken > 0 { before + taken } else { record.result })
}
