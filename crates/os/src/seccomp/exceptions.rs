//! Exceptions for the engine in a filter that the program puts on itself.
//!
//! A sandboxed program allows the calls that it makes, and kills for others; the engine makes its
//! own on the program's threads. So the program's filter gets a beginning that allows what is made
//! from the engine's code, as told by the address of the instruction. Calls of the program's that
//! are only passed on from there by number, after their memory was made safe, are left to the
//! program's filter.
//!
//! The address is no secret: who has got hold of the program can jump to any instruction of the
//! engine's with registers of their choice. So an exception is bound to the arguments that the
//! engine makes the call with (`BOUND`), as far as they matter: descriptors to the engine's
//! numbers. Nothing among them opens, looks up or removes a name, connects, executes, or touches
//! another process. What the engine would want of that kind it does without ([`crate::confined`]).
//!
//! Children of a fork have the filter too, and for them the number of who put it on is that of
//! another process. So nothing is bound to it: what a process does to itself it does by calls that
//! can do it to nobody else. Only a wake-up, which carries nothing, goes to the sibling by its
//! number; in a child that exception is of no use. What the program executes has an engine of its
//! own, for which none holds.

use super::bpf::{ARCHITECTURE, Instruction, RET_ALLOW, branch, data, op, plain};
use super::{FOREIGN, FOREIGN_MASK, MASK};
use std::ops::Range;
use syscalls::Sysno;

/// Most instructions of a filter (BPF_MAXINSNS).
pub const LONGEST: usize = 4096;

/// What exceptions are bound to.
#[derive(Clone, Debug)]
pub struct Own {
    /// The sibling of the process that puts the filter on itself, if it has one.
    pub sibling: Option<u32>,
    /// Where the engine's descriptors lie.
    pub descriptors: Range<u32>,
}

