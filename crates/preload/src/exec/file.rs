//! The file that is executed: whether its loader can load this library.
//!
//! The loader of musl ends the program where it cannot load what LD_PRELOAD names, and that of
//! another architecture complains. What cannot be looked at is left to the loader.
//!
//! Context: as in [`super::environment`].

use super::arguments::directories;
use crate::{image, memory, sys};
use overspill_os::confined;
use overspill_os::executable::{is_loader, is_musl};
use std::ffi::{CStr, OsStr, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use syscalls::{Sysno, raw_syscall};

/// Longest path that the kernel takes, with its end.
const PATH_MAX: usize = libc::PATH_MAX as usize;
/// As much of a file as mostly has all that is looked for.
const HEAD: usize = 1024;
/// The beginning of a file of this architecture: 64 bits, little-endian.
const MAGIC: &[u8] = b"\x7fELF\x02\x01";
const MACHINE: u16 = 62;
const PT_INTERP: u32 = 3;
/// Most program headers that the kernel takes: 64 KiB of them.
const HEADERS_MAX: u64 = 1170;

/// What is executed, as the call names it.
#[derive(Clone, Copy)]
pub enum Executed {
    /// By a path, from a directory on.
    At(c_int, usize),
    /// By a name that is looked for in PATH.
    Search(usize),
    /// By a descriptor.
    Open(c_int),
}

/// A path that is put together without the heap.
pub struct Path {
    bytes: [u8; PATH_MAX],
    len: usize,
}

impl Path {
    /// The string at an address of the program's.
    fn read(at: usize) -> Option<Path> {
        let mut path = Path { bytes: [0; PATH_MAX], len: 0 };
        path.len = memory::read_string(at, &mut path.bytes)?;
        Some(path)
    }

    /// A name in a directory.
    fn join(directory: &[u8], name: &Path) -> Option<Path> {
        let mut path = Path { bytes: [0; PATH_MAX], len: 0 };
        let separator: &[u8] = if directory.is_empty() { b"" } else { b"/" };
        for part in [directory, separator, name.as_bytes()] {
            let end = path.len + part.len();
            // One byte stays for its end.
            path.bytes[..PATH_MAX - 1].get_mut(path.len..end)?.copy_from_slice(part);
            path.len = end;
        }
        Some(path)
    }

    /// The path without its end.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn is_executable(&self, directory: c_int) -> bool {
        let (directory, name) = (directory as isize as usize, self.bytes.as_ptr());
        // SAFETY: the path ends with a zero.
        let asked = unsafe { raw_syscall!(Sysno::faccessat, directory, name, libc::X_OK) };
        sys::check(asked).is_ok()
    }
}

/// A descriptor that is closed again where it was opened here.
struct Descriptor(c_int, bool);

impl Descriptor {
    /// Opens what can be executed.
    fn open(directory: c_int, path: &Path) -> Option<Descriptor> {
        // Not what is no program: to open a device may do something.
        if !path.is_executable(directory) {
            return None;
        }
        let (directory, name) = (directory as isize as usize, path.bytes.as_ptr());
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
        // SAFETY: the path ends with a zero.
        let fd = unsafe { raw_syscall!(Sysno::openat, directory, name, flags, 0) };
        sys::check(fd).ok().map(|fd| Descriptor(fd as c_int, true))
    }

    /// Reads from a place on; None where there is less.
    fn read(&self, at: u64, to: &mut [u8]) -> Option<usize> {
        let (place, len) = (to.as_mut_ptr(), to.len());
        // SAFETY: there is room for so many bytes.
        sys::check(unsafe { raw_syscall!(Sysno::pread64, self.0, place, len, at) }).ok()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if self.1 {
            // SAFETY: opened here.
            unsafe { raw_syscall!(Sysno::close, self.0) };
        }
    }
}

impl Executed {
    /// Whether its loader can load this library.
    pub fn takes_library(self) -> bool {
        // A filter of the program's may kill for the question.
        confined::is_confined() || self.open().is_none_or(|file| file.takes_library())
    }

