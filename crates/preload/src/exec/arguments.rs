//! What a program is executed with, as the caller has it: counted, measured and copied.

use crate::memory::copies::ThreadCopies;
use crate::memory::strings::{Strings, each, environ};
use crate::{memory, pool};
use overspill_os::{Errno, PAGE_SIZE};
use std::ffi::CStr;

/// Longest string that the kernel takes (MAX_ARG_STRLEN).
pub const STRING_MAX: usize = 32 * PAGE_SIZE;

/// The arguments of a program: an array, or those of a function, the first five of which are in one
/// place and the rest in another.
#[derive(Clone, Copy)]
pub enum Arguments {
    Array(Strings),
    List(*const usize, *const usize),
}

impl Arguments {
    /// Argument `n`, 0 at the end; None where the array cannot be read.
    ///
    /// # Safety
    ///
    /// They are as described, and those before `n` are not 0.
    pub unsafe fn get(self, n: usize) -> Option<usize> {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Arguments::Array(array) if array.is_null() => Some(0),
                Arguments::Array(array) => {
                    memory::read((array as usize).checked_add(n * size_of::<usize>())?)
                }
                Arguments::List(first, _) if n < 5 => Some(*first.add(n)),
                Arguments::List(_, rest) => Some(*rest.add(n - 5)),
            }
        }
    }

    /// How many there are; None where they cannot be read.
    ///
    /// # Safety
    ///
    /// As for [`Arguments::get`].
    pub unsafe fn count(self) -> Option<usize> {
        (0..).find_map(|n| {
            // SAFETY: each one before was looked at.
            let argument = unsafe { self.get(n) };
            argument.map_or(Some(None), |at| (at == 0).then_some(Some(n)))
        })?
    }

    /// Whether anything is managed.
    ///
    /// # Safety
    ///
    /// As for [`Arguments::get`].
    pub unsafe fn are_managed(self) -> bool {
        let managed = |n| {
            // SAFETY: the caller's promise.
            match unsafe { self.get(n) } {
                Some(0) => Some(false),
                Some(string) => pool::contains(string).then_some(true),
                // The kernel is to say so.
                None => Some(false),
            }
        };
        matches!(self, Arguments::Array(array) if pool::contains(array as usize))
            || (0..).find_map(managed) == Some(true)
    }
}

/// Bytes of a string with its end: EFAULT where it cannot be read.
pub fn length(string: usize) -> Result<usize, Errno> {
    memory::string_len(string, STRING_MAX)
}

/// A copy of arguments, in which what is not managed stays as it is.
///
/// # Safety
///
/// They were measured, `copies` has room for them, and as for [`Arguments::get`].
pub unsafe fn copy_all(
    copies: &mut ThreadCopies,
    from: Arguments,
    count: usize,
) -> Result<usize, Errno> {
    let array = copies.take((count + 1) * size_of::<usize>());
    for n in 0..=count {
        // SAFETY: the caller has counted them; the array has room for so many.
        unsafe {
            let mut string = if n < count { from.get(n).unwrap_or(0) } else { 0 };
            if pool::contains(string) {
                string = copies.copy(string, length(string)?);
            }
            (array as *mut usize).add(n).write(string);
        }
    }
    Ok(array)
}

/// Bytes that copies of arguments take, and how many they are.
///
/// # Safety
///
/// As for [`Arguments::get`].
pub unsafe fn measure(arguments: Arguments) -> Result<(usize, usize), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let count = arguments.count().ok_or(Errno::FAULT)?;
        let strings = (0..count).try_fold(0, |sum, n| {
            let string = arguments.get(n).ok_or(Errno::FAULT)?;
            let len = if pool::contains(string) { length(string)? } else { 0 };
            Ok(sum + len + SLACK)
        })?;
        Ok((strings + (count + 1) * size_of::<usize>(), count))
    }
}

/// What is added to each string, should another thread make it longer meanwhile, and for its
/// alignment.
pub const SLACK: usize = 64;

/// The directories in which programs are looked for.
///
/// # Safety
///
/// Nobody changes the environment meanwhile.
pub unsafe fn directories() -> &'static [u8] {
    // SAFETY: the caller's promise.
    let mut strings = unsafe { each(environ).map(|string| CStr::from_ptr(string).to_bytes()) };
    strings.find_map(|string| string.strip_prefix(b"PATH=")).unwrap_or(b"/bin:/usr/bin")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::copies;
    use overspill_os::tls;

    #[test]
    fn arguments_are_counted_in_arrays_and_lists() {
        let array = [c"a".as_ptr(), c"b".as_ptr(), std::ptr::null()];
        let (first, rest) = ([1usize, 2, 3, 4, 5], [6usize, 0, 77]);
        // SAFETY: each ends with a null.
        unsafe {
            assert_eq!(Arguments::Array(array.as_ptr()).count(), Some(2));
            assert_eq!(Arguments::Array(std::ptr::null()).count(), Some(0));
            let list = Arguments::List(first.as_ptr(), rest.as_ptr());
            assert_eq!((list.count(), list.get(7)), (Some(6), Some(77)));
            assert!(!list.are_managed());
        }
    }

    #[test]
    fn copies_belong_to_the_thread_until_the_next() {
        let array = [c"abc".as_ptr(), c"d".as_ptr(), std::ptr::null()];
        let arguments = Arguments::Array(array.as_ptr());
        // SAFETY: an array of strings, copied into room that was measured.
        unsafe {
            let (len, count) = measure(arguments).unwrap();
            let mut place = ThreadCopies::new(len).unwrap();
            let copy = copy_all(&mut place, arguments, count).unwrap() as Strings;
            assert_eq!(each(copy).count(), 2);
            assert_ne!(tls::copies(), 0);
        }
        copies::forget();
        assert_eq!(tls::copies(), 0);
    }
}
