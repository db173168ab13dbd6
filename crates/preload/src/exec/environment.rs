//! The environment of what is executed: it leads to the job, whatever the program made of it.
//!
//! A program may replace, empty or clear the environment of what it executes. Then the loader would
//! not load this library, and the library would not find its job. So each environment that a
//! process of a job executes something with gets what it lacks ([`Change`]):
//!
//! - LD_PRELOAD names this library before all else: one malloc must win, and the memory of ours is
//!   managed. Another gets its memory by ways of its own, such as `brk`.
//! - The settings that the process began with are there, under names of their own
//!   ([`config::ADDED`]): beside what the program says itself.
//!
//! The program is not to see what was added. So before its main function begins, `environ` becomes
//! what it would be without ([`show`]). /proc/PID/environ has all.
//!
//! The library is taken out of LD_PRELOAD where `OVERSPILL=off` is set, by which a program leaves
//! its job, and where what is executed cannot load it ([`super::file`]). Nothing is added where the
//! library cannot be read, by another user or from another root: the loader would complain.
//!
//! Context: the child of a vfork too. So nothing is allocated, and no lock is taken.

use super::arguments::STRING_MAX;
use super::file::Executed;
use crate::memory::strings::{Strings, each, environ};
use crate::sys::real;
use crate::{config, heap, memory};
use overspill_os::{Errno, PAGE_SIZE, confined};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;
use syscalls::{Sysno, raw_syscall};

const PRELOAD: &[u8] = b"LD_PRELOAD=";
/// What LD_PRELOAD was before the library was added: the whole variable, nothing where there was
/// none.
const BEFORE: &[u8] = b"OVERSPILL_JOB_PRELOAD=";

/// What leads to the job of this process.
struct JobVariables {
    /// The path of this library.
    library: &'static CStr,
    /// The settings, each a variable that is added.
    settings: Vec<CString>,
}

/// Set by the constructor, where the process is one of a job.
static JOB: OnceLock<JobVariables> = OnceLock::new();

/// What this process executes belongs to the job with these settings, too.
pub fn keep<'a>(settings: impl Iterator<Item = (&'a str, &'a str)>) {
    let variable = |(name, value)| CString::new([config::ADDED, name, "=", value].concat()).ok();
    let settings = settings.filter_map(variable).collect();
    if let Some(library) = own_path() {
        let _ = JOB.set(JobVariables { library, settings });
    }
}

/// Whether what is executed with an environment is to have this library.
pub fn is_for_job(environment: Strings) -> bool {
    let is_in_reach = || JOB.get().is_some_and(JobVariables::is_in_reach);
    Seen::of(environment).is_some_and(|seen| !seen.off) && is_in_reach()
}

/// Whether valgrind executes one of its tools, which are static programs: they have the address
/// space of their process to themselves.
pub fn is_of_valgrind(environment: Strings) -> bool {
    let mut reader = Reader::new();
    each(environment).any(|string| reader.strip(string as usize, b"VALGRIND_LAUNCHER=").is_some())
}

/// The path by which the loader has loaded this library.
pub fn own_path() -> Option<&'static CStr> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the loader writes the structure, whose name is a string as long as the library lives:
    // for ever.
    unsafe {
        let found = libc::dladdr(show as *const c_void, info.as_mut_ptr()) != 0;
        let name = info.assume_init().dli_fname;
        (found && !name.is_null()).then(|| CStr::from_ptr(name))
    }
}

impl JobVariables {
    /// Whether who executes may read the library. What is not known is left to the loader.
    fn is_in_reach(&self) -> bool {
        // A filter of the program's may kill for the question.
        if confined::is_confined() {
            return true;
        }
        let path = self.library.as_ptr();
        let (here, flags) = (libc::AT_FDCWD as isize as usize, libc::AT_EACCESS);
        // SAFETY: the path is a string.
        let asked = unsafe { raw_syscall!(Sysno::faccessat2, here, path, libc::R_OK, flags) };
        let out_of_reach = [Errno::ACCESS, Errno::NOENT, Errno::NOTDIR, Errno::LOOP];
        !crate::sys::check(asked).is_err_and(|errno| out_of_reach.contains(&errno))
    }
}

/// Reads what the program hands to a call, which may not be there: the kernel is asked whenever
/// another page follows. What a shell executes with lies on its stack and in its heap, in turn.
struct Reader {
    /// The pages that were asked for last.
    pages: [usize; 4],
    asked: usize,
}

impl Reader {
    fn new() -> Reader {
        Reader { pages: [usize::MAX; 4], asked: 0 }
    }

