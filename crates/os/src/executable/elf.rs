//! The few facts of an ELF header that decide whether a library can be preloaded into a program.

use crate::units::Errno;
use rustix::fd::AsFd;
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::path::{Path, PathBuf};

/// ELFCLASS64.
pub const CLASS_64: u8 = 2;
/// ET_DYN: shared objects and position-independent programs.
pub const TYPE_DYN: u16 = 3;
/// PT_INTERP: the program header that names the dynamic loader.
const PT_INTERP: u32 = 3;
/// Most program headers looked at; real files have a dozen.
const HEADERS_MAX: u16 = 512;
/// Longest path the kernel takes as the name of a loader.
const INTERPRETER_MAX: u64 = 4096;

/// What kind of ELF file this is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Elf {
    /// ELFCLASS32 or ELFCLASS64.
    pub class: u8,
    /// ELFDATA2LSB or ELFDATA2MSB.
    pub byte_order: u8,
    /// The architecture, an EM_ number.
    pub machine: u16,
    /// ET_EXEC, ET_DYN...
    pub kind: u16,
    /// The dynamic loader (PT_INTERP); static programs have none. Not looked for in 32-bit files.
    pub loader: Option<PathBuf>,
}

impl Elf {
    /// Reads a file's header; `Ok(None)` if it is no ELF file.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn of_file(path: &Path) -> Result<Option<Elf>, Errno> {
        let file = openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Elf::of_open_file(file))
    }

    /// The same of an open file.
    pub(super) fn of_open_file(file: impl AsFd) -> Option<Elf> {
        Elf::parse(|offset, len| {
            let mut bytes = vec![0; len];
            let read = rustix::io::pread(file.as_fd(), &mut bytes[..], offset).ok()?;
            (read == len).then_some(bytes)
        })
    }

    /// Parses through `read(offset, len)`, which returns `None` beyond the end of the file. Asks
    /// for 4 KiB at most, and some hundred times.
    pub fn parse(read: impl Fn(u64, usize) -> Option<Vec<u8>>) -> Option<Elf> {
        let ident = read(0, 20).filter(|bytes| bytes.starts_with(b"\x7fELF"))?;
        let fields = Fields { big: ident[5] == 2 };
        let mut elf = Elf {
            class: ident[4],
            byte_order: ident[5],
            kind: fields.u16(&ident, 16),
            machine: fields.u16(&ident, 18),
            loader: None,
        };
        if elf.class == CLASS_64 {
            elf.loader = loader(&fields, &read);
        }
        Some(elf)
    }

    /// Whether code of the two can share a process.
    pub fn runs_with(&self, other: &Elf) -> bool {
        (self.class, self.byte_order, self.machine)
            == (other.class, other.byte_order, other.machine)
    }

    /// Whether code of it can share a process with this code.
    pub(super) fn runs_here(&self) -> bool {
        const LITTLE: u8 = 1;
        const X86_64: u16 = 62;
        (self.class, self.byte_order, self.machine) == (CLASS_64, LITTLE, X86_64)
    }

    /// The architecture in words.
    pub fn architecture(&self) -> String {
        let bits = if self.class == CLASS_64 { 64 } else { 32 };
        let name = match self.machine {
            3 => "x86",
            8 => "MIPS",
            21 => "POWER",
            22 => "S/390",
            40 => "ARM",
            62 if bits == 32 => "x32",
            62 => "x86-64",
            183 => "AArch64",
            243 => "RISC-V",
            258 => "LoongArch",
            other => return format!("{bits}-bit, ELF machine {other}"),
        };
        format!("{bits}-bit {name}")
    }
}

fn loader(fields: &Fields, read: impl Fn(u64, usize) -> Option<Vec<u8>>) -> Option<PathBuf> {
    let header = read(0, 64)?;
    let (table, size, count) =
        (fields.u64(&header, 32), fields.u16(&header, 54), fields.u16(&header, 56));
    if size < 56 {
        return None;
    }
    let entry = (0..count.min(HEADERS_MAX)).find_map(|i| {
        let entry = read(table.checked_add(i as u64 * size as u64)?, 56)?;
        (fields.u32(&entry, 0) == PT_INTERP).then_some(entry)
    })?;
    let (offset, len) = (fields.u64(&entry, 8), fields.u64(&entry, 32));
    let name = read(offset, len.min(INTERPRETER_MAX) as usize)?;
    let name = name.split(|byte| *byte == 0).next().filter(|name| !name.is_empty())?;
    Some(PathBuf::from(String::from_utf8_lossy(name).into_owned()))
}

/// Integers of a file in its byte order.
struct Fields {
    big: bool,
}

impl Fields {
    fn u16(&self, bytes: &[u8], at: usize) -> u16 {
        let field = bytes[at..at + 2].try_into().expect("two bytes");
        if self.big { u16::from_be_bytes(field) } else { u16::from_le_bytes(field) }
    }

    fn u32(&self, bytes: &[u8], at: usize) -> u32 {
        let field = bytes[at..at + 4].try_into().expect("four bytes");
        if self.big { u32::from_be_bytes(field) } else { u32::from_le_bytes(field) }
    }

