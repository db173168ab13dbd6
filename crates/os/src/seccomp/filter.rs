//! The filter itself: which calls pass, and which become a signal.

use super::bpf::{
    ARCHITECTURE, Instruction, RET_ALLOW, RET_ERRNO, RET_TRAP, branch, data, op, plain,
};
use super::{
    EXEMPT, FOREIGN, FOREIGN_MASK, HANDLER, IN_FORCE, MARK, MASK, TAG_BIT, TAG_BITS, TAG_MASK,
    WINDOW_BITS, WINDOW_MASK, YES, arguments,
};
use syscalls::Sysno;

/// The filter.
pub fn program() -> Vec<Instruction> {
    let mut program = vec![
        plain(op::LOAD, data::ARCHITECTURE),
        branch(op::IF_EQUAL, ARCHITECTURE, 1, 0),
        plain(op::RETURN, RET_ALLOW),
        plain(op::LOAD, data::NUMBER),
        branch(op::IF_EQUAL, Sysno::io_uring_setup as u32, 0, 1),
        plain(op::RETURN, RET_ERRNO | libc::ENOSYS as u32),
        branch(op::IF_EQUAL, MASK as u32, 0, 1),
        plain(op::RETURN, RET_TRAP | MARK as u32),
        plain(op::AND, FOREIGN_MASK),
        branch(op::IF_EQUAL, FOREIGN as u32, 0, 1),
        plain(op::RETURN, RET_TRAP | MARK as u32),
    ];
    // 1. Most calls have no argument to look at closer.
    program.append(&mut most_calls());
    // 2. Let through?
    program.push(plain(op::LOAD, data::upper(5)));
    program.push(branch(op::IF_EQUAL, EXEMPT as u32, 0, 1));
    program.push(plain(op::RETURN, RET_ALLOW));
    // 3. Is it the question whether there is a filter?
    program.extend(answer_rule());
    // 4. Which arguments are in the window or tagged.
    mark_arguments(&mut program);
    // 5. futex(2), whose arguments depend on what it is to do.
    program.push(plain(op::LOAD, data::NUMBER));
    let mut rule = futex_rule();
    program.push(branch(op::IF_EQUAL, Sysno::futex as u32, 0, rule.len() as u8));
    program.append(&mut rule);
    // 6. mmap(2), which replaces what there is only if it is told to.
    program.push(plain(op::LOAD, data::NUMBER));
    program.push(branch(op::IF_EQUAL, Sysno::mmap as u32, 0, MAPPING_RULE.len() as u8));
    program.extend(MAPPING_RULE);
    // 7. Is one of them an address to this call? Numbers of the same answer are a run; a tree over
    //    the runs.
    program.push(plain(op::LOAD, data::NUMBER));
    let mut runs: Vec<(u32, u8)> = Vec::new();
    for number in 0..=arguments::LAST {
        let mask = arguments::pointers(number as usize);
        if runs.last().is_none_or(|(_, last)| *last != mask) {
            runs.push((number, mask));
        }
    }
    runs.push((arguments::LAST + 1, arguments::pointers(arguments::LAST as usize + 1)));
    tree(&runs, &mut program);
    program
}

/// Lets a call through whose arguments have nothing of the window: six looks at upper halves, and
/// no more. Each hit jumps to the end of this part.
fn most_calls() -> Vec<Instruction> {
    let mut quick = Vec::new();
    for n in 0..6 {
        quick.push(plain(op::LOAD, data::upper(n)));
        if tagged(n) {
            quick.push(branch(op::IF_SET, TAG_BIT, u8::MAX, 0));
        }
        quick.push(plain(op::AND, WINDOW_MASK));
        quick.push(branch(op::IF_EQUAL, WINDOW_BITS, u8::MAX, 0));
    }
    quick.push(plain(op::RETURN, RET_ALLOW));
    let end = quick.len();
    for (at, instruction) in quick.iter_mut().enumerate().filter(|(_, i)| i.if_true == u8::MAX) {
        instruction.if_true = (end - at - 1) as u8;
    }
    quick
}

