//! Engine threads: all signals blocked, marked as the engine's. They live beside the program where
//! that is used ([`crate::beside`]), else in this process (`engine_thread`).

use crate::beside::{self, EngineThread};
use crate::units::Errno;
use crate::{engine_thread, process, task};
use std::ffi::CStr;
use std::time::Duration;

pub use crate::report::{keep_standard_error, report};
pub use crate::task::{cpu_time, id, share_memory, sleep};

/// Starts one more engine thread: in the sibling where the caller is in it, else in this process.
///
/// # Errors
/// What clone(2) or pthread_create(3) says.
pub fn spawn(name: &'static CStr, body: impl FnOnce() + Send + 'static) -> Result<(), Errno> {
    let thread = EngineThread::new(name, body);
    if process::is_here() { beside::spawn(thread) } else { engine_thread::spawn_here(thread) }
}

/// Processor time that the program has used; without the engine's threads where they live beside
/// it.
pub fn process_cpu_time() -> Duration {
    task::cpu_time_of_process(process::program())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_told_by_thread() {
        let (send, receive) = std::sync::mpsc::channel();
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let idle = std::thread::spawn(move || {
            send.send(id()).unwrap();
            let _ = wait.recv();
        });
        let other = receive.recv().unwrap();
        let before = (cpu_time(id()), process_cpu_time());
        while cpu_time(id()) - before.0 < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        assert!(process_cpu_time() - before.1 >= Duration::from_millis(20));
        assert!(cpu_time(other) < Duration::from_millis(10), "it does nothing");
        assert_eq!(cpu_time((1 << 22) + 1), Duration::ZERO, "beyond the kernel's largest number");
        done.send(()).unwrap();
        idle.join().unwrap();
    }
}
