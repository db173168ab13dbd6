//! How faults are delivered: by signals where that is asked for and possible, else by a thread.

use crate::config::Asked;
use crate::signals::{self, altstack, masks};
use crate::{image, low, streams, stubs, trap};
use overspill::config::{Config, Delivery};
use overspill_os::uffd::open_descriptor;
use overspill_os::{Errno, observer, seccomp, tls, vm};
use std::ops::Range;

/// The pool's configuration, and the process prepared for what it says. Called once, before there
/// is a pool.
///
/// # Errors
/// A sentence that says what is not possible here.
pub fn settle(asked: Asked) -> Result<Config, String> {
    let _internal = tls::Internal::enter();
    let is_by_thread = is_by_thread(&asked);
    let Asked { mut config, window, or_thread, .. } = asked;
    if is_by_thread {
        config.delivery = Delivery::Thread;
    }
    // `overspill run` has seen that a thread can serve faults. What is executed by who has given up
    // his rights goes on by signals, which take none.
    let or_signals = config.delivery == Delivery::Thread && open_descriptor(false).is_err();
    if config.delivery == Delivery::Signal || or_signals {
        match start_signals() {
            Ok(()) => {
                config.delivery = Delivery::Signal;
                config.window_at = Some(window..seccomp::WINDOW.end);
                let all: Vec<_> = config.annexes.iter().chain(&config.low).cloned().collect();
                if !stop_for_annexes(&all) {
                    config.annexes.clear();
                    config.low.take().into_iter().for_each(low::release);
                }
            }
            Err(_) if or_thread || or_signals => config.delivery = Delivery::Thread,
            Err(error) => return Err(error),
        }
    }
    Ok(config)
}

/// Has calls with addresses of annexes stopped as well; whether that can be. Where addresses are
/// not random, what the process executes would be stopped for addresses of its own. What begins
/// before an annex may reach into it, so calls with other variables of its segment are stopped too.
fn stop_for_annexes(annexes: &[Range<usize>]) -> bool {
    let code = || image::code().into_iter().chain(stubs::room()).collect::<Vec<_>>();
    annexes.is_empty()
        || vm::has_random_addresses()
            && seccomp::install_for(&image::with_segments_before(annexes), &code()).is_ok()
}

/// Whether a thread will serve the faults: so it was asked for, or a tracer would be told of every
/// signal.
pub fn is_by_thread(asked: &Asked) -> bool {
    asked.config.delivery == Delivery::Thread
        || observer::is_traced() && open_descriptor(false).is_ok()
}

/// In signal delivery all processes of a job have the same filter, from the first on: a call that
/// it answers must not change its answer when a process wakes. Whether that can be shows then.
pub fn put_filter(asked: &Asked) {
    let _internal = tls::Internal::enter();
    if !is_by_thread(asked) && !seccomp::is_in_force() {
        let _ = seccomp::install();
    }
}

/// Prepares the process for faults by signal, or leaves it as it was.
fn start_signals() -> Result<(), String> {
    signals::start();
    altstack::give();
    start_calls().inspect_err(|_| {
        altstack::take_back();
        signals::stop();
    })
}

/// Prepares it for system calls on managed memory.
fn start_calls() -> Result<(), String> {
    trap::make_buffers()
        .map_err(|errno| format!("no memory for the buffers of system calls: {errno}"))?;
    masks::start().map_err(|errno| {
        format!(
            "the C library's code cannot be changed here ({errno}), so signals would be lost: \
                 use --fault thread"
        )
    })?;
    let kept = |errno: Errno| {
        format!("the C library's data cannot be changed here ({errno}): use --fault thread")
    };
    streams::start().map_err(kept)?;
    trap::start()
}
