//! Loaded libraries: where their code and their data lie, and words of these that are replaced.
//!
//! Some of what must be interposed no symbol leads to: the C library reaches it by addresses that
//! it keeps in data, which is read-only once it is loaded. Nothing here takes a lock but the
//! loader's list of libraries does; so it is called by the constructor only.

use crate::sys;
use overspill_os::{Errno, PAGE_SIZE};
use std::ffi::{CStr, c_int, c_void};
use std::ops::{ControlFlow, Range};
use std::sync::OnceLock;
use syscalls::Sysno;

/// Addresses of a library's parts.
#[derive(Debug, Default)]
pub struct Image {
    /// Executable code.
    pub code: Range<usize>,
    /// Whole pages of data that are read-only once the library is loaded; empty if it has none.
    pub constants: Range<usize>,
    /// Data that can be written, those that are not in the file included.
    pub variables: Range<usize>,
}

/// Calls `look` with everything that is loaded, the program first, and its program headers, until
/// that breaks off.
fn each(mut look: impl FnMut(&libc::dl_phdr_info, &[libc::Elf64_Phdr]) -> ControlFlow<()>) {
    type Look<'a> = &'a mut dyn FnMut(&libc::dl_phdr_info, &[libc::Elf64_Phdr]) -> ControlFlow<()>;
    unsafe extern "C" fn next(info: *mut libc::dl_phdr_info, _: usize, look: *mut c_void) -> c_int {
        // SAFETY: the loader passes a valid entry, and `each` its own closure.
        let (info, look) = unsafe { (&*info, &mut *look.cast::<Look<'_>>()) };
        // SAFETY: as the entry says.
        let headers =
            unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize) };
        c_int::from(look(info, headers).is_break())
    }
    let mut look: Look<'_> = &mut look;
    // SAFETY: the function is called with the closure, during the call.
    unsafe { libc::dl_iterate_phdr(Some(next), (&raw mut look).cast()) };
}

/// The segments of a kind, and where they lie in memory.
fn segments<'a>(
    image: &libc::dl_phdr_info,
    headers: &'a [libc::Elf64_Phdr],
    kind: u32,
) -> impl Iterator<Item = (&'a libc::Elf64_Phdr, Range<usize>)> + Clone {
    let base = image.dlpi_addr;
    headers.iter().filter(move |header| header.p_type == kind).map(move |header| {
        let start = (base + header.p_vaddr) as usize;
        (header, start..start + header.p_memsz as usize)
    })
}

/// The library that contains an address.
pub fn of(address: usize) -> Option<Image> {
    let mut found = None;
    each(|info, headers| {
        let mut image = Image::default();
        let loaded = segments(info, headers, libc::PT_LOAD);
        if !loaded.clone().any(|(_, range)| range.contains(&address)) {
            return ControlFlow::Continue(());
        }
        for (header, range) in loaded {
            if header.p_flags & libc::PF_W != 0 {
                image.variables = range.clone();
            }
            if header.p_flags & libc::PF_X != 0
                && (image.code.is_empty() || range.contains(&address))
            {
                image.code = range;
            }
        }
        if let Some((_, range)) = segments(info, headers, libc::PT_GNU_RELRO).last() {
            image.constants = range.start & !(PAGE_SIZE - 1)..range.end & !(PAGE_SIZE - 1);
        }
        found = Some(image);
        ControlFlow::Break(())
    });
    found
}

/// What is left unmanaged at the beginning of data that are managed: variables of the C library's
/// may lie there, and what the loader reads when it makes a thread. Ranges begin at a multiple of
/// it.
const SKIPPED: usize = 64 << 10;

/// What of the program's data no file holds, where it is large: arrays, most likely. Of whole
/// pages.
pub fn arrays() -> Vec<Range<usize>> {
    /// From so much on: less is not worth an engine.
    const LEAST: usize = 4 << 20;
    let mut arrays = Vec::new();
    each(|image, headers| {
        for (header, range) in writable(image, headers) {
            let in_file = (range.start + header.p_filesz as usize).next_multiple_of(PAGE_SIZE);
            let array = in_file.next_multiple_of(SKIPPED)..range.end.next_multiple_of(PAGE_SIZE);
            if array.end >= array.start + LEAST {
                arrays.push(array);
            }
        }
        // The program is the first.
        ControlFlow::Break(())
    });
    arrays
}

