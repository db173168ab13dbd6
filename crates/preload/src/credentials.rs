//! Changes of user, groups and capabilities: the process beside the program follows
//! ([`overspill_os::beside::credentials`]).
//!
//! What the C library offers for it is interposed, and the calls by number of the first thread. Not
//! covered: inline system calls, and threads with credentials of their own. What prctl(2) takes
//! from a bounding set needs no follower: the process beside gains nothing by executing.

use crate::sys::real;
use crate::{dormant, memory, pool, sandbox};
use overspill_os::beside::credentials;
use overspill_os::tls;
use std::ffi::{c_char, c_int, c_long};
use syscalls::Sysno;

/// Whether there is an engine that has to follow.
fn followed() -> bool {
    pool::exists() && tls::is_program()
}

/// Most groups that a process has (NGROUPS_MAX).
const GROUPS_MAX: usize = 65536;
/// An identity that is left as it is.
const SAME: usize = u32::MAX as usize;

/// A call that the program is about to make.
pub fn follow(call: Sysno, arguments: [usize; 3]) {
    // Afterwards it may lack the rights.
    dormant::wake();
    if !followed() {
        return;
    }
    let _internal = tls::Internal::enter();
    match call {
        Sysno::setgroups if arguments[0] <= GROUPS_MAX => {
            let mut groups = vec![0u32; arguments[0]];
            if memory::read_into(arguments[1], &mut groups) == size_of_val(&groups[..]) {
                credentials::change(call, [groups.len(), groups.as_ptr() as usize, 0]);
            }
        }
        Sysno::capset => {
            // A version and a process; two sets of three words.
            let header = memory::read::<[u32; 2]>(arguments[0]);
            if let (Some(header), Some(sets)) = (header, memory::read::<[u32; 6]>(arguments[1])) {
                credentials::change(
                    call,
                    [&raw const header as usize, &raw const sets as usize, 0],
                );
            }
        }
        Sysno::setgroups => {}
        _ => credentials::change(call, arguments),
    }
}

/// Functions that make one call.
macro_rules! followed_by {
    ($(
        $name:literal $symbol:ident($($argument:ident: $type:ty),*) = $call:ident $arguments:expr;
    )*) => {
        $(
            #[doc = concat!(stringify!($symbol), "(2).")]
            ///
            /// # Safety
            ///
            /// As for the C library's function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $symbol($($argument: $type),*) -> c_int {
                follow(Sysno::$call, $arguments);
                // SAFETY: the caller's promise.
                unsafe { real!($name as unsafe extern "C" fn($($type),*) -> c_int)($($argument),*) }
            }
        )*
    };
}

followed_by! {
    c"setuid" setuid(id: u32) = setuid [id as usize, 0, 0];
    c"setgid" setgid(id: u32) = setgid [id as usize, 0, 0];
    c"seteuid" seteuid(id: u32) = setresuid [SAME, id as usize, SAME];
    c"setegid" setegid(id: u32) = setresgid [SAME, id as usize, SAME];
    c"setreuid" setreuid(real: u32, effective: u32) =
        setreuid [real as usize, effective as usize, 0];
    c"setregid" setregid(real: u32, effective: u32) =
        setregid [real as usize, effective as usize, 0];
    c"setresuid" setresuid(real: u32, effective: u32, saved: u32) =
        setresuid [real as usize, effective as usize, saved as usize];
    c"setresgid" setresgid(real: u32, effective: u32, saved: u32) =
        setresgid [real as usize, effective as usize, saved as usize];
    c"setgroups" setgroups(count: usize, groups: *const u32) =
        setgroups [count, groups as usize, 0];
    c"capset" capset(header: *mut u32, sets: *const u32) =
        capset [header as usize, sets as usize, 0];
}

/// initgroups(3): which groups these are is known afterwards.
///
/// # Safety
///
/// As for initgroups(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn initgroups(user: *const c_char, group: u32) -> c_int {
    dormant::wake();
    // SAFETY: 1. the caller's promise; 2. so many groups are written.
    unsafe {
        let result =
            real!(c"initgroups" as unsafe extern "C" fn(*const c_char, u32) -> c_int)(user, group);
        if result == 0 && followed() {
            let _internal = tls::Internal::enter();
            let count = libc::getgroups(0, std::ptr::null_mut());
            let mut groups = vec![0u32; count.max(0) as usize];
            if libc::getgroups(count, groups.as_mut_ptr()) == count {
                credentials::change(Sysno::setgroups, [groups.len(), groups.as_ptr() as usize, 0]);
            }
        }
        result
    }
}

/// The same calls through syscall(2), of a process's first thread.
pub fn by_number(number: c_long, arguments: [usize; 3]) {
    sandbox::by_number_first(number, [arguments[0], arguments[1]]);
    const CALLS: [Sysno; 8] = [
        Sysno::setuid,
        Sysno::setgid,
        Sysno::setreuid,
        Sysno::setregid,
        Sysno::setresuid,
        Sysno::setresgid,
        Sysno::setgroups,
        Sysno::capset,
    ];
    let call = CALLS.into_iter().find(|call| *call as c_long == number);
    if let Some(call) = call.filter(|_| rustix::thread::gettid() == rustix::process::getpid()) {
        follow(call, arguments);
    }
}