/// A condition for the lower half of an argument, of which the kernel reads no more.
#[derive(Clone, Copy, Debug)]
enum When {
    /// It is one of these.
    Is(usize, &'static [u32]),
    /// It has none of these bits.
    Without(usize, u32),
    /// These bits of it have this value.
    Bits(usize, u32, u32),
    /// It is a descriptor of the engine's.
    Engines(usize),
    /// It is the number of the sibling.
    Sibling(usize),
}
use When::{Bits, Engines, Is, Sibling, Without};

/// Calls that concern nothing but the process itself: its memory, its threads, its time; and those
/// that take nothing but what is open already.
const FREE: [Sysno; 38] = [
    Sysno::futex,
    Sysno::madvise,
    Sysno::sched_yield,
    Sysno::gettid,
    Sysno::getpid,
    Sysno::getcpu,
    Sysno::clock_gettime,
    Sysno::rt_sigprocmask,
    Sysno::rt_sigtimedwait,
    Sysno::sigaltstack,
    Sysno::munmap,
    Sysno::mremap,
    Sysno::mincore,
    Sysno::mlock,
    Sysno::mlock2,
    // Also nowhere at all: `vm::settle_writers`.
    Sysno::munlock,
    Sysno::membarrier,
    Sysno::futex_waitv,
    Sysno::nanosleep,
    Sysno::clock_nanosleep,
    Sysno::poll,
    Sysno::ppoll,
    Sysno::fstat,
    Sysno::close,
    Sysno::close_range,
    Sysno::memfd_create,
    Sysno::memfd_secret,
    Sysno::getrandom,
    Sysno::sysinfo,
    Sysno::geteuid,
    Sysno::setsid,
    Sysno::rseq,
    Sysno::set_robust_list,
    Sysno::set_tid_address,
    // A descriptor that stands for a process tells of its end. What does more with it is not
    // allowed.
    Sysno::pidfd_open,
    Sysno::exit,
    Sysno::exit_group,
    Sysno::sched_getaffinity,
];

const PROT_EXEC: u32 = libc::PROT_EXEC as u32;
const ANONYMOUS: u32 = libc::MAP_ANONYMOUS as u32;
/// PR_GET_TID_ADDRESS of prctl(2).
const PR_GET_TID_ADDRESS: u32 = 40;
/// KCMP_VM: whether two processes share their memory.
const KCMP_VM: u32 = 1;
/// PIDFD_SELF_THREAD_GROUP.
const SELF: u32 = -10_001i32 as u32;
/// PIDFD_SELF_THREAD of pidfd_send_signal(2), since Linux 6.14.
pub const SELF_THREAD: i32 = -10_000;
/// The type in the number of an ioctl, and that of userfaultfd; discards and the size of devices.
const IOCTL_TYPE: u32 = 0xff00;
const OF_USERFAULTFD: u32 = 0xaa00;
const UFFDIO_API: u32 = 0xc018_aa3f;
const OF_DEVICES: [u32; 2] = [0x1277, 0x8008_1272];
const USERFAULTFD: [u32; 2] = {
    let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as u32;
    // UFFD_USER_MODE_ONLY.
    [flags, flags | 1]
};
/// How the sibling and its threads are made (`beside::clone`).
const BETWEEN: u32 = (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_UNTRACED) as u32;
const BESIDE: u32 = (libc::CLONE_VM
    | libc::CLONE_UNTRACED
    | libc::CLONE_SETTLS
    | libc::CLONE_CHILD_SETTID
    | libc::CLONE_CHILD_CLEARTID) as u32;
const OF_A_THREAD: u32 = BESIDE
    | (libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM) as u32;
/// SIGSETXID, by which the sibling is told of new credentials.
const SETXID: u32 = 33;

/// Calls that are bound to what the engine makes them with; where one stands several times, one of
/// the lines is to hold.
const BOUND: [(Sysno, &[When]); 34] = [
    // 1. Faults, and pages on devices.
    (Sysno::ioctl, &[Engines(0), Bits(1, IOCTL_TYPE, OF_USERFAULTFD)]),
    (Sysno::ioctl, &[Engines(0), Is(1, &OF_DEVICES)]),
    // A new one, before it gets its number.
    (Sysno::ioctl, &[Is(1, &[UFFDIO_API])]),
    (Sysno::pread64, &[Engines(0)]),
    (Sysno::pwrite64, &[Engines(0)]),
    (Sysno::read, &[Engines(0)]),
    (Sysno::io_uring_enter, &[Engines(0)]),
    (Sysno::fallocate, &[Engines(0)]),
    (Sysno::ftruncate, &[Engines(0)]),
    (Sysno::fcntl, &[Engines(0), Is(1, &[libc::F_OFD_SETLK as u32, libc::F_OFD_GETLK as u32])]),
    // Of what tells of the sibling's end.
    (Sysno::fcntl, &[Engines(0), Is(1, &[libc::F_SETFL as u32])]),
    // Of a new one, which gets one of the engine's numbers; of one that the engine has.
    (Sysno::fcntl, &[Is(1, &[libc::F_DUPFD_CLOEXEC as u32]), Engines(2)]),
    (Sysno::fcntl, &[Engines(0), Is(1, &[libc::F_DUPFD_CLOEXEC as u32]), Is(2, &[0])]),
    // How the program has opened what it hands to a call.
    (Sysno::fcntl, &[Is(1, &[libc::F_GETFL as u32])]),
    (Sysno::userfaultfd, &[Is(0, &USERFAULTFD)]),
    (Sysno::process_madvise, &[Is(0, &[SELF])]),
    // 2. Memory.
    (Sysno::mmap, &[Without(2, PROT_EXEC), Bits(3, ANONYMOUS, ANONYMOUS)]),
    (Sysno::mmap, &[Without(2, PROT_EXEC), Engines(4)]),
    (Sysno::mprotect, &[Without(2, PROT_EXEC)]),
    // 3. A line on standard error; what kind of socket it is that the program sends to.
    (Sysno::write, &[Is(0, &[2])]),
    (Sysno::getsockopt, &[Is(1, &[libc::SOL_SOCKET as u32]), Is(2, &[libc::SO_TYPE as u32])]),
    // 4. The sibling.
    (Sysno::clone, &[Is(0, &[BETWEEN, BESIDE, OF_A_THREAD])]),
    (Sysno::wait4, &[Is(2, &[(libc::__WALL | libc::WNOHANG) as u32])]),
    (Sysno::kcmp, &[Is(2, &[KCMP_VM])]),
    (Sysno::prctl, &[Is(0, &[libc::PR_SET_NAME as u32, libc::PR_GET_NAME as u32])]),
    (Sysno::prctl, &[Is(0, &[libc::PR_GET_CHILD_SUBREAPER as u32, PR_GET_TID_ADDRESS])]),
    (Sysno::rt_sigaction, &[Is(0, &[SETXID])]),
    (Sysno::tgkill, &[Sibling(0), Is(2, &[SETXID])]),
    // 5. Signals: to the calling thread, or none (0), which asks whether there is such a thread.
    (Sysno::pidfd_send_signal, &[Is(0, &[SELF_THREAD as u32])]),
    (Sysno::tgkill, &[Is(2, &[0])]),
    (Sysno::tkill, &[Is(1, &[0])]),
    (Sysno::kill, &[Is(1, &[0])]),
    // 6. Limits of this process: the engine's descriptors lie above that of the program's.
    (Sysno::prlimit64, &[Is(0, &[0]), Is(1, &[libc::RLIMIT_NOFILE])]),
    (
        Sysno::prlimit64,
        &[Is(0, &[0]), Is(1, &[libc::RLIMIT_FSIZE, libc::RLIMIT_STACK]), Is(2, &[0])],
    ),
];

/// The beginning of a program's filter: allows the engine's calls from `code`, but not one that
/// returns to `passed_on`, and goes on to what follows for all others. None where the code lies so
/// that an address does not tell.
pub fn beginning(code: Range<usize>, passed_on: usize, own: &Own) -> Option<Vec<Instruction>> {
    const ALLOW: u8 = u8::MAX;
    const GO_ON: u8 = u8::MAX - 1;
    if code.start >> 32 != code.end >> 32 {
        return None;
    }
    let mut filter = vec![
        plain(op::LOAD, data::ARCHITECTURE),
        branch(op::IF_EQUAL, ARCHITECTURE, 0, GO_ON),
        // 1. What ends a handler, and the numbers that come to ours.
        plain(op::LOAD, data::NUMBER),
        branch(op::IF_EQUAL, Sysno::rt_sigreturn as u32, ALLOW, 0),
        branch(op::IF_EQUAL, MASK as u32, ALLOW, 0),
        plain(op::AND, FOREIGN_MASK),
        branch(op::IF_EQUAL, FOREIGN as u32, ALLOW, 0),
        // 2. From the engine's code?
        plain(op::LOAD, data::ADDRESS + 4),
        branch(op::IF_EQUAL, (code.start >> 32) as u32, 0, GO_ON),
        plain(op::LOAD, data::ADDRESS),
        branch(op::IF_AT_LEAST, code.start as u32, 0, GO_ON),
        branch(op::IF_AT_LEAST, code.end as u32, GO_ON, 0),
        branch(op::IF_EQUAL, passed_on as u32, GO_ON, 2),
    ];
    let allow = filter.len();
    filter.push(plain(op::RETURN, RET_ALLOW));
    let go_on = filter.len();
    filter.push(plain(op::JUMP, 0));
    patch(&mut filter, ALLOW, allow);
    patch(&mut filter, GO_ON, go_on);
    // 3. The calls.
    filter.push(plain(op::LOAD, data::NUMBER));
    for call in FREE {
        filter.push(branch(op::IF_EQUAL, call as u32, 0, 1));
        filter.push(plain(op::RETURN, RET_ALLOW));
    }
    for (call, conditions) in BOUND {
        filter.append(&mut rule(call, conditions, own));
    }
    filter[go_on].k = (filter.len() - go_on - 1) as u32;
    Some(filter)
}

/// Has all branches that are marked so jump to an instruction behind them.
fn patch(filter: &mut [Instruction], mark: u8, to: usize) {
    for (at, instruction) in filter.iter_mut().enumerate().take(to) {
        for jump in [&mut instruction.if_true, &mut instruction.if_false] {
            if *jump == mark {
                *jump = (to - at - 1) as u8;
            }
        }
    }
}

/// Allows a call if all conditions hold, and else goes on behind.
fn rule(call: Sysno, conditions: &[When], own: &Own) -> Vec<Instruction> {
    const FAILS: u8 = u8::MAX;
    let mut rule = vec![plain(op::LOAD, data::NUMBER)];
    rule.push(branch(op::IF_EQUAL, call as u32, 0, FAILS));
    for condition in conditions {
        rule.append(&mut match *condition {
            Is(argument, values) => {
                let to_end = |at| (values.len() - 1 - at) as u8;
                let compare = |(at, value): (usize, &u32)| {
                    branch(
                        op::IF_EQUAL,
                        *value,
                        to_end(at),
                        if to_end(at) == 0 { FAILS } else { 0 },
                    )
                };
                let compare = values.iter().enumerate().map(compare);
                [plain(op::LOAD, data::lower(argument))].into_iter().chain(compare).collect()
            }
            Without(argument, bits) => {
                vec![plain(op::LOAD, data::lower(argument)), branch(op::IF_SET, bits, FAILS, 0)]
            }
            Bits(argument, mask, value) => vec![
                plain(op::LOAD, data::lower(argument)),
                plain(op::AND, mask),
                branch(op::IF_EQUAL, value, 0, FAILS),
            ],
            Engines(argument) => vec![
                plain(op::LOAD, data::lower(argument)),
                branch(op::IF_AT_LEAST, own.descriptors.start, 0, FAILS),
                branch(op::IF_AT_LEAST, own.descriptors.end, FAILS, 0),
            ],
            // No process has the number 0.
            Sibling(argument) => vec![
                plain(op::LOAD, data::lower(argument)),
                branch(op::IF_EQUAL, own.sibling.unwrap_or(0), 0, FAILS),
            ],
        });
    }
    rule.push(plain(op::RETURN, RET_ALLOW));
    let end = rule.len();
    patch(&mut rule, FAILS, end);
    rule
}

#[cfg(test)]
mod tests {
    use super::super::bpf::RET_TRAP;
    use super::super::bpf::interpreter::{Call, run};
    use super::*;
    use std::collections::BTreeSet;

