//! The filter itself: which calls pass, and which become a signal.

use super::bpf::{
    ARCHITECTURE, Instruction, RET_ALLOW, RET_ERRNO, RET_TRAP, branch, data, op, plain,
};
use super::{
    EXEMPT, FOREIGN, FOREIGN_CLONE, FOREIGN_MASK, HANDLER, IN_FORCE, MARK, MASK, TAG_BIT, TAG_BITS,
    TAG_MASK, WINDOW_BITS, WINDOW_MASK, YES, arguments,
};
use std::ops::Range;
use syscalls::Sysno;

/// What a filter looks for among the arguments of a call.
#[derive(Clone, Copy, Debug)]
pub enum Sought<'a> {
    /// Addresses that windows may have.
    Window,
    /// Addresses of annexes, in a call of the code of libraries.
    Annexes {
        /// Where they lie.
        annexes: &'a [Range<usize>],
        /// The code.
        code: &'a [Range<usize>],
    },
}

/// Whole units of so many bits are compared, so that the number of one has 32 bits.
const UNIT_BITS: u32 = 16;
/// Bytes of a unit.
pub const UNIT: usize = 1 << UNIT_BITS;
/// A jump to the end of its part.
const END: u8 = u8::MAX;

/// The filter.
pub fn program(sought: Sought<'_>) -> Vec<Instruction> {
    let mut program = vec![
        plain(op::LOAD, data::ARCHITECTURE),
        branch(op::IF_EQUAL, ARCHITECTURE, 1, 0),
        plain(op::RETURN, RET_ALLOW),
    ];
    match sought {
        Sought::Window => program.extend(always_answered()),
        Sought::Annexes { code, .. } => {
            let mut rule = number_of_unit([data::ADDRESS, data::ADDRESS + 4]).to_vec();
            rule.extend(is_in(code));
            rule.push(plain(op::RETURN, RET_ALLOW));
            program.append(&mut to_the_end(rule));
        }
    }
    // 1. Most calls have no argument to look at closer.
    program.append(&mut most_calls(sought));
    // 2. Let through?
    program.push(plain(op::LOAD, data::upper(5)));
    program.push(branch(op::IF_EQUAL, EXEMPT as u32, 0, 1));
    program.push(plain(op::RETURN, RET_ALLOW));
    // 3. Is it the question whether there is a filter?
    if matches!(sought, Sought::Window) {
        program.extend(answer_rule());
    }
    // 4. Which arguments are sought.
    mark_arguments(sought, &mut program);
    // 5. The calls whose arguments depend on what they are to do.
    for call in arguments::BY_COMMAND {
        program.push(plain(op::LOAD, data::NUMBER));
        let mut rule = command_rule(call);
        program.push(branch(op::IF_EQUAL, call.number as u32, 0, rule.len() as u8));
        program.append(&mut rule);
    }
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

/// Calls that are answered whatever their arguments are.
fn always_answered() -> [Instruction; 10] {
    [
        plain(op::LOAD, data::NUMBER),
        branch(op::IF_EQUAL, Sysno::io_uring_setup as u32, 0, 1),
        plain(op::RETURN, RET_ERRNO | libc::ENOSYS as u32),
        branch(op::IF_EQUAL, MASK as u32, 0, 1),
        plain(op::RETURN, RET_TRAP | MARK as u32),
        branch(op::IF_EQUAL, FOREIGN_CLONE as u32, 0, 1),
        plain(op::RETURN, RET_TRAP | MARK as u32),
        plain(op::AND, FOREIGN_MASK),
        branch(op::IF_EQUAL, FOREIGN as u32, 0, 1),
        plain(op::RETURN, RET_TRAP | MARK as u32),
    ]
}

/// The number of the unit of an address, by where its halves are. What is no address of a program's
/// has none that ranges have.
fn number_of_unit([lower, upper]: [u32; 2]) -> [Instruction; 6] {
    [
        plain(op::LOAD, lower),
        plain(op::SHIFT_RIGHT, UNIT_BITS),
        plain(op::TO_X, 0),
        plain(op::LOAD, upper),
        plain(op::SHIFT_LEFT, UNIT_BITS),
        plain(op::OR_X, 0),
    ]
}

/// Goes to the end of the part if the unit is one of the ranges'.
fn is_in(ranges: &[Range<usize>]) -> impl Iterator<Item = Instruction> {
    ranges.iter().flat_map(|range| {
        let [first, end] = [range.start, range.end.next_multiple_of(UNIT)];
        let unit = |address: usize| (address >> UNIT_BITS) as u32;
        [branch(op::IF_AT_LEAST, unit(first), 0, 1), branch(op::IF_AT_LEAST, unit(end), 0, END)]
    })
}

/// A part whose jumps to its end lead there.
fn to_the_end(mut part: Vec<Instruction>) -> Vec<Instruction> {
    let len = part.len();
    for (at, instruction) in part.iter_mut().enumerate() {
        let to_end = (len - at - 1).try_into().expect("a part is short");
        for jump in [&mut instruction.if_true, &mut instruction.if_false] {
            if *jump == END {
                *jump = to_end;
            }
        }
    }
    part
}

/// Goes to the end of the part if argument `n` is sought.
fn is_sought(sought: Sought<'_>, n: usize) -> Vec<Instruction> {
    match sought {
        Sought::Window => {
            vec![plain(op::AND, WINDOW_MASK), branch(op::IF_EQUAL, WINDOW_BITS, END, 0)]
        }
        Sought::Annexes { annexes, .. } => {
            let number = number_of_unit([data::lower(n), data::upper(n)]);
            number.into_iter().chain(is_in(annexes)).collect()
        }
    }
}

/// Lets a call through whose arguments have nothing that is sought: for the window six looks at
/// upper halves, and no more.
fn most_calls(sought: Sought<'_>) -> Vec<Instruction> {
    let mut quick = Vec::new();
    for n in 0..6 {
        if matches!(sought, Sought::Window) {
            quick.push(plain(op::LOAD, data::upper(n)));
            if tagged(n) {
                quick.push(branch(op::IF_SET, TAG_BIT, END, 0));
            }
        }
        quick.append(&mut is_sought(sought, n));
    }
    quick.push(plain(op::RETURN, RET_ALLOW));
    to_the_end(quick)
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

/// Keeps in a cell which arguments are sought or tagged, a bit each.
fn mark_arguments(sought: Sought<'_>, program: &mut Vec<Instruction>) {
    program.push(plain(op::LOAD_NUMBER, 0));
    program.push(plain(op::STORE, 0));
    for n in 0..6 {
        let mut part = Vec::new();
        if matches!(sought, Sought::Window) {
            part.push(plain(op::LOAD, data::upper(n)));
            if tagged(n) {
                part.push(plain(op::AND, TAG_MASK));
                part.push(branch(op::IF_EQUAL, TAG_BITS, END, 0));
                part.push(plain(op::LOAD, data::upper(n)));
            }
        }
        part.append(&mut is_sought(sought, n));
        let mark = [plain(op::LOAD_CELL, 0), plain(op::OR, 1 << n), plain(op::STORE, 0)];
        part.push(plain(op::JUMP, mark.len() as u32));
        program.append(&mut to_the_end(part));
        program.extend(mark);
    }
}

/// A call with one of the commands that are known is stopped if what that reads is sought; the
/// others go on behind the rule.
fn command_rule(call: &arguments::ByCommand) -> Vec<Instruction> {
    let mut rule = Vec::new();
    for commands in call.commands {
        rule.push(plain(op::LOAD, data::lower(call.at)));
        if commands.flags != 0 {
            rule.push(plain(op::AND, !commands.flags));
        }
        for (n, command) in commands.are.iter().enumerate() {
            // Behind the other commands, and the jump over the answer.
            let to_answer = commands.are.len() - n;
            rule.push(branch(op::IF_EQUAL, *command as u32, to_answer as u8, 0));
        }
        let answer = is_one_sought(commands.pointers);
        rule.push(plain(op::JUMP, answer.len() as u32));
        rule.extend(answer);
    }
    rule
}

/// Stops a call if one of these arguments is sought, and lets it through otherwise.
fn is_one_sought(arguments: u8) -> [Instruction; 4] {
    [
        plain(op::LOAD_CELL, 0),
        branch(op::IF_SET, arguments.into(), 1, 0),
        plain(op::RETURN, RET_ALLOW),
        plain(op::RETURN, RET_TRAP | MARK as u32),
    ]
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
        program.extend(is_one_sought(*mask));
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
        run(
            &program(Sought::Window),
            &Call { number, arguments, architecture: ARCHITECTURE, address: 0 },
        )
        .0
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
        assert_eq!(run(&program(Sought::Window), &other).0, RET_ALLOW);
    }

    #[test]
    fn changes_of_mappings_are_stopped_unless_they_are_let_through() {
        let mark = (EXEMPT as u64) << 32;
        let madvise = |sixth| answer(libc::SYS_madvise as u32, [INSIDE, 4096, 4, 0, 0, sixth]);
        assert_eq!([0, mark].map(madvise), [TRAP, RET_ALLOW]);
        let mremap =
            |old, flags, new| answer(libc::SYS_mremap as u32, [old, 4096, 4096, flags, new, 0]);
        let moves = [mremap(INSIDE, 3, 0), mremap(0, 3, INSIDE), mremap(0, 3, 0)];
        assert_eq!(moves, [TRAP, TRAP, RET_ALLOW]);
        let grows = [mremap(INSIDE, 1, 0), mremap(0, 1, INSIDE), mremap(0, 0, INSIDE)];
        assert_eq!(grows, [TRAP, RET_ALLOW, RET_ALLOW], "without MREMAP_FIXED it is not read");
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

    proptest! {
        /// The filter and whoever asks what a call reads say the same.
        #[test]
        fn commands_read_what_is_said_of_them(
            call: prop::sample::Index,
            entry: prop::sample::Index,
            known: prop::sample::Index,
            other: u32,
            is_known: bool,
            has_flags: bool,
            inside in 0usize..6,
        ) {
            let call = call.get(arguments::BY_COMMAND);
            let commands = entry.get(call.commands);
            let flags = if has_flags { commands.flags } else { 0 };
            let command = if is_known { *known.get(commands.are) as u32 | flags } else { other };
            let mut given = [0; 6];
            given[inside] = INSIDE;
            given[call.at] = given[call.at] & !0xffff_ffff | u64::from(command);
            let asked = arguments::addresses(call.number as usize, &given.map(|n| n as usize));
            let expected = if asked & 1 << inside != 0 { TRAP } else { RET_ALLOW };
            prop_assert_eq!(answer(call.number as u32, given), expected);
        }
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
    fn annexes_are_sought_in_calls_of_libraries() {
        let annexes = [0x60_0000..0x4060_1000, 0x5555_ffff_0000..0x5557_0000_0000];
        let code = [0x7f12_0000_1000..0x7f12_0020_0000, 0x7f13_0000_0000..0x7f13_0001_0000];
        let program = program(Sought::Annexes { annexes: &annexes, code: &code });
        let by = |address, number: i64, arguments| {
            let call =
                Call { number: number as u32, arguments, architecture: ARCHITECTURE, address };
            run(&program, &call).0
        };
        let ours = code[1].start as u64 + 2;
        let read = |at| by(ours, libc::SYS_read, [0, at, 1, 0, 0, 0]);
        let inside = [0x60_0000, 0x4060_0fff, 0x5555_ffff_0000, 0x5556_0000_0000, 0x5556_ffff_ffff];
        assert_eq!(inside.map(read), [TRAP; 5]);
        let outside = [0, 0x5f_ffff, 0x4061_0000, 0x5555_fffe_ffff, 0x5557_0000_0000, u64::MAX];
        assert_eq!(outside.map(read), [RET_ALLOW; 6]);
        // By whom.
        let write = |address| by(address, libc::SYS_write, [1, 0x60_1234, 5, 0, 0, 0]);
        assert_eq!([code[0].start + 2, code[0].end - 1].map(|at| write(at as u64)), [TRAP; 2]);
        let others = [0x40_1000, code[0].start as u64 - 0x1001, code[1].end as u64, 0x60_1000];
        assert_eq!(others.map(write), [RET_ALLOW; 4]);
        // The rest is as for the window.
        assert_eq!(by(ours, libc::SYS_getpid, [0x60_1234; 6]), RET_ALLOW);
        let futex = |operation| by(ours, libc::SYS_futex, [0x60_1234, operation, 1, 0, 0, 0]);
        assert_eq!([0, 128, 129].map(futex), [TRAP, TRAP, RET_ALLOW]);
        let exempt = (EXEMPT as u64) << 32;
        let advise = |sixth| by(ours, libc::SYS_madvise, [0x60_1000, 4096, 4, 0, 0, sixth]);
        assert_eq!([0, exempt].map(advise), [TRAP, RET_ALLOW]);
        assert!(program.len() < 4096, "{}", program.len());
    }

    #[test]
    fn it_fits_and_common_calls_take_few_steps() {
        let program = program(Sought::Window);
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
                libc::SYS_vserver | libc::SYS_tuxcall => TRAP,
                libc::SYS_io_uring_setup => RET_ERRNO | libc::ENOSYS as u32,
                _ if arguments::pointers(number as usize) & hits != 0 => TRAP,
                _ => RET_ALLOW,
            };
            prop_assert_eq!(answer(number, arguments), expected);
        }
    }
}
