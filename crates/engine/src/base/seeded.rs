//! Mistakes in the engine's own steps that its models must find, which shows that they can.
//!
//! A model turns some on for its thread of the machine. Outside of tests none is ever on, and the
//! lines that ask are nothing.

/// What a step gets wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    // ---- A page and its word ----
    /// Eviction: the new place is published while the page is still mapped.
    PublishBeforeDrop,
    /// Eviction: a page that was taken back while it was stored is dropped all the same.
    DropWithoutCommit,
    /// Fault: the stored copy is given up before the page is installed.
    FreeBeforeInstall,
    /// Fault: a page is made writable without its lock, when a new eviction may have protected it
    /// again.
    UnprotectUnlocked,
    /// Fault: a page that was shared is given back before it is made writable, when a new fork may
    /// have marked it again.
    CopiedUnlocked,
    /// Range calls: pages are cleared without the extent's lock.
    ClearWithoutExtent,
    /// mlock: reclaim that began before is not waited for.
    PinWithoutExtent,
    /// Eviction in place: who may hold pages is asked before they are protected, and not after.
    HoldersUnasked,
    /// Eviction in place: who writes under the lock of the page tables is not waited for.
    NotSettled,
    /// The same, when pages are moved.
    MovedUnsettled,
    /// Pages whose numbers are near are taken to have one range of addresses, in whatever places
    /// they lie.
    OneRangeAssumed,

    // ---- Slots, and the compressed tier ----
    /// A slot that is given back keeps its entry of the tier, for the next store to replace: one
    /// that is refused does not.
    RefusedKeepsOlder,
    /// Writeback takes the entry out although the device has not taken the page.
    FailedIsTaken,
    /// Writeback looks at the object that the list has shown without comparing the entry.
    NotCompared,
    /// An entry is in the list before it is published.
    ListedFirst,
    /// A load frees the entry of a page that is clean from then on.
    CleanWithoutCopy,
    /// Writeback takes the entry out although its owner reads it.
    TakenWhileRead,
    /// Compaction replaces an object that is being read.
    MovedWhileRead,
    /// The owner reads the object without having announced it.
    ReadUnannounced,
    /// Writeback does not say that I/O on the slot is under way.
    WrittenUnclaimed,
    /// A slot is given back by its owner while somebody does I/O on it.
    FreedByOwner,
    /// A page gets the slot that it was written to although it has come back meanwhile.
    SlotChangedUnseen,

    // ---- Gates ----
    /// Whether a gate is open is looked at before who passes is counted, and not after.
    LookedUncounted,

    // ---- Frames ----
    /// A frame of a pageblock that is to leave the arena goes to the lists of a processor.
    IsolatedInLists,
    /// Whether there is room is not asked again with the zone's lock.
    RoomUnlocked,

    // ---- Clusters of slots, and caches of slots ----
    /// What became of a cluster is not looked at again with the device's lock.
    ClusterNotSettled,
    /// Whether caches are in use is looked at before one is locked only.
    CachingLookedTooEarly,
    /// Two threads take more of the disk into use at once.
    GrowTogether,
    /// A cache is emptied while it is not locked: its slots are put back, and then it is cleared.
    CacheClearedLate,

    // ---- The pool of compressed pages ----
    /// A chunk that is compacted is not pinned: it hands out places, and goes back, meanwhile.
    ChunkNotPinned,
    /// A chunk is pinned while an object in it is being written.
    PinnedWhileWritten,
    /// The old object is freed before its owner has agreed.
    MovedUnagreed,

    // ---- The slot index ----
    /// A frame that a look-up has shown is used without another look under the lock.
    LookUpTrusted,
    /// I/O begins on a slot on which somebody else's is under way.
    BegunTwice,

    // ---- The budget of a job ----
    /// A process looks at what is left, and takes it then.
    TakenUnannounced,
    /// A child's pages are saved before it leases them.
    SavedFirst,

    // ---- swapoff ----
    /// No mistake: a device goes on handing slots out while its pages are moved. Then the claim on
    /// its slots alone keeps pages whole.
    HandsOut,
    /// As in the original: pages are read and installed without a claim on their slots.
    Unclaimed,
    /// The claim ends, and slots go back, before words say where their pages are.
    EndedUnpublished,
    /// The claim on a page that has no room is kept for the next pass.
    KeptWithoutRoom,
    /// A page is locked without another look at its word.
    NotLookedAgain,
    /// A page is taken from the device although its store is under way: its slot is known, its
    /// compressed copy is not yet.
    ReadTooSoon,
    /// The same page is taken for lost.
    LostTooSoon,
    /// A slot that was moved is given back before the claim ends.
    FreedClaimed,
    /// The run is given back as a whole, when of one of its slots the page was given up.
    WholeRunFreed,
    /// What is kept by slot is given back while slots come into use.
    ForgottenInUse,
    /// What was read ahead while its page was being stored is taken for the page.
    FrameTrusted,
    /// Who looked before the device was retired takes a slot after that.
    NotSynchronized,
    /// The device is closed when nothing more can be moved.
    ClosedInUse,
}

/// Whether a mistake is to be made.
#[inline(always)]
pub fn is_seeded(bug: Bug) -> bool {
    #[cfg(test)]
    return SEEDED.get() & 1 << bug as u32 != 0;
    #[cfg(not(test))]
    {
        let _ = bug;
        false
    }
}

#[cfg(test)]
thread_local! {
    static SEEDED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Turns mistakes on for the calling thread, and all others off.
#[cfg(test)]
pub fn seed(bugs: &[Bug]) {
    SEEDED.set(bugs.iter().fold(0, |seeded, bug| seeded | 1 << *bug as u32));
}