    fn u64(&self, bytes: &[u8], at: usize) -> u64 {
        let field = bytes[at..at + 8].try_into().expect("eight bytes");
        if self.big { u64::from_be_bytes(field) } else { u64::from_le_bytes(field) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A 64-bit little-endian file: header, one PT_LOAD, and a PT_INTERP if there is a loader.
    fn file(kind: u16, machine: u16, loader: Option<&str>) -> Vec<u8> {
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(16, 0);
        bytes.extend(kind.to_le_bytes());
        bytes.extend(machine.to_le_bytes());
        bytes.resize(64, 0);
        bytes[32..40].copy_from_slice(&64u64.to_le_bytes());
        bytes[54..56].copy_from_slice(&56u16.to_le_bytes());
        bytes[56..58].copy_from_slice(&(1 + loader.is_some() as u16).to_le_bytes());
        bytes.extend(1u32.to_le_bytes());
        bytes.resize(64 + 56, 0);
        if let Some(loader) = loader {
            bytes.extend(PT_INTERP.to_le_bytes());
            bytes.resize(64 + 112, 0);
            bytes[120 + 8..120 + 16].copy_from_slice(&176u64.to_le_bytes());
            bytes[120 + 32..120 + 40].copy_from_slice(&(loader.len() as u64 + 1).to_le_bytes());
            bytes.extend(loader.bytes().chain([0]));
        }
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Elf> {
        Elf::parse(|offset, len| {
            let start = usize::try_from(offset).ok()?;
            bytes.get(start..start.checked_add(len)?).map(<[u8]>::to_vec)
        })
    }

    #[test]
    fn a_dynamic_program_names_its_loader() {
        let elf = parse(&file(TYPE_DYN, 62, Some("/lib64/ld-linux-x86-64.so.2"))).unwrap();
        assert_eq!(elf.loader.as_deref(), Some(Path::new("/lib64/ld-linux-x86-64.so.2")));
        assert_eq!((elf.kind, elf.architecture().as_str()), (TYPE_DYN, "64-bit x86-64"));
    }

    #[test]
    fn a_static_program_has_none() {
        assert_eq!(parse(&file(2, 62, None)).unwrap().loader, None);
    }

    #[test]
    fn architectures_are_told_apart() {
        let ours = parse(&file(2, 62, None)).unwrap();
        let arm = parse(&file(2, 183, None)).unwrap();
        let mut small = file(2, 3, None);
        small[4] = 1;
        let small = parse(&small).unwrap();
        let mut big = file(2, 62 << 8, None);
        big[5] = 2;
        let big = parse(&big).unwrap();
        assert!(
            ours.runs_with(&ours)
                && !ours.runs_with(&arm)
                && !ours.runs_with(&small)
                && !ours.runs_with(&big)
        );
        assert_eq!(
            (arm.architecture().as_str(), small.architecture().as_str()),
            ("64-bit AArch64", "32-bit x86")
        );
        assert_eq!(big.machine, 62);
    }

    #[test]
    fn damaged_files_do_not_panic() {
        let whole = file(TYPE_DYN, 62, Some("/lib/ld.so"));
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"#!/bin/sh and more than twenty bytes"), None);
        for len in 0..whole.len() {
            assert_eq!(parse(&whole[..len]).is_some(), len >= 20, "{len}");
        }
        for at in 4..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0xff;
            parse(&damaged);
        }
    }

    proptest! {
        /// Whatever is written into the head of a file, little is read, and in the end there is an
        /// answer.
        #[test]
        fn any_file_is_read_a_little(
            changes in prop::collection::vec((0usize..240, any::<u8>()), 0..40),
            magic in any::<bool>(),
            size in 0usize..400,
        ) {
            let mut bytes = file(TYPE_DYN, 62, Some("/lib64/ld-linux-x86-64.so.2"));
            bytes.resize(size, 0x5a);
            for (at, value) in changes {
                if let Some(byte) = bytes.get_mut(at).filter(|_| at > 3 || !magic) {
                    *byte = value;
                }
            }
            let reads = std::cell::Cell::new(0);
            let elf = Elf::parse(|offset, len| {
                reads.set(reads.get() + 1);
                assert!(len as u64 <= INTERPRETER_MAX);
                let start = usize::try_from(offset).ok()?;
                bytes.get(start..start.checked_add(len)?).map(<[u8]>::to_vec)
            });
            prop_assert!(reads.get() <= usize::from(HEADERS_MAX) + 3);
            if let Some(elf) = elf {
                prop_assert!(elf.runs_with(&elf) && !elf.architecture().is_empty());
            }
        }
    }

    #[test]
    fn this_test_is_a_program_of_this_machine() {
        let elf = Elf::of_file(&std::env::current_exe().unwrap()).unwrap().unwrap();
        assert!(elf.runs_with(&elf) && elf.class == CLASS_64);
        assert!(Elf::of_file(Path::new("/proc/self/status")).unwrap().is_none());
    }
}
