//! The functions that C calls.
//!
//! Each does what it says or nothing, and returns a code; the sentence is kept for the thread
//! ([`crate::error::overspill_last_message`]). All may be called by several threads at once.
//!
//! Where one is unsafe, its caller promises what its type says in C: strings end with a zero, what
//! is not null and no handle may be read, and where it is not `const` written.

use crate::error::{Failure, answer, overspill_error};
use crate::fork;
use crate::options::{config, needed_text, overspill_options};
use crate::pools::{self, Call, overspill_pool};
use overspill::config::SwapSpec;
use overspill::stats::Counter;
use overspill::units::{Bytes, PAGE_SIZE};
use overspill::{Error, MapFlags, Pool};
use overspill_os::Errno;
use overspill_os::vm::{Prot, advice};
use std::ffi::{CString, c_char, c_int, c_void};
use std::ops::ControlFlow;
use std::ptr::null;
use std::sync::LazyLock;

/// What is going to happen to pages. Their content stays.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(non_camel_case_types, reason = "the names of C")]
pub enum overspill_advice {
    /// They are not needed soon: they leave first when room is needed.
    OVERSPILL_ADVICE_COLD = 0,
    /// They are not needed for long: they leave now.
    OVERSPILL_ADVICE_PAGEOUT = 1,
    /// They are needed soon: they come in, as many as there is room for.
    OVERSPILL_ADVICE_WILLNEED = 2,
}

/// What the system refuses that has no code of its own.
fn refused(errno: Errno) -> Failure {
    let message = format_args!("the system refuses it: {errno}");
    Failure::new(overspill_error::OVERSPILL_ERROR_SYSTEM, message)
}

/// Puts a result where C wants it.
///
/// # Safety
/// The pointer is null, or may be written to.
unsafe fn give<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: the caller's promise.
        unsafe { place.write(value) };
    }
}

/// Opens a pool and puts its handle into `*pool`.
///
/// The strings of the options end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_open(
    options: *const overspill_options,
    pool: *mut *mut overspill_pool,
) -> overspill_error {
    fork::register();
    answer(|| {
        if pool.is_null() {
            return Err(Failure::null("pool"));
        }
        // SAFETY: the caller's promise.
        let config = unsafe { config(options)? };
        let handle = pools::open(|| Ok(Pool::new(config)?))?;
        // SAFETY: the caller's promise.
        unsafe { give(pool, handle) };
        Ok(())
    })
}

/// Closes a pool, which has no regions any more. A null pointer is no pool, and that is no error.
#[unsafe(no_mangle)]
pub extern "C" fn overspill_close(pool: *mut overspill_pool) -> overspill_error {
    answer(|| if pool.is_null() { Ok(()) } else { pools::close(pool) })
}

/// Maps a region of `size` zero bytes, which may be more than the budget, and puts its address into
/// `*address`. It begins at a page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_map(
    pool: *mut overspill_pool,
    size: usize,
    address: *mut *mut c_void,
) -> overspill_error {
    answer(|| {
        let call = Call::begin(pool)?;
        if address.is_null() {
            return Err(Failure::null("address"));
        }
        if size == 0 {
            return Err(Failure::argument("the size is 0: pass that of the region in bytes"));
        }
        let none = |_| {
            let size = Bytes(size as u64);
            Failure::new(
                overspill_error::OVERSPILL_ERROR_ADDRESS_SPACE,
                format_args!(
                    "the pool has no addresses for a region of {size}: unmap another, or open the \
                     pool with a larger window (settings \"window=SIZE\")"
                ),
            )
        };
        let len = size.checked_next_multiple_of(PAGE_SIZE).ok_or(Errno::NOMEM).map_err(none)?;
        let flags = MapFlags::default();
        let start = call.pool.mmap(None, len, Prot::READ_WRITE, flags).map_err(none)?;
        call.add(start, len)?;
        // SAFETY: the caller's promise.
        unsafe { give(address, std::ptr::with_exposed_provenance_mut(start)) };
        Ok(())
    })
}

/// Unmaps the region that begins at `address`, all of it. A null pointer is no region, and that is
/// no error.
#[unsafe(no_mangle)]
pub extern "C" fn overspill_unmap(
    pool: *mut overspill_pool,
    address: *mut c_void,
) -> overspill_error {
    answer(|| {
        let call = Call::begin(pool)?;
        if address.is_null() {
            return Ok(());
        }
        let range = call.remove(address.addr())?;
        call.pool.munmap(range).map_err(refused)
    })
}

/// Says what is going to happen to `size` bytes of a region, one of `overspill_advice`. Whole pages
/// around them are meant.
#[unsafe(no_mangle)]
pub extern "C" fn overspill_advise(
    pool: *mut overspill_pool,
    address: *const c_void,
    size: usize,
    advice: c_int,
) -> overspill_error {
    const COLD: c_int = overspill_advice::OVERSPILL_ADVICE_COLD as c_int;
    const PAGEOUT: c_int = overspill_advice::OVERSPILL_ADVICE_PAGEOUT as c_int;
    const WILLNEED: c_int = overspill_advice::OVERSPILL_ADVICE_WILLNEED as c_int;
    answer(|| {
        let call = Call::begin(pool)?;
        let what = match advice {
            COLD => advice::COLD,
            PAGEOUT => advice::PAGEOUT,
            WILLNEED => advice::WILLNEED,
            _ => {
                return Err(Failure::argument(format_args!(
                    "advice is {advice}: pass one of overspill_advice"
                )));
            }
        };
        let range = call.part(address.addr(), size)?;
        call.pool.madvise(range, what).map_err(refused)
    })
}

