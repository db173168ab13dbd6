//! What the program hands to a call, read and written for it where it may not be there.
//!
//! The kernel says EFAULT where a call is handed memory that cannot be accessed. So a function of
//! ours that looks at what a pointer points to before the kernel does looks at it by these. Where
//! it cannot be read the call goes to the kernel as it came, which says what it says without us;
//! where that is not possible the function says EFAULT itself.
//!
//! In signal delivery a copy is ended by its fault ([`overspill_os::copy`]):
//! [`crate::signals::handlers`] is asked first of all SIGSEGV, also when the program has no
//! handler. It costs nothing but the copy. In thread delivery, where the program's signals are its
//! own, the kernel copies.
//!
//! Not covered: in thread delivery a process that was forked in a sandbox, where a bad address is a
//! fault; programs that ignore or block SIGSEGV, or have set their handler by a call that
//! bypasses the C library.

use crate::{pool, probe, sys};
use overspill_os::{Errno, PAGE_SIZE, confined, copy};
use std::mem::MaybeUninit;
use syscalls::{Sysno, raw_syscall};

pub mod copies;
pub mod strings;
pub mod touch;
pub mod vectors;

/// Copies bytes; returns how many.
///
/// # Safety
///
/// What can be written at `to` may be overwritten.
unsafe fn transfer(to: usize, from: usize, len: usize) -> usize {
    if pool::signal_delivery() {
        // SAFETY: the caller's promise; the handlers are in place.
        return unsafe { copy::copy(to, from, len) };
    }
    if confined::is_confined() {
        // The filter has no exception for a call that takes the number of a process.
        let there = probe::readable(from, len);
        let len = probe::writable(to, there);
        // SAFETY: the caller's promise. All of it was there just now.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, len) };
        return len;
    }
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    // Also to write: what is local is written as by the program. process_vm_writev would pin it.
    let (call, local, remote) = (Sysno::process_vm_readv, [to, len], [from, len]);
    // SAFETY: the caller's promise; the kernel says how far it came.
    let ret = unsafe { raw_syscall!(call, pid, local.as_ptr(), 1, remote.as_ptr(), 1, 0) };
    sys::check(ret).unwrap_or(0)
}

/// Reads plain data as far as that is possible; returns the number of bytes. The last ones before
/// memory that cannot be read may be left out.
pub fn read_into<T: Copy>(at: usize, to: &mut [T]) -> usize {
    // SAFETY: there is room for so many bytes.
    unsafe { transfer(to.as_mut_ptr() as usize, at, size_of_val(to)) }
}

/// Reads plain data.
pub fn read<T: Copy>(at: usize) -> Option<T> {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: 1. there is room for one; 2. all of it was copied.
    unsafe {
        let copied = transfer(value.as_mut_ptr() as usize, at, size_of::<T>());
        (copied == size_of::<T>()).then(|| value.assume_init())
    }
}

/// Writes plain data; `false` if that is not possible.
///
/// # Safety
///
/// The program has handed this address to a call that writes there.
pub unsafe fn write<T: Copy>(at: usize, value: T) -> bool {
    // SAFETY: the caller's promise.
    unsafe { transfer(at, &raw const value as usize, size_of::<T>()) == size_of::<T>() }
}

/// Calls `each` with the elements of an array of plain data; `false`, behind those before, where
/// one cannot be read.
pub fn for_each<T: Copy>(at: usize, count: usize, mut each: impl FnMut(T)) -> bool {
    const AT_ONCE: usize = 8;
    let mut elements = [const { MaybeUninit::<T>::uninit() }; AT_ONCE];
    let mut done = 0;
    while done < count {
        let wanted = AT_ONCE.min(count - done);
        let Some(start) = done.checked_mul(size_of::<T>()).and_then(|bytes| at.checked_add(bytes))
        else {
            return false;
        };
        let read = read_into(start, &mut elements[..wanted]) / size_of::<T>();
        // SAFETY: so many were copied.
        elements[..read].iter().for_each(|element| each(unsafe { element.assume_init() }));
        if read < wanted {
            return false;
        }
        done += read;
    }
    true
}

/// Bytes of a string that are read at once.
const STEP: usize = 256;

/// Bytes of a string with its end, up to `most`.
///
/// # Errors
/// EFAULT where it cannot be read to its end, E2BIG where it is longer.
pub fn string_len(at: usize, most: usize) -> Result<usize, Errno> {
    let mut bytes = [0u8; STEP];
    let mut len = 0;
    while len < most {
        let start = at.checked_add(len).ok_or(Errno::FAULT)?;
        // Within a page there is all or nothing.
        let wanted = bytes.len().min(PAGE_SIZE - start % PAGE_SIZE).min(most - len);
        if read_into(start, &mut bytes[..wanted]) < wanted {
            return Err(Errno::FAULT);
        }
        if let Some(end) = bytes[..wanted].iter().position(|byte| *byte == 0) {
            return Ok(len + end + 1);
        }
        len += wanted;
    }
    Err(Errno::TOOBIG)
}

/// Reads a string with its end; its length without. None where it cannot be read, or there is no
/// room for it.
pub fn read_string(at: usize, to: &mut [u8]) -> Option<usize> {
    let mut len = 0;
    while len < to.len() {
        let start = at.checked_add(len)?;
        // Within a page there is all or nothing.
        let wanted = STEP.min(PAGE_SIZE - start % PAGE_SIZE).min(to.len() - len);
        let part = &mut to[len..len + wanted];
        if read_into(start, part) < wanted {
            return None;
        }
        if let Some(end) = part.iter().position(|byte| *byte == 0) {
            return Some(len + end);
        }
        len += wanted;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_not_read() {
        let words: Vec<u64> = (0..20).collect();
        let at = words.as_ptr() as usize;
        assert_eq!((read::<u64>(at + 24), read::<u64>(1)), (Some(3), None));
        let mut sum = 0;
        assert!(for_each(at, words.len(), |word: u64| sum += word) && sum == 190);
        assert!(
            !for_each(1, 1, |_: u64| unreachable!())
                && !for_each(usize::MAX - 7, 9, |_: u64| unreachable!())
        );
        assert!(for_each(1, 0, |_: u64| unreachable!()));
        let text = c"abc";
        assert_eq!(string_len(text.as_ptr() as usize, 100), Ok(4));
        assert_eq!(string_len(text.as_ptr() as usize, 3), Err(Errno::TOOBIG));
        assert_eq!(string_len(1, 100), Err(Errno::FAULT));
        let mut bytes = [7; 4];
        assert_eq!(read_string(text.as_ptr() as usize, &mut bytes), Some(3));
        assert_eq!(&bytes, b"abc\0");
        assert_eq!(read_string(text.as_ptr() as usize, &mut bytes[..3]), None);
        assert_eq!(read_string(1, &mut bytes), None);
        let mut word = 7u64;
        // SAFETY: a word of ours, and no memory at all.
        assert!(unsafe { write(&raw mut word as usize, 8u64) && !write(1, 8u64) });
        assert_eq!(word, 8);
    }
}
