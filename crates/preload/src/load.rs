//! A program without a dynamic loader, put into a process that has this library.
//!
//! Nothing can be preloaded into a static program. So the C library's dynamic loader is executed in
//! its place, with something else as the program ([`STAND_IN`]), and a variable names the file of
//! the program proper ([`FILE`]). The constructor does for it what the kernel would:
//!
//! 1. [`Program::map`] puts its segments where they belong, or anywhere if it is
//!    position-independent.
//! 2. The process gets its engine, and the numbers of the program's system calls are replaced
//!    ([`crate::inline`]), as it makes them by instructions of its own.
//! 3. [`Program::enter`] gives it a stack with its arguments, its environment and what the kernel
//!    says of the process (the auxiliary vector), and goes to its beginning. It never comes back:
//!    of the C library that is loaded the program knows nothing.
//!
//! Context: the constructor; the process has one thread, and nothing of the program has run.

use crate::memory::strings::{Strings, each};
use crate::sys;
use overspill_os::{Errno, PAGE_SIZE};
use rustix::fs::{Mode, OFlags};
use std::ffi::{CStr, CString, OsStr, c_char};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use syscalls::{Sysno, raw_syscall};

/// The C library's dynamic loader.
pub const LOADER: &CStr = c"/lib64/ld-linux-x86-64.so.2";
/// What it takes for the program: a small part of the C library that is everywhere. Neither this
/// library does, which the loader would load once more as LD_PRELOAD names it, nor the C library
/// itself, in whose functions this one would not be bound to it.
pub const STAND_IN: &CStr = c"libdl.so.2";
/// The variable that names the file, with its value behind it.
pub const FILE: &[u8] = b"OVERSPILL_STATIC=";
/// Most program headers that the kernel takes: 64 KiB of them.
const HEADERS_MAX: usize = 1170;

/// A program that is mapped.
#[derive(Debug)]
pub struct Program {
    /// Its file.
    pub path: CString,
    /// What is added to its addresses.
    pub base: usize,
    /// Its headers, and where the program finds them.
    pub headers: Vec<libc::Elf64_Phdr>,
    headers_at: usize,
    entry: usize,
}

/// The file that a process is to run, if it was started for that.
///
/// # Safety
///
/// An array of strings that ends with a null, alive for ever.
pub unsafe fn asked(variables: Strings) -> Option<&'static CStr> {
    // SAFETY: the caller's promise.
    unsafe { strings(variables) }.find_map(|string| {
        let value = string.to_bytes_with_nul().strip_prefix(FILE)?;
        CStr::from_bytes_with_nul(value).ok()
    })
}

/// # Safety
///
/// An array of strings that ends with a null, alive for ever.
unsafe fn strings(array: Strings) -> impl Iterator<Item = &'static CStr> {
    // SAFETY: the caller's promise.
    each(array).map(|string| unsafe { CStr::from_ptr(string) })
}