    /// A path that leads to it if it is a program without a loader that can be loaded here: of this
    /// architecture, not the loader itself, and without rights of its own.
    pub fn is_static(self) -> Option<Path> {
        // A filter of the program's may kill for the question.
        if confined::is_confined() {
            return None;
        }
        let (directory, mut path) = self.find()?;
        if image::is_placed() && image::names_program(path.as_bytes()) {
            path = Path::read(image::file().as_ptr() as usize)?;
        }
        let is_whole = directory == libc::AT_FDCWD || path.as_bytes().starts_with(b"/");
        let name = OsStr::from_bytes(path.as_bytes()).as_ref();
        if !is_whole || is_loader(name) {
            return None;
        }
        let file = Descriptor::open(directory, &path)?;
        (file.has_no_loader() && !file.has_rights()).then_some(path)
    }

    /// A path that leads to it, on the heap; None where there is none, and the kernel is to say so.
    pub fn path(self) -> Option<PathBuf> {
        let of_descriptor = |fd: c_int| PathBuf::from("/proc/self/fd").join(fd.to_string());
        if let Executed::Open(fd) = self {
            return Some(of_descriptor(fd));
        }
        let (directory, path) = self.find()?;
        let path = PathBuf::from(OsStr::from_bytes(path.as_bytes()));
        let is_whole = directory == libc::AT_FDCWD || path.is_absolute();
        Some(if is_whole { path } else { of_descriptor(directory).join(path) })
    }

    fn open(self) -> Option<Descriptor> {
        if let Executed::Open(fd) = self {
            return Some(Descriptor(fd, false));
        }
        let (directory, path) = self.find()?;
        Descriptor::open(directory, &path)
    }

    /// The path that names it, and from which directory on.
    fn find(self) -> Option<(c_int, Path)> {
        match self {
            Executed::Open(_) => None,
            Executed::At(directory, path) => Some((directory, Path::read(path)?)),
            Executed::Search(name) => {
                let name = Path::read(name)?;
                if name.as_bytes().contains(&b'/') {
                    return Some((libc::AT_FDCWD, name));
                }
                // SAFETY: the call that this is about reads the environment, too.
                let mut places = unsafe { directories() }.split(|byte| *byte == b':');
                let found = places.find_map(|directory| {
                    Path::join(directory, &name).filter(|path| path.is_executable(libc::AT_FDCWD))
                });
                found.map(|path| (libc::AT_FDCWD, path))
            }
        }
    }
}

impl Descriptor {
    fn takes_library(&self) -> bool {
        let mut head = [0; HEAD];
        let Some(len) = self.read(0, &mut head) else { return true };
        let head = &head[..len];
        if !head.starts_with(&MAGIC[..4]) {
            return true;
        }
        if !head.starts_with(MAGIC) || word::<2>(head, 18) != Some(MACHINE.into()) {
            return false;
        }
        self.loader(head).is_none_or(|[path, len]| {
            let mut bytes = [0; PATH_MAX];
            let bytes = &mut bytes[..(len as usize).min(PATH_MAX)];
            let Some(bytes) = self.part(head, path, bytes) else { return true };
            let path = CStr::from_bytes_until_nul(bytes).unwrap_or_default().to_bytes();
            !is_musl(OsStr::from_bytes(path).as_ref())
        })
    }

    /// Whether it is a program of this architecture that names no loader.
    fn has_no_loader(&self) -> bool {
        let mut head = [0; HEAD];
        let Some(len) = self.read(0, &mut head) else { return false };
        let head = &head[..len];
        let is = |at, kinds: &[u16]| {
            word::<2>(head, at)
                .is_some_and(|found| kinds.iter().any(|kind| found == (*kind).into()))
        };
        head.starts_with(MAGIC)
            && is(16, &[libc::ET_EXEC, libc::ET_DYN])
            && is(18, &[MACHINE])
            && self.loader(head).is_none()
    }

    /// Whether it is executed with rights that the caller may not have.
    fn has_rights(&self) -> bool {
        const CAPABILITIES: &CStr = c"security.capability";
        // SAFETY: zero is right for it.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        let (name, place) = (CAPABILITIES.as_ptr(), std::ptr::null_mut::<u8>());
        // SAFETY: 1. the kernel writes the structure; 2. it only says how long the value is.
        let (known, capabilities) = unsafe {
            (
                sys::check(raw_syscall!(Sysno::fstat, self.0, &raw mut status)).is_ok(),
                sys::check(raw_syscall!(Sysno::fgetxattr, self.0, name, place, 0)),
            )
        };
        !known
            || status.st_mode & (libc::S_ISUID | libc::S_ISGID) != 0
            || capabilities.is_ok_and(|len| len > 0)
    }

