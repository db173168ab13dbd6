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
    /// Most from memory where nothing else was asked for; and the least from devices.
    const AUTO: usize = 16;
    /// What the buffers of all that serve faults may take of the budget together, so that there are
    /// larger ones: 1/64.
    const BUFFERS_SHARE: usize = 64;

    /// For a budget of `pages`, with buffers for `buffers` folios in all.
    pub fn new(max: FolioMax, pages: usize, buffers: usize) -> Folios {
        if let FolioMax::Pages(pages) = max {
            return Folios { memory: pages, device: pages };
        }
        let fits = (pages / Self::BUFFERS_SHARE / buffers.max(1)).max(1);
        Folios { memory: Self::AUTO, device: (1 << fits.ilog2()).clamp(Self::AUTO, FOLIO_MAX) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_budgets_have_longer_folios_from_devices() {
        let auto = |mib: usize, buffers| Folios::new(FolioMax::Auto, mib << 8, buffers);
        assert_eq!(auto(4, 8), Folios { memory: 16, device: 16 });
        assert_eq!([64, 127, 128, 4096].map(|mib| auto(mib, 8).device), [32, 32, 64, 64]);
        assert_eq!(auto(128, 128).device, 16);
        assert_eq!(Folios::new(FolioMax::Pages(1), 1 << 20, 8), Folios { memory: 1, device: 1 });
    }
}