impl Program {
    /// Maps the segments of a file.
    ///
    /// # Errors
    /// NOEXEC where it is none that can be loaded here, EXIST where something else is at its
    /// addresses, and those of open(2), pread(2) and mmap(2).
    pub fn map(path: &CStr) -> Result<Program, Errno> {
        let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| Errno::from_raw_os_error(errno.raw_os_error()))?;
        let header: libc::Elf64_Ehdr = read(&file, 0)?;
        let count = usize::from(header.e_phnum);
        let is_right = header.e_ident.starts_with(b"\x7fELF\x02\x01")
            && header.e_machine == libc::EM_X86_64
            && [libc::ET_EXEC, libc::ET_DYN].contains(&header.e_type)
            && usize::from(header.e_phentsize) == size_of::<libc::Elf64_Phdr>()
            && count <= HEADERS_MAX;
        if !is_right {
            return Err(Errno::NOEXEC);
        }
        let header_at = |n| header.e_phoff + (n * size_of::<libc::Elf64_Phdr>()) as u64;
        let headers = (0..count)
            .map(|n| read(&file, header_at(n)))
            .collect::<Result<Vec<libc::Elf64_Phdr>, Errno>>()?;
        let loaded = || headers.iter().filter(|segment| segment.p_type == libc::PT_LOAD);
        let start = loaded().map(|segment| segment.p_vaddr as usize).min().ok_or(Errno::NOEXEC)?;
        let ends = loaded().map(|segment| segment.p_vaddr.checked_add(segment.p_memsz));
        let end = ends.max().flatten().ok_or(Errno::NOEXEC)? as usize;
        let whole = start & !(PAGE_SIZE - 1)..end.next_multiple_of(PAGE_SIZE);
        // SAFETY: nothing is mapped there.
        let base = unsafe { reserve(&whole, header.e_type == libc::ET_DYN)? } - whole.start;
        // SAFETY: the range is this program's.
        loaded().try_for_each(|segment| unsafe { map_segment(&file, segment, base) })?;
        let headers_at = headers_at(&headers, header.e_phoff) + base;
        let entry = base + header.e_entry as usize;
        let path = whole_path(&file).unwrap_or_else(|| path.to_owned());
        Ok(Program { path, base, headers, headers_at, entry })
    }

    /// Runs the program: with the arguments behind the first, which is the name of what stands in,
    /// and the environment without the variable that names the file.
    ///
    /// # Safety
    ///
    /// Arguments and environment as the loader has handed them over, the auxiliary vector behind
    /// them.
    pub unsafe fn enter(&'static self, arguments: Strings, variables: Strings) -> ! {
        // SAFETY: the caller's promise.
        let words = unsafe { self.first_words(arguments, variables) };
        // Below this frame, which nobody comes back to; the kernel aligns it so.
        const AWAY: usize = 4096;
        let here = (&raw const words) as usize;
        let stack = (here - AWAY - size_of_val(&*words)) & !63;
        // SAFETY: there is room below, as for any function; the words are copied once the stack
        // pointer is below them, so that no handler writes over them.
        unsafe {
            std::arch::asm!(
                "mov rsp, rdi",
                "cld",
                "rep movsq",
                "xor edx, edx",
                "xor ebp, ebp",
                "jmp rax",
                in("rdi") stack,
                in("rsi") words.as_ptr(),
                in("rcx") words.len(),
                in("rax") self.entry,
                options(noreturn),
            )
        }
    }

    /// The name that the system shows.
    pub fn take_name(&self) {
        let name = Path::new(OsStr::from_bytes(self.path.to_bytes())).file_name();
        let name = CString::new(name.unwrap_or_default().as_bytes()).unwrap_or_default();
        // SAFETY: a string, of which the kernel takes 15 bytes.
        let _ = unsafe { raw_syscall!(Sysno::prctl, libc::PR_SET_NAME, name.as_ptr()) };
    }

    /// What is on the stack when a program begins.
    ///
    /// # Safety
    ///
    /// As for [`Program::enter`].
    unsafe fn first_words(&'static self, arguments: Strings, variables: Strings) -> Vec<usize> {
        // SAFETY: the caller's promise.
        let list = |array| unsafe { strings(array) }.map(|string| string.as_ptr() as usize);
        let arguments: Vec<usize> = list(arguments).skip(1).collect();
        let count = list(variables).count();
        // SAFETY: the caller's promise.
        let kept = unsafe { strings(variables) }
            .filter(|string| !string.to_bytes().starts_with(FILE))
            .map(|string| string.as_ptr() as usize);
        let mut words = vec![arguments.len()];
        words.extend(arguments.into_iter().chain([0]).chain(kept).chain([0]));
        let mut entry = variables.wrapping_add(count + 1).cast::<[usize; 2]>();
        loop {
            // SAFETY: pairs up to one of the kind 0.
            let [kind, value] = unsafe { *entry };
            words.extend([kind, self.about(kind, value)]);
            if kind == 0 {
                return words;
            }
            entry = entry.wrapping_add(1);
        }
    }

    /// What the kernel would say of this program.
    fn about(&self, kind: usize, value: usize) -> usize {
        match kind as u64 {
            libc::AT_PHDR => self.headers_at,
            libc::AT_PHNUM => self.headers.len(),
            libc::AT_PHENT => size_of::<libc::Elf64_Phdr>(),
            libc::AT_BASE => 0,
            libc::AT_ENTRY => self.entry,
            libc::AT_EXECFN => self.path.as_ptr() as usize,
            _ => value,
        }
    }
}

/// The path of a file, as the kernel would say which program runs.
fn whole_path(file: &OwnedFd) -> Option<CString> {
    rustix::fs::readlink(format!("/proc/self/fd/{}", file.as_raw_fd()), Vec::new()).ok()
}

/// Reads a structure of an ELF file.
fn read<T>(file: &OwnedFd, at: u64) -> Result<T, Errno> {
    let mut value = std::mem::MaybeUninit::<T>::uninit();
    let (place, len) = (value.as_mut_ptr(), size_of::<T>());
    // SAFETY: there is room for it.
    let read = unsafe { raw_syscall!(Sysno::pread64, file.as_raw_fd(), place, len, at) };
    if sys::check(read)? != len {
        return Err(Errno::NOEXEC);
    }
    // SAFETY: it was read, and all of its bytes are numbers.
    Ok(unsafe { value.assume_init() })
}