/// Answers [`IN_FORCE`].
fn answer_rule() -> [Instruction; 7] {
    [
        plain(op::LOAD, data::NUMBER),
        branch(op::IF_EQUAL, HANDLER as u32, 0, 5),
        plain(op::LOAD, data::upper(1)),
        branch(op::IF_EQUAL, (IN_FORCE >> 32) as u32, 0, 3),
        plain(op::LOAD, data::lower(1)),
        branch(op::IF_EQUAL, IN_FORCE as u32, 0, 1),
        plain(op::RETURN, RET_ERRNO | YES),
    ]
}

/// Keeps in a cell which arguments are in the window or tagged, a bit each.
fn mark_arguments(program: &mut Vec<Instruction>) {
    program.push(plain(op::LOAD_NUMBER, 0));
    program.push(plain(op::STORE, 0));
    for n in 0..6 {
        program.push(plain(op::LOAD, data::upper(n)));
        if tagged(n) {
            program.push(plain(op::AND, TAG_MASK));
            program.push(branch(op::IF_EQUAL, TAG_BITS, 3, 0));
            program.push(plain(op::LOAD, data::upper(n)));
        }
        program.push(plain(op::AND, WINDOW_MASK));
        program.push(branch(op::IF_EQUAL, WINDOW_BITS, 0, 3));
        program.push(plain(op::LOAD_CELL, 0));
        program.push(plain(op::OR, 1 << n));
        program.push(plain(op::STORE, 0));
    }
}

/// futex(2): a private one that only wakes touches no memory, its key is the address. Most of the
/// others have no time, and leave whatever was in the register. Those that have one go on behind
/// the rule.
fn futex_rule() -> Vec<Instruction> {
    const LOCK_PI2: i32 = 13;
    let with_time = [
        libc::FUTEX_WAIT,
        libc::FUTEX_LOCK_PI,
        libc::FUTEX_WAIT_BITSET,
        libc::FUTEX_WAIT_REQUEUE_PI,
        LOCK_PI2,
    ];
    let wake = [
        libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
        libc::FUTEX_WAKE_BITSET | libc::FUTEX_PRIVATE_FLAG,
    ];
    let mut rule = vec![
        plain(op::LOAD, data::lower(1)),
        branch(op::IF_EQUAL, wake[0] as u32, 1, 0),
        branch(op::IF_EQUAL, wake[1] as u32, 0, 1),
        plain(op::RETURN, RET_ALLOW),
        plain(op::AND, !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME) as u32),
    ];
    // Without a time only the first argument counts.
    let without_time = [
        plain(op::LOAD_CELL, 0),
        branch(op::IF_SET, 1, 1, 0),
        plain(op::RETURN, RET_ALLOW),
        plain(op::RETURN, RET_TRAP | MARK as u32),
    ];
    for (n, operation) in with_time.into_iter().enumerate() {
        let to_end = with_time.len() - n - 1 + without_time.len();
        rule.push(branch(op::IF_EQUAL, operation as u32, to_end as u8, 0));
    }
    rule.extend(without_time);
    rule
}

/// mmap(2): stopped with MAP_FIXED, unless it is let through. A wish for a place replaces nothing.
const MAPPING_RULE: [Instruction; 8] = [
    plain(op::LOAD, data::lower(3)),
    branch(op::IF_SET, libc::MAP_FIXED as u32, 0, 4),
    plain(op::LOAD_CELL, 0),
    branch(op::IF_SET, 1, 0, 2),
    plain(op::LOAD, data::upper(4)),
    branch(op::IF_EQUAL, EXEMPT as u32, 0, 1),
    plain(op::RETURN, RET_ALLOW),
    plain(op::RETURN, RET_TRAP | MARK as u32),
];

/// Whether argument `n` may be tagged.
const fn tagged(n: usize) -> bool {
    n == 1 || n == 2
}

