//! Arrays of strings, as programs are executed with: they and what they name may be managed.

use crate::{memory, pool};
use std::ffi::c_char;

/// An array of strings that ends with a null, or null.
pub type Strings = *const *const c_char;

unsafe extern "C" {
    /// The program's environment.
    pub static mut environ: Strings;
}

/// The strings of an array that ends with a null, as far as that can be read.
pub fn each(array: Strings) -> impl Iterator<Item = *const c_char> {
    let read = move |n: usize| {
        memory::read::<*const c_char>((array as usize).checked_add(n * size_of::<usize>())?)
    };
    (0..)
        .take_while(move |_| !array.is_null())
        .map_while(read)
        .take_while(|string| !string.is_null())
}

/// Whether an array of strings, or one of them, is managed.
pub fn is_managed(array: Strings) -> bool {
    pool::contains(array as usize) || each(array).any(|string| pool::contains(string as usize))
}