    fn reaches(&mut self, at: usize) -> bool {
        let page = at / PAGE_SIZE;
        if self.pages.contains(&page) {
            return true;
        }
        // The kernel cannot be asked through any filter.
        if !confined::is_confined() && memory::read::<u8>(at).is_none() {
            return false;
        }
        self.pages[self.asked % self.pages.len()] = page;
        self.asked += 1;
        true
    }

    /// Element `n` of an array.
    fn element(&mut self, array: Strings, n: usize) -> Option<usize> {
        let at = (array as usize).checked_add(n.checked_mul(size_of::<usize>())?)?;
        let reaches = self.reaches(at) && self.reaches(at.checked_add(size_of::<usize>() - 1)?);
        // SAFETY: it can be read.
        reaches.then(|| unsafe { (at as *const usize).read_unaligned() })
    }

    /// What is behind the beginning of a string, if it begins so.
    fn strip(&mut self, string: usize, beginning: &[u8]) -> Option<usize> {
        let is = |(n, byte): (usize, &u8)| {
            let at = string.checked_add(n);
            // SAFETY: it can be read.
            at.is_some_and(|at| self.reaches(at) && unsafe { *(at as *const u8) } == *byte)
        };
        beginning.iter().enumerate().all(is).then(|| string + beginning.len())
    }
}

/// What an environment says of the job.
#[derive(Clone, Copy, Default)]
struct Seen {
    /// How many variables there are.
    count: usize,
    /// The place of LD_PRELOAD among them. Of several the loader takes the last.
    preload: Option<usize>,
    memory: bool,
    run_dir: bool,
    off: bool,
    /// Whether a variable says what LD_PRELOAD was.
    before: bool,
}

impl Seen {
    /// None where the environment cannot be read.
    fn of(environment: Strings) -> Option<Seen> {
        let (mut seen, mut reader) = (Seen::default(), Reader::new());
        if environment.is_null() {
            return Some(seen);
        }
        loop {
            let string = reader.element(environment, seen.count)?;
            if string == 0 {
                return Some(seen);
            }
            if let Some(rest) = reader.strip(string, b"OVERSPILL") {
                let name = reader.strip(rest, b"_JOB").unwrap_or(rest);
                seen.memory |= reader.strip(name, b"_MEMORY=").is_some();
                seen.run_dir |= reader.strip(name, b"_RUN_DIR=").is_some();
                seen.before |= reader.strip(string, BEFORE).is_some();
                seen.off |= reader.strip(rest, b"=off\0").is_some();
            } else if reader.strip(string, PRELOAD).is_some() {
                seen.preload = Some(seen.count);
            }
            seen.count += 1;
        }
    }
}

/// The names in the value of LD_PRELOAD.
fn names(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b':' || *byte == b' ').filter(|name| !name.is_empty())
}

/// Whether a name in LD_PRELOAD is that of a library, of whichever build.
fn is_named(library: &CStr, name: &[u8]) -> bool {
    let last = |path| <[u8]>::rsplit(path, |byte| *byte == b'/').next();
    name == library.to_bytes() || last(name) == last(library.to_bytes())
}

/// What is to be done to an environment, so that what is executed with it belongs to the job, or
/// does not.
#[derive(Clone, Copy)]
pub struct Change {
    environment: Strings,
    seen: Seen,
    /// LD_PRELOAD as it is, with the length of its value; nothing where there is none.
    preload: Option<(usize, usize)>,
    library: PreloadChange,
    /// What is added beside.
    settings: &'static [CString],
}

/// What becomes of a library in LD_PRELOAD.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PreloadChange {
    Stays,
    /// It comes before all others.
    First(&'static CStr),
    Goes(&'static CStr),
}

/// Room for texts that a change makes.
struct Texts(usize);

impl Texts {
    /// Puts a string together; where it is.
    ///
    /// # Safety
    ///
    /// There is room for it.
    unsafe fn put<'a>(&mut self, parts: impl IntoIterator<Item = &'a [u8]>) -> usize {
        let start = self.0;
        for part in parts.into_iter().chain([&b"\0"[..]]) {
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), self.0 as *mut u8, part.len()) };
            self.0 += part.len();
        }
        start
    }
}

impl Change {
    /// What an environment needs to execute a file; None where it is as it should be, or cannot be
    /// read.
    pub fn of(environment: Strings, file: Executed) -> Option<Change> {
        Change::within(JOB.get()?, environment, || file.takes_library())
    }

