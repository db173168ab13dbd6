//! The C library's streams, in signal delivery: their reads and writes are those of
//! [`crate::calls`].
//!
//! A stream has its buffer on the heap, and hands it, or the program's memory, to a `read` or
//! `write` inside of the C library that no symbol leads to. But it reaches them by tables of
//! functions. The tables lie in a part of the C library's data that is read-only once it is loaded,
//! and the words there that are the addresses of these two functions are replaced.

use crate::{calls, image};
use overspill_os::Errno;

/// Replaces the functions. Called while the process has one thread. Tables that are not found are
/// no harm: the calls are stopped.
///
/// # Errors
/// When the C library's data cannot be changed.
pub fn start() -> Result<(), Errno> {
    let functions = calls::of_streams();
    image::of(functions[0].0).map_or(Ok(()), |library| library.replace(&functions))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_library_has_tables_with_both_functions() {
        let functions = calls::of_streams();
        let library = image::of(functions[0].0).unwrap();
        for (theirs, _) in functions {
            assert!(library.count(theirs) >= 2);
        }
    }
}
