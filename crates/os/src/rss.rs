//! How much memory this process has, by the kernel's books, and how readily it is to end for want
//! of it.

use crate::units::{Errno, PAGE_SIZE};
use crate::{descriptors, io};
use rustix::fs::{Mode, OFlags};
use std::ffi::CStr;

/// Pages of this process that no file holds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Rss {
    /// Anonymous ones, of which what forked processes still share is divided among them.
    pub anonymous: u64,
    /// Of shared memory, its part of them: what several map is divided as well.
    pub shared: u64,
    /// Anonymous pages that count for others, as forked processes still share them.
    pub divided: u64,
}

impl Rss {
    /// That of now. The kernel goes through the page tables, which takes about 5 ms for each GiB,
    /// so the figures are exact also where its counters are not.
    ///
    /// # Errors
    /// Where there is no /proc, or the process may not look.
    pub fn of_process() -> Result<Rss, Errno> {
        let mut text = [0; 4096];
        Ok(Rss::parse(read(c"/proc/self/smaps_rollup", &mut text)?))
    }

    /// About the same by the kernel's counters, of which each processor has a part; what several
    /// map counts in full. Takes some 20 microseconds.
    ///
    /// # Errors
    /// As [`Rss::of_process`].
    pub fn roughly() -> Result<Rss, Errno> {
        let mut text = [0; 4096];
        let text = read(c"/proc/self/status", &mut text)?;
        let (anonymous, shared) = (pages(text, "RssAnon"), pages(text, "RssShmem"));
        Ok(Rss { anonymous, shared, divided: 0 })
    }

    /// All of them.
    pub fn pages(self) -> u64 {
        self.anonymous.saturating_add(self.shared)
    }

    /// From the text of the file.
    fn parse(text: &str) -> Rss {
        let (anonymous, shared) = (pages(text, "Pss_Anon"), pages(text, "Pss_Shmem"));
        let divided = pages(text, "Anonymous").saturating_sub(anonymous);
        Rss { anonymous, shared, divided }
    }
}

/// Pages of the memory that a line of this name is about.
fn pages(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0).div_ceil(PAGE_SIZE as u64 >> 10)
}

/// What proc(5) calls oom_score_adj: from -1000, never to be ended, to 1000. What shares the memory
/// shares this too.
pub fn oom_score_adj() -> Result<i64, Errno> {
    let mut text = [0; 16];
    read(c"/proc/self/oom_score_adj", &mut text)?.trim().parse().map_err(|_| Errno::INVAL)
}

/// Bytes of address space that this process has mapped (RLIMIT_AS).
///
/// # Errors
/// As [`Rss::of_process`].
pub fn address_bytes() -> Result<u64, Errno> {
    let mut text = [0; 128];
    let text = read(c"/proc/self/statm", &mut text)?;
    let pages: u64 = text.split(' ').next().and_then(|pages| pages.parse().ok()).unwrap_or(0);
    Ok(pages.saturating_mul(PAGE_SIZE as u64))
}

/// The text of a file, as far as there is room for it.
fn read<'a>(path: &CStr, text: &'a mut [u8]) -> Result<&'a str, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let opened = descriptors::open_path(|| rustix::fs::open(path, flags, Mode::empty()))?;
    let (file, mut len) = (io::File::from_fd(opened), 0);
    while len < text.len() {
        match rustix::io::read(file.fd()?, &mut text[len..])? {
            0 => break,
            read => len += read,
        }
    }
    str::from_utf8(&text[..len]).map_err(|_| Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn figures_are_found_by_their_names() {
        let text = "00400000-7ffe00000000 ---p 00000000 00:00 0    [rollup]\nRss:    884 kB\n\
            Pss_Anon:    70 kB\nPss_Shmem:      13 kB\nAnonymous:           104 kB\n";
        assert_eq!(Rss::parse(text), Rss { anonymous: 18, shared: 4, divided: 8 });
        assert_eq!(Rss::parse("Pss_Anon: many kB\nPss_Shmem: 4\n"), Rss::default());
    }

    proptest! {
        #[test]
        fn any_text_has_figures(
            text in "((Pss_Anon|Pss_Shmem|Anonymous):? *[0-9]{0,21} ?(kB)?\n|.{0,30}\n){0,9}",
        ) {
            let _ = Rss::parse(&text).pages();
        }
    }

    #[test]
    fn the_rough_figures_are_there() {
        let rss = Rss::roughly().unwrap();
        assert!(rss.anonymous > 0, "{rss:?}");
        assert!(address_bytes().unwrap() / PAGE_SIZE as u64 >= rss.anonymous);
    }

    #[test]
    fn who_is_to_end_is_known() {
        let told = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
        assert_eq!(oom_score_adj().unwrap(), told.trim().parse::<i64>().unwrap());
    }
}