    const INSIDE: u64 = 0x7f12_3400_2000;
    const PASSED_ON: u64 = 0x7f12_3400_1000;

    fn own() -> Own {
        Own { sibling: Some(4712), descriptors: 1536..1568 }
    }

    /// A beginning before a filter that kills for everything.
    fn allows(number: usize, arguments: [u64; 6], address: u64) -> bool {
        let code = 0x7f12_3400_0000..0x7f12_3408_0000;
        let mut filter = beginning(code, PASSED_ON as usize, &own()).unwrap();
        filter.push(plain(op::LOAD, data::NUMBER));
        filter.push(plain(op::RETURN, RET_TRAP));
        let call = Call { number: number as u32, arguments, architecture: ARCHITECTURE, address };
        run(&filter, &call).0 == RET_ALLOW
    }

    /// Values of an argument that a condition takes, and one that it does not.
    fn values(condition: When) -> (usize, Vec<u64>, u64) {
        match condition {
            Is(n, values) => (n, values.iter().map(|value| u64::from(*value)).collect(), 77),
            Without(n, bits) => (n, vec![0, u64::from(!bits)], u64::from(bits) | 3),
            Bits(n, mask, value) => {
                (n, vec![u64::from(value), u64::from(value | !mask)], u64::from(!value & mask))
            }
            Engines(n) => (n, vec![1536, 1567], 1568),
            Sibling(n) => (n, vec![4712], 4711),
        }
    }

