//! Runtimes that insist on being the first of all libraries.
//!
//! The runtime of AddressSanitizer ends a program in which another library comes before it, as this
//! one does. And it has to be: its malloc finds the mistakes. So a program that has it is executed
//! once more with LD_PRELOAD naming the runtime before this library. Only the blocks of its malloc
//! are unmanaged then, which it maps by system calls of its own.
//!
//! Context: the constructor, before anything else; nothing of the program has run.

use super::environment::{Change, own_path};
use crate::heap;
use crate::memory::strings::Strings;
use std::ffi::{CStr, c_char, c_int, c_void};
use syscalls::{Sysno, raw_syscall};

/// Parts of the names of such runtimes: of gcc's and of clang's.
const NAMES: [&[u8]; 2] = [b"libasan.so", b"libclang_rt.asan"];

/// What is found in the loader's list.
struct Search {
    own: Option<&'static CStr>,
    is_after_us: bool,
    found: Option<&'static CStr>,
}

fn is_runtime(name: &[u8]) -> bool {
    NAMES.iter().any(|known| name.windows(known.len()).any(|part| part == *known))
}

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid entry, whose name lives as long as the library; the Search
    // is that of `runtime`.
    let (name, search) = unsafe { ((*info).dlpi_name, &mut *search.cast::<Search>()) };
    if name.is_null() {
        return 0;
    }
    // SAFETY: as above.
    let name = unsafe { CStr::from_ptr(name) };
    search.is_after_us |= search.own == Some(name);
    if is_runtime(name.to_bytes()) {
        search.found = search.is_after_us.then_some(name);
        return 1;
    }
    0
}

/// The runtime, if it comes after this library.
fn runtime() -> Option<&'static CStr> {
    let mut search = Search { own: own_path(), is_after_us: false, found: None };
    // SAFETY: the function is called with the Search, during the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.found
}

/// The file to execute: by the name that it was executed by, which is how others know it; not that
/// of a script.
fn file() -> &'static CStr {
    const OWN: &CStr = c"/proc/self/exe";
    // SAFETY: the kernel's string, for ever, or null.
    let name = unsafe { libc::getauxval(libc::AT_EXECFN) as *const c_char };
    if name.is_null() {
        return OWN;
    }
    // SAFETY: as above.
    let name = unsafe { CStr::from_ptr(name) };
    let identity = |path| rustix::fs::stat(path).ok().map(|stat| (stat.st_dev, stat.st_ino));
    if identity(name).is_some() && identity(name) == identity(OWN) { name } else { OWN }
}

/// Executes the program once more where a runtime has to come first. Where that fails the runtime
/// says what it says.
///
/// # Safety
///
/// Arguments and environment of the process.
pub unsafe fn give_way(arguments: Strings, environment: Strings) {
    let Some(runtime) = runtime() else { return };
    let Some(change) = Change::first(environment, runtime) else { return };
    let place = heap::alloc(change.bytes(), size_of::<usize>());
    if !place.is_null() {
        // SAFETY: the place is of so many bytes; the arrays end with a null.
        unsafe {
            let environment = change.write(place as usize);
            raw_syscall!(Sysno::execve, file().as_ptr(), arguments, environment);
            heap::free(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_are_known_by_their_names() {
        assert!(is_runtime(b"/lib/x86_64-linux-gnu/libasan.so.8"));
        assert!(is_runtime(b"/usr/lib/llvm/libclang_rt.asan-x86_64.so"));
        assert!(!is_runtime(b"/lib/libubsan.so.1") && runtime().is_none());
    }

    #[test]
    fn the_file_is_named_as_it_was_executed() {
        let own = std::env::current_exe().unwrap();
        let named = std::fs::canonicalize(file().to_str().unwrap()).unwrap();
        assert_eq!(named, std::fs::canonicalize(own).unwrap());
    }
}
