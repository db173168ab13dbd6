//! Seeing that the program writes into the memory of other processes.
//!
//! process_vm_writev(2) finds the pages of the other process and pins them, then copies, when what
//! is to be copied is there. To evict such a page in place would lose what is written. So all
//! processes of the job are told before the first such call of any, and their pages leave by moving
//! only from then on: the kernel does not move what is pinned.
//!
//! ptrace(2) and `/proc/PID/mem` write under a lock of the kernel's, for which the engine waits:
//! nothing is to be seen.
//!
//! Not seen: calls that do not pass through the C library, but for those that are found
//! ([`crate::inline`]), and processes of which the job knows nothing. The setting `out=move` is for
//! those. No locks.

use crate::{dormant, pool};
use overspill_os::tls;
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};

/// All processes of the job know.
static TOLD: AtomicBool = AtomicBool::new(false);

/// The program is about to make a call.
#[inline(always)]
pub fn look_at_call(number: i64) {
    if number == libc::SYS_process_vm_writev && tls::is_program() && !TOLD.load(Acquire) {
        tell();
    }
}

#[cold]
fn tell() {
    if dormant::is_dormant() {
        dormant::remote_writes_seen();
    } else {
        pool::remote_writes_seen();
    }
    // Only now, so that no other thread goes on before.
    TOLD.store(true, Release);
}
