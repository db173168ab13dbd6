//! How many pages come in together.

use crate::units::FOLIO_MAX;
use std::fmt;
use std::str::FromStr;

/// Most pages that one fault brings in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FolioMax {
    /// 16; from devices up to 64, as the budget allows.
    #[default]
    Auto,
    /// So many, a power of two up to [`FOLIO_MAX`].
    Pages(usize),
}

/// The pages of a text, if it is a power of two up to [`FOLIO_MAX`].
pub fn parse_pages(text: &str) -> Option<usize> {
    text.parse().ok().filter(|pages: &usize| pages.is_power_of_two() && *pages <= FOLIO_MAX)
}

impl FromStr for FolioMax {
    type Err = ();

    fn from_str(text: &str) -> Result<FolioMax, ()> {
        match text {
            "auto" => Ok(FolioMax::Auto),
            _ => parse_pages(text).map(FolioMax::Pages).ok_or(()),
        }
    }
}

impl fmt::Display for FolioMax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FolioMax::Auto => f.write_str("auto"),
            FolioMax::Pages(pages) => pages.fmt(f),
        }
    }
}

/// The same by where they come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Folios {
    /// Made up, unpacked, or out of the swap cache. More than 16 save little there: a fault's own
    /// cost is spread over enough.
    pub memory: usize,
    /// Read from a device, where an operation of 64 pages moves twice as many bytes in its time as
    /// one of 16.
    pub device: usize,
}

impl Folios {
    /// Most from memory where nothing else was asked for.
    const AUTO: usize = 16;
    /// What the buffers of all that serve faults may take together of what the process may have, so
    /// that folios are longer: 1/64.
    const BUFFERS_SHARE: usize = 64;

    /// As they were asked for.
    pub fn new(max: FolioMax) -> Folios {
        match max {
            FolioMax::Auto => Folios { memory: Self::AUTO, device: FOLIO_MAX },
            FolioMax::Pages(pages) => Folios { memory: pages, device: pages },
        }
    }

    /// Pages, a power of two, that each of `buffers` buffers is worth in a process with so many.
    pub fn share(pages: usize, buffers: usize) -> usize {
        1 << (pages / Self::BUFFERS_SHARE / buffers.max(1)).max(1).ilog2()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_processes_have_larger_buffers() {
        let share = |mib: usize, buffers| Folios::share(mib << 8, buffers);
        assert_eq!([0, 4, 64, 127, 128, 4096].map(|mib| share(mib, 8)), [1, 2, 32, 32, 64, 2048]);
        assert_eq!(share(128, 128), 4);
        assert_eq!(Folios::new(FolioMax::Auto), Folios { memory: 16, device: 64 });
        assert_eq!(Folios::new(FolioMax::Pages(1)), Folios { memory: 1, device: 1 });
    }
}
