//! What is kept of a call, and what is to become of it.

use crate::memory::touch::Tries;
use overspill_os::seccomp;

/// What the registers were, on the program's stack.
#[repr(C)]
#[derive(Debug)]
pub struct Record {
    /// Where the program goes on.
    pub rip: usize,
    /// The arguments as the program passed them.
    pub arguments: [usize; 6],
    pub flags: usize,
    /// When the call comes back to [`super::finish`]: one of [`NEVER`], [`ON_FAULT`], [`ALWAYS`].
    pub finish: usize,
    pub result: usize,
    pub number: usize,
    /// The buffer that goes with the call, or 0.
    pub job: usize,
    pub tries: Tries,
    /// That of the buffer, to tell that this record is still alive.
    pub id: usize,
}

impl Record {
    /// That of a call of the C library's, which does not come by a signal.
    pub fn new(number: usize, arguments: [usize; 6]) -> Record {
        Record {
            rip: 0,
            arguments,
            flags: 0,
            finish: NEVER,
            result: 0,
            number,
            job: 0,
            tries: Tries::default(),
            id: 0,
        }
    }
}

/// A call that needs nothing afterwards.
pub const NEVER: usize = 0;
/// One that is looked at again when it fails with EFAULT.
pub const ON_FAULT: usize = 1;
/// One that is looked at in any case.
pub const ALWAYS: usize = 2;

/// What is to become of a call.
pub enum Next {
    /// It is made with these arguments.
    Call([usize; 6]),
    /// It is not made: the program gets this.
    Result(usize),
}

/// Takes off the mark of a pointer.
pub fn untag(arguments: &mut [usize; 6]) {
    for argument in &mut arguments[1..3] {
        if *argument & 0xffff << 48 == seccomp::TAG {
            *argument ^= seccomp::TAG;
        }
    }
}