    fn within(
        job: &'static JobVariables,
        environment: Strings,
        takes_library: impl FnOnce() -> bool,
    ) -> Option<Change> {
        let mut change = Change::none(environment)?;
        let library = job.library;
        if change.seen.off || !takes_library() {
            let is_there = names(change.value()).any(|name| is_named(library, name));
            change.library =
                if is_there { PreloadChange::Goes(library) } else { PreloadChange::Stays };
            return is_there.then_some(change);
        }
        if !names(change.value()).next().is_some_and(|name| is_named(library, name)) {
            change.library = PreloadChange::First(library);
        }
        if !(change.seen.memory && change.seen.run_dir) {
            change.settings = &job.settings;
        }
        let changes = change.library != PreloadChange::Stays || !change.settings.is_empty();
        (changes && job.is_in_reach()).then_some(change)
    }

    /// One that puts a library before all others.
    pub fn first(environment: Strings, library: &'static CStr) -> Option<Change> {
        Some(Change { library: PreloadChange::First(library), ..Change::none(environment)? })
    }

    fn none(environment: Strings) -> Option<Change> {
        let seen = Seen::of(environment)?;
        let measure = |n| {
            let string = Reader::new().element(environment, n)?;
            let len = memory::string_len(string, STRING_MAX).ok()?;
            Some((string, len - 1 - PRELOAD.len()))
        };
        let preload = match seen.preload {
            Some(n) => Some(measure(n)?),
            None => None,
        };
        Some(Change { environment, seen, preload, library: PreloadChange::Stays, settings: &[] })
    }

    /// The value of LD_PRELOAD as it is.
    fn value(&self) -> &[u8] {
        // SAFETY: the string was read to its end when the change was found.
        self.preload.map_or(&[], |(at, len)| unsafe {
            std::slice::from_raw_parts((at + PRELOAD.len()) as *const u8, len)
        })
    }

    /// Bytes of the array of variables, at most.
    pub fn array_bytes(&self) -> usize {
        (self.seen.count + self.settings.len() + 3) * size_of::<usize>()
    }

    /// Bytes that [`Change::write`] takes.
    pub fn bytes(&self) -> usize {
        let value = 2 * (self.value().len() + PRELOAD.len() + 2);
        let library = match self.library {
            PreloadChange::First(library) => library.to_bytes().len(),
            PreloadChange::Stays | PreloadChange::Goes(_) => 0,
        };
        let texts = library + BEFORE.len() + value;
        self.array_bytes() + texts.next_multiple_of(size_of::<usize>())
    }

    /// Writes the environment to a place, as an array that shares its strings with what was there.
    ///
    /// # Safety
    ///
    /// The place is of so many bytes, aligned to words; the environment is as it was.
    pub unsafe fn write(&self, place: usize) -> Strings {
        let mut texts = Texts(place + self.array_bytes());
        let array = place as *mut usize;
        let mut len = 0;
        // SAFETY: there is room for so many, and for the texts; the strings were read before.
        let mut push = |string: usize| unsafe {
            array.add(len).write(string);
            len += 1;
        };
        // SAFETY: as above.
        unsafe {
            let preload = self.write_preload(&mut texts);
            for n in 0..self.seen.count {
                match preload {
                    Some(preload) if self.seen.preload == Some(n) => {
                        preload.into_iter().for_each(&mut push);
                    }
                    _ => push(*self.environment.add(n) as usize),
                }
            }
            if let (Some(Some(preload)), None) = (preload, self.seen.preload) {
                push(preload);
            }
            if matches!(self.library, PreloadChange::First(_)) && !self.seen.before {
                let before: &[u8] = if self.preload.is_some() { PRELOAD } else { b"" };
                push(texts.put([BEFORE, before, self.value()]));
            }
            self.settings.iter().for_each(|setting| push(setting.as_ptr() as usize));
            push(0);
        }
        array as Strings
    }

    /// LD_PRELOAD as it is to be: None if it stays, nothing where it goes.
    ///
    /// # Safety
    ///
    /// As for [`Change::write`].
    unsafe fn write_preload(&self, texts: &mut Texts) -> Option<Option<usize>> {
        let (PreloadChange::First(library) | PreloadChange::Goes(library)) = self.library else {
            return None;
        };
        let others = names(self.value()).filter(|name| !is_named(library, name));
        let others = others.flat_map(|name| [&b":"[..], name]);
        // SAFETY: the caller's promise.
        unsafe {
            if let PreloadChange::First(library) = self.library {
                let names = [PRELOAD, library.to_bytes()].into_iter().chain(others);
                return Some(Some(texts.put(names)));
            }
            let mut others = others.skip(1).peekable();
            let some = others.peek().is_some();
            Some(some.then(|| texts.put([PRELOAD].into_iter().chain(others))))
        }
    }
}