/// What is read-only once the loader has written addresses there, of the program and of each
/// library, where it is large: of whole pages, the largest first. Not what the loader reads again:
/// what it finds symbols by comes at the end. Nor what was loaded where it was linked to be, into
/// which nothing is written.
pub fn constants() -> Vec<Range<usize>> {
    const LEAST: usize = 2 << 20;
    let own = constants as *const () as usize;
    let mut constants = Vec::new();
    each(|image, headers| {
        let is_own = segments(image, headers, libc::PT_LOAD).any(|(_, range)| range.contains(&own));
        let is_written = image.dlpi_addr != 0 && !is_own;
        if let (true, Some((_, range))) =
            (is_written, segments(image, headers, libc::PT_GNU_RELRO).last())
        {
            let symbols = segments(image, headers, libc::PT_DYNAMIC).map(|(_, part)| part.start);
            let end = symbols.filter(|at| range.contains(at)).last().unwrap_or(range.end);
            let start = (range.start + SKIPPED).next_multiple_of(SKIPPED);
            let range = start..(end & !(PAGE_SIZE - 1)).max(start);
            if range.len() >= LEAST {
                constants.push(range);
            }
        }
        ControlFlow::Continue(())
    });
    constants.sort_by_key(|range| std::cmp::Reverse(range.len()));
    constants
}

/// What of an image can be written, or could be until it was loaded.
fn writable<'a>(
    image: &libc::dl_phdr_info,
    headers: &'a [libc::Elf64_Phdr],
) -> impl Iterator<Item = (&'a libc::Elf64_Phdr, Range<usize>)> {
    segments(image, headers, libc::PT_LOAD).filter(|(header, _)| header.p_flags & libc::PF_W != 0)
}

/// Annexes with what lies before each of them in its segment.
pub fn with_segments_before(annexes: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut ranges = annexes.to_vec();
    each(|image, headers| {
        for (_, segment) in writable(image, headers) {
            let inside = ranges.iter_mut().filter(|range| segment.contains(&range.start));
            inside.for_each(|range| range.start = segment.start & !(PAGE_SIZE - 1));
        }
        ControlFlow::Continue(())
    });
    ranges
}

/// Whether such a runtime is there: it puts functions about signals before ours.
pub fn is_sanitized() -> bool {
    let library = |address: *const c_void| {
        let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: the loader writes the structure, for which zero is right too.
        unsafe {
            libc::dladdr(address, info.as_mut_ptr());
            info.assume_init().dli_fbase
        }
    };
    // SAFETY: the name is a string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"sigaction".as_ptr()) };
    library(found) != library(is_sanitized as *const c_void)
}

/// The code of all that is loaded at a place of its own in each process: libraries, and programs
/// that can be.
pub fn code() -> Vec<Range<usize>> {
    let mut code = Vec::new();
    each(|image, headers| {
        let is_placed = image.dlpi_addr != 0;
        let segments = segments(image, headers, libc::PT_LOAD);
        let is_code = segments.filter(|(header, _)| is_placed && header.p_flags & libc::PF_X != 0);
        code.extend(is_code.map(|(_, range)| range));
        ControlFlow::Continue(())
    });
    code
}

/// The program itself.
#[derive(Debug)]
pub struct Executable {
    /// Its executable code, and where that is in the file.
    pub code: Range<usize>,
    /// See `code`.
    pub offset: usize,
    /// The protection of the code.
    pub prot: c_int,
    /// Its lowest address.
    pub start: usize,
    /// Whether it names libraries to be loaded.
    pub has_libraries: bool,
    /// Whether Go's linker has left its note in it.
    pub is_go: bool,
}

