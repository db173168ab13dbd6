//! Exceptions for the engine in a filter that the program puts on itself.
//!
//! A sandboxed program allows the calls that it makes, and kills for others; the engine makes its
//! own on the program's threads. So the program's filter gets a beginning that allows what is made
//! from the engine's code, as told by the address of the instruction: only the calls that the
//! engine needs (`ENGINES`), and no memory that can be executed. Calls of the program's that are
//! only passed on from there by number, after their memory was made safe, are left to the program's
//! filter.
//!
//! The engine's code differs from process to process, but not after a fork. What the program
//! executes has an engine of its own, for which the exceptions do not hold.

use super::{ARCHITECTURE, Instruction, MASK, RET_ALLOW, branch, data, op, plain};
use std::ops::Range;
use syscalls::Sysno;

/// Most instructions of a filter (BPF_MAXINSNS).
pub const LONGEST: usize = 4096;

/// PR_GET_TID_ADDRESS of prctl(2).
const PR_GET_TID_ADDRESS: u32 = 40;

/// What the engine calls on any thread, in a running program and in the child of a fork.
const ENGINES: [Sysno; 68] = [
    Sysno::read,
    Sysno::write,
    Sysno::pread64,
    Sysno::pwrite64,
    Sysno::ioctl,
    Sysno::madvise,
    Sysno::process_madvise,
    Sysno::munmap,
    Sysno::mremap,
    Sysno::mlock,
    Sysno::mlock2,
    Sysno::munlock,
    Sysno::mincore,
    Sysno::membarrier,
    Sysno::process_vm_readv,
    Sysno::futex,
    Sysno::futex_waitv,
    Sysno::sched_yield,
    Sysno::nanosleep,
    Sysno::clock_nanosleep,
    Sysno::clock_gettime,
    Sysno::getcpu,
    Sysno::getpid,
    Sysno::gettid,
    Sysno::geteuid,
    Sysno::tgkill,
    Sysno::rt_sigprocmask,
    Sysno::rt_sigtimedwait,
    Sysno::sigaltstack,
    Sysno::poll,
    Sysno::ppoll,
    Sysno::fcntl,
    Sysno::fstat,
    Sysno::newfstatat,
    Sysno::statx,
    Sysno::statfs,
    Sysno::ftruncate,
    Sysno::fallocate,
    Sysno::open,
    Sysno::openat,
    Sysno::unlinkat,
    Sysno::close,
    Sysno::close_range,
    Sysno::dup,
    Sysno::pipe2,
    Sysno::memfd_create,
    Sysno::getrandom,
    Sysno::sysinfo,
    Sysno::getsockopt,
    Sysno::prlimit64,
    Sysno::userfaultfd,
    Sysno::pidfd_open,
    Sysno::pidfd_getfd,
    Sysno::clone,
    Sysno::wait4,
    Sysno::setsid,
    Sysno::chdir,
    Sysno::kcmp,
    Sysno::kill,
    Sysno::rseq,
    Sysno::rt_tgsigqueueinfo,
    Sysno::set_robust_list,
    Sysno::set_tid_address,
    Sysno::readlinkat,
    Sysno::io_uring_setup,
    Sysno::io_uring_enter,
    Sysno::exit,
    Sysno::exit_group,
];