/// Brings `size` bytes of a region into memory, as many as there is room for without reclaim:
/// `OVERSPILL_ADVICE_WILLNEED`.
#[unsafe(no_mangle)]
pub extern "C" fn overspill_prefetch(
    pool: *mut overspill_pool,
    address: *const c_void,
    size: usize,
) -> overspill_error {
    overspill_advise(pool, address, size, overspill_advice::OVERSPILL_ADVICE_WILLNEED as c_int)
}

/// Brings `size` bytes of a region into memory and keeps them there until `overspill_release` of
/// the same, as often as they were held: so that a system call can read and write them in any
/// delivery. At most half of the budget can be held.
#[unsafe(no_mangle)]
pub extern "C" fn overspill_hold(
    pool: *mut overspill_pool,
    address: *const c_void,
    size: usize,
) -> overspill_error {
    answer(|| {
        let call = Call::begin(pool)?;
        // Noted first: the region is not unmapped while its pages come in.
        let range = call.hold(address.addr(), size)?;
        call.pool.hold(range).map_err(|_| {
            let _ = call.release(address.addr(), size);
            Failure::new(
                overspill_error::OVERSPILL_ERROR_NO_MEMORY,
                format_args!(
                    "{} more cannot be held: at most half of the budget stays in memory. Release \
                     what is held, hold less at a time, or set a larger budget",
                    Bytes(size as u64)
                ),
            )
        })
    })
}

/// Ends what `overspill_hold` of the same bytes began.
#[unsafe(no_mangle)]
pub extern "C" fn overspill_release(
    pool: *mut overspill_pool,
    address: *const c_void,
    size: usize,
) -> overspill_error {
    answer(|| {
        let call = Call::begin(pool)?;
        let range = call.release(address.addr(), size)?;
        call.pool.release(range);
        Ok(())
    })
}

/// Changes the budget to `memory` bytes. A larger one is in force when this returns, a smaller one
/// by and by.
#[unsafe(no_mangle)]
pub extern "C" fn overspill_set_memory(pool: *mut overspill_pool, memory: u64) -> overspill_error {
    answer(|| Ok(Call::begin(pool)?.pool.set_memory(Bytes(memory))?))
}

/// Takes `memory` bytes of pages out of memory ahead of need, and waits for it. How many have left
/// is put into `*reclaimed`, which may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_reclaim(
    pool: *mut overspill_pool,
    memory: u64,
    reclaimed: *mut u64,
) -> overspill_error {
    answer(|| {
        let left = Call::begin(pool)?.pool.reclaim(Bytes(memory));
        // SAFETY: the caller's promise.
        unsafe { give(reclaimed, left.0) };
        Ok(())
    })
}

/// Adds a swap device, as `overspill run --swap` takes it: "/scratch:20G".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_swapon(
    pool: *mut overspill_pool,
    device: *const c_char,
) -> overspill_error {
    answer(|| {
        let call = Call::begin(pool)?;
        // SAFETY: the caller's promise.
        let device = unsafe { needed_text(device, "device")? };
        let spec: SwapSpec = device.parse().map_err(Error::from)?;
        call.pool.swapon(&spec).map_err(Error::from)?;
        Ok(())
    })
}

/// Takes a swap device out of use, by its path, label or UUID: waits until its pages are elsewhere.
/// If nothing has room for them it stays in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_swapoff(
    pool: *mut overspill_pool,
    device: *const c_char,
) -> overspill_error {
    answer(|| {
        let call = Call::begin(pool)?;
        // SAFETY: the caller's promise.
        let device = unsafe { needed_text(device, "device")? };
        call.pool.swapoff(device, |_| ControlFlow::Continue(()))?;
        Ok(())
    })
}

/// Reads the counter of that name into `*value`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_stats(
    pool: *mut overspill_pool,
    name: *const c_char,
    value: *mut u64,
) -> overspill_error {
    answer(|| {
        let call = Call::begin(pool)?;
        // SAFETY: the caller's promise.
        let name = unsafe { needed_text(name, "name")? };
        if value.is_null() {
            return Err(Failure::null("value"));
        }
        let counter = Counter::ALL.iter().find(|counter| counter.name() == name);
        let counter = counter.ok_or_else(|| {
            Failure::new(
                overspill_error::OVERSPILL_ERROR_NO_COUNTER,
                format_args!(
                    "there is no counter '{name}': overspill_stats_name lists those that there are"
                ),
            )
        })?;
        let figure = call.pool.stats().get(*counter);
        // SAFETY: the caller's promise.
        unsafe { give(value, figure) };
        Ok(())
    })
}

/// The name of the counter of that number, counted from 0; null after the last. It is not to be
/// freed.
#[unsafe(no_mangle)]
pub extern "C" fn overspill_stats_name(number: usize) -> *const c_char {
    static NAMES: LazyLock<Vec<CString>> = LazyLock::new(|| {
        let name = |counter: &Counter| CString::new(counter.name()).expect("no name has a zero");
        Counter::ALL.iter().map(name).collect()
    });
    NAMES.get(number).map_or(null(), |name| name.as_ptr())
}

/// The version of the library, such as "0.1.0". It is not to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn overspill_version() -> *const c_char {
    const VERSION: &[u8] = concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes();
    VERSION.as_ptr().cast()
}
