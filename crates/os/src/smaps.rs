//! What kinds of memory a process has that no file holds, by the kernel's list of its mappings.
//!
//! The kernel goes through all page tables for that list, and writes a page of text for each few
//! mappings: it is for when the sum, which is cheap ([`crate::rss`]), is a reason to ask.

use crate::units::{Errno, PAGE_SIZE};
use crate::{descriptors, io, vm};
use rustix::fs::{Mode, OFlags};
use std::ffi::CStr;
use std::ops::Range;

/// A kind of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum MemoryKind {
    /// Stacks, of the first thread and of others: what lies right above a guard.
    Stacks,
    /// What brk(2) gives.
    Brk,
    /// Data of the program and its libraries, as far as it was written.
    Data,
    /// Pages of other files that are mapped privately, and were written.
    Files,
    /// Memory that code may be run in: of a JIT.
    Code,
    /// The engine's own, and what a small process had before it was managed.
    Own,
    /// Anonymous memory of any other origin.
    Other,
    /// What is managed.
    Managed,
}

/// Number of kinds.
const KINDS: usize = MemoryKind::Managed as usize + 1;
/// A stack has no larger guard.
const GUARD_MOST: usize = 4 << 20;
/// Where the kernel's addresses begin at the latest: it lists a page of its own as a mapping.
const ADDRESSES_END: usize = 1 << 47;
/// Bytes read at once.
const BUFFER: usize = 16 << 10;

/// Pages of each kind.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Kinds([u64; KINDS]);

impl Kinds {
    /// Pages of one.
    pub fn get(&self, kind: MemoryKind) -> u64 {
        self.0[kind as usize]
    }

    /// Those of the calling process, whose managed memory is in `managed`.
    ///
    /// # Errors
    /// Where there is no /proc, or the process may not look.
    pub fn of_process(managed: &[Range<usize>]) -> Result<Kinds, Errno> {
        let mut reader = Reader::new(managed);
        each_line(c"/proc/self/smaps", |line| reader.line(line))?;
        Ok(reader.kinds)
    }

    /// From the text of such a list, of a process without managed memory.
    pub fn of_text(text: &str) -> Kinds {
        let mut reader = Reader::new(&[]);
        text.lines().for_each(|line| reader.line(line));
        reader.kinds
    }
}

/// The mappings of the calling process that are neither in `managed` nor the engine's own, nor at
/// addresses of the kernel.
///
/// # Errors
/// As [`Kinds::of_process`].
pub fn beside(managed: &[Range<usize>]) -> Result<Vec<Range<usize>>, Errno> {
    let mut beside = Vec::new();
    each_line(c"/proc/self/maps", |line| {
        if let Some((range, ..)) = head(line)
            && range.end <= ADDRESSES_END
            && !vm::is_own(&range)
            && !managed.iter().any(|managed| managed.contains(&range.start))
        {
            beside.push(range);
        }
    })?;
    Ok(beside)
}

/// Whether a range lies in one mapping that is private and of no file, and may be read and written.
pub fn is_plain(range: &Range<usize>) -> bool {
    let mut found = false;
    let looked = each_line(c"/proc/self/maps", |line| {
        found |= head(line).is_some_and(|(mapped, access, name)| {
            mapped.start <= range.start && range.end <= mapped.end && (access, name) == ("rw-p", "")
        });
    });
    found && looked.is_ok()
}

/// Calls `each` with the lines of a file of this process in /proc.
fn each_line(path: &CStr, mut each: impl FnMut(&str)) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let open = || rustix::fs::open(path, flags, Mode::empty());
    let file = io::File::from_fd(descriptors::open_path(open)?);
    let (mut text, mut len) = (vec![0; BUFFER], 0);
    loop {
        let read = rustix::io::read(file.fd()?, &mut text[len..])?;
        if read == 0 {
            return Ok(());
        }
        len += read;
        let whole = text[..len].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        String::from_utf8_lossy(&text[..whole]).lines().for_each(&mut each);
        // A line that is longer than all of the buffer is none that says anything.
        let rest = if whole == 0 && len == text.len() { len } else { whole };
        text.copy_within(rest..len, 0);
        len -= rest;
    }
}

