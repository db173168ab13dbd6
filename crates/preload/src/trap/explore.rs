//! Calls that a test makes up, made twice: by the kernel alone, and as they are made for a program
//! whose memory is managed. Results, memory, and what others receive must be the same.
//!
//! The window ([`pool::explore`]) is plain memory here, all of it present, and so is some memory
//! beside it. Numbers and pointers are made of any bytes ([`Choices`]); what a call reads its other
//! arguments from lies on pages of its own, which data do not reach.
//!
//! Not made: calls that wait, and those that change the process.

use super::record::{ALWAYS, NEVER, Next, ON_FAULT, Record};
use super::{bounce, present, structures, way};
use crate::memory::vectors;
use crate::pool::{
    self,
    explore::{self, Rights, Window},
};
use crate::sys::{failure, is_failure};
use descriptors::{Descriptors, Received};
use overspill_os::{PAGE_SIZE, seccomp};
use std::ops::Range;
use syscalls::{Sysno, raw_syscall};

mod calls;
mod descriptors;

/// Pages of the window, and beside it; the first of each are for what calls are told by.
const WINDOW: usize = 20;
const BESIDE: usize = 12;
const TOLD: usize = 3;
/// Pages around each that cannot be accessed.
const GAP: usize = 4;
/// Times that a call is made again at most.
const MOST: usize = 10_000;

/// Bytes, taken one after the other; zeros after the last.
pub struct Choices<'a>(pub &'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    fn word(&mut self) -> usize {
        usize::from(self.byte()) | usize::from(self.byte()) << 8
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::from(self.byte()) % all.len()]
    }

    /// A length: mostly a short one.
    fn len(&mut self) -> usize {
        match self.byte() % 8 {
            0 => 0,
            1..3 => self.byte().into(),
            3..6 => self.word(),
            6 => self.one_of(&[512, 4096, 8192, 32 << 10, (32 << 10) + 1, 64 << 10]),
            _ => usize::MAX >> (self.byte() % 64),
        }
    }

    /// An address that is none.
    fn nowhere(&mut self) -> usize {
        let far = 1 << 63 | self.word();
        self.one_of(&[0, 64, usize::MAX, usize::MAX - 4095, far])
    }
}

/// The program's memory.
struct ProgramMemory {
    window: usize,
    beside: usize,
    rights: Vec<Rights>,
    /// What is taken of the pages for what calls are told by, in the window and beside it.
    taken: [usize; 2],
}

impl ProgramMemory {
    /// Reserves it once for each thread.
    fn new() -> ProgramMemory {
        let all = (WINDOW + BESIDE + 3 * GAP) * PAGE_SIZE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, which replaces nothing.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), all, libc::PROT_NONE, flags, -1, 0) };
        assert!(base != libc::MAP_FAILED);
        let window = base as usize + GAP * PAGE_SIZE;
        let beside = window + (WINDOW + GAP) * PAGE_SIZE;
        let rights = vec![Rights::Write; WINDOW];
        let memory = ProgramMemory { window, beside, rights, taken: [0; 2] };
        memory.protect(memory.beside..memory.beside + BESIDE * PAGE_SIZE, Rights::Write);
        memory
    }

    fn protect(&self, range: Range<usize>, rights: Rights) {
        let prot = match rights {
            Rights::None => libc::PROT_NONE,
            Rights::Read => libc::PROT_READ,
            Rights::Write => libc::PROT_READ | libc::PROT_WRITE,
        };
        // SAFETY: pages of this memory, to which nothing refers.
        assert_eq!(unsafe { libc::mprotect(range.start as *mut _, range.len(), prot) }, 0);
    }

    /// All of the window can be accessed, so that a test can look at it.
    fn open(&self) {
        self.protect(self.window..self.window + WINDOW * PAGE_SIZE, Rights::Write);
    }

    /// The program has its rights, and no more.
    fn close(&self) {
        for (n, rights) in self.rights.iter().enumerate() {
            if *rights != Rights::Write {
                let page = self.window + n * PAGE_SIZE;
                self.protect(page..page + PAGE_SIZE, *rights);
            }
        }
    }

    /// The bytes of both parts, which are open.
    fn parts(&mut self) -> [&mut [u8]; 2] {
        // SAFETY: two ranges of this memory, which can be written, and which only `self` refers to.
        unsafe {
            [(self.window, WINDOW), (self.beside, BESIDE)].map(|(start, pages)| {
                std::slice::from_raw_parts_mut(start as *mut u8, pages * PAGE_SIZE)
            })
        }
    }

    fn image(&mut self) -> [Vec<u8>; 2] {
        self.parts().map(|part| part.to_vec())
    }

    fn restore(&mut self, image: &[Vec<u8>; 2]) {
        let parts = self.parts().into_iter().zip(image);
        parts.for_each(|(part, image)| part.copy_from_slice(image));
    }

    /// A place for data, or nowhere.
    fn data(&mut self, choices: &mut Choices<'_>) -> usize {
        let (window, beside) = (WINDOW - TOLD, BESIDE - TOLD);
        match choices.byte() % 8 {
            0..4 => self.window + TOLD * PAGE_SIZE + choices.word() % (window * PAGE_SIZE),
            4 => self.window + WINDOW * PAGE_SIZE - usize::from(choices.byte()),
            5..7 => self.beside + TOLD * PAGE_SIZE + choices.word() % (beside * PAGE_SIZE),
            _ => choices.nowhere(),
        }
    }

    /// A place with these bytes, in the window or beside it; or nowhere.
    fn told(&mut self, choices: &mut Choices<'_>, bytes: &[u8]) -> usize {
        let way = choices.byte();
        if way.is_multiple_of(16) {
            return choices.nowhere();
        }
        let part = usize::from((way / 16).is_multiple_of(4));
        let at = self.taken[part] + usize::from(way / 64) * 8;
        if at + bytes.len() > TOLD * PAGE_SIZE {
            return choices.nowhere();
        }
        self.taken[part] = (at + bytes.len()).next_multiple_of(8);
        self.parts()[part][at..at + bytes.len()].copy_from_slice(bytes);
        [self.window, self.beside][part] + at
    }
}

