//! The C library's streams, in signal delivery: their reads and writes are those of [`crate::calls`].
//!
//! A stream has its buffer on the heap, and hands it, or the program's memory, to a `read` or `write` inside of the C library
//! that no symbol leads to. But it reaches them by tables of functions. The tables lie in a part of the C library's data that
//! is read-only once it is loaded, and the words there that are the addresses of these two functions are replaced.

use crate::{calls, sys};
use overspill_os::{Errno, PAGE_SIZE};
use std::ffi::{c_int, c_void};
use std::ops::Range;
use syscalls::Sysno;

/// What is looked for: the read-only data of the library that contains an address.
struct Tables {
    contains: usize,
    found: Option<Range<usize>>,
}

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, tables: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid entry, and `tables` its Tables.
    unsafe {
        let (info, tables) = (&*info, &mut *tables.cast::<Tables>());
        let (mut contains, mut found) = (false, None);
        for n in 0..info.dlpi_phnum as usize {
            let header = &*info.dlpi_phdr.add(n);
            let start = (info.dlpi_addr + header.p_vaddr) as usize;
            let range = start..start + header.p_memsz as usize;
            match header.p_type {
                libc::PT_LOAD => contains |= range.contains(&tables.contains),
                libc::PT_GNU_RELRO => found = Some(range),
                _ => {}
            }
        }
        if contains {
            tables.found = found;
        }
        c_int::from(contains)
    }
}

/// The whole pages of the data that the C library's tables are among; None if it has none that are read-only.
fn tables(function: usize) -> Option<Range<usize>> {
    let mut tables = Tables { contains: function, found: None };
    // SAFETY: the function is called with the Tables, during the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut tables).cast()) };
    let Range { start, end } = tables.found?;
    Some(start & !(PAGE_SIZE - 1)..end & !(PAGE_SIZE - 1))
}

/// Replaces the functions. Called while the process has one thread. Tables that are not found are no harm: the calls are
/// stopped.
///
/// # Errors
/// When the C library's data cannot be changed.
pub fn start() -> Result<(), Errno> {
    let functions = calls::of_streams();
    let Some(pages) = tables(functions[0].0) else { return Ok(()) };
    let protect = |prot| {
        // SAFETY: data of the C library's keep their protection, or get more.
        unsafe { sys::on_range(Sysno::mprotect, pages.start, pages.len(), prot) }
    };
    protect(libc::PROT_READ | libc::PROT_WRITE)?;
    for at in pages.clone().step_by(size_of::<usize>()) {
        let word = at as *mut usize;
        // SAFETY: a word of these pages; the process has one thread.
        unsafe {
            if let Some((_, ours)) = functions.iter().find(|(theirs, _)| *theirs != 0 && *theirs == *word) {
                word.write(*ours);
            }
        }
    }
    protect(libc::PROT_READ)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_library_has_tables_with_both_functions() {
        let functions = calls::of_streams();
        let pages = tables(functions[0].0).unwrap();
        // SAFETY: data of the C library, which can be read.
        let words =
            unsafe { std::slice::from_raw_parts(pages.start as *const usize, pages.len() / size_of::<usize>()) };
        for (theirs, _) in functions {
            assert!(words.iter().filter(|word| **word == theirs).count() >= 2);
        }
    }
}
