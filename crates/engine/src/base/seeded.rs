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
    /// Range calls: pages are cleared without the extent's lock.
    ClearWithoutExtent,
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