/// A call, as a program makes it.
#[derive(Clone, Copy, Debug)]
struct Call {
    number: i64,
    arguments: [usize; 6],
    /// Whether it comes by a function of the C library's, with copies of its paths.
    around: bool,
}

/// What came of a call: its result, the memory after it, what others received.
type Outcome = (isize, [Vec<u8>; 2], Received);

struct World {
    memory: ProgramMemory,
    descriptors: Descriptors,
}

thread_local! {
    static WORLD: std::cell::RefCell<World> = std::cell::RefCell::new(World::new());
}

/// Makes a call of these bytes, twice.
///
/// # Panics
/// Where it is not the same both times.
pub fn play(bytes: &[u8]) {
    WORLD.with_borrow_mut(|world| world.play(&mut Choices(bytes)));
}

impl World {
    fn new() -> World {
        bounce::start_once();
        World { memory: ProgramMemory::new(), descriptors: Descriptors::new() }
    }

    fn play(&mut self, choices: &mut Choices<'_>) {
        // 1. The memory, and the call.
        self.memory.open();
        self.memory.taken = [0; 2];
        let seed = choices.byte();
        for part in self.memory.parts() {
            (0usize..)
                .map(|n| n as u8 ^ seed)
                .zip(part.chunks_mut(251))
                .for_each(|(n, some)| some.fill(n));
        }
        let some_rights = choices.byte().is_multiple_of(4);
        let mut rights = || match choices.byte() % 4 {
            1 => Rights::None,
            2 => Rights::Read,
            _ => Rights::Write,
        };
        // Bytes are taken for rights only where there are some, so that few make a call.
        self.memory.rights = if some_rights {
            (0..WINDOW).map(|_| rights()).collect()
        } else {
            vec![Rights::Write; WINDOW]
        };
        let call = calls::call(choices, &mut self.memory, &self.descriptors);
        explore::set(Window { start: self.memory.window, pages: self.memory.rights.clone() });
        let image = self.memory.image();
        // 2. The kernel alone, and through the trap.
        let expected = self.outcome(&image, || make(call.number as usize, call.arguments));
        let found = self.outcome(&image, || trapped(call));
        // 3. The same?
        // Of several mistakes each may name another first.
        let is_fault = found.0 == -libc::EFAULT as isize;
        let is_refused = is_fault || found.0 == -libc::EINVAL as isize;
        let both_fail = is_failure(expected.0 as usize) && is_refused;
        let is_file = call.arguments[0] == self.descriptors.all()[0] as usize;
        if !is_file && is_part(&call, found.0, expected.0)
            || is_fault && present::has_sixth(call.number as usize, &call.arguments)
        {
            return;
        }
        assert!(both_fail || found.0 == expected.0, "{} not {}: {call:x?}", found.0, expected.0);
        for (found, expected) in found.2.iter().zip(&expected.2) {
            let (lens, at) = ([found.len(), expected.len()], difference(found, expected));
            assert_eq!(at, None, "where what was sent differs, of {lens:?} bytes, by {call:x?}");
        }
        // What a call that fails has written is for nobody to look at, but it is no more. So it is
        // behind the end of one that came as far as a part does: the kernel may have gone on there.
        let fails = is_failure(expected.0 as usize) || found.0 as usize == bounce::CHUNK;
        for part in 0..2 {
            let [found, expected, before] = [&found.1, &expected.1, &image].map(|all| &all[part]);
            let is_right =
                |at: usize| found[at] == expected[at] || fails && found[at] == before[at];
            if found != expected
                && let Some(at) = (0..found.len()).find(|at| !is_right(*at))
            {
                let [found, expected] = [found, expected].map(|image| &image[at & !7..][..8]);
                panic!("at {at} there is {found:x?}, not {expected:x?}, after {call:x?}");
            }
        }
    }

    fn outcome(&mut self, image: &[Vec<u8>; 2], make: impl FnOnce() -> usize) -> Outcome {
        self.descriptors.prepare();
        self.memory.restore(image);
        self.memory.close();
        let result = make();
        self.memory.open();
        (result as isize, self.memory.image(), self.descriptors.received())
    }
}

