//! Programs without a loader: the C library's is executed in their place, and this library loads
//! them ([`crate::load`]).
//!
//! That is for faults by signal: only there are calls seen that a program makes by instructions of
//! its own.
//!
//! Context: as in [`super::environment`].

use super::file::{Executed, Path};
use super::{environment, tracee};
use crate::memory::strings::{Strings, each};
use crate::{image, load, memory};
use overspill_os::observer;
use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static BY_SIGNAL: AtomicBool = AtomicBool::new(false);

/// The job has its faults by signal. Called by the constructor.
pub fn begin() {
    BY_SIGNAL.store(true, Relaxed);
}

/// A program that is to be loaded.
pub struct Placing {
    path: Path,
}

/// What is executed in its place.
pub struct Placed {
    /// Its arguments.
    pub arguments: Strings,
    /// Its environment.
    pub environment: Strings,
}

/// Whether the process is traced, or is as soon as it executes a program: then that has its faults
/// by thread, and a debugger finds it where its file says.
fn is_traced() -> bool {
    tracee::is_waiting() || observer::is_traced()
}

/// Arguments that come before the program's own: two, as the loader takes the first for its own
/// name.
const BEFORE: usize = 2;

impl Placing {
    /// How a file is to be executed, if so.
    pub fn of(file: Executed, environment: Strings) -> Option<Placing> {
        if !BY_SIGNAL.load(Relaxed) {
            return None;
        }
        let is_wanted =
            environment::is_for_job(environment) && !environment::is_of_valgrind(environment);
        is_wanted.then_some(())?;
        let path = file.is_static()?;
        (!is_traced()).then_some(Placing { path })
    }

    /// Whether its path leads to it from any directory.
    pub fn is_anywhere(&self) -> bool {
        self.path.as_bytes().starts_with(b"/")
    }

    /// Bytes that [`Placing::write`] takes for so many arguments and variables.
    pub fn bytes(&self, arguments: usize, variables: usize) -> usize {
        let words = arguments + variables + BEFORE + 3;
        words * size_of::<usize>() + load::FILE.len() + self.path.as_bytes().len() + 16
    }

    /// Writes what is executed into room that `take` gives.
    ///
    /// # Safety
    ///
    /// There is so much room, aligned to words; arrays that end with a null, or none.
    pub unsafe fn write(
        &self,
        mut take: impl FnMut(usize) -> usize,
        arguments: Strings,
        variables: Strings,
    ) -> Placed {
        let named = take(load::FILE.len() + self.path.as_bytes().len() + 1) as *mut u8;
        // SAFETY: the caller's promise.
        unsafe {
            let (name, path) = (load::FILE, self.path.as_bytes());
            named.copy_from_nonoverlapping(name.as_ptr(), name.len());
            named.add(name.len()).copy_from_nonoverlapping(path.as_ptr(), path.len());
            named.add(name.len() + path.len()).write(0);
        }
        let own = [load::LOADER, load::STAND_IN].map(CStr::as_ptr);
        let mut array = |before: &[*const c_char], array: Strings, behind: &[*const c_char]| {
            let count = before.len() + each(array).count() + behind.len();
            let place = take((count + 1) * size_of::<usize>()) as *mut *const c_char;
            let ends = [std::ptr::null()];
            let strings = before.iter().copied().chain(each(array));
            for (n, string) in
                strings.chain(behind.iter().copied()).chain(ends).enumerate().take(count + 1)
            {
                // SAFETY: there is room for so many.
                unsafe { place.add(n).write(string) };
            }
            place.cast_const()
        };
        let arguments = array(&own, arguments, &[]);
        let environment = array(&[], variables, &[named.cast_const().cast()]);
        Placed { arguments, environment }
    }
}

/// Other arguments for a call that was stopped, if it opens the link to the file of a program that
/// was loaded here.
pub fn lead(number: i64, arguments: [usize; 6]) -> Option<[usize; 6]> {
    let path = match number {
        libc::SYS_open => 0,
        libc::SYS_openat => 1,
        _ => return None,
    };
    let mut name = [0; image::LINK_MAX];
    let len = image::is_placed().then(|| memory::read_string(arguments[path], &mut name))??;
    let mut changed = arguments;
    changed[path] = image::file().as_ptr() as usize;
    image::names_program(&name[..len]).then_some(changed)
}