/// The program's `environ` becomes what it would be had nothing been added. Returns the function
/// that calls the main function.
extern "C" fn show() -> usize {
    type Start = unsafe extern "C" fn(*const c_void, c_int, *const c_void, ...) -> c_int;
    // SAFETY: the environment of a process that has one thread, and ends with a null.
    unsafe {
        if !environ.is_null() {
            let shown = without_added(environ);
            environ = shown.unwrap_or(environ);
        }
    }
    real!(c"__libc_start_main" as Start) as usize
}

/// A copy of an environment without what was added; None where nothing was, or there is no memory.
///
/// # Safety
///
/// An array of strings that ends with a null.
unsafe fn without_added(environment: Strings) -> Option<Strings> {
    // SAFETY: the caller's promise.
    let string = |n| unsafe { *environment.add(n) };
    // SAFETY: the same.
    let bytes = |n| unsafe { CStr::from_ptr(string(n)).to_bytes() };
    let count = (0..).find(|n| string(*n).is_null())?;
    let is_added = |n: &usize| bytes(*n).starts_with(config::ADDED.as_bytes());
    (0..count).find(is_added)?;
    let before = (0..count).find(|n| bytes(*n).starts_with(BEFORE));
    let array = heap::alloc((count + 1) * size_of::<usize>(), size_of::<usize>());
    if array.is_null() {
        return None;
    }
    let array = array.cast::<*const c_char>();
    let mut len = 0;
    for n in (0..count).filter(|n| !is_added(n)) {
        let mut shown = string(n);
        if let Some(before) = before
            && bytes(n).starts_with(PRELOAD)
        {
            // SAFETY: what the variable says, which is longer than its name.
            shown = unsafe { string(before).add(BEFORE.len()) };
            // SAFETY: the end of that.
            if unsafe { *shown } == 0 {
                continue;
            }
        }
        // SAFETY: there is room for as many as there were.
        unsafe { array.add(len).write(shown) };
        len += 1;
    }
    // SAFETY: the same.
    unsafe { array.add(len).write(std::ptr::null()) };
    Some(array)
}