/// The mapping that lines are about, and what is needed of the one before.
struct Reader<'a> {
    managed: &'a [Range<usize>],
    kinds: Kinds,
    kind: MemoryKind,
    range: Range<usize>,
    is_guard: bool,
    /// KiB of its pages in memory, and its part of them: what several have is divided among them.
    rss: u64,
    pss: u64,
    /// The last file of which a part was mapped to be executed: a program or a library.
    program: String,
}

impl Reader<'_> {
    fn new(managed: &[Range<usize>]) -> Reader<'_> {
        let (kinds, program) = (Kinds::default(), String::new());
        let (range, is_guard, rss, pss) = (0..0, false, 0, 0);
        Reader { managed, kinds, kind: MemoryKind::Other, range, is_guard, rss, pss, program }
    }

    fn line(&mut self, line: &str) {
        let kib_of = |name| {
            let text = line.strip_prefix(name)?.trim().strip_suffix(" kB")?;
            text.parse::<u64>().ok()
        };
        if let Some(kib) = kib_of("Rss:") {
            self.rss = kib;
        } else if let Some(kib) = kib_of("Pss:") {
            self.pss = kib;
        } else if let Some(kib) = kib_of("Anonymous:") {
            // Of what the mapping has, as much of this as of all of it is the process's part.
            let part = u128::from(kib) * u128::from(self.pss) / u128::from(self.rss.max(1));
            let pages = (part.min(kib.into()) as u64).div_ceil(PAGE_SIZE as u64 >> 10);
            let sum = &mut self.kinds.0[self.kind as usize];
            *sum = sum.saturating_add(pages);
        } else if let Some((range, access, path)) = head(line) {
            self.kind = self.classify(&range, access, path);
            self.is_guard =
                path.is_empty() && access.starts_with("---") && range.len() <= GUARD_MOST;
            self.range = range;
        }
    }

    fn is_managed(&self, address: usize) -> bool {
        self.managed.iter().any(|range| range.contains(&address))
    }

    /// The kind of a mapping that follows the last one.
    fn classify(&mut self, range: &Range<usize>, access: &str, path: &str) -> MemoryKind {
        let follows = self.range.end == range.start;
        if path.starts_with('/') && access.contains('x') && path != self.program {
            path.clone_into(&mut self.program);
        }
        match path {
            _ if self.is_managed(range.start) => MemoryKind::Managed,
            _ if vm::is_own(range) => MemoryKind::Own,
            "[heap]" => MemoryKind::Brk,
            _ if path.starts_with("[stack") => MemoryKind::Stacks,
            _ if path == self.program && !path.is_empty() => MemoryKind::Data,
            _ if path.starts_with("/dev/zero") => MemoryKind::Other,
            _ if path.starts_with('/') => MemoryKind::Files,
            _ if access.contains('x') => MemoryKind::Code,
            // Data that begins as zeros lies behind the rest.
            "" if follows && self.kind == MemoryKind::Data => MemoryKind::Data,
            "" if follows && self.is_guard => MemoryKind::Stacks,
            _ => MemoryKind::Other,
        }
    }
}