fn tree(runs: &[(u32, u8)], program: &mut Vec<Instruction>) {
    if let [(_, mask)] = runs {
        program.push(plain(op::LOAD_CELL, 0));
        program.push(branch(op::IF_SET, (*mask).into(), 1, 0));
        program.push(plain(op::RETURN, RET_ALLOW));
        program.push(plain(op::RETURN, RET_TRAP | MARK as u32));
        return;
    }
    let (low, high) = runs.split_at(runs.len() / 2);
    program.push(branch(op::IF_AT_LEAST, high[0].0, 0, 1));
    let jump = program.len();
    program.push(plain(op::JUMP, 0));
    tree(low, program);
    program[jump].k = (program.len() - jump - 1) as u32;
    tree(high, program);
}

#[cfg(test)]
mod tests {
    use super::super::bpf::interpreter::{Call, run};
    use super::super::{PENDING, RETURN, TAG, WINDOW, replaced};
    use super::*;
    use proptest::prelude::*;

    const TRAP: u32 = RET_TRAP | MARK as u32;

    fn answer(number: u32, arguments: [u64; 6]) -> u32 {
        run(&program(), &Call { number, arguments, architecture: ARCHITECTURE, address: 0 }).0
    }

    const INSIDE: u64 = WINDOW.start as u64 + 12345;

    #[test]
    fn calls_are_stopped_for_their_addresses_only() {
        let read = libc::SYS_read as u32;
        assert_eq!(answer(read, [0, INSIDE, 1, 0, 0, 0]), TRAP);
        assert_eq!(answer(read, [0, WINDOW.end as u64 - 1, 1, 0, 0, 0]), TRAP);
        assert_eq!(answer(read, [0, WINDOW.end as u64, 1, 0, 0, 0]), RET_ALLOW);
        assert_eq!(answer(read, [0, WINDOW.start as u64 - 1, 1, 0, 0, 0]), RET_ALLOW);
        // What is left in a register that the call does not read.
        assert_eq!(answer(read, [INSIDE, 0, INSIDE, INSIDE, INSIDE, INSIDE]), RET_ALLOW);
        assert_eq!(answer(libc::SYS_getpid as u32, [INSIDE; 6]), RET_ALLOW);
        assert_eq!(answer(libc::SYS_rt_sigreturn as u32, [INSIDE; 6]), RET_ALLOW);
        assert_eq!(answer(libc::SYS_msync as u32, [INSIDE, 4096, 4, 0, 0, 0]), RET_ALLOW);
        // futex: only calls that wait have a time.
        let futex =
            |operation| answer(libc::SYS_futex as u32, [0, operation, 1, INSIDE, INSIDE, 0]);
        assert_eq!([0, 128, 9 | 128 | 256, 6, 13, 11].map(futex), [TRAP; 6]);
        assert_eq!([1, 129, 3, 4, 5, 7 | 128, 10, 12].map(futex), [RET_ALLOW; 8]);
        let word = |operation| answer(libc::SYS_futex as u32, [INSIDE, operation, 1, 0, 0, 0]);
        assert_eq!([0, 128, 1, 10, 3 | 128, 4 | 128, 5 | 128].map(word), [TRAP; 7]);
        assert_eq!([1 | 128, 10 | 128].map(word), [RET_ALLOW; 2], "a private key is the address");
        // Unknown ones.
        assert_eq!(answer(999, [0, 0, 0, 0, 0, INSIDE]), TRAP);
        // Other architectures have other numbers.
        let other =
            Call { number: read, arguments: [INSIDE; 6], architecture: 0x4000_0003, address: 0 };
        assert_eq!(run(&program(), &other).0, RET_ALLOW);
    }

    #[test]
    fn changes_of_mappings_are_stopped_unless_they_are_let_through() {
        let mark = (EXEMPT as u64) << 32;
        let madvise = |sixth| answer(libc::SYS_madvise as u32, [INSIDE, 4096, 4, 0, 0, sixth]);
        assert_eq!([0, mark].map(madvise), [TRAP, RET_ALLOW]);
        let mremap = |old, new| answer(libc::SYS_mremap as u32, [old, 4096, 4096, 3, new, 0]);
        assert_eq!([mremap(INSIDE, 0), mremap(0, INSIDE), mremap(0, 0)], [TRAP, TRAP, RET_ALLOW]);
        let mmap = |at, flags: i32, fd| {
            answer(libc::SYS_mmap as u32, [at, 4096, 3, flags as u64, fd, INSIDE])
        };
        let nobody = u64::MAX;
        let new = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let fixed = new | libc::MAP_FIXED;
        assert_eq!(mmap(INSIDE, fixed, nobody), TRAP);
        let allowed = [
            mmap(INSIDE, fixed, mark | 7),
            mmap(INSIDE, new, nobody),
            mmap(INSIDE, new | libc::MAP_FIXED_NOREPLACE, nobody),
            mmap(0, fixed, nobody),
        ];
        assert_eq!(allowed, [RET_ALLOW; 4]);
    }