/// Addresses for a program: its own, or any where it is position-independent.
///
/// # Safety
///
/// As for mmap(2).
unsafe fn reserve(whole: &Range<usize>, anywhere: bool) -> Result<usize, Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let (at, fixed) = if anywhere { (0, 0) } else { (whole.start, libc::MAP_FIXED_NOREPLACE) };
    // SAFETY: the caller's promise.
    let start = unsafe { sys::mmap(at, whole.len(), libc::PROT_NONE, flags | fixed, -1, 0)? };
    // A kernel that does not know the flag takes it for a hint.
    if anywhere || start == at { Ok(start) } else { Err(Errno::EXIST) }
}

/// Maps a segment of a file, and zeros behind what the file has of it.
///
/// # Safety
///
/// Nothing else is at its addresses.
unsafe fn map_segment(
    file: &OwnedFd,
    segment: &libc::Elf64_Phdr,
    base: usize,
) -> Result<(), Errno> {
    let flags = [
        (libc::PF_R, libc::PROT_READ),
        (libc::PF_W, libc::PROT_WRITE),
        (libc::PF_X, libc::PROT_EXEC),
    ];
    let given = flags.iter().filter(|(flag, _)| segment.p_flags & flag != 0);
    let prot = given.fold(0, |all, (_, prot)| all | prot);
    let start = base + segment.p_vaddr as usize;
    let first = start & !(PAGE_SIZE - 1);
    let in_file = start + segment.p_filesz as usize;
    let end = (start + segment.p_memsz as usize).next_multiple_of(PAGE_SIZE);
    let offset = segment.p_offset as usize & !(PAGE_SIZE - 1);
    let private = libc::MAP_PRIVATE | libc::MAP_FIXED;
    let file_end = in_file.next_multiple_of(PAGE_SIZE);
    if segment.p_filesz > 0 {
        let (len, fd) = (file_end - first, file.as_raw_fd());
        // SAFETY: the caller's promise.
        unsafe { sys::mmap(first, len, prot, private, fd, offset as i64)? };
        if segment.p_memsz > segment.p_filesz && segment.p_flags & libc::PF_W != 0 {
            // SAFETY: the rest of the last page, which can be written.
            unsafe { std::ptr::write_bytes(in_file as *mut u8, 0, file_end - in_file) };
        }
    }
    let zeros = if segment.p_filesz > 0 { file_end } else { first }..end;
    if !zeros.is_empty() {
        let flags = private | libc::MAP_ANONYMOUS;
        // SAFETY: the caller's promise.
        unsafe { sys::mmap(zeros.start, zeros.len(), prot, flags, -1, 0)? };
    }
    Ok(())
}

/// Where a program finds its headers, if something of it is mapped there.
fn headers_at(headers: &[libc::Elf64_Phdr], offset: u64) -> usize {
    let named = headers.iter().find(|segment| segment.p_type == libc::PT_PHDR);
    let holds = |segment: &&libc::Elf64_Phdr| {
        segment.p_type == libc::PT_LOAD
            && (segment.p_offset..segment.p_offset + segment.p_filesz).contains(&offset)
    };
    let held = || {
        let segment = headers.iter().find(holds)?;
        Some(segment.p_vaddr + (offset - segment.p_offset))
    };
    named.map(|segment| segment.p_vaddr).or_else(held).unwrap_or(0) as usize
}

/// Executes the program as it is, where it cannot be put into this process: it is not managed then.
///
/// # Safety
///
/// As for [`Program::enter`].
pub unsafe fn execute_plainly(file: &CStr, arguments: Strings, variables: Strings) -> Errno {
    // SAFETY: the caller's promise; the array ends with a null.
    let (arguments, kept) = unsafe {
        let kept = strings(variables).filter(|string| !string.to_bytes().starts_with(FILE));
        let kept: Vec<*const c_char> = kept.map(CStr::as_ptr).chain([std::ptr::null()]).collect();
        (arguments.add(1), kept)
    };
    // SAFETY: strings, and arrays of them.
    let failed = unsafe { raw_syscall!(Sysno::execve, file.as_ptr(), arguments, kept.as_ptr()) };
    sys::check(failed).err().unwrap_or(Errno::NOEXEC)
}