/// Addresses, access and name of a mapping, if a line begins one.
fn head(line: &str) -> Option<(Range<usize>, &str, &str)> {
    let (addresses, rest) = line.split_once(' ')?;
    let (start, end) = addresses.split_once('-')?;
    let number = |digits| usize::from_str_radix(digits, 16).ok();
    let range = number(start)?..number(end)?;
    // Access, offset, device, number of the file, name.
    let mut words = rest.splitn(5, ' ');
    let access = words.next()?;
    Some((range, access, words.nth(3).unwrap_or("").trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANAGED: Range<usize> = 0x4000_0000..0x8000_0000;
    use proptest::prelude::*;

    fn kinds(mappings: &[(&str, u64)]) -> Kinds {
        let text: String = mappings
            .iter()
            .map(|(head, kib)| format!("{head}\nRss: 800 kB\nPss: 400 kB\nAnonymous: {kib} kB\n"))
            .collect();
        let mut reader = Reader::new(std::slice::from_ref(&MANAGED));
        text.lines().for_each(|line| reader.line(line));
        reader.kinds
    }

    #[test]
    fn each_mapping_has_its_kind() {
        let kinds = kinds(&[
            ("00400000-00401000 r--p 00000000 fe:01 77                       /bin/a program", 0),
            ("00401000-00402000 r-xp 00001000 fe:01 77                       /bin/a program", 4),
            ("00402000-00403000 rw-p 00002000 fe:01 77                       /bin/a program", 4),
            ("00403000-00405000 rw-p 00000000 00:00 0 ", 8),
            ("01000000-01400000 rw-p 00000000 00:00 0                        [heap]", 400),
            ("40000000-50000000 rw-p 00000000 00:00 0 ", 4000),
            ("680000000000-680000100000 rw-p 00000000 00:00 0 ", 40),
            ("7f0000000000-7f0000100000 rw-p 00000000 fe:01 78   /tmp/data (deleted)", 12),
            ("7f0000100000-7f0000200000 rw-p 00000000 00:00 0 ", 16),
            ("7f0000300000-7f0000301000 ---p 00000000 00:00 0 ", 0),
            ("7f0000301000-7f0000b01000 rw-p 00000000 00:00 0 ", 20),
            ("7f0001000000-7f0001001000 rwxp 00000000 00:00 0 ", 24),
            ("7f0002000000-7f0002001000 rw-p 00000000 00:01 9      /dev/zero", 28),
            ("7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0      [stack]", 32),
        ]);
        // Half of each, as the process shares them with one other.
        let pages = [7, 50, 3, 2, 3, 5, 6, 500];
        assert_eq!(kinds, Kinds(pages), "{kinds:?}");
    }

    /// What a line of the list may look like, and what it may not.
    fn any_line() -> impl Strategy<Value = String> {
        prop_oneof![
            any::<(u64, u64, bool)>().prop_map(|(a, b, x)| format!(
                "{a:x}-{b:x} rw{}p 0 0:0 0",
                if x { 'x' } else { '-' }
            )),
            any::<u64>().prop_map(|kib| format!("Anonymous: {kib} kB")),
            "[0-9a-f]{0,17}-?[0-9a-f]{0,17} ?[rwxp-]{0,5} ?[0-9a-f: ]{0,30}(/|\\[)?.{0,20}",
            ".{0,80}",
        ]
    }

    proptest! {
        #[test]
        fn any_text_has_some_kinds(lines in prop::collection::vec(any_line(), 0..40)) {
            let mut reader = Reader::new(std::slice::from_ref(&MANAGED));
            lines.iter().for_each(|line| reader.line(line));
            let _ = Kinds::of_text(&lines.join("\n"));
        }
    }

    #[test]
    fn this_process_has_some_and_nonsense_is_nothing() {
        let mut reader = Reader::new(&[]);
        for line in ["", "-", "x-y rw-p", "Anonymous: many kB", "Anonymous:", "1-2", "9-1 ---p"] {
            reader.line(line);
        }
        assert_eq!(reader.kinds, Kinds::default());
        let kinds = Kinds::of_process(&[]).unwrap();
        assert!(kinds.get(MemoryKind::Stacks) > 0 && kinds.get(MemoryKind::Data) > 0, "{kinds:?}");
        let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
        assert!(Kinds::of_text(&text).get(MemoryKind::Data) > 0);
    }
}