    #[test]
    fn tags_exemptions_and_special_numbers() {
        let writev = libc::SYS_writev as u32;
        let tagged = TAG as u64 | 0x7fff_1234_5678;
        assert_eq!(answer(writev, [1, tagged, 2, 0, 0, 0]), TRAP);
        assert_eq!(answer(writev, [1, u64::MAX, 2, 0, 0, 0]), RET_ALLOW);
        assert_eq!(answer(writev, [1, INSIDE, 2, 0, 0, (EXEMPT as u64) << 32 | 7]), RET_ALLOW);
        assert_eq!(
            [RETURN, PENDING].map(|what| answer(HANDLER as u32, [0, what as u64, 0, 8, 0, 0])),
            [TRAP; 2]
        );
        assert_eq!(answer(HANDLER as u32, [0, IN_FORCE as u64, 0, 8, 0, 0]), RET_ERRNO | YES);
        assert_eq!(answer(writev, [0, IN_FORCE as u64, 0, 8, 0, 0]), TRAP);
        assert_eq!(
            [MASK - 1, MASK, MASK + 1].map(|n| answer(n as u32, [0; 6])),
            [RET_ALLOW, TRAP, RET_ALLOW]
        );
        let foreign = [FOREIGN - 1, FOREIGN, FOREIGN + 1023, FOREIGN + 1024];
        assert_eq!(foreign.map(|n| answer(n as u32, [0; 6])), [RET_ALLOW, TRAP, TRAP, RET_ALLOW]);
        assert_eq!(foreign.map(replaced), [None, Some(0), Some(1023), None]);
        assert_eq!(
            answer(libc::SYS_io_uring_setup as u32, [1, 2, 0, 0, 0, 0]),
            RET_ERRNO | libc::ENOSYS as u32
        );
    }

    #[test]
    fn it_fits_and_common_calls_take_few_steps() {
        let program = program();
        assert!(program.len() < 4096, "{}", program.len());
        let call = Call {
            number: libc::SYS_getppid as u32,
            arguments: [1; 6],
            architecture: ARCHITECTURE,
            address: 0,
        };
        let (result, steps) = run(&program, &call);
        assert!(result == RET_ALLOW && steps <= 30, "{steps}");
    }

    proptest! {
        #[test]
        fn it_does_what_it_says(number in 0u32..600, places in prop::array::uniform6(0usize..5)) {
            let values = [0, INSIDE, u64::MAX, TAG as u64 | 64, 0x7fff_ffff_f000];
            let arguments = places.map(|place| values[place]);
            let hits = (0..6)
                .filter(|n| places[*n] == 1 || places[*n] == 3 && tagged(*n))
                .fold(0, |hits, n| hits | 1u8 << n);
            let expected = match number as i64 {
                // FUTEX_WAIT in this test where the operation has no bits, in the lower half, and
                // else none that is known.
                libc::SYS_futex if arguments[1] as u32 & 0x7f != 0 && hits & 1 == 0 => RET_ALLOW,
                // Without MAP_FIXED.
                libc::SYS_mmap if arguments[3] & libc::MAP_FIXED as u64 == 0 => RET_ALLOW,
                libc::SYS_vserver => TRAP,
                libc::SYS_io_uring_setup => RET_ERRNO | libc::ENOSYS as u32,
                _ if arguments::pointers(number as usize) & hits != 0 => TRAP,
                _ => RET_ALLOW,
            };
            prop_assert_eq!(answer(number, arguments), expected);
        }
    }
}