    #[test]
    fn what_is_bound_takes_the_arguments_of_the_engine_and_no_others() {
        let mut calls = BTreeSet::new();
        for (call, conditions) in BOUND {
            let mut right = [0x1234_565cu64; 6];
            for condition in conditions {
                let (n, good, _) = values(*condition);
                right[n] = good[0];
            }
            for condition in conditions {
                let (n, good, wrong) = values(*condition);
                for good in good {
                    let mut arguments = right;
                    // The kernel reads the lower half.
                    arguments[n] = good | 0xabcd << 32;
                    assert!(allows(call as usize, arguments, INSIDE), "{call} {arguments:x?}");
                    assert!(!allows(call as usize, arguments, PASSED_ON), "{call}");
                    assert!(!allows(call as usize, arguments, 5), "{call}");
                }
                let mut arguments = right;
                arguments[n] = wrong;
                assert!(!allows(call as usize, arguments, INSIDE), "{call} {arguments:x?}");
            }
            assert!(!allows(call as usize, [0x1234_565c; 6], INSIDE), "{call}");
            calls.insert(call as usize);
        }
        // And nothing else is allowed, whatever it is handed.
        let free = FREE.map(|call| call as usize);
        for number in 0..600 {
            let listed = calls.contains(&number) || free.contains(&number);
            let special = [MASK, Sysno::rt_sigreturn as usize].contains(&number);
            for value in [0, 1, 2, 9, 1536, 4711, 4712] {
                assert!(
                    listed || special || !allows(number, [value; 6], INSIDE),
                    "{number} {value}"
                );
            }
        }
    }