/// The beginning of a program's filter: allows the engine's calls from `code`, but not one that
/// returns to `passed_on`, and goes on to what follows for all others. None where the code lies so
/// that an address does not tell.
pub fn beginning(code: Range<usize>, passed_on: usize) -> Option<Vec<Instruction>> {
    const ALLOW: u8 = u8::MAX;
    const GO_ON: u8 = u8::MAX - 1;
    const PROT_EXEC: u32 = 4;
    if code.start >> 32 != code.end >> 32 {
        return None;
    }
    let mut filter = vec![
        plain(op::LOAD, data::ARCHITECTURE),
        branch(op::IF_EQUAL, ARCHITECTURE, 0, GO_ON),
        // 1. What ends a handler, and the number that comes to ours.
        plain(op::LOAD, data::NUMBER),
        branch(op::IF_EQUAL, Sysno::rt_sigreturn as u32, ALLOW, 0),
        branch(op::IF_EQUAL, MASK as u32, ALLOW, 0),
        // 2. From the engine's code?
        plain(op::LOAD, data::ADDRESS + 4),
        branch(op::IF_EQUAL, (code.start >> 32) as u32, 0, GO_ON),
        plain(op::LOAD, data::ADDRESS),
        branch(op::IF_AT_LEAST, code.start as u32, 0, GO_ON),
        branch(op::IF_AT_LEAST, code.end as u32, GO_ON, 0),
        branch(op::IF_EQUAL, passed_on as u32, GO_ON, 0),
        // 3. Memory, which must not be executable.
        plain(op::LOAD, data::NUMBER),
        branch(op::IF_EQUAL, Sysno::mmap as u32, 1, 0),
        branch(op::IF_EQUAL, Sysno::mprotect as u32, 0, 2),
        plain(op::LOAD, data::lower(2)),
        branch(op::IF_SET, PROT_EXEC, GO_ON, ALLOW),
        // The name of a thread, and two questions.
        branch(op::IF_EQUAL, Sysno::prctl as u32, 0, 4),
        plain(op::LOAD, data::lower(0)),
        branch(op::IF_EQUAL, libc::PR_SET_NAME as u32, ALLOW, 0),
        branch(op::IF_EQUAL, libc::PR_GET_CHILD_SUBREAPER as u32, ALLOW, 0),
        branch(op::IF_EQUAL, PR_GET_TID_ADDRESS, ALLOW, GO_ON),
    ];
    // 4. Others.
    filter.extend(ENGINES.map(|call| branch(op::IF_EQUAL, call as u32, ALLOW, 0)));
    filter.push(plain(op::JUMP, 1));
    let allow = filter.len();
    filter.push(plain(op::RETURN, RET_ALLOW));
    let go_on = filter.len();
    for (at, instruction) in filter.iter_mut().enumerate() {
        for jump in [&mut instruction.if_true, &mut instruction.if_false] {
            *jump = match *jump {
                ALLOW => (allow - at - 1) as u8,
                GO_ON => (go_on - at - 1) as u8,
                other => other,
            };
        }
    }
    Some(filter)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Call, run};
    use super::super::{RET_TRAP, data};
    use super::*;

    /// A beginning before a filter that kills for everything.
    fn answer(number: usize, prot: u64, address: u64) -> bool {
        let code = 0x7f12_3400_0000..0x7f12_3408_0000;
        let mut filter = beginning(code, 0x7f12_3400_1000).unwrap();
        assert!(filter.len() < 250, "its jumps reach");
        filter.push(plain(op::LOAD, data::NUMBER));
        filter.push(plain(op::RETURN, RET_TRAP));
        let call = Call {
            number: number as u32,
            arguments: [0, 0, prot, 0, 0, 0],
            architecture: ARCHITECTURE,
            address,
        };
        run(&filter, &call).0 == RET_ALLOW
    }

    #[test]
    fn calls_of_the_engine_are_allowed_and_others_left_to_the_program() {
        let (inside, passed_on) = (0x7f12_3400_2000, 0x7f12_3400_1000);
        let futex = Sysno::futex as usize;
        assert!(answer(futex, 0, inside) && answer(futex, 7, 0x7f12_3400_0000));
        assert!(
            !answer(futex, 0, passed_on)
                && !answer(futex, 0, 0x7f12_3408_0000)
                && !answer(futex, 0, 0x7f12_33ff_ffff)
        );
        assert!(!answer(futex, 0, inside - (1 << 32)));
        assert!(
            !answer(Sysno::execve as usize, 0, inside)
                && !answer(Sysno::socket as usize, 0, inside)
        );
        for call in [Sysno::mmap as usize, Sysno::mprotect as usize] {
            assert!(
                answer(call, 3, inside)
                    && !answer(call, 4, inside)
                    && !answer(call, 7, inside)
                    && !answer(call, 3, 5)
            );
        }
        assert!(!answer(Sysno::prctl as usize, 0, inside), "its first argument is 0 here");
        assert!([MASK, Sysno::rt_sigreturn as usize].iter().all(|n| answer(*n, 0, 5)));
        assert!(![MASK - 1, MASK + 1].iter().any(|n| answer(*n, 0, 5)));
        assert!(ENGINES.iter().all(|call| answer(*call as usize, 0, inside)));
    }

    #[test]
    fn other_architectures_and_odd_places() {
        let filter = beginning(0x1_0000..0x2_0000, 0x1_8000).unwrap();
        let call = Call {
            number: Sysno::futex as u32,
            arguments: [0; 6],
            architecture: 0x4000_0003,
            address: 0x1_1000,
        };
        let filter = [filter, vec![plain(op::RETURN, 0)]].concat();
        assert_eq!(run(&filter, &call).0, 0);
        assert_eq!(beginning(0xffff_f000..0x1_0000_1000, 0), None);
    }
}