/// `__libc_start_main`, by which an executable has the C library call its main function: after the
/// constructors, when `environ` is set.
///
/// # Safety
///
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn __libc_start_main() {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "sub rsp, 8",
        "call {show}",
        "add rsp, 8",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        show = sym show,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> &'static JobVariables {
        let settings = [c"OVERSPILL_JOB_MEMORY=64M", c"OVERSPILL_JOB_RUN_DIR=/run/x"];
        let settings = settings.map(CStr::to_owned).into();
        Box::leak(Box::new(JobVariables { library: c"/dev/null", settings }))
    }

    fn texts(environment: Strings) -> Vec<&'static str> {
        // SAFETY: the tests' strings live for ever.
        each(environment).map(|text| unsafe { CStr::from_ptr(text) }.to_str().unwrap()).collect()
    }

    /// What is executed with an environment, and what the program sees of that.
    fn changed(variables: &[&'static CStr]) -> Option<[Vec<&'static str>; 2]> {
        let ends = [std::ptr::null()];
        let array: Vec<_> = variables.iter().map(|text| text.as_ptr()).chain(ends).collect();
        let change = Change::within(job(), array.as_ptr(), || true)?;
        let place = vec![0usize; change.bytes().div_ceil(size_of::<usize>())].leak();
        // SAFETY: a place of so many bytes; an environment.
        unsafe {
            let written = change.write(place.as_ptr() as usize);
            let seen = without_added(written).unwrap_or(written);
            Some([texts(written), texts(seen)])
        }
    }

    const ADDED: [&str; 2] = ["OVERSPILL_JOB_MEMORY=64M", "OVERSPILL_JOB_RUN_DIR=/run/x"];

    #[test]
    fn what_leads_to_the_job_is_added_and_not_seen() {
        let [executed, seen] = changed(&[]).unwrap();
        let preload = ["LD_PRELOAD=/dev/null", "OVERSPILL_JOB_PRELOAD="];
        assert_eq!((executed, seen), ([preload, ADDED].concat(), vec![]));
        let [executed, seen] = changed(&[c"A=1", c"LD_PRELOAD=a.so b.so", c"B=2"]).unwrap();
        let replaced = ["A=1", "LD_PRELOAD=/dev/null:a.so:b.so", "B=2"];
        let before = ["OVERSPILL_JOB_PRELOAD=LD_PRELOAD=a.so b.so"];
        assert_eq!(executed, [&replaced[..], &before, &ADDED].concat());
        assert_eq!(seen, ["A=1", "LD_PRELOAD=a.so b.so", "B=2"]);
        let [executed, seen] = changed(&[c"LD_PRELOAD="]).unwrap();
        assert_eq!(executed[..2], ["LD_PRELOAD=/dev/null", "OVERSPILL_JOB_PRELOAD=LD_PRELOAD="]);
        assert_eq!(seen, ["LD_PRELOAD="]);
    }

    #[test]
    fn what_is_there_stays() {
        let preload = c"LD_PRELOAD=/other/null:a.so";
        let settings = [c"OVERSPILL_MEMORY=1G", c"OVERSPILL_RUN_DIR=/run/y"];
        assert!(changed(&[preload, settings[0], settings[1]]).is_none());
        let [executed, seen] = changed(&[preload, settings[0]]).unwrap();
        let there = [preload, settings[0]].map(|text| text.to_str().unwrap());
        assert_eq!(executed, [there, ADDED].concat());
        assert_eq!(seen, there);
        let [executed, seen] = changed(&settings).unwrap();
        let there = settings.map(|text| text.to_str().unwrap());
        let preload = ["LD_PRELOAD=/dev/null", "OVERSPILL_JOB_PRELOAD="];
        assert_eq!((executed, seen), ([there, preload].concat(), there.to_vec()));
    }

    #[test]
    fn off_takes_the_library_away() {
        let off = c"OVERSPILL=off";
        assert!(changed(&[off]).is_none() && changed(&[off, c"LD_PRELOAD=a.so"]).is_none());
        let [executed, _] = changed(&[c"LD_PRELOAD=a.so:/dev/null b.so", off]).unwrap();
        assert_eq!(executed, ["LD_PRELOAD=a.so:b.so", "OVERSPILL=off"]);
        let [executed, _] = changed(&[c"LD_PRELOAD=/dev/null", off]).unwrap();
        assert_eq!(executed, ["OVERSPILL=off"]);
        assert!(changed(&[c"OVERSPILL=offside"]).is_some());
    }

    #[test]
    fn the_library_comes_first_but_for_what_is_put_before_it() {
        let settings = [c"OVERSPILL_MEMORY=1G", c"OVERSPILL_RUN_DIR=/run/y"];
        let [executed, _] =
            changed(&[c"LD_PRELOAD=a.so:/dev/null", settings[0], settings[1]]).unwrap();
        assert_eq!(executed[0], "LD_PRELOAD=/dev/null:a.so");
        let array = [c"LD_PRELOAD=/dev/null:b.so:a.so".as_ptr(), std::ptr::null()];
        let change = Change::first(array.as_ptr(), c"/lib/b.so").unwrap();
        let place = vec![0usize; change.bytes().div_ceil(size_of::<usize>())].leak();
        // SAFETY: a place of so many bytes; an environment.
        let executed = texts(unsafe { change.write(place.as_ptr() as usize) });
        let before = "OVERSPILL_JOB_PRELOAD=LD_PRELOAD=/dev/null:b.so:a.so";
        assert_eq!(executed, ["LD_PRELOAD=/lib/b.so:/dev/null:a.so", before]);
    }

    #[test]
    fn what_cannot_load_the_library_does_without() {
        let array = [c"LD_PRELOAD=/dev/null".as_ptr(), std::ptr::null()];
        let change = Change::within(job(), array.as_ptr(), || false).unwrap();
        let mut place = [0usize; 64];
        // SAFETY: the place is large enough.
        assert!(texts(unsafe { change.write(place.as_mut_ptr() as usize) }).is_empty());
        assert!(Change::within(job(), array[1..].as_ptr(), || false).is_none());
    }

    #[test]
    fn what_cannot_be_read_is_left_to_the_kernel() {
        for nowhere in [1, 4096, usize::MAX - 7] {
            assert!(Change::within(job(), nowhere as Strings, || true).is_none());
            let array = [nowhere as *const c_char, std::ptr::null()];
            let change = Change::within(job(), array.as_ptr(), || true).unwrap();
            let mut place = [0usize; 64];
            // SAFETY: the place is large enough.
            unsafe { change.write(place.as_mut_ptr() as usize) };
            assert_eq!(place[0], nowhere);
        }
    }
}
