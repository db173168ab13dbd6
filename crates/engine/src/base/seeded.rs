//! Mistakes in the engine's own steps that its models must find, which shows that they can.
//!
//! A model turns one on for its thread of the machine. Outside of tests none is ever on, and the
//! lines that ask are nothing.

/// What a step gets wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// Eviction: a page that was taken back while it was stored is dropped all the same.
    DropWithoutCommit,
}

/// Whether a mistake is to be made.
#[inline(always)]
pub fn is_seeded(bug: Bug) -> bool {
    #[cfg(test)]
    return SEEDED.get() == Some(bug);
    #[cfg(not(test))]
    {
        let _ = bug;
        false
    }
}

#[cfg(test)]
thread_local! {
    static SEEDED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Turns a mistake on for the calling thread, or none.
#[cfg(test)]
pub fn seed(bug: Option<Bug>) {
    SEEDED.set(bug);
}
