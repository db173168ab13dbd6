//! What a pool is opened with, as C says it.

use crate::error::{Failure, overspill_error};
use overspill::Error;
use overspill::config::{Config, Delivery, SwapList};
use overspill::units::Bytes;
use std::ffi::{CStr, c_char, c_int};

/// How faults are served.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(non_camel_case_types, reason = "the names of C")]
pub enum overspill_delivery {
    /// By the thread that faults. It needs no rights. System calls fail with EFAULT on memory that
    /// is out: `overspill_hold` brings it in and keeps it there.
    OVERSPILL_DELIVERY_SIGNAL = 0,
    /// By a thread of the library. System calls work on any memory of the pool. It needs root,
    /// CAP_SYS_PTRACE, vm.unprivileged_userfaultfd=1 or /dev/userfaultfd.
    OVERSPILL_DELIVERY_THREAD = 1,
}

/// What a pool is opened with. Begin with `OVERSPILL_OPTIONS_INIT`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "the name of C")]
pub struct overspill_options {
    /// Bytes of this, by which later versions of the library know what it has.
    pub size: usize,
    /// The budget of RAM in bytes, 4 MiB at least.
    pub memory: u64,
    /// Swap devices, as `overspill run --swap` takes them: "/fast:20G,prio=2,/slow". Null for none:
    /// then pages are only compressed.
    pub swap: *const c_char,
    /// One of `overspill_delivery`.
    pub delivery: c_int,
    /// Settings, as `overspill run --set` takes them: "zswap.codec=zstd:1,oom=sigbus". Null for
    /// none.
    pub settings: *const c_char,
}

/// A string of C's; `None` for a null pointer.
///
/// # Safety
/// The pointer is null, or that of a string which lives for as long as what is returned.
pub unsafe fn text<'a>(string: *const c_char, what: &str) -> Result<Option<&'a str>, Failure> {
    if string.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let string = unsafe { CStr::from_ptr(string) };
    let text = string.to_str().map(Some);
    text.map_err(|_| Failure::argument(format_args!("{what} is no UTF-8: write it so")))
}

/// The same of a string that has to be there.
///
/// # Safety
/// As for [`text`].
pub unsafe fn needed_text<'a>(string: *const c_char, what: &str) -> Result<&'a str, Failure> {
    // SAFETY: the caller's promise.
    unsafe { text(string, what) }?.ok_or_else(|| Failure::null(what))
}

fn delivery(number: c_int) -> Result<Delivery, Failure> {
    const SIGNAL: c_int = overspill_delivery::OVERSPILL_DELIVERY_SIGNAL as c_int;
    const THREAD: c_int = overspill_delivery::OVERSPILL_DELIVERY_THREAD as c_int;
    match number {
        SIGNAL => Ok(Delivery::Signal),
        THREAD => Ok(Delivery::Thread),
        _ => Err(Failure::argument(format_args!(
            "delivery is {number}: set OVERSPILL_DELIVERY_SIGNAL or OVERSPILL_DELIVERY_THREAD"
        ))),
    }
}

/// Under `overspill run` with faults by signal the process has another engine, in the library that
/// is preloaded, and one handler of SIGBUS.
fn check_handler(delivery: Delivery) -> Result<(), Failure> {
    let has = |name, part: &str| std::env::var(name).is_ok_and(|value| value.contains(part));
    let is_taken = has("LD_PRELOAD", "liboverspill_preload") && has("OVERSPILL_FAULT", "signal");
    if delivery != Delivery::Signal || !is_taken {
        return Ok(());
    }
    Err(Failure::new(
        overspill_error::OVERSPILL_ERROR_UNSUPPORTED,
        "this program runs under overspill run with --fault signal, beside which there is no pool \
         in signal delivery: run it with --fault thread, or without overspill run",
    ))
}

/// The configuration that options ask for.
///
/// # Safety
/// The pointer is null, or that of a structure whose strings are null or live.
pub unsafe fn config(options: *const overspill_options) -> Result<Config, Failure> {
    if options.is_null() {
        return Err(Failure::null("options"));
    }
    // SAFETY: the caller's promise; the size comes first in every version.
    let size = unsafe { (&raw const (*options).size).read() };
    if size != size_of::<overspill_options>() {
        return Err(Failure::argument(format_args!(
            "options.size is {size} and this library knows {}: begin options with \
             OVERSPILL_OPTIONS_INIT, and run the program with a library as new as its header",
            size_of::<overspill_options>()
        )));
    }
    // SAFETY: the caller's promise, and it has this size.
    let options = unsafe { options.read() };
    // SAFETY: the caller's promise for the strings.
    let (swap, settings) =
        unsafe { (text(options.swap, "swap")?, text(options.settings, "settings")?) };
    let SwapList(swap) = swap.unwrap_or_default().parse().map_err(Error::from)?;
    let mut config = Config {
        memory: Bytes(options.memory),
        swap,
        delivery: delivery(options.delivery)?,
        ..Config::default()
    };
    config.apply_settings(settings.unwrap_or_default()).map_err(Error::from)?;
    check_handler(config.delivery)?;
    Ok(config)
}