/// A program that was loaded here in place of the one that the loader knows.
struct PlacedImage {
    base: usize,
    headers: &'static [libc::Elf64_Phdr],
    file: &'static CStr,
}

static PLACED: OnceLock<PlacedImage> = OnceLock::new();

/// What was loaded at an address, of a file, is the program from now on.
pub fn place(base: usize, headers: &'static [libc::Elf64_Phdr], file: &'static CStr) {
    let _ = PLACED.set(PlacedImage { base, headers, file });
}

/// Whether the program was loaded here.
pub fn is_placed() -> bool {
    PLACED.get().is_some()
}

/// The longest path of that kind, with its end.
pub const LINK_MAX: usize = 32;

/// Whether a path is that by which a process names the program that it runs.
pub fn names_program(path: &[u8]) -> bool {
    let own = |process: &[u8]| {
        let number = std::str::from_utf8(process).ok().and_then(|text| text.parse().ok());
        process == b"self" || number == Some(std::process::id())
    };
    path.strip_prefix(b"/proc/").and_then(|rest| rest.strip_suffix(b"/exe")).is_some_and(own)
}

/// Whether code at an address could jump to that of the program, or of libraries, which lie beside
/// this one.
pub fn is_near_code(address: usize) -> bool {
    /// How far a jump reaches.
    const REACH: usize = 2 << 30;
    // SAFETY: nothing is passed that has to be valid.
    let entry = || unsafe { libc::getauxval(libc::AT_ENTRY) as usize };
    let program = PLACED.get().map_or_else(entry, |placed| placed.base);
    [program, is_near_code as *const () as usize].iter().any(|code| code.abs_diff(address) < REACH)
}

/// The file of the program.
pub fn file() -> &'static CStr {
    PLACED.get().map_or(c"/proc/self/exe", |placed| placed.file)
}

/// The program itself, of whose code the first segment is looked at.
pub fn executable() -> Option<Executable> {
    if let Some(PlacedImage { base, headers, .. }) = PLACED.get() {
        // SAFETY: zero is right for the rest.
        let mut info: libc::dl_phdr_info = unsafe { std::mem::zeroed() };
        info.dlpi_addr = *base as u64;
        info.dlpi_phdr = headers.as_ptr();
        info.dlpi_phnum = headers.len() as u16;
        // SAFETY: it says what is loaded.
        return unsafe { read(&info) };
    }
    let mut found = None;
    each(|info, _| {
        // SAFETY: the entry is the loader's.
        found = unsafe { read(info) };
        ControlFlow::Break(())
    });
    found
}

/// # Safety
///
/// The entry is the loader's.
unsafe fn read(info: &libc::dl_phdr_info) -> Option<Executable> {
    const NEEDED: usize = 1;
    // SAFETY: as the entry says.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize) };
    let is_code = |header: &&libc::Elf64_Phdr| {
        header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0
    };
    let code = headers.iter().find(is_code)?;
    let start = (info.dlpi_addr + code.p_vaddr) as usize;
    let dynamic = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC);
    let mut entries = dynamic
        .map_or(&[][..], |dynamic| {
            let entries = (info.dlpi_addr + dynamic.p_vaddr) as *const [usize; 2];
            let count = dynamic.p_memsz as usize / size_of::<[usize; 2]>();
            // SAFETY: the table is part of the loaded program.
            unsafe { std::slice::from_raw_parts(entries, count) }
        })
        .iter();
    let prot = [(libc::PF_R, libc::PROT_READ), (libc::PF_W, libc::PROT_WRITE)];
    let prot = prot.iter().filter(|(flag, _)| code.p_flags & flag != 0);
    let loaded = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let lowest = loaded.map(|header| (info.dlpi_addr + header.p_vaddr) as usize).min()?;
    Some(Executable {
        start: lowest & !(PAGE_SIZE - 1),
        code: start..start + code.p_filesz as usize,
        offset: code.p_offset as usize,
        prot: prot.fold(libc::PROT_EXEC, |all, (_, prot)| all | prot),
        has_libraries: entries.any(|[tag, _]| *tag == NEEDED),
        // SAFETY: as for this function.
        is_go: unsafe { is_go(info) },
    })
}

