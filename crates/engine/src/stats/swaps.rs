//! What became of a list of swap devices in a process.

/// What became of a list of swap devices ([`crate::device::list`]) in a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwapsOutcome {
    /// A device that it names could not be opened: the process has said why on its standard error,
    /// and goes on without.
    pub not_opened: bool,
    /// A device that it does not name is still in use: nothing took its pages.
    pub no_room: bool,
    /// Pages that could not be read from devices that were taken out of use, of all lists so far.
    pub lost_pages: u64,
}

impl SwapsOutcome {
    pub(super) fn to_word(self) -> u64 {
        u64::from(self.not_opened) | u64::from(self.no_room) << 1 | self.lost_pages << 2
    }

    pub(super) fn from_word(word: u64) -> SwapsOutcome {
        SwapsOutcome { not_opened: word & 1 != 0, no_room: word & 2 != 0, lost_pages: word >> 2 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_survives_its_form() {
        for (not_opened, no_room, lost_pages) in
            [(true, false, 0), (false, true, 5), (true, true, 1 << 40)]
        {
            let outcome = SwapsOutcome { not_opened, no_room, lost_pages };
            assert_eq!(SwapsOutcome::from_word(outcome.to_word()), outcome);
        }
    }
}