    /// Where the file names its loader, and how many bytes that takes.
    fn loader(&self, head: &[u8]) -> Option<[u64; 2]> {
        let [at, size, count] = [word::<8>(head, 32)?, word::<2>(head, 54)?, word::<2>(head, 56)?];
        (0..count.min(HEADERS_MAX)).find_map(|n| {
            let mut header = [0; 56];
            let header = self.part(head, at.checked_add(n * size)?, &mut header)?;
            let found = word::<4>(header, 0)? == PT_INTERP.into();
            found.then_some([word::<8>(header, 8)?, word::<8>(header, 32)?])
        })
    }

    /// As many bytes from a place on as there is room for, or are there: mostly of the head.
    fn part<'a>(&self, head: &'a [u8], at: u64, to: &'a mut [u8]) -> Option<&'a [u8]> {
        let end = at.checked_add(to.len() as u64)? as usize;
        if let Some(part) = head.get(at as usize..end) {
            return Some(part);
        }
        let len = self.read(at, to)?;
        Some(&to[..len])
    }
}

/// A number of so many bytes.
fn word<const BYTES: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let mut word = [0; 8];
    word[..BYTES].copy_from_slice(bytes.get(at..at + BYTES)?);
    Some(u64::from_le_bytes(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn loaders_are_told() {
        let folder = std::env::temp_dir().join(format!("overspill-file-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        let place = own.windows(8).position(|bytes| bytes == b"ld-linux").unwrap();
        let path = std::ffi::CString::new(folder.join("file").as_os_str().as_bytes()).unwrap();
        let takes = |file: &[u8]| {
            fs::write(folder.join("file"), file).unwrap();
            fs::set_permissions(folder.join("file"), Permissions::from_mode(0o755)).unwrap();
            Executed::At(libc::AT_FDCWD, path.as_ptr() as usize).takes_library()
        };
        let with = |place: usize, bytes: &[u8]| {
            let mut file = own.clone();
            file[place..place + bytes.len()].copy_from_slice(bytes);
            file
        };
        assert!(takes(&own) && takes(b"#!/bin/sh\n") && takes(b""));
        assert!(!takes(&with(place, b"ld-musl-")));
        assert!(!takes(&with(4, &[1])) && !takes(&with(18, &[183])));
        assert!(takes(&with(32, &[0xff; 8])), "what is damaged is left to others");
        fs::remove_dir_all(&folder).unwrap();
        assert!(Executed::At(libc::AT_FDCWD, path.as_ptr() as usize).takes_library());
        assert!(Executed::Search(c"sh".as_ptr() as usize).takes_library());
        assert!(
            Executed::At(libc::AT_FDCWD, 8).takes_library() && Executed::Open(-1).takes_library()
        );
    }

    #[test]
    fn files_are_found_as_they_are_executed() {
        let path = |file: Executed| file.path().map(|path| path.to_str().unwrap().to_owned());
        let (a, b) = (c"a/b".as_ptr() as usize, c"b".as_ptr() as usize);
        assert_eq!(path(Executed::Search(a)).as_deref(), Some("a/b"));
        assert_eq!(path(Executed::At(libc::AT_FDCWD, b)).as_deref(), Some("b"));
        assert_eq!(path(Executed::At(7, b)).as_deref(), Some("/proc/self/fd/7/b"));
        assert_eq!(path(Executed::At(7, c"/x".as_ptr() as usize)).as_deref(), Some("/x"));
        assert_eq!(path(Executed::Open(7)).as_deref(), Some("/proc/self/fd/7"));
        assert!(path(Executed::Search(c"sh".as_ptr() as usize)).unwrap().ends_with("/sh"));
        assert_eq!(path(Executed::Search(c"no-such-program".as_ptr() as usize)), None);
    }
}