/// Whether one of the libraries that are loaded is in Go.
pub fn has_go_library() -> bool {
    let (mut is_program, mut found) = (true, false);
    each(|info, _| {
        // SAFETY: the entry is the loader's.
        found = !std::mem::take(&mut is_program) && unsafe { is_go(info) };
        if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    found
}

/// # Safety
///
/// The entry is the loader's.
unsafe fn is_go(info: &libc::dl_phdr_info) -> bool {
    // SAFETY: 1. as the entry says; 2. the segments are part of what is loaded.
    unsafe {
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize);
        headers.iter().filter(|header| header.p_type == libc::PT_NOTE).any(|header| {
            let start = (info.dlpi_addr + header.p_vaddr) as *const u8;
            has_go_note(std::slice::from_raw_parts(start, header.p_memsz as usize))
        })
    }
}

/// Whether Go's is among some notes: each is the lengths of its name and its content, its kind, and
/// both, to multiples of four bytes.
fn has_go_note(mut notes: &[u8]) -> bool {
    const NAME: &[u8] = b"Go\0\0";
    const HEAD: usize = 12;
    while let Some((head, rest)) = notes.split_at_checked(HEAD) {
        let word =
            |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| head[4 * at + i])) as usize;
        if word(0) == NAME.len() && rest.starts_with(NAME) {
            return true;
        }
        let len = word(0).next_multiple_of(4).saturating_add(word(1).next_multiple_of(4));
        notes = rest.get(len..).unwrap_or_default();
    }
    false
}

impl Image {
    /// Replaces each word of the constants that is the first of a pair by the second. Called while
    /// the process has one thread.
    ///
    /// # Errors
    /// When the data cannot be changed.
    pub fn replace(&self, pairs: &[(usize, usize)]) -> Result<(), Errno> {
        if self.constants.is_empty() {
            return Ok(());
        }
        let protect = |prot| {
            // SAFETY: data of a library's keep their protection, or get more.
            unsafe {
                sys::on_range(Sysno::mprotect, self.constants.start, self.constants.len(), prot)
            }
        };
        protect(libc::PROT_READ | libc::PROT_WRITE)?;
        for at in self.constants.clone().step_by(size_of::<usize>()) {
            let word = at as *mut usize;
            // SAFETY: a word of these pages; the process has one thread.
            unsafe {
                if let Some((_, ours)) =
                    pairs.iter().find(|(theirs, _)| *theirs != 0 && *theirs == *word)
                {
                    word.write(*ours);
                }
            }
        }
        protect(libc::PROT_READ)?;
        Ok(())
    }

    /// How often a word is among the constants.
    #[cfg(test)]
    pub fn count(&self, word: usize) -> usize {
        // SAFETY: data of a library's, which can be read.
        let words = unsafe {
            let len = self.constants.len() / size_of::<usize>();
            std::slice::from_raw_parts(self.constants.start as *const usize, len)
        };
        words.iter().filter(|found| **found == word).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A note with this name and so many bytes.
    fn note(name: &[u8], len: usize) -> Vec<u8> {
        let mut note = Vec::new();
        [name.len(), len, 4].iter().for_each(|n| note.extend((*n as u32).to_ne_bytes()));
        note.extend(name);
        note.resize(note.len().next_multiple_of(4) + len.next_multiple_of(4), 7);
        note
    }

    #[test]
    fn gos_note_is_found_among_others() {
        let others = [note(b"GNU\0", 20), note(b"stapsdt\0", 3)].concat();
        assert!(!has_go_note(&others) && !has_go_note(&[]) && !has_go_note(&[1; 11]));
        assert!(has_go_note(&[&others[..], &note(b"Go\0\0", 83)].concat()));
        assert!(!has_go_note(&note(b"Gold", 0)));
        // Lengths that lead beyond the end.
        assert!(!has_go_note(&[0xff; 64]));
        assert!(!has_go_library() && !executable().unwrap().is_go);
    }
}
