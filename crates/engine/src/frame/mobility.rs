//! Orders of blocks, and what frames are used for.

/// The largest order: 512 frames, 2 MiB, what one page-table page maps and so the longest run that
/// one call moves.
pub const MAX_ORDER: u8 = 9;
/// Frames of a pageblock, the unit of mobility and of a change of the arena's size.
pub const PAGEBLOCK: usize = 1 << MAX_ORDER;

pub(super) const ORDERS: usize = MAX_ORDER as usize + 1;

/// What frames are used for: frames of one kind lie together, so that those that stay do not break
/// up the runs of those that come and go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Mobility {
    /// Pages of the program that are mapped: a number only, which can be exchanged for another.
    Movable,
    /// The swap cache: emptied by reclaim, taken in long runs.
    Reclaimable,
    /// The zpool, buffers, the engine itself.
    Unmovable,
    /// In a pageblock that is to leave the arena: not handed out.
    Isolated,
}

impl Mobility {
    /// All of them.
    pub const ALL: [Mobility; 4] =
        [Mobility::Movable, Mobility::Reclaimable, Mobility::Unmovable, Mobility::Isolated];
    pub(super) const COUNT: usize = Self::ALL.len();
    /// Those that frames are handed out of.
    pub(super) const LISTED: usize = Mobility::Isolated as usize;

    pub(super) fn from_bits(bits: u8) -> Mobility {
        Self::ALL[bits as usize]
    }
}

/// From whom each mobility takes when it has nothing left.
pub(super) const FALLBACKS: [[Mobility; 2]; Mobility::LISTED] = [
    [Mobility::Reclaimable, Mobility::Unmovable],
    [Mobility::Movable, Mobility::Unmovable],
    [Mobility::Movable, Mobility::Reclaimable],
];
