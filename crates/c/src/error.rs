//! Errors of C: a code, what it means, and the sentence of the last one of each thread.

use overspill::Error;
use overspill::swapoff::SwapoffError;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt::Display;

/// What came of a call: `OVERSPILL_OK`, or why it did nothing.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(non_camel_case_types, reason = "the names of C")]
pub enum overspill_error {
    /// It did what it was asked.
    OVERSPILL_OK = 0,
    /// An argument cannot be: a null pointer, a size of nothing, a word of no enumeration.
    OVERSPILL_ERROR_ARGUMENT = 1,
    /// The settings name what is no setting, or a value that it does not take.
    OVERSPILL_ERROR_SETTING = 2,
    /// The budget is too small, too large, or does not go with the settings.
    OVERSPILL_ERROR_BUDGET = 3,
    /// A swap device cannot be used.
    OVERSPILL_ERROR_DEVICE = 4,
    /// The kernel gives this user no userfaultfd.
    OVERSPILL_ERROR_NO_USERFAULTFD = 5,
    /// The kernel cannot do what is asked for, or the process cannot beside `overspill run`.
    OVERSPILL_ERROR_UNSUPPORTED = 6,
    /// The process has as many pools or threads as it can.
    OVERSPILL_ERROR_LIMIT = 7,
    /// There is no address space for the pool, or no room in it for the region.
    OVERSPILL_ERROR_ADDRESS_SPACE = 8,
    /// The budget has no room for it.
    OVERSPILL_ERROR_NO_MEMORY = 9,
    /// There is no such pool: it was closed, or never opened.
    OVERSPILL_ERROR_NO_POOL = 10,
    /// The addresses are not in a region of the pool, or not in one.
    OVERSPILL_ERROR_NO_REGION = 11,
    /// It is in use: a pool with regions or calls under way, a region with a part that is held.
    OVERSPILL_ERROR_IN_USE = 12,
    /// What is to be released is not held.
    OVERSPILL_ERROR_NOT_HELD = 13,
    /// There is no counter of that name.
    OVERSPILL_ERROR_NO_COUNTER = 14,
    /// Nothing has room for the pages of the device: it stays in use.
    OVERSPILL_ERROR_NO_ROOM = 15,
    /// The process is a child that was not made by fork(3): it has no pools.
    OVERSPILL_ERROR_FORKED = 16,
    /// The system refused something else.
    OVERSPILL_ERROR_SYSTEM = 17,
}

/// What each code means, by its number.
const TEXTS: &[&CStr] = &[
    c"done",
    c"invalid argument",
    c"invalid setting",
    c"invalid budget",
    c"a swap device cannot be used",
    c"no userfaultfd",
    c"not supported here",
    c"too many pools or threads",
    c"no address space",
    c"no room in the budget",
    c"no such pool",
    c"no such region",
    c"in use",
    c"not held",
    c"no such counter",
    c"no room for the pages of the device",
    c"the pool is another process's",
    c"refused by the system",
];

fn text(number: c_int) -> &'static CStr {
    let known = usize::try_from(number).ok().and_then(|number| TEXTS.get(number));
    known.copied().unwrap_or(c"unknown error")
}

/// Why a call did nothing.
#[derive(Debug)]
pub struct Failure {
    pub code: overspill_error,
    pub message: String,
}

impl Failure {
    /// With the sentence for the user.
    pub fn new(code: overspill_error, message: impl Display) -> Failure {
        Failure { code, message: message.to_string() }
    }

    /// A pointer is null that must not be.
    pub fn null(what: &str) -> Failure {
        Failure::argument(format_args!("{what} is a null pointer: pass one that is not"))
    }

    /// An argument that cannot be.
    pub fn argument(message: impl Display) -> Failure {
        Failure::new(overspill_error::OVERSPILL_ERROR_ARGUMENT, message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        use overspill_error::*;
        let code = match &error {
            Error::BudgetTooSmall { .. }
            | Error::BudgetTooLarge { .. }
            | Error::Watermarks { .. } => OVERSPILL_ERROR_BUDGET,
            Error::WindowTooLarge { .. } | Error::BadSetting(_) => OVERSPILL_ERROR_SETTING,
            Error::AddressSpace { .. } => OVERSPILL_ERROR_ADDRESS_SPACE,
            Error::NoUserfaultfd { .. } => OVERSPILL_ERROR_NO_USERFAULTFD,
            Error::TooManyPools | Error::Thread => OVERSPILL_ERROR_LIMIT,
            Error::NoMove => OVERSPILL_ERROR_UNSUPPORTED,
            Error::Swap(_) | Error::BadSwap(_) => OVERSPILL_ERROR_DEVICE,
        };
        Failure::new(code, error)
    }
}

impl From<SwapoffError> for Failure {
    fn from(error: SwapoffError) -> Failure {
        use overspill_error::*;
        let code = match &error {
            SwapoffError::Unknown(_) => OVERSPILL_ERROR_DEVICE,
            SwapoffError::NoRoom { .. } | SwapoffError::Interrupted { .. } => {
                OVERSPILL_ERROR_NO_ROOM
            }
        };
        Failure::new(code, error)
    }
}

thread_local! {
    /// The sentence of the thread's last call that failed.
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// The answer to C; the sentence is kept for the thread. A panic ends the process: this, as every
/// function that C calls, does not unwind.
pub fn answer(call: impl FnOnce() -> Result<(), Failure>) -> overspill_error {
    let Err(Failure { code, message }) = call() else { return overspill_error::OVERSPILL_OK };
    // No byte of it is 0, since no text from C has one.
    let message = CString::new(message).unwrap_or_default();
    // A thread that is ending has none any more.
    let _ = MESSAGE.try_with(|kept| *kept.borrow_mut() = message);
    code
}

/// What a code means, in a few words. Never null; it is not to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn overspill_error_text(error: c_int) -> *const c_char {
    text(error).as_ptr()
}

/// Why the last call of this thread that failed did so: a sentence that says what to do. Empty
/// before the first. It stays until the next call of the thread that fails, and is not to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn overspill_last_message() -> *const c_char {
    MESSAGE.try_with(|kept| kept.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_keeps_its_last_sentence() {
        let said = || {
            // SAFETY: a string that lives until the next failure of this thread.
            unsafe { CStr::from_ptr(overspill_last_message()) }.to_str().unwrap().to_owned()
        };
        assert_eq!(said(), "");
        let code = answer(|| Err(Failure::null("pool")));
        assert_eq!(code, overspill_error::OVERSPILL_ERROR_ARGUMENT);
        assert_eq!(said(), "pool is a null pointer: pass one that is not");
        std::thread::spawn(move || assert_eq!(said(), "")).join().unwrap();
        assert_eq!(answer(|| Ok(())), overspill_error::OVERSPILL_OK);
        assert_eq!(said(), "pool is a null pointer: pass one that is not");
    }

    #[test]
    fn each_code_has_a_text_of_its_own() {
        let last = overspill_error::OVERSPILL_ERROR_SYSTEM as c_int;
        let texts: std::collections::BTreeSet<_> = (0..=last).map(text).collect();
        assert_eq!(texts.len(), last as usize + 1);
        assert_eq!((text(-1), text(last + 1)), (c"unknown error", c"unknown error"));
    }
}