/// Whether a call did another part of what was wanted than the kernel does, as a program has to
/// expect of it: input from a stream ends with the buffer, only some of many messages fit into one,
/// and what a full pipe or socket takes depends on the parts in which it comes.
fn is_part(call: &Call, found: isize, expected: isize) -> bool {
    let fills = matches!(
        call.number,
        libc::SYS_write
            | libc::SYS_writev
            | libc::SYS_pwritev2
            | libc::SYS_sendto
            | libc::SYS_sendmsg
    );
    let other = found > 0 && expected > 0 && found != expected;
    // How much a full pipe takes before it comes to memory that cannot be read, likewise.
    let is_cut =
        || found == -libc::EFAULT as isize && asked(call) > bounce::CHUNK.max(expected as usize);
    match call.number {
        libc::SYS_sendmmsg | libc::SYS_recvmmsg => {
            found > 0 && expected > 0 && (found as usize) < call.arguments[2]
        }
        // The kernel may also come to what is wrong with the rest.
        _ => {
            fills && (other || expected > 0 && is_cut())
                || found != expected && found as usize == bounce::CHUNK
        }
    }
}

/// Bytes that a plain call or one with a vector is to move, as the memory of the test has it, which
/// is open.
fn asked(call: &Call) -> usize {
    let [_, vector, count, ..] = call.arguments;
    let mut bytes = 0usize;
    match call.number {
        libc::SYS_write | libc::SYS_sendto => bytes = count,
        libc::SYS_writev | libc::SYS_pwritev2 => {
            crate::memory::for_each(vector, count, |piece: libc::iovec| {
                bytes = bytes.saturating_add(piece.iov_len);
            });
        }
        _ => {}
    }
    bytes
}

/// Where two sequences of bytes begin to differ, if they do.
fn difference(one: &[u8], other: &[u8]) -> Option<usize> {
    let same = one.iter().zip(other).take_while(|(one, other)| one == other).count();
    (same < one.len().max(other.len())).then_some(same)
}

/// The call by itself.
fn make(number: usize, [a, b, c, d, e, f]: [usize; 6]) -> usize {
    let number = Sysno::new(number).expect("a call that there is");
    // SAFETY: the addresses are in the memory of the test, or none, or in a buffer that was claimed
    // for the call; the kernel looks at which can be accessed.
    unsafe { raw_syscall!(number, a, b, c, d, e, f) }
}

/// The call as [`super::begin`] and [`super::finish`], or [`super::around`], have it made, if it is
/// stopped at all.
fn trapped(Call { number, arguments, around }: Call) -> usize {
    let mut marked = arguments;
    vectors::look_at_call(number, &mut marked);
    if marked == arguments && !is_stopped(number as usize, &arguments) {
        return make(number as usize, arguments);
    }
    let mut record = Record::new(number as usize, arguments);
    let list = structures::paths(number).filter(|_| around);
    let mut next = match list.and_then(|list| structures::begin(&mut record, list, arguments)) {
        Some(next) => next,
        None => {
            bounce::release(&mut record);
            way::begin(&mut record, arguments)
        }
    };
    for _ in 0..MOST {
        let arguments = match next {
            Next::Call(arguments) => arguments,
            Next::Result(result) => {
                bounce::release(&mut record);
                return result;
            }
        };
        if record.finish == ALWAYS {
            assert!(!is_stopped(record.number, &arguments), "{record:?} is stopped again");
        }
        record.result = make(record.number, arguments);
        next = match record.finish {
            NEVER => Next::Result(record.result),
            ON_FAULT if record.result != failure(libc::EFAULT) => Next::Result(record.result),
            _ => match list.filter(|_| record.finish == ALWAYS) {
                Some(list) => structures::finish(&mut record, list),
                None => way::finish(&mut record),
            },
        };
    }
    panic!("a call without an end: {record:?}");
}

/// Whether the filter stops a call.
fn is_stopped(number: usize, arguments: &[usize; 6]) -> bool {
    let pointers = seccomp::arguments::addresses(number, arguments);
    (0..6).any(|n| pointers & 1 << n != 0 && pool::contains(arguments[n]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Calls that once were not the same.
    fn kept() -> Vec<Vec<u8>> {
        let seeds = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/stopped_call");
        let mut seeds: Vec<_> =
            std::fs::read_dir(seeds).unwrap().map(|seed| seed.unwrap().path()).collect();
        assert!(seeds.len() > 10);
        seeds.sort();
        seeds.into_iter().map(|seed| std::fs::read(seed).unwrap()).collect()
    }

    #[test]
    fn calls_that_were_kept_do_what_they_do_elsewhere() {
        kept().iter().for_each(|seed| play(seed));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn calls_near_them_do_what_they_do_elsewhere(
            mut bytes in prop::sample::select(kept()),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        ) {
            for (at, byte) in changes {
                *at.get_mut(&mut bytes) = byte;
            }
            play(&bytes);
        }

        #[test]
        fn calls_on_managed_memory_do_what_they_do_elsewhere(
            bytes in prop::collection::vec(any::<u8>(), 0..160),
        ) {
            play(&bytes);
        }
    }
}