    #[test]
    fn nothing_opens_connects_executes_or_touches_others() {
        let calls = [
            Sysno::open,
            Sysno::openat,
            Sysno::openat2,
            Sysno::creat,
            Sysno::unlink,
            Sysno::unlinkat,
            Sysno::rename,
            Sysno::mkdirat,
            Sysno::readlinkat,
            Sysno::newfstatat,
            Sysno::statx,
            Sysno::statfs,
            Sysno::chdir,
            Sysno::fchdir,
            Sysno::socket,
            Sysno::connect,
            Sysno::sendmsg,
            Sysno::execve,
            Sysno::execveat,
            Sysno::ptrace,
            Sysno::process_vm_readv,
            Sysno::process_vm_writev,
            Sysno::rt_sigqueueinfo,
            Sysno::rt_tgsigqueueinfo,
            Sysno::pidfd_getfd,
            Sysno::clone3,
            Sysno::io_uring_setup,
            Sysno::io_uring_register,
            Sysno::pipe2,
            Sysno::dup,
            Sysno::dup2,
            Sysno::dup3,
            Sysno::pkey_mprotect,
            Sysno::seccomp,
            Sysno::bpf,
        ];
        for call in calls {
            assert!(!FREE.contains(&call) && BOUND.iter().all(|(bound, _)| *bound != call));
        }
        assert!(!allows(Sysno::kill as usize, [1, 9, 0, 0, 0, 0], INSIDE));
        assert!(!allows(Sysno::tgkill as usize, [1, 1, 9, 0, 0, 0], INSIDE));
        assert!(!allows(Sysno::clone as usize, [17, 0, 0, 0, 0, 0], INSIDE));
        assert!(!allows(Sysno::pidfd_send_signal as usize, [3, 9, 0, 0, 0, 0], INSIDE));
        assert!(!allows(Sysno::tgkill as usize, [4712, 4712, 9, 0, 0, 0], INSIDE));
    }

    #[test]
    fn calls_of_the_engine_are_allowed_and_others_left_to_the_program() {
        let futex = |address| allows(Sysno::futex as usize, [7; 6], address);
        assert!(futex(INSIDE) && futex(0x7f12_3400_0000) && futex(0x7f12_3407_ffff));
        assert!(![PASSED_ON, 0x7f12_3408_0000, 0x7f12_33ff_ffff].into_iter().any(futex));
        assert!(!futex(INSIDE - (1 << 32)));
        for number in [MASK, Sysno::rt_sigreturn as usize, FOREIGN, FOREIGN + 1023] {
            assert!(allows(number, [0; 6], 5));
        }
        assert!(
            ![MASK - 1, MASK + 1, FOREIGN - 1, FOREIGN + 1024]
                .iter()
                .any(|number| allows(*number, [0; 6], 5))
        );
        assert!(FREE.iter().all(|call| allows(*call as usize, [0; 6], INSIDE)));
    }

    #[test]
    fn other_architectures_and_odd_places() {
        let filter = beginning(0x1_0000..0x2_0000, 0x1_8000, &own()).unwrap();
        let call = Call {
            number: Sysno::futex as u32,
            arguments: [0; 6],
            architecture: 0x4000_0003,
            address: 0x1_1000,
        };
        let filter = [filter, vec![plain(op::RETURN, 0)]].concat();
        assert_eq!(run(&filter, &call).0, 0);
        assert_eq!(beginning(0xffff_f000..0x1_0000_1000, 0, &own()), None);
    }
}
