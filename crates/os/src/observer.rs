//! Who looks on: a tracer, or a program that translates this one instruction by instruction.
//!
//! A tracer is told of each signal before it comes, and may stop the process there. Under valgrind
//! a program runs on a processor and behind a kernel interface that valgrind makes up: without
//! userfaultfd and filters, in 128 GiB of addresses. Both are asked once, when the process starts.
//! No locks.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::arch::asm;

/// Whether the process is traced (ptrace(2)), as it is by gdb and strace.
pub fn is_traced() -> bool {
    let mut text = [0; 512];
    let read = |text: &mut [u8]| -> Result<usize, Errno> {
        let file =
            rustix::fs::open("/proc/self/status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::io::read(crate::io::File::from_fd(file).fd()?, text)
    };
    read(&mut text).is_ok_and(|len| names_tracer(&text[..len]))
}

/// Whether `/proc/PID/status` names a tracer.
fn names_tracer(status: &[u8]) -> bool {
    const LINE: &[u8] = b"\nTracerPid:\t";
    let line = status.windows(LINE.len()).position(|part| part == LINE);
    line.and_then(|at| status.get(at + LINE.len())).is_some_and(|digit| *digit != b'0')
}

/// Whether valgrind runs the process (its request RUNNING_ON_VALGRIND: rotations that come to
/// nothing, and an exchange of a register with itself).
pub fn is_translated() -> bool {
    const RUNNING_ON_VALGRIND: usize = 0x1001;
    let request = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let depth: usize;
    // SAFETY: on a processor this changes the flags only; valgrind reads the request and sets rdx.
    unsafe {
        asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            inout("rdi") 0usize => _,
            in("rax") request.as_ptr(),
            inout("rdx") 0usize => depth,
            options(nostack, readonly),
        );
    }
    depth != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tracer_is_told_by_its_number() {
        assert!(names_tracer(b"Name:\tx\nTracerPid:\t4711\nUid:\t0\n"));
        assert!(!names_tracer(b"Name:\tx\nTracerPid:\t0\nUid:\t0\n"));
        assert!(!names_tracer(b"Name:\tx\nTracerPid:\t") && !names_tracer(b""));
    }

    #[test]
    fn a_processor_is_no_translator() {
        assert!(!is_translated());
    }
}
